//! The aggregate of a round, shard by shard.

use std::ops::Range;
use std::sync::Arc;

use borsh::{BorshDeserialize, BorshSerialize};

use crate::ids::{Block, Round, Row, ShardId};
use crate::layout::{Layout, ShardRange};

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
            let (values, blocks) = Self::size(layout, range);
            update.values.resize(update.values.len() + values, 0.0);
            update.present.resize(update.present.len() + blocks, false);
        }
        update
    }

    /// Values and blocks of a shard: plane after plane.
    pub fn size(layout: &Layout, shard: &ShardRange) -> (usize, usize) {
        (layout.planes() * shard.coefficients.len(), layout.planes() * shard.blocks.len())
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
        let shards = || steps.iter().filter(|step| Some(step.round) == own).map(|step| step.shard);
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
            // Mostly it takes all of one aggregate, which need not be copied.
            if shards().count() == steps.len()
                && shards().eq(taken.shards.iter().copied())
                && taken.fits(layout)
            {
                let Self { shards, values, present, .. } = Arc::unwrap_or_clone(taken);
                return Some(Self { shards, values, present, ..update });
            }
            let (values, present) = taken.shard(layout, step.shard)?;
            update.shards.push(step.shard);
            update.values.extend_from_slice(values);
            update.present.extend_from_slice(present);
            last = Some((step.round, taken));
        }
        Some(update)
    }

    /// Of the path of row 0, with a value for every coefficient of the first plane, and 0 for those of another one.
    pub fn whole(layout: &Layout, mut values: Vec<f32>) -> Self {
        values.resize(layout.coefficients(), 0.0);
        let (shards, present) = (layout.path(Row(0)).collect(), vec![true; layout.blocks().len()]);
        Self { shards, values, present, ..Self::default() }
    }

    /// Whether it has as many values and marks as its shards need.
    pub fn fits(&self, layout: &Layout) -> bool {
        let sizes =
            || self.shards.iter().filter_map(|id| layout.shard(*id)).map(|shard| Self::size(layout, shard));
        sizes().count() == self.shards.len()
            && self.values.len() == sizes().map(|(values, _)| values).sum::<usize>()
            && self.present.len() == sizes().map(|(_, blocks)| blocks).sum::<usize>()
    }

    /// Where its values and marks of a shard are.
    fn place(&self, layout: &Layout, id: ShardId) -> Option<(Range<usize>, Range<usize>)> {
        let place = self.shards.iter().position(|held| *held == id)?;
        let before = self.shards.iter().take(place).filter_map(|id| layout.shard(*id));
        let (values, blocks) = before.fold((0, 0), |before, shard| {
            let size = Self::size(layout, shard);
            (before.0 + size.0, before.1 + size.1)
        });
        let size = Self::size(layout, layout.shard(id)?);
        Some((values..values + size.0, blocks..blocks + size.1))
    }

    /// Its values and marks of a shard.
    pub fn shard(&self, layout: &Layout, id: ShardId) -> Option<(&[f32], &[bool])> {
        let (values, blocks) = self.place(layout, id)?;
        Some((self.values.get(values)?, self.present.get(blocks)?))
    }

    /// The values of a block, whether it has a result or not.
    pub fn block(&self, layout: &Layout, block: Block) -> Option<&[f32]> {
        let (values, _) = self.shard(layout, layout.shard_of(block)?)?;
        values.get(layout.place_in_update(block)?.0)
    }

    /// Gives a block its values; `None` when they are not as many as it has, or it is in no shard of these.
    pub fn put(&mut self, layout: &Layout, block: Block, values: &[f32]) -> Option<()> {
        let (shard_values, shard_blocks) = self.place(layout, layout.shard_of(block)?)?;
        let (range, place) = layout.place_in_update(block)?;
        let target = self.values.get_mut(shard_values)?.get_mut(range)?;
        if target.len() != values.len() {
            return None;
        }
        target.copy_from_slice(values);
        *self.present.get_mut(shard_blocks)?.get_mut(place)? = true;
        Some(())
    }
}
