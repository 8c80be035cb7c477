//! Opening a run's folder: whatever happened before, the steward goes on from what it has sealed.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use muster_compute::{Backend, Machine};
use muster_core::ids::{Round, ShardId};
use muster_core::ledger::{Ledger, Stage};
use muster_core::lock::lock;
use muster_core::manifest::Manifest;
use muster_core::messages::record::{Ban, Body};
use muster_core::sign::Identity;
use muster_organise::DATA;
use muster_organise::invite::read_manifest;
use muster_replica::disk::STEWARD_STATE_ROUNDS;
use muster_replica::exit::{Failure, Outcome};
use muster_replica::{HeldState, Replica, memory};
use muster_store::dataset::Dataset;
use muster_store::error::{Kind, StoreError};
use muster_store::home::Home;
use muster_store::journal::Journal;
use muster_store::rows::RowFiles;

use super::court::Court;
use super::second::Second;

/// Records read from the journal at a time.
const BATCH: usize = 256;

/// A run's folder, held by this process, with everything rebuilt that follows from it.
pub(super) struct Recovered {
    pub(super) home: Home,
    pub(super) row_files: RowFiles,
    pub(super) identity: Arc<Identity>,
    pub(super) manifest: Arc<Manifest>,
    pub(super) dataset: Arc<Dataset>,
    pub(super) journal: Arc<Journal>,
    pub(super) ledger: Ledger,
    /// Bans whose past may still have to be looked into.
    pub(super) bans: Vec<Ban>,
    pub(super) replica: Replica,
    /// Re-executes evidence while the replica goes on.
    pub(super) arithmetic: Arc<Mutex<Box<dyn Backend>>>,
    /// Re-executes once more before a ban for life.
    pub(super) second: Second,
}

/// Opens a folder. Blocks until all kept states are computed again.
///
/// # Errors
/// [`Failure`] naming the file: no run, held by another process, damaged.
pub(super) fn recover(folder: PathBuf, machine: Machine) -> Outcome<Recovered> {
    let manifest = Arc::new(read_manifest(&folder)?);
    // Before anything is opened: a steward that the system kills in a round keeps everybody waiting.
    memory::check(memory::hosting(&manifest, machine.threads), None)
        .map_err(|misuse| Failure::environment(misuse.to_string()))?;
    let home = Home::open(&folder)?;
    let identity = Arc::new(home.identity()?);
    // Records under another key would be refused by every member.
    if identity.id() != manifest.steward {
        let path = folder.join("identity.key");
        return Err(Failure::environment(format!(
            "{}: is not the key of this run's steward",
            path.display()
        )));
    }
    let broken = |misuse: muster_core::error::Misuse| Failure::environment(misuse.to_string());
    let mut arithmetic = machine.leaves(manifest.profile).map_err(broken)?;
    arithmetic.self_test().map_err(broken)?;
    let reason = machine.reason(&manifest);
    tracing::info!("leaves in evidence are computed by {}{reason}", arithmetic.describe());
    let dataset = Arc::new(Dataset::open(&folder.join(DATA), &manifest.data)?);
    let journal = Arc::new(Journal::open(&home)?);
    let (ledger, line, bans) = read_ledger(&journal, manifest.clone(), &folder)?;
    let files = home.row_files()?;
    // Nobody but the steward has to have all rows, and it needs one at a time.
    let row_files = (manifest.model.rows() > 1).then(|| files.clone());
    let start =
        Recovery { home: &home, manifest: &manifest, dataset: &dataset, line, machine, files, row_files };
    let (row_files, replica) = (start.files.clone(), start.replica(&ledger)?);
    Ok(Recovered {
        home,
        row_files,
        identity,
        manifest,
        dataset,
        journal,
        ledger,
        bans,
        replica,
        arithmetic: Arc::new(Mutex::new(arithmetic)),
        second: Second::new(machine),
    })
}

