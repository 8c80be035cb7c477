//! Where browsers come in: a listener that is shared fairly, and what every answer says of itself.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::Request;
use axum::http::header::{self, HeaderMap, HeaderName, HeaderValue};
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Router};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use muster_core::lock::lock;
use muster_net::capacity::{Capacity, tell_unaccepted};
use muster_net::source::Source;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep, timeout};

/// How long the head of a request may take.
const HEAD: Duration = Duration::from_secs(10);
/// How long a port is waited for that is in use, and how often it is tried.
const FREED: Duration = Duration::from_secs(2);
const AGAIN: Duration = Duration::from_millis(100);
/// Connections from one source, unless it is this machine.
const PER_SOURCE: usize = 24;
/// The kind of what is said in words.
pub(crate) const PLAIN: &str = "text/plain; charset=utf-8";

/// What a page may do. Everything comes from here, nothing is executed that is not a file of this program, and no other site may
/// frame it.
#[derive(Clone, Copy)]
pub(crate) enum Policy {
    /// It is read.
    Reading,
    /// Its form asks something of this program.
    Asking,
}

impl Policy {
    fn words(self) -> &'static str {
        match self {
            Self::Reading => {
                "default-src 'none'; img-src 'self'; style-src 'self'; script-src 'self'; connect-src 'self'; \
                 base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
            }
            Self::Asking => {
                "default-src 'none'; img-src 'self'; style-src 'self'; script-src 'self'; connect-src 'self'; \
                 base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
            }
        }
    }

    /// A form of a page without a referrer has no origin either, and would be taken for one of another site.
    fn referrer(self) -> &'static str {
        match self {
            Self::Reading => "no-referrer",
            Self::Asking => "same-origin",
        }
    }
}

/// Pages that are being served; not any more once this is dropped.
pub struct Pages {
    /// What to open in a browser.
    pub url: String,
    task: AbortHandle,
}

impl Drop for Pages {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// An address that is listened on.
pub(crate) struct Door {
    listener: TcpListener,
    url: String,
    local: bool,
}

impl Door {
    /// Listens on an address, as this option of the command line says.
    ///
    /// # Errors
    /// In words: the address is no address of this machine, or is taken.
    pub(crate) async fn open(option: &str, address: &str) -> Result<Self, String> {
        let taken = |error: io::Error| {
            format!(
                "{option} {address}: cannot be listened on ({error}); name a free port of this machine, or port 0"
            )
        };
        let began = Instant::now();
        let listener = loop {
            match TcpListener::bind(address).await {
                // Pages that this program has just closed: the system frees their port soon.
                Err(error) if error.kind() == ErrorKind::AddrInUse && began.elapsed() < FREED => {
                    sleep(AGAIN).await;
                }
                listener => break listener.map_err(taken)?,
            }
        };
        let bound = listener.local_addr().map_err(taken)?;
        Ok(Self { listener, url: format!("http://{bound}/"), local: bound.ip().is_loopback() })
    }

    /// Whether only this machine can dial it.
    pub(crate) fn is_local(&self) -> bool {
        self.local
    }

    /// Serves until the result is dropped; a connection lasts no longer than this, whether or not its other end reads.
    pub(crate) fn serve(self, router: Router, longest: Duration) -> Pages {
        let Self { listener, url, .. } = self;
        Pages { url, task: tokio::spawn(accept(listener, router, longest)).abort_handle() }
    }
}

async fn accept(listener: TcpListener, router: Router, longest: Duration) {
    // Dropped with this task, so that nobody is served any more when it ends.
    let mut connections = JoinSet::new();
    let mut guests = Guests { most: Capacity::of_process().web, open: Vec::new() };
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) => {
                    let guest = Guest { source: Source::of(peer.ip()), local: peer.ip().to_canonical().is_loopback() };
                    if guests.admit(guest.source, guest.local) {
                        let task = connections.spawn(connection(stream, router.clone(), guest, longest));
                        guests.open.push((guest.source, task));
                    }
                }
                Err(error) => {
                    tell_unaccepted(&error);
                    sleep(Duration::from_millis(100)).await;
                }
            },
            // Ended tasks leave the set at once.
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn connection(stream: TcpStream, router: Router, guest: Guest, longest: Duration) {
    let service = TowerToHyperService::new(router.layer(Extension(guest)));
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEAD);
    let served = builder.serve_connection(TokioIo::new(stream), service);
    if let Ok(Err(error)) = timeout(longest, served).await {
        tracing::debug!("a connection ended: {error}");
    }
}

/// The connections that are open, the oldest first.
struct Guests {
    /// CHAN-13: the files of the run come before those who look.
    most: usize,
    open: Vec<(Source, AbortHandle)>,
}

impl Guests {
    /// Whether there is room for one more from a source, counted as on the channel's ports (CHAN-12). Where all places are
    /// taken, the oldest connection of the source that has most gives way, unless that is this one.
    fn admit(&mut self, source: Source, local: bool) -> bool {
        self.open.retain(|(_, task)| !task.is_finished());
        let mut by_source: BTreeMap<Source, usize> = BTreeMap::new();
        for (source, _) in &self.open {
            *by_source.entry(*source).or_default() += 1;
        }
        let here = by_source.get(&source).copied().unwrap_or_default();
        if here >= PER_SOURCE && !local {
            return false;
        }
        if self.open.len() < self.most {
            return true;
        }
        let crowded = by_source.into_iter().max_by_key(|(_, count)| *count);
        let Some((crowded, _)) = crowded.filter(|(_, count)| *count > here + 1) else { return false };
        let oldest = self.open.iter().position(|(source, _)| *source == crowded);
        oldest.map(|oldest| self.open.remove(oldest).1.abort()).is_some()
    }
}

