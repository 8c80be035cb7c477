//! Computing a contribution and committing to it, so that a crash never makes a member contradict itself.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use muster_compute::{Backend, Workers};
use muster_core::aggregate::Runner;
use muster_core::codec::{decode, encode};
use muster_core::contribution::{PackedChunk, PackedContribution};
use muster_core::error::Reject;
use muster_core::ids::{Digest, MemberId, Round, RunId, Slot};
use muster_core::ledger::{Ledger, RoundView};
use muster_core::lock::lock;
use muster_core::messages::round::Commit;
use muster_core::sign::Signed;
use muster_core::state::State;
use muster_replica::Phase;
use muster_roles::node::{Computed, NodeInput, commit_to};
use muster_store::error::StoreError;
use muster_store::home::Home;
use muster_store::journal::Journal;
use tokio::sync::mpsc;

use super::driver::{Completion, NodeDriver};
use crate::JoinError;
use crate::compute::{Assignment, Summed};
use crate::conduct::NodeConduct;
use crate::own::Contribution;
use crate::server::NodeContext;

/// Label under which a member keeps its own contribution.
const OWN_PART: u16 = u16::MAX;

impl NodeDriver {
    /// This member's contribution, from memory or, after a restart, from disk.
    pub(super) fn contribution(&self, round: Round) -> Option<Arc<Contribution>> {
        if let Some(held) = self.shared.own.round(round) {
            return Some(held);
        }
        let held = written(&self.home, &self.journal, self.machine.ledger(), &self.me(), round)?;
        Some(self.shared.own.put(held))
    }

    /// ROUND-29: computes a contribution to a round that is not there yet.
    pub(super) fn foresee(&self, view: &RoundView, slot: Slot) {
        let quota = view.seats().get(slot.index()).map_or(0, |seat| seat.quota);
        let Some(work) = self.assignment(view, slot, quota) else { return };
        let task = self.committing();
        tokio::task::spawn_blocking(move || task.foresee(work));
    }

    /// What is to be computed in a round; none where it is on another state than this member's.
    fn assignment(&self, view: &RoundView, slot: Slot, quota: u32) -> Option<Assignment> {
        // Leaves of another state would be committed to under this round: a lie by mistake. So would those of another row.
        let root = view.base().root();
        let path =
            |state: &Arc<State>| state.held().eq(self.machine.ledger().layout().path(view.row_of(slot)));
        let Some(state) = self.state_at(&root).filter(path) else {
            tracing::warn!("round {} is on another state than this member's", view.round());
            return None;
        };
        // The rest of the timer is for the leaf that is under way by then, the hashes, and the steward.
        let patience = Duration::from_millis(u64::from(self.manifest.timers.commit)) * 7 / 10;
        Some(Assignment {
            manifest: self.manifest.clone(),
            dataset: self.dataset.clone(),
            round: view.round(),
            seed: view.seed(),
            root,
            state,
            slot,
            seats: view.seats().len() as u16,
            route: view.route(slot),
            quota,
            seating: view.seats().to_vec(),
            parts: view.parts().iter().map(|plan| plan.blocks.clone()).collect(),
            deadline: Instant::now() + patience,
            stop: Arc::default(),
            spares: self.shared.own.spares().clone(),
            scratch: Some(self.home.path().into()),
        })
    }

    fn committing(&self) -> Committing {
        Committing {
            conduct: self.conduct.clone(),
            arithmetic: self.arithmetic.clone(),
            shared: self.shared.clone(),
            journal: self.journal.clone(),
            ledger: self.machine.ledger().clone(),
            failed: self.failed.clone(),
        }
    }

    /// What leaves are computed on, while it is kept.
    fn state_at(&self, root: &Digest) -> Option<Arc<State>> {
        let kept = lock(&self.replica).state_at(root)?;
        kept.near()
    }

    /// Computes a contribution, and has it committed to.
    pub(super) fn compute(&self, round: Round, slot: Slot, quota: u32) {
        let ledger = self.machine.ledger();
        let Some(view) = ledger.round(round) else { return };
        let Some(work) = self.assignment(view, slot, quota) else { return };
        let task = self.committing();
        let sender = self.sender.clone();
        tokio::spawn(async move {
            let message = match tokio::task::spawn_blocking(move || task.commit(work)).await {
                Ok(Ok(commits)) => Completion::Input(NodeInput::Committed(commits)),
                // A disk or a memory that fails would fail again; anything else costs this round alone.
                Ok(Err(why @ (JoinError::Store(_) | JoinError::Unreliable(_)))) => Completion::Failed(why),
                Ok(Err(why)) => return tracing::error!("round {round}: {why}"),
                Err(error) => return tracing::error!("round {round}: computing failed: {error}"),
            };
            let _ = sender.send(message).await;
        });
    }
}

