//! The name of a relay at an IPv6 address: iroh takes the brackets around such an address for a part of the name in TLS.

use std::future::ready;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use iroh::dns::{BoxIter, DnsError, Resolver, TxtRecordData};
use muster_core::lock::lock;

/// What stands for the relay: no name that anybody has, and nobody is asked for it.
const NAME: &str = "relay.invalid";

/// What [`NAME`] means now. Other names mean nothing here: there are none in what this process dials.
#[derive(Debug, Clone)]
pub(crate) struct RelayName(Arc<Mutex<IpAddr>>);

/// As the library wants it.
type Found<T> = std::pin::Pin<Box<dyn Future<Output = Result<BoxIter<T>, DnsError>> + Send>>;

impl RelayName {
    pub(crate) fn new(at: IpAddr) -> Self {
        Self(Arc::new(Mutex::new(at)))
    }

    /// The relay is there from now on; whether it was elsewhere.
    pub(crate) fn set(&self, at: IpAddr) -> bool {
        std::mem::replace(&mut *lock(&self.0), at) != at
    }

    /// How a relay at this address is written.
    pub(crate) fn url(at: SocketAddr) -> String {
        match at {
            SocketAddr::V4(at) => format!("https://{at}/"),
            SocketAddr::V6(at) => format!("https://{NAME}:{}/", at.port()),
        }
    }

    fn found<T: Send + 'static>(&self, host: &str, of: impl Fn(IpAddr) -> Option<T>) -> Found<T> {
        let at = *lock(&self.0);
        let found = (host.trim_end_matches('.') == NAME).then(|| of(at)).flatten();
        Box::pin(ready(Ok(Box::new(found.into_iter()) as BoxIter<T>)))
    }
}

impl Resolver for RelayName {
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
