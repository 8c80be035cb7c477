//! Peer that delivers every other part only, to make members combine different contributions.
//!
//! The sealed inputs say for each part who counts, the same for everyone. Its work is honest; it costs the peer those
//! parts.

use muster_core::ids::{MemberId, Part, Round};
use muster_member::NodeConduct;

pub(super) struct Partial;

impl NodeConduct for Partial {
    fn deliver(&self, _: Round, parts: Vec<(Part, MemberId)>) -> Option<Vec<(Part, MemberId)>> {
        Some(parts.into_iter().filter(|(part, _)| part.0 % 2 == 0).collect())
    }
}
