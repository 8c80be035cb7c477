//! Peer that spoils one leaf every eighth round, to stay below the rate at which it would be found soon.
//!
//! Its table adds up, and one row of m is wrong in one round of eight.

use muster_core::ids::Round;
use muster_core::state::Arithmetic;
use muster_member::{Assignment, NodeConduct, Summed};

use super::one_leaf::OneLeaf;

/// Rounds from one spoiled leaf to the next.
pub(super) const EVERY: u32 = 8;

pub(super) struct Slow {
    pub(super) from: Round,
}

impl NodeConduct for Slow {
    fn contribute(&self, work: &Assignment, arithmetic: &mut dyn Arithmetic) -> Summed {
        if work.round.0.saturating_sub(self.from.0).is_multiple_of(EVERY) {
            OneLeaf.contribute(work, arithmetic)
        } else {
            work.sum(arithmetic)
        }
    }
}
