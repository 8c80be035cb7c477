//! Who we are on the network: one identity in one run.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use muster_core::channel::Suite;
use muster_core::channel::certificate::Credentials;
use muster_core::ids::{MemberId, RunId};
use muster_core::lock::lock;
use muster_core::sign::Identity;
use zeroize::Zeroizing;

use crate::clock::{CERTIFICATE_SECONDS, now};
use crate::rate::{Rates, Valves};
use crate::ways::Punching;

/// How long a channel key is used: a signature for each connection would be work that strangers can ask for.
const KEY_LIFE: Duration = Duration::from_secs(300);

/// How long a peer may take.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// From dialling, or from being dialled, to the end of the handshake.
    pub handshake: Duration,
    /// From one message of the peer to the beginning of the next.
    pub idle: Duration,
    /// From the first to the last byte of one message, either way.
    pub message: Duration,
}

impl Default for Timeouts {
    /// 10 s, 120 s, and 120 s: the longest message at 35 KB/s.
    fn default() -> Self {
        Self {
            handshake: Duration::from_secs(10),
            idle: Duration::from_secs(120),
            message: Duration::from_secs(120),
        }
    }
}

/// An identity in a run, with its patience.
#[derive(Clone)]
pub struct Endpoint {
    run: RunId,
    identity: Arc<Identity>,
    pub(crate) timeouts: Timeouts,
    pub(crate) traffic: Arc<Traffic>,
    pub(crate) valves: Valves,
    /// The two ends of the newest channel that we dialled over TCP, by the member at the other one: only members that we
    /// expected have them, so that there are no more than a run has.
    ends: Arc<Mutex<BTreeMap<MemberId, Ends>>>,
    /// How members behind routers are reached.
    pub(crate) punching: Arc<Punching>,
    /// The channel key in use, and since when.
    key: Arc<Mutex<Option<ChannelKey>>>,
}

/// Our own address on a channel, and where it leads.
#[derive(Clone, Copy)]
struct Ends {
    own: IpAddr,
    there: SocketAddr,
}

/// The channel key of all connections of some minutes; there is none before the first one.
struct ChannelKey {
    since: Instant,
    /// The same in seconds since 1970.
    date: u64,
    credentials: Arc<Credentials>,
}

impl ChannelKey {
    /// CHAN-15: by the clock of the day as well. The other one stands still while a machine sleeps, and a certificate is void some
    /// time after the date that it was made at, whatever that date was.
    fn serves(&self, date: u64) -> bool {
        self.since.elapsed() < KEY_LIFE && self.date.abs_diff(date) < KEY_LIFE.as_secs()
    }
}

/// Bytes over all channels of an endpoint, encryption included, handshakes not.
#[derive(Default)]
pub(crate) struct Traffic {
    pub(crate) sent: AtomicU64,
    pub(crate) received: AtomicU64,
}

/// The way that a channel takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Line {
    /// From machine to machine.
    Direct,
    /// Through a relay: no direct way through both routers was found so far.
    Relayed,
}

impl Endpoint {
    /// An endpoint with the default timeouts.
    pub fn new(run: RunId, identity: Arc<Identity>) -> Self {
        let (traffic, valves, ends, punching, key) = Default::default();
        Self { run, identity, timeouts: Timeouts::default(), traffic, valves, ends, punching, key }
    }

    /// The same endpoint with other timeouts.
    #[must_use]
    pub fn with_timeouts(self, timeouts: Timeouts) -> Self {
        Self { timeouts, ..self }
    }

    /// The same endpoint, which sends and receives no more than this over all its channels; what was opened before is as it was.
    #[must_use]
    pub fn with_rates(self, rates: Rates) -> Self {
        Self { valves: Valves::new(rates), ..self }
    }

    /// The address of this machine from which a member was last reached: what that member, and whoever is on its network,
    /// can dial. None before a channel to it was opened.
    pub fn own_address(&self, towards: &MemberId) -> Option<IpAddr> {
        lock(&self.ends).get(towards).map(|ends| ends.own)
    }

    /// Where a member was last reached over TCP.
    pub(crate) fn address_of(&self, member: &MemberId) -> Option<SocketAddr> {
        lock(&self.ends).get(member).map(|ends| ends.there)
    }

    pub(crate) fn reached(&self, member: MemberId, own: IpAddr, there: SocketAddr) {
        let there = SocketAddr::new(there.ip().to_canonical(), there.port());
        lock(&self.ends).insert(member, Ends { own: own.to_canonical(), there });
    }

