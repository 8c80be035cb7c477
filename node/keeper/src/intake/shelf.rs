//! Contributions on a keeper's disk: whole parts, and pieces of parts that others should have taken.

use std::borrow::Borrow;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use muster_core::contribution::open_block;
use muster_core::ids::{Block, Digest, MemberId, Part, Round};
use muster_core::layout::Layout;
use muster_core::lock::lock;
use muster_core::messages::wire::BlockData;
use muster_store::contributions::Place;
use muster_store::error::StoreError;
use muster_store::home::Home;
use tokio::sync::mpsc;

use super::horizon::horizon;

/// A block that was proved against its commitment.
pub type Proved = Arc<BlockData>;
/// Blocks of one contribution.
pub(super) type Blocks = BTreeMap<Block, Proved>;

/// Contributions of which is known where their blocks lie; more of them go as they are looked at, except what somebody is using.
const LISTED: usize = 8;

/// Where the disk has the blocks of a contribution, once that was looked at; each is read and proved when it is wanted.
pub(super) struct Listed {
    name: Name,
    places: OnceLock<BTreeMap<Block, Vec<Place>>>,
}

/// Round and author of a contribution.
type Name = (Round, MemberId);

/// Contributions on the disk.
pub struct Shelf {
    layout: Arc<Layout>,
    home: Arc<Home>,
    /// Told of a write that failed: a keeper that cannot keep must not go on.
    failed: mpsc::Sender<StoreError>,
    /// Whole parts of the last rounds that are on their way to the disk, and whether they are there.
    kept: Mutex<BTreeMap<(Round, MemberId, Part), bool>>,
    /// The contributions last looked at, the newest at the end: a few more than are read at once, so that readers do not have
    /// each other's looked at again. They answer for the disk, also of what is not there, until something is written of them.
    listed: Mutex<VecDeque<Arc<Listed>>>,
    /// Held while the disk hangs.
    #[cfg(test)]
    hanging: Mutex<()>,
}

impl Shelf {
    /// A shelf over a disk; `failed` is told when writing fails.
    pub fn new(layout: Arc<Layout>, home: Arc<Home>, failed: mpsc::Sender<StoreError>) -> Self {
        let (kept, listed) = Default::default();
        Self {
            layout,
            home,
            failed,
            kept,
            listed,
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
    pub fn save<B: Borrow<BlockData>>(
        &self,
        round: Round,
        member: &MemberId,
        label: u16,
        blocks: impl Iterator<Item = B> + Clone,
    ) -> Result<(), StoreError> {
        let saved = self.home.save_contribution(round, member, label, blocks);
        self.listed().retain(|listed| listed.name != (round, *member));
        saved
    }

    /// Writes a whole part down for audits, exhibits and restarts, beside the round: a receipt does not wait for the
    /// disk, because a keeper that dies now costs its part one reassignment and nothing else. Once, however often its
    /// blocks come; one that the disk did not take is written when it comes again. `then` is called once it is there.
    pub(super) fn keep(
        self: &Arc<Self>,
        name: (Round, MemberId, Part),
        data: Vec<Proved>,
        then: impl FnOnce() + Send + 'static,
    ) {
        let ((round, member, part), mut kept) = (name, self.kept());
        kept.retain(|(of, ..), _| *of >= horizon(round));
        if kept.contains_key(&name) {
            return;
        }
        kept.insert(name, false);
        drop(kept);
        let shelf = self.clone();
        // Blocks are written with their proofs, so that each can be checked again when it is read.
        let write = move || {
            let blocks = data.iter().map(|data| &**data);
            match shelf.save(round, &member, part.0, blocks) {
                Ok(()) => {
                    if let Some(written) = shelf.kept().get_mut(&name) {
                        *written = true;
                    }
                    then();
                }
                Err(error) => {
                    shelf.kept().remove(&name);
                    shelf.fail(error);
                }
            }
        };
        // Outside a runtime, as in tests, there is nothing to hold up.
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(write)),
            Err(_) => write(),
        }
    }

    fn kept(&self) -> MutexGuard<'_, BTreeMap<(Round, MemberId, Part), bool>> {
        lock(&self.kept)
    }

    /// Whether a whole part is on the disk.
    pub(super) fn is_written(&self, round: Round, member: MemberId, part: Part) -> bool {
        self.kept().get(&(round, member, part)).is_some_and(|written| *written)
    }

    /// One block, proved once more against the commitment. May wait for the disk.
    pub(super) fn block(
        &self,
        round: Round,
        member: &MemberId,
        root: &Digest,
        block: Block,
    ) -> Option<Proved> {
        // A block of no layout would have the whole contribution looked at for nothing.
        self.layout.block(block)?;
        self.proved(&self.open(round, member), root, block)
    }

    /// Where the disk has a contribution, for as long as somebody uses it. May wait for the disk.
    pub(super) fn open(&self, round: Round, member: &MemberId) -> Arc<Listed> {
        let name = (round, *member);
        let listed = {
            let mut all = self.listed();
            let known = all.iter().position(|listed| listed.name == name).and_then(|index| all.remove(index));
            let listed = known.unwrap_or_else(|| Arc::new(Listed { name, places: OnceLock::new() }));
            all.push_back(listed.clone());
            while all.len() > LISTED {
                all.pop_front();
            }
            listed
        };
        // Outside the lock, and once for all who want it.
        listed.places.get_or_init(|| self.places(round, member));
        listed
    }

    /// A block of a contribution, read and proved against the commitment. May wait for the disk.
    pub(super) fn proved(&self, listed: &Listed, root: &Digest, block: Block) -> Option<Proved> {
        let (round, member) = &listed.name;
        let read = |place: &Place| {
            let data = self.home.load_block(*round, member, place);
            data.inspect_err(|error| tracing::warn!("a block cannot be read: {error}")).ok()?
        };
        // Two pieces may hold it, and one of them be damaged.
        let mut kept = listed.places.get()?.get(&block)?.iter().filter_map(read);
        kept.find(|data| open_block(&self.layout, root, data).is_ok()).map(Arc::new)
    }

    /// Where all blocks of a contribution lie; none when the disk fails.
    fn places(&self, round: Round, member: &MemberId) -> BTreeMap<Block, Vec<Place>> {
        #[cfg(test)]
        drop(lock(&self.hanging));
        let kept = self.home.contribution_places(round, member);
        let kept = kept.inspect_err(|error| tracing::warn!("a contribution cannot be read: {error}"));
        let mut places: BTreeMap<Block, Vec<Place>> = BTreeMap::new();
        for place in kept.unwrap_or_default() {
            places.entry(place.block()).or_default().push(place);
        }
        places
    }

    fn listed(&self) -> MutexGuard<'_, VecDeque<Arc<Listed>>> {
        lock(&self.listed)
    }

    /// A disk that gives nothing while the guard lives.
    #[cfg(test)]
    pub(super) fn hang(&self) -> MutexGuard<'_, ()> {
        self.hanging.lock().unwrap()
    }

    /// Of how many contributions is known where their blocks lie, and of the newest, of how many blocks.
    #[cfg(test)]
    pub(super) fn looked_at(&self) -> (usize, Option<(Name, usize)>) {
        let listed = self.listed();
        let blocks = |of: &Listed| of.places.get().map_or(0, BTreeMap::len);
        let newest = listed.back().map(|newest| (newest.name, blocks(newest)));
        (listed.len(), newest)
    }
}
