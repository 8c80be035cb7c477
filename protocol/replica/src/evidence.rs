//! The evidence behind a ban, as a file of whoever wants to re-execute it.

use std::path::PathBuf;

use muster_core::ids::Digest;
use muster_core::messages::wire::{Request, Response};
use muster_store::home::Home;

use crate::follower::FollowError;
use crate::peers::{Contact, PeerError, Peers};

/// Asks the steward for the evidence that a sealed ban names, unless `home` has it, and keeps it there; gives its place.
///
/// # Errors
/// [`FollowError::Steward`] when the steward does not show it, or shows another; [`FollowError::Store`].
pub async fn keep_evidence(
    peers: &Peers,
    steward: &Contact,
    home: &Home,
    name: &Digest,
) -> Result<PathBuf, FollowError> {
    if home.load_evidence(name).is_err() {
        let Response::Evidence(evidence) = peers.ask(steward, &Request::Evidence(*name)).await? else {
            return Err(PeerError::Unexpected.into());
        };
        if evidence.digest() != *name {
            return Err(PeerError::Unexpected.into());
        }
        home.save_evidence(&evidence).map_err(FollowError::Store)?;
    }
    Ok(home.evidence_path(name))
}

/// How to re-execute the evidence at a place, or why it is not there.
pub fn evidence_words(kept: &Result<PathBuf, FollowError>) -> String {
    match kept {
        Ok(place) => {
            let place = place.display();
            format!("the evidence is {place}: `muster-verifier check {place}` re-executes it")
        }
        Err(error) => format!("its evidence could not be kept: {error}"),
    }
}
