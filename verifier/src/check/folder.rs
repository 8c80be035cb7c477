//! A folder as a judge's witness.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use muster_compute::Machine;
use muster_core::audit::{Witness, leaf_state, recompute_sum};
use muster_core::contribution::{Commitment, PackedContribution};
use muster_core::ids::{Block, Digest, Height, MemberId, Part, Round, Row, RowSet, ShardId};
use muster_core::layout::Layout;
use muster_core::ledger::{Ledger, RoundView};
use muster_core::limits;
use muster_core::manifest::Manifest;
use muster_core::messages::record::Record;
use muster_core::messages::wire::BlockData;
use muster_core::sign::Signed;
use muster_core::state::{State, Update};
use muster_replica::archive::{Archive, Plan, Replay, find_state, read_ledger};
use muster_store::dataset::Dataset;
use muster_store::journal::Journal;
use muster_store::reading;

use crate::session::rounds_bar;

/// A witness that says what it did not find and where to get it.
pub(super) trait Searching: Witness {
    /// One sentence for each thing.
    fn missing(&self) -> Vec<String>;
}

/// The ledger after these records, or before the first one at which it is far enough.
fn followed(
    manifest: &Manifest,
    records: &[Signed<Record>],
    enough: impl Fn(&Ledger) -> bool,
) -> Result<Ledger, String> {
    let mut ledger = Ledger::new(Arc::new(manifest.clone()));
    for signed in records {
        if enough(&ledger) {
            break;
        }
        ledger.apply(signed).map_err(|reject| format!("record {}: {reject}", ledger.height()))?;
    }
    Ok(ledger)
}

/// A round once it is over, or as far as these records go.
pub(super) fn sealed_round(
    manifest: &Manifest,
    records: &[Signed<Record>],
    round: Round,
) -> Result<RoundView, String> {
    // Not further: later records make the ledger forget the round.
    let over = |ledger: &Ledger| ledger.round(round).is_some_and(|view| view.results().is_some());
    let ledger = followed(manifest, records, over)?;
    ledger.round(round).cloned().ok_or_else(|| "it ends before, or has forgotten it".to_owned())
}

/// A folder as a judge's witness. It looks for things when they are asked for, and says what it did not find and where
/// to get it.
pub(super) struct FolderWitness {
    folder: PathBuf,
    manifest: Manifest,
    round: Round,
    dataset: Option<Arc<Dataset>>,
    machine: Machine,
    /// Contributions that were recomputed, or found as exhibits.
    contributions: BTreeMap<MemberId, (Vec<i32>, Commitment)>,
    /// Blocks of convicts' contributions, as they are kept with their proofs.
    exhibits: BTreeMap<MemberId, Vec<BlockData>>,
    missing: Vec<String>,
}

impl FolderWitness {
    pub(super) fn new(
        folder: PathBuf,
        manifest: Manifest,
        accused: Option<(Round, MemberId)>,
        machine: Machine,
    ) -> Self {
        let round = accused.map_or(Round(0), |(round, _)| round);
        let (contributions, exhibits, missing) = Default::default();
        let mut witness =
            Self { folder, manifest, round, dataset: None, machine, contributions, exhibits, missing };
        if accused.is_some() {
            let data = witness.folder.join("data");
            match Dataset::open(&data, &witness.manifest.data) {
                Ok(dataset) => witness.dataset = Some(Arc::new(dataset)),
                Err(error) => witness
                    .missing
                    .push(format!("the text is not here ({error}): every member's folder has it in data/")),
            }
        }
        witness
    }

    fn layout(&self) -> Layout {
        Layout::of_run(&self.manifest)
    }

    /// The ledger before a height.
    fn chain(&self, height: Height) -> Result<Ledger, String> {
        let records = self.records(height)?;
        let ledger = followed(&self.manifest, &records, |ledger| ledger.height() == height)?;
        if ledger.height() == height {
            Ok(ledger)
        } else {
            Err(format!("it ends at height {}", ledger.height()))
        }
    }

