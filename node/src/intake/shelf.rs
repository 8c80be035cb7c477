//! What a keeper has on its disk of contributions: parts that are whole, and pieces of what others should have taken.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use muster_core::contribution::open_block;
use muster_core::ids::{Block, Digest, MemberId, Part, Round};
use muster_core::layout::Layout;
use muster_core::messages::wire::BlockData;
use muster_store::error::StoreError;
use muster_store::home::Home;
use tokio::sync::mpsc;

use super::horizon;

/// A block that was proved against its commitment, with its integers.
pub(crate) type Proved = Arc<(BlockData, Vec<i32>)>;
/// Blocks of one contribution.
pub(super) type Blocks = BTreeMap<Block, Proved>;
type Loaded = ((Round, MemberId), Blocks);

/// Contributions on the disk.
pub(crate) struct Shelf {
    layout: Arc<Layout>,
    home: Arc<Home>,
    /// Told of a write that failed: a keeper that cannot keep must not go on.
    failed: mpsc::Sender<StoreError>,
    /// Whole parts of the last rounds that are written, or about to be.
    kept: Mutex<BTreeSet<(Round, MemberId, Part)>>,
    /// The contribution last read, and no more: whoever asks for old rounds must not fill the memory.
    loaded: Mutex<Option<Loaded>>,
}

impl Shelf {
    /// Over a disk, and whom to tell when that fails.
    pub(crate) fn new(layout: Arc<Layout>, home: Arc<Home>, failed: mpsc::Sender<StoreError>) -> Self {
        Self { layout, home, failed, kept: Mutex::default(), loaded: Mutex::default() }
    }

    /// Tells of a failure; one that was told before is enough.
    pub(super) fn fail(&self, error: StoreError) {
        let _ = self.failed.try_send(error);
    }

    /// Labels of what there is of a member's contribution, in order.
    ///
    /// # Errors
    /// What the disk reports.
    pub(super) fn labels(&self, round: Round, member: &MemberId) -> Result<Vec<u16>, StoreError> {
        self.home.contribution_labels(round, member)
    }

    /// Keeps blocks under a label, over what that label had.
    ///
    /// # Errors
    /// What the disk reports.
    pub(crate) fn save(
        &self,
        round: Round,
        member: &MemberId,
        label: u16,
        blocks: &[BlockData],
    ) -> Result<(), StoreError> {
        self.home.save_contribution(round, member, label, blocks)
    }

    /// Writes a whole part down for audits, exhibits and restarts, beside the round: a receipt does not wait for the
    /// disk, because a keeper that dies now costs its part one reassignment and nothing else. Once, however often its
    /// blocks come; one that the disk did not take is written when it comes again.
    pub(super) fn keep(self: &Arc<Self>, round: Round, member: MemberId, part: Part, data: Vec<Proved>) {
        let (name, mut kept) = ((round, member, part), self.kept());
        kept.retain(|(of, ..)| *of >= horizon(round));
        if !kept.insert(name) {
            return;
        }
        drop(kept);
        let shelf = self.clone();
        let write = move || {
            let blocks: Vec<BlockData> = data.iter().map(|entry| entry.0.clone()).collect();
            if let Err(error) = shelf.save(round, &member, part.0, &blocks) {
                shelf.kept().remove(&name);
                shelf.fail(error);
            }
        };
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(write)),
            Err(_) => write(),
        }
    }

    fn kept(&self) -> MutexGuard<'_, BTreeSet<(Round, MemberId, Part)>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One block, proved once more against the commitment.
    pub(super) fn block(
        &self,
        round: Round,
        member: &MemberId,
        root: &Digest,
        block: Block,
    ) -> Option<Proved> {
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

    /// What is in memory: of which contribution, and how many blocks.
    #[cfg(test)]
    pub(super) fn loaded(&self) -> Option<((Round, MemberId), usize)> {
        let loaded = self.loaded.lock().unwrap();
        loaded.as_ref().map(|(name, blocks)| (*name, blocks.len()))
    }
}
