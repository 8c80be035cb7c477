//! Peer that computes as it should, withholds a part, and never finishes its answer to a request for it.
//!
//! Fetches are nobody's turn: a verifier that cannot have the integers recomputes all leaves, and audits the others meanwhile.

use std::time::Duration;

use muster_core::ids::{MemberId, Part, Round};
use muster_core::manifest::Manifest;
use muster_member::{Delay, NodeConduct};

/// Longer than anybody waits.
const FOR_EVER: Duration = Duration::from_secs(300);

pub(super) struct Jam;

impl NodeConduct for Jam {
    fn deliver(&self, _: Round, parts: Vec<(Part, MemberId)>) -> Option<Vec<(Part, MemberId)>> {
        Some(parts.into_iter().filter(|(part, _)| part.0 != 0).collect())
    }

    fn lingers(&self, over: Delay, _: &Manifest) -> Duration {
        if over == Delay::Blocks { FOR_EVER } else { Duration::ZERO }
    }
}
