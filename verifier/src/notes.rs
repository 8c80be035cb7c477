//! What coins were shown for, on this machine's disk.

use std::sync::Arc;

use muster_core::ids::{Digest, Round};
use muster_roles::verifier::coins::{Notes, Unwritten};
use muster_store::journal::Journal;

/// Notes in a journal, among what its member has said.
pub struct Journaled(Arc<Journal>);

impl Journaled {
    /// Notes in this journal.
    pub fn new(journal: Arc<Journal>) -> Self {
        Self(journal)
    }
}

impl Notes for Journaled {
    fn stands(&self, coin: &str, round: Round, digest: &Digest) -> Result<bool, Unwritten> {
        // The journal keeps the first digest of each coin and round, and gives it back.
        let stands = self.0.put_vote(coin, round, &digest.0);
        stands.map(|stands| stands == digest.0).map_err(|error| Unwritten(error.to_string()))
    }
}
