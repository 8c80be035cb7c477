//! Peer that computes its leaves, but multiplies every part that it reduces by a hundred, to throw the model off at once.
//!
//! Every contributor sees that what came out is far from its own, so that it is never sealed.

use muster_core::contribution::PartDigest;
use muster_core::ids::Round;
use muster_core::reduction::Reduced;

use crate::join::Conduct;

const FACTOR: f32 = 100.0;

pub(super) struct Inflate;

impl Conduct for Inflate {
    fn reduce(&self, _: Round, mut reduced: Reduced) -> Reduced {
        reduced.values.iter_mut().flatten().for_each(|value| *value *= FACTOR);
        reduced.digest = digest(&reduced);
        reduced
    }
}

/// What an aggregator signs for these values.
pub(super) fn digest(reduced: &Reduced) -> muster_core::ids::Digest {
    reduced.values.iter().fold(PartDigest::default(), |digest, block| digest.block(block)).finish()
}
