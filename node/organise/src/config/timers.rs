//! How long the steward waits, and how long things are kept.

use muster_core::error::Misuse;
use muster_core::manifest;

use super::number::milliseconds;
use super::section::section;

section! {
    /// As [`manifest::Timers`], in seconds.
    Timers {
        /// For commitments.
        commit: f64 = 30.0,
        /// For delivered parts.
        part: f64 = 30.0,
        /// For aggregated parts.
        result: f64 = 30.0,
        /// For an audited node's answers, and for what a verifier owes.
        audit: f64 = 30.0,
        /// For verdicts after the last round.
        final_audit: f64 = 60.0,
    }
}

section! {
    /// As [`manifest::Retention`].
    Retention {
        /// Contributions.
        contributions: u32 = 16,
        /// States.
        states: u32 = 16,
    }
}

impl Timers {
    pub(super) fn checked(&self) -> Result<manifest::Timers, Misuse> {
        Ok(manifest::Timers {
            commit: milliseconds("timers.commit", self.commit)?,
            part: milliseconds("timers.part", self.part)?,
            result: milliseconds("timers.result", self.result)?,
            audit: milliseconds("timers.audit", self.audit)?,
            final_audit: milliseconds("timers.final_audit", self.final_audit)?,
        })
    }
}

impl Retention {
    pub(super) fn plain(&self) -> manifest::Retention {
        let Self { contributions, states } = *self;
        manifest::Retention { contributions, states }
    }
}
