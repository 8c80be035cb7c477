//! A relay: where members meet that are behind routers, and what carries their bytes where no direct way is found. The steward has
//! one, and so has each member that others can dial ([`member`]).
//!
//! It shares the port of its process's channels: TLS begins with another byte than a channel. It serves members alone, each under
//! the one key that it has named over its channel (CHAN-28), and sees nothing but encrypted datagrams between keys.

mod governor;
pub mod member;
mod observer;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant};

pub use governor::Look;
use governor::{Governor, LOOK};
use hyper::Method;
use hyper::http::response::Builder;
use iroh::EndpointId;
use iroh_relay::KeyCache;
use iroh_relay::http::RELAY_PROBE_PATH;
use iroh_relay::server::http_server::{BytesBody, TlsConfig};
use iroh_relay::server::{
    Access, AccessControl, ClientRateLimit, ClientRequest, ConnectionId, Handlers, Metrics, RelayService,
};
use muster_core::codec::Bytes;
use muster_core::ids::{EndpointKey, MemberId};
use muster_core::lock::lock;
use muster_core::messages::wire::RelayTerms;
use observer::Observer;
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::net::TcpStream;
use tokio::time;
use tracing::warn;

use crate::capacity::Capacity;
use crate::error::{Cause, NetError};
use crate::shares::Shares;

/// The first byte of TLS, with which no channel begins.
pub(crate) const TLS: u8 = 0x16;
/// How long a stranger may take until the relay knows its key.
const GREETING: Duration = Duration::from_secs(10);
/// How long a place lasts after its member has asked for it last.
const LEASE: Duration = Duration::from_secs(180);
/// How often it is looked whose place is over.
const SWEEP: Duration = Duration::from_secs(30);
/// Connections of one member: one, and one that it has lost and nobody has noticed.
const CONNECTIONS: usize = 2;
/// What part of the connections that its process carries for channels these are.
const PART: usize = 4;
/// Keys whose curve points are remembered.
const KEYS: usize = 1024;

/// A relay, once it is opened.
pub(crate) type OpenedRelay = Arc<OnceLock<Arc<Relay>>>;

/// A relay for the members of one run.
pub struct Relay {
    service: RelayService,
    tls: TlsConfig,
    certificate: Vec<u8>,
    places: Arc<Places>,
    address: SocketAddr,
    observer: Option<Observer>,
    metrics: Arc<Metrics>,
}

impl Relay {
    /// A relay on the port of these channels, with a certificate of its own that lasts as long as this. Members learn from where they
    /// are seen on the same port of UDP, where it is free. It carries `line` bytes a second at most, each way, and says twice a
    /// second what it has carried.
    ///
    /// # Errors
    /// [`Cause::Punching`] where no certificate can be made.
    pub fn open(
        address: SocketAddr,
        shares: &Arc<Shares>,
        line: u64,
        tell: impl FnMut(Look) + Send + 'static,
    ) -> Result<Arc<Self>, NetError> {
        Self::open_for(address, shares, usize::MAX, line, tell)
    }

    /// The same for so many members at most.
    fn open_for(
        address: SocketAddr,
        shares: &Arc<Shares>,
        members: usize,
        line: u64,
        tell: impl FnMut(Look) + Send + 'static,
    ) -> Result<Arc<Self>, NetError> {
        let (tls, certificate) = certificate().map_err(|cause| NetError::new(&address.to_string(), cause))?;
        let observer = Observer::open(address, tls.clone(), shares.clone());
        if let Err(error) = &observer {
            warn!(
                "members behind routers do not learn here from where they are seen, and more of their bytes go through relays: \
                 UDP port {}: {error}",
                address.port()
            );
        }
        // CHAN-13: its connections are beside those of channels, of which they are a part at most.
        let most = Capacity::of_process().channel / CONNECTIONS / PART;
        let most = most.clamp(1, members);
        let (places, metrics) = (Arc::new(Places::new(most)), Arc::<Metrics>::default());
        let service = RelayService::new(
            handlers(),
            Default::default(),
            rate(line),
            KeyCache::new(KEYS),
            places.clone(),
            metrics.clone(),
        );
        let tls = TlsConfig::new(Arc::new(tls));
        let observer = observer.ok();
        let relay =
            Arc::new(Self { service, tls, certificate, places, address: own(address), observer, metrics });
        tokio::spawn(sweep(Arc::downgrade(&relay)));
        tokio::spawn(govern(Arc::downgrade(&relay), Governor::new(line), tell));
        Ok(relay)
    }

