//! Computing a contribution and committing to it, so that a crash never makes a member contradict itself.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use muster_compute::{Backend, Workers};
use muster_core::aggregate::Runner;
use muster_core::codec::{decode, encode};
use muster_core::contribution::{Commitment, chunk_hash};
use muster_core::error::Reject;
use muster_core::ids::{Block, Round, Slot};
use muster_core::ledger::Ledger;
use muster_core::messages::round::Commit;
use muster_core::messages::wire::Request;
use muster_core::sign::Signed;
use muster_replica::Phase;
use muster_store::error::StoreError;
use muster_store::home::Home;
use muster_store::journal::Journal;
use tokio::sync::mpsc;

use super::Session;
use crate::join::JoinError;
use crate::join::compute::{Summed, Work};
use crate::join::conduct::Conduct;
use crate::join::exchange::reassemble;
use crate::join::own::Contribution;
use crate::join::server::Shared;
use crate::join::tell::tell;

/// Label under which a member keeps its own contribution.
const OWN_PART: u16 = u16::MAX;

impl Session {
    /// This member's contribution, from memory or, after a restart, from disk.
    pub(super) fn contribution(&self, ledger: &Ledger, round: Round) -> Option<Arc<Contribution>> {
        if let Some(held) = self.shared.own.round(round) {
            return Some(held);
        }
        let commit: Signed<Commit> = decode(&self.journal.vote("commit", round).ok()??).ok()?;
        let commit = commit.verify(ledger.run()).ok()?.into_inner();
        let kept = self.home.load_contribution(round, &self.me()).ok()?;
        let q = reassemble(ledger, &commit.root, &kept)?;
        let tree = Commitment::new(ledger.layout(), &q);
        self.shared.own.put(Contribution { commit, q, tree, state: None, leaves: Mutex::new(None) });
        self.shared.own.round(round)
    }

    pub(super) fn compute(&self, ledger: &Arc<Ledger>, round: Round, slot: Slot, quota: u32) {
        let Some(view) = ledger.round(round) else { return };
        let (root, state) = self.follower.replica().lock().unwrap_or_else(PoisonError::into_inner).snapshot();
        if root != view.state().root() {
            tracing::warn!("round {round} is on another state than this member's");
            return;
        }
        let patience = Duration::from_millis(u64::from(self.manifest.timers.commit)) * 7 / 10;
        let work = Work {
            manifest: self.manifest.clone(),
            dataset: self.dataset.clone(),
            round,
            seed: view.seed(),
            root,
            state,
            slot,
            seats: view.seats().len() as u16,
            quota,
            seating: view.seats().to_vec(),
            parts: view.parts().iter().map(|plan| plan.blocks.clone()).collect(),
            deadline: Instant::now() + patience,
            spares: self.shared.own.spares().clone(),
        };
        let task = Committing {
            conduct: self.conduct.clone(),
            arithmetic: self.arithmetic.clone(),
            shared: self.shared.clone(),
            home: self.home.clone(),
            journal: self.journal.clone(),
            ledger: ledger.clone(),
            failed: self.failed.clone(),
        };
        let (failed, shared, of) = (self.failed.clone(), self.shared.clone(), ledger.clone());
        let way = (self.follower.peers().clone(), self.follower.steward().clone());
        let gossip = self.follower.gossip().cloned();
        tokio::spawn(async move {
            let commit = tokio::task::spawn_blocking(move || task.commit(work)).await;
            match commit {
                Ok(Ok(commits)) => {
                    if let (Some(gossip), Some(commit)) = (gossip, commits.first()) {
                        gossip.committed(commit);
                    }
                    for commit in commits {
                        let answer = tell(&way, &Request::Commit(commit.clone())).await;
                        shared.pledges.committed(&of, &commit, answer);
                    }
                }
                // One failure that was told before is enough.
                Ok(Err(JoinError::Store(error))) => drop(failed.try_send(error)),
                Ok(Err(why)) => tracing::error!("round {round}: {why}"),
                Err(error) => tracing::error!("round {round}: computing failed: {error}"),
            }
        });
    }
}

