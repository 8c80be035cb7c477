//! Text when it is needed: who is asked for it, and what of it a member gives to others.
//!
//! Every answer is checked against the outline of the file (MERKLE-7), so that anybody may be asked. Members are asked before the
//! steward, each for other pieces, so that no one of them serves everybody.

use std::collections::BTreeSet;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use muster_core::error::Reject;
use muster_core::ids::MemberId;
use muster_core::ledger::Ledger;
use muster_core::limits::DATA_CHUNK_BYTES;
use muster_core::lock::lock;
use muster_core::manifest::Data;
use muster_core::messages::wire::{BULK_BYTES, DataQuery, Request, Response};
use muster_store::dataset::{Dataset, IsGood, Lack, Supply};
use muster_store::error::Kind;
use tokio::runtime::Handle;
use tokio::time::timeout;

use crate::holders::holders;
use crate::peers::{Contact, PeerError, Peers, contact, patience_for};

/// Chunks of a file for which the same members are asked: 1 MiB.
const STRETCH: u64 = 256;
/// Members that are asked for one piece, before the steward.
const ASKED: usize = 2;
/// How long a piece is asked for at most, again and again where nobody answers: a steward that is restarted is waited for.
const PATIENCE: Duration = Duration::from_secs(90);
/// How long it is asked for at least: members that stall are given up and the steward is asked within it.
const LEAST_PATIENCE: Duration = Duration::from_secs(12);
/// Pause between two times.
const PAUSE: Duration = Duration::from_secs(2);
/// Pause after nobody has given text ahead of need.
const LONG_PAUSE: Duration = Duration::from_secs(60);

/// Chunks of a committed file for whoever asks, within the bounds of an answer; nothing where any of them is lacking.
pub fn held(dataset: &Dataset, query: &DataQuery) -> Option<Vec<u8>> {
    dataset.held_chunks(query.file, query.first, bounded(query))
}

/// Chunks of a file's outline for whoever asks, within the bounds of an answer.
pub fn outline(dataset: &Dataset, query: &DataQuery) -> Vec<u8> {
    dataset.outline_chunks(query.file, query.first, bounded(query))
}

/// A stranger chooses the count.
fn bounded(query: &DataQuery) -> u32 {
    query.count.min((BULK_BYTES / DATA_CHUNK_BYTES) as u32)
}

/// Bytes of text that are fetched before a member begins: a run whose files have no more is fetched whole.
const AT_FIRST: u64 = 64 << 20;

/// Whether all of a run's text is fetched before a member begins: where it is short, or where the row of each window is drawn by the
/// text of many others.
pub(crate) fn is_fetched_first(data: &Data) -> bool {
    data.bytes <= AT_FIRST || data.router.is_some()
}

/// Those who have the text of a run: the steward has all of it, members have what they needed so far. Clones know the same.
#[derive(Clone)]
pub struct TextHolders {
    runtime: Handle,
    peers: Peers,
    steward: Contact,
    members: Arc<Mutex<Vec<Contact>>>,
    /// Who has sent something else than what was committed to. It is not asked again.
    liars: Arc<Mutex<BTreeSet<MemberId>>>,
    /// How long a piece is asked for.
    patience: Arc<Mutex<Duration>>,
    /// Nobody knows whom it makes this process ask, so that nobody can have the pieces that a victim will ask it for.
    drawn: RandomState,
}

impl fmt::Debug for TextHolders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TextHolders").field("steward", &self.steward).finish_non_exhaustive()
    }
}

impl TextHolders {
    /// The steward alone, as long as no member is known. Requests are sent from this runtime.
    pub fn new(peers: Peers, steward: Contact) -> Self {
        let (members, liars, drawn) = Default::default();
        let patience = Arc::new(Mutex::new(PATIENCE));
        Self { runtime: Handle::current(), peers, steward, members, liars, patience, drawn }
    }

    /// From now on members that the ledger has as nodes at work are asked, too; but not `me`. Whoever computes waits for a piece no
    /// longer than half the time for commitments: the round would be over, and the next one late.
    pub fn know(&self, ledger: &Ledger, me: &MemberId) {
        let commit = Duration::from_millis(ledger.manifest().timers.commit.into());
        *lock(&self.patience) = (commit / 2).clamp(LEAST_PATIENCE, PATIENCE);
        let others = holders(ledger, 1, None).filter(|member| member.id != *me);
        *lock(&self.members) = others.filter_map(|member| contact(ledger, &member.id)).collect();
    }

