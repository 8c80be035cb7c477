//! What a channel runs over: any reliable stream (TCP), or one through a router (QUIC).

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use iroh::endpoint::{Connection, RecvStream, SendStream};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

/// A stream to a peer that is not known yet.
pub(crate) struct Wire {
    pub(crate) reading: Reading,
    pub(crate) writing: Writing,
}

impl Wire {
    pub(crate) fn of_tcp(stream: TcpStream) -> io::Result<Self> {
        // Each request waits for its answer: Nagle's algorithm would hold back its last frame.
        stream.set_nodelay(true)?;
        let (reading, writing) = stream.into_split();
        Ok(Self { reading: Reading::Tcp(reading), writing: Writing::Tcp(writing) })
    }

    /// Of a connection that carries this stream alone.
    pub(crate) fn of_quic(connection: Connection, writing: SendStream, reading: RecvStream) -> Self {
        // Either half keeps the connection: it ends with the last of both.
        Self {
            reading: Reading::Quic { half: reading, _connection: connection.clone() },
            writing: Writing::Quic { half: writing, _connection: connection },
        }
    }

    /// The address of this machine that the stream leaves from, over TCP.
    pub(crate) fn local_addr(&self) -> Option<SocketAddr> {
        match &self.reading {
            Reading::Tcp(half) => half.local_addr().ok(),
            Reading::Quic { .. } => None,
        }
    }

    /// Where the stream leads, over TCP.
    pub(crate) fn peer_addr(&self) -> Option<SocketAddr> {
        match &self.reading {
            Reading::Tcp(half) => half.peer_addr().ok(),
            Reading::Quic { .. } => None,
        }
    }
}

/// The half that is read from.
pub(crate) enum Reading {
    Tcp(OwnedReadHalf),
    Quic { half: RecvStream, _connection: Connection },
}

/// The half that is written to.
pub(crate) enum Writing {
    Tcp(OwnedWriteHalf),
    Quic { half: SendStream, _connection: Connection },
}

impl AsyncRead for Reading {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(half) => Pin::new(half).poll_read(context, buffer),
            Self::Quic { half, .. } => AsyncRead::poll_read(Pin::new(half), context, buffer),
        }
    }
}

impl AsyncWrite for Writing {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(half) => Pin::new(half).poll_write(context, bytes),
            Self::Quic { half, .. } => AsyncWrite::poll_write(Pin::new(half), context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(half) => Pin::new(half).poll_flush(context),
            Self::Quic { half, .. } => AsyncWrite::poll_flush(Pin::new(half), context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(half) => Pin::new(half).poll_shutdown(context),
            Self::Quic { half, .. } => AsyncWrite::poll_shutdown(Pin::new(half), context),
        }
    }
}
