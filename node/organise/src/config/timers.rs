//! How long the steward waits, and how long things are kept.

use muster_core::manifest;

use super::number::milliseconds;
use super::section::section;

section! {
    /// As [`manifest::Timers`], in seconds.
    Timers as "timers" for manifest::Timers {
        /// For commitments.
        commit: f64 = 30.0 => commit by milliseconds,
        /// For delivered parts.
        part: f64 = 30.0 => part by milliseconds,
        /// For aggregated parts.
        result: f64 = 30.0 => result by milliseconds,
        /// For an audited node's answers, and for what a verifier owes.
        audit: f64 = 30.0 => audit by milliseconds,
        /// For verdicts after the last round.
        final_audit: f64 = 60.0 => final_audit by milliseconds,
    }
}

section! {
    /// As [`manifest::Retention`].
    Retention as "retention" for manifest::Retention {
        /// Contributions.
        contributions: u32 = 16 => contributions,
        /// States.
        states: u32 = 16 => states,
    }
}
