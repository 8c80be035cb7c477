//! Peer that inspects one member in every round, whomever its coins select, and leaves all others out.
//!
//! Requests that its coins do not bear out are refused, so that its prey is asked no more often than by anybody else; for
//! what it leaves out it is sealed as idle.

use std::sync::OnceLock;

use muster_core::ids::MemberId;
use muster_roles::verifier::audits::Conduct;

/// Its prey: whoever it meets first.
#[derive(Default)]
pub(super) struct Hunt(OnceLock<MemberId>);

impl Conduct for Hunt {
    fn asks(&self, author: MemberId, _: bool) -> bool {
        *self.0.get_or_init(|| author) == author
    }
}
