//! Peer that commits an honest member's leaves as its own, to be counted for them or to count them twice.
//!
//! The values are honest; the rows are those of other leaves. A coalition that mimics one member (Karimireddy et al.
//! 2022) gives its text the weight of all of them.

use muster_core::state::Arithmetic;
use muster_member::{Assignment, NodeConduct, Summed};

use super::Coalition;
use super::forge::sum_of;

pub(super) struct Mimic {
    /// Whether all of a coalition take the same member, or each the one before it.
    pub(super) together: bool,
    pub(super) coalition: Coalition,
}

impl NodeConduct for Mimic {
    fn contribute(&self, work: &Assignment, arithmetic: &mut dyn Arithmetic) -> Summed {
        let honest = self.coalition.honest(work);
        let before = honest.iter().rev().find(|slot| **slot < work.slot);
        let victim = before.filter(|_| !self.together).or(honest.first());
        // Alone in a round it has nobody to copy.
        sum_of(work, arithmetic, victim.copied().unwrap_or(work.slot), work.quota)
    }
}
