//! Fetching shards of an offered state from whoever holds them, piece by piece, each piece with its proof.

use std::collections::hash_map::RandomState;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::{BuildHasher, Hasher};
use std::ops::Range;
use std::sync::{Arc, Mutex};

use muster_core::error::Reject;
use muster_core::ids::{MemberId, ShardId};
use muster_core::layout::ShardSize;
use muster_core::ledger::Ledger;
use muster_core::limits::OFFER_RUNS;
use muster_core::lock::lock;
use muster_core::messages::offer::{StateOffer, StatePiece, StateQuery, StateVector};
use muster_core::messages::wire::{Request, Response};
use muster_core::state::{ShardMut, ShardRoots, State, reals};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::holders::holders;
use crate::peers::{Contact, PeerError, Peers, contact, patience_for};

/// Pieces under way at once.
const WORKERS: usize = 4;
/// Holders that are asked for one piece at most, so that many silent ones cost no more time than these; then the steward.
const TRIES: usize = 3;
/// Fewest runs of a piece, but for the last of a vector.
const LEAST: usize = 8;
/// All vectors of a shard. Exponents first: they are the smallest piece.
const VECTORS: [StateVector; 4] =
    [StateVector::Exponents, StateVector::Parameters, StateVector::First, StateVector::Second];

/// Fetches an offered state. The caller has compared its roots with the sealed ones.
pub(super) struct StateFetch<'a> {
    pub(super) peers: &'a Peers,
    /// Asked last: others have the same pieces, and it is asked by everybody.
    pub(super) steward: &'a Contact,
    pub(super) offer: &'a StateOffer,
    /// STATE-13: who says that it holds the row that is fetched. Tried first, since the ledger may name members that are gone.
    pub(super) hinted: BTreeSet<MemberId>,
}

/// A piece that is still to be fetched.
#[derive(Clone)]
struct Wanted {
    query: StateQuery,
    roots: ShardRoots,
    size: ShardSize,
    /// Which values of its vector it has.
    values: Range<usize>,
    /// Who may have it, in the order in which they are asked.
    holders: Vec<Contact>,
}

/// What the pieces of one fetch share.
struct Fetching {
    peers: Peers,
    steward: Contact,
    wanted: Mutex<VecDeque<Wanted>>,
    tally: Mutex<Tally>,
}

/// Who has sent what.
#[derive(Default)]
struct Tally {
    /// Bytes of good pieces.
    bytes: BTreeMap<MemberId, u64>,
    /// Who is asked no more, and whether it has sent something false.
    out: BTreeMap<MemberId, bool>,
}

