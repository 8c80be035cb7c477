//! Peer that reports a million times the gradient of the busiest expert of a leaf, to freeze it.
//!
//! The integers end at the limit of the grid (GRID-2), which is far above what an honest leaf has there: the second
//! moment of Adam grows by their square, and for a long time afterwards true gradients move nothing. All else of its
//! leaves is true. Every row is wrong.

use muster_core::limits::GRID_LIMIT;
use muster_core::state::Arithmetic;
use muster_member::{Assignment, NodeConduct, Summed};

use super::experts::{busiest, each, experts};
use super::forge::changed;

const FACTOR: i32 = 1_000_000;

pub(super) struct Bomb;

impl NodeConduct for Bomb {
    fn contribute(&self, work: &Assignment, arithmetic: &mut dyn Arithmetic) -> Summed {
        let experts = experts(&work.manifest.model);
        changed(work, arithmetic, |_, q| {
            each(q, busiest(&experts, q), |value| {
                *value = value.saturating_mul(FACTOR).clamp(-GRID_LIMIT, GRID_LIMIT);
            });
        })
    }
}