    /// The same endpoint that reaches nobody through routers: with it, it is asked how others are.
    pub(crate) fn without_punching(&self) -> Self {
        Self { punching: Arc::default(), ..self.clone() }
    }

    /// The way that the newest channel takes that was dialled at this address.
    pub fn line(&self, address: &str) -> Line {
        if self.punching.is_relayed(address) { Line::Relayed } else { Line::Direct }
    }

    /// Bytes sent so far over all channels of this endpoint and its clones, encryption included, handshakes not.
    pub fn bytes_sent(&self) -> u64 {
        self.traffic.sent.load(Ordering::Relaxed)
    }

    /// Bytes received so far, counted alike.
    pub fn bytes_received(&self) -> u64 {
        self.traffic.received.load(Ordering::Relaxed)
    }

    /// Bytes of others that the relay of this process has carried so far.
    pub fn bytes_relayed(&self) -> u64 {
        self.punching.own.get().and_then(|own| own.get()).map_or(0, |relay| relay.carried())
    }

    /// The member that peers see.
    pub fn id(&self) -> MemberId {
        self.identity.id()
    }

    /// CHAN-15: the channel key and its certificate, the same for some minutes. What a channel's messages are sealed with
    /// comes from ephemeral keys as well, which each connection has for itself.
    pub(crate) fn credentials(&self) -> io::Result<Arc<Credentials>> {
        self.credentials_at(now())
    }

    fn credentials_at(&self, date: u64) -> io::Result<Arc<Credentials>> {
        let mut key = lock(&self.key);
        if let Some(key) = key.as_ref().filter(|key| key.serves(date)) {
            return Ok(key.credentials.clone());
        }
        let expiry = date.saturating_add(CERTIFICATE_SECONDS);
        let credentials = Arc::new(Credentials::new(self.run, &self.identity, random()?, expiry));
        *key = Some(ChannelKey { since: Instant::now(), date, credentials: credentials.clone() });
        Ok(credentials)
    }
}

pub(crate) fn random() -> io::Result<Zeroizing<[u8; 32]>> {
    let mut bytes = Zeroizing::new([0; 32]);
    getrandom::fill(&mut *bytes).map_err(|error| io::Error::other(error.to_string()))?;
    Ok(bytes)
}

/// The suite that this processor runs fastest.
pub(crate) fn fastest_suite() -> Suite {
    // AES-GCM needs two kinds of instructions: AES itself, and carry-less products for its tag.
    #[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
    let has_aes =
        std::arch::is_x86_feature_detected!("aes") && std::arch::is_x86_feature_detected!("pclmulqdq");
    #[cfg(target_arch = "aarch64")]
    let has_aes =
        std::arch::is_aarch64_feature_detected!("aes") && std::arch::is_aarch64_feature_detected!("pmull");
    #[cfg(not(any(target_arch = "x86", target_arch = "x86_64", target_arch = "aarch64")))]
    let has_aes = false;
    if has_aes { Suite::AesGcm } else { Suite::ChaChaPoly }
}

#[cfg(test)]
mod tests {
    use muster_core::ids::Digest;

    use super::*;

    #[test]
    fn chan_15_a_channel_key_is_signed_once_for_many_connections() {
        let endpoint = Endpoint::new(RunId(Digest([1; 32])), Arc::new(Identity::from_secret(&[1; 32])));
        let first = endpoint.credentials().unwrap();
        assert!(Arc::ptr_eq(&first, &endpoint.clone().credentials().unwrap()));
        let long_ago = Instant::now().checked_sub(KEY_LIFE);
        if let (Some(long_ago), Some(key)) = (long_ago, lock(&endpoint.key).as_mut()) {
            key.since = long_ago;
        }
        assert_eq!(Arc::ptr_eq(&first, &endpoint.credentials().unwrap()), long_ago.is_none());
    }

    /// A laptop that was closed overnight, and one whose clock is set right after its start.
    #[test]
    fn chan_15_no_certificate_is_shown_that_the_date_has_voided() {
        let endpoint = Endpoint::new(RunId(Digest([1; 32])), Arc::new(Identity::from_secret(&[1; 32])));
        let first = endpoint.credentials_at(1_000_000).unwrap();
        assert!(Arc::ptr_eq(&first, &endpoint.credentials_at(1_000_299).unwrap()));
        for date in [1_000_000 + CERTIFICATE_SECONDS, 1_800_000_000, 0] {
            let other = endpoint.credentials_at(date).unwrap();
            assert!(!Arc::ptr_eq(&first, &other), "{date}");
        }
    }
}
