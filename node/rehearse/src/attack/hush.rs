//! Peer that cheats and echoes nothing, so that with friends enough no round of theirs could be audited.
//!
//! Its sum is ten times the opposite of the true one, for which each audit of it convicts. Without its echo nothing of
//! it counts, and the round is audited by the echoes of those that do.

use muster_core::ids::Round;
use muster_core::state::Arithmetic;
use muster_member::{Assignment, NodeConduct, Summed};

use super::flip::Flip;

pub(super) struct Hush;

impl NodeConduct for Hush {
    fn contribute(&self, work: &Assignment, arithmetic: &mut dyn Arithmetic) -> Summed {
        Flip.contribute(work, arithmetic)
    }

    fn echoes(&self, _: Round) -> bool {
        false
    }
}
