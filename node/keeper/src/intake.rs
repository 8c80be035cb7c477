//! What a keeper takes in: blocks proved against frozen commitments, until their parts are whole. Aggregators keep the
//! parts that they reduce, the steward keeps aggregators' own ones, and on its disk alone what aggregators did not take.

mod horizon;
mod quota;
pub mod shelf;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use muster_core::codec::{List, encode};
use muster_core::error::Reject;
use muster_core::ids::{Block, Digest, MemberId, Part, Round};
use muster_core::layout::Layout;
use muster_core::ledger::{Ledger, RoundView};
use muster_core::limits;
use muster_core::lock::lock;
use muster_core::messages::round::Receipt;
use muster_core::messages::wire::{BULK_BYTES, BlockData, InputQuery, PutBlocks, Response};
use muster_roles::keeper::{Delivery, Wanted};
use muster_store::error::StoreError;
use muster_store::home::Home;
use tokio::sync::mpsc;

use horizon::horizon;
use quota::Quota;
use shelf::{Blocks, Proved, Shelf};

use crate::shares::{Places, Rank};

/// Answers that are read at once, one for each member; more of them wait, and hold up nothing else.
const READERS: usize = 4;
/// Those of them that only the open round has.
const RESERVED: usize = 1;
/// Deliveries whose blocks are proved at once, one of each member, and those of them that only the open round has.
const PROVERS: usize = 2;
const PROVED_FOR_ROUND: usize = 1;
/// Bytes of the open round's blocks in memory that others should have taken; the rest is on the disk alone.
const RELAYED_BYTES: usize = 256 << 20;
/// Label of the first piece of what others should have taken, behind those of all parts.
const RELAYED: u16 = limits::PARTS as u16;

/// Why nothing is done any more.
const STOPPING: Reject = Reject::Stale("this keeper is stopping");

/// Blocks in memory, by the part that they are of.
type Held = BTreeMap<(Round, MemberId, Part), Blocks>;

/// Received blocks.
pub struct Intake {
    layout: Arc<Layout>,
    shelf: Arc<Shelf>,
    held: Arc<Mutex<Held>>,
    /// The newest round of which it had blocks.
    newest: AtomicU32,
    /// Whether whole parts leave the memory as soon as they are on the disk.
    lean: bool,
    relayed: Mutex<BTreeMap<(Round, MemberId), Relayed>>,
    open: Mutex<Open>,
    readers: Arc<Places>,
    provers: Arc<Places>,
    quota: Quota,
}

/// Blocks of the open round that others should have taken, as far as they have room in memory: whoever reduces their parts
/// asks for them at once, and should not wait for the disk.
#[derive(Default)]
struct Open {
    round: Round,
    blocks: BTreeMap<(MemberId, Block), BlockData>,
    bytes: usize,
}

/// The blocks of a member that are on the disk although others should have taken them.
struct Relayed {
    blocks: BTreeSet<Block>,
    /// Label of the next piece; none when there are no more.
    next: Option<u16>,
}

impl Intake {
    /// An empty intake over a disk; `failed` is told when writing fails.
    pub fn new(layout: Arc<Layout>, home: Arc<Home>, failed: mpsc::Sender<StoreError>) -> Self {
        let shelf = Arc::new(Shelf::new(layout.clone(), home, failed));
        let (held, relayed, open) = Default::default();
        let (readers, quota) = (Places::new(READERS, RESERVED), Quota::unlimited());
        let provers = Places::new(PROVERS, PROVED_FOR_ROUND);
        Self {
            layout,
            shelf,
            held,
            newest: AtomicU32::new(0),
            lean: false,
            relayed,
            open,
            readers,
            provers,
            quota,
        }
    }

    /// The same for a keeper that seldom reads what it holds, as a steward does: it reads it from the disk.
    #[must_use]
    pub fn lean(self) -> Self {
        Self { lean: true, ..self }
    }

    /// The same as [`Self::take`], in a task, once it is the sender's turn. ROUND-35: a member may bring the same blocks without
    /// end over all its connections, and whoever proves them for it has a round of its own to compute.
    ///
    /// # Errors
    /// As [`Self::take`], for a round that is not remembered, or because this keeper is stopping.
    pub async fn take_in_turn(
        self: Arc<Self>,
        ledger: Arc<Ledger>,
        me: MemberId,
        sender: MemberId,
        put: PutBlocks,
    ) -> Result<Option<Receipt>, Reject> {
        let open = ledger.current().is_some_and(|view| view.round() == put.round);
        let rank = if open { Rank::Round } else { Rank::Member };
        let provers = self.provers.clone();
        let take = move || {
            let view = ledger.round(put.round).ok_or(Reject::Stale("the round is not remembered"))?;
            self.take(view, &me, &sender, put)
        };
        provers.work(rank, sender, take).await.unwrap_or(Err(STOPPING))
    }

