//! What a keeper takes in: blocks proved against frozen commitments, until their parts are whole. Aggregators keep the
//! parts that they reduce, the steward keeps aggregators' own ones.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use muster_core::contribution::open_block;
use muster_core::error::Reject;
use muster_core::ids::{Block, MemberId, Part, Round};
use muster_core::layout::Layout;
use muster_core::ledger::RoundView;
use muster_core::messages::round::Receipt;
use muster_core::messages::wire::{BlockData, PutBlocks};
use muster_store::error::StoreError;
use muster_store::home::Home;
use tokio::sync::mpsc;

/// Rounds whose blocks stay in memory; older ones are on disk until retention ends.
const ROUNDS: usize = 3;

type Blocks = BTreeMap<Block, Arc<(BlockData, Vec<i32>)>>;
type Held = BTreeMap<(Round, MemberId), Blocks>;
type Loaded = ((Round, MemberId), Blocks);

/// Received blocks.
pub(crate) struct Intake {
    layout: Arc<Layout>,
    home: Arc<Home>,
    /// Told of a write that failed: a keeper that cannot keep must not go on.
    failed: mpsc::Sender<StoreError>,
    held: Mutex<Held>,
    /// The contribution last read from disk, and no more: whoever asks for old rounds must not fill the memory.
    loaded: Mutex<Option<Loaded>>,
}

impl Intake {
    /// Empty, with a disk for what is older, and whom to tell when that fails.
    pub(crate) fn new(layout: Arc<Layout>, home: Arc<Home>, failed: mpsc::Sender<StoreError>) -> Self {
        Self { layout, home, failed, held: Mutex::default(), loaded: Mutex::default() }
    }

    /// Takes blocks of one part from their author. Gives the receipt to sign once the part is whole.
    ///
    /// # Errors
    /// [`Reject`] when they are not of the frozen contribution, or not for this keeper.
    pub(crate) fn take(
        &self,
        view: &RoundView,
        me: &MemberId,
        sender: &MemberId,
        put: PutBlocks,
    ) -> Result<Option<Receipt>, Reject> {
        let slot = view.slot_of(sender).ok_or(Reject::NotEntitled("deliver: it has no seat"))?;
        let commitment =
            view.commitment(slot).ok_or(Reject::Rule("only a frozen contribution is delivered"))?;
        let part = part_of(view, &put)?;
        if !view.takes_in(part, sender, me) || view.attempt(part) != Some(put.attempt) {
            return Err(Reject::NotEntitled("deliver this part here"));
        }
        let plan = view.parts().get(part.index()).ok_or(Reject::Rule("a part is one of the round"))?;
        each_once(&put.blocks)?;
        let mut opened = Vec::with_capacity(put.blocks.len());
        for data in put.blocks.into_inner() {
            if plan.blocks.binary_search(&data.block).is_err() {
                return Err(Reject::Rule("a delivery holds blocks of one part"));
            }
            let integers = open_block(&self.layout, &commitment.commit.root, &data)?;
            opened.push((data.block, Arc::new((data, integers))));
        }
        let mut held = self.lock();
        let blocks = held.entry((view.round(), *sender)).or_default();
        blocks.extend(opened);
        let whole = plan.blocks.iter().all(|block| blocks.contains_key(block));
        if !whole {
            return Ok(None);
        }
        let data: Vec<_> = plan.blocks.iter().filter_map(|block| blocks.get(block).cloned()).collect();
        let horizon = Round(view.round().0.saturating_sub(ROUNDS as u32));
        held.retain(|(round, _), _| *round >= horizon);
        if !view.keepers(part, sender).is_some_and(|(keepers, _)| keepers.contains(me)) {
            // ROUND-24: what others should have taken goes to the disk alone; it may be half of what all members send.
            if let Some(blocks) = held.get_mut(&(view.round(), *sender)) {
                blocks.retain(|block, _| plan.blocks.binary_search(block).is_err());
            }
            drop(held);
            self.write(view.round(), sender, part, &data)?;
        } else {
            drop(held);
            self.keep(view.round(), *sender, part, data);
        }
        let root = commitment.commit.root;
        Ok(Some(Receipt { round: view.round(), part, attempt: put.attempt, sender: *sender, root }))
    }

    /// Writes a whole part down at once.
    fn write(
        &self,
        round: Round,
        member: &MemberId,
        part: Part,
        data: &[Arc<(BlockData, Vec<i32>)>],
    ) -> Result<(), Reject> {
        let blocks: Vec<BlockData> = data.iter().map(|entry| entry.0.clone()).collect();
        self.home.save_contribution(round, member, part.0, &blocks).map_err(|error| {
            let _ = self.failed.try_send(error);
            Reject::Rule("the keeper's disk does not take it; try again later")
        })
    }

