//! Tables of this member's leaves: made when a round is frozen, or when an audit asks for them.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use muster_compute::{Backend, row};
use muster_core::assign;
use muster_core::ids::{Digest, MemberId, Round};
use muster_core::layout::Layout;
use muster_core::ledger::RoundView;
use muster_core::lock::lock;
use muster_core::manifest::Manifest;
use muster_core::messages::audit::{AuditRequest, Rows, TableRow};
use muster_core::messages::round::Commit;
use muster_core::sign::Signed;
use muster_core::sketch::Probe;
use muster_core::state::State;
use muster_roles::node::NodeInput;
use muster_store::dataset::Dataset;
use muster_store::home::Home;

use super::commit::written;
use super::dawdle::dawdle;
use super::driver::NodeDriver;
use crate::compute::{Assignment, Summed};
use crate::conduct::{AuditedContribution, Delay};
use crate::leaves::{LeafSum, Leaves, Spares};
use crate::own::Contribution;

impl NodeDriver {
    /// AUDIT-2: writes down the table of a round that was just frozen, for which its leaves were kept. It does nothing if they
    /// could not be kept: then an audit needs the state again (N9).
    pub(super) fn tabulate(&self, round: Round) {
        let frozen = self.machine.ledger().round(round).and_then(RoundView::freeze_digest);
        let (Some(freeze), Some(held)) = (frozen, self.shared.own.round(round)) else { return };
        let (home, failed, me) = (self.home.clone(), self.failed.clone(), self.me());
        let (threads, shared) = (self.options.machine.threads, self.shared.clone());
        let layout = self.machine.ledger().layout().clone();
        tokio::task::spawn_blocking(move || {
            let probe = Probe::exact(&freeze);
            let Some(rows) = made_of_leaves(&held, &layout, &probe, threads) else {
                return tracing::debug!("round {round}: an audit will have leaves computed again");
            };
            match home.save_rows(round, &me, &freeze, &rows) {
                Ok(()) if adds_up(&held.row(&layout, &probe, threads), &probe, &rows) => {
                    held.tabulated(shared.own.spares())
                }
                // An attack's table, for which it may want its leaves.
                Ok(()) => {}
                // One failure that was told before is enough.
                Err(error) => drop(failed.try_send(error)),
            }
        });
    }

    /// Answers a request with the rows that were written down, or else makes them from the leaves, which are recomputed if
    /// they were not kept.
    pub(super) fn make_rows(&self, signed: Signed<AuditRequest>) {
        let ledger = self.machine.ledger().clone();
        let Ok(request) = signed.verify(ledger.run()) else { return };
        let held = self.shared.own.round(request.round);
        let (home, journal, me) = (self.home.clone(), self.journal.clone(), self.me());
        let (manifest, dataset, arithmetic) =
            (self.manifest.clone(), self.dataset.clone(), self.arithmetic.clone());
        let (conduct, threads) = (self.conduct.clone(), self.options.machine.threads);
        let replica = self.replica.clone();
        let pause = conduct.lingers(Delay::Audit, &manifest);
        let (dawdles, ledgers) = (conduct.dawdles(request.round), self.shared.ledger.clone());
        self.spawn(async move {
            // No time at all for an honest member.
            tokio::time::sleep(pause).await;
            if dawdles {
                dawdle(ledgers).await;
            }
            let made = tokio::task::spawn_blocking(move || {
                let probe = muster_core::audit::probe(&manifest, &signed, &request);
                let found = || written(&home, &journal, &ledger, &me, request.round).map(Arc::new);
                let Some(held) = held.or_else(found) else {
                    tracing::warn!("asked about round {}, which is not kept here any more", request.round);
                    return None;
                };
                let layout = ledger.layout();
                let sum = held.row(layout, &probe, threads);
                let kept = tabulated(&home, &me, request.round, &request.freeze, &probe, &sum);
                let again = |take: &mut dyn FnMut(LeafSum)| {
                    // AUDIT-2: also of the round that a restart fell into, of which there may be no table. After a move the state may
                    // be of another row.
                    let state = lock(&replica).state_at(&held.commit.state);
                    let shards = held.commit.shards(layout);
                    let Some(state) = state.and_then(|state| state.shards(&shards)) else {
                        tracing::warn!(
                            "asked about round {}, whose state is not kept here any more",
                            held.commit.round
                        );
                        return false;
                    };
                    recompute(&held.commit, state, manifest, dataset, &arithmetic, take)
                };
                let rows = kept.or_else(|| rows(&held, layout, &probe, threads, again))?;
                let asked = AuditedContribution {
                    freeze: request.freeze,
                    probe: &probe,
                    commit: &held.commit,
                    sketch: &sum.sketch,
                };
                let rows = conduct.seal(&asked, rows)?;
                Some(NodeInput::Rows { request: Box::new(signed), root: held.commit.root, rows })
            });
            made.await.ok().flatten()
        });
    }
}

