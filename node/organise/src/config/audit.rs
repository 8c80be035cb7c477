//! How contributions are inspected.

use muster_core::error::Misuse;
use muster_core::manifest;

use super::number::millionths;
use super::section::section;

section! {
    /// As [`manifest::Audit`].
    Audit {
        /// Probability of an audit.
        share: f64 = 0.5,
        /// Leaves of an audit.
        leaves: u8 = 1,
        /// Rounds from registration to use.
        coin_lead: u32 = 1,
        /// Rounds audited in full at the end.
        final_rounds: u32 = 4,
        /// Share of the passing verdicts that another verifier re-executes.
        recheck: f64 = 0.1,
        /// Share of the blocks that are reduced again.
        blocks: f64 = 0.05,
    }
}

impl Audit {
    pub(super) fn checked(&self) -> Result<manifest::Audit, Misuse> {
        let Self { leaves, coin_lead, final_rounds, .. } = *self;
        Ok(manifest::Audit {
            share_ppm: millionths("audit.share", self.share)?,
            leaves,
            coin_lead,
            final_rounds,
            recheck_ppm: millionths("audit.recheck", self.recheck)?,
            blocks_ppm: millionths("audit.blocks", self.blocks)?,
        })
    }
}
