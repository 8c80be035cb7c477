//! Channels to members that nobody can dial: through their routers, by hole punching (CHAN-27).
//!
//! Such a member is at `iroh:KEY` instead of at an IP address and a port. It keeps a connection to the steward's [`crate::relay`].
//! Whoever dials the key meets it there; both then look for a direct way, and go on over the relay where there is none. Whatever
//! the way, the Muster channel runs within, so that nothing rests on relay, key or way but that bytes arrive.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use iroh::dns::DnsResolver;
use iroh::endpoint::{
    Endpoint as Socket, Incoming, IncomingAddr, QuicTransportConfig, RelayStatus, VarInt,
    WeakConnectionHandle, presets,
};
use iroh::tls::CaTlsConfig;
use iroh::{EndpointAddr, EndpointId, RelayConfig, RelayMap, RelayMode, RelayUrl, SecretKey, Watcher};
use iroh_relay::RelayQuicConfig;
use muster_core::ids::{EndpointKey, hex, unhex};
use muster_core::lock::lock;
use muster_core::messages::wire::RelayTerms;
use tokio::runtime::Handle;
use tokio::sync::OnceCell;
use tokio::task::JoinHandle;
use tokio::time;

use crate::error::Cause;
use crate::name::RelayName;
use crate::pinned::Pinned;
use crate::source::Source;
use crate::wire::Wire;

/// What an address begins with that is no `host:port`.
const SCHEME: &str = "iroh:";
/// What is spoken within these connections.
const PROTOCOL: &[u8] = b"muster/1";
/// How long the relay may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long no way is opened after that failed.
const REST: Duration = Duration::from_secs(4);
/// Bytes of a stream that wait here to be read: CHAN-16 bounds what is read of it.
const WINDOW: u32 = 512 << 10;
/// Bytes of a stream that wait to arrive there.
const SENT: u64 = 2 << 20;
/// Addresses of a peer that are tried. A liar could name those of others.
const TRIED: u8 = 8;

/// The key in an address, if it is one of this kind.
pub(crate) fn key(address: &str) -> Option<EndpointKey> {
    address.strip_prefix(SCHEME).and_then(unhex).map(EndpointKey)
}

/// Whether an address is one of a member behind a router.
pub fn is_behind_router(address: &str) -> bool {
    key(address).is_some()
}

/// A way that is being opened.
pub(crate) type Opening = Pin<Box<dyn Future<Output = Result<Punch, Cause>> + Send>>;

/// How an endpoint reaches members behind routers: by a way that is opened when it is first needed.
#[derive(Default)]
pub(crate) struct Punching {
    opener: OnceLock<Box<dyn Fn() -> Opening + Send + Sync>>,
    way: OnceCell<Punch>,
    /// When it could not be opened last, and why.
    failed: Mutex<Option<(Instant, String)>>,
}

impl Punching {
    /// How the way is opened. The first one stays.
    pub(crate) fn open_by(&self, opener: impl Fn() -> Opening + Send + Sync + 'static) {
        let _ = self.opener.set(Box::new(opener));
    }

    /// Whether there can be a way.
    pub(crate) fn can_open(&self) -> bool {
        self.opener.get().is_some()
    }

    /// The way.
    pub(crate) async fn way(&self) -> Result<&Punch, Cause> {
        let opener = self.opener.get().ok_or_else(|| unmet("no steward is known yet"))?;
        let open = || async {
            // Whoever has no place would ask the steward again with each address of this kind.
            if let Some((_, why)) = lock(&self.failed).as_ref().filter(|(at, _)| at.elapsed() < REST) {
                return Err(unmet(why));
            }
            let opened = opener().await;
            *lock(&self.failed) = opened.as_ref().err().map(|why| (Instant::now(), why.to_string()));
            opened
        };
        self.way.get_or_try_init(open).await
    }

    /// Whether what goes to whoever is dialled at this address goes through the relay, because no direct way was found so far.
    pub(crate) fn is_relayed(&self, address: &str) -> bool {
        key(address).zip(self.way.get()).is_some_and(|(key, way)| way.is_relayed(key))
    }
}

