//! Peer that claims twice the leaves that its seat allows, to weigh more.
//!
//! Nobody takes such a commitment: it costs the peer its own contribution, and there is nothing to convict.

use muster_core::messages::round::Commit;

use crate::join::Conduct;

pub(super) struct Overclaim;

impl Conduct for Overclaim {
    fn commit(&self, commit: Commit) -> Vec<Commit> {
        vec![Commit { leaves: commit.leaves.saturating_mul(2), ..commit }]
    }
}
