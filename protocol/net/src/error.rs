//! What went wrong on the network, and with whom.

use std::io;

use muster_core::channel::handshake::HandshakeError;
use muster_core::error::{Misuse, Reject};

use crate::clock::Skew;

/// A failure in talking to one address.
#[derive(Debug, thiserror::Error)]
#[error("{address}: {cause}")]
pub struct NetError {
    /// The other end's address; for a listener, the one to listen on.
    pub address: String,
    /// What happened.
    pub cause: Cause,
}

/// Why talking failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Cause {
    /// Nobody listens there.
    #[error("nobody listens there")]
    Refused,
    /// It takes no more connections, in all or from our address.
    #[error(
        "it has no place left, or none for your address; try again later, or ask whoever runs it to allow more \
         (muster host --per-address)"
    )]
    Full,
    /// It took too long; the text says what did.
    #[error("{0} took too long")]
    Timeout(&'static str),
    /// The other end is not the member, the run or the protocol expected.
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    /// The member expected is there, but its clock and ours are more than a day apart.
    #[error("{0}")]
    Clock(Skew),
    /// The other end closed the connection, or it broke.
    #[error("the connection was closed")]
    Closed,
    /// The peer broke the rules of the channel.
    #[error("the peer broke the channel: {0}")]
    Peer(#[from] Reject),
    /// We broke them: a message over the limit.
    #[error(transparent)]
    Own(#[from] Misuse),
    /// No way through the routers was found; the text says why.
    #[error("no way through the routers: {0}")]
    Punching(String),
    /// The operating system reports something else.
    #[error(transparent)]
    System(io::Error),
}

impl NetError {
    /// Whether the channel broke before an answer came, so that a new one may do better.
    pub fn is_closed(&self) -> bool {
        matches!(self.cause, Cause::Closed)
    }

    /// Whether nobody of the run was reached there. One that is full, or slow to answer, was.
    pub fn is_unreachable(&self) -> bool {
        match &self.cause {
            Cause::Refused | Cause::Handshake(_) | Cause::Punching(_) | Cause::System(_) => true,
            Cause::Timeout(what) => matches!(*what, "connecting" | "the network"),
            Cause::Full | Cause::Clock(_) | Cause::Closed | Cause::Peer(_) | Cause::Own(_) => false,
        }
    }

    pub(crate) fn new(address: &str, cause: impl Into<Cause>) -> Self {
        Self { address: address.to_owned(), cause: cause.into() }
    }
}

impl From<io::Error> for Cause {
    fn from(error: io::Error) -> Self {
        use io::ErrorKind as Kind;
        match error.kind() {
            Kind::ConnectionRefused => Self::Refused,
            Kind::TimedOut => Self::Timeout("the network"),
            Kind::UnexpectedEof
            | Kind::ConnectionReset
            | Kind::ConnectionAborted
            | Kind::BrokenPipe
            | Kind::NotConnected => Self::Closed,
            _ => Self::System(error),
        }
    }
}
