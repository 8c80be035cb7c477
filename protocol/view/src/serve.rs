//! The pages over HTTP.
//!
//! Read-only: GET and HEAD, no cookie, no form. Whoever can dial the address may look. What strangers could hold up is bounded:
//! connections, streams of news, the time for a request's head.

pub(crate) mod door;

use std::convert::Infallible;
use std::io::{self, Read};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::http::header::{self, HeaderMap};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Router};
use muster_core::limits::BUNDLE_BYTES;
use muster_net::capacity::Capacity;
use muster_store::regular;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_stream::wrappers::{ReceiverStream, WatchStream};
use tokio_stream::{Stream, StreamExt};

pub use self::door::Pages;
use self::door::{
    Door, Guest, PLAIN, Place, Places, Policy, busy, guarded, is_meant, refused, secured, stranger,
};
use crate::site::{Page, Purpose, Site};
use crate::view::View;

/// How long a connection lasts, whether or not its other end reads; a stream of news is dialled again by the browser.
const LONGEST: Duration = Duration::from_secs(300);
/// Pages made at once: what a run computes with must not be taken by those who look.
const MAKERS: usize = 2;
/// Bundles that are downloaded at once.
const DOWNLOADS: usize = 4;
/// Bytes of a piece of a download, and the time between two: what a run sends comes before those who look.
const PIECE: u64 = 64 << 10;
const PIECE_TIME: Duration = Duration::from_millis(16);
/// Between two news of one stream at least: a page is fetched again for each.
const NEWS: Duration = Duration::from_millis(500);

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
    downloads: Arc<Places>,
    /// Whether only this machine can dial it.
    local: bool,
}

/// Shows a run to browsers at an address, as long as the result is kept.
///
/// # Errors
/// In words: the address is no address of this machine, or is taken.
pub async fn serve(view: Arc<View>, address: &str) -> Result<Pages, String> {
    let door = Door::open("--web", address).await?;
    let server = Server {
        site: Arc::new(Site::new(view, Purpose::Live)),
        // One for each open page, which has other connections, too.
        streams: Arc::new(Semaphore::new(Capacity::of_process().web.div_ceil(2))),
        makers: Semaphore::new(MAKERS),
        downloads: Arc::new(Places::new(DOWNLOADS)),
        local: door.is_local(),
    };
    let router = Router::new().route("/events", get(events)).fallback(page).with_state(Arc::new(server));
    Ok(door.serve(router, LONGEST))
}

async fn page(
    State(server): State<Arc<Server>>,
    Extension(guest): Extension<Guest>,
    request: Request,
) -> Response {
    if let Some(refusal) = refused(server.local, &request) {
        return refusal;
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
        Ok((status, Page { kind, body })) => guarded(Policy::Reading, status, kind, body.to_vec()),
        Err(_) => guarded(Policy::Reading, StatusCode::INTERNAL_SERVER_ERROR, PLAIN, "This page failed.\n"),
    }
}

/// A file, piece by piece: one piece of it is in memory, however slowly somebody reads.
async fn sent(path: PathBuf, download: Place) -> Response {
    let opened = tokio::task::spawn_blocking(move || {
        let file = regular::open(&path, BUNDLE_BYTES).ok()?;
        Some((file.metadata().ok()?.len(), file))
    });
    let Ok(Some((length, mut file))) = opened.await else {
        return guarded(Policy::Reading, StatusCode::NOT_FOUND, PLAIN, "This bundle is gone.\n");
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
    let mut response = guarded(Policy::Reading, StatusCode::OK, "application/octet-stream", body);
    response.headers_mut().insert(header::CONTENT_LENGTH, length.into());
    response
}

async fn events(State(server): State<Arc<Server>>, headers: HeaderMap) -> Response {
    if server.local && !is_meant(&headers) {
        return stranger();
    }
    let Ok(permit) = server.streams.clone().try_acquire_owned() else {
        return busy("Too many pages are open; this one is updated when it is loaded again.\n");
    };
    let news =
        Sse::new(news(&server.site, permit)).keep_alive(KeepAlive::new().interval(Duration::from_secs(15)));
    secured(Policy::Reading, news.into_response())
}

fn news(site: &Site, permit: OwnedSemaphorePermit) -> impl Stream<Item = Result<Event, Infallible>> + use<> {
    let versions = WatchStream::new(site.view().news());
    versions.throttle(NEWS).map(move |version| {
        // Held as long as the stream.
        let _ = &permit;
        Ok(Event::default().retry(Duration::from_secs(1)).data(version.to_string()))
    })
}
