//! Peer that turns and scales one leaf of each contribution, to be found as rarely as it can be.
//!
//! Its table adds up, and one row of m is wrong: an audit that draws a leaves finds it with probability a/m.

use muster_core::state::Arithmetic;
use muster_member::{Assignment, NodeConduct, Summed};

use super::forge::changed;

const FACTOR: i32 = -10;

pub(super) struct OneLeaf;

impl NodeConduct for OneLeaf {
    fn contribute(&self, work: &Assignment, arithmetic: &mut dyn Arithmetic) -> Summed {
        let bad = work.round.index() % work.quota.max(1) as usize;
        changed(work, arithmetic, |position, q| {
            if position == bad {
                q.iter_mut().for_each(|value| *value = value.saturating_mul(FACTOR));
            }
        })
    }
}
