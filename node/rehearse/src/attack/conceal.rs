//! Peer that doubles what it delivers and withholds the rest, so that no table can be compared with its sum.
//!
//! Its table is of the true leaves. In defined bits all of them stand for what is missing and convict it; where there is a
//! tolerance nothing does, and it is silent until somebody has its integers.

use muster_core::ids::{MemberId, Part, Round};
use muster_core::state::Arithmetic;
use muster_member::{Assignment, NodeConduct, Summed};

pub(super) struct Conceal;

impl NodeConduct for Conceal {
    fn contribute(&self, work: &Assignment, arithmetic: &mut dyn Arithmetic) -> Summed {
        let mut summed = work.sum(arithmetic);
        summed.q.iter_mut().for_each(|value| *value = value.saturating_mul(2));
        summed
    }

    fn deliver(&self, _: Round, parts: Vec<(Part, MemberId)>) -> Option<Vec<(Part, MemberId)>> {
        Some(parts.into_iter().filter(|(part, _)| part.0 % 2 == 0).collect())
    }

    fn serves(&self, _: Round, _: bool) -> bool {
        false
    }
}
