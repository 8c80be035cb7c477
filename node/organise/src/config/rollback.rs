//! When the state goes back after a conviction.

use muster_core::error::Misuse;
use muster_core::manifest;

use super::number::real;
use super::section::section;

section! {
    /// As [`manifest::Rollback`].
    Rollback {
        /// Harm beyond which the state goes back; 0 for never.
        limit: f32 = 0.0,
        /// Rounds back at most.
        most_rounds: u32 = 16,
        /// Rounds between two times at least.
        spacing: u32 = 100,
    }
}

impl Rollback {
    pub(super) fn checked(&self) -> Result<manifest::Rollback, Misuse> {
        let Self { limit, most_rounds, spacing } = *self;
        Ok(manifest::Rollback { limit: real("rollback.limit", limit)?, most_rounds, spacing })
    }
}
