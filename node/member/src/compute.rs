//! Computes leaves and sums them into a contribution.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use muster_compute::{add_leaf, copy_leaf, row};
use muster_core::assign;
use muster_core::ids::{Block, Digest, Leaf, Round, Slot};
use muster_core::layout::Layout;
use muster_core::manifest::Manifest;
use muster_core::messages::audit::TableRow;
use muster_core::messages::record::Seat;
use muster_core::messages::round::Route;
use muster_core::sketch::Probe;
use muster_core::state::{Arithmetic, LeafTask, State};
use muster_replica::leaf_windows;
use muster_store::dataset::Dataset;

use super::leaves::{LeafSum, Leaves, PackedLeaves, Spares};

/// What is to be computed.
#[derive(Clone)]
pub struct Assignment {
    /// The manifest.
    pub manifest: Arc<Manifest>,
    /// The text.
    pub dataset: Arc<Dataset>,
    /// The round.
    pub round: Round,
    /// Its public seed.
    pub seed: Digest,
    /// Root of the state.
    pub root: Digest,
    /// Parameters and exponents.
    pub state: Arc<State>,
    /// The member's slot.
    pub slot: Slot,
    /// Slots of the round.
    pub seats: u16,
    /// Which windows its leaves read; none where the state has one row.
    pub route: Option<Route>,
    /// Most leaves.
    pub quota: u32,
    /// All seats of the round.
    pub seating: Vec<Seat>,
    /// The blocks of each of its parts.
    pub parts: Vec<Vec<Block>>,
    /// No further leaf is begun after this.
    pub deadline: Instant,
    /// Once it is set, no further leaf is begun either.
    pub stop: Arc<AtomicBool>,
    /// Where vectors come from.
    pub spares: Spares,
    /// A folder for leaves that are too large for memory; without one they are not kept.
    pub scratch: Option<Arc<Path>>,
}

impl Assignment {
    /// The sum of the quota's leaves; of fewer once the deadline has passed, or where text cannot be read. All of them are kept.
    pub fn sum(&self, arithmetic: &mut dyn Arithmetic) -> Summed {
        self.sum_within(arithmetic, usize::MAX)
    }

    /// As [`Self::sum`]. The leaves are in memory only if all of them take at most `room` bytes; else they are packed, and one
    /// alone is the sum itself.
    pub fn sum_within(&self, arithmetic: &mut dyn Arithmetic, room: usize) -> Summed {
        self.sum_with(arithmetic, room, None)
    }

    /// As [`Self::sum_within`], with a fingerprint of each leaf, by which the sum is checked before it is committed to.
    pub fn sum_traced(&self, arithmetic: &mut dyn Arithmetic, room: usize) -> Summed {
        self.sum_with(arithmetic, room, Some(Trace::new(&self.seed)))
    }

    fn sum_with(&self, arithmetic: &mut dyn Arithmetic, room: usize, trace: Option<Trace>) -> Summed {
        // One leaf at least, however late it is: a seat that commits nothing fails (LEDGER-15, LEDGER-20).
        let stopped = || self.stop.load(Ordering::Relaxed) || Instant::now() >= self.deadline;
        let in_time = |position: u32| position == 0 || !stopped();
        let bytes = (Layout::of_run(&self.manifest).planes() * self.state.parameters.len() * 4)
            .saturating_mul(self.quota as usize);
        let keep = bytes <= room;
        let mut summed = Summed { trace, ..Summed::default() };
        let mut packed = if keep || self.quota == 1 { None } else { self.packed() };
        let threads = arithmetic.threads();
        self.leaves(arithmetic, &in_time, &mut |leaf| {
            if let Some(trace) = &mut summed.trace {
                // COMMIT-7: fingerprints cost a hundredth of what one leaf computed twice would, and look at
                // what stays in memory longest: the sum and the kept leaves.
                trace.see(threads, &leaf);
            }
            let written = packed.as_mut().map(|packed| packed.add(threads, &leaf.0, leaf.1));
            if let Some(Err(error)) = written {
                not_kept(self.round, &error);
                packed = None;
            }
            summed.add(threads, leaf, keep, &self.spares);
        });
        summed.packed = packed;
        summed
    }

    /// Where leaves go that memory has no room for.
    fn packed(&self) -> Option<PackedLeaves> {
        let packed = PackedLeaves::within(self.scratch.as_ref()?);
        packed.inspect_err(|error| not_kept(self.round, error)).ok()
    }

