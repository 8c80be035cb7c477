//! Steps of each member's own between two exchanges.

use muster_core::error::Misuse;
use muster_core::manifest;

use super::number::real;
use super::section::section;

section! {
    /// As [`manifest::Local`].
    Local {
        /// Steps of a member in a round.
        steps: u32 = 32,
        /// Steps of a segment.
        segment: u32 = 4,
        /// Rounds between two that renew the second moments.
        moments_every: u32 = 3,
        /// Step size along the aggregated difference.
        outer_rate: f32 = 0.7,
        /// Nesterov momentum of the aggregated differences.
        outer_momentum: f32 = 0.9,
    }
}

impl Local {
    /// What a manifest says of it.
    pub(super) fn checked(&self) -> Result<manifest::Local, Misuse> {
        Ok(manifest::Local {
            steps: self.steps,
            segment: self.segment,
            moments_every: self.moments_every,
            outer_rate: real("local.outer_rate", self.outer_rate)?,
            outer_momentum: real("local.outer_momentum", self.outer_momentum)?,
        })
    }
}
