//! Being dialled: a bounded number of connections, in total and from one source.

use std::future::Future;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use muster_core::channel::FULL;
use tokio::net::{TcpListener, TcpStream};
use tokio::time;
use tracing::debug;

use crate::capacity::{is_shortage, tell_unaccepted};
use crate::connection::Connection;
use crate::endpoint::Endpoint;
use crate::error::NetError;
use crate::punch::Arrival;
use crate::relay::member::MemberRelay;
use crate::relay::{OpenedRelay, Relay, TLS};
use crate::seats::ConnectionLimit;
use crate::shares::{Place, Shares};
use crate::source::Source;
use crate::wire::Wire;

/// How long accepting pauses when the operating system has no socket left.
const PAUSE: Duration = Duration::from_millis(100);
/// How long a process waits that has no way through its router.
const UNMET: Duration = Duration::from_secs(1);
/// How long a connection takes to end that has lost its seat.
const MOMENT: Duration = Duration::from_millis(5);

/// A listening socket.
pub struct Listener {
    socket: TcpListener,
    address: SocketAddr,
    shares: Arc<Shares>,
    relay: OpenedRelay,
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
        Ok(Self { socket, address: local, shares, relay: OpenedRelay::default() })
    }

    /// The same, on whose port a relay is as well.
    #[must_use]
    pub fn with_relay(self, relay: Arc<Relay>) -> Self {
        Self { relay: Arc::new(OnceLock::from(relay)), ..self }
    }

    /// The same with a relay that is opened when the first member asks for it.
    #[must_use]
    pub fn with_member_relay(self, relay: &MemberRelay) -> Self {
        Self { relay: relay.opened(), ..self }
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
                    Some(place) => {
                        let route = Route::Tcp(stream, self.relay.get().cloned());
                        return Incoming { route, address: address.to_string(), place };
                    }
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

/// Whoever dials this process through routers, with the shares of its ports.
pub struct PunchedListener {
    endpoint: Endpoint,
    shares: Arc<Shares>,
}

impl PunchedListener {
    /// At [`Endpoint::address_behind_router`].
    pub fn new(endpoint: Endpoint, shares: Arc<Shares>) -> Self {
        Self { endpoint, shares }
    }

    async fn accept(&self) -> Incoming {
        loop {
            let Ok(ways) = self.endpoint.punching.ways().await else {
                time::sleep(UNMET).await;
                continue;
            };
            // It ends with its process.
            let Some(arrival) = ways.accept().await else { return std::future::pending().await };
            match self.shares.admit(arrival.source) {
                Some(place) => {
                    let address = arrival.address.clone();
                    return Incoming { route: Route::Punched(arrival), address, place };
                }
                None => arrival.refuse(),
            }
        }
    }
}

/// What gives connections that were dialled from elsewhere.
pub trait Accept: Send + 'static {
    /// The next one that gets a seat. Cancelling this loses nothing.
    fn accept(&self) -> impl Future<Output = Incoming> + Send;
}

impl Accept for Listener {
    fn accept(&self) -> impl Future<Output = Incoming> + Send {
        Self::accept(self)
    }
}

impl Accept for PunchedListener {
    fn accept(&self) -> impl Future<Output = Incoming> + Send {
        Self::accept(self)
    }
}

/// How somebody came.
enum Route {
    Tcp(TcpStream, Option<Arc<Relay>>),
    Punched(Arrival),
}

/// A connection before its handshake.
pub struct Incoming {
    place: Place,
    address: String,
    route: Route,
}

impl Incoming {
    /// Gives whoever speaks TLS to the relay, which greets it; none is left then. What goes on afterwards is the relay's own.
    pub(crate) async fn unless_relayed(self, endpoint: &Endpoint) -> Result<Option<Self>, NetError> {
        let Route::Tcp(stream, Some(relay)) = &self.route else { return Ok(Some(self)) };
        let first = time::timeout(endpoint.timeouts.handshake, begins_with(stream, TLS)).await;
        let first = first.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        if !first.map_err(|error| NetError::new(&self.address, error))? {
            return Ok(Some(self));
        }
        let relay = relay.clone();
        if let Route::Tcp(stream, _) = self.route {
            // With the place, until it is known who that is.
            let _place = self.place;
            relay.greet(stream).await;
        }
        Ok(None)
    }

    /// Shakes hands with whoever dialled. Belongs into a task of its own: the peer may take its time.
    ///
    /// # Errors
    /// [`crate::error::Cause::Timeout`], [`crate::error::Cause::Handshake`], [`crate::error::Cause::Closed`].
    pub async fn establish(self, endpoint: &Endpoint) -> Result<Connection, NetError> {
        let route = self.route;
        let wire = async {
            match route {
                Route::Tcp(stream, _) => Ok(Wire::of_tcp(stream)?),
                Route::Punched(arrival) => arrival.wire().await,
            }
        };
        Connection::answer(wire, endpoint, &self.address, self.place).await
    }

    pub(crate) fn place(&self) -> Place {
        self.place.clone()
    }
}

/// Whether the first byte is this one, which stays to be read.
async fn begins_with(stream: &TcpStream, byte: u8) -> io::Result<bool> {
    let mut first = [0];
    Ok(stream.peek(&mut first).await? == 1 && first == [byte])
}
