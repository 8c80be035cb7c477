//! Channels to members that nobody can dial: through their routers, by hole punching (CHAN-27).
//!
//! Such a member is at `iroh:KEY` instead of at an IP address and a port. It keeps a connection to a [`crate::relay`].
//! Whoever dials the key meets it there; both then look for a direct way, and go on over the relay where there is none. Whatever
//! the way, the Muster channel runs within, so that nothing rests on relay, key or way but that bytes arrive.
//!
//! Here is one socket for such channels. Which of them a dial goes through `ways.rs` says.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use iroh::dns::DnsResolver;
use iroh::endpoint::{
    Builder, Endpoint as Socket, Incoming, IncomingAddr, QuicTransportConfig, VarInt, WeakConnectionHandle,
    presets,
};
use iroh::tls::CaTlsConfig;
use iroh::{EndpointAddr, EndpointId, RelayConfig, RelayMap, RelayMode, RelayUrl, SecretKey, Watcher};
use iroh_relay::RelayQuicConfig;
use muster_core::ids::{EndpointKey, MemberId, hex, unhex};
use muster_core::lock::lock;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time;

use crate::error::Cause;
use crate::name::{Meeting, RelayNames};
use crate::pinned::Pinned;
use crate::source::Source;
use crate::wire::Wire;

/// What an address begins with that is no `host:port`.
const SCHEME: &str = "iroh:";
/// What is spoken within these connections.
pub(crate) const PROTOCOL: &[u8] = b"muster/1";
/// How often a relay is told that its services are still needed.
pub(crate) const RENEWAL: Duration = Duration::from_secs(60);
/// How soon after that failed: whoever has the relay may have started anew, and know nobody.
pub(crate) const AGAIN: Duration = Duration::from_secs(5);
/// How long the relay may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);
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

/// The socket, and the relay at which others meet it.
#[derive(Clone)]
pub(crate) struct Way {
    socket: Socket,
    home: Arc<Mutex<RelayUrl>>,
    names: RelayNames,
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

    /// The socket.
    pub(crate) fn way(&self) -> &Way {
        &self.way
    }

    /// A stream to whoever has this key, at the relay of this socket.
    pub(crate) async fn dial(&self, key: EndpointKey) -> Result<Wire, Cause> {
        let home = lock(&self.way.home).clone();
        Ok(self.dial_over(key, [home]).await?.0)
    }

    /// The same at whichever of these relays it is.
    pub(crate) async fn dial_over(
        &self,
        key: EndpointKey,
        relays: impl IntoIterator<Item = RelayUrl>,
    ) -> Result<(Wire, WeakConnectionHandle), Cause> {
        let to = EndpointId::from_bytes(&key.0).map_err(unmet)?;
        let to = relays.into_iter().fold(EndpointAddr::new(to), EndpointAddr::with_relay_url);
        let connection = self.way.socket.connect(to, PROTOCOL).await.map_err(unmet)?;
        let (sending, receiving) = connection.open_bi().await.map_err(unmet)?;
        let mut dialled = lock(&self.dialled);
        dialled.retain(|_, connection| connection.upgrade().is_some());
        dialled.insert(key, connection.weak_handle());
        drop(dialled);
        let weak = connection.weak_handle();
        Ok((Wire::of_quic(connection, sending, receiving), weak))
    }

    /// Whether the newest connection to a key that was dialled goes through a relay.
    pub(crate) fn is_relayed(&self, key: &EndpointKey) -> bool {
        let connection = lock(&self.dialled).get(key).and_then(WeakConnectionHandle::upgrade);
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
        online.await.map_err(|_| unmet("the relay does not answer"))?;
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
    pub(crate) async fn open(secret: SecretKey, meeting: &Meeting) -> Result<Self, Cause> {
        let (home, names) = (url(meeting)?, RelayNames::default());
        let socket = builder(secret, meeting, &names)?.bind();
        Ok(Self { socket: socket.await.map_err(unmet)?, home: Arc::new(Mutex::new(home)), names })
    }

    /// Others meet this socket at this relay from now on, which is there, and has this certificate.
    pub(crate) async fn moved(&self, meeting: &Meeting) -> Result<(), Cause> {
        let (home, before) = (url(meeting)?, lock(&self.home).clone());
        if self.names.know(meeting) || home != before {
            self.socket.remove_relay(&before).await;
            self.socket.insert_relay(home.clone(), config(&home, meeting).into()).await;
            *lock(&self.home) = home;
        }
        Ok(())
    }

    /// A relay that others may be dialled over.
    pub(crate) fn know(&self, meeting: &Meeting) -> Result<RelayUrl, Cause> {
        self.names.know(meeting);
        url(meeting)
    }

    /// Nobody is dialled over this relay any more.
    pub(crate) fn forget(&self, relay: &MemberId) {
        self.names.forget(relay);
    }

    /// Whether the relay is there.
    pub(crate) fn is_connected(&self) -> bool {
        let home = lock(&self.home).clone();
        self.socket
            .home_relay_status()
            .get()
            .iter()
            .any(|status| *status.url() == home && status.is_connected())
    }

    /// The addresses of this machine, and those from which others have seen it.
    pub(crate) fn seen(&self) -> BTreeSet<IpAddr> {
        self.socket.addr().ip_addrs().map(|address| address.ip()).collect()
    }
}

/// A socket that takes of the relays of these names their own certificates alone, and is met at this one.
pub(crate) fn builder(secret: SecretKey, meeting: &Meeting, names: &RelayNames) -> Result<Builder, Cause> {
    names.know(meeting);
    let verifier = Arc::new(Pinned::new(names.clone()));
    let trust = CaTlsConfig::custom_server_cert_verifier(Arc::new(move |_| Ok(verifier.clone())));
    let relays = RelayMap::from_iter([config(&url(meeting)?, meeting)]);
    Ok(Socket::builder(presets::Minimal)
        .secret_key(secret)
        .relay_mode(RelayMode::Custom(relays))
        .ca_tls_config(trust)
        .dns_resolver(DnsResolver::custom(names.clone()))
        .alpns(vec![PROTOCOL.to_vec()])
        .transport_config(transport()))
}

/// A relay shares the port of its process's channels.
pub(crate) fn url(meeting: &Meeting) -> Result<RelayUrl, Cause> {
    meeting.url().parse().map_err(unmet)
}

fn config(relay: &RelayUrl, meeting: &Meeting) -> RelayConfig {
    let port = meeting.terms.port;
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
