//! Contributions on a keeper's disk: whole parts, and pieces of parts that others should have taken.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use muster_core::contribution::open_block;
use muster_core::ids::{Block, Digest, MemberId, Part, Round};
use muster_core::layout::Layout;
use muster_core::lock::lock;
use muster_core::messages::wire::BlockData;
use muster_store::error::StoreError;
use muster_store::home::Home;
use tokio::sync::mpsc;

use super::horizon::horizon;

/// A block that was proved against its commitment.
pub type Proved = Arc<BlockData>;
/// Blocks of one contribution.
pub(super) type Blocks = BTreeMap<Block, Proved>;

/// Contributions in memory that were read; more of them go as they are read, except what somebody is using.
const LOADED: usize = 8;
/// Bytes of these at most, beside the last one.
const LOADED_BYTES: usize = 64 << 20;

/// What the disk has of a contribution, once it is read; each block is proved when it is wanted.
#[derive(Default)]
pub(super) struct Loaded(OnceLock<BTreeMap<Block, Vec<BlockData>>>);

impl Loaded {
    fn bytes(&self) -> usize {
        let blocks = self.0.get().into_iter().flat_map(BTreeMap::values).flatten();
        blocks.flat_map(|data| data.chunks.iter()).map(|chunk| chunk.len()).sum()
    }
}

/// Round and author of a contribution.
type Name = (Round, MemberId);
/// A contribution that was read.
type ReadContribution = (Name, Arc<Loaded>);

/// Contributions on the disk.
pub struct Shelf {
    layout: Arc<Layout>,
    home: Arc<Home>,
    /// Told of a write that failed: a keeper that cannot keep must not go on.
    failed: mpsc::Sender<StoreError>,
    /// Whole parts of the last rounds that are written, or about to be.
    kept: Mutex<BTreeSet<(Round, MemberId, Part)>>,
    /// The contributions last read, the newest at the end: a few more than are read at once, so that readers do not have
    /// each other's read again, and no more, so that whoever asks for old rounds does not fill the memory. They answer for
    /// the disk, also of what is not there, until something is written of them.
    loaded: Mutex<VecDeque<ReadContribution>>,
    /// Held while the disk hangs.
    #[cfg(test)]
    hanging: Mutex<()>,
}

impl Shelf {
    /// A shelf over a disk; `failed` is told when writing fails.
    pub fn new(layout: Arc<Layout>, home: Arc<Home>, failed: mpsc::Sender<StoreError>) -> Self {
        let (kept, loaded) = Default::default();
        Self {
            layout,
            home,
            failed,
            kept,
            loaded,
            #[cfg(test)]
            hanging: Mutex::default(),
        }
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
    pub fn save(
        &self,
        round: Round,
        member: &MemberId,
        label: u16,
        blocks: &[BlockData],
    ) -> Result<(), StoreError> {
        let saved = self.home.save_contribution(round, member, label, blocks);
        self.loaded().retain(|(name, _)| *name != (round, *member));
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
            let blocks: Vec<BlockData> = data.iter().map(|data| BlockData::clone(data)).collect();
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
        self.proved(&self.open(round, member), root, block)
    }

    /// What the disk has of a contribution, for as long as somebody uses it. May wait for the disk.
    pub(super) fn open(&self, round: Round, member: &MemberId) -> Arc<Loaded> {
        let name = (round, *member);
        let loaded = {
            let mut all = self.loaded();
            let known = all.iter().position(|(of, _)| *of == name).and_then(|index| all.remove(index));
            let loaded = known.map(|(_, loaded)| loaded).unwrap_or_default();
            all.push_back((name, loaded.clone()));
            while all.len() > LOADED {
                all.pop_front();
            }
            loaded
        };
        // Outside the lock, and once for all who want it.
        let new = loaded.0.get().is_none();
        loaded.0.get_or_init(|| self.read(round, member));
        if new {
            let mut all = self.loaded();
            let mut bytes: usize = all.iter().map(|(_, loaded)| loaded.bytes()).sum();
            while bytes > LOADED_BYTES && all.len() > 1 {
                bytes -= all.pop_front().map_or(0, |(_, loaded)| loaded.bytes());
            }
        }
        loaded
    }

    /// A block of what was read, proved against the commitment.
    pub(super) fn proved(&self, loaded: &Loaded, root: &Digest, block: Block) -> Option<Proved> {
        // Two pieces may hold it, and one of them be damaged.
        let mut kept = loaded.0.get()?.get(&block)?.iter();
        let proved = |data: &&BlockData| open_block(&self.layout, root, data).is_ok();
        kept.find(proved).map(|data| Arc::new(data.clone()))
    }

    /// All blocks of a contribution; none when the disk fails.
    fn read(&self, round: Round, member: &MemberId) -> BTreeMap<Block, Vec<BlockData>> {
        #[cfg(test)]
        drop(lock(&self.hanging));
        let kept = self.home.load_contribution(round, member);
        let kept = kept.inspect_err(|error| tracing::warn!("a contribution cannot be read: {error}"));
        let mut blocks: BTreeMap<Block, Vec<BlockData>> = BTreeMap::new();
        kept.unwrap_or_default()
            .into_iter()
            .for_each(|data| blocks.entry(data.block).or_default().push(data));
        blocks
    }

    fn loaded(&self) -> MutexGuard<'_, VecDeque<ReadContribution>> {
        lock(&self.loaded)
    }

    /// A disk that gives nothing while the guard lives.
    #[cfg(test)]
    pub(super) fn hang(&self) -> MutexGuard<'_, ()> {
        self.hanging.lock().unwrap()
    }

    /// What is in memory: of how many contributions, and of the newest how many blocks.
    #[cfg(test)]
    pub(super) fn in_memory(&self) -> (usize, Option<(Name, usize)>) {
        let loaded = self.loaded();
        let newest = loaded.back().map(|(name, of)| (*name, of.0.get().map_or(0, BTreeMap::len)));
        (loaded.len(), newest)
    }
}
