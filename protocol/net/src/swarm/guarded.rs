//! The transport of a swarm: connections that are metered, and dials that the book allows.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use libp2p::core::muxing::StreamMuxerBox;
use libp2p::core::transport::{Boxed, DialOpts, ListenerId, TransportError, TransportEvent};
use libp2p::core::upgrade::Version;
use libp2p::core::{ConnectedPoint, Transport};
use libp2p::futures::FutureExt;
use libp2p::futures::future::BoxFuture;
use libp2p::identity::Keypair;
use libp2p::{Multiaddr, PeerId, noise, tcp};

use super::accounts::Remote;
use super::address;
use super::book::{Book, Refused};
use super::rules::Rules;
use super::throttle::Metered;

/// How long opening a connection may take, either way.
const OPENING: Duration = Duration::from_secs(10);

type Opened = (PeerId, StreamMuxerBox);

/// A transport over TCP for one member.
pub(super) fn transport(keypair: &Keypair, rules: &Rules) -> Result<Boxed<Opened>, noise::Error> {
    let (accounts, book) = (rules.accounts.clone(), rules.book.clone());
    let metered = move |peer: &PeerId, point: &ConnectedPoint| {
        let remote = Remote::new(peer, address::ip(point.get_remote_address()));
        Metered { accounts, remote }
    };
    let inner = tcp::tokio::Transport::new(tcp::Config::default().nodelay(true))
        .upgrade(Version::V1Lazy)
        .authenticate(noise::Config::new(keypair)?)
        .multiplex_ext(metered)
        .timeout(OPENING)
        .boxed();
    Ok(Guarded { inner, book }.boxed())
}

/// Dials nothing that the book does not allow.
struct Guarded {
    inner: Boxed<Opened>,
    book: Arc<Book>,
}

impl Guarded {
    fn allow(&self, address: &Multiaddr) -> Result<SocketAddr, io::Error> {
        let refused = |why| io::Error::new(io::ErrorKind::PermissionDenied, why);
        let target = address::socket(address).ok_or_else(|| refused("not an address of TCP"))?;
        self.book.dial(target, Instant::now()).map(|()| target).map_err(|why| match why {
            Refused::Unknown => refused("only a stranger names this address"),
            Refused::Resting => refused("this address was dialled too often"),
        })
    }
}

impl Transport for Guarded {
    type Output = Opened;
    type Error = io::Error;
    type ListenerUpgrade = <Boxed<Opened> as Transport>::ListenerUpgrade;
    type Dial = BoxFuture<'static, io::Result<Opened>>;

    fn listen_on(&mut self, id: ListenerId, address: Multiaddr) -> Result<(), TransportError<io::Error>> {
        self.inner.listen_on(id, address)
    }

    fn remove_listener(&mut self, id: ListenerId) -> bool {
        self.inner.remove_listener(id)
    }

    fn dial(
        &mut self,
        address: Multiaddr,
        options: DialOpts,
    ) -> Result<Self::Dial, TransportError<io::Error>> {
        let target = self.allow(&address).map_err(TransportError::Other)?;
        let (dialled, book) = (self.inner.dial(address, options)?, self.book.clone());
        let told = async move {
            let opened = dialled.await?;
            book.reached(target, Instant::now());
            Ok(opened)
        };
        Ok(told.boxed())
    }

    fn poll(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<TransportEvent<Self::ListenerUpgrade, io::Error>> {
        Pin::new(&mut self.inner).poll(cx)
    }
}