    /// Writes a whole part down for audits, exhibits and restarts, beside the round: a receipt does not wait for the
    /// disk, because a keeper that dies now costs its part one reassignment and nothing else.
    fn keep(&self, round: Round, member: MemberId, part: Part, data: Vec<Arc<(BlockData, Vec<i32>)>>) {
        let (home, failed) = (self.home.clone(), self.failed.clone());
        let write = move || {
            let blocks: Vec<BlockData> = data.iter().map(|entry| entry.0.clone()).collect();
            if let Err(error) = home.save_contribution(round, &member, part.0, &blocks) {
                // One that was told before is enough.
                let _ = failed.try_send(error);
            }
        };
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(write)),
            Err(_) => write(),
        }
    }

    /// One block with its integers, from memory or disk.
    pub(crate) fn block(
        &self,
        round: Round,
        member: &MemberId,
        root: &muster_core::ids::Digest,
        block: Block,
    ) -> Option<Arc<(BlockData, Vec<i32>)>> {
        if let Some(found) = self.lock().get(&(round, *member)).and_then(|blocks| blocks.get(&block).cloned())
        {
            return Some(found);
        }
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        let has = |(name, blocks): &Loaded| *name == (round, *member) && blocks.contains_key(&block);
        if !loaded.as_ref().is_some_and(has) {
            let kept = self.home.load_contribution(round, member).ok()?;
            let open = |data: BlockData| {
                let integers = open_block(&self.layout, root, &data).ok()?;
                Some((data.block, Arc::new((data, integers))))
            };
            *loaded = Some(((round, *member), kept.into_iter().filter_map(open).collect()));
        }
        loaded.as_ref()?.1.get(&block).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The part that delivered blocks are of, by the first of them.
///
/// # Errors
/// [`Reject`] when there is none.
pub(crate) fn part_of(view: &RoundView, put: &PutBlocks) -> Result<Part, Reject> {
    let first = put.blocks.first().ok_or(Reject::Rule("a delivery holds a block"))?.block;
    let part = view.parts().iter().position(|plan| plan.blocks.contains(&first));
    Ok(Part(part.ok_or(Reject::Rule("a delivered block is in a part"))? as u16))
}

/// Refuses a block that comes twice: a few bytes may stand for a whole block of zeros, and must not fill the memory by
/// being repeated.
fn each_once(blocks: &[BlockData]) -> Result<(), Reject> {
    let ascending = blocks.is_sorted_by(|one, next| one.block < next.block);
    ascending.then_some(()).ok_or(Reject::Rule("a delivery holds each block once, in order"))
}

#[cfg(test)]
mod tests {
    use muster_core::contribution::Commitment;

    use super::*;
    use crate::config::{Makers, Settings};

    #[test]
    fn a_block_of_few_bytes_is_not_taken_many_times() {
        let layout = Layout::of(&Settings::default().model.checked().unwrap());
        let q = vec![0; layout.parameters()];
        let tree = Commitment::new(&layout, &q);
        let block = |number| tree.block(&layout, &q, Block(number)).unwrap();
        assert!(each_once(&[block(0), block(2), block(3)]).is_ok());
        assert!(each_once(&[block(0), block(0)]).is_err());
        assert!(each_once(&[block(2), block(0)]).is_err());
    }

    #[test]
    fn old_rounds_are_read_from_disk_and_do_not_fill_the_memory() {
        let folder = tempfile::tempdir().unwrap();
        let member = MemberId([3; 32]);
        let makers = Makers { organiser: member, steward: member, nonce: [0; 16] };
        let digest = muster_core::ids::Digest::default();
        let data = muster_core::manifest::Data {
            root: digest,
            bytes: 4096,
            held_out_root: digest,
            held_out_bytes: 0,
            tokeniser: muster_core::manifest::Tokeniser::Bytes,
            start: muster_core::manifest::Start::Drawn,
        };
        let manifest = Settings::default().manifest(&makers, data).unwrap();
        let layout = Arc::new(Layout::of(&manifest.model));
        let home = Arc::new(Home::open(&folder.path().join("home")).unwrap());
        let q = vec![7; layout.parameters()];
        let tree = Commitment::new(&layout, &q);
        let block = tree.block(&layout, &q, Block(2)).unwrap();
        let intake = Intake::new(layout, home.clone(), mpsc::channel(1).0);
        for round in 0..20 {
            home.save_contribution(Round(round), &member, 0, std::slice::from_ref(&block)).unwrap();
            let found = intake.block(Round(round), &member, &tree.root(), Block(2)).unwrap();
            assert_eq!(found.0, block);
            assert!(intake.block(Round(round), &member, &tree.root(), Block(3)).is_none());
        }
        assert!(intake.lock().is_empty());
        let loaded = intake.loaded.lock().unwrap();
        assert_eq!(
            loaded.as_ref().map(|(name, blocks)| (*name, blocks.len())),
            Some(((Round(19), member), 1))
        );
    }
}
