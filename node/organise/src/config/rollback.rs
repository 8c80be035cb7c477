//! When the state goes back after a conviction.

use muster_core::manifest;

use super::number::real;
use super::section::section;

section! {
    /// As [`manifest::Rollback`].
    Rollback as "rollback" for manifest::Rollback {
        /// Harm beyond which the state goes back; 0 for never.
        limit: f32 = 0.0 => limit by real,
        /// Rounds back at most.
        most_rounds: u32 = 16 => most_rounds,
        /// Rounds between two times at least.
        spacing: u32 = 100 => spacing,
    }
}