    /// A contribution as it was committed: an exhibit, or its leaves recomputed.
    fn committed(&mut self, round: Round, member: &MemberId) -> Option<Vec<i32>> {
        if let Ok(Some(q)) = reading::exhibit(&self.folder, &self.layout(), round, member) {
            return Some(q);
        }
        let view = self.round(round)?;
        let commit = view.commitment(view.slot_of(member)?)?.commit.clone();
        let state = leaf_state(&self.manifest.clone(), &commit, self)?;
        let mut arithmetic = self.machine.leaves(self.manifest.profile).ok()?;
        let manifest = self.manifest.clone();
        let sum = recompute_sum(&manifest, &commit, &state, self, &mut *arithmetic)?;
        // Integers that were not committed to would convict, or acquit, an aggregator of another sum.
        if sum.root(&manifest) != commit.root {
            self.missing.push(format!(
                "the contribution of {member} to round {round} is not what its leaves give, and is not in exhibits/ of {}: \
                 the steward's folder has it if {member} was convicted",
                self.folder.display()
            ));
            return None;
        }
        Some(sum.q)
    }

    /// A block of a convict's contribution, where it is kept with its proofs.
    fn exhibited(&mut self, round: Round, member: &MemberId, block: Block) -> Option<BlockData> {
        if !self.exhibits.contains_key(member) {
            let parts = (0..limits::PARTS as u16).map(Part);
            let (folder, layout) = (&self.folder, self.layout());
            let kept = parts
                .filter_map(|part| reading::exhibited_blocks(folder, &layout, round, member, part).ok()?);
            let kept: Vec<BlockData> = kept.flatten().collect();
            self.exhibits.insert(*member, kept);
        }
        self.exhibits.get(member)?.iter().find(|data| data.block == block).cloned()
    }

    /// The records here: of an archive, or of a member's journal, whether or not it is at work.
    fn records(&self, height: Height) -> Result<Vec<Signed<Record>>, String> {
        // A copy: the member may be running, and holds the lock of its journal.
        read_ledger(&self.folder).or_else(|_| {
            let journal = Journal::copy_of(&self.folder).map_err(|error| error.to_string())?;
            let count = usize::try_from(height.0).unwrap_or(usize::MAX);
            journal.records(Height(0), count).map_err(|error| error.to_string())
        })
    }

    /// The state with this root by re-executing the run, which a finished one allows; the one before the round where there is
    /// none.
    fn replayed(&self, root: &Digest) -> Result<State, String> {
        let archive = Archive::open(&self.folder).map_err(|error| error.to_string())?;
        let plan = Plan { threads: self.machine.threads, path: self.machine.path, sample: None };
        let mut replay = Replay::begin(&archive, &plan).map_err(|misuse| misuse.to_string())?;
        let bar = rounds_bar("replaying", u64::from(self.round.0));
        while replay.ledger().next_round() < self.round && replay.ledger().state().root() != *root {
            let done = replay.round(&|| ()).map_err(|error| error.to_string())?;
            let done = done.ok_or_else(|| format!("the ledger ends before round {}", self.round))?;
            bar.set_position(u64::from(done.0) + 1);
        }
        bar.finish_and_clear();
        Ok(replay.into_state().state)
    }

    /// The state with this root, of the shards that the folder has.
    fn whole_state(&mut self, root: &Digest) -> Option<State> {
        let mut exact = self.machine.exact().ok()?;
        let dataset = self.dataset.clone()?;
        if let Some(state) = find_state(&self.folder, &self.manifest, &dataset, self.round, root, &mut exact)
        {
            return Some(state);
        }
        let state = self.replayed(root).and_then(|state| {
            // The folder may be of another run, or of a steward with two ledgers.
            let right = state.root() == *root;
            if right {
                Ok(state)
            } else {
                Err(format!("the ledger has another state before round {}", self.round))
            }
        });
        state
            .map_err(|why| {
                self.missing.push(format!(
                    "the state {root} before round {} is neither in states/ and updates/ of {} nor can it be recomputed ({why}): \
                     verifiers and the steward keep it for {} rounds, and the steward's folder has everything once the run is over",
                    self.round,
                    self.folder.display(),
                    self.manifest.retention.states
                ));
            })
            .ok()
    }
}

