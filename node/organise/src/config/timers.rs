//! How long the steward waits, and how long things are kept.

use muster_core::error::Misuse;
use muster_core::manifest::{self, Manifest};

use super::number::milliseconds;
use super::section::section;
use crate::plan::moved::{LINE, MEGABIT, Moved, SHARE};

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
        /// The slowest line that a member may have, in Mbit/s: part and result last as long as it needs. 0 for any.
        line: f64 = LINE,
    }
}

impl Timers {
    /// What the manifest says of it, for a model of any size.
    pub(super) fn checked(&self) -> Result<manifest::Timers, Misuse> {
        let time = |name: &str, seconds| milliseconds(&format!("timers.{name}"), seconds);
        if self.line != 0.0 && !(0.1..=1e6).contains(&self.line) {
            return Err(Misuse("timers.line must lie between 0.1 and 1000000 Mbit/s, or be 0".into()));
        }
        Ok(manifest::Timers {
            commit: time("commit", self.commit)?,
            part: time("part", self.part)?,
            result: time("result", self.result)?,
            audit: time("audit", self.audit)?,
            final_audit: time("final_audit", self.final_audit)?,
        })
    }

    /// Has a run wait for parts and results for as long as its slowest line needs, where that is longer than it would.
    pub(super) fn suit(&self, manifest: &mut Manifest) {
        if self.line <= 0.0 {
            return;
        }
        let Moved { parts, results } = Moved::of(manifest);
        let least = |bytes: f64| (1e3 * SHARE * bytes / (self.line * MEGABIT)).ceil() as u32;
        let timers = &mut manifest.timers;
        (timers.part, timers.result) = (timers.part.max(least(parts)), timers.result.max(least(results)));
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
