//! Peer that stops computing and commits the leaves of an earlier round again, to be counted for nothing.
//!
//! Sum and table agree with each other and look like gradients; a recomputed leaf differs.

use std::sync::Mutex;

use muster_core::lock::lock;
use muster_core::state::Arithmetic;
use muster_member::{Assignment, LeafSum, NodeConduct, Summed};

#[derive(Default)]
pub(super) struct Lazy {
    /// The leaves of the first round that it saw, which it computed.
    kept: Mutex<Vec<LeafSum>>,
}

impl NodeConduct for Lazy {
    fn contribute(&self, work: &Assignment, arithmetic: &mut dyn Arithmetic) -> Summed {
        let mut kept = lock(&self.kept);
        if kept.is_empty() {
            let summed = work.sum(arithmetic);
            kept.clone_from(&summed.leaves);
            return summed;
        }
        Summed::of(kept.iter().cycle().take(work.quota as usize).cloned().collect())
    }
}
