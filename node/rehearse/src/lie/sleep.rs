//! Peer that takes its share of the inspections, says nothing about any of them, and returns whenever it is away.
//!
//! What it owes is public, so that its silence is as well: it is sealed as idle, and the others inspect what was its.

use muster_core::ids::Round;
use muster_roles::verifier::audits::Conduct;

pub(super) struct Sleep;

impl Conduct for Sleep {
    fn speaks(&self, _: Round) -> bool {
        false
    }
}
