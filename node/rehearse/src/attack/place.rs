//! Peer that is honest everywhere but in one place, to hide a large error in a small norm.
//!
//! In that place every leaf is turned and scaled tenfold; the place moves on with the rounds. One wrong coefficient
//! makes a row wrong, so every row is.

use std::ops::Range;

use muster_core::ids::Block;
use muster_core::layout::Layout;
use muster_core::state::Arithmetic;
use muster_member::{Assignment, NodeConduct, Summed};

use super::forge::changed;

const FACTOR: i32 = -10;

/// Where it lies.
pub(super) enum Scope {
    /// In one block.
    Block,
    /// In all blocks of one part.
    Part,
    /// In one tensor.
    Tensor,
}

impl NodeConduct for Scope {
    fn contribute(&self, work: &Assignment, arithmetic: &mut dyn Arithmetic) -> Summed {
        let ranges = self.ranges(work, &Layout::of_run(&work.manifest));
        changed(work, arithmetic, |_, q| {
            for range in &ranges {
                let integers = q.get_mut(range.clone()).unwrap_or_default();
                integers.iter_mut().for_each(|value| *value = value.saturating_mul(FACTOR));
            }
        })
    }
}

impl Scope {
    fn ranges(&self, work: &Assignment, layout: &Layout) -> Vec<Range<usize>> {
        let turn = |count: usize| work.round.index() % count.max(1);
        let block = |block: &Block| Some(layout.block(*block)?.range.clone());
        match self {
            Self::Block => block(&Block(turn(layout.blocks().len()) as u32)).into_iter().collect(),
            Self::Part => {
                let blocks = work.parts.get(turn(work.parts.len()));
                blocks.into_iter().flatten().filter_map(block).collect()
            }
            Self::Tensor => layout
                .tensors()
                .get(turn(layout.tensors().len()))
                .map(|tensor| tensor.range())
                .into_iter()
                .collect(),
        }
    }
}
