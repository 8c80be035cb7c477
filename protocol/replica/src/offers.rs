//! States on disk that others may fetch: copied beside the work, or already there; served with a proof for each run.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use muster_core::codec::{Bytes, List};
use muster_core::error::Misuse;
use muster_core::ids::{Digest, MemberId, Round, ShardId};
use muster_core::layout::ShardSize;
use muster_core::limits::{
    CHUNK_COEFFICIENTS, OFFER_RUNS, OFFER_STRANGERS, OFFER_TIMES, OFFERS, OFFERS_FETCHED,
};
use muster_core::lock::lock;
use muster_core::merkle::{self, Tree};
use muster_core::messages::offer::{StateOffer, StatePiece, StateQuery, StateVector, is_offered};
use muster_core::state::State;
use muster_net::serve::Unanswered;
use muster_store::error::StoreError;
use muster_store::offers::{OfferFile, OfferHead};
use muster_store::rows::RowFiles;

use crate::replica::Replica;

/// Whoever was sent a piece of a state so long ago does not fetch it any more.
const PAUSE: Duration = Duration::from_secs(10);

/// Who asks, and how much of a state it may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asker {
    /// Whoever asks the steward, which somebody has to ask in the end. Its connections are bounded.
    Anybody,
    /// A member of the run, which asks a node.
    Member(MemberId),
    /// Anybody else who asks a node. Keys cost nothing, so that all strangers count as one.
    Stranger,
}

/// The states that a member keeps for others (STATE-10).
pub struct Offers {
    files: RowFiles,
    replica: Arc<Mutex<Replica>>,
    held: Mutex<VecDeque<Arc<Kept>>>,
    /// Rounds that are remembered, whose results lead on from a state.
    remembered: u32,
    /// One state is written at a time.
    writing: Mutex<()>,
    /// Whether the last state had moved on before it was written.
    missed: AtomicBool,
}

/// A state that is kept.
struct Kept {
    offer: StateOffer,
    root: Digest,
    file: OfferFile,
    /// Made of the file once somebody asks.
    trees: Mutex<BTreeMap<(ShardId, StateVector), Arc<Tree>>>,
    /// What was sent to each member; all strangers are one.
    sent: Mutex<BTreeMap<Option<MemberId>, Sent>>,
}

/// What one asker was sent of a state.
#[derive(Default)]
struct Sent {
    bytes: u64,
    /// When the last piece was.
    last: Option<Instant>,
}

impl Sent {
    fn fetches(&self, now: Instant) -> bool {
        self.last.is_some_and(|last| now.duration_since(last) < PAUSE)
    }
}

/// Who fetches a state. The first stays where there is no room for both: a stranger keeps no state from a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fetcher {
    Member,
    Stranger,
}

impl Offers {
    /// None yet. What the state has in memory is copied to these files.
    pub fn new(files: RowFiles, replica: Arc<Mutex<Replica>>) -> Self {
        let (held, writing, missed) = Default::default();
        let remembered = lock(&replica).manifest().retention.contributions;
        Self { files, replica, held, remembered, writing, missed }
    }

    /// Whether the replica's state is one that others may fetch, and is neither kept yet nor being written.
    pub fn is_due(&self) -> bool {
        let round = lock(&self.replica).round();
        is_offered(round) && !self.has(round) && self.writing.try_lock().is_ok()
    }

    fn has(&self, round: Round) -> bool {
        lock(&self.held).iter().any(|kept| kept.offer.round == round)
    }

    /// Keeps the replica's state if it is due; blocks until it is written. Where the state moves on before that, nothing of
    /// it is kept, and the next one is written in one go, with the replica locked.
    ///
    /// # Errors
    /// What the system reports, above all a full disk. What was kept before is still there.
    pub fn keep(&self) -> Result<(), StoreError> {
        if self.is_due() { self.keep_now() } else { Ok(()) }
    }