/// The ledger, the rounds whose updates lead to its newest state (all but those that were taken back), and the bans
/// whose contributions are still remembered and for which nothing was taken back.
fn read_ledger(
    journal: &Journal,
    manifest: Arc<Manifest>,
    folder: &std::path::Path,
) -> Outcome<(Ledger, Vec<Round>, Vec<Ban>)> {
    let mut ledger = Ledger::new(manifest);
    let (mut line, mut bans) = (Vec::new(), Vec::<Ban>::new());
    loop {
        let records = journal.records(ledger.height(), BATCH)?;
        if records.is_empty() {
            let first = ledger.rounds().next().map(|view| view.round()).unwrap_or_default();
            // ROLLBACK-4: the past of these is looked into again; what a round forgot cannot be recomputed.
            bans.retain(|ban| ban.effective > first);
            return Ok((ledger, line, bans));
        }
        for record in records {
            let height = ledger.height();
            // Each rule is checked again: a journal from elsewhere, or of a version with a bug, is not served
            // on.
            let record = ledger.apply(&record).map_err(|reject| {
                let path = folder.join("journal.redb");
                Failure::environment(format!("{}: record {height} breaks a rule ({reject})", path.display()))
            })?;
            match &record.body {
                Body::Outcome(outcome) => line.push(outcome.round),
                Body::Ban(ban) => bans.push(ban.clone()),
                Body::Rewind(rewind) => {
                    // Updates that were taken back lead to no state of this ledger.
                    line.retain(|round| *round < rewind.to);
                    bans.retain(|ban| ban.evidence != rewind.evidence);
                }
                _ => {}
            }
        }
    }
}

/// Why a start leads to no replica.
enum Unbuilt {
    /// The disk.
    Store(StoreError),
    /// Anything else, in words.
    Wrong(String),
}

impl From<StoreError> for Unbuilt {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

/// In which order starts are tried, `None` being the beginning of the run: the newest state that is old enough, since the fewest
/// rounds are to be applied again. Those that are too new come last: they leave out states that audits and rollback ask for.
fn starts(states: Vec<Round>, wanted: u32) -> impl Iterator<Item = Option<Round>> {
    let (old, new): (Vec<Round>, Vec<Round>) = states.into_iter().partition(|round| round.0 <= wanted);
    old.into_iter().rev().map(Some).chain([None]).chain(new.into_iter().map(Some))
}

struct Recovery<'a> {
    home: &'a Home,
    manifest: &'a Arc<Manifest>,
    dataset: &'a Arc<Dataset>,
    /// Rounds whose updates lead to the newest state.
    line: Vec<Round>,
    machine: Machine,
    /// Where earlier states go once they are large.
    files: RowFiles,
    /// Where the rows go that are not in memory.
    row_files: Option<RowFiles>,
}

