//! Peer that reports half of its losses, to make the run look better than it is.
//!
//! Its gradients are true. Its losses add up; every row is wrong.

use muster_core::state::Arithmetic;
use muster_member::{Assignment, NodeConduct, Summed};

pub(super) struct Loss;

impl NodeConduct for Loss {
    fn contribute(&self, work: &Assignment, arithmetic: &mut dyn Arithmetic) -> Summed {
        let leaves = work.sum(arithmetic).leaves;
        Summed::of(leaves.into_iter().map(|(q, loss)| (q, loss / 2)).collect())
    }
}
