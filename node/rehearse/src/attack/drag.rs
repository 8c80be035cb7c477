//! Peer that signs no result for the parts of rows of experts that it has to reduce, so that rows wait for it.
//!
//! Another one reduces the part, and it has failed in that round.

use muster_core::ids::ShardId;
use muster_core::reduction::Reduced;
use muster_member::{AggregatorView, NodeConduct};

pub(super) struct Drag;

impl NodeConduct for Drag {
    fn reduce(&self, part: &AggregatorView<'_>) -> Vec<Reduced> {
        if part.shard == ShardId::TRUNK { part.reduce(part.sealed).into_iter().collect() } else { Vec::new() }
    }
}