    /// Keeps the replica's state, whichever it is; blocks until it is written.
    ///
    /// # Errors
    /// As [`Self::keep`].
    pub fn keep_now(&self) -> Result<(), StoreError> {
        let _one = lock(&self.writing);
        let (head, offer, copy) = {
            let replica = lock(&self.replica);
            let (round, roots) = (replica.round(), replica.roots());
            if replica.is_torn() || self.has(round) {
                return Ok(());
            }
            (
                OfferHead::of(round, replica.state(), &replica.held_state().rows, roots),
                StateOffer { round, roots: roots.clone() },
                // Where rows are on the disk, what is in memory is small beside them, and they take long to copy.
                (!replica.held_state().rows.is_empty()).then(|| replica.state().clone()),
            )
        };
        let lacks_copy = copy.is_none() && self.missed.load(Ordering::Relaxed);
        let whole = lacks_copy.then(|| lock(&self.replica));
        // What is on the disk already stays there for as long as it is kept: the state goes on in other files.
        let written = self.files.keep(head, &mut |vector, values| match (&copy, &whole) {
            (Some(state), _) => some(state, vector, values),
            (None, Some(replica)) => read(replica, offer.round, vector, values),
            // Locked for a piece at a time: whoever computes need not wait for the disk.
            (None, None) => read(&lock(&self.replica), offer.round, vector, values),
        })?;
        drop(whole);
        self.missed.store(written.is_none(), Ordering::Relaxed);
        if let Some(file) = written {
            self.take(offer, file);
        }
        Ok(())
    }

    /// Takes in what is kept from now on, and drops what is too old.
    fn take(&self, offer: StateOffer, file: OfferFile) {
        let (root, (trees, sent)) = (offer.roots.root(), Default::default());
        let mut held = lock(&self.held);
        let oldest = offer.round.0.saturating_sub(self.remembered);
        held.push_back(Arc::new(Kept { offer, root, file, trees, sent }));
        // Rounds may be shorter than a fetch takes, which would begin anew without end.
        let earlier = held.len().saturating_sub(OFFERS);
        let now = Instant::now();
        let mut fetched: Vec<(Fetcher, Arc<Kept>)> = held
            .drain(..earlier)
            .filter(|kept| kept.offer.round.0 >= oldest)
            .filter_map(|kept| Some((kept.fetcher(now)?, kept)))
            .collect();
        // Among equals the older stays, since more of it was fetched.
        fetched.sort_by_key(|(fetcher, _)| *fetcher);
        fetched.truncate(OFFERS_FETCHED);
        fetched.into_iter().for_each(|(_, kept)| held.push_front(kept));
    }

    /// Drops all of them, for a membership that is over.
    pub fn clear(&self) {
        lock(&self.held).clear();
    }

    /// The newest one. Waits for the replica.
    pub fn newest(&self) -> Option<StateOffer> {
        let step = lock(&self.replica).roots().step();
        let held = lock(&self.held);
        // One from before a rewind has more updates than the present state.
        held.back().map(|kept| kept.offer.clone()).filter(|offer| offer.roots.step() <= step)
    }

    /// A piece of a kept state. Blocks: it reads the disk.
    ///
    /// # Errors
    /// [`Unanswered::Refused`] for what is not kept here, and for an asker that has had enough (STATE-12).
    pub fn piece(&self, asker: Asker, query: &StateQuery) -> Result<StatePiece, Unanswered> {
        let refused = |why: &str| Unanswered::Refused(why.into());
        let held = lock(&self.held);
        let wanted = |kept: &&Arc<Kept>| kept.offer.round == query.round && kept.root == query.root;
        let kept = held.iter().find(wanted).cloned();
        drop(held);
        let kept = kept.ok_or_else(|| refused("this state is not kept here"))?;
        let size = kept.file.size(query.shard);
        let size = size.ok_or_else(|| refused("this shard of the state is not kept here"))?;
        let values = query.values(size).ok_or_else(|| refused("no such piece of the state"))?;
        if !kept.charge(asker, (values.len() * query.vector.value_bytes()) as u64) {
            return Err(refused("enough of this state was sent; ask another holder"));
        }
        kept.piece(query, size, values)
    }
}

/// Some values of what the replica has in memory of its state; none once it is before another round.
fn read(replica: &Replica, round: Round, vector: StateVector, values: Range<usize>) -> Option<Vec<f32>> {
    let is_same = replica.round() == round && !replica.is_torn();
    if is_same { some(replica.state(), vector, values) } else { None }
}

