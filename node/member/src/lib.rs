//! The volunteer's side: compute leaves, exchange parts, reduce, answer audits.

mod ahead;
pub mod bench;
mod calls;
mod check;
mod compute;
mod conduct;
pub mod doctor;
mod early;
mod enter;
mod exchange;
mod keepers;
pub mod leave;
mod leaves;
mod own;
pub mod pause;
mod pieces;
mod report;
mod rest;
mod server;
mod session;
mod tell;

use std::path::PathBuf;

use muster_core::ids::{MemberId, Round};
use muster_core::messages::enrol::{Engagement, Name, Ticket};
use muster_net::swarm::Settings;
use muster_replica::exit::{Exit, Failure};
use muster_replica::{BootstrapError, Bounds, FollowError};
use muster_show::ShowOptions;
use muster_store::error::StoreError;

pub use self::pause::Restraint;
pub use compute::{Assignment, Recipe, Summed};
pub use conduct::{AggregatorView, AskedCall, AuditedContribution, Delay, HonestNode, NodeConduct, Outside};
pub use enter::{join, join_as};
pub use leaves::{LeafSum, Spares, rows_of};

/// How to take part.
#[derive(Clone)]
pub struct JoinOptions {
    /// The invitation.
    pub ticket: Ticket,
    /// Where identity, text and journal live.
    pub data_dir: PathBuf,
    /// What to enrol as, for people; may be empty.
    pub name: Name,
    /// Where to listen.
    pub listen: Listen,
    /// What to tell others to dial, instead of the address listened on.
    pub advertise: Option<String>,
    /// Whether members behind routers may meet here, and have a part of this machine's line carry their bytes.
    pub relay: bool,
    /// How to show the run.
    pub show: ShowOptions,
    /// Where to gossip; `None` for a membership without gossip.
    pub gossip: Option<Settings>,
    /// What computes.
    pub machine: muster_compute::Machine,
    /// What it may take of the machine.
    pub bounds: Bounds,
    /// When it is not to work.
    pub restraint: Restraint,
    /// What it does while it takes part.
    pub engagement: Engagement,
    /// Whether to draw progress; else plain lines are logged.
    pub progress: bool,
}

/// Where a member listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// Nowhere: it only dials out.
    Nowhere,
    /// At the address from which it reaches the steward, on a free port.
    TowardsSteward,
    /// Here, `HOST:PORT`.
    At(String),
}

/// How a membership ended well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The run is over.
    Closed {
        /// Leaves of this member that counted.
        leaves: u64,
    },
    /// The member left for good.
    Left,
    /// Interrupted; it may join again.
    Interrupted,
}

/// Why a membership ended badly.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// Expelled from the run.
    #[error("this member was banned for a {finding} in round {round}, found by {accuser}; {evidence}")]
    Banned {
        /// For an offence in this round.
        round: Round,
        /// In words.
        finding: &'static str,
        /// The verifier that accused it.
        accuser: MemberId,
        /// Where the evidence is, or why it is not there, in words.
        evidence: String,
    },
    /// The steward refused something, in its words.
    #[error("the steward refused: {0}")]
    Refused(String),
    /// Another machine runs with this member's key, and is there.
    #[error(
        "another machine runs with this member's key and says that it is at {0}: together they would lose the \
         work of both, so this one stops. Stop one of the two; a second machine joins with a --data-dir and an \
         invitation of its own, never with a copy"
    )]
    Elsewhere(String),
    /// Another machine runs with this member's key, and has committed in this round.
    #[error(
        "round {0} has a commitment with this member's key that is not of this data directory: another machine runs \
         with a copy of it. This one stops, before they contradict each other, which is a ban for life. Stop one of \
         the two; a second machine joins with a --data-dir and an invitation of its own, never with a copy"
    )]
    Twice(Round),
    /// The membership ended before, in these words, and cannot continue.
    #[error("this member {0}; with another --data-dir you can join as a new one")]
    Over(&'static str),
    /// Something is wrong with this machine: what, and what to do about it.
    #[error("{0}")]
    Environment(String),
    /// The contribution to this round is not the sum of the leaves that this machine computed for it.
    #[error(
        "round {0}: what this machine was about to commit to is not the sum of the leaves that it has \
         computed: its memory or its processor is unreliable. Nothing was committed, since a wrong contribution \
         is a ban for life. Test the memory (memtest86+), take back any overclocking, or move the data directory \
         to another machine; then the same command goes on"
    )]
    Unreliable(Round),
    /// The disk failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Following failed.
    #[error(transparent)]
    Follow(#[from] FollowError),
    /// The run's manifest, as the steward sent it, is not the run's or breaks a rule; in words.
    #[error("{0}")]
    Manifest(String),
}

impl From<BootstrapError> for JoinError {
    fn from(error: BootstrapError) -> Self {
        match error {
            BootstrapError::Follow(error) => Self::Follow(error),
            BootstrapError::Manifest(_) => Self::Manifest(error.to_string()),
        }
    }
}

impl From<JoinError> for Failure {
    fn from(error: JoinError) -> Self {
        let message = error.to_string();
        let exit = match error {
            JoinError::Follow(error) => return error.into(),
            JoinError::Banned { .. }
            | JoinError::Refused(_)
            | JoinError::Over(_)
            | JoinError::Elsewhere(_)
            | JoinError::Twice(_)
            | JoinError::Manifest(_) => Exit::Negative,
            JoinError::Environment(_) | JoinError::Unreliable(_) | JoinError::Store(_) => Exit::Environment,
        };
        Self { exit, message }
    }
}
