//! What both methods follow: the blocks of a shard, and the scalars of a tensor.

use std::ops::Range;

use muster_core::layout::{Layout, ShardRange, Tensor};

use crate::kernel::update::AdamStep;

/// A shard's tensors and blocks.
pub(crate) struct ShardPlan<'a> {
    pub(super) tensors: &'a [Tensor],
    pub(super) blocks: Vec<ShardBlock>,
}

/// A block in its shard.
pub(super) struct ShardBlock {
    /// Index of its tensor in the shard.
    pub(super) tensor: usize,
    /// Its coefficients in the shard's vectors.
    pub(super) range: Range<usize>,
}

/// The update of a shard.
#[derive(Clone, Copy)]
pub(super) struct ShardUpdate<'a> {
    pub(super) plan: &'a ShardPlan<'a>,
    /// Of its coefficients.
    pub(super) values: &'a [f32],
    /// Whether each of its blocks has values.
    pub(super) present: &'a [bool],
    /// Whether it is the aggregate of an earlier round, with which the exponents stay (ROW-6).
    pub(super) late: bool,
}

impl<'a> ShardPlan<'a> {
    pub(crate) fn of(layout: &'a Layout, shard: &ShardRange) -> Self {
        let first = shard.coefficients.start;
        let blocks = layout.blocks()[shard.blocks.clone()].iter().map(|block| ShardBlock {
            tensor: block.tensor - shard.tensors.start,
            range: block.range.start - first..block.range.end - first,
        });
        Self { tensors: &layout.tensors()[shard.tensors.clone()], blocks: blocks.collect() }
    }
}

/// What a step follows in a tensor.
pub(super) struct TensorStep {
    pub(super) adam: AdamStep,
    /// The learning rate.
    pub(super) rate: f64,
    /// LAMB: c₁ of ARITH-67.
    pub(super) first_scale: f32,
    /// Weight decay.
    pub(super) decay: f32,
}