    /// Whether members learn here from where they are seen.
    fn observes(&self) -> bool {
        self.observer.is_some()
    }

    /// Where this machine itself reaches the relay.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// CHAN-28: a member has this key for the next minutes, and no other one any more; `None` where there is no place for it.
    pub fn admit(&self, member: MemberId, key: EndpointKey) -> Option<RelayTerms> {
        let now = Instant::now();
        let (taken, gone) = self.places.take(member, key, now);
        self.disconnect(&gone);
        taken.then(|| self.terms())
    }

    fn disconnect(&self, gone: &[EndpointKey]) {
        for gone in gone.iter().filter_map(|gone| EndpointId::from_bytes(&gone.0).ok()) {
            self.service.clients().disconnect(gone, None);
        }
    }

    /// The process of the relay itself has this key from now on.
    pub(crate) fn admit_own(&self, key: EndpointKey) -> RelayTerms {
        lock(&self.places.taken).own = Some(Place { key, until: None, open: Vec::new() });
        self.terms()
    }

    fn terms(&self) -> RelayTerms {
        let port = self.observer.as_ref().map_or(0, Observer::port);
        RelayTerms { certificate: Bytes::new(self.certificate.clone()).unwrap_or_default(), port }
    }

    /// Bytes that went through this relay so far.
    pub fn carried(&self) -> u64 {
        self.metrics.bytes_sent.get()
    }

    /// Greets whoever came by TLS; what goes on afterwards is the relay's own.
    pub(crate) async fn greet(&self, stream: TcpStream) {
        self.service.clone().handle_connection(stream, Some(self.tls.clone()), GREETING).await;
    }
}

impl Drop for Relay {
    /// What serves connections goes on by itself.
    fn drop(&mut self) {
        let keys: Vec<EndpointKey> = {
            let taken = lock(&self.places.taken);
            taken.members.values().chain(&taken.own).map(|place| place.key).collect()
        };
        self.disconnect(&keys);
    }
}

/// Keeps what a relay carries within its line for as long as it is there.
async fn govern(relay: Weak<Relay>, mut governor: Governor, mut tell: impl FnMut(Look)) {
    loop {
        time::sleep(LOOK).await;
        let Some(relay) = relay.upgrade() else { break };
        let (before, metrics) = (governor.limit(), &relay.metrics);
        tell(governor.look(metrics.bytes_recv.get(), metrics.bytes_sent.get()));
        if governor.limit() != before {
            relay.service.set_client_rate_limit(rate(governor.limit()));
        }
    }
}

/// So many bytes a second. At once a tenth of that may be brought, since each new bound begins with what may be brought at once.
fn rate(bytes: u64) -> Option<ClientRateLimit> {
    NonZeroU32::new(u32::try_from(bytes).unwrap_or(u32::MAX)).map(ClientRateLimit::new)
}

/// Ends the connections of those whose place is over, also where nobody asks for one any more.
async fn sweep(relay: Weak<Relay>) {
    loop {
        time::sleep(SWEEP).await;
        match relay.upgrade() {
            Some(relay) => relay.disconnect(&relay.places.clear(Instant::now())),
            None => break,
        }
    }
}

/// What the relay answers to requests that want no place: members find it by this one where no datagram gets through.
fn handlers() -> Handlers {
    let mut handlers = Handlers::default();
    let here = |_, answer: Builder| Ok(answer.body(Box::new(String::new()) as BytesBody)?);
    handlers.insert((Method::GET, RELAY_PROBE_PATH), Box::new(here));
    handlers
}