/// What a commitment needs besides the work.
struct Committing {
    conduct: Arc<dyn Conduct>,
    arithmetic: Arc<Mutex<Box<dyn Backend>>>,
    shared: Arc<Shared>,
    home: Arc<Home>,
    journal: Arc<Journal>,
    ledger: Arc<Ledger>,
    failed: mpsc::Sender<StoreError>,
}

impl Committing {
    /// Computes, writes down what will be said, and signs it. What was said before a crash is said again.
    fn commit(&self, mut work: Work) -> Result<Vec<Signed<Commit>>, JoinError> {
        let run = self.ledger.run();
        let bad = |reject: Reject| JoinError::Environment(reject.to_string());
        let voted = self.journal.vote("commit", work.round)?;
        let voted: Option<Signed<Commit>> = voted.map(|bytes| decode(&bytes)).transpose().map_err(bad)?;
        if let Some(signed) = &voted {
            let said = signed.verify(run).map_err(bad)?;
            work.quota = said.leaves;
            work.deadline += Duration::from_secs(3600);
        }
        let (Summed { q, loss, leaves }, workers) = {
            let mut arithmetic = self.arithmetic.lock().unwrap_or_else(PoisonError::into_inner);
            let before = arithmetic.spent();
            let begun = Instant::now();
            let summed = self.conduct.contribute(&work, &mut **arithmetic);
            let gradient = arithmetic.spent().gradient - before.gradient;
            self.shared.stopwatch.add(Phase::Gradient, gradient);
            self.shared.stopwatch.add(Phase::Grid, begun.elapsed().saturating_sub(gradient));
            (summed, Workers::new(arithmetic.threads()))
        };
        let layout = self.ledger.layout();
        let tree = self.shared.stopwatch.time(Phase::Hashing, || {
            Commitment::of(workers.each(layout.chunks().len(), |chunk| chunk_hash(layout, &q, chunk)))
        });
        let over = || JoinError::Environment("the round is over".into());
        let head = self.ledger.round(work.round).map(|view| view.head()).ok_or_else(over)?;
        let commit = Commit {
            round: work.round,
            head,
            state: work.root,
            slot: work.slot,
            seats: work.seats,
            leaves: leaves.len() as u32,
            profile: work.manifest.profile,
            loss,
            root: tree.root(),
        };
        let me = &self.shared.identity;
        let said = self.conduct.commit(commit.clone());
        let commit = said.first().cloned().unwrap_or(commit);
        let sign = || said.iter().map(|said| me.sign(run, said)).collect::<Vec<_>>();
        let mut signed = self.shared.stopwatch.time(Phase::Signing, sign);
        if let Some(first) = signed.first_mut() {
            *first = decode(&self.journal.put_vote("commit", work.round, &encode(first))?).map_err(bad)?;
        }
        let leaves = Mutex::new(Some(leaves));
        let contribution = Contribution { commit, q, tree, state: Some(work.state), leaves };
        self.keep(work.round, self.shared.own.put(contribution));
        Ok(signed)
    }

    /// Writes a contribution down for audits and exhibits after a restart, beside the round: whoever dies before it is
    /// written computes it again, to the same bits, and has lost the round at most.
    fn keep(&self, round: Round, contribution: Arc<Contribution>) {
        let (home, ledger, me) = (self.home.clone(), self.ledger.clone(), self.shared.identity.id());
        let failed = self.failed.clone();
        tokio::task::spawn_blocking(move || {
            let layout = ledger.layout();
            let blocks = (0..layout.blocks().len() as u32).map(Block);
            let blocks: Vec<_> = blocks.filter_map(|block| contribution.block(layout, block)).collect();
            if let Err(error) = home.save_contribution(round, &me, OWN_PART, &blocks) {
                // One failure that was told before is enough.
                drop(failed.try_send(error));
            }
        });
    }
}
