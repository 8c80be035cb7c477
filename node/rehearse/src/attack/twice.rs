//! Peer that signs two results for every part that it reduces: a hundred times the right one, then the right one.
//!
//! Two words on one part convict it, and have the part reduced again.

use muster_core::reduction::Reduced;
use muster_member::{AggregatorView, NodeConduct};

use super::inflate::hundredfold;

pub(super) struct Twice;

impl NodeConduct for Twice {
    fn reduce(&self, part: &AggregatorView<'_>) -> Vec<Reduced> {
        let wrong = part.reduce(part.sealed).map(hundredfold);
        wrong.into_iter().chain(part.reduce(part.sealed)).collect()
    }
}
