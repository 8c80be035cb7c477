//! The evidence behind a ban, as a file of whoever wants to re-execute it.

use std::path::PathBuf;

use muster_core::audit::claim;
use muster_core::manifest::Manifest;
use muster_core::messages::evidence::Evidence;
use muster_core::messages::record::Ban;
use muster_core::messages::wire::{Request, Response};
use muster_store::error::StoreError;
use muster_store::home::Home;

use crate::peers::{Contact, PeerError, Peers};

/// Why there is no evidence of a ban.
#[derive(Debug, thiserror::Error)]
pub enum Unkept {
    /// The steward does not show what it named.
    #[error("its evidence could not be kept: the steward: {0}")]
    Steward(PeerError),
    /// What it named is about another member or another round. It is kept here.
    #[error("the steward names evidence that is about another member or round, kept as {}", .0.display())]
    Unfounded(PathBuf),
    /// This machine's disk.
    #[error("its evidence could not be kept: {0}")]
    Store(StoreError),
}

/// Asks the steward for the evidence that a sealed ban names, unless `home` has it, and keeps it there; gives its path.
///
/// # Errors
/// [`Unkept`].
pub async fn keep_evidence(
    peers: &Peers,
    steward: &Contact,
    home: &Home,
    manifest: &Manifest,
    ban: &Ban,
) -> Result<PathBuf, Unkept> {
    let name = ban.evidence;
    let evidence = match home.load_evidence(&name) {
        Ok(evidence) => evidence,
        Err(_) => {
            let answer = peers.ask(steward, &Request::Evidence(name)).await.map_err(Unkept::Steward)?;
            let Response::Evidence(evidence) = answer else {
                return Err(Unkept::Steward(PeerError::Unexpected));
            };
            // The Ban names it by its hash: a steward cannot show other evidence afterwards.
            if evidence.digest() != name {
                return Err(Unkept::Steward(PeerError::Unexpected));
            }
            // Kept before it is looked at: what is about somebody else is evidence of a false ban.
            home.save_evidence(&evidence).map_err(Unkept::Store)?;
            evidence
        }
    };
    let path = home.evidence_path(&name);
    if is_of(manifest, ban, &evidence) { Ok(path) } else { Err(Unkept::Unfounded(path)) }
}

/// Whether evidence accuses whom a ban expels, of the round that it names.
fn is_of(manifest: &Manifest, ban: &Ban, evidence: &Evidence) -> bool {
    claim(manifest, evidence).is_ok_and(|claim| (claim.culprit, claim.round) == (ban.culprit, ban.round))
}

/// How to re-execute the evidence at a path, or why it is not there.
pub fn evidence_words(kept: &Result<PathBuf, Unkept>) -> String {
    match kept {
        Ok(path) => {
            let path = path.display();
            format!("the evidence is {path}: `muster-verifier check {path}` re-executes it")
        }
        Err(error) => error.to_string(),
    }
}
