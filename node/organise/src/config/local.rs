//! Steps of each member's own between two exchanges.

use muster_core::manifest;

use super::number::real;
use super::section::section;

section! {
    /// As [`manifest::Local`].
    Local as "local" for manifest::Local {
        /// Steps of a member in a round.
        steps: u32 = 32 => steps,
        /// Steps of a segment.
        segment: u32 = 4 => segment,
        /// Rounds between two that renew the second moments.
        moments_every: u32 = 3 => moments_every,
        /// Step size along the aggregated difference.
        outer_rate: f32 = 0.7 => outer_rate by real,
        /// Nesterov momentum of the aggregated differences.
        outer_momentum: f32 = 0.9 => outer_momentum by real,
    }
}