/// One process's socket for such channels, and its place at the relay.
pub(crate) struct Punch {
    way: Way,
    /// Renews the place for as long as this lives.
    renewal: Option<JoinHandle<()>>,
    /// Sends away whoever dials a process that only dials.
    closed: Mutex<Option<JoinHandle<()>>>,
    /// The newest connection to each key that was dialled, as long as it is there.
    dialled: Mutex<BTreeMap<EndpointKey, WeakConnectionHandle>>,
}

impl Drop for Punch {
    fn drop(&mut self) {
        let closed = lock(&self.closed).take();
        self.renewal.iter().chain(&closed).for_each(JoinHandle::abort);
        let socket = self.way.socket.clone();
        // Peers hear that it is gone, where somebody is left to say so.
        if let Ok(tasks) = Handle::try_current() {
            tasks.spawn(async move { socket.close().await });
        }
    }
}

/// The socket, and where its relay is now.
#[derive(Clone)]
pub(crate) struct Way {
    socket: Socket,
    relay: Arc<Mutex<RelayUrl>>,
    name: RelayName,
    pinned: Arc<Pinned>,
}

/// Where the relay is, and what it said.
pub(crate) struct Meeting {
    pub(crate) at: SocketAddr,
    pub(crate) terms: RelayTerms,
}

impl Punch {
    /// A process that dials, and is dialled once [`Self::open_door`] says so. `renewal` keeps its place at the relay.
    pub(crate) fn new(way: Way, renewal: Option<JoinHandle<()>>) -> Self {
        let socket = way.socket.clone();
        let closed = tokio::spawn(async move {
            while let Some(incoming) = socket.accept().await {
                incoming.refuse();
            }
        });
        Self { way, renewal, closed: Mutex::new(Some(closed)), dialled: Mutex::default() }
    }

    /// From now on whoever dials is taken by [`Self::accept`].
    pub(crate) fn open_door(&self) {
        if let Some(closed) = lock(&self.closed).take() {
            closed.abort();
        }
    }

    /// A stream to whoever has this key.
    pub(crate) async fn dial(&self, key: EndpointKey) -> Result<Wire, Cause> {
        let to = EndpointId::from_bytes(&key.0).map_err(unmet)?;
        let to = EndpointAddr::new(to).with_relay_url(lock(&self.way.relay).clone());
        let connection = self.way.socket.connect(to, PROTOCOL).await.map_err(unmet)?;
        let (sending, receiving) = connection.open_bi().await.map_err(unmet)?;
        let mut dialled = lock(&self.dialled);
        dialled.retain(|_, connection| connection.upgrade().is_some());
        dialled.insert(key, connection.weak_handle());
        drop(dialled);
        Ok(Wire::of_quic(connection, sending, receiving))
    }

    fn is_relayed(&self, key: EndpointKey) -> bool {
        let connection = lock(&self.dialled).get(&key).and_then(WeakConnectionHandle::upgrade);
        connection.is_some_and(|connection| {
            connection.paths().iter().any(|path| path.is_selected() && path.is_relay())
        })
    }

    /// The next one that has dialled this process; `None` at the end.
    pub(crate) async fn accept(&self) -> Option<Arrival> {
        loop {
            let incoming = self.way.socket.accept().await?;
            let (source, address) = match incoming.remote_addr() {
                // CHAN-12: a datagram names any source. One that was sent back is believed.
                IncomingAddr::Ip(_) if !incoming.remote_addr_validated() => {
                    let _ = incoming.retry();
                    continue;
                }
                IncomingAddr::Ip(address) => (Source::of(address.ip()), address.to_string()),
                IncomingAddr::Relay { endpoint_id, .. } => (
                    Source::behind(endpoint_id.as_bytes()),
                    format!("{SCHEME}{}", hex(endpoint_id.as_bytes())),
                ),
                _ => {
                    incoming.ignore();
                    continue;
                }
            };
            return Some(Arrival { incoming, source, address });
        }
    }

    /// This process's address, once its relay is there.
    pub(crate) async fn address(&self) -> Result<String, Cause> {
        let online = time::timeout(PATIENCE, self.way.socket.online());
        online.await.map_err(|_| unmet("the steward's relay does not answer"))?;
        Ok(format!("{SCHEME}{}", hex(self.way.socket.id().as_bytes())))
    }
}

