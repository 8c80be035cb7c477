//! What went wrong on the network, and with whom.

use std::fmt;
use std::io;

use muster_core::channel::handshake::HandshakeError;
use muster_core::error::{Misuse, Reject};

/// A failure in talking to one address.
#[derive(Debug)]
pub struct NetError {
    /// The other end's address; for a listener, the one to listen on.
    pub address: String,
    /// What happened.
    pub cause: Cause,
}

/// Why talking failed.
#[derive(Debug)]
#[non_exhaustive]
pub enum Cause {
    /// Nobody listens there.
    Refused,
    /// It takes no more connections, in all or from our address.
    Full,
    /// It took too long; the text says what did.
    Timeout(&'static str),
    /// The other end is not the member, the run or the protocol expected.
    Handshake(HandshakeError),
    /// The other end closed the connection, or it broke.
    Closed,
    /// The peer broke the rules of the channel.
    Peer(Reject),
    /// We broke them: a message over the limit.
    Own(Misuse),
    /// The operating system reports something else.
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
            Cause::Refused | Cause::Handshake(_) | Cause::System(_) => true,
            Cause::Timeout(what) => matches!(*what, "connecting" | "the network"),
            Cause::Full | Cause::Closed | Cause::Peer(_) | Cause::Own(_) => false,
        }
    }

    pub(crate) fn new(address: &str, cause: impl Into<Cause>) -> Self {
        Self { address: address.to_owned(), cause: cause.into() }
    }
}

impl fmt::Display for NetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.address)?;
        match &self.cause {
            Cause::Refused => write!(f, "nobody listens there"),
            Cause::Full => write!(
                f,
                "it has no place left, or none for your address; try again later, or ask whoever runs \
                 it to allow more (muster host --per-address)"
            ),
            Cause::Timeout(what) => write!(f, "{what} took too long"),
            Cause::Handshake(error) => error.fmt(f),
            Cause::Closed => write!(f, "the connection was closed"),
            Cause::Peer(reject) => write!(f, "the peer broke the channel: {reject}"),
            Cause::Own(misuse) => misuse.fmt(f),
            Cause::System(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for NetError {}

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

impl From<HandshakeError> for Cause {
    fn from(error: HandshakeError) -> Self {
        Self::Handshake(error)
    }
}

impl From<Reject> for Cause {
    fn from(reject: Reject) -> Self {
        Self::Peer(reject)
    }
}

impl From<Misuse> for Cause {
    fn from(misuse: Misuse) -> Self {
        Self::Own(misuse)
    }
}