impl StateFetch<'_> {
    /// Fetches these shards, for a member that does not ask itself. Each piece is proved against the roots; the caller
    /// compares the whole.
    ///
    /// # Errors
    /// [`PeerError`] of the steward, or of the last holder, once nobody gives a piece.
    pub(super) async fn run(
        &self,
        ledger: &Ledger,
        me: Option<MemberId>,
        shards: &[ShardId],
    ) -> Result<State, PeerError> {
        let wanted = self.plan(ledger, me, shards).ok_or(PeerError::Unexpected)?;
        let fetching = Arc::new(Fetching {
            peers: self.peers.clone(),
            steward: self.steward.clone(),
            wanted: Mutex::new(wanted),
            tally: Mutex::default(),
        });
        let (sender, mut pieces) = mpsc::channel(WORKERS);
        // Dropped at the first error, which ends them all.
        let mut workers = JoinSet::new();
        for _ in 0..WORKERS {
            workers.spawn(fetching.clone().work(sender.clone()));
        }
        drop(sender);
        // While the first pieces come: a large one takes some time.
        let mut state = self.blank(ledger, shards).ok_or(PeerError::Unexpected)?;
        while let Some(piece) = pieces.recv().await {
            let (wanted, piece) = piece?;
            put(&mut state, &wanted, &piece).ok_or(PeerError::Unexpected)?;
        }
        while let Some(ended) = workers.join_next().await {
            // A worker that panics has left its piece out.
            ended.map_err(|_| PeerError::Unexpected)?;
        }
        tracing::info!("{}", lock(&fetching.tally).words(&self.steward.member, &self.names(shards)));
        Ok(state)
    }

    /// A state of these shards without values; none of shards that the model does not have.
    fn blank(&self, ledger: &Ledger, shards: &[ShardId]) -> Option<State> {
        let mut state = State::default();
        for shard in shards.iter().copied() {
            let (size, roots) = (ledger.layout().shard(shard)?.size(), self.offer.roots.shard(shard)?);
            state.shards.push(roots.shard(shard, size));
            state.exponents.resize(state.exponents.len() + size.exponents, 0);
            for vector in [&mut state.parameters, &mut state.first, &mut state.second] {
                vector.append_zeros(size.coefficients);
            }
        }
        Some(state)
    }

    /// The pieces of these shards; none of shards that the model does not have.
    fn plan(&self, ledger: &Ledger, me: Option<MemberId>, shards: &[ShardId]) -> Option<VecDeque<Wanted>> {
        let mut pieces = VecDeque::new();
        let (round, root) = (self.offer.round, self.offer.roots.root());
        let sizes = shards.iter().map(|shard| Some(ledger.layout().shard(*shard)?.size()));
        let runs = |size| VECTORS.iter().map(move |vector| vector.runs(size)).sum::<usize>();
        let mut left: usize = sizes.map(|size| size.map(runs)).sum::<Option<usize>>()?;
        for shard in shards.iter().copied() {
            let (size, roots) = (ledger.layout().shard(shard)?.size(), *self.offer.roots.shard(shard)?);
            let all = self.holders(ledger, me, shard);
            for vector in VECTORS {
                let (mut first, all_runs) = (0, vector.runs(size));
                while first < all_runs {
                    let count = runs_of_piece(left).min(all_runs - first);
                    let query =
                        StateQuery { round, root, shard, vector, first: first as u64, count: count as u32 };
                    (first, left) = (first + count, left - count);
                    let values = query.values(size)?;
                    // Each piece begins with another holder, so that all of them share the work.
                    let holders = rotated(&all, pieces.len());
                    pieces.push_back(Wanted { query, roots, size, values, holders });
                }
            }
        }
        Some(pieces)
    }

    /// Whoever may hold a shard, in an order that differs from fetch to fetch: those that say so, and the others.
    fn holders(&self, ledger: &Ledger, me: Option<MemberId>, shard: ShardId) -> [Vec<Contact>; 2] {
        let others = holders(ledger, self.offer.roots.rows(), shard.row());
        let others = others.filter(|member| Some(member.id) != me);
        let mut found: Vec<Contact> = others.filter_map(|member| contact(ledger, &member.id)).collect();
        let mut order = RandomState::new().build_hasher();
        order.write_u16(shard.0);
        let count = found.len().max(1) as u64;
        found.rotate_left((order.finish() % count) as usize);
        let hinted = |contact: &Contact| shard.row().is_some() && self.hinted.contains(&contact.member);
        let (hinted, others) = found.into_iter().partition(hinted);
        [hinted, others]
    }

    /// The shards in words.
    fn names(&self, shards: &[ShardId]) -> String {
        let rows: Vec<_> = shards.iter().filter_map(|shard| shard.row()).collect();
        match rows.as_slice() {
            _ if self.offer.roots.shards.len() == 1 => "the model".into(),
            [] => "trunk".into(),
            [row] => format!("trunk and row {row}"),
            rows => format!("trunk and {} rows", rows.len()),
        }
    }
}

impl Fetching {
    /// Fetches pieces until none is left, or one cannot be had.
    async fn work(self: Arc<Self>, sender: mpsc::Sender<Result<(Wanted, StatePiece), PeerError>>) {
        loop {
            let Some(wanted) = lock(&self.wanted).pop_front() else { return };
            let piece = self.piece(&wanted).await.map(|piece| (wanted, piece));
            if sender.send(piece).await.is_err() {
                return;
            }
        }
    }

    /// A piece from the first of its contacts that has it. A silent one costs [`patience_for`] its bytes, once.
    async fn piece(self: &Arc<Self>, wanted: &Wanted) -> Result<StatePiece, PeerError> {
        let is_in = |contact: &&Contact| !lock(&self.tally).out.contains_key(&contact.member);
        let holders = wanted.holders.iter().filter(is_in).take(TRIES);
        let contacts: Vec<Contact> = holders.chain([&self.steward]).cloned().collect();
        let bytes = (wanted.values.len() * wanted.query.vector.value_bytes()) as u64;
        let ask = |contact: &Contact| {
            let (fetching, contact, wanted) = (self.clone(), contact.clone(), wanted.clone());
            async move { fetching.ask(&contact, &wanted).await }
        };
        self.peers.in_turn(&contacts, patience_for(bytes), &ask).await
    }

