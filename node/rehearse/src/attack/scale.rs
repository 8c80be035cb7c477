//! Peer that commits every leaf times a factor, to turn the model or to weigh more than its leaves.
//!
//! Its table adds up; every row is wrong. The factor −1 is the sign flip: it climbs the loss at the usual pace.

use muster_core::state::Arithmetic;
use muster_member::{Assignment, NodeConduct, Summed};

use super::forge::changed;

pub(super) struct Scale(pub(super) i32);

impl NodeConduct for Scale {
    fn contribute(&self, work: &Assignment, arithmetic: &mut dyn Arithmetic) -> Summed {
        changed(work, arithmetic, |_, q| q.iter_mut().for_each(|value| *value = value.saturating_mul(self.0)))
    }
}