    /// Computes the quota's leaves in order, up to the first for which `begin` is false. `take` gets each leaf while the
    /// gradient of the next one is computed.
    pub fn leaves(
        &self,
        arithmetic: &mut dyn Arithmetic,
        begin: &(dyn Fn(u32) -> bool + Sync),
        take: &mut dyn FnMut(LeafSum),
    ) {
        let windows = |leaf| self.windows(leaf);
        let positions = (0..self.quota).take_while(|position| begin(*position));
        self.compute(arithmetic, &self.recipe(&windows), &mut positions.into_iter(), take);
    }

    /// One leaf of the slot: its grid integers and loss.
    pub fn leaf(&self, arithmetic: &mut dyn Arithmetic, position: u32) -> LeafSum {
        let mut found = LeafSum::default();
        let windows = |leaf| self.windows(leaf);
        let mut positions = self.manifest.computed_for(&[position]).into_iter();
        self.compute(arithmetic, &self.recipe(&windows), &mut positions, &mut |leaf| found = leaf);
        found
    }

    /// The windows of text that a leaf is computed on; none where the text cannot be read, which is told.
    pub fn windows(&self, leaf: Leaf) -> Option<Vec<Vec<u32>>> {
        let windows = leaf_windows(&self.manifest, &self.dataset, &self.seed, leaf, self.route.as_ref());
        windows.inspect_err(|error| tracing::error!("round {}: no text for a leaf: {error}", self.round)).ok()
    }

    /// What the slot's own leaves are computed of.
    pub fn recipe<'a>(&'a self, windows: &'a LeafText<'a>) -> Recipe<'a> {
        Recipe { manifest: &self.manifest, state: &self.state, slot: self.slot, windows }
    }

    /// Computes leaves at these positions, of whatever the recipe says, with the round's dither, up to the first whose text is not
    /// there.
    pub fn compute(
        &self,
        arithmetic: &mut dyn Arithmetic,
        recipe: &Recipe<'_>,
        positions: &mut (dyn Iterator<Item = u32> + Send),
        take: &mut dyn FnMut(LeafSum),
    ) {
        let Recipe { manifest, state, slot, windows } = *recipe;
        let mut tasks = positions.map_while(|position| {
            let leaf = assign::leaf(slot, self.seats, position);
            let (windows, q) = (windows(leaf)?, self.spares.take());
            Some(LeafTask { state, round_seed: self.seed, leaf, windows, q })
        });
        arithmetic.leaves(manifest, &mut tasks, &mut |q, loss| take((q, loss)));
    }
}

fn not_kept(round: Round, error: &io::Error) {
    tracing::warn!(
        "round {round}: leaves are not kept, and computed again if an audit asks for them: {error}"
    );
}

/// The text that a leaf is computed on, if it is there.
pub type LeafText<'a> = dyn Fn(Leaf) -> Option<Vec<Vec<u32>>> + Sync + 'a;

/// What leaves are computed of. An attack may take something else than its assignment says.
#[derive(Clone, Copy)]
pub struct Recipe<'a> {
    /// The model, and how leaves become integers.
    pub manifest: &'a Manifest,
    /// Parameters, and what else leaves begin with.
    pub state: &'a State,
    /// Whose leaves.
    pub slot: Slot,
    /// Their text.
    pub windows: &'a LeafText<'a>,
}

/// A sum of leaves: what a member commits to, and what its table is made from.
#[derive(Default)]
pub struct Summed {
    /// Q.
    pub q: Vec<i32>,
    /// Sum of the losses.
    pub loss: i64,
    /// Number of leaves in the sum.
    pub count: u32,
    /// Each leaf with its loss, in order; none where they are not in memory.
    pub leaves: Vec<LeafSum>,
    /// All leaves, packed, where they are not in memory.
    pub packed: Option<PackedLeaves>,
    /// The fingerprints of its leaves, if they were taken.
    pub trace: Option<Trace>,
}

/// The fingerprint of each leaf as it came out of the arithmetic.
///
/// A contribution that is not the sum of these was changed in between, by a memory or a processor that fails: committed
/// to, it would be evidence against its author. A leaf that was computed wrongly is not noticed.
pub struct Trace {
    probe: Probe,
    rows: Vec<TableRow>,
}

impl Trace {
    /// Without leaves yet. A fault does not choose its place by the points, so that these need not be secret.
    fn new(seed: &Digest) -> Self {
        Self { probe: Probe::exact(seed), rows: Vec::new() }
    }

