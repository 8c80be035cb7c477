//! The aggregate of a round, shard by shard.

use std::sync::Arc;

use borsh::{BorshDeserialize, BorshSerialize};

use crate::ids::{Block, Round, Row, ShardId};
use crate::layout::Layout;

/// The step of a shard: which shard, by the results of which round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct ShardStep {
    /// The shard.
    pub shard: ShardId,
    /// The round whose results it takes.
    pub round: Round,
}

/// The aggregate of one round, in grid units per leaf, of the shards that take a step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Update {
    /// The shards, in order of their numbers. A shard that is not here keeps everything, its step as well.
    pub shards: Vec<ShardId>,
    /// Values of their coefficients, one shard after the other; meaningless in blocks that were left out.
    pub values: Vec<f32>,
    /// Whether each of their blocks has a value. ROUND-8: one without keeps parameters and moments.
    pub present: Vec<bool>,
    /// Those of the shards whose exponents stay as they are (ROW-6).
    pub late: Vec<ShardId>,
}

impl Update {
    /// Of these shards, without any value yet.
    pub fn empty(layout: &Layout, shards: impl IntoIterator<Item = ShardId>) -> Self {
        let mut update = Self::default();
        for id in shards {
            let Some(range) = layout.shard(id) else { continue };
            update.shards.push(id);
            update.values.resize(update.values.len() + range.coefficients.len(), 0.0);
            update.present.resize(update.present.len() + range.blocks.len(), false);
        }
        update
    }

    /// What these steps take of the aggregates of their rounds; none where one of these is not to be had, or lacks a shard.
    pub fn of_steps(
        layout: &Layout,
        steps: &[ShardStep],
        mut aggregate: impl FnMut(Round) -> Option<Arc<Self>>,
    ) -> Option<Self> {
        let mut update = Self::default();
        // The trunk's results are always those of the Outcome's own round.
        let own = steps.iter().map(|step| step.round).max();
        for step in steps {
            if Some(step.round) != own {
                update.late.push(step.shard);
            }
            let aggregate = aggregate(step.round)?;
            let (values, present) = aggregate.shard(layout, step.shard)?;
            update.shards.push(step.shard);
            update.values.extend_from_slice(values);
            update.present.extend_from_slice(present);
        }
        Some(update)
    }

    /// Of the path of row 0, with a value for every coefficient.
    pub fn whole(layout: &Layout, values: Vec<f32>) -> Self {
        let (shards, present) = (layout.path(Row(0)).collect(), vec![true; layout.blocks().len()]);
        Self { shards, values, present, late: Vec::new() }
    }

    /// Whether it has as many values and marks as its shards need.
    pub fn fits(&self, layout: &Layout) -> bool {
        let sizes = || self.shards.iter().filter_map(|id| layout.shard(*id));
        sizes().count() == self.shards.len()
            && self.values.len() == sizes().map(|shard| shard.coefficients.len()).sum::<usize>()
            && self.present.len() == sizes().map(|shard| shard.blocks.len()).sum::<usize>()
    }

    /// Where its values and marks of a shard begin.
    fn before(&self, layout: &Layout, id: ShardId) -> Option<[usize; 2]> {
        let place = self.shards.iter().position(|held| *held == id)?;
        let before = self.shards.iter().take(place).filter_map(|id| layout.shard(*id));
        Some(before.fold([0; 2], |[values, blocks], shard| {
            [values + shard.coefficients.len(), blocks + shard.blocks.len()]
        }))
    }

    /// Its values and marks of a shard.
    pub fn shard(&self, layout: &Layout, id: ShardId) -> Option<(&[f32], &[bool])> {
        let ([values, blocks], range) = (self.before(layout, id)?, layout.shard(id)?);
        let values = self.values.get(values..values + range.coefficients.len())?;
        Some((values, self.present.get(blocks..blocks + range.blocks.len())?))
    }

    /// The values of a block, whether it has a result or not.
    pub fn block(&self, layout: &Layout, block: Block) -> Option<&[f32]> {
        let id = layout.shard_of(block)?;
        let (values, coefficients) = (self.shard(layout, id)?.0, &layout.shard(id)?.coefficients);
        let range = &layout.block(block)?.range;
        values.get(range.start - coefficients.start..range.end - coefficients.start)
    }

    /// Gives a block its values; `None` when they are not as many as it has, or it is in no shard of these.
    pub fn put(&mut self, layout: &Layout, block: Block, values: &[f32]) -> Option<()> {
        let id = layout.shard_of(block)?;
        let ([first_value, first_block], shard) = (self.before(layout, id)?, layout.shard(id)?);
        let range = &layout.block(block)?.range;
        let first = first_value + range.start - shard.coefficients.start;
        let target = self.values.get_mut(first..first + range.len())?;
        if target.len() != values.len() {
            return None;
        }
        target.copy_from_slice(values);
        let place = first_block + layout.position(block)? - shard.blocks.start;
        *self.present.get_mut(place)? = true;
        Some(())
    }
}