    /// What a newcomer needs before anything else.
    pub(crate) async fn ask_steward(&self, request: &Request) -> Result<Response, PeerError> {
        self.peers.ask(&self.steward, request).await
    }

    /// Whom to ask for a piece, in this order: those whose hash with the piece is the lowest, so that members share the work.
    fn asked(&self, query: &DataQuery) -> Vec<Contact> {
        let rank = |contact: &Contact| self.drawn.hash_one((query.first / STRETCH, contact.member.0));
        let liars = lock(&self.liars);
        let mut members: Vec<Contact> = lock(&self.members).clone();
        members.retain(|contact| !liars.contains(&contact.member) && self.peers.may_dial(contact));
        members.sort_by_cached_key(rank);
        members.truncate(ASKED);
        members.push(self.steward.clone());
        members
    }

    async fn ask(&self, contact: &Contact, query: DataQuery, is_good: &IsGood) -> Result<Vec<u8>, PeerError> {
        let Response::Bytes(bytes) = self.peers.ask(contact, &Request::Data(query)).await? else {
            return Err(PeerError::Unexpected);
        };
        if is_good(&bytes) {
            return Ok(bytes.into_inner());
        }
        lock(&self.liars).insert(contact.member);
        tracing::warn!("{} sends other text than that of the run: others are asked", contact.member);
        Err(PeerError::Reject(Reject::Rule("text is what the run committed to")))
    }

    async fn fetch(&self, query: DataQuery, is_good: Arc<IsGood>) -> Result<Vec<u8>, Lack> {
        let patience = *lock(&self.patience);
        timeout(patience, self.ask_on(query, is_good)).await.unwrap_or_else(|_| {
            tracing::warn!("nobody has given text in {} s", patience.as_secs());
            Err(Lack::Nobody)
        })
    }

    /// Asks until somebody gives a piece, or has shown that nobody can.
    async fn ask_on(&self, query: DataQuery, is_good: Arc<IsGood>) -> Result<Vec<u8>, Lack> {
        let patience = patience_for(u64::from(bounded(&query)) * DATA_CHUNK_BYTES as u64);
        loop {
            let contacts = self.asked(&query);
            let ask = |contact: &Contact| {
                let (contact, query, is_good) = (contact.clone(), query.clone(), is_good.clone());
                async move { self.ask(&contact, query, &*is_good).await }
            };
            // Whoever stalls is asked last for a while.
            match self.peers.in_turn(&contacts, patience, &ask).await {
                Ok(bytes) => return Ok(bytes),
                // The steward has all of it. If that is what it has, there is nobody else.
                Err(_) if lock(&self.liars).contains(&self.steward.member) => return Err(Lack::OtherBytes),
                Err(error) => {
                    tracing::debug!("nobody gives text yet: {error}");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }
}

/// Fetches the rest of a text ahead of need, on a thread of its own, as long as somebody uses it: a stretch at a time, from a drawn
/// place on, so that members have different parts of it; and for half of the time at most, since rounds travel over the same line.
pub fn fetch_ahead(dataset: &Arc<Dataset>) {
    let weak = Arc::downgrade(dataset);
    thread::spawn(move || {
        let mut drawn = RandomState::new().hash_one(0u8);
        while let Some(dataset) = weak.upgrade() {
            drawn = drawn.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            let begun = Instant::now();
            let pause = match dataset.fetch_ahead(drawn >> 8) {
                Ok(true) => begun.elapsed(),
                Ok(false) => return,
                Err(error) if error.kind() == Kind::Full => {
                    return tracing::warn!("text is fetched only when it is needed from now on: {error}");
                }
                Err(error) => {
                    tracing::debug!("no text ahead of need: {error}");
                    LONG_PAUSE
                }
            };
            drop(dataset);
            thread::sleep(pause);
        }
    });
}

/// Called from threads that may block.
impl Supply for TextHolders {
    fn chunks(&self, query: DataQuery, is_good: Arc<IsGood>) -> Result<Vec<u8>, Lack> {
        let (sender, answer) = mpsc::channel();
        let holders = self.clone();
        self.runtime.spawn(async move {
            // Nobody waits any more only where the process ends.
            let _ = sender.send(holders.fetch(query, is_good).await);
        });
        answer.recv().unwrap_or(Err(Lack::Nobody))
    }
}
