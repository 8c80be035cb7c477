//! The steward's server: it answers bulk requests from shared structures, and asks the driver for everything else.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use muster_core::codec::{Bytes, decode, encode};
use muster_core::ids::{Digest, MemberId, Round};
use muster_core::limits::DATA_CHUNK_BYTES;
use muster_core::lock::lock;
use muster_core::manifest::Manifest;
use muster_core::messages::wire::{
    BULK_BYTES, DataQuery, Request, Response, StateOffer, StateQuery, StateVector,
};
use muster_core::state::{State, real_bytes};
use muster_net::serve::{Handler, Unanswered};
use muster_replica::{Replica, Results};
use muster_store::dataset::Dataset;
use muster_store::home::Home;
use tokio::sync::{mpsc, oneshot};

use super::board::Board;
use super::driver::Inbound;
use super::presence::Connections;

/// Rounds that an offered state serves newcomers before a newer one is offered.
const OFFER_ROUNDS: u32 = 3;
/// Offered states that can still be fetched.
const OFFERS: usize = 2;

/// Shared by all connections.
pub(super) struct Server {
    pub(super) manifest: Arc<Manifest>,
    pub(super) dataset: Arc<Dataset>,
    pub(super) home: Home,
    pub(super) board: Arc<Board>,
    pub(super) results: Results,
    pub(super) presence: Arc<Connections>,
    pub(super) driver: mpsc::Sender<Inbound>,
    pub(super) offers: Arc<Offers>,
}

impl Handler for Server {
    async fn handle(&self, peer: MemberId, request: Vec<u8>) -> Result<Vec<u8>, Unanswered> {
        let request: Request = decode(&request)?;
        let response = match request {
            Request::Manifest => bytes(self.manifest.bytes(), Response::Manifest)?,
            Request::Follow(follow) => Response::News(
                self.board.follow(&follow).await.map_err(|error| Unanswered::Refused(error.to_string()))?,
            ),
            Request::ResultBlocks(query) => self
                .results
                .answer(&query)
                .ok_or_else(|| Unanswered::Refused("these results are not held here".into()))?,
            Request::StateOffer => self.offer().await?,
            Request::State(query) => self.offers.piece(&query)?,
            Request::Data(query) => self.data(&query)?,
            Request::Evidence(name) => self.evidence(name).await?,
            Request::Enrol(_)
            | Request::Commit(_)
            | Request::PutBlocks(_)
            | Request::InputBlocks(_)
            | Request::Delivered(_)
            | Request::Checked(_)
            | Request::Notice(_)
            | Request::Accuse(_)
            | Request::CloseTree(_)
            | Request::Ask(_) => self.ask(peer, request).await?,
        };
        Ok(encode(&response))
    }

    fn connected(&self, peer: MemberId) {
        self.presence.open(peer);
    }

    fn disconnected(&self, peer: MemberId) {
        self.presence.close(peer);
    }
}

impl Server {
    async fn ask(&self, peer: MemberId, request: Request) -> Result<Response, Unanswered> {
        let (answer, answered) = oneshot::channel();
        let asked = Inbound::Ask { peer, request: Box::new(request), answer };
        self.driver.send(asked).await.map_err(|_| Unanswered::Stopping)?;
        answered.await.map_err(|_| Unanswered::Stopping)
    }

    fn data(&self, query: &DataQuery) -> Result<Response, Unanswered> {
        // A stranger chooses the count.
        let count = query.count.min((BULK_BYTES / DATA_CHUNK_BYTES) as u32);
        bytes(self.dataset.chunks(query.file, query.first, count).to_vec(), Response::Bytes)
    }

    /// Evidence of a ban; no other evidence is kept here.
    async fn evidence(&self, name: Digest) -> Result<Response, Unanswered> {
        let home = self.home.clone();
        // Strangers may ask: what they have read must not hold up the threads of the runtime.
        let loaded = tokio::task::spawn_blocking(move || home.load_evidence(&name)).await;
        let evidence = loaded.ok().and_then(Result::ok);
        evidence
            .map(Response::Evidence)
            .ok_or_else(|| Unanswered::Refused("no such evidence is held here".into()))
    }

