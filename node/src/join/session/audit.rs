//! Answering audits in time.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use muster_compute::Backend;
use muster_core::ids::Digest;
use muster_core::manifest::Manifest;
use muster_core::messages::audit::{AuditRequest, Rows};
use muster_core::messages::wire::{Notice, Request};
use muster_core::sign::Signed;
use muster_core::sketch::Probe;
use muster_replica::{Contact, Peers};
use muster_store::dataset::Dataset;

use super::{Session, post};
use crate::join::answers::Answers;
use crate::join::compute::{LeafSum, Spares, Work};
use crate::join::conduct::Asked;
use crate::join::own::Contribution;

impl Session {
    pub(super) fn notice(&self, notice: Notice) {
        let way = (self.follower.peers().clone(), self.follower.steward().clone());
        match notice {
            Notice::Request(request) => self.answer(way, request),
            Notice::Results(results) => {
                if let Some(opening) = self.answers.open(self.identity(), &results, &*self.conduct) {
                    post(&way, Request::Notice(Notice::Opening(opening)));
                }
            }
            _ => {}
        }
    }

    /// Seals a table for a request that is due, recomputing the leaves if they were not kept.
    fn answer(&self, way: (Peers, Contact), signed: Signed<AuditRequest>) {
        let ledger = self.follower.ledger();
        let Ok(request) = ledger.check_request(&signed) else { return };
        if request.target != self.me() {
            return;
        }
        let Some(held) = self.shared.own.round(request.round) else {
            tracing::warn!("asked about round {}, which is not kept here any more", request.round);
            return;
        };
        let (manifest, dataset, arithmetic) =
            (self.manifest.clone(), self.dataset.clone(), self.arithmetic.clone());
        let (answers, shared, conduct) = (self.answers.clone(), self.shared.clone(), self.conduct.clone());
        let seed = muster_core::assign::round_seed(ledger.run(), request.round, &held.commit.state);
        let threads = self.options.machine.threads;
        tokio::spawn(async move {
            let table = tokio::task::spawn_blocking(move || {
                let probe = muster_core::audit::probe(&manifest, &signed, &request);
                let again = || recompute(&held, manifest, dataset, seed, &arithmetic);
                let rows = rows(&held, &probe, threads, again)?;
                let asked = Asked { freeze: request.freeze, probe: &probe, commit: &held.commit, q: &held.q };
                let rows = conduct.seal(&asked, rows)?;
                Some(answers.seal(&shared.identity, &signed, &request, held.commit.root, rows))
            });
            if let Ok(Some(table)) = table.await {
                post(&way, Request::Notice(Notice::Table(table)));
            }
        });
    }
}

/// The rows of a contribution's table, of its leaves as they are kept, else as they are computed again.
pub(super) fn rows(
    held: &Contribution,
    probe: &Probe,
    threads: usize,
    again: impl FnOnce() -> Option<Vec<LeafSum>>,
) -> Option<Rows> {
    if let Some(leaves) = &*held.leaves.lock().unwrap_or_else(PoisonError::into_inner) {
        return Answers::rows(probe, leaves, threads);
    }
    let leaves = again()?;
    // TOL-7: a member that can no longer reproduce its own leaves to the bit MUST NOT seal a table.
    if !adds_up(held, &leaves) {
        tracing::warn!(
            "round {}: recomputed on this machine, its leaves do not add up to what was committed: no table is sealed, so \
             that verifiers recompute all of them",
            held.commit.round
        );
        return None;
    }
    Answers::rows(probe, &leaves, threads)
}

/// Whether leaves are those of a commitment. Another machine's, or other threads', are not where there is a tolerance.
fn adds_up(held: &Contribution, leaves: &[LeafSum]) -> bool {
    let q = &held.q;
    let sum = |place: usize| leaves.iter().fold(0i32, |sum, (leaf, _)| sum.wrapping_add(leaf[place]));
    leaves.iter().fold(0i64, |sum, (_, loss)| sum.wrapping_add(*loss)) == held.commit.loss
        && leaves.iter().all(|(leaf, _)| leaf.len() == q.len())
        && q.iter().enumerate().all(|(place, q)| sum(place) == *q)
}

fn recompute(
    held: &Contribution,
    manifest: Arc<Manifest>,
    dataset: Arc<Dataset>,
    seed: Digest,
    arithmetic: &Mutex<Box<dyn Backend>>,
) -> Option<Vec<LeafSum>> {
    let commit = &held.commit;
    let work = Work {
        manifest,
        dataset,
        round: commit.round,
        seed,
        root: commit.state,
        state: held.state.clone()?,
        slot: commit.slot,
        seats: commit.seats,
        quota: commit.leaves,
        // Of no use to a leaf of its own.
        seating: Vec::new(),
        parts: Vec::new(),
        deadline: Instant::now(),
        spares: Spares::default(),
    };
    let mut arithmetic = arithmetic.lock().unwrap_or_else(PoisonError::into_inner);
    Some(work.leaves(&mut **arithmetic, &|_| true))
}