/// The table that was written down when the round was frozen, if it adds up to what was committed: whatever happened to the
/// file, no wrong table is sealed.
fn tabulated(
    home: &Home,
    me: &MemberId,
    round: Round,
    freeze: &Digest,
    probe: &Probe,
    sum: &TableRow,
) -> Option<Rows> {
    let rows = home.load_rows(round, me, freeze).ok()??;
    adds_up(sum, probe, &rows).then_some(rows)
}

fn adds_up(sum: &TableRow, probe: &Probe, rows: &Rows) -> bool {
    let (sketch, loss) = probe.sum(rows);
    (&sketch, loss) == (&sum.sketch, sum.loss)
}

/// The rows of kept leaves. A file that no longer has what was written counts as leaves that were not kept.
fn made_of_leaves(held: &Contribution, layout: &Layout, probe: &Probe, threads: usize) -> Option<Rows> {
    let leaves = lock(&held.leaves).clone()?;
    let sum = || held.row(layout, probe, threads);
    let rows = leaves.rows(probe, sum, threads);
    let told =
        |error: &std::io::Error| tracing::warn!("round {}: leaves on disk: {error}", held.commit.round);
    let rows = rows.inspect_err(told).ok()??;
    // What memory holds was looked at before the commitment (COMMIT-7), and an attack's need not add up.
    (!matches!(*leaves, Leaves::Packed(_)) || adds_up(&sum(), probe, &rows)).then_some(rows)
}

/// The rows of a contribution's table, made from its kept leaves, or else from leaves that `again` recomputes. `again`
/// returns whether it could. It makes each row while the next leaf is computed, and keeps no leaf.
pub(super) fn rows(
    held: &Contribution,
    layout: &Layout,
    probe: &Probe,
    threads: usize,
    again: impl FnOnce(&mut dyn FnMut(LeafSum)) -> bool,
) -> Option<Rows> {
    if let Some(rows) = made_of_leaves(held, layout, probe, threads) {
        return Some(rows);
    }
    let (mut summed, mut rows, spares) = (Summed::default(), Vec::new(), Spares::default());
    let mut take = |leaf: LeafSum| {
        rows.push(row(threads, probe, &leaf.0, leaf.1));
        summed.add(threads, leaf, false, &spares);
    };
    if !again(&mut take) {
        return None;
    }
    // TOL-7: a member that can no longer reproduce its own leaves to the bit MUST NOT seal a table.
    if summed.loss != held.commit.loss || !held.sum.is_of(layout, &summed.q) {
        tracing::warn!(
            "round {}: recomputed on this machine, its leaves do not add up to what was committed: no table is sealed, so \
             that verifiers recompute all of them",
            held.commit.round
        );
        return None;
    }
    Rows::new(rows).ok()
}

/// Computes the leaves of a contribution again, on its state. Returns whether it could compute all.
fn recompute(
    commit: &Commit,
    state: Arc<State>,
    manifest: Arc<Manifest>,
    dataset: Arc<Dataset>,
    arithmetic: &Mutex<Box<dyn Backend>>,
    take: &mut dyn FnMut(LeafSum),
) -> bool {
    let work = Assignment {
        route: commit.route.clone(),
        seed: assign::round_seed(manifest.run(), commit.round, &commit.state),
        manifest,
        dataset,
        round: commit.round,
        root: commit.state,
        state,
        slot: commit.slot,
        seats: commit.seats,
        quota: commit.leaves,
        // Of no use to a leaf of its own.
        seating: Vec::new(),
        parts: Vec::new(),
        deadline: Instant::now(),
        stop: Arc::default(),
        spares: Spares::default(),
        scratch: None,
    };
    // Shared with the round: an audit waits for the leaves under way, and the next round for the audit.
    let mut arithmetic = lock(arithmetic);
    let mut computed = 0;
    work.leaves(&mut **arithmetic, &|_| true, &mut |leaf| {
        computed += 1;
        take(leaf);
    });
    computed == commit.leaves
}
