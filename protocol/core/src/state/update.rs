//! The aggregate of a round, shard by shard.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use borsh::{BorshDeserialize, BorshSerialize};

use crate::ids::{Block, Round, Row, ShardId};
use crate::layout::{Layout, ShardRange};
use crate::rounding::BlockValues;

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
    /// Values of their blocks, one shard after the other. ROUND-8: a block without keeps parameters and moments.
    pub blocks: Vec<Option<Arc<BlockValues>>>,
    /// Those of the shards whose exponents stay as they are (ROW-6).
    pub late: Vec<ShardId>,
    /// Whether its values are in units of the exponents before the newest ones (GRID-8).
    pub behind: bool,
}

impl Update {
    /// Of these shards, without any value yet.
    pub fn empty(layout: &Layout, shards: impl IntoIterator<Item = ShardId>) -> Self {
        let mut update = Self::default();
        for id in shards {
            let Some(range) = layout.shard(id) else { continue };
            update.shards.push(id);
            update.blocks.resize(update.blocks.len() + Self::size(layout, range), None);
        }
        update
    }

    /// Blocks of a shard: plane after plane.
    pub fn size(layout: &Layout, shard: &ShardRange) -> usize {
        layout.planes() * shard.blocks.len()
    }

    /// What these steps take of the aggregates of their rounds; none where one of these is unavailable, or lacks a shard.
    pub fn of_steps(
        layout: &Layout,
        steps: &[ShardStep],
        mut aggregate: impl FnMut(Round) -> Option<Arc<Self>>,
    ) -> Option<Self> {
        let mut update = Self::default();
        // The trunk's results are always those of the Outcome's own round.
        let own = steps.iter().map(|step| step.round).max();
        let mut last = None;
        for step in steps {
            if Some(step.round) != own {
                update.late.push(step.shard);
            }
            // Dropped before another one is made.
            let kept = last.take().filter(|(round, _)| *round == step.round);
            let taken = match kept {
                Some((_, aggregate)) => aggregate,
                None => aggregate(step.round)?,
            };
            update.shards.push(step.shard);
            update.blocks.extend_from_slice(taken.shard(layout, step.shard)?);
            last = Some((step.round, taken));
        }
        Some(update)
    }

    /// Of the path of row 0, with a value for every coefficient of the first plane, and 0 for those of another one.
    pub fn whole(layout: &Layout, mut values: Vec<f32>) -> Self {
        values.resize(layout.coefficients(), 0.0);
        let of = |block: Block| {
            Some(Arc::new(BlockValues::raw(values[layout.block(block)?.range.clone()].to_vec())))
        };
        let shards: Vec<ShardId> = layout.path(Row(0)).collect();
        let blocks = shards.iter().flat_map(|shard| layout.update_blocks(*shard)).map(of).collect();
        Self { shards, blocks, ..Self::default() }
    }

    /// Whether it has as many blocks as its shards need, each of as many values as it has coefficients.
    pub fn fits(&self, layout: &Layout) -> bool {
        let mut left = self.blocks.iter();
        let fits = |id: &ShardId| {
            layout.shard(*id).is_some()
                && layout.update_blocks(*id).all(|block| {
                    let length = layout.block(block).map(|block| block.range.len());
                    left.next()
                        .is_some_and(|held| held.as_ref().is_none_or(|held| Some(held.count()) == length))
                })
        };
        self.shards.iter().all(fits) && left.next().is_none()
    }

    /// Where the blocks of a shard are.
    fn place(&self, layout: &Layout, id: ShardId) -> Option<Range<usize>> {
        let place = self.shards.iter().position(|held| *held == id)?;
        let before = self.shards.iter().take(place).filter_map(|id| layout.shard(*id));
        let first = before.map(|shard| Self::size(layout, shard)).sum::<usize>();
        Some(first..first + Self::size(layout, layout.shard(id)?))
    }

    /// Its blocks of a shard.
    pub fn shard(&self, layout: &Layout, id: ShardId) -> Option<&[Option<Arc<BlockValues>>]> {
        self.blocks.get(self.place(layout, id)?)
    }

    /// What is held of a block; none of one without a result.
    pub fn held(&self, layout: &Layout, block: Block) -> Option<&Arc<BlockValues>> {
        let held = self.shard(layout, layout.shard_of(block)?)?;
        held.get(layout.place_in_update(block)?)?.as_ref()
    }

    /// The values of a block; none of one without a result.
    pub fn block(&self, layout: &Layout, block: Block) -> Option<Cow<'_, [f32]>> {
        Some(self.held(layout, block)?.reals())
    }

    /// Gives a block its values; `None` when they are not as many as it has, or it is in no shard of these.
    pub fn put(&mut self, layout: &Layout, block: Block, values: &[f32]) -> Option<()> {
        self.put_held(layout, block, Arc::new(BlockValues::raw(values.to_vec())))
    }

    /// The same of values that are held as they travel.
    pub fn put_held(&mut self, layout: &Layout, block: Block, values: Arc<BlockValues>) -> Option<()> {
        let blocks = self.place(layout, layout.shard_of(block)?)?;
        let length = layout.block(block)?.range.len();
        let target = self.blocks.get_mut(blocks)?.get_mut(layout.place_in_update(block)?)?;
        (values.count() == length).then(|| *target = Some(values))
    }
}