    /// Asks one contact. Whoever has no good answer is left out of the rest of this fetch, unless it is the steward. Only what the
    /// steward sends is untrue for whoever fetches: a holder must not end its process.
    async fn ask(&self, contact: &Contact, wanted: &Wanted) -> Result<StatePiece, PeerError> {
        if lock(&self.tally).out.contains_key(&contact.member) {
            return Err(PeerError::Unreachable);
        }
        let answer = match self.peers.ask(contact, &Request::State(wanted.query.clone())).await {
            // STATE-11: nothing unproved is used, whoever sends it.
            Ok(Response::Piece(piece)) => {
                let checked = piece.check(&wanted.query, &wanted.roots, wanted.size);
                checked.map(|()| piece).map_err(PeerError::from)
            }
            Ok(_) => Err(PeerError::Unexpected),
            Err(error) => Err(error),
        };
        let mut tally = lock(&self.tally);
        match answer {
            Ok(piece) => {
                *tally.bytes.entry(contact.member).or_default() += piece.bytes.len() as u64;
                Ok(piece)
            }
            Err(error) if contact.member == self.steward.member => Err(error),
            Err(error) => {
                let (lied, why) = (error.is_untrue(), reason(&error));
                if tally.out.insert(contact.member, lied).is_none() {
                    tracing::info!("{} is left out of this fetch: it {why}", contact.member);
                }
                Err(PeerError::Refused(why))
            }
        }
    }
}

/// Runs of the next piece, of so many that are left: as many as an answer takes, since a holder is asked for the next piece once it
/// has sent one, and the line is idle meanwhile; fewer towards the end, so that all holders are done at the same time.
fn runs_of_piece(left: usize) -> usize {
    (left / WORKERS).clamp(LEAST, OFFER_RUNS)
}

/// These groups one after the other, each from another place on.
fn rotated(groups: &[Vec<Contact>], by: usize) -> Vec<Contact> {
    let from = |group: &Vec<Contact>| by % group.len().max(1);
    groups
        .iter()
        .flat_map(|group| group.iter().cycle().skip(from(group)).take(group.len()))
        .cloned()
        .collect()
}

/// Why a holder is left out, behind "it".
fn reason(error: &PeerError) -> String {
    match error {
        PeerError::Reject(Reject::BadProof(_)) => "sent a false piece of the state".into(),
        PeerError::Reject(_) | PeerError::Unexpected => {
            "sent something else than a piece of the state".into()
        }
        error => format!("gives no piece ({error})"),
    }
}

impl Tally {
    /// What came from whom, in words.
    fn words(&self, steward: &MemberId, what: &str) -> String {
        let megabytes = |bytes: u64| format!("{:.2} MB", bytes as f64 / 1e6);
        let all = megabytes(self.bytes.values().sum());
        let of_steward = self.bytes.get(steward).copied();
        let holders = self.bytes.len() - usize::from(of_steward.is_some());
        let from = match (holders, of_steward) {
            (0, _) => "from the steward".into(),
            (count, None) => format!("from {count} holders"),
            (count, Some(bytes)) => {
                format!("from {count} holders, and {} of it from the steward", megabytes(bytes))
            }
        };
        let lied = self.out.values().filter(|lied| **lied).count();
        let liars = if lied > 0 { format!("; {lied} with false pieces left out") } else { String::new() };
        format!("fetched {all} of {what} {from}{liars}")
    }
}

/// Puts a piece into the state; `None` where it has no such place.
fn put(state: &mut State, wanted: &Wanted, piece: &StatePiece) -> Option<()> {
    let ShardMut { exponents, vectors: [parameters, first, second], .. } =
        state.shard_mut(wanted.query.shard)?;
    let vector = match wanted.query.vector {
        StateVector::Exponents => {
            let values = exponents.get_mut(wanted.values.clone())?.iter_mut();
            let bytes = piece.bytes.as_chunks().0;
            values.zip(bytes).for_each(|(value, two)| *value = i16::from_le_bytes(*two));
            return Some(());
        }
        StateVector::Parameters => parameters,
        StateVector::First => first,
        StateVector::Second => second,
    };
    vector.get_mut(wanted.values.clone())?.copy_from_slice(&reals(&piece.bytes));
    Some(())
}
