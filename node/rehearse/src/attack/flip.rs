//! Peer that commits ten times the opposite of its sum, to drive the model away from the text.
//!
//! Its table is of the true leaves, so that no drawn leaf convicts it: the table does not add up to the sum.

use muster_core::state::Arithmetic;
use muster_member::{Assignment, NodeConduct, Summed};

const FACTOR: i32 = -10;

pub(super) struct Flip;

impl NodeConduct for Flip {
    fn contribute(&self, work: &Assignment, arithmetic: &mut dyn Arithmetic) -> Summed {
        let mut summed = work.sum(arithmetic);
        summed.q.iter_mut().for_each(|value| *value = value.saturating_mul(FACTOR));
        summed
    }
}
