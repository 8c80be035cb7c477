//! One request at a time to one peer.
//!
//! A request is a message. A response is a message whose last byte says what the rest is: [`GIVEN`] the answer,
//! [`DECLINED`] a reason in UTF-8. Responses come in the order of the requests.

use std::time::Duration;

use muster_core::ids::MemberId;
use muster_core::limits;
use tokio::time;

use crate::connection::Connection;
use crate::endpoint::Endpoint;
use crate::error::{Cause, NetError};

/// Last byte of a response that is an answer.
pub const GIVEN: u8 = 0;
/// Last byte of a response that is a reason for none.
pub const DECLINED: u8 = 1;
/// Longest answer.
pub const ANSWER_BYTES: usize = limits::MESSAGE_BYTES - 1;

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

    /// Who answers.
    pub fn peer(&self) -> MemberId {
        self.peer
    }

    /// Whether the next call can succeed. A call that failed, except by [`Cause::Declined`], or was cancelled leaves a
    /// client broken.
    pub fn is_usable(&self) -> bool {
        self.connection.is_some()
    }

    /// Sends a request and waits for its answer, for `patience` in all.
    ///
    /// # Errors
    /// [`Cause::Declined`] by the peer; [`Cause::Timeout`]; [`Cause::Own`] when the request is over the limit;
    /// [`Cause::Closed`], also on a broken client; [`Cause::Peer`].
    pub async fn call(&mut self, request: &[u8], patience: Duration) -> Result<Vec<u8>, NetError> {
        let failed = |cause| NetError { address: self.address.clone(), cause };
        let mut connection = self.connection.take().ok_or_else(|| failed(Cause::Closed))?;
        let exchange = async {
            connection.send(request).await?;
            connection.receive_within(patience).await
        };
        let response = time::timeout(patience, exchange).await;
        let mut response = response.unwrap_or_else(|_| Err(failed(Cause::Timeout("an answer"))))?;
        let kind = response.pop();
        if kind == Some(GIVEN) {
            self.connection = Some(connection);
            return Ok(response);
        }
        if kind == Some(DECLINED) && response.len() <= limits::TEXT_BYTES {
            self.connection = Some(connection);
            let reason = String::from_utf8_lossy(&response).replace(char::is_control, " ");
            return Err(failed(Cause::Declined(reason)));
        }
        Err(failed(muster_core::error::Reject::Malformed("the kind of a response".into()).into()))
    }
}
