//! The member's own contributions: kept to deliver, to serve, and to answer audits.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use muster_compute::Workers;
use muster_core::aggregate::Runner;
use muster_core::contribution::PackedContribution;
use muster_core::ids::{Block, Round};
use muster_core::layout::Layout;
use muster_core::lock::lock;
use muster_core::messages::audit::TableRow;
use muster_core::messages::round::Commit;
use muster_core::messages::wire::BlockData;
use muster_core::sketch::Probe;
use muster_replica::memory;

use super::ahead::Ahead;
use super::leaves::{Leaves, Spares};

/// Contributions that stay in memory although all of them is on the disk: the one that is delivered, and the one before, which is
/// audited.
const NEWEST: usize = 2;
/// Bytes of leaves in memory, of one contribution and of all: beyond them leaves are packed in files, and older ones are
/// dropped, to be computed again if an audit asks for them.
pub(super) const LEAF_BYTES: usize = memory::LEAF_BYTES as usize;

/// Chunks of a sum that are unpacked at a time.
const CHUNKS_AT_ONCE: usize = 16;

/// A contribution.
pub struct Contribution {
    /// What was committed.
    pub commit: Commit,
    /// The sum, as it travels.
    pub sum: PackedContribution,
    /// Its leaves, while an audit may need them and there is room. Rows are made of them outside the lock.
    pub leaves: Mutex<Option<Arc<Leaves>>>,
    /// Whether its table is on the disk (AUDIT-2), which leaves no use for leaves.
    pub tabulated: AtomicBool,
}

impl Contribution {
    /// Its table is on the disk.
    pub fn tabulated(&self, spares: &Spares) {
        self.tabulated.store(true, Ordering::Relaxed);
        self.drop_leaves(spares);
    }

    /// Drops its leaves; they are computed again if an audit asks for them.
    fn drop_leaves(&self, spares: &Spares) {
        let leaves = lock(&self.leaves).take();
        // Whoever makes rows of them just now has the last of them.
        if let Some(leaves) = leaves.and_then(Arc::into_inner) {
            leaves.spare(spares);
        }
    }

    /// What can be kept of it if `said` was committed to before a crash. Leaves of another device, or of another number of
    /// threads, do not add up to that (TOL-7), and are dropped. If the integers differ, nothing of it can be used.
    pub fn under(mut self, said: Commit) -> Option<Self> {
        // Also where only the loss differs: a table of these leaves would convict its author (TOL-7).
        if said != self.commit {
            self.leaves = Mutex::new(None);
        }
        let same = said.root == self.commit.root;
        self.commit = said;
        same.then_some(self)
    }

    /// A block with its proofs.
    pub fn block(&self, layout: &Layout, block: Block) -> Option<BlockData> {
        self.sum.block(layout, block)
    }

    /// The row of the sum: what those of its leaves add up to.
    pub fn row(&self, layout: &Layout, probe: &Probe, threads: usize) -> TableRow {
        let chunks = layout.chunks().len();
        let pieces = Workers::new(threads).each(chunks.div_ceil(CHUNKS_AT_ONCE), |index| {
            let first = index * CHUNKS_AT_ONCE;
            let integers = self.sum.unpacked(layout, first..chunks.min(first + CHUNKS_AT_ONCE));
            let begin = layout.chunks().get(first).map_or(0, |chunk| chunk.start);
            probe.row_of_piece(begin, &integers.unwrap_or_default())
        });
        TableRow { sketch: probe.sum(&pieces).0, loss: self.commit.loss }
    }
}

/// Contributions by round.
pub struct Own {
    rounds: Mutex<BTreeMap<Round, Arc<Contribution>>>,
    keep: usize,
    spares: Spares,
    ahead: Ahead,
}

impl Own {
    /// Keeps this many rounds, of those whose table is on the disk the newest alone.
    pub fn new(keep: usize) -> Self {
        Self {
            rounds: Mutex::default(),
            keep: keep.max(NEWEST),
            spares: Spares::default(),
            ahead: Ahead::default(),
        }
    }

    /// Vectors of contributions that were dropped.
    pub fn spares(&self) -> &Spares {
        &self.spares
    }

    /// What was computed before its round began.
    pub(super) fn ahead(&self) -> &Ahead {
        &self.ahead
    }

    /// One round's contribution.
    pub fn round(&self, round: Round) -> Option<Arc<Contribution>> {
        lock(&self.rounds).get(&round).cloned()
    }

    /// Keeps a contribution and returns it; drops the oldest ones, and leaves beyond [`LEAF_BYTES`].
    pub fn put(&self, contribution: Contribution) -> Arc<Contribution> {
        let contribution = Arc::new(contribution);
        let mut rounds = lock(&self.rounds);
        rounds.insert(contribution.commit.round, contribution.clone());
        self.drop_old(&mut rounds, NEWEST);
        let mut room = LEAF_BYTES;
        // The newest first: audits ask for those.
        for held in rounds.values().rev() {
            let bytes = lock(&held.leaves).as_ref().map_or(0, |leaves| leaves.memory());
            match room.checked_sub(bytes) {
                Some(left) => room = left,
                None => held.drop_leaves(&self.spares),
            }
        }
        contribution
    }

    /// Before a contribution is computed: the one before the last goes, if all of it is on the disk.
    pub fn make_room(&self) {
        self.drop_old(&mut lock(&self.rounds), NEWEST - 1);
    }

    /// Drops what is too old, and of those whose table is on the disk all but so many.
    fn drop_old(&self, rounds: &mut BTreeMap<Round, Arc<Contribution>>, newest: usize) {
        let newest: Vec<Round> = rounds.keys().rev().take(newest).copied().collect();
        let excess = rounds.len().saturating_sub(self.keep);
        let of_no_use = rounds.iter().enumerate().filter(|(index, (round, held))| {
            *index < excess || held.tabulated.load(Ordering::Relaxed) && !newest.contains(round)
        });
        let of_no_use: Vec<Round> = of_no_use.map(|(_, (round, _))| *round).collect();
        for old in of_no_use.iter().filter_map(|round| rounds.remove(round)) {
            old.drop_leaves(&self.spares);
        }
    }
}

#[cfg(test)]
mod tests {
    use muster_core::ids::Slot;
    use muster_core::manifest::Profile;

    use super::*;

    fn contribution(round: u32) -> Contribution {
        let (head, state, root) = Default::default();
        let (slot, seats, leaves, loss) = (Slot(0), 2, 1, 0);
        let (round, profile, route) = (Round(round), Profile::Exact, None);
        let commit = Commit { round, head, state, slot, seats, route, leaves, profile, loss, root };
        let sum = PackedContribution::of([]);
        let (leaves, tabulated) = Default::default();
        Contribution { commit, sum, leaves, tabulated }
    }

    #[test]
    fn before_a_contribution_is_computed_one_that_is_on_the_disk_goes() {
        let own = Own::new(16);
        let held = |own: &Own| (0..9).filter(|round| own.round(Round(*round)).is_some()).collect::<Vec<_>>();
        for round in 0..3 {
            own.put(contribution(round)).tabulated(own.spares());
        }
        assert_eq!(held(&own), [1, 2]);
        own.make_room();
        assert_eq!(held(&own), [2]);
        // What is not on the disk yet stays: an audit may ask for it.
        own.put(contribution(3));
        own.put(contribution(4)).tabulated(own.spares());
        own.make_room();
        assert_eq!(held(&own), [3, 4]);
    }
}
