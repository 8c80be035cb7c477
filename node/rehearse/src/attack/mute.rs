//! Peer that cheats and answers no audit of that, so that its rounds are forgotten before its silence is sealed.
//!
//! No round is forgotten while an audit of it is open: its silence is sealed, and whoever asked it recomputes all leaves.

use muster_core::messages::audit::Rows;
use muster_core::state::Arithmetic;
use muster_member::{Assignment, AuditedContribution, NodeConduct, Summed};

use super::scale::Scale;

pub(super) struct Mute;

impl NodeConduct for Mute {
    fn contribute(&self, work: &Assignment, arithmetic: &mut dyn Arithmetic) -> Summed {
        Scale(-10).contribute(work, arithmetic)
    }

    fn seal(&self, _: &AuditedContribution<'_>, _: Rows) -> Option<Rows> {
        None
    }
}
