//! What both methods follow: the blocks of a shard, and the scalars of a tensor.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use muster_core::layout::{Layout, ShardRange, Tensor};
use muster_core::manifest::{Local, Manifest, Model, Optimiser};
use muster_core::rounding::BlockValues;
use muster_core::state::Shard;

use crate::kernel::update::AdamStep;

/// What an update follows of a manifest.
#[derive(Clone, Copy)]
pub(crate) struct Rules<'a> {
    pub model: &'a Model,
    pub optimiser: &'a Optimiser,
    pub rounds: u32,
    pub grid_bits: u8,
    /// Local updates; none where gradients are exchanged.
    pub local: Option<&'a Local>,
}

impl<'a> Rules<'a> {
    pub(crate) fn of(manifest: &'a Manifest) -> Self {
        let Manifest { model, optimiser, training, .. } = manifest;
        let (rounds, grid_bits) = (training.rounds, training.grid_bits);
        Self { model, optimiser, rounds, grid_bits, local: manifest.local() }
    }
}

/// A shard's tensors and blocks.
pub(crate) struct ShardPlan<'a> {
    pub(crate) tensors: &'a [Tensor],
    pub(crate) blocks: Vec<ShardBlock>,
}

/// A block in its shard.
pub(crate) struct ShardBlock {
    /// Index of its tensor in the shard.
    pub(crate) tensor: usize,
    /// Its coefficients in the shard's vectors.
    pub(crate) range: Range<usize>,
}

/// A shard that takes a step.
pub(super) struct Stepped<'a, V> {
    pub(super) shard: &'a mut Shard,
    /// Grid exponents of its tensors.
    pub(super) exponents: &'a mut [i16],
    pub(super) vectors: &'a mut V,
}

/// What blocks of a shard move along.
#[derive(Clone, Copy)]
pub(crate) enum Values<'a> {
    /// A result for each block, or none.
    Results(&'a [Option<Arc<BlockValues>>]),
    /// A gradient of all coefficients.
    Gradient(&'a [f32]),
}

/// The update of a shard.
#[derive(Clone, Copy)]
pub(crate) struct ShardUpdate<'a> {
    pub(crate) plan: &'a ShardPlan<'a>,
    pub(crate) values: Values<'a>,
    /// Whether it is the aggregate of an earlier round, with which the exponents stay (ROW-6).
    pub(crate) late: bool,
    /// As [`Update::behind`].
    pub(crate) behind: bool,
}

impl<'a> ShardUpdate<'a> {
    /// Whether a block of the shard has values.
    pub(crate) fn has(&self, index: usize) -> bool {
        match self.values {
            Values::Results(results) => results.get(index).is_some_and(Option::is_some),
            Values::Gradient(_) => true,
        }
    }

    /// The values of a block of the shard; none where it was left out.
    pub(crate) fn block(&self, index: usize) -> Option<Cow<'a, [f32]>> {
        match self.values {
            Values::Results(results) => Some(results.get(index)?.as_ref()?.reals()),
            Values::Gradient(gradient) => {
                Some(Cow::Borrowed(&gradient[self.plan.blocks[index].range.clone()]))
            }
        }
    }

    /// GRID-8: what its values are in units of, tensor by tensor. A shard has the exponents of leaves on its state, and in a run
    /// with a delay behind these the ones of leaves on the state before.
    pub(crate) fn units<'e>(&self, exponents: &'e [i16]) -> &'e [i16] {
        let before = exponents.len() - self.plan.tensors.len();
        &exponents[if self.behind { before } else { 0 }..][..self.plan.tensors.len()]
    }
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
pub(crate) struct TensorStep {
    pub(crate) adam: AdamStep,
    /// The learning rate.
    pub(crate) rate: f64,
    /// LAMB: c₁ of ARITH-67.
    pub(crate) first_scale: f32,
    /// Weight decay.
    pub(crate) decay: f32,
}