fn some(state: &State, vector: StateVector, values: Range<usize>) -> Option<Vec<f32>> {
    let State { parameters, first, second, .. } = state;
    let of = match vector {
        StateVector::Parameters => parameters,
        StateVector::First => first,
        StateVector::Second => second,
        StateVector::Exponents => return None,
    };
    of.get(values).map(<[f32]>::to_vec)
}

impl Kept {
    /// STATE-12: what one asker may have of a state is bounded, and likewise what all strangers may have together. There are
    /// no more entries than members, and one.
    fn charge(&self, asker: Asker, bytes: u64) -> bool {
        let (name, times) = match asker {
            Asker::Anybody => (None, u64::MAX),
            Asker::Member(member) => (Some(member), OFFER_TIMES),
            Asker::Stranger => (None, OFFER_STRANGERS),
        };
        let mut all = lock(&self.sent);
        let sent = all.entry(name).or_default();
        let within = sent.bytes.saturating_add(bytes) <= times.saturating_mul(self.file.bytes());
        if within {
            (sent.bytes, sent.last) = (sent.bytes.saturating_add(bytes), Some(Instant::now()));
        }
        within
    }

    /// Who fetches it now.
    fn fetcher(&self, now: Instant) -> Option<Fetcher> {
        let all = lock(&self.sent);
        let fetching = all.iter().filter(|(_, sent)| sent.fetches(now));
        fetching.map(|(name, _)| if name.is_some() { Fetcher::Member } else { Fetcher::Stranger }).min()
    }

    fn piece(
        &self,
        query: &StateQuery,
        size: ShardSize,
        values: Range<usize>,
    ) -> Result<StatePiece, Unanswered> {
        let StateQuery { shard, vector, .. } = *query;
        let failed = |error: StoreError| {
            tracing::warn!("a state that is kept for others cannot be read: {error}");
            Unanswered::Refused("this state cannot be read here".into())
        };
        let misuse = |misuse: Misuse| Unanswered::Refused(misuse.to_string());
        let proofs = match vector {
            StateVector::Exponents => Vec::new(),
            _ => {
                let tree = self.tree(shard, vector, size).map_err(failed)?;
                // A disk that has changed a bit makes no liar of an honest member.
                let sealed = self.offer.roots.shard(shard).map(|roots| vector.root(roots));
                if sealed != Some(tree.root()) {
                    return Err(Unanswered::Refused("this state is damaged here".into()));
                }
                (query.first..).take(query.count as usize).filter_map(|run| tree.prove(run)).collect()
            }
        };
        let bytes = Bytes::new(self.file.read(shard, vector, values).map_err(failed)?).map_err(misuse)?;
        Ok(StatePiece { bytes, proofs: List::new(proofs).map_err(misuse)? })
    }

    /// The tree of a vector, made of the file once.
    fn tree(&self, shard: ShardId, vector: StateVector, size: ShardSize) -> Result<Arc<Tree>, StoreError> {
        // Locked meanwhile: whoever asks for the same vector would read the same file.
        let mut trees = lock(&self.trees);
        if let Some(tree) = trees.get(&(shard, vector)) {
            return Ok(tree.clone());
        }
        let mut leaves = Vec::with_capacity(vector.runs(size));
        for first in (0..size.coefficients).step_by(OFFER_RUNS * CHUNK_COEFFICIENTS) {
            let values = first..(first + OFFER_RUNS * CHUNK_COEFFICIENTS).min(size.coefficients);
            let bytes = self.file.read(shard, vector, values)?;
            for run in bytes.chunks(4 * CHUNK_COEFFICIENTS) {
                leaves.push(merkle::leaf(leaves.len() as u64, run));
            }
        }
        let tree = Arc::new(Tree::new(leaves));
        trees.insert((shard, vector), tree.clone());
        Ok(tree)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_10_who_was_sent_nothing_for_ten_seconds_keeps_no_state() {
        let now = Instant::now();
        let sent = Sent { bytes: 1, last: Some(now) };
        let after = |seconds| sent.fetches(now + Duration::from_secs(seconds));
        assert!(after(0) && after(9) && !after(10) && !after(3600));
        assert!(!Sent::default().fetches(now));
    }
}
