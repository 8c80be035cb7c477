//! Peer that computes its leaves, but multiplies every part that it reduces by a hundred, to throw the model off at once.
//!
//! Every contributor sees that what came out is far from its own, so that it is never sealed.

use muster_core::contribution::PartDigest;
use muster_core::reduction::Reduced;
use muster_member::{AggregatorView, NodeConduct};

const FACTOR: f32 = 100.0;

pub(super) struct Inflate;

impl NodeConduct for Inflate {
    fn reduce(&self, part: &AggregatorView<'_>) -> Vec<Reduced> {
        part.reduce(part.sealed).map(hundredfold).into_iter().collect()
    }
}

pub(super) fn hundredfold(mut reduced: Reduced) -> Reduced {
    reduced.values.iter_mut().flatten().for_each(|value| *value *= FACTOR);
    signed(reduced)
}

/// With the digest that an aggregator signs for these values.
pub(super) fn signed(reduced: Reduced) -> Reduced {
    let digest = reduced.values.iter().fold(PartDigest::default(), |digest, block| digest.block(block));
    Reduced { digest: digest.finish(), ..reduced }
}
