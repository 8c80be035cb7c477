//! Peer that commits the same poison as each conspirator in its row of experts, to be the row's majority with them.
//!
//! The direction is one for a row, in every leaf and round. Where conspirators hold half of a row, the rule takes them for
//! the honest ones; every row of their tables is wrong.

use muster_core::state::Arithmetic;
use muster_member::{Assignment, NodeConduct, Summed};

use super::random::RandomGradient;

pub(super) struct Capture {
    pub(super) seed: u64,
}

impl NodeConduct for Capture {
    fn contribute(&self, work: &Assignment, arithmetic: &mut dyn Arithmetic) -> Summed {
        let Some(route) = &work.route else { return work.sum(arithmetic) };
        RandomGradient { seed: self.seed ^ u64::from(route.row.0) }.contribute(work, arithmetic)
    }
}
