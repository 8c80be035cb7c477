//! How contributions are inspected.

use muster_core::manifest;

use super::number::millionths;
use super::section::section;

section! {
    /// As [`manifest::Audit`].
    Audit as "audit" for manifest::Audit {
        /// Probability of an audit.
        share: f64 = 0.5 => share_ppm by millionths,
        /// Leaves of an audit.
        leaves: u8 = 1 => leaves,
        /// Rounds from registration to use.
        coin_lead: u32 = 1 => coin_lead,
        /// Rounds audited in full at the end.
        final_rounds: u32 = 4 => final_rounds,
        /// Share of the passing verdicts that another verifier re-executes.
        recheck: f64 = 0.1 => recheck_ppm by millionths,
        /// Share of the blocks that are reduced again.
        blocks: f64 = 0.05 => blocks_ppm by millionths,
    }
}