    /// Takes blocks of one part from their author. Returns the receipt to sign once every block of the part is held.
    ///
    /// # Errors
    /// [`Reject`] as of [`Delivery::check`], or when the disk does not take them.
    pub fn take(
        &self,
        view: &RoundView,
        me: &MemberId,
        sender: &MemberId,
        put: PutBlocks,
    ) -> Result<Option<Receipt>, Reject> {
        let Delivery { receipt, reduces, plan, blocks } =
            Delivery::check(&self.layout, view, me, sender, put)?;
        let whole = if reduces {
            let opened = blocks.into_iter().map(|(block, entry)| (block, Arc::new(entry))).collect();
            self.hold(view.round(), *sender, receipt.part, plan, opened)?
        } else {
            let data = blocks.into_values().collect();
            self.relay(view.round(), *sender, plan, data)?
        };
        Ok(whole.then_some(receipt))
    }

    /// Holds blocks of a part in memory; whether the part is whole, and then on its way to the disk as well.
    fn hold(
        &self,
        round: Round,
        sender: MemberId,
        part: Part,
        plan: &[Block],
        opened: Blocks,
    ) -> Result<bool, Reject> {
        let name = (round, sender, part);
        let mut held = self.lock();
        // Looked at with what is held locked: what has been written leaves it then.
        if self.lean && self.shelf.is_written(round, sender, part) {
            return Ok(true);
        }
        let newest = Round(self.newest.fetch_max(round.0, Ordering::Relaxed).max(round.0));
        // ROUND-4: what nobody waits for any more is not taken into memory, round after round.
        if round < horizon(newest) {
            return Err(Reject::Stale("blocks of this round come too late"));
        }
        let blocks = held.entry(name).or_default();
        let new = opened.iter().filter(|(block, _)| !blocks.contains_key(block));
        self.room(new.map(|(_, data)| bytes(data)).sum())?;
        blocks.extend(opened);
        let data: Vec<_> = plan.iter().filter_map(|block| blocks.get(block).cloned()).collect();
        if data.len() < plan.len() {
            return Ok(false);
        }
        // Whatever a sender brings, it is gone from memory some rounds later.
        held.retain(|(of, ..), _| *of >= horizon(newest));
        drop(held);
        let held = self.held.clone();
        let lean = self.lean;
        self.shelf.keep(name, data, move || {
            if lean {
                lock(&held).remove(&name);
            }
        });
        Ok(true)
    }

    /// ROUND-24 has the author bring to the steward what this keeper refuses.
    fn room(&self, bytes: u64) -> Result<(), Reject> {
        let left = self.quota.take(bytes);
        if left { Ok(()) } else { Err(Reject::Rule("this keeper has no more room for others' blocks")) }
    }

    /// ROUND-24: what others should have taken goes to the disk as it comes, each block once, and some of it stays in memory
    /// as well while the round is open: it may be half of what all members send. Whether the part is whole.
    fn relay(
        &self,
        round: Round,
        sender: MemberId,
        plan: &[Block],
        mut data: Vec<BlockData>,
    ) -> Result<bool, Reject> {
        let mut relayed = lock(&self.relayed);
        // ROUND-24 holds while the round lasts.
        relayed.retain(|(of, _), _| *of >= round);
        let failed = |error| {
            self.shelf.fail(error);
            Reject::Rule("the keeper's disk does not take it; try again later")
        };
        let own = match relayed.entry((round, sender)) {
            Entry::Occupied(own) => own.into_mut(),
            Entry::Vacant(own) => {
                // Pieces from before a restart have receipts: nothing is written over them.
                let last = self.shelf.labels(round, &sender).map_err(failed)?.pop();
                let next = last.map_or(Some(RELAYED), |last| last.max(RELAYED - 1).checked_add(1));
                own.insert(Relayed { blocks: BTreeSet::new(), next })
            }
        };
        // Each block once on the disk, however often it is sent.
        data.retain(|data| !own.blocks.contains(&data.block));
        if !data.is_empty() {
            self.room(data.iter().map(bytes).sum())?;
            // Labels are numbered with 16 bits: nobody fills the disk with single blocks.
            let label = own.next.ok_or(Reject::Rule("a part comes in fewer pieces than this"))?;
            self.shelf.save(round, &sender, label, data.iter()).map_err(failed)?;
            own.next = label.checked_add(1);
            own.blocks.extend(data.iter().map(|data| data.block));
        }
        let whole = plan.iter().all(|block| own.blocks.contains(block));
        drop(relayed);
        lock(&self.open).add(round, sender, data);
        Ok(whole)
    }

    /// A round is over: nobody waits for its blocks any more, and audits have them from the disk.
    pub fn over(&self, round: Round) {
        let written =
            |(of, member, part): &(Round, MemberId, Part)| self.shelf.is_written(*of, *member, *part);
        self.lock().retain(|name, _| name.0 > round || !written(name));
        let mut open = lock(&self.open);
        if open.round <= round {
            *open = Open::default();
        }
    }

