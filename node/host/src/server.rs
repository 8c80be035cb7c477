//! The steward's server: it answers bulk requests from shared structures, and asks the driver for everything else.

use std::sync::Arc;

use muster_core::codec::{Bytes, decode, encode};
use muster_core::ids::MemberId;
use muster_core::limits::MESSAGE_BYTES;
use muster_core::manifest::Manifest;
use muster_core::messages::wire::{DataQuery, Follow, Request, Response};
use muster_net::relay::Relay;
use muster_net::serve::{Handler, Unanswered};
use muster_net::shares::{Role, Turns};
use muster_replica::text::{held, outline};
use muster_replica::{Asker, Offers, Results};
use muster_store::dataset::Dataset;
use muster_store::home::Home;
use tokio::sync::mpsc;

use super::asks::Asks;
use super::board::Board;
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
    pub(super) asks: Arc<Asks>,
    pub(super) offers: Arc<Offers>,
    pub(super) turns: Turns,
    pub(super) relay: Arc<Relay>,
}

/// Requests that ask for something are no longer than this.
const ASKING_BYTES: usize = 8 << 10;
/// Answers to what brings something are no longer than this.
const SHORT_BYTES: usize = 1 << 10;
/// Answers for members that are made at once.
pub(super) const MAKERS: usize = 4;

impl Handler for Server {
    fn role(&self, peer: &MemberId) -> Role {
        self.presence.role(peer)
    }

    async fn ready(&self, request: &[u8]) -> usize {
        // What is longer brings something, and is answered in a few words.
        let request = (request.len() <= ASKING_BYTES).then(|| decode::<Request>(request));
        let Some(Ok(request)) = request else { return SHORT_BYTES };
        match request {
            Request::Follow(follow) => self.board.wait(&follow).await,
            Request::Manifest
            | Request::StateOffer
            | Request::ResultBlocks(_)
            | Request::State(_)
            | Request::Data(_)
            | Request::Outline(_)
            | Request::Evidence(_)
            | Request::InputBlocks(_) => {}
            _ => return SHORT_BYTES,
        }
        MESSAGE_BYTES
    }

    async fn handle(&self, peer: MemberId, request: Vec<u8>) -> Result<Vec<u8>, Unanswered> {
        let decoded: Request = decode(&request)?;
        // Blocks would be in memory twice for as long as the driver has them.
        drop(request);
        let role = self.role(&peer);
        match decoded {
            Request::Manifest => Ok(encode(&bytes(self.manifest.bytes(), Response::Manifest)?)),
            Request::Follow(follow) => self.news(role, &follow).await,
            Request::ResultBlocks(query) => {
                let (results, absent) = (self.results.clone(), "these results are not held here");
                self.work(role, move || results.answer(&query).ok_or_else(|| refused(absent))).await
            }
            Request::StateOffer => {
                let (offers, absent) = (self.offers.clone(), "no state can be fetched now");
                self.work(role, move || offers.newest().map(Response::State).ok_or_else(|| refused(absent)))
                    .await
            }
            // Whoever asks: newcomers are no members yet.
            Request::State(query) => {
                let offers = self.offers.clone();
                self.work(role, move || offers.piece(Asker::Anybody, &query).map(Response::Piece)).await
            }
            Request::Data(query) => {
                let dataset = self.dataset.clone();
                self.work(role, move || data(&dataset, &query)).await
            }
            Request::Outline(query) => {
                let dataset = self.dataset.clone();
                self.work(role, move || bytes(outline(&dataset, &query), Response::Bytes)).await
            }
            // Of a ban; no other evidence is kept here.
            Request::Evidence(name) => {
                let (home, absent) = (self.home.clone(), "no such evidence is held here");
                let evidence =
                    move || home.load_evidence(&name).map(Response::Evidence).map_err(|_| refused(absent));
                self.work(role, evidence).await
            }
            // CHAN-28: members alone.
            Request::Relay(key) => match role {
                Role::Member => {
                    let terms =
                        self.relay.admit(peer, key).ok_or_else(|| refused("the relay has no place left"))?;
                    Ok(encode(&Response::Relay(terms)))
                }
                Role::Stranger => Err(refused("only members have a place at the relay")),
            },
            Request::Enrol(_)
            | Request::Commit(_)
            | Request::PutBlocks(_)
            | Request::InputBlocks(_)
            | Request::Delivered(_)
            | Request::Checked(_)
            | Request::Notice(_)
            | Request::Accuse(_)
            | Request::CloseTree(_)
            | Request::Ask(_) => Ok(encode(&self.ask(peer, decoded).await?)),
        }
    }

    fn connected(&self, peer: MemberId) {
        self.presence.open(peer);
    }

    fn disconnected(&self, peer: MemberId) {
        self.presence.close(peer);
    }
}

impl Server {
    /// CHAN-17: an answer that is read from the disk, or is long, is made beside the threads of the network.
    async fn work(
        &self,
        role: Role,
        make: impl FnOnce() -> Result<Response, Unanswered> + Send + 'static,
    ) -> Result<Vec<u8>, Unanswered> {
        let made = self.turns.work(role, move || make().map(|response| encode(&response))).await;
        made.unwrap_or_else(|| Err(refused("this cannot be read")))
    }

    async fn news(&self, role: Role, follow: &Follow) -> Result<Vec<u8>, Unanswered> {
        let page = self.board.page(follow, role);
        let (board, quick) = (self.board.clone(), page.is_quick());
        let news = move || board.news(page).map(Response::News).map_err(|error| refused(&error.to_string()));
        if quick { Ok(encode(&news()?)) } else { self.work(role, news).await }
    }

    async fn ask(&self, peer: MemberId, request: Request) -> Result<Response, Unanswered> {
        let answered = self.asks.put(peer, request).await.ok_or(Unanswered::Stopping)?;
        answered.await.map_err(|_| Unanswered::Stopping)
    }
}

fn refused(why: &str) -> Unanswered {
    Unanswered::Refused(why.into())
}

fn data(dataset: &Dataset, query: &DataQuery) -> Result<Response, Unanswered> {
    bytes(held(dataset, query).ok_or_else(|| refused("these chunks cannot be read"))?, Response::Bytes)
}

fn bytes<const MAX: usize>(
    bytes: Vec<u8>,
    wrap: impl FnOnce(Bytes<MAX>) -> Response,
) -> Result<Response, Unanswered> {
    Bytes::new(bytes).map(wrap).map_err(|misuse| Unanswered::Refused(misuse.to_string()))
}
