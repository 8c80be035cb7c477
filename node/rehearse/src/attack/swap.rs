//! Peer that opens another table than it sealed, to answer what was drawn.
//!
//! The opening does not fit its seal and nobody takes it, which is silence: verifiers recompute all its leaves.

use muster_core::codec::List;
use muster_core::ids::Round;
use muster_core::messages::audit::{Rows, TableRow};
use muster_core::state::Arithmetic;
use muster_member::{Assignment, NodeConduct, Summed};

use super::scale::Scale;

pub(super) struct Swap;

impl NodeConduct for Swap {
    fn contribute(&self, work: &Assignment, arithmetic: &mut dyn Arithmetic) -> Summed {
        Scale(-10).contribute(work, arithmetic)
    }

    fn open(&self, _: Round, rows: Rows) -> Option<Rows> {
        let mut rows: Vec<TableRow> = rows.to_vec();
        rows.first_mut()?.loss ^= 1;
        List::new(rows).ok()
    }
}
