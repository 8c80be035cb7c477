//! Peer that computes its leaves, but turns the sign of every value of one block in the part that it reduces.
//!
//! That is near enough to everybody's own contribution to be sealed; a drawn block, reduced again, differs.

use muster_compute::Exact;
use muster_core::ids::Round;
use muster_core::reduction::Reduced;

use super::inflate::digest;
use crate::join::{Honest, Labour, Summed, Work};

pub(super) struct Nudge {
    pub(super) from: Round,
}

impl Labour for Nudge {
    fn contribute(&self, work: &Work, arithmetic: &mut Exact) -> Summed {
        Honest.contribute(work, arithmetic)
    }

    fn reduce(&self, round: Round, mut reduced: Reduced) -> Reduced {
        if round >= self.from {
            reduced.values.iter_mut().take(1).flatten().for_each(|value| *value = -*value);
            reduced.digest = digest(&reduced);
        }
        reduced
    }
}
