//! Peer that turns its sum around in a row of experts that few others train, where no majority is against it.
//!
//! Each contribution to such a row is audited, and where the row is held nothing of it is applied before it has passed.

use muster_core::state::Arithmetic;
use muster_member::{Assignment, NodeConduct, Summed};

use super::flip::Flip;

pub(super) struct Pair;

impl NodeConduct for Pair {
    fn contribute(&self, work: &Assignment, arithmetic: &mut dyn Arithmetic) -> Summed {
        // Before the rows come to be, everybody trains one.
        if work.route.is_none() { work.sum(arithmetic) } else { Flip.contribute(work, arithmetic) }
    }
}