/// The contribution to a round as an earlier process wrote it down: without leaves.
pub(super) fn written(
    home: &Home,
    journal: &Journal,
    ledger: &Ledger,
    me: &MemberId,
    round: Round,
) -> Option<Contribution> {
    let commit: Signed<Commit> = decode(&journal.vote("commit", round).ok()??).ok()?;
    let commit = commit.verify(ledger.run()).ok()?.into_inner();
    let places = home.contribution_places(round, me).ok()?;
    // Each block is proved against the commitment again: this part of the disk is not synced.
    let blocks = places.iter().filter_map(|place| home.load_block(round, me, place).ok()?);
    let sum = PackedContribution::gathered(ledger.layout(), &commit.root, blocks)?;
    let (leaves, tabulated) = Default::default();
    Some(Contribution { commit, sum, leaves, tabulated })
}

fn bad(reject: Reject) -> JoinError {
    JoinError::Environment(reject.to_string())
}

/// Writes the first of these commitments down before it is shown. Returns the commitments to show, and what is kept of the
/// contribution. COMMIT-2: one that was written down before a crash takes the place of the one computed since.
fn pledge(
    journal: &Journal,
    run: RunId,
    mut signed: Vec<Signed<Commit>>,
    computed: Contribution,
) -> Result<(Vec<Signed<Commit>>, Option<Contribution>), JoinError> {
    let Some(first) = signed.first_mut() else { return Ok((signed, Some(computed))) };
    *first = decode(&journal.put_vote("commit", computed.commit.round, &encode(first))?).map_err(bad)?;
    let said = first.verify(run).map_err(bad)?.into_inner();
    Ok((signed, computed.under(said)))
}

/// What a commitment needs besides the work.
struct Committing {
    conduct: Arc<dyn NodeConduct>,
    arithmetic: Arc<Mutex<Box<dyn Backend>>>,
    shared: Arc<NodeContext>,
    journal: Arc<Journal>,
    ledger: Arc<Ledger>,
    failed: mpsc::Sender<StoreError>,
}

impl Committing {
    /// Computes a contribution, and writes the signed commitment down. One from before a crash is shown again.
    fn commit(&self, mut work: Assignment) -> Result<Vec<Signed<Commit>>, JoinError> {
        let run = self.ledger.run();
        let voted = self.journal.vote("commit", work.round)?;
        let voted: Option<Signed<Commit>> = voted.map(|bytes| decode(&bytes)).transpose().map_err(bad)?;
        // As many leaves as were committed to, however late: the sum of fewer would have another root.
        if let Some(signed) = &voted {
            let said = signed.verify(run).map_err(bad)?;
            work.quota = said.leaves;
            work.deadline += Duration::from_secs(3600);
        }
        self.shared.own.ahead().begin(&work);
        let (mut summed, threads) = {
            // Whatever is computed ahead has the arithmetic until it is done.
            let mut arithmetic = lock(&self.arithmetic);
            let ahead = self.shared.own.ahead().take(&work);
            let summed = ahead.unwrap_or_else(|| self.contribute(&work, &mut **arithmetic));
            (summed, arithmetic.threads())
        };
        if summed.count == 0 {
            return Err(JoinError::Environment("no leaf could be computed: nothing is committed to".into()));
        }
        // What they were computed on is as large as what is made of them now.
        work.state = Arc::default();
        let leaves = Mutex::new(summed.take_leaves().map(Arc::new));
        let Summed { q, loss, count, trace, .. } = summed;
        let workers = Workers::new(threads);
        let layout = self.ledger.layout();
        let sum = self.shared.stopwatch.time(Phase::Hashing, || {
            let chunks = workers.each(layout.chunks().len(), |chunk| PackedChunk::new(layout, &q, chunk));
            PackedContribution::of(chunks)
        });
        if let Some(why) = lock(&self.arithmetic).doubt() {
            tracing::error!("round {}: {why}", work.round);
            return Err(JoinError::Unreliable(work.round));
        }
        // COMMIT-7: after the hashes, so that what they read is looked at, too.
        let sound = || trace.as_ref().is_none_or(|trace| trace.fits(threads, &q, loss));
        if !self.shared.stopwatch.time(Phase::Hashing, sound) {
            return Err(JoinError::Unreliable(work.round));
        }
        self.shared.own.spares().put(q);
        self.shared.own.spares().rest();
        let over = || JoinError::Environment("the round is over".into());
        let computed = Computed { leaves: count, loss, root: sum.root() };
        let commit = commit_to(&self.ledger, work.round, work.slot, computed).ok_or_else(over)?;
        let me = &self.shared.identity;
        let said = self.conduct.commit(commit.clone());
        // The first one is kept to. An attack may say others as well.
        let commit = said.first().cloned().unwrap_or(commit);
        let sign = || said.iter().map(|said| me.sign(run, said)).collect::<Vec<_>>();
        let signed = self.shared.stopwatch.time(Phase::Signing, sign);
        let computed = Contribution { commit, sum, leaves, tabulated: AtomicBool::default() };
        let (signed, kept) = pledge(&self.journal, run, signed, computed)?;
        match kept {
            Some(contribution) => self.keep(work.round, self.shared.own.put(contribution)),
            None => tracing::warn!(
                "round {}: recomputed on this machine, the contribution is not the one that was committed to",
                work.round
            ),
        }
        Ok(signed)
    }

