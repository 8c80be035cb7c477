//! Tells members from where they are seen: the address that a router gives their datagrams (CHAN-28).

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use iroh_relay::quic::ALPN_QUIC_ADDR_DISC;
use muster_core::lock::lock;
use noq::crypto::rustls::QuicServerConfig;
use noq::{Endpoint, Incoming, TransportConfig, VarInt};
use rustls::ServerConfig;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time;

use crate::shares::Shares;
use crate::source::Source;

/// Who is told at once, in all and from one source.
const CONNECTIONS: usize = 1024;
const PER_SOURCE: usize = 16;
/// A part of them is for sources from which no member has come lately.
const STRANGERS: usize = CONNECTIONS / 4;
/// How long somebody is told of changes.
const LONGEST: Duration = Duration::from_secs(600);

/// A port of UDP.
pub(super) struct Observer {
    port: u16,
    serving: JoinHandle<()>,
}

impl Drop for Observer {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Observer {
    pub(super) fn open(address: SocketAddr, mut tls: ServerConfig, shares: Arc<Shares>) -> io::Result<Self> {
        tls.alpn_protocols = vec![ALPN_QUIC_ADDR_DISC.to_vec()];
        let tls = QuicServerConfig::try_from(tls).map_err(io::Error::other)?;
        let mut transport = TransportConfig::default();
        // Nothing is carried: the reports are frames of the connection itself.
        transport.max_concurrent_uni_streams(VarInt::from_u32(0));
        transport.max_concurrent_bidi_streams(VarInt::from_u32(0));
        transport.datagram_receive_buffer_size(None);
        transport.send_observed_address_reports(true);
        let mut config = noq::ServerConfig::with_crypto(Arc::new(tls));
        config.transport_config(Arc::new(transport));
        let endpoint = Endpoint::server(config, address)?;
        let port = endpoint.local_addr()?.port();
        Ok(Self { port, serving: tokio::spawn(serve(endpoint, shares)) })
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }
}

async fn serve(endpoint: Endpoint, shares: Arc<Shares>) {
    let (mut told, crowd) = (JoinSet::new(), Arc::<Mutex<Crowd>>::default());
    loop {
        tokio::select! {
            incoming = endpoint.accept() => match incoming {
                Some(incoming) => {
                    let source = Source::of(incoming.remote_address().ip());
                    // A datagram names any source. One that was sent back is believed.
                    if !incoming.remote_address_validated() {
                        let _ = incoming.retry();
                    } else if let Some(place) = Crowd::enter(&crowd, source, shares.knows_source(source)) {
                        told.spawn(tell(incoming, place));
                    } else {
                        incoming.ignore();
                    }
                }
                // The endpoint is closed.
                None => break,
            },
            Some(_) = told.join_next() => {}
        }
    }
}

async fn tell(incoming: Incoming, _place: Place) {
    let told = async {
        if let Ok(connection) = incoming.await {
            connection.closed().await;
        }
    };
    let _ = time::timeout(LONGEST, told).await;
}

/// Who is told now.
#[derive(Default)]
struct Crowd {
    sources: BTreeMap<Source, usize>,
    all: usize,
    strangers: usize,
}

/// A place in it.
struct Place {
    crowd: Arc<Mutex<Crowd>>,
    source: Source,
    known: bool,
}

impl Crowd {
    fn enter(crowd: &Arc<Mutex<Self>>, source: Source, known: bool) -> Option<Place> {
        let mut here = lock(crowd);
        let of_source = here.sources.get(&source).copied().unwrap_or_default();
        if of_source >= PER_SOURCE || here.all >= CONNECTIONS || (!known && here.strangers >= STRANGERS) {
            return None;
        }
        *here.sources.entry(source).or_default() += 1;
        here.all += 1;
        here.strangers += usize::from(!known);
        Some(Place { crowd: crowd.clone(), source, known })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut here = lock(&self.crowd);
        here.all -= 1;
        here.strangers -= usize::from(!self.known);
        if let Some(count) = here.sources.get_mut(&self.source) {
            *count -= 1;
            if *count == 0 {
                here.sources.remove(&self.source);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chan_28_strangers_keep_no_member_from_hearing_where_it_is_seen() {
        let crowd = Arc::<Mutex<Crowd>>::default();
        let source = |number: usize| {
            let [.., high, low] = number.to_be_bytes();
            Source::of(std::net::Ipv4Addr::new(10, 0, high, low).into())
        };
        let one: Vec<_> = (0..100).filter_map(|_| Crowd::enter(&crowd, source(0), false)).collect();
        assert_eq!(one.len(), PER_SOURCE);
        let all: Vec<_> =
            (1..2000).filter_map(|number| Crowd::enter(&crowd, source(number), false)).collect();
        assert_eq!(one.len() + all.len(), STRANGERS);
        assert!(Crowd::enter(&crowd, source(3000), true).is_some());
        drop((one, all));
        assert!(lock(&crowd).sources.is_empty() && lock(&crowd).all == 0);
    }
}
