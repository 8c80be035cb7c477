//! Why following ended, and what to do about it.

use std::fmt;
use std::path::PathBuf;

use muster_core::error::Reject;
use muster_core::ids::{Digest, Round};
use muster_store::error::StoreError;

use crate::hearsay::SplitView;
use crate::peers::PeerError;

/// Why following ended.
#[derive(Debug, thiserror::Error)]
pub enum FollowError {
    /// The steward cannot be reached or does not answer.
    #[error("the steward: {0}")]
    Steward(#[from] PeerError),
    /// The steward sealed something that breaks a rule: members halt. Where the proof is, if there is one.
    #[error("the steward sealed a record that breaks a rule, halting: {0}{advice}", advice = Advice(.1))]
    Misconduct(Reject, Option<PathBuf>),
    /// The steward shows others another ledger: members halt. Where the proof is, if there is one.
    #[error("{0}; halting{advice}", advice = Advice(.1))]
    SplitView(SplitView, Option<PathBuf>),
    /// The steward broke a promise: members halt.
    #[error("the steward broke its word, halting: {why}{advice}", advice = Advice(.proof))]
    Convicted {
        /// What it did.
        why: String,
        /// Where the proof is, unless the disk did not take it.
        proof: Option<PathBuf>,
    },
    /// The sealed root is not the one that the sealed results give: the steward is wrong, or this machine.
    #[error("round {round} gives state {computed}, but {sealed} was sealed; halting{advice}", advice = Advice(.proof))]
    Diverged {
        /// Of which round.
        round: Round,
        /// What this replica computed.
        computed: Digest,
        /// What was sealed.
        sealed: Digest,
        /// Where the proof is, if there is one.
        proof: Option<PathBuf>,
    },
    /// This machine's disk.
    #[error(transparent)]
    Store(StoreError),
    /// The disk may take no more: how much it is, and what to do.
    #[error("{0}")]
    Room(String),
    /// The initial state differs from the sealed one: another text, or a broken machine.
    #[error("the initial state computed here is not the sealed one; halting")]
    Genesis,
}

/// What to do with a proof of misconduct, if there is one.
struct Advice<'a>(&'a Option<PathBuf>);

impl fmt::Display for Advice<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(proof) = self.0 else { return Ok(()) };
        write!(
            f,
            ". The proof is {}: `muster-verifier check` judges it on any machine that has the run's manifest.bin, or says what \
             else it takes. Show it to the organiser and to the other members: in the evidence/ of their data directories, with \
             what else it takes, it stops them, too",
            proof.display()
        )
    }
}