    /// How much of the disk what others send may still take.
    pub fn quota(&self) -> &Quota {
        &self.quota
    }

    /// The contributions on the disk.
    pub fn shelf(&self) -> &Arc<Shelf> {
        &self.shelf
    }

    /// Answers a request of `from` for blocks. They are read in a task, when it is the turn of whoever asks.
    ///
    /// # Errors
    /// As [`gathered`].
    pub async fn answer(
        self: Arc<Self>,
        from: MemberId,
        query: InputQuery,
        wanted: Wanted,
    ) -> Result<Response, Reject> {
        let (keeper, root) = (self.clone(), wanted.root());
        let read = move || {
            let (round, member) = (query.round, query.member);
            // Held until the answer is whole: whatever others ask for meanwhile, it is looked at once.
            let mut listed = None;
            gathered(&query.blocks, |block| {
                keeper.in_memory(round, &member, block).or_else(|| {
                    let listed = listed.get_or_insert_with(|| keeper.shelf.open(round, &member));
                    let read = keeper.shelf.proved(listed, &root, block);
                    // A lean keeper may have written it since, and dropped it.
                    let read = read.or_else(|| keeper.shelf.block(round, &member, &root, block));
                    read.map(Arc::unwrap_or_clone)
                })
            })
        };
        self.in_turn(from, wanted, read).await
    }

    /// Does the work of an answer to `from` in a task, once it is its turn.
    ///
    /// # Errors
    /// What the work gives, or that this keeper is stopping.
    pub async fn in_turn(
        &self,
        from: MemberId,
        wanted: Wanted,
        work: impl FnOnce() -> Result<Response, Reject> + Send + 'static,
    ) -> Result<Response, Reject> {
        let rank = if matches!(wanted, Wanted::Now { .. }) { Rank::Round } else { Rank::Member };
        self.readers.work(rank, from, work).await.unwrap_or(Err(STOPPING))
    }

    /// A block as its author sent it, from memory.
    fn in_memory(&self, round: Round, member: &MemberId, block: Block) -> Option<BlockData> {
        let held = self.held(round, member, block);
        held.map(|data| BlockData::clone(&data)).or_else(|| lock(&self.open).get(round, member, block))
    }

    /// One block, from memory or disk. May wait for the disk.
    pub fn block(&self, round: Round, member: &MemberId, root: &Digest, block: Block) -> Option<Proved> {
        self.held(round, member, block).or_else(|| self.shelf.block(round, member, root, block))
    }

    /// One block that a part is reduced with, while it is in memory.
    pub fn held(&self, round: Round, member: &MemberId, block: Block) -> Option<Proved> {
        let parts = (round, *member, Part(0))..=(round, *member, Part(u16::MAX));
        self.lock().range(parts).find_map(|(_, blocks)| blocks.get(&block).cloned())
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        lock(&self.held)
    }
}

/// About the bytes that a block takes on the disk.
fn bytes(data: &BlockData) -> u64 {
    let (chunks, proofs) = (data.chunks.iter().map(|chunk| chunk.len()), data.proofs.iter());
    let proofs = proofs.map(|proof| encode(proof).len());
    chunks.chain(proofs).fold(64, |bytes, length| bytes.saturating_add(length as u64))
}

impl Open {
    fn add(&mut self, round: Round, sender: MemberId, blocks: Vec<BlockData>) {
        if self.round < round {
            *self = Self { round, ..Self::default() };
        }
        // What an earlier round still brings is for nobody who waits.
        for data in blocks.into_iter().filter(|_| self.round == round) {
            let bytes = data.chunks.iter().map(|chunk| chunk.len()).sum::<usize>();
            if self.bytes.saturating_add(bytes) <= RELAYED_BYTES {
                self.bytes += bytes;
                self.blocks.insert((sender, data.block), data);
            }
        }
    }

    fn get(&self, round: Round, member: &MemberId, block: Block) -> Option<BlockData> {
        self.blocks.get(&(*member, block)).filter(|_| self.round == round).cloned()
    }
}

/// The blocks asked for, in one answer. It stops at the first block that no longer fits.
///
/// # Errors
/// [`Reject`] when one of them is unavailable, or they are more than an answer holds.
pub fn gathered(
    blocks: &[Block],
    mut one: impl FnMut(Block) -> Option<BlockData>,
) -> Result<Response, Reject> {
    let (mut bytes, mut found) = (0, Vec::new());
    for block in blocks {
        let data = one(*block).ok_or(Reject::Stale("this block is not kept here"))?;
        bytes += data.chunks.iter().map(|chunk| chunk.len()).sum::<usize>();
        // While they are gathered: a request names up to 1,024 blocks, far more than an answer holds.
        if bytes > BULK_BYTES {
            return Err(Reject::Rule("these are more blocks than one answer holds"));
        }
        found.push(data);
    }
    List::new(found).map(Response::Blocks).map_err(|_| Reject::Rule("too many blocks"))
}

#[cfg(test)]
mod tests;
