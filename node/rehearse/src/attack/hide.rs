//! Peer that commits a false sum over true leaves, keeps one part back, and lets everybody but the steward have it.
//!
//! Whoever audits it finds the sum wrong, by integers that the steward cannot compare: all leaves have to convict it.

use muster_core::ids::{MemberId, Part, Round};
use muster_core::state::Arithmetic;
use muster_member::{Assignment, NodeConduct, Summed};

use super::flip::Flip;

pub(super) struct Hide;

impl NodeConduct for Hide {
    fn contribute(&self, work: &Assignment, arithmetic: &mut dyn Arithmetic) -> Summed {
        Flip.contribute(work, arithmetic)
    }

    fn deliver(&self, _: Round, parts: Vec<(Part, MemberId)>) -> Option<Vec<(Part, MemberId)>> {
        Some(parts.into_iter().filter(|(part, _)| *part != Part(0)).collect())
    }

    fn serves(&self, _: Round, steward: bool) -> bool {
        !steward
    }
}
