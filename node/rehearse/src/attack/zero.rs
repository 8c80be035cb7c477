//! Peer that commits zeros, to be counted for nothing.
//!
//! It pulls the aggregate towards a standstill. Every row is wrong.

use muster_core::state::Arithmetic;
use muster_member::{Assignment, NodeConduct, Summed};

use super::forge::repeated;

pub(super) struct Zero;

impl NodeConduct for Zero {
    fn contribute(&self, work: &Assignment, _: &mut dyn Arithmetic) -> Summed {
        repeated(work, (vec![0; work.state.parameters.len()], 0))
    }
}