/// Who has a place.
#[derive(Debug)]
struct Places<C = ConnectionId> {
    /// How many members.
    most: usize,
    taken: Mutex<Taken<C>>,
}

#[derive(Debug)]
struct Taken<C> {
    members: BTreeMap<MemberId, Place<C>>,
    own: Option<Place<C>>,
}

#[derive(Debug)]
struct Place<C> {
    key: EndpointKey,
    /// Without an end for the process of the relay.
    until: Option<Instant>,
    /// Connections, by what the relay calls them.
    open: Vec<C>,
}

impl<C> Place<C> {
    fn lasts(&self, now: Instant) -> bool {
        self.until.is_none_or(|until| until > now)
    }
}

impl<C: PartialEq> Places<C> {
    fn new(most: usize) -> Self {
        Self { most, taken: Mutex::new(Taken { members: BTreeMap::new(), own: None }) }
    }

    /// The keys whose place is over.
    fn clear(&self, now: Instant) -> Vec<EndpointKey> {
        let mut taken = lock(&self.taken);
        taken.members.extract_if(.., |_, place| !place.lasts(now)).map(|(_, place)| place.key).collect()
    }

    /// Gives a member a place; whether it has it, and the keys that have lost theirs.
    fn take(&self, member: MemberId, key: EndpointKey, now: Instant) -> (bool, Vec<EndpointKey>) {
        let mut gone = self.clear(now);
        let mut taken = lock(&self.taken);
        let Taken { members, own } = &mut *taken;
        // A key is its member's that has named it first: to name another's is of no use, and takes nothing from it.
        let others = members.iter().filter(|(other, _)| **other != member).map(|(_, place)| place);
        let foreign = others.chain(own.as_ref()).any(|place| place.key == key);
        if foreign || (members.len() >= self.most && !members.contains_key(&member)) {
            return (false, gone);
        }
        let until = Some(now + LEASE);
        match members.get_mut(&member).filter(|place| place.key == key) {
            Some(place) => place.until = until,
            None => {
                gone.extend(members.insert(member, Place { key, until, open: Vec::new() }).map(|old| old.key))
            }
        }
        (true, gone)
    }

    fn enter(&self, key: EndpointKey, connection: C, now: Instant) -> bool {
        let mut taken = lock(&self.taken);
        let Taken { members, own } = &mut *taken;
        let place = members.values_mut().chain(own).find(|place| place.key == key);
        let place = place.filter(|place| place.lasts(now) && place.open.len() < CONNECTIONS);
        place.map(|place| place.open.push(connection)).is_some()
    }

    fn leave(&self, connection: C) {
        let mut taken = lock(&self.taken);
        let Taken { members, own } = &mut *taken;
        members.values_mut().chain(own).for_each(|place| place.open.retain(|open| *open != connection));
    }
}

impl AccessControl for Places {
    async fn on_connect(&self, request: &ClientRequest) -> Access {
        let key = EndpointKey(*request.endpoint_id().as_bytes());
        if self.enter(key, request.connection_id(), Instant::now()) {
            Access::Allow
        } else {
            Access::Deny { reason: Some("this key has no place here now".into()) }
        }
    }

    fn on_disconnect(&self, _key: EndpointId, connection: ConnectionId) {
        self.leave(connection);
    }
}

/// A certificate that nobody has signed: whoever needs it hears of it over a channel.
fn certificate() -> Result<(ServerConfig, Vec<u8>), Cause> {
    let failed = |error: &dyn std::fmt::Display| Cause::Punching(format!("no certificate: {error}"));
    let made =
        rcgen::generate_simple_self_signed(vec!["muster".to_owned()]).map_err(|error| failed(&error))?;
    let (certificate, key) = (made.cert.der().clone(), made.signing_key.serialize_der());
    let bytes = certificate.to_vec();
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key));
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|error| failed(&error))?
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .map_err(|error| failed(&error))?;
    Ok((config, bytes))
}

/// An address that is listened on, as this machine itself dials it.
fn own(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

#[cfg(test)]
mod tests;
