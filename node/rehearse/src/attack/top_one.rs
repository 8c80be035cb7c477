//! Peer that lets each token pass one expert fewer than it should, to save work.
//!
//! With two active experts only the best one is left. The gradients are true ones, of a smaller model: every row is
//! wrong.

use muster_core::state::Arithmetic;
use muster_member::{Assignment, NodeConduct, Summed};

use super::experts::with;
use super::forge::modelled;

pub(super) struct TopOne;

impl NodeConduct for TopOne {
    fn contribute(&self, work: &Assignment, arithmetic: &mut dyn Arithmetic) -> Summed {
        let fewer =
            with(&work.manifest.model, |mixture| mixture.active = mixture.active.saturating_sub(1).max(1));
        modelled(work, arithmetic, &fewer, &work.state)
    }
}
