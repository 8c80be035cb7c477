//! Reduced blocks of the last rounds, to serve and to apply.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use muster_core::ids::{Block, Part, Round};
use muster_core::layout::Layout;
use muster_core::messages::wire::{BlockQuery, Response};
use muster_core::state::{Update, real_bytes};

use crate::peers::bulk;

/// Rounds kept for members that are a little behind.
pub(crate) const ROUNDS: usize = 6;

/// Values by round and block.
type Held = BTreeMap<Round, BTreeMap<Block, Arc<Vec<f32>>>>;

/// Values by round and block, shared by whoever serves and whoever applies.
#[derive(Clone)]
pub struct Results {
    layout: Arc<Layout>,
    rounds: Arc<Mutex<Held>>,
}

impl Results {
    /// Empty, for this layout.
    pub fn new(layout: Arc<Layout>) -> Self {
        Self { layout, rounds: Arc::default() }
    }

    /// Keeps the values of a part, in order of its blocks. The oldest round goes when there are too many.
    pub fn put(&self, round: Round, blocks: &[Block], values: Vec<Vec<f32>>) {
        let mut rounds = self.lock();
        let held = rounds.entry(round).or_default();
        held.extend(blocks.iter().copied().zip(values.into_iter().map(Arc::new)));
        while rounds.len() > ROUNDS {
            rounds.pop_first();
        }
    }

    /// Whether all blocks are there.
    pub fn has(&self, round: Round, blocks: &[Block]) -> bool {
        self.lock().get(&round).is_some_and(|held| blocks.iter().all(|block| held.contains_key(block)))
    }

    /// The values of one block.
    pub fn block(&self, round: Round, block: Block) -> Option<Arc<Vec<f32>>> {
        self.lock().get(&round)?.get(&block).cloned()
    }

    /// Answers a query; `None` when a block is not held or the answer would be too long.
    pub fn answer(&self, query: &BlockQuery) -> Option<Response> {
        let mut bytes = Vec::new();
        for block in &query.blocks {
            bytes.extend(real_bytes(&self.block(query.round, *block)?));
            if bytes.len() > muster_core::messages::wire::BULK_BYTES {
                return None;
            }
        }
        bulk(bytes)
    }

    /// The update of a round: the blocks of the parts that have a result.
    ///
    /// # Errors
    /// The parts whose values are not held.
    pub fn update(&self, round: Round, parts: &[(Part, Vec<Block>)]) -> Result<Update, Vec<Part>> {
        let blocks = self.layout.blocks();
        let mut update =
            Update { values: vec![0.0; self.layout.parameters()], present: vec![false; blocks.len()] };
        let mut missing = Vec::new();
        for (part, blocks) in parts {
            if !blocks.iter().all(|block| self.place(round, *block, &mut update)) {
                missing.push(*part);
            }
        }
        if missing.is_empty() { Ok(update) } else { Err(missing) }
    }

    fn place(&self, round: Round, block: Block, update: &mut Update) -> bool {
        let (Some(range), Some(values)) = (self.layout.block(block), self.block(round, block)) else {
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