    fn see(&mut self, threads: usize, sum: &LeafSum) {
        let (leaf, loss) = sum;
        self.rows.push(row(threads, &self.probe, leaf, *loss));
    }

    /// Whether this is the sum of the leaves that were seen.
    pub fn fits(&self, threads: usize, q: &[i32], loss: i64) -> bool {
        let sum = row(threads, &self.probe, q, loss);
        self.probe.sum(&self.rows) == (sum.sketch, sum.loss)
    }
}

impl Summed {
    /// The sum of leaves.
    pub fn of(leaves: Vec<LeafSum>) -> Self {
        let mut summed = Self::default();
        leaves.into_iter().for_each(|leaf| summed.add(1, leaf, true, &Spares::default()));
        summed
    }

    /// The leaves, if all of them were kept. What the arithmetic gave is taken out of this.
    pub fn take_leaves(&mut self) -> Option<Leaves> {
        let (leaves, packed) = (std::mem::take(&mut self.leaves), self.packed.take());
        let all = |count: usize| count == self.count as usize;
        if all(leaves.len()) {
            return Some(Leaves::Memory(leaves));
        }
        match packed.filter(|packed| all(packed.count())) {
            Some(packed) => Some(Leaves::Packed(packed)),
            None => (self.count == 1).then_some(Leaves::Sum),
        }
    }

    /// Adds a leaf on `threads` threads, and either keeps it or returns its vector to the spares.
    pub fn add(&mut self, threads: usize, sum: LeafSum, keep: bool, spares: &Spares) {
        let (leaf, loss) = sum;
        self.loss = self.loss.saturating_add(loss);
        self.count += 1;
        // The first leaf is the sum so far, and nobody else needs its vector.
        if self.count == 1 && !keep {
            self.q = leaf;
            return;
        }
        if self.count == 1 {
            self.q = spares.any(leaf.len());
            copy_leaf(threads, &mut self.q, &leaf);
        } else {
            add_leaf(threads, &mut self.q, &leaf);
        }
        if keep {
            self.leaves.push((leaf, loss));
        } else {
            spares.put(leaf);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commit_7_a_bit_that_falls_over_between_leaf_and_commitment_is_noticed() {
        let leaves: Vec<LeafSum> = (1..4).map(|n| ((0..5000).map(|c| c * n - 70).collect(), 9)).collect();
        let mut trace = Trace::new(&Digest([3; 32]));
        leaves.iter().for_each(|leaf| trace.see(2, leaf));
        let right = Summed::of(leaves.clone());
        assert!(trace.fits(1, &right.q, right.loss) && !trace.fits(1, &right.q, right.loss + 1));
        for (index, bit) in [(0, 0), (77, 31), (4999, 13)] {
            let mut fallen = right.q.clone();
            fallen[index] ^= 1 << bit;
            assert!(!trace.fits(1, &fallen, right.loss), "in the sum");
            let mut fallen = leaves.clone();
            fallen[1].0[index] ^= 1 << bit;
            let fallen = Summed::of(fallen);
            assert!(!trace.fits(1, &fallen.q, fallen.loss), "in a leaf, before it was added");
        }
        let lost = Summed::of(leaves[..2].to_vec());
        assert!(!trace.fits(1, &lost.q, right.loss), "a leaf that was not added");
    }

    #[test]
    fn a_sum_is_the_same_whether_its_leaves_are_kept() {
        let leaf =
            |factor: i32| ((0..1000).map(|c| c * factor - 70).collect::<Vec<i32>>(), i64::from(factor));
        let leaves: Vec<LeafSum> = (1..6).map(leaf).collect();
        let right: Vec<i32> = (0..1000).map(|c| 15 * c - 350).collect();
        for keep in [true, false] {
            let (mut summed, spares) = (Summed::default(), Spares::default());
            leaves.iter().for_each(|leaf| summed.add(2, leaf.clone(), keep, &spares));
            assert_eq!((&summed.q, summed.loss, summed.count), (&right, 15, 5));
            assert_eq!(summed.leaves, if keep { leaves.clone() } else { Vec::new() });
            assert_eq!(summed.take_leaves().is_some(), keep);
            assert_eq!(
                spares.take().len(),
                if keep { 0 } else { 1000 },
                "vectors that are not kept are spare"
            );
        }
        assert_eq!(Summed::of(leaves).q, right);
    }
}
