//! Peer that claims twice the leaves that its seat allows, to weigh more.
//!
//! Nobody takes such a commitment, and there is nothing to convict. It costs the peer its own contribution, and the
//! others T_commit as often as LEDGER-20 lets it back, like a peer that never commits.

use muster_core::messages::round::Commit;
use muster_member::NodeConduct;

pub(super) struct Overclaim;

impl NodeConduct for Overclaim {
    fn commit(&self, commit: Commit) -> Vec<Commit> {
        vec![Commit { leaves: commit.leaves.saturating_mul(2), ..commit }]
    }
}
