//! Peer that cheats in every other round and answers no audit of those, to pass for a bad connection.
//!
//! Silence costs its seat until it answers, and makes verifiers recompute all leaves that it was asked about.

use muster_core::ids::Round;
use muster_core::messages::audit::Rows;
use muster_core::state::Arithmetic;
use muster_member::{Assignment, AuditedContribution, NodeConduct, Summed};

use super::scale::Scale;

/// Rounds from one cheat to the next.
pub(super) const EVERY: u32 = 2;

pub(super) struct AuditRefusal {
    pub(super) from: Round,
}

impl AuditRefusal {
    fn guilty(&self, round: Round) -> bool {
        round.0.saturating_sub(self.from.0).is_multiple_of(EVERY)
    }
}

impl NodeConduct for AuditRefusal {
    fn contribute(&self, work: &Assignment, arithmetic: &mut dyn Arithmetic) -> Summed {
        if self.guilty(work.round) { Scale(-10).contribute(work, arithmetic) } else { work.sum(arithmetic) }
    }

    fn seal(&self, asked: &AuditedContribution<'_>, rows: Rows) -> Option<Rows> {
        (!self.guilty(asked.commit.round)).then_some(rows)
    }
}
