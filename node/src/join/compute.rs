//! Summing leaves.

use std::sync::Arc;
use std::time::Instant;

use muster_compute::Exact;
use muster_core::assign;
use muster_core::ids::{Digest, Round, Slot};
use muster_core::manifest::Manifest;
use muster_core::reduction::Reduced;
use muster_core::state::{Arithmetic, LeafJob, State};
use muster_store::dataset::Dataset;

/// The grid integers of a leaf, and its fixed-point loss.
pub type LeafSum = (Vec<i32>, i64);

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
    /// No further leaf is begun after this.
    pub deadline: Instant,
}

impl Work {
    /// One leaf of the slot: its grid integers and loss.
    pub fn leaf(&self, arithmetic: &mut Exact, position: u32) -> LeafSum {
        let leaf = assign::leaf(self.slot, self.seats, position);
        let training = &self.manifest.training;
        let indices = assign::windows(&self.seed, leaf, training.leaf_windows, self.manifest.windows());
        let sequence = self.manifest.model.sequence;
        let windows: Vec<Vec<u32>> =
            indices.iter().map(|index| self.dataset.window(*index, sequence)).collect();
        let job = LeafJob { state: &self.state, round_seed: self.seed, leaf, windows: &windows };
        let mut q = vec![0; self.state.parameters.len()];
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
        let mut q = leaves.first().map_or_else(Vec::new, |(leaf, _)| leaf.clone());
        for (leaf, _) in leaves.iter().skip(1) {
            q.iter_mut().zip(leaf).for_each(|(sum, value)| *sum = sum.saturating_add(*value));
        }
        let loss = leaves.iter().fold(0i64, |sum, (_, own)| sum.saturating_add(*own));
        Self { q, loss, leaves }
    }
}

/// How a member comes by its contribution and its parts. The product has one way; the rehearsal's attackers bring their own.
pub trait Labour: Send + Sync + 'static {
    /// A contribution of at least one and at most `quota` leaves.
    fn contribute(&self, work: &Work, arithmetic: &mut Exact) -> Summed;

    /// What it makes of a part that the rule gave it.
    fn reduce(&self, _round: Round, reduced: Reduced) -> Reduced {
        reduced
    }
}

/// Computes every leaf and adds them up.
pub struct Honest;

impl Labour for Honest {
    fn contribute(&self, work: &Work, arithmetic: &mut Exact) -> Summed {
        let mut leaves = Vec::new();
        for position in 0..work.quota {
            if position > 0 && Instant::now() >= work.deadline {
                break;
            }
            leaves.push(work.leaf(arithmetic, position));
        }
        Summed::of(leaves)
    }
}
