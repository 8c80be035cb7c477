//! Requests to one peer. Responses come in the order of the requests (CHAN-9).

use std::time::{Duration, Instant};

use muster_core::ids::MemberId;
use tokio::time;

use crate::bypass::Bypassed;
use crate::connection::Connection;
use crate::endpoint::Endpoint;
use crate::error::{Cause, NetError};

/// Requests of a series that are under way at once: their answers, of some 200 kB as a rule, fill a line of 100 Mbit/s over 100 ms.
const AHEAD: usize = 8;

/// How long an answer may take that comes over a relay of a member, where nobody waits for it any longer.
const SLOW: Duration = Duration::from_secs(4);

/// A connection on which we ask.
pub struct Client {
    peer: MemberId,
    address: String,
    /// Taken while a request is under way, so that an answer which nobody waits for never meets the next request.
    connection: Option<Connection>,
}

impl Client {
    /// Connects to `host:port` and shakes hands, with `expected` or with whoever answers.
    ///
    /// # Errors
    /// As [`Connection::dial`].
    pub async fn dial(
        address: &str,
        endpoint: &Endpoint,
        expected: Option<MemberId>,
    ) -> Result<Self, NetError> {
        let connection = Connection::dial(address, endpoint, expected).await?;
        Ok(Self { peer: connection.peer(), address: address.to_owned(), connection: Some(connection) })
    }

    /// The member that answers.
    pub fn peer(&self) -> MemberId {
        self.peer
    }

    /// Whether the next call can succeed. A call that failed or was cancelled leaves a client broken.
    pub fn is_usable(&self) -> bool {
        self.connection.is_some()
    }

    /// Whether the same peer is reached past the steward's relay now, if it is dialled anew. No call is under way.
    pub(crate) fn may_go_past_steward(&self, endpoint: &Endpoint) -> bool {
        let straight = self.connection.as_ref().is_some_and(|connection| connection.bypassed().is_none());
        straight && endpoint.punching.may_go_past_steward(&self.address)
    }

    /// Sends a request, for `patience` at most, and waits as long for its answer.
    ///
    /// # Errors
    /// [`Cause::Timeout`]; [`Cause::Own`] when the request is over the limit; [`Cause::Closed`], also on a broken client;
    /// [`Cause::Peer`].
    pub async fn call(&mut self, request: &[u8], patience: Duration) -> Result<Vec<u8>, NetError> {
        let mut answer = Vec::new();
        let take = |given| {
            answer = given;
            true
        };
        self.call_each(std::iter::once(request), patience, take).await?;
        Ok(answer)
    }

    /// Sends one request after the other, not waiting for the answer to the one before, and gives the answers on in their
    /// order, until one is not taken. The peer has `patience` for each. Long requests want short answers: whoever sends one
    /// reads nothing.
    ///
    /// # Errors
    /// As [`Client::call`].
    pub async fn call_each(
        &mut self,
        requests: impl Iterator<Item = impl AsRef<[u8]>>,
        patience: Duration,
        mut take: impl FnMut(Vec<u8>) -> bool,
    ) -> Result<(), NetError> {
        let failed = |cause| NetError { address: self.address.clone(), cause };
        let late = |_| failed(Cause::Timeout("an answer"));
        let mut connection = self.connection.take().ok_or_else(|| failed(Cause::Closed))?;
        let mut wait = Wait { over: connection.bypassed().cloned(), since: Instant::now() };
        // After its end it is asked again, whenever there is room for one more.
        let mut requests = requests.fuse();
        let mut waiting = 0;
        loop {
            let next = if waiting < AHEAD { requests.next() } else { None };
            if let Some(request) = next {
                time::timeout(patience, connection.send(request.as_ref())).await.map_err(late)??;
                waiting += 1;
                continue;
            }
            if waiting == 0 {
                break;
            }
            let answer =
                time::timeout(patience, connection.receive_within(patience)).await.map_err(late)??;
            waiting -= 1;
            if !take(answer) {
                break;
            }
        }
        // All were answered, or one was not wanted.
        wait.over = None;
        // With answers that nobody waits for, it would be of no further use.
        self.connection = (waiting == 0).then_some(connection);
        Ok(())
    }
}

/// For answers, over relays of members where there is something.
struct Wait {
    over: Option<Bypassed>,
    since: Instant,
}

impl Drop for Wait {
    /// CHAN-29: whoever waited for long, and does so no longer, did so for a relay that carries too little, as far as anybody can tell.
    fn drop(&mut self) {
        if let Some(bypassed) = self.over.take().filter(|_| self.since.elapsed() >= SLOW) {
            bypassed.disappoints();
        }
    }
}
