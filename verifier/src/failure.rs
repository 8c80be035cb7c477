//! How a command ends badly: one sentence and an exit code.

use std::fmt;

use muster_core::error::Misuse;
use muster_net::error::Cause;
use muster_replica::archive::ReplayError;
use muster_replica::{BootstrapError, FollowError, PeerError};
use muster_store::error::StoreError;

/// Interrupted by Ctrl-C.
pub const INTERRUPTED: u8 = 130;

/// Why a command failed, sorted by its exit code.
#[derive(Debug)]
pub enum Failure {
    /// 1: something was examined and is wrong.
    Negative(String),
    /// 2: the command line.
    Usage(String),
    /// 3: this machine, or something is not there.
    Environment(String),
    /// 4: the network.
    Network(String),
}

impl Failure {
    /// The exit code.
    pub fn code(&self) -> u8 {
        match self {
            Self::Negative(_) => 1,
            Self::Usage(_) => 2,
            Self::Environment(_) => 3,
            Self::Network(_) => 4,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Negative(why) | Self::Usage(why) | Self::Environment(why) | Self::Network(why)) = self;
        f.write_str(why)
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self::Environment(error.to_string())
    }
}

impl From<PeerError> for Failure {
    fn from(error: PeerError) -> Self {
        match &error {
            PeerError::Refused(why) => Self::Negative(format!("the steward refused: {why}")),
            PeerError::Net(net) if matches!(net.cause, Cause::System(_) | Cause::Own(_)) => {
                Self::Environment(error.to_string())
            }
            _ => Self::Network(format!("the steward: {error}")),
        }
    }
}

impl From<FollowError> for Failure {
    fn from(error: FollowError) -> Self {
        match error {
            FollowError::Steward(error) => error.into(),
            FollowError::Store(error) => error.into(),
            FollowError::Misconduct(..)
            | FollowError::Convicted { .. }
            | FollowError::Diverged { .. }
            | FollowError::SplitView(..)
            | FollowError::Genesis => Self::Negative(error.to_string()),
        }
    }
}

impl From<BootstrapError> for Failure {
    fn from(error: BootstrapError) -> Self {
        match error {
            BootstrapError::Follow(error) => error.into(),
            BootstrapError::Manifest(_) => Self::Negative(error.to_string()),
        }
    }
}

impl From<ReplayError> for Failure {
    fn from(error: ReplayError) -> Self {
        match error {
            ReplayError::Store(error) => error.into(),
            ReplayError::Wrong(what) => Self::Negative(what),
            ReplayError::Arithmetic(misuse) => arithmetic(misuse),
        }
    }
}

/// This machine cannot compute in defined bits.
pub fn arithmetic(misuse: Misuse) -> Failure {
    Failure::Environment(misuse.to_string())
}
