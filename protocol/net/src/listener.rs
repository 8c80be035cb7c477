//! Being dialled: a bounded number of connections, in total and from one source.

use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use muster_core::channel::FULL;
use tokio::net::{TcpListener, TcpStream};
use tokio::time;
use tracing::debug;

use crate::capacity::{is_shortage, tell_unaccepted};
use crate::connection::Connection;
use crate::endpoint::Endpoint;
use crate::error::NetError;
use crate::seats::ConnectionLimit;
use crate::shares::{Place, Shares};
use crate::source::Source;

/// How long accepting pauses when the operating system has no socket left.
const PAUSE: Duration = Duration::from_millis(100);
/// How long a connection takes to end that has lost its seat.
const MOMENT: Duration = Duration::from_millis(5);

/// A listening socket.
pub struct Listener {
    socket: TcpListener,
    address: SocketAddr,
    shares: Arc<Shares>,
}

impl Listener {
    /// Listens on `host:port`, with shares of its own; port 0 takes a free one.
    ///
    /// # Errors
    /// As [`Self::bind_with`].
    pub async fn bind(address: &str, admission: ConnectionLimit) -> Result<Self, NetError> {
        Self::bind_with(address, Shares::new(admission)).await
    }

    /// Listens on `host:port`; port 0 takes a free one. All ports of one process have the same shares.
    ///
    /// # Errors
    /// [`crate::error::Cause::System`] when the address is not ours or its port is busy.
    pub async fn bind_with(address: &str, shares: Arc<Shares>) -> Result<Self, NetError> {
        let bound = async {
            let socket = TcpListener::bind(address).await?;
            socket.local_addr().map(|local| (socket, local))
        };
        let (socket, local) = bound.await.map_err(|error| NetError::new(address, error))?;
        Ok(Self { socket, address: local, shares })
    }

    /// Where it listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Waits for the next connection that gets a seat. A connection without one is told so and closed at once. Cancelling
    /// this loses nothing.
    pub async fn accept(&self) -> Incoming {
        loop {
            match self.socket.accept().await {
                Ok((stream, address)) => match self.shares.admit(Source::of(address.ip())) {
                    Some(place) => return Incoming { stream, address: address.to_string(), place },
                    None => {
                        debug!(%address, "no seat left, connection closed");
                        turn_away(stream);
                    }
                },
                Err(error) => {
                    tell_unaccepted(&error);
                    // CHAN-13: a member may be waiting for the descriptor of a stranger.
                    let relieved = is_shortage(&error) && self.shares.relieve();
                    // Without a pause this loop would spin for as long as no socket is free, or take more seats than it needs
                    // before the first one is free.
                    time::sleep(if relieved { MOMENT } else { PAUSE }).await;
                }
            }
        }
    }
}

/// CHAN-12: tells the dialler why, as far as a new connection takes it without waiting.
fn turn_away(stream: TcpStream) {
    if let Ok(mut stream) = stream.into_std() {
        // A broken connection alone would not tell members behind one router whom to ask for more. The socket
        // never waits: a buffer that is full loses the word.
        let _ = stream.write(&FULL);
    }
}

/// A connection before its handshake.
pub struct Incoming {
    place: Place,
    address: String,
    stream: TcpStream,
}

impl Incoming {
    /// Shakes hands with whoever dialled. Belongs into a task of its own: the peer may take its time.
    ///
    /// # Errors
    /// [`crate::error::Cause::Timeout`], [`crate::error::Cause::Handshake`], [`crate::error::Cause::Closed`].
    pub async fn establish(self, endpoint: &Endpoint) -> Result<Connection, NetError> {
        Connection::answer(self.stream, endpoint, &self.address, self.place).await
    }

    pub(crate) fn place(&self) -> Place {
        self.place.clone()
    }
}
