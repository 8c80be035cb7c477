//! Peer that commits to false sums, and lets audits wait for nearly as long as it can without being silent.
//!
//! Its ban comes late, so that more of its work counts until then, and rounds that nobody audited are forgotten.

use muster_core::ids::Round;
use muster_core::messages::audit::Rows;
use muster_core::state::Arithmetic;
use muster_member::{Assignment, AuditedContribution, NodeConduct, Summed};

/// With the work and the tables of another attack.
pub(super) struct Dawdle<C>(pub(super) C);

impl<C: NodeConduct> NodeConduct for Dawdle<C> {
    fn contribute(&self, work: &Assignment, arithmetic: &mut dyn Arithmetic) -> Summed {
        self.0.contribute(work, arithmetic)
    }

    fn seal(&self, asked: &AuditedContribution<'_>, rows: Rows) -> Option<Rows> {
        self.0.seal(asked, rows)
    }

    fn dawdles(&self, _: Round) -> bool {
        true
    }
}
