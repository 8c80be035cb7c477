//! Peer that computes its leaves, but turns the sign of every value of one block in the part that it reduces.
//!
//! That is near enough to everybody's own contribution to be sealed; a drawn block, reduced again, differs.

use muster_core::reduction::Reduced;
use muster_member::{AggregatorView, NodeConduct};

use super::inflate::signed;

pub(super) struct Nudge;

impl NodeConduct for Nudge {
    fn reduce(&self, part: &AggregatorView<'_>) -> Vec<Reduced> {
        let turned = part.reduce(part.sealed).map(|mut reduced| {
            reduced.values.iter_mut().take(1).flatten().for_each(|value| *value = 0.0 - *value);
            signed(reduced)
        });
        turned.into_iter().collect()
    }
}
