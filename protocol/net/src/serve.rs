//! Answering requests: each connection in a task of its own, one request at a time (CHAN-9).

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use muster_core::codec::encode;
use muster_core::error::Reject;
use muster_core::ids::MemberId;
use muster_core::limits;
use muster_core::messages::wire::Response;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time;
use tracing::{debug, error};

use crate::connection::{Connection, sending_bytes};
use crate::endpoint::Endpoint;
use crate::error::NetError;
use crate::listener::{Accept, Incoming};
use crate::seats::Activity;
use crate::shares::{Place, Role};

/// How long requests under way may still take after the shutdown.
const GRACE: Duration = Duration::from_secs(2);

/// Why a request has no answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Unanswered {
    /// It is declined; the peer is told why, by [`Response::Refused`].
    Refused(String),
    /// The server is stopping. The connection is closed without a word: a refusal would be final, and whoever asks tries a
    /// closed connection again.
    Stopping,
}

impl From<Reject> for Unanswered {
    fn from(reject: Reject) -> Self {
        Self::Refused(reject.to_string())
    }
}

/// Answers the requests of known peers.
pub trait Handler: Send + Sync + 'static {
    /// What a peer is now: it decides on its share. Asked for with each request, since newcomers become members, and members
    /// are banned. Must not wait.
    fn role(&self, peer: &MemberId) -> Role;

    /// Waits until there is something to answer a request with, as for a long poll, and gives the most bytes that the answer
    /// has. Nothing of anybody's share is held meanwhile.
    fn ready(&self, _request: &[u8]) -> impl Future<Output = usize> + Send {
        std::future::ready(limits::MESSAGE_BYTES)
    }

    /// Answers one request of `peer`, with at most [`limits::MESSAGE_BYTES`]. Is cancelled when the server stops. Called
    /// concurrently, but only once at a time for one connection. What takes longer than a millisecond runs elsewhere
    /// ([`crate::shares::Turns`]).
    fn handle(
        &self,
        peer: MemberId,
        request: Vec<u8>,
    ) -> impl Future<Output = Result<Vec<u8>, Unanswered>> + Send;

    /// A connection of `peer` was established; comes before its first request.
    fn connected(&self, _peer: MemberId) {}

    /// A connection of `peer` has ended; comes once for each [`Handler::connected`].
    fn disconnected(&self, _peer: MemberId) {}
}

/// Whoever asks is a member: where nobody knows members, nobody is a stranger.
impl<F, A> Handler for F
where
    F: Fn(MemberId, Vec<u8>) -> A + Send + Sync + 'static,
    A: Future<Output = Result<Vec<u8>, Unanswered>> + Send,
{
    fn role(&self, _peer: &MemberId) -> Role {
        Role::Member
    }

    fn handle(
        &self,
        peer: MemberId,
        request: Vec<u8>,
    ) -> impl Future<Output = Result<Vec<u8>, Unanswered>> + Send {
        self(peer, request)
    }
}

/// Serves until `shutdown` is ready; then lets the requests under way finish for two seconds and closes everything.
pub async fn serve<H: Handler>(
    listener: impl Accept,
    endpoint: Endpoint,
    handler: Arc<H>,
    shutdown: impl Future<Output = ()>,
) {
    let (running, stop) = watch::channel(());
    let mut connections = JoinSet::new();
    tokio::pin!(shutdown);
    loop {
        tokio::select! {
            incoming = listener.accept() => {
                let (endpoint, handler, stop) = (endpoint.clone(), handler.clone(), stop.clone());
                connections.spawn(async move {
                    if let Err(error) = answer(incoming, &endpoint, &*handler, stop).await {
                        debug!(%error, "connection ended");
                    }
                });
            }
            // Ended tasks leave the set at once: it would grow with every connection that was ever accepted.
            Some(ended) = connections.join_next() => {
                // A panic is our bug and costs the peer that met it its connection. The others stay.
                if let Err(error) = ended
                    && error.is_panic()
                {
                    error!(%error, "a handler panicked");
                }
            }
            () = &mut shutdown => break,
        }
    }
    // No new connection first, then no new request on the open ones; what is under way may still be answered.
    drop((listener, running));
    let finished = async { while connections.join_next().await.is_some() {} };
    if time::timeout(GRACE, finished).await.is_err() {
        connections.shutdown().await;
    }
}

