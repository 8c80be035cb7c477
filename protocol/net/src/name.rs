//! What relays are called, where they are, and what they show: as whoever has the relay has said over its channel (CHAN-28).
//!
//! A relay is called by its member's id. No name is looked up anywhere, and two relays behind one address are told apart.

use std::collections::BTreeMap;
use std::future::ready;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use iroh::dns::{BoxIter, DnsError, Resolver, TxtRecordData};
use muster_core::ids::{MemberId, hex};
use muster_core::lock::lock;
use muster_core::messages::wire::RelayTerms;

/// What a relay's name ends with: nobody has such a name, and nobody is asked for it.
const DOMAIN: &str = "relay.invalid";

/// A member that may have a relay: where its channels are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// Who.
    pub member: MemberId,
    /// Where it is dialled.
    pub at: SocketAddr,
}

/// A relay where there is a place, and what it said.
pub(crate) struct Meeting {
    pub(crate) relay: MemberId,
    pub(crate) at: SocketAddr,
    pub(crate) terms: RelayTerms,
}

impl Meeting {
    /// How it is dialled.
    pub(crate) fn url(&self) -> String {
        format!("https://{}:{}/", host(&self.relay), self.at.port())
    }
}

/// The name of a member's relay. A part of a name has at most 63 characters.
fn host(relay: &MemberId) -> String {
    let name = hex(&relay.0);
    let (start, end) = name.split_at(name.len() / 2);
    format!("{start}.{end}.{DOMAIN}")
}

/// The relays that this process uses. Other names mean nothing here: there are none in what it dials.
#[derive(Debug, Clone, Default)]
pub(crate) struct RelayNames(Arc<Mutex<BTreeMap<String, Known>>>);

#[derive(Debug, PartialEq, Eq)]
struct Known {
    at: IpAddr,
    certificate: Vec<u8>,
}

/// As the library wants it.
type Found<T> = std::pin::Pin<Box<dyn Future<Output = Result<BoxIter<T>, DnsError>> + Send>>;

impl RelayNames {
    /// A relay is there from now on, and has this certificate; whether that is new.
    pub(crate) fn know(&self, meeting: &Meeting) -> bool {
        let known = Known { at: meeting.at.ip(), certificate: meeting.terms.certificate.to_vec() };
        let mut names = lock(&self.0);
        let is_new = names.get(&host(&meeting.relay)) != Some(&known);
        names.insert(host(&meeting.relay), known);
        is_new
    }

    /// A relay is not used any more.
    pub(crate) fn forget(&self, relay: &MemberId) {
        lock(&self.0).remove(&host(relay));
    }

    /// Whether the relay of this name has this certificate.
    pub(crate) fn shows(&self, name: &str, certificate: &[u8]) -> bool {
        lock(&self.0).get(name.trim_end_matches('.')).is_some_and(|known| known.certificate == certificate)
    }

    fn found<T: Send + 'static>(&self, name: &str, of: impl Fn(IpAddr) -> Option<T>) -> Found<T> {
        let at = lock(&self.0).get(name.trim_end_matches('.')).map(|known| known.at);
        let found = at.and_then(of);
        Box::pin(ready(Ok(Box::new(found.into_iter()) as BoxIter<T>)))
    }
}

impl Resolver for RelayNames {
    fn lookup_ipv4(&self, host: String) -> Found<Ipv4Addr> {
        self.found(&host, |at| match at {
            IpAddr::V4(at) => Some(at),
            IpAddr::V6(_) => None,
        })
    }

    fn lookup_ipv6(&self, host: String) -> Found<Ipv6Addr> {
        self.found(&host, |at| match at {
            IpAddr::V4(_) => None,
            IpAddr::V6(at) => Some(at),
        })
    }

    fn lookup_txt(&self, _host: String) -> Found<TxtRecordData> {
        Box::pin(ready(Ok(Box::new(std::iter::empty()) as BoxIter<TxtRecordData>)))
    }

    fn clear_cache(&self) {}

    fn reset(&self) -> Box<dyn Resolver> {
        Box::new(self.clone())
    }
}
