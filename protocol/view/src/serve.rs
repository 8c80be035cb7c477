//! The pages over HTTP.
//!
//! Read-only: GET and HEAD, no cookie, no form. Whoever can dial the address may look. What strangers could hold up is bounded:
//! connections, streams of news, the time for a request's head.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io::{self, Read};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{self, HeaderMap, HeaderName, HeaderValue};
use axum::http::{Method, StatusCode};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Router};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use muster_core::limits::BUNDLE_BYTES;
use muster_core::lock::lock;
use muster_net::capacity::{Capacity, tell_unaccepted};
use muster_net::source::Source;
use muster_store::regular;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep, timeout};
use tokio_stream::wrappers::{ReceiverStream, WatchStream};
use tokio_stream::{Stream, StreamExt};

use crate::site::{Page, Purpose, Site};
use crate::view::View;

/// How long the head of a request may take.
const HEAD: Duration = Duration::from_secs(10);
/// How long a connection lasts, whether or not its other end reads; a stream of news is dialled again by the browser.
const LONGEST: Duration = Duration::from_secs(300);
/// Connections from one source, unless it is this machine.
const PER_SOURCE: usize = 24;
/// Pages made at once: what a run computes with must not be taken by those who look.
const MAKERS: usize = 2;
/// Bundles that are downloaded at once.
const DOWNLOADS: usize = 4;
/// Bytes of a piece of a download, and the time between two: what a run sends comes before those who look.
const PIECE: u64 = 64 << 10;
const PIECE_TIME: Duration = Duration::from_millis(16);
/// Between two news of one stream at least: a page is fetched again for each.
const NEWS: Duration = Duration::from_millis(500);

/// Everything comes from here, nothing is executed that is not a file of this program, and no other site may frame it.
const POLICY: &str = "default-src 'none'; img-src 'self'; style-src 'self'; script-src 'self'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Where to serve, as people write it; a port alone is one that only this machine can dial.
///
/// # Errors
/// In words: what is expected.
pub fn parse_address(text: &str) -> Result<String, String> {
    let address = if text.contains(':') { text.to_owned() } else { format!("127.0.0.1:{text}") };
    let port = address.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    if port { Ok(address) } else { Err("expected a port, or HOST:PORT".into()) }
}

