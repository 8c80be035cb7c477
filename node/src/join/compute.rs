//! Summing leaves.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use muster_core::assign;
use muster_core::ids::{Block, Digest, Leaf, Round, Slot};
use muster_core::manifest::Manifest;
use muster_core::messages::record::Seat;
use muster_core::state::{Arithmetic, LeafJob, LeafTask, State};
use muster_store::dataset::Dataset;

/// The grid integers of a leaf, and its fixed-point loss.
pub type LeafSum = (Vec<i32>, i64);

/// Vectors that nobody needs any more, to be filled again: the pages of a fresh one cost more than its sums.
#[derive(Clone, Default)]
pub struct Spares(Arc<Mutex<Vec<Vec<i32>>>>);

impl Spares {
    /// Bytes kept at most; of larger vectors, one.
    const BYTES: usize = 256 << 20;

    /// So many numbers, whatever they are.
    pub fn any(&self, length: usize) -> Vec<i32> {
        let mut vector = self.take();
        vector.resize(length, 0);
        vector
    }

    /// The same values again.
    pub fn copy(&self, values: &[i32]) -> Vec<i32> {
        let mut copy = self.take();
        copy.clear();
        copy.extend_from_slice(values);
        copy
    }

    /// Takes a vector back.
    pub fn put(&self, vector: Vec<i32>) {
        let mut spares = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if (spares.len() + 1) * vector.len() * 4 <= Self::BYTES || spares.is_empty() {
            spares.push(vector);
        }
    }

    fn take(&self) -> Vec<i32> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default()
    }
}

/// What is to be computed.
pub struct Work {
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
    /// Most leaves.
    pub quota: u32,
    /// All seats of the round.
    pub seating: Vec<Seat>,
    /// The blocks of each of its parts.
    pub parts: Vec<Vec<Block>>,
    /// No further leaf is begun after this.
    pub deadline: Instant,
    /// Where vectors come from.
    pub spares: Spares,
}

impl Work {
    /// The sum of the quota's leaves; of fewer once the deadline has passed.
    pub fn sum(&self, arithmetic: &mut dyn Arithmetic) -> Summed {
        let in_time = |position: u32| position == 0 || Instant::now() < self.deadline;
        Summed::within(self.leaves(arithmetic, &in_time), &self.spares)
    }

    /// The quota's leaves, up to the first that is not to be begun.
    pub fn leaves(
        &self,
        arithmetic: &mut dyn Arithmetic,
        begin: &(dyn Fn(u32) -> bool + Sync),
    ) -> Vec<LeafSum> {
        let positions = (0..self.quota).take_while(|position| begin(*position));
        let mut tasks = positions.map(|position| {
            let leaf = assign::leaf(self.slot, self.seats, position);
            let (state, windows, q) = (&*self.state, self.windows(leaf), self.spares.take());
            LeafTask { state, round_seed: self.seed, leaf, windows, q }
        });
        let mut leaves = Vec::new();
        arithmetic.leaves(&self.manifest, &mut tasks, &mut |q, loss| leaves.push((q, loss)));
        leaves
    }

    /// One leaf of the slot: its grid integers and loss.
    pub fn leaf(&self, arithmetic: &mut dyn Arithmetic, position: u32) -> LeafSum {
        let leaf = assign::leaf(self.slot, self.seats, position);
        self.gradient(arithmetic, &self.state, leaf, &self.windows(leaf))
    }

    /// The text that a leaf is to be computed on.
    pub fn windows(&self, leaf: Leaf) -> Vec<Vec<u32>> {
        let training = &self.manifest.training;
        let indices = assign::windows(&self.seed, leaf, training.leaf_windows, self.manifest.windows());
        let sequence = self.manifest.model.sequence;
        indices.iter().map(|index| self.dataset.window(*index, sequence)).collect()
    }

    /// The gradient of this text under this state, on the grid with the dither of this leaf, and its loss.
    pub fn gradient(
        &self,
        arithmetic: &mut dyn Arithmetic,
        state: &State,
        leaf: Leaf,
        windows: &[Vec<u32>],
    ) -> LeafSum {
        let job = LeafJob { state, round_seed: self.seed, leaf, windows };
        let mut q = self.spares.any(state.parameters.len());
        let loss = arithmetic.leaf(&self.manifest, &job, &mut q);
        (q, loss)
    }
}

/// What a member commits to, and what it will say of each leaf.
pub struct Summed {
    /// Q.
    pub q: Vec<i32>,
    /// Sum of the losses.
    pub loss: i64,
    /// Each leaf with its loss, in order.
    pub leaves: Vec<LeafSum>,
}

impl Summed {
    /// The sum of leaves.
    pub fn of(leaves: Vec<LeafSum>) -> Self {
        Self::within(leaves, &Spares::default())
    }

    /// The sum of leaves, in a vector that is spare.
    fn within(leaves: Vec<LeafSum>, spares: &Spares) -> Self {
        let mut q = leaves.first().map_or_else(Vec::new, |(leaf, _)| spares.copy(leaf));
        for (leaf, _) in leaves.iter().skip(1) {
            q.iter_mut().zip(leaf).for_each(|(sum, value)| *sum = sum.saturating_add(*value));
        }
        let loss = leaves.iter().fold(0i64, |sum, (_, own)| sum.saturating_add(*own));
        Self { q, loss, leaves }
    }
}
