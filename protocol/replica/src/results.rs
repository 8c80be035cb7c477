//! Reduced blocks of the last rounds, to serve and to apply.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use muster_core::ids::{Block, Digest, Part, Round};
use muster_core::layout::Layout;
use muster_core::messages::wire::{BlockQuery, Response};
use muster_core::state::{Update, real_bytes};

use tokio::sync::watch;

use crate::peers::bulk;

/// Rounds kept for members that are a little behind.
pub(crate) const ROUNDS: usize = 6;

/// Values by round and block, each with the digest of its part: a part that was reassigned has other ones.
type Held = BTreeMap<Round, BTreeMap<Block, (Digest, Arc<Vec<f32>>)>>;

/// Values by round and block, shared by whoever serves and whoever applies.
#[derive(Clone)]
pub struct Results {
    layout: Arc<Layout>,
    rounds: Arc<Mutex<Held>>,
    /// Told of everything new.
    news: Arc<watch::Sender<()>>,
}

impl Results {
    /// Empty, for this layout.
    pub fn new(layout: Arc<Layout>) -> Self {
        Self { layout, rounds: Arc::default(), news: Arc::new(watch::channel(()).0) }
    }

    /// Keeps the values of a part with this digest, in order of its blocks. The oldest round goes when there are too
    /// many.
    pub fn put(&self, round: Round, blocks: &[Block], digest: &Digest, values: Vec<Vec<f32>>) {
        let mut rounds = self.lock();
        let held = rounds.entry(round).or_default();
        let values = values.into_iter().map(|values| (*digest, Arc::new(values)));
        held.extend(blocks.iter().copied().zip(values));
        while rounds.len() > ROUNDS {
            rounds.pop_first();
        }
        drop(rounds);
        self.news.send_replace(());
    }

    /// Whether all blocks of the part with this digest are there.
    pub fn has(&self, round: Round, blocks: &[Block], digest: &Digest) -> bool {
        let rounds = self.lock();
        let fits = |held: &(Digest, Arc<Vec<f32>>)| held.0 == *digest;
        rounds.get(&round).is_some_and(|held| blocks.iter().all(|block| held.get(block).is_some_and(fits)))
    }

    /// Waits until they are there; for ever, if nobody brings them.
    pub async fn wait(&self, round: Round, blocks: &[Block], digest: &Digest) {
        let mut news = self.news.subscribe();
        while !self.has(round, blocks, digest) {
            if news.changed().await.is_err() {
                return;
            }
        }
    }

    /// The values of one block of the part with this digest.
    pub fn block(&self, round: Round, block: Block, digest: &Digest) -> Option<Arc<Vec<f32>>> {
        self.held(round, block).filter(|held| held.0 == *digest).map(|held| held.1)
    }

    fn held(&self, round: Round, block: Block) -> Option<(Digest, Arc<Vec<f32>>)> {
        self.lock().get(&round)?.get(&block).cloned()
    }

    /// Answers a query; `None` when a block is not held or the answer would be too long.
    pub fn answer(&self, query: &BlockQuery) -> Option<Response> {
        let mut bytes = Vec::new();
        for block in &query.blocks {
            bytes.extend(real_bytes(&self.held(query.round, *block)?.1));
            if bytes.len() > muster_core::messages::wire::BULK_BYTES {
                return None;
            }
        }
        bulk(bytes)
    }

    /// The update of a round: the blocks of the parts that have a result, with its digest.
    ///
    /// # Errors
    /// The parts whose values are not held.
    pub fn update(&self, round: Round, parts: &[(Part, Vec<Block>, Digest)]) -> Result<Update, Vec<Part>> {
        let blocks = self.layout.blocks();
        let mut update =
            Update { values: vec![0.0; self.layout.parameters()], present: vec![false; blocks.len()] };
        let mut missing = Vec::new();
        for (part, blocks, digest) in parts {
            if !blocks.iter().all(|block| self.place((round, *block, digest), &mut update)) {
                missing.push(*part);
            }
        }
        if missing.is_empty() { Ok(update) } else { Err(missing) }
    }

    fn place(&self, (round, block, digest): (Round, Block, &Digest), update: &mut Update) -> bool {
        let (Some(range), Some(values)) = (self.layout.block(block), self.block(round, block, digest)) else {
            return false;
        };
        let Some(target) = update.values.get_mut(range.range.clone()) else { return false };
        if target.len() != values.len() {
            return false;
        }
        target.copy_from_slice(&values);
        update.present[block.index()] = true;
        true
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        self.rounds.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use muster_core::manifest::{Decoder, Family, Model};

    use super::*;

    fn layout() -> Arc<Layout> {
        let real = |value| muster_core::codec::Real::new(value).unwrap();
        Arc::new(Layout::of(&Model {
            vocabulary: 16,
            width: 4,
            layers: 1,
            heads: 1,
            hidden: 4,
            sequence: 4,
            norm_epsilon: real(1e-5),
            initial_scale: real(0.1),
            family: Family::Decoder(Decoder { key_value_heads: 1, tied: true, rope_base: real(10_000.0) }),
        }))
    }

    #[test]
    fn a_reassigned_part_is_not_taken_for_the_first_one() {
        let layout = layout();
        let results = Results::new(layout.clone());
        let (block, first, second) = (Block(1), Digest([1; 32]), Digest([2; 32]));
        let length = layout.block(block).unwrap().range.len();
        results.put(Round(3), &[block], &first, vec![vec![1.0; length]]);
        assert!(results.has(Round(3), &[block], &first) && !results.has(Round(3), &[block], &second));
        let part = |digest| [(Part(0), vec![block], digest)];
        assert_eq!(results.update(Round(3), &part(second)).err(), Some(vec![Part(0)]));
        results.put(Round(3), &[block], &second, vec![vec![2.0; length]]);
        let update = results.update(Round(3), &part(second)).ok().unwrap();
        assert_eq!(update.values[layout.block(block).unwrap().range.start], 2.0);
        assert!(results.block(Round(3), block, &first).is_none());
    }
}