    fn contribute(&self, work: &Assignment, arithmetic: &mut dyn Backend) -> Summed {
        self.shared.own.make_room();
        let before = arithmetic.spent();
        let begun = Instant::now();
        let summed = self.conduct.contribute(work, arithmetic);
        let gradient = arithmetic.spent().gradient - before.gradient;
        self.shared.stopwatch.add(Phase::Gradient, gradient);
        self.shared.stopwatch.add(Phase::Grid, begun.elapsed().saturating_sub(gradient));
        summed
    }

    /// ROUND-29: computes a contribution to a round that is not there yet, and keeps it for then.
    fn foresee(&self, work: Assignment) {
        let mut arithmetic = lock(&self.arithmetic);
        // The round may have come before the processor was free.
        if self.shared.own.ahead().start(&work) {
            let summed = self.contribute(&work, &mut **arithmetic);
            self.shared.own.ahead().put(work, summed);
        }
    }

    /// Writes a contribution down for audits and exhibits after a restart, beside the round: whoever dies before it is
    /// written computes it again, to the same bits, and has lost the round at most.
    fn keep(&self, round: Round, contribution: Arc<Contribution>) {
        let (shared, ledger, failed) = (self.shared.clone(), self.ledger.clone(), self.failed.clone());
        tokio::task::spawn_blocking(move || {
            let layout = ledger.layout();
            let blocks = layout.path_blocks(contribution.commit.row());
            let blocks = blocks.filter_map(|block| contribution.block(layout, block));
            if let Err(error) = shared.intake.shelf().save(round, &shared.identity.id(), OWN_PART, blocks) {
                // One failure that was told before is enough.
                drop(failed.try_send(error));
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use muster_core::ids::Digest;
    use muster_core::layout::Layout;
    use muster_core::manifest::Profile;
    use muster_core::sign::Identity;
    use muster_core::sketch::Probe;
    use muster_organise::config::Settings;

    use super::*;
    use crate::leaves::Leaves;
    use crate::session::audit::rows;

    fn layout() -> Layout {
        Layout::of(&Settings::default().checked_model().unwrap())
    }

    /// What one computed: a leaf of this value in each place and of this loss.
    fn computed(value: i32, loss: i64) -> Contribution {
        let layout = layout();
        let q = vec![value; layout.parameters()];
        let chunks = (0..layout.chunks().len()).map(|chunk| PackedChunk::new(&layout, &q, chunk));
        let (sum, digest) = (PackedContribution::of(chunks), Digest::default());
        let commit = Commit {
            round: Round(3),
            head: digest,
            state: digest,
            slot: Slot(0),
            seats: 1,
            route: None,
            leaves: 1,
            profile: Profile::F32,
            loss,
            root: sum.root(),
        };
        let leaves = Mutex::new(Some(Arc::new(Leaves::Memory(vec![(q.clone(), loss)]))));
        Contribution { commit, sum, leaves, tabulated: AtomicBool::default() }
    }

    #[test]
    fn tol_7_what_does_not_add_up_to_what_was_said_before_a_crash_is_in_no_table() {
        let folder = tempfile::tempdir().unwrap();
        let journal = Journal::open(&Home::open(folder.path()).unwrap()).unwrap();
        let (me, run) = (Identity::from_secret(&[3; 32]), RunId(Digest([1; 32])));
        let pledged = |computed: Contribution| {
            let signed = vec![me.sign(run, &computed.commit)];
            let (signed, kept) = pledge(&journal, run, signed, computed).unwrap();
            (signed[0].verify(run).unwrap().into_inner(), kept)
        };
        let (layout, probe) = (layout(), Probe::exact(&Digest::default()));
        let sealed = |held: &Contribution, again: Contribution| {
            let again = again.leaves.into_inner().unwrap().and_then(Arc::into_inner);
            let Some(Leaves::Memory(again)) = again else { return false };
            rows(held, &layout, &probe, 1, |take| again.into_iter().map(take).count() > 0).is_some()
        };
        let (said, kept) = pledged(computed(5, 70));
        assert!(sealed(&kept.unwrap(), computed(6, 71)), "the leaves are at hand");
        // The same again: its leaves are at hand.
        assert!(sealed(&pledged(computed(5, 70)).1.unwrap(), computed(6, 71)));
        // The same sum with another loss: the vote stands, and no table is made of the other figures.
        let (again, kept) = pledged(computed(5, 71));
        let kept = kept.unwrap();
        // COMMIT-2: what was written down is shown again, whatever was computed by then.
        assert_eq!((&again, &kept.commit), (&said, &said));
        assert!(!sealed(&kept, computed(5, 71)), "the losses do not add up");
        assert!(!sealed(&kept, computed(6, 70)), "the leaves do not add up");
        assert!(sealed(&kept, computed(5, 70)), "should it compute them after all, it may say so");
        // Another sum is no use for anything.
        let (again, kept) = pledged(computed(6, 70));
        assert!(again == said && kept.is_none());
    }
}
