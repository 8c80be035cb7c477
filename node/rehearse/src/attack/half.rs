//! Peer that computes half of its leaves and counts each twice, to be paid for a whole batch.
//!
//! The sum is an honest one of half the size. The second half of the rows is wrong. With one leaf there is nothing to
//! save.

use muster_core::state::Arithmetic;
use muster_member::{Assignment, NodeConduct, Summed};

pub(super) struct Half;

impl NodeConduct for Half {
    fn contribute(&self, work: &Assignment, arithmetic: &mut dyn Arithmetic) -> Summed {
        let computed = work.quota.div_ceil(2);
        let leaves: Vec<_> = (0..computed).map(|position| work.leaf(arithmetic, position)).collect();
        Summed::of(leaves.into_iter().cycle().take(work.quota as usize).collect())
    }
}
