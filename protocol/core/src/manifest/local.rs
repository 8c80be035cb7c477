//! What happens between two exchanges: one sum of leaves, or steps of each member's own.

use crate::codec::Real;
use crate::ids::Round;
use crate::wire;

wire! {
    /// What members exchange in a round.
    pub enum Exchange {
        /// The sum of leaf gradients on the state before the round.
        Gradients,
        /// How far steps of each member's own have moved the state (LOCAL).
        Local(Local),
    }
}

wire! {
    /// Local updates: a member takes `steps` steps of AdamW from the state before the round, and contributes the difference
    /// (Douillard et al. 2023, DiLoCo). What it is audited by is a *segment* of `segment` steps.
    pub struct Local {
        /// H: most steps of a member in a round.
        pub steps: u32,
        /// h: steps of a segment; divides `steps`.
        pub segment: u32,
        /// Rounds between two that renew the second moments.
        pub moments_every: u32,
        /// Step size along the aggregated difference.
        pub outer_rate: Real,
        /// Nesterov momentum of the aggregated differences.
        pub outer_momentum: Real,
    }
}

impl Local {
    /// S: segments of a whole contribution.
    pub fn segments(&self) -> u32 {
        self.steps / self.segment.max(1)
    }

    /// LOCAL-9: whether the second moments are exchanged in a round.
    pub fn renews_moments(&self, round: Round) -> bool {
        round.0.is_multiple_of(self.moments_every.max(1))
    }
}

impl Exchange {
    /// Local updates; none where gradients are exchanged.
    pub fn local(&self) -> Option<&Local> {
        match self {
            Self::Gradients => None,
            Self::Local(local) => Some(local),
        }
    }
}
