//! Peer that computes its leaves, but commits their sum times −10, to drive the model away from the text.
//!
//! Its table is of the true leaves, so that no drawn leaf convicts it: the table does not add up to the sum.

use muster_compute::Exact;
use muster_core::ids::Round;

use crate::join::{Honest, Labour, Summed, Work};

const FACTOR: i32 = -10;

pub(super) struct Flip {
    pub(super) from: Round,
}

impl Labour for Flip {
    fn contribute(&self, work: &Work, arithmetic: &mut Exact) -> Summed {
        let mut summed = Honest.contribute(work, arithmetic);
        if work.round >= self.from {
            summed.q.iter_mut().for_each(|value| *value = value.saturating_mul(FACTOR));
        }
        summed
    }
}