    async fn offer(&self) -> Result<Response, Unanswered> {
        let offers = self.offers.clone();
        let offer = tokio::task::spawn_blocking(move || offers.newest()).await;
        offer
            .ok()
            .flatten()
            .map(Response::State)
            .ok_or_else(|| Unanswered::Refused("no state can be fetched now".into()))
    }
}

/// States that newcomers may fetch, copied from the replica when one is asked for.
pub(super) struct Offers {
    replica: Arc<Mutex<Replica>>,
    held: Mutex<VecDeque<(StateOffer, Arc<State>)>>,
}

impl Offers {
    /// No offers yet.
    pub(super) fn new(replica: Arc<Mutex<Replica>>) -> Self {
        Self { replica, held: Mutex::default() }
    }

    /// The newest offer, made anew when it is some rounds old. Waits for the replica.
    fn newest(&self) -> Option<StateOffer> {
        let replica = lock(&self.replica);
        let mut held = lock(&self.held);
        // An offer from before a rewind has more updates than the present state.
        let fresh = |offer: &StateOffer| {
            replica.round() < Round(offer.round.0.saturating_add(OFFER_ROUNDS))
                && offer.roots.step() <= replica.state().step()
        };
        if let Some((offer, _)) = held.back().filter(|(offer, _)| fresh(offer)) {
            return Some(offer.clone());
        }
        let offer = StateOffer { round: replica.round(), roots: replica.roots().clone() };
        held.push_back((offer.clone(), Arc::new(replica.state().clone())));
        // The one before stays: a newcomer may be in the middle of it.
        if held.len() > OFFERS {
            held.pop_front();
        }
        Some(offer)
    }

    fn piece(&self, query: &StateQuery) -> Result<Response, Unanswered> {
        let held = lock(&self.held);
        let wanted = |offer: &StateOffer| offer.round == query.round && offer.roots.root() == query.root;
        let found = held.iter().find(|(offer, _)| wanted(offer)).map(|(_, state)| state.clone());
        drop(held);
        let state = found.ok_or_else(|| Unanswered::Refused("this state is not offered any more".into()))?;
        let shard = state.shard(query.shard);
        let shard = shard.ok_or_else(|| Unanswered::Refused("the state has no such shard".into()))?;
        let [parameters, first, second] = shard.vectors;
        let piece = match query.vector {
            StateVector::Parameters => piece_of(parameters, query).map(real_bytes),
            StateVector::First => piece_of(first, query).map(real_bytes),
            StateVector::Second => piece_of(second, query).map(real_bytes),
            StateVector::Exponents => piece_of(shard.exponents, query)
                .map(|exponents| exponents.iter().flat_map(|exponent| exponent.to_le_bytes()).collect()),
        };
        let piece = piece.filter(|piece| piece.len() <= BULK_BYTES);
        let piece = piece.ok_or_else(|| Unanswered::Refused("no such piece of the state".into()))?;
        bytes(piece, Response::Bytes)
    }
}

/// What a query asks for of a vector; none where the vector does not have it, or it would be too long.
fn piece_of<'a, T>(vector: &'a [T], query: &StateQuery) -> Option<&'a [T]> {
    // Numbers of a stranger: each step is checked, and what overflows is no piece.
    let first = usize::try_from(query.first).ok()?;
    let piece = vector.get(first..first.checked_add(query.count as usize)?)?;
    (piece.len() <= BULK_BYTES / query.vector.value_bytes()).then_some(piece)
}

fn bytes<const MAX: usize>(
    bytes: Vec<u8>,
    wrap: impl FnOnce(Bytes<MAX>) -> Response,
) -> Result<Response, Unanswered> {
    Bytes::new(bytes).map(wrap).map_err(|misuse| Unanswered::Refused(misuse.to_string()))
}