/// Somebody who has dialled, before anything is done for it.
pub(crate) struct Arrival {
    incoming: Incoming,
    pub(crate) source: Source,
    pub(crate) address: String,
}

impl Arrival {
    /// Its stream.
    pub(crate) async fn wire(self) -> Result<Wire, Cause> {
        let connection = self.incoming.accept().map_err(unmet)?.await.map_err(unmet)?;
        let (sending, receiving) = connection.accept_bi().await.map_err(unmet)?;
        Ok(Wire::of_quic(connection, sending, receiving))
    }

    /// There is no place for it.
    pub(crate) fn refuse(self) {
        self.incoming.refuse();
    }
}

impl Way {
    /// Under this key, at this relay.
    pub(crate) async fn open(secret: SecretKey, meeting: Meeting) -> Result<Self, Cause> {
        let relay = url(meeting.at)?;
        let pinned = Arc::new(Pinned::new(meeting.terms.certificate.to_vec()));
        let verifier = pinned.clone();
        let trust = CaTlsConfig::custom_server_cert_verifier(Arc::new(move |_| Ok(verifier.clone())));
        let relays = RelayMap::from_iter([config(&relay, meeting.terms.port)]);
        let name = RelayName::new(meeting.at.ip());
        let socket = Socket::builder(presets::Minimal)
            .secret_key(secret)
            .relay_mode(RelayMode::Custom(relays))
            .ca_tls_config(trust)
            .dns_resolver(DnsResolver::custom(name.clone()))
            .alpns(vec![PROTOCOL.to_vec()])
            .transport_config(transport())
            .bind();
        Ok(Self { socket: socket.await.map_err(unmet)?, relay: Arc::new(Mutex::new(relay)), name, pinned })
    }

    /// The relay is there now, and has this certificate.
    pub(crate) async fn moved(&self, meeting: Meeting) -> Result<(), Cause> {
        let (relay, before) = (url(meeting.at)?, lock(&self.relay).clone());
        let anew = self.pinned.set(meeting.terms.certificate.to_vec()) | self.name.set(meeting.at.ip());
        if anew || relay != before {
            self.socket.remove_relay(&before).await;
            self.socket.insert_relay(relay.clone(), config(&relay, meeting.terms.port).into()).await;
            *lock(&self.relay) = relay;
        }
        Ok(())
    }

    /// Whether the relay is there.
    pub(crate) fn is_connected(&self) -> bool {
        self.socket.home_relay_status().get().iter().any(RelayStatus::is_connected)
    }
}

/// The relay shares the port of the steward's channels.
fn url(at: SocketAddr) -> Result<RelayUrl, Cause> {
    RelayName::url(at).parse().map_err(unmet)
}

fn config(relay: &RelayUrl, port: u16) -> RelayConfig {
    RelayConfig::new(relay.clone(), (port != 0).then(|| RelayQuicConfig::new(port)))
}

/// A connection has one stream, and what waits in it is bounded.
fn transport() -> QuicTransportConfig {
    QuicTransportConfig::builder()
        .max_concurrent_bidi_streams(VarInt::from_u32(1))
        .max_concurrent_uni_streams(VarInt::from_u32(0))
        .datagram_receive_buffer_size(None)
        .stream_receive_window(VarInt::from_u32(WINDOW))
        .receive_window(VarInt::from_u32(WINDOW))
        .send_window(SENT)
        .max_remote_nat_traversal_addresses(TRIED)
        .build()
}

pub(crate) fn unmet(why: impl Display) -> Cause {
    Cause::Punching(why.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chan_27_only_whole_keys_are_addresses() {
        let whole = format!("{SCHEME}{}", hex(&[7; 32]));
        assert_eq!(key(&whole), Some(EndpointKey([7; 32])));
        for wrong in ["iroh:", "iroh:07", "127.0.0.1:7", &whole[1..], &format!("{whole}0")] {
            assert_eq!(key(wrong), None, "{wrong}");
        }
    }
}
