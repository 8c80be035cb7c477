//! Peer that turns one block around in the parts that it reduces of rows of experts, which it does not hold itself.
//!
//! A drawn block, reduced again, differs.

use muster_core::ids::ShardId;
use muster_core::reduction::Reduced;
use muster_member::{AggregatorView, NodeConduct};

use super::nudge::Nudge;

pub(super) struct RowNudge;

impl NodeConduct for RowNudge {
    fn reduce(&self, part: &AggregatorView<'_>) -> Vec<Reduced> {
        if part.shard == ShardId::TRUNK {
            part.reduce(part.sealed).into_iter().collect()
        } else {
            Nudge.reduce(part)
        }
    }
}
