//! Why following ended, and what to do about it.

use std::fmt;
use std::path::{Path, PathBuf};

use muster_core::error::Reject;
use muster_core::ids::{Digest, Round};
use muster_store::error::StoreError;

use crate::hearsay::SplitView;
use crate::peers::PeerError;

/// Why following ended.
#[derive(Debug)]
pub enum FollowError {
    /// The steward cannot be reached or does not answer.
    Steward(PeerError),
    /// The steward sealed something that breaks a rule: members halt. Where the proof is, if there is one.
    Misconduct(Reject, Option<PathBuf>),
    /// The steward shows others another ledger: members halt. Where the proof is, if there is one.
    SplitView(SplitView, Option<PathBuf>),
    /// The steward broke a promise: members halt.
    Convicted {
        /// What it did.
        why: String,
        /// Where the proof is, unless the disk did not take it.
        proof: Option<PathBuf>,
    },
    /// The sealed root is not the one that the sealed results give: the steward is wrong, or this machine.
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
    Store(StoreError),
    /// The initial state differs from the sealed one: another text, or a broken machine.
    Genesis,
}

impl fmt::Display for FollowError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Steward(error) => write!(f, "the steward: {error}"),
            Self::Misconduct(reject, proof) => {
                write!(f, "the steward sealed a record that breaks a rule, halting: {reject}")?;
                advise(f, proof.as_deref())
            }
            Self::SplitView(split, proof) => {
                write!(f, "{split}; halting")?;
                advise(f, proof.as_deref())
            }
            Self::Convicted { why, proof } => {
                write!(f, "the steward broke its word, halting: {why}")?;
                advise(f, proof.as_deref())
            }
            Self::Diverged { round, computed, sealed, proof } => {
                write!(f, "round {round} gives state {computed}, but {sealed} was sealed; halting")?;
                advise(f, proof.as_deref())
            }
            Self::Store(error) => error.fmt(f),
            Self::Genesis => write!(f, "the initial state computed here is not the sealed one; halting"),
        }
    }
}

impl std::error::Error for FollowError {}

impl From<PeerError> for FollowError {
    fn from(error: PeerError) -> Self {
        Self::Steward(error)
    }
}

/// What to do with a proof of misconduct.
fn advise(f: &mut fmt::Formatter<'_>, proof: Option<&Path>) -> fmt::Result {
    let Some(proof) = proof else { return Ok(()) };
    write!(
        f,
        ". The proof is {}: `muster-verifier check` judges it on any machine that has the run's manifest.bin, or says what else \
         it takes. Show it to the organiser and to the other members: in the evidence/ of their data directories, with what else \
         it takes, it stops them, too",
        proof.display()
    )
}
