//! Contributions on a keeper's disk: whole parts, and pieces of parts that others should have taken.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};

use muster_core::contribution::open_block;
use muster_core::ids::{Block, Digest, MemberId, Part, Round};
use muster_core::layout::Layout;
use muster_core::lock::lock;
use muster_core::messages::wire::BlockData;
use muster_store::error::StoreError;
use muster_store::home::Home;
use tokio::sync::mpsc;

use super::horizon::horizon;

/// A block that was proved against its commitment, with its integers.
pub(crate) type Proved = Arc<(BlockData, Vec<i32>)>;
/// Blocks of one contribution.
pub(super) type Blocks = BTreeMap<Block, Proved>;

/// What was read of a contribution.
struct Loaded {
    name: (Round, MemberId),
    /// None while it is being read.
    blocks: Option<Blocks>,
}

/// Contributions on the disk.
pub(crate) struct Shelf {
    layout: Arc<Layout>,
    home: Arc<Home>,
    /// Told of a write that failed: a keeper that cannot keep must not go on.
    failed: mpsc::Sender<StoreError>,
    /// Whole parts of the last rounds that are written, or about to be.
    kept: Mutex<BTreeSet<(Round, MemberId, Part)>>,
    /// Held while something is read: one thing at a time.
    reading: Mutex<()>,
    /// The contribution last read, and no more: whoever asks for old rounds must not fill the memory. It answers for the
    /// disk, also of what is not there, until something is written of it.
    loaded: Mutex<Option<Loaded>>,
}

impl Shelf {
    /// A shelf over a disk; `failed` is told when writing fails.
    pub(crate) fn new(layout: Arc<Layout>, home: Arc<Home>, failed: mpsc::Sender<StoreError>) -> Self {
        let (kept, reading, loaded) = Default::default();
        Self { layout, home, failed, kept, reading, loaded }
    }

    /// Reports a failure, unless one was reported before.
    pub(super) fn fail(&self, error: StoreError) {
        let _ = self.failed.try_send(error);
    }

    /// Labels under which blocks of a member's contribution are kept, in order.
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
        let saved = self.home.save_contribution(round, member, label, blocks);
        self.loaded().take_if(|loaded| loaded.name == (round, *member));
        saved
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
        // Blocks are written with their proofs, so that each can be checked again when it is read.
        let write = move || {
            let blocks: Vec<BlockData> = data.iter().map(|entry| entry.0.clone()).collect();
            if let Err(error) = shelf.save(round, &member, part.0, &blocks) {
                shelf.kept().remove(&name);
                shelf.fail(error);
            }
        };
        // Outside a runtime, as in tests, there is nothing to hold up.
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(write)),
            Err(_) => write(),
        }
    }

    fn kept(&self) -> MutexGuard<'_, BTreeSet<(Round, MemberId, Part)>> {
        lock(&self.kept)
    }

    /// One block, proved once more against the commitment. May wait for the disk.
    pub(super) fn block(
        &self,
        round: Round,
        member: &MemberId,
        root: &Digest,
        block: Block,
    ) -> Option<Proved> {
        // A block of no layout would have the whole contribution read for nothing.
        self.layout.block(block)?;
        if let Some(answer) = self.known(round, member, block) {
            return answer;
        }
        let _reading = lock(&self.reading);
        // Somebody may have read it while this one waited.
        if let Some(answer) = self.known(round, member, block) {
            return answer;
        }
        *self.loaded() = Some(Loaded { name: (round, *member), blocks: None });
        let blocks = self.read(round, member, root);
        let found = blocks.as_ref().and_then(|blocks| blocks.get(&block).cloned());
        // Gone where something was written meanwhile.
        if let Some(loaded) = &mut *self.loaded() {
            loaded.blocks = blocks;
        }
        found
    }

    /// Whether a block was among those read, and the block if so; `None` if this contribution was not read.
    fn known(&self, round: Round, member: &MemberId, block: Block) -> Option<Option<Proved>> {
        let loaded = self.loaded();
        let blocks = loaded.as_ref().filter(|loaded| loaded.name == (round, *member))?.blocks.as_ref()?;
        Some(blocks.get(&block).cloned())
    }

    /// All blocks of a contribution that prove themselves; `None` when the disk fails.
    fn read(&self, round: Round, member: &MemberId, root: &Digest) -> Option<Blocks> {
        let kept = self.home.load_contribution(round, member).ok()?;
        let open = |data: BlockData| {
            let integers = open_block(&self.layout, root, &data).ok()?;
            Some((data.block, Arc::new((data, integers))))
        };
        Some(kept.into_iter().filter_map(open).collect())
    }

    fn loaded(&self) -> MutexGuard<'_, Option<Loaded>> {
        lock(&self.loaded)
    }

    /// A disk that gives nothing while the guard lives.
    #[cfg(test)]
    pub(super) fn hang(&self) -> MutexGuard<'_, ()> {
        self.reading.lock().unwrap()
    }

    /// What is in memory: of which contribution, and how many blocks.
    #[cfg(test)]
    pub(super) fn in_memory(&self) -> Option<((Round, MemberId), usize)> {
        self.loaded().as_ref().map(|loaded| (loaded.name, loaded.blocks.as_ref().map_or(0, BTreeMap::len)))
    }
}
