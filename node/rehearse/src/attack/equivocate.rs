//! Peer that signs two commitments in one round, to choose later which one it keeps to.
//!
//! Two signatures of one key contradict each other: that convicts at once, without an audit.

use muster_core::messages::round::Commit;
use muster_member::NodeConduct;

pub(super) struct Equivocate;

impl NodeConduct for Equivocate {
    fn commit(&self, commit: Commit) -> Vec<Commit> {
        let other = Commit { loss: commit.loss.saturating_add(1), ..commit.clone() };
        vec![commit, other]
    }
}