/// Answers one connection until it ends, or until `stop` loses its sender between two requests, or its place is taken away.
async fn answer<H: Handler>(
    incoming: Incoming,
    endpoint: &Endpoint,
    handler: &H,
    stop: watch::Receiver<()>,
) -> Result<(), NetError> {
    let place = incoming.place();
    let served = async {
        match incoming.unless_relayed(endpoint).await? {
            Some(incoming) => greet(incoming, endpoint, &place, handler, stop).await,
            None => Ok(()),
        }
    };
    tokio::select! {
        ended = served => ended,
        () = place.taken_away() => Ok(()),
    }
}

/// Shakes hands, and answers what follows.
async fn greet<H: Handler>(
    incoming: Incoming,
    endpoint: &Endpoint,
    place: &Place,
    handler: &H,
    mut stop: watch::Receiver<()>,
) -> Result<(), NetError> {
    let connection = tokio::select! {
        connection = incoming.establish(endpoint) => connection?,
        _ = stop.changed() => return Ok(()),
    };
    let peer = connection.peer();
    place.greeted(peer, handler.role(&peer));
    // By its drop, since a panic or the shutdown ends this task at any await.
    let _presence = ConnectionGuard::new(handler, peer);
    converse(connection, place, handler, stop).await
}

/// Answers request after request, within the peer's share.
async fn converse<H: Handler>(
    mut connection: Connection,
    place: &Place,
    handler: &H,
    mut stop: watch::Receiver<()>,
) -> Result<(), NetError> {
    let peer = connection.peer();
    loop {
        let role = handler.role(&peer);
        // Idle, it is one of its kind already.
        if place.settle(peer, role).is_none() {
            return Ok(());
        }
        connection.suit(role);
        place.does(Activity::Idle);
        tokio::select! {
            begins = connection.begins() => begins?,
            _ = stop.changed() => return Ok(()),
        }
        // It may have become a member while it was idle.
        let role = handler.role(&peer);
        let Some(allowance) = place.settle(peer, role) else { return Ok(()) };
        let taken = tokio::select! {
            taken = connection.take(&allowance) => taken?,
            _ = stop.changed() => return Ok(()),
        };
        let (request, held) = taken;
        place.wait_for_pace(role).await;
        let most = sending_bytes(handler.ready(&request).await.min(limits::MESSAGE_BYTES));
        let mut room = place.room(&allowance, most).await;
        // Not before: whoever only waits for its turn may have to give way to others.
        place.does(Activity::Working);
        let Some(response) = response(handler.handle(peer, request).await) else { return Ok(()) };
        drop(held);
        if role == Role::Stranger {
            room.keep(sending_bytes(response.len()));
        }
        place.count_answer(role, response.len());
        place.does(Activity::Sending);
        connection.answer_with(&response, role, || place.does(Activity::Sending)).await?;
        // CHAN-17: whoever asks ahead is always ready to be answered; other tasks of this thread have their turn first.
        tokio::task::yield_now().await;
    }
}

/// Tells the handler of a connection while it lasts, however it ends.
struct ConnectionGuard<'a, H: Handler>(&'a H, MemberId);

impl<'a, H: Handler> ConnectionGuard<'a, H> {
    fn new(handler: &'a H, peer: MemberId) -> Self {
        handler.connected(peer);
        Self(handler, peer)
    }
}

impl<H: Handler> Drop for ConnectionGuard<'_, H> {
    fn drop(&mut self) {
        self.0.disconnected(self.1);
    }
}

/// What is sent; `None` when the connection is closed instead.
fn response(answer: Result<Vec<u8>, Unanswered>) -> Option<Vec<u8>> {
    let refused = |why: &str| encode(&Response::refused(why));
    match answer {
        // LIMIT-2: an answer over the limit is our mistake. The peer is told, and keeps its channel.
        Ok(answer) if answer.len() <= limits::MESSAGE_BYTES => Some(answer),
        Ok(answer) => {
            error!(bytes = answer.len(), "an answer over the limit");
            Some(refused("the answer is too long"))
        }
        Err(Unanswered::Refused(why)) => Some(refused(&why)),
        Err(Unanswered::Stopping) => None,
    }
}
