//! Peer that reports no gradient for the busiest expert of a leaf, so that it never learns.
//!
//! All else of its leaves is true. Every row is wrong.

use muster_core::state::Arithmetic;
use muster_member::{Assignment, NodeConduct, Summed};

use super::experts::{busiest, each, experts};
use super::forge::changed;

pub(super) struct Starve;

impl NodeConduct for Starve {
    fn contribute(&self, work: &Assignment, arithmetic: &mut dyn Arithmetic) -> Summed {
        let experts = experts(&work.manifest.model);
        changed(work, arithmetic, |_, q| each(q, busiest(&experts, q), |value| *value = 0))
    }
}