struct Server {
    site: Arc<Site>,
    streams: Arc<Semaphore>,
    makers: Semaphore,
    downloads: Arc<Downloads>,
    /// Whether only this machine can dial it: then a name in `Host` must be this machine's, so that no page of another site can
    /// read it by a name that leads here (DNS rebinding).
    local: bool,
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

/// Shows a run to browsers at an address, as long as the result is kept.
///
/// # Errors
/// In words: the address is no address of this machine, or is taken.
pub async fn serve(view: Arc<View>, address: &str) -> Result<Pages, String> {
    let taken = |error: io::Error| {
        format!(
            "--web {address}: cannot be listened on ({error}); name a free port of this machine, or port 0"
        )
    };
    let listener = TcpListener::bind(address).await.map_err(taken)?;
    let bound = listener.local_addr().map_err(taken)?;
    let server = Server {
        site: Arc::new(Site::new(view, Purpose::Live)),
        // One for each open page, which has other connections, too.
        streams: Arc::new(Semaphore::new(Capacity::of_process().web.div_ceil(2))),
        makers: Semaphore::new(MAKERS),
        downloads: Arc::default(),
        local: bound.ip().is_loopback(),
    };
    let router = Router::new().route("/events", get(events)).fallback(page).with_state(Arc::new(server));
    let task = tokio::spawn(accept(listener, router)).abort_handle();
    Ok(Pages { url: format!("http://{bound}/"), task })
}

async fn accept(listener: TcpListener, router: Router) {
    // Dropped with this task, so that nobody is served any more when it ends.
    let mut connections = JoinSet::new();
    let mut guests = Guests { most: Capacity::of_process().web, open: Vec::new() };
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) => {
                    let (source, local) = (Source::of(peer.ip()), peer.ip().to_canonical().is_loopback());
                    if guests.admit(source, local) {
                        let task = connections.spawn(connection(stream, router.clone(), Guest { source, local }));
                        guests.open.push((source, task));
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
struct Guest {
    source: Source,
    /// Whether from this machine.
    local: bool,
}

/// Who downloads what is too long for one answer in memory.
#[derive(Default)]
struct Downloads(Mutex<Vec<Source>>);

/// A download, until it is dropped.
struct Download {
    all: Arc<Downloads>,
    source: Source,
}

impl Downloads {
    /// Room for one more, of which each source has one, unless it is this machine.
    fn begin(self: &Arc<Self>, guest: Guest) -> Option<Download> {
        let mut open = lock(&self.0);
        let twice = open.contains(&guest.source) && !guest.local;
        if twice || open.len() >= DOWNLOADS {
            return None;
        }
        open.push(guest.source);
        Some(Download { all: self.clone(), source: guest.source })
    }
}

impl Drop for Download {
    fn drop(&mut self) {
        let mut open = lock(&self.all.0);
        if let Some(place) = open.iter().position(|source| *source == self.source) {
            open.swap_remove(place);
        }
    }
}

async fn connection(stream: TcpStream, router: Router, guest: Guest) {
    let service = TowerToHyperService::new(router.layer(Extension(guest)));
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEAD);
    let served = builder.serve_connection(TokioIo::new(stream), service);
    if let Ok(Err(error)) = timeout(LONGEST, served).await {
        tracing::debug!("a connection ended: {error}");
    }
}

async fn page(
    State(server): State<Arc<Server>>,
    Extension(guest): Extension<Guest>,
    request: Request,
) -> Response {
    if !server.is_meant(request.headers()) {
        return stranger();
    }
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return guarded(
            StatusCode::METHOD_NOT_ALLOWED,
            "text/plain; charset=utf-8",
            "These pages are read-only.\n",
        );
    }
    let path = match request.uri().path().trim_start_matches('/') {
        "" => "index.html".to_owned(),
        path => path.to_owned(),
    };
    if let Some(file) = server.site.bundle(&path) {
        return match server.downloads.begin(guest) {
            Some(download) => sent(file, download).await,
            None => busy("Others are downloading, or you are; try again in a minute.\n"),
        };
    }
    let query = request.uri().query().unwrap_or_default().to_owned();
    let site = server.site.clone();
    // Never closed. Whoever waited for the same page finds it made.
    let _maker = server.makers.acquire().await;
    // Rendering takes milliseconds, and reads files: not on a thread that drives connections.
    let found = tokio::task::spawn_blocking(move || match site.page(&path, &query) {
        Some(page) => (StatusCode::OK, page),
        None => (StatusCode::NOT_FOUND, site.missing(&path)),
    });
    match found.await {
        Ok((status, Page { kind, body })) => guarded(status, kind, body.to_vec()),
        Err(_) => {
            guarded(StatusCode::INTERNAL_SERVER_ERROR, "text/plain; charset=utf-8", "This page failed.\n")
        }
    }
}

/// A file, piece by piece: one piece of it is in memory, however slowly somebody reads.
async fn sent(path: PathBuf, download: Download) -> Response {
    let opened = tokio::task::spawn_blocking(move || {
        let file = regular::open(&path, BUNDLE_BYTES).ok()?;
        Some((file.metadata().ok()?.len(), file))
    });
    let Ok(Some((length, mut file))) = opened.await else {
        return guarded(StatusCode::NOT_FOUND, "text/plain; charset=utf-8", "This bundle is gone.\n");
    };
    let (sender, pieces) = mpsc::channel::<io::Result<Vec<u8>>>(1);
    tokio::task::spawn_blocking(move || {
        let _download = download;
        let mut left = length;
        while left > 0 {
            let mut piece = vec![0; left.min(PIECE) as usize];
            left -= piece.len() as u64;
            let read = file.read_exact(&mut piece).map(|()| piece);
            let failed = read.is_err();
            // Nobody reads any more, or the file has become shorter.
            if sender.blocking_send(read).is_err() || failed {
                return;
            }
            thread::sleep(PIECE_TIME);
        }
    });
    let body = Body::from_stream(ReceiverStream::new(pieces));
    let mut response = guarded(StatusCode::OK, "application/octet-stream", body);
    response.headers_mut().insert(header::CONTENT_LENGTH, length.into());
    response
}

async fn events(State(server): State<Arc<Server>>, headers: HeaderMap) -> Response {
    if !server.is_meant(&headers) {
        return stranger();
    }
    let Ok(permit) = server.streams.clone().try_acquire_owned() else {
        return busy("Too many pages are open; this one is updated when it is loaded again.\n");
    };
    let news =
        Sse::new(news(&server.site, permit)).keep_alive(KeepAlive::new().interval(Duration::from_secs(15)));
    secured(news.into_response())
}

fn news(site: &Site, permit: OwnedSemaphorePermit) -> impl Stream<Item = Result<Event, Infallible>> + use<> {
    let versions = WatchStream::new(site.view().news());
    versions.throttle(NEWS).map(move |version| {
        // Held as long as the stream.
        let _ = &permit;
        Ok(Event::default().retry(Duration::from_secs(1)).data(version.to_string()))
    })
}

impl Server {
    /// Whether a request was meant for this server.
    fn is_meant(&self, headers: &HeaderMap) -> bool {
        if !self.local {
            return true;
        }
        let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
        let name = host
            .rsplit_once(':')
            .filter(|(_, port)| port.parse::<u16>().is_ok())
            .map_or(host, |(name, _)| name);
        let bare = name.trim_start_matches('[').trim_end_matches(']');
        name.eq_ignore_ascii_case("localhost") || bare.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
    }
}

fn stranger() -> Response {
    let text = "This page is for this machine alone; open it as http://localhost with its port.\n";
    guarded(StatusCode::MISDIRECTED_REQUEST, "text/plain; charset=utf-8", text)
}

fn busy(text: &'static str) -> Response {
    guarded(StatusCode::SERVICE_UNAVAILABLE, "text/plain; charset=utf-8", text)
}

fn guarded(status: StatusCode, kind: &'static str, body: impl Into<Body>) -> Response {
    let kind = [(header::CONTENT_TYPE, HeaderValue::from_static(kind))];
    secured((status, kind, body.into()).into_response())
}

fn secured(mut response: Response) -> Response {
    let headers: [(HeaderName, &'static str); 5] = [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
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
    fn a_source_has_one_download_and_all_have_a_few() {
        let (downloads, guest) = (Arc::<Downloads>::default(), |address: &str, local| Guest {
            source: Source::of(address.parse().unwrap()),
            local,
        });
        let first = downloads.begin(guest("10.0.0.1", false)).unwrap();
        assert!(downloads.begin(guest("10.0.0.1", false)).is_none());
        let _others: Vec<_> = (2..=DOWNLOADS)
            .map(|last| downloads.begin(guest(&format!("10.0.0.{last}"), false)).unwrap())
            .collect();
        assert!(downloads.begin(guest("10.0.0.9", false)).is_none(), "too many at once");
        drop(first);
        assert!(downloads.begin(guest("10.0.0.9", false)).is_some());
        assert!(downloads.begin(guest("127.0.0.1", true)).is_some());
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