/// Who has a connection.
#[derive(Clone, Copy)]
pub(crate) struct Guest {
    source: Source,
    /// Whether from this machine.
    local: bool,
}

/// Whether a request was meant for a server that only this machine can dial: its name in `Host` must be this machine's, so that no
/// page of another site can read it by a name that leads here (DNS rebinding).
pub(crate) fn is_meant(headers: &HeaderMap) -> bool {
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let name =
        host.rsplit_once(':').filter(|(_, port)| port.parse::<u16>().is_ok()).map_or(host, |(name, _)| name);
    let bare = name.trim_start_matches('[').trim_end_matches(']');
    name.eq_ignore_ascii_case("localhost") || bare.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// The answer to a request that was not.
pub(crate) fn stranger() -> Response {
    let text = "This page is for this machine alone; open it as http://localhost with its port.\n";
    guarded(Policy::Reading, StatusCode::MISDIRECTED_REQUEST, PLAIN, text)
}

/// What whoever only reads is told where a request was not meant for this server, or wants to change something.
pub(crate) fn refused(local: bool, request: &Request) -> Option<Response> {
    if local && !is_meant(request.headers()) {
        return Some(stranger());
    }
    let text = "There is nothing to change here.\n";
    let reads = matches!(*request.method(), Method::GET | Method::HEAD);
    (!reads).then(|| guarded(Policy::Reading, StatusCode::METHOD_NOT_ALLOWED, PLAIN, text))
}

/// So many places for what takes long, of which each source has one, unless it is this machine.
pub(crate) struct Places {
    most: usize,
    taken: Mutex<Vec<Source>>,
}

/// A place, until it is dropped.
pub(crate) struct Place {
    of: Arc<Places>,
    source: Source,
}

impl Places {
    /// So many, all free.
    pub(crate) fn new(most: usize) -> Self {
        Self { most, taken: Mutex::default() }
    }

    /// A place for somebody, if there is one.
    pub(crate) fn begin(self: &Arc<Self>, guest: Guest) -> Option<Place> {
        let mut taken = lock(&self.taken);
        let twice = taken.contains(&guest.source) && !guest.local;
        if twice || taken.len() >= self.most {
            return None;
        }
        taken.push(guest.source);
        Some(Place { of: self.clone(), source: guest.source })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = lock(&self.of.taken);
        if let Some(place) = taken.iter().position(|source| *source == self.source) {
            taken.swap_remove(place);
        }
    }
}

/// The answer to who comes when all places are taken.
pub(crate) fn busy(text: &'static str) -> Response {
    guarded(Policy::Reading, StatusCode::SERVICE_UNAVAILABLE, PLAIN, text)
}

/// An answer that says what browsers may do with it.
pub(crate) fn guarded(
    policy: Policy,
    status: StatusCode,
    kind: &'static str,
    body: impl Into<Body>,
) -> Response {
    let kind = [(header::CONTENT_TYPE, HeaderValue::from_static(kind))];
    secured(policy, (status, kind, body.into()).into_response())
}

/// The same of an answer that was made elsewhere.
pub(crate) fn secured(policy: Policy, mut response: Response) -> Response {
    let headers: [(HeaderName, &'static str); 5] = [
        (header::CONTENT_SECURITY_POLICY, policy.words()),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, policy.referrer()),
        (header::CACHE_CONTROL, "no-cache"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ];
    for (name, value) in headers {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn chan_12_no_source_takes_all_places_of_browsers() {
        let mut guests = Guests { most: 8, open: Vec::new() };
        let source = |address: &str| Source::of(address.parse().unwrap());
        let mut come = |from: &str| {
            let admitted = guests.admit(source(from), false);
            if admitted {
                guests.open.push((source(from), tokio::spawn(std::future::pending::<()>()).abort_handle()));
            }
            admitted
        };
        // One network of IPv6, from address after address.
        assert_eq!((0..100).filter(|last| come(&format!("2001:db8::{last:x}"))).count(), 8);
        assert!(come("10.0.0.1") && come("10.0.0.1") && come("10.0.0.2"));
        assert!(!come("2001:db8::1"));
        assert_eq!(guests.open.iter().filter(|(from, _)| *from == source("2001:db8::1")).count(), 5);
    }

    #[test]
    fn a_source_has_one_place_and_all_have_a_few() {
        let places = Arc::new(Places::new(4));
        let guest = |address: &str, local| Guest { source: Source::of(address.parse().unwrap()), local };
        let first = places.begin(guest("10.0.0.1", false)).unwrap();
        assert!(places.begin(guest("10.0.0.1", false)).is_none());
        let others = (2..=4).map(|last| places.begin(guest(&format!("10.0.0.{last}"), false)).unwrap());
        let _others: Vec<_> = others.collect();
        assert!(places.begin(guest("10.0.0.9", false)).is_none(), "too many at once");
        drop(first);
        assert!(places.begin(guest("10.0.0.9", false)).is_some());
        let here = || places.begin(guest("127.0.0.1", true));
        assert!(here().is_some());
    }

    #[tokio::test]
    async fn chan_12_a_source_has_so_many_connections_unless_it_is_this_machine() {
        for local in [false, true] {
            let mut guests = Guests { most: 1000, open: Vec::new() };
            let source = Source::of("192.0.2.1".parse().unwrap());
            let mut admitted = 0;
            while admitted < 100 && guests.admit(source, local) {
                guests.open.push((source, tokio::spawn(std::future::pending::<()>()).abort_handle()));
                admitted += 1;
            }
            assert_eq!(admitted, if local { 100 } else { PER_SOURCE });
            assert!(guests.admit(Source::of("192.0.2.2".parse().unwrap()), false), "another source");
        }
    }
}
