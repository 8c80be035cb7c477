//! Commitments that the steward has sealed.

use crate::error::Reject;
use crate::ids::{Digest, MemberId};
use crate::manifest::Manifest;
use crate::messages::record::{Body, Record};
use crate::messages::round::Commit;
use crate::sign::Signed;

/// A frozen contribution, proved by the steward's seal.
#[derive(Clone, Debug)]
pub struct FrozenCommit {
    /// R_t.
    pub freeze: Digest,
    /// The commitment.
    pub commit: Commit,
    /// Its author.
    pub author: MemberId,
}

/// Finds a member's commitment in a sealed freeze.
///
/// # Errors
/// [`Reject`] when the record is not the steward's, is no freeze, or has no commitment of the member.
pub fn frozen_commit(
    manifest: &Manifest,
    record: &Signed<Record>,
    member: &MemberId,
) -> Result<FrozenCommit, Reject> {
    let run = manifest.run();
    let record = record.verify(run)?;
    // A freeze that somebody else has signed could hold any commitment.
    if record.author() != manifest.steward {
        return Err(Reject::NotEntitled("seal records"));
    }
    let Body::Freeze(freeze) = &record.body else {
        return Err(Reject::Rule("evidence holds the freeze of its round"));
    };
    let signed = freeze.commits.iter().find(|signed| signed.claimed_signer() == *member);
    // Verified once more: what the steward has sealed beside it is its word, not the member's.
    let commit = signed.ok_or(Reject::Rule("the accused has a commitment in the freeze"))?.verify(run)?;
    Ok(FrozenCommit { freeze: record.head(), author: commit.author(), commit: commit.into_inner() })
}
