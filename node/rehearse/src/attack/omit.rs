//! Peer that computes its leaves, but leaves one sealed input out of every part that it reduces.
//!
//! It says that it counted all of them. What comes out is as near to everybody's own contribution as ever, so that nobody
//! objects; a drawn block, reduced again, differs.

use muster_core::messages::round::Bitmap;
use muster_core::reduction::Reduced;
use muster_member::{AggregatorView, NodeConduct};

pub(super) struct Omit;

impl NodeConduct for Omit {
    fn reduce(&self, part: &AggregatorView<'_>) -> Vec<Reduced> {
        let mut fewer = Bitmap::default();
        part.sealed.slots().skip(1).for_each(|slot| fewer.insert(slot));
        part.reduce(fewer).into_iter().collect()
    }
}
