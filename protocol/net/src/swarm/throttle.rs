//! Connections that are read no faster than their peer may bring.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use libp2p::core::upgrade::{InboundConnectionUpgrade, OutboundConnectionUpgrade, UpgradeInfo};
use libp2p::futures::{AsyncRead, AsyncWrite};
use libp2p::yamux;
use tokio::time::{Sleep, sleep};

use super::accounts::{Accounts, Remote};

/// Bytes read at once at most: what is over an allowance by then.
const PIECE: usize = 16 << 10;
/// Streams of one connection.
const STREAMS: usize = 128;

/// Multiplexes a connection that is read as its peer's account allows.
#[derive(Clone)]
pub(super) struct Metered {
    /// The accounts of the swarm.
    pub(super) accounts: Arc<Accounts>,
    /// The other end.
    pub(super) remote: Remote,
}

impl Metered {
    fn yamux() -> yamux::Config {
        let mut config = yamux::Config::default();
        config.set_max_num_streams(STREAMS);
        config
    }

    fn over<C>(self, inner: C) -> Throttled<C> {
        Throttled { inner, meter: self, pause: None }
    }
}

impl UpgradeInfo for Metered {
    type Info = &'static str;
    type InfoIter = std::iter::Once<Self::Info>;

    fn protocol_info(&self) -> Self::InfoIter {
        Self::yamux().protocol_info()
    }
}

type Muxed<C> = yamux::Muxer<Throttled<C>>;

impl<C: AsyncRead + AsyncWrite + Send + Unpin + 'static> InboundConnectionUpgrade<C> for Metered {
    type Output = Muxed<C>;
    type Error = io::Error;
    type Future = libp2p::futures::future::Ready<Result<Self::Output, Self::Error>>;

    fn upgrade_inbound(self, io: C, info: Self::Info) -> Self::Future {
        Self::yamux().upgrade_inbound(self.over(io), info)
    }
}

impl<C: AsyncRead + AsyncWrite + Send + Unpin + 'static> OutboundConnectionUpgrade<C> for Metered {
    type Output = Muxed<C>;
    type Error = io::Error;
    type Future = libp2p::futures::future::Ready<Result<Self::Output, Self::Error>>;

    fn upgrade_outbound(self, io: C, info: Self::Info) -> Self::Future {
        Self::yamux().upgrade_outbound(self.over(io), info)
    }
}

/// A connection that waits where its peer's account is empty.
pub(super) struct Throttled<C> {
    inner: C,
    meter: Metered,
    pause: Option<Pin<Box<Sleep>>>,
}

impl<C: AsyncRead + Unpin> AsyncRead for Throttled<C> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        let Metered { accounts, remote } = &this.meter;
        // CHAN-22: before anything is read, decoded or checked; what is not read stays with the peer's own system.
        while let Some(wait) = accounts.wait(remote, Instant::now()) {
            let pause = this.pause.get_or_insert_with(|| Box::pin(sleep(wait)));
            ready!(pause.as_mut().poll(cx));
            this.pause = None;
        }
        let most = buffer.len().min(PIECE);
        let read = ready!(Pin::new(&mut this.inner).poll_read(cx, &mut buffer[..most]))?;
        accounts.read(remote, read, Instant::now());
        Poll::Ready(Ok(read))
    }
}

impl<C: AsyncWrite + Unpin> AsyncWrite for Throttled<C> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, buffer)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_close(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use libp2p::PeerId;
    use libp2p::futures::io;
    use muster_core::ids::MemberId;

    use super::*;
    use crate::swarm::sieve::{Sieve, Topic, Validity};

    /// A run without members.
    struct Nobody;

    impl Sieve for Nobody {
        fn judge(&self, _: Topic, _: &[u8]) -> Validity {
            Validity::Ignore
        }

        fn knows(&self, _: &MemberId) -> bool {
            false
        }

        fn is_host(&self, _: &IpAddr) -> bool {
            false
        }
    }

    /// A stranger that brings as much as is read; of two connections of one source.
    #[tokio::test]
    async fn chan_22_a_stranger_is_read_no_faster_than_its_source_may_bring() {
        let accounts = Arc::new(Accounts::new(Arc::new(Nobody)));
        let mut connections = [0, 1].map(|_| {
            let remote = Remote::new(&PeerId::random(), IpAddr::from([10, 0, 0, 1]));
            Metered { accounts: accounts.clone(), remote }.over(io::repeat(7))
        });
        let (mut read, mut buffer) = (0, vec![0; 1 << 20]);
        let mut context = Context::from_waker(std::task::Waker::noop());
        for connection in &mut connections {
            while read < 4 << 20
                && let Poll::Ready(some) = Pin::new(&mut *connection).poll_read(&mut context, &mut buffer)
            {
                read += some.unwrap();
            }
        }
        assert!((256 << 10..512 << 10).contains(&read), "{read} bytes");
    }
}
