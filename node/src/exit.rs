//! How a command ends: an exit code that is the same everywhere, and one sentence.

use std::fmt;

use muster_core::error::{Misuse, Reject};
use muster_net::error::{Cause, NetError};
use muster_replica::PeerError;
use muster_store::error::StoreError;

/// The exit codes of all commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Done.
    Good = 0,
    /// A verdict was asked for, and it is negative.
    Negative = 1,
    /// The command line or a configuration is wrong.
    Usage = 2,
    /// This machine: files, ports, memory.
    Environment = 3,
    /// The other end.
    Network = 4,
    /// Somebody pressed Ctrl-C.
    Interrupted = 130,
}

impl Exit {
    /// The number.
    pub fn code(self) -> u8 {
        self as u8
    }
}

/// Why a command failed: shown as one sentence, ends with one code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The code.
    pub exit: Exit,
    /// The sentence: file or address, what is wrong, what to do.
    pub message: String,
}

/// Outcome of a command.
pub type Outcome<T> = Result<T, Failure>;

impl Failure {
    /// Wrong use.
    pub fn usage(message: impl Into<String>) -> Self {
        Self { exit: Exit::Usage, message: message.into() }
    }

    /// Something about this machine.
    pub fn environment(message: impl Into<String>) -> Self {
        Self { exit: Exit::Environment, message: message.into() }
    }

    /// Something about the other end.
    pub fn network(message: impl Into<String>) -> Self {
        Self { exit: Exit::Network, message: message.into() }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self::environment(error.to_string())
    }
}

impl From<Misuse> for Failure {
    fn from(misuse: Misuse) -> Self {
        Self::usage(misuse.to_string())
    }
}

impl From<Reject> for Failure {
    fn from(reject: Reject) -> Self {
        Self::environment(reject.to_string())
    }
}

impl From<PeerError> for Failure {
    /// A refusal is an answer, everything else a matter of the network.
    fn from(error: PeerError) -> Self {
        match error {
            PeerError::Refused(why) => {
                Self { exit: Exit::Negative, message: format!("the steward refused: {why}") }
            }
            error => Self::network(error.to_string()),
        }
    }
}

impl From<NetError> for Failure {
    /// What the system reports about an address is a matter of this machine, the rest is of the other end.
    fn from(error: NetError) -> Self {
        match &error.cause {
            Cause::System(system) if system.kind() == std::io::ErrorKind::AddrInUse => {
                Self::environment(format!(
                    "{}: the port is busy; choose another one or stop the process that uses it",
                    error.address
                ))
            }
            Cause::System(_) | Cause::Own(_) => Self::environment(error.to_string()),
            _ => Self::network(error.to_string()),
        }
    }
}
