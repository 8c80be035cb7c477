//! Peer that takes in parts and never signs a result for them, so that rounds wait for it.
//!
//! Another one reduces the part, and it has failed in that round.

use muster_core::reduction::Reduced;
use muster_member::{AggregatorView, NodeConduct};

pub(super) struct IdleAggregator;

impl NodeConduct for IdleAggregator {
    fn reduce(&self, _: &AggregatorView<'_>) -> Vec<Reduced> {
        Vec::new()
    }
}
