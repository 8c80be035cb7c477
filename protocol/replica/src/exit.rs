//! How a command ends: an exit code that is the same everywhere, and one sentence.

use muster_core::codec::is_hidden;
use muster_core::error::{Misuse, Reject};
use muster_net::capacity::{self, is_shortage};
use muster_net::error::{Cause, NetError};
use muster_store::error::StoreError;

use crate::archive::ReplayError;
use crate::bootstrap::BootstrapError;
use crate::follower::FollowError;
use crate::peers::PeerError;

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
    /// Somebody asked it to stop.
    Interrupted = 130,
}

impl Exit {
    /// The number.
    pub fn code(self) -> u8 {
        self as u8
    }
}

/// Why a command failed: shown as one sentence, ends with one code.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", visible(message))]
pub struct Failure {
    /// The code.
    pub exit: Exit,
    /// The sentence: file or address, what is wrong, what to do.
    pub message: String,
}

/// A message for a terminal. It may name files, columns and words of strangers, who could write an escape into them.
fn visible(message: &str) -> String {
    let shown = |c: char| match is_hidden(c) && c != '\n' {
        true => c.escape_unicode().to_string(),
        false => c.to_string(),
    };
    message.chars().map(shown).collect()
}

/// Outcome of a command.
pub type Outcome<T> = Result<T, Failure>;

impl Failure {
    /// Something was examined and is wrong.
    pub fn negative(message: impl Into<String>) -> Self {
        Self { exit: Exit::Negative, message: message.into() }
    }

    /// Wrong use.
    pub fn usage(message: impl Into<String>) -> Self {
        Self { exit: Exit::Usage, message: message.into() }
    }

    /// Something about this machine.
    pub fn environment(message: impl Into<String>) -> Self {
        Self { exit: Exit::Environment, message: message.into() }
    }

    /// This machine cannot compute what it is asked to, in the bits that it is asked for.
    pub fn arithmetic(misuse: Misuse) -> Self {
        Self::environment(misuse.to_string())
    }

    /// Something about the other end.
    pub fn network(message: impl Into<String>) -> Self {
        Self { exit: Exit::Network, message: message.into() }
    }
}

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
    /// A refusal is an answer; what this machine's own system reports is of this machine; everything else is a matter of
    /// the network.
    fn from(error: PeerError) -> Self {
        match error {
            PeerError::Refused(why) => Self::negative(format!("the steward refused: {why}")),
            PeerError::Net(error) => {
                let Self { exit, message } = error.into();
                let then = match exit {
                    Exit::Network => "; ask the organiser whether the run is hosted now",
                    _ => "",
                };
                Self { exit, message: format!("the steward: {message}{then}") }
            }
            error => Self::network(format!("the steward: {error}")),
        }
    }
}

impl From<FollowError> for Failure {
    fn from(error: FollowError) -> Self {
        match error {
            FollowError::Steward(error) => error.into(),
            FollowError::Store(error) => error.into(),
            FollowError::Room(why) => Self::environment(why),
            FollowError::Misconduct(..)
            | FollowError::Convicted { .. }
            | FollowError::Diverged { .. }
            | FollowError::SplitView(..)
            | FollowError::Genesis => Self::negative(error.to_string()),
        }
    }
}

impl From<BootstrapError> for Failure {
    fn from(error: BootstrapError) -> Self {
        match error {
            BootstrapError::Follow(error) => error.into(),
            BootstrapError::Manifest(_) => Self::negative(error.to_string()),
        }
    }
}

impl From<ReplayError> for Failure {
    fn from(error: ReplayError) -> Self {
        match error {
            ReplayError::Store(error) => error.into(),
            ReplayError::Wrong(what) => Self::negative(what),
            ReplayError::Arithmetic(misuse) => Self::arithmetic(misuse),
        }
    }
}

impl From<NetError> for Failure {
    /// What the system reports about an address, and clocks that differ, are of this machine, the rest is of the other end.
    fn from(error: NetError) -> Self {
        match &error.cause {
            Cause::System(system) if system.kind() == std::io::ErrorKind::AddrInUse => {
                Self::environment(format!(
                    "{}: the port is busy; choose another one or stop the process that uses it",
                    error.address
                ))
            }
            Cause::System(system) if is_shortage(system) => {
                Self::environment(format!("{error}; it takes {}", capacity::REMEDY))
            }
            Cause::System(_) | Cause::Own(_) | Cause::Clock(_) => Self::environment(error.to_string()),
            _ => Self::network(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Error, ErrorKind};

    use super::*;

    fn exit(cause: Cause) -> Exit {
        let error = || NetError { address: "10.0.0.1:7777".into(), cause };
        Failure::from(FollowError::Steward(PeerError::Net(error()))).exit
    }

    #[test]
    fn no_escape_of_a_stranger_reaches_the_terminal() {
        let failure = Failure::usage("2 files:\n  \u{1b}]0;x\u{7}\u{202e}.csv: has no column \"text\"");
        let shown = failure.to_string();
        assert_eq!(shown, "2 files:\n  \\u{1b}]0;x\\u{7}\\u{202e}.csv: has no column \"text\"");
    }

    #[test]
    fn what_the_system_reports_is_of_this_machine_wherever_it_is_met() {
        assert_eq!(exit(Cause::System(Error::from(ErrorKind::PermissionDenied))), Exit::Environment);
        assert_eq!(exit(Cause::Refused), Exit::Network);
        assert_eq!(exit(Cause::Timeout("it")), Exit::Network);
        assert_eq!(Failure::from(PeerError::Refused("no".into())).exit, Exit::Negative);
    }
}
