//! The steward's server: it answers bulk requests from shared structures, and asks the driver for everything else.

use std::sync::Arc;

use muster_core::codec::{Bytes, decode, encode};
use muster_core::ids::{Digest, MemberId};
use muster_core::limits::DATA_CHUNK_BYTES;
use muster_core::manifest::Manifest;
use muster_core::messages::offer::StateQuery;
use muster_core::messages::wire::{BULK_BYTES, BlockQuery, DataQuery, Request, Response};
use muster_net::serve::{Handler, Unanswered};
use muster_replica::{Asker, Offers, Results};
use muster_store::dataset::Dataset;
use muster_store::home::Home;
use tokio::sync::{mpsc, oneshot};

use super::board::Board;
use super::dial_back::DialBack;
use super::driver::Inbound;
use super::presence::Connections;

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
    pub(super) dial_back: DialBack,
}

impl Handler for Server {
    async fn handle(&self, peer: MemberId, request: Vec<u8>) -> Result<Vec<u8>, Unanswered> {
        let request: Request = decode(&request)?;
        let response = match request {
            Request::Manifest => bytes(self.manifest.bytes(), Response::Manifest)?,
            Request::Follow(follow) => Response::News(
                self.board.follow(&follow).await.map_err(|error| Unanswered::Refused(error.to_string()))?,
            ),
            Request::ResultBlocks(query) => self.values(query).await?,
            Request::StateOffer => self.offer().await?,
            Request::State(query) => self.piece(query).await?,
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
        self.dial_back.check(&request).await.map_err(Unanswered::Refused)?;
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

    /// A piece of a state, for whoever asks: newcomers are no members yet.
    async fn piece(&self, query: StateQuery) -> Result<Response, Unanswered> {
        let offers = self.offers.clone();
        let piece = tokio::task::spawn_blocking(move || offers.piece(Asker::Anybody, &query)).await;
        piece.map_err(|_| Unanswered::Refused("the state cannot be read".into()))?.map(Response::Piece)
    }

    async fn values(&self, query: BlockQuery) -> Result<Response, Unanswered> {
        let results = self.results.clone();
        let values = tokio::task::spawn_blocking(move || results.answer(&query)).await;
        let absent = || Unanswered::Refused("these results are not held here".into());
        values.ok().flatten().ok_or_else(absent)
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

fn bytes<const MAX: usize>(
    bytes: Vec<u8>,
    wrap: impl FnOnce(Bytes<MAX>) -> Response,
) -> Result<Response, Unanswered> {
    Bytes::new(bytes).map(wrap).map_err(|misuse| Unanswered::Refused(misuse.to_string()))
}