impl Searching for FolderWitness {
    fn missing(&self) -> Vec<String> {
        self.missing.clone()
    }
}

impl Witness for FolderWitness {
    fn state(&mut self, root: &Digest, shards: &[ShardId]) -> Option<State> {
        let state = self.whole_state(root)?.select(shards.iter().copied());
        if state.shards.len() == shards.len() {
            return Some(state);
        }
        self.missing.push(format!(
            "{} has other rows of the state {root}: a holder of the row has it, and the steward's folder has all",
            self.folder.display()
        ));
        None
    }

    fn row(&mut self, window: u64, open: RowSet) -> Option<Row> {
        let sequence = self.manifest.model.sequence;
        let row = self.dataset.as_ref()?.row_of(window, sequence, |row| open.contains(row));
        row.map_err(|error| self.missing.push(error.to_string())).ok().flatten()
    }

    fn windows(&mut self, indices: &[u64]) -> Option<Vec<Vec<u32>>> {
        let dataset = self.dataset.as_ref()?;
        let sequence = self.manifest.model.sequence;
        dataset.windows(indices, sequence).map_err(|error| self.missing.push(error.to_string())).ok()
    }
    fn ledger(&mut self, height: Height) -> Option<Ledger> {
        let ledger = self.chain(height);
        ledger
            .map_err(|why| {
                self.missing.push(format!(
                    "the ledger before height {height} is not in {} ({why}): whoever follows the run has it",
                    self.folder.display()
                ));
            })
            .ok()
    }

    fn update(&mut self, round: Round) -> Option<Update> {
        let why = match reading::aggregate(&self.folder, &self.layout(), round) {
            Ok(Some(update)) => return Some(update),
            Ok(None) => format!("is not in updates/ of {}", self.folder.display()),
            Err(error) => format!("cannot be read ({error})"),
        };
        self.missing.push(format!(
            "the aggregate of round {round} {why}: who found the wrong root has it, and the steward (for all rounds only after \
             muster host --keep-aggregates)"
        ));
        None
    }

    fn contribution(&mut self, round: Round, member: &MemberId) -> Option<Arc<PackedContribution>> {
        let layout = self.layout();
        let found = reading::exhibit(&self.folder, &layout, round, member);
        let why = match found {
            Ok(Some(q)) => match PackedContribution::whole_of(&layout, &q) {
                Some(q) => return Some(Arc::new(q)),
                None => "is not as long as those of its run".into(),
            },
            Ok(None) => format!("is not in exhibits/ of {}", self.folder.display()),
            Err(error) => format!("cannot be read ({error})"),
        };
        self.missing.push(format!(
            "the contribution of {member} to round {round} {why}: the steward's folder has it as exhibits/{round}.{member:#}.exhibit"
        ));
        None
    }

    fn round(&mut self, round: Round) -> Option<RoundView> {
        let view =
            self.records(Height(u64::MAX)).and_then(|records| sealed_round(&self.manifest, &records, round));
        view.map_err(|why| {
            self.missing.push(format!(
                "round {round} is not in the ledger of {} ({why}): whoever follows the run has it",
                self.folder.display()
            ));
        })
        .ok()
    }

    fn block(&mut self, round: Round, member: &MemberId, block: Block) -> Option<BlockData> {
        if let Some(kept) = self.exhibited(round, member, block) {
            return Some(kept);
        }
        let layout = Layout::of_run(&self.manifest);
        if !self.contributions.contains_key(member) {
            let q = self.committed(round, member)?;
            self.contributions.insert(*member, (q.clone(), Commitment::new(&layout, &q)));
        }
        let (q, tree) = self.contributions.get(member)?;
        tree.block(&layout, q, block)
    }
}
