//! One request at a time to one peer. Responses come in the order of the requests (CHAN-9).

use std::time::Duration;

use muster_core::ids::MemberId;
use tokio::time;

use crate::connection::Connection;
use crate::endpoint::Endpoint;
use crate::error::{Cause, NetError};

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

    /// Sends a request and waits for its answer, for `patience` in all.
    ///
    /// # Errors
    /// [`Cause::Timeout`]; [`Cause::Own`] when the request is over the limit; [`Cause::Closed`], also on a broken client;
    /// [`Cause::Peer`].
    pub async fn call(&mut self, request: &[u8], patience: Duration) -> Result<Vec<u8>, NetError> {
        let failed = |cause| NetError { address: self.address.clone(), cause };
        let mut connection = self.connection.take().ok_or_else(|| failed(Cause::Closed))?;
        let exchange = async {
            connection.send(request).await?;
            connection.receive_within(patience).await
        };
        let response = time::timeout(patience, exchange).await;
        let response = response.unwrap_or_else(|_| Err(failed(Cause::Timeout("an answer"))))?;
        self.connection = Some(connection);
        Ok(response)
    }
}