impl Recovery<'_> {
    /// The newest sealed state, with as many states before it as audits may ask for: from a state on disk, or from
    /// the beginning, by the aggregates on disk.
    fn replica(&self, ledger: &Ledger) -> Outcome<Replica> {
        let wanted = ledger.next_round().0.saturating_sub(self.manifest.retention.states);
        let mut why = String::new();
        // A state of a round that was taken back leads to another root than the sealed one: then the next is tried.
        for start in starts(self.home.states()?, wanted) {
            match self.rebuild(ledger, start) {
                Ok(replica) => return Ok(replica),
                // Another start would need less room, and leave out states that are asked for.
                Err(Unbuilt::Store(error)) if error.kind() == Kind::Full => return Err(error.into()),
                Err(Unbuilt::Store(error)) => why = error.to_string(),
                Err(Unbuilt::Wrong(what)) => why = what,
            }
        }
        let round = ledger.next_round();
        Err(Failure::environment(format!("the state before round {round} cannot be computed again: {why}")))
    }

    fn rebuild(&self, ledger: &Ledger, start: Option<Round>) -> Result<Replica, Unbuilt> {
        let (manifest, dataset) = (self.manifest.clone(), self.dataset.clone());
        let Machine { threads, path, .. } = self.machine;
        let mut replica = match start {
            Some(round) => {
                Replica::resume(manifest, dataset, threads, path, self.state_on_disk(round)?, round)
            }
            None => Replica::genesis(manifest, dataset, threads, path),
        }
        .map_err(|misuse| Unbuilt::Wrong(misuse.to_string()))?;
        if let Some(files) = &self.row_files {
            replica = replica.with_row_files(files.clone())?;
        }
        replica = replica.with_state_files(self.files.clone(), memory::ROOM);
        let first = start.unwrap_or_default();
        for round in self.line.iter().filter(|round| **round >= first) {
            replica.skip_to(*round);
            let updates = self.home.load_steps(replica.layout(), *round)?;
            replica.apply(updates, None)?;
        }
        replica.skip_to(ledger.next_round());
        // The files may be damaged or of another machine: the ledger alone says which state is the run's.
        if ledger.stage() != Stage::Empty && replica.roots() != ledger.state() {
            let (found, sealed) = (replica.roots().root(), ledger.state().root());
            return Err(Unbuilt::Wrong(format!("the files in updates/ give {found}, sealed is {sealed}")));
        }
        Ok(replica)
    }

    fn state_on_disk(&self, round: Round) -> Result<HeldState, StoreError> {
        let (whole, rows) = (memory::is_away(self.manifest.model.parameters()), self.row_files.is_some());
        let away = |shard: ShardId| whole || (rows && shard.row().is_some());
        let (state, rows, roots) = self.home.load_state_and_rows(round, &self.files, &away)?;
        Ok(HeldState { state, rows, roots })
    }
}

/// After a round: writes down where members come from; keeps a state for others where it is one that they may fetch; writes one
/// down every [`STEWARD_STATE_ROUNDS`] rounds,
/// and drops what no restart needs any more. Aggregates stay if the archive is to have all of them.
///
/// # Errors
/// [`Failure`] naming the file.
pub(super) fn write_down(court: &Court) -> Outcome<()> {
    let home = &court.home;
    court.origins.write_down(home);
    court.offers.keep()?;
    let (round, HeldState { state, rows, roots }) = {
        let replica = lock(&court.replica);
        if replica.is_torn() || !replica.round().0.is_multiple_of(STEWARD_STATE_ROUNDS) {
            return Ok(());
        }
        (replica.round(), replica.held_state().clone())
    };
    home.save_state_and_rows(round, &state, &rows, &roots)?;
    let manifest = &court.manifest;
    let wanted = round.0.saturating_sub(manifest.retention.states);
    // The newest state that is old enough stays, and with it every update since: a restart begins there.
    let oldest = home.states()?.into_iter().filter(|start| start.0 <= wanted).max().unwrap_or(Round(0));
    home.prune_states(&|round| round >= oldest)?;
    // ROW-6: a step may take what has waited. AUDIT-26: whoever audits a round that is still open to it can follow up to it
    // without missing a state.
    let kept = manifest.audit_window().max(manifest.model.lag()) + 2;
    home.prune_updates(&|round| court.keep_aggregates || round.0.saturating_add(kept) >= oldest.0)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rollback_4_no_start_is_taken_that_leaves_out_a_state_which_another_one_leads_to() {
        let tried = |states: &[u32], wanted| {
            let states = states.iter().copied().map(Round).collect();
            starts(states, wanted).map(|start| start.map(|round| round.0)).collect::<Vec<_>>()
        };
        assert_eq!(tried(&[16], 3), [None, Some(16)], "the only one is too new: from the beginning");
        assert_eq!(tried(&[8, 16, 32, 40], 20), [Some(16), Some(8), None, Some(32), Some(40)]);
        assert_eq!(tried(&[], 0), [None]);
    }
}
