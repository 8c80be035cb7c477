//! Peer that spoils one whole contribution and leaves for good, before it can be audited.
//!
//! All m leaves are bad at once: the most that counts before any verdict. Every row is wrong, but who has left answers
//! no audit: verifiers that draw it recompute all its leaves.

use muster_core::ids::Round;
use muster_core::state::Arithmetic;
use muster_member::{Assignment, NodeConduct, Summed};

use super::scale::Scale;

pub(super) struct Burst {
    pub(super) from: Round,
}

impl NodeConduct for Burst {
    fn contribute(&self, work: &Assignment, arithmetic: &mut dyn Arithmetic) -> Summed {
        if work.round == self.from { Scale(-10).contribute(work, arithmetic) } else { work.sum(arithmetic) }
    }

    fn stays(&self, _: Round) -> bool {
        false
    }
}
