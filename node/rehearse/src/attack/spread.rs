//! Peer that adds one grid step to one coefficient of every block, to leave no part with an error worth a look.
//!
//! Its table is of the true leaves: it does not add up to the sum.

use muster_core::layout::Layout;
use muster_core::state::Arithmetic;
use muster_member::{Assignment, NodeConduct, Summed};

pub(super) struct Spread;

impl NodeConduct for Spread {
    fn contribute(&self, work: &Assignment, arithmetic: &mut dyn Arithmetic) -> Summed {
        let mut summed = work.sum(arithmetic);
        for block in Layout::of_run(&work.manifest).blocks() {
            let index = block.range.start + work.round.index() % block.range.len().max(1);
            summed.q.get_mut(index).into_iter().for_each(|value| *value = value.saturating_add(1));
        }
        summed
    }
}
