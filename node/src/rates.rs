//! What audits at the rates of a run do to a cheat, before anybody tries: spec/model.md C3.

use muster_core::coins::drawn_leaves;

use crate::attack::Wrong;

/// How one member's contributions are audited.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// π: probability that a contribution is audited.
    pub share: f64,
    /// m: its leaves.
    pub leaves: u32,
    /// a: how many of them an audit draws.
    pub drawn: u32,
}

impl Rates {
    /// Of contributions of so many leaves (at least one), in a run whose `audit.leaves` is `least`.
    pub fn new(share: f64, leaves: u32, least: u8) -> Self {
        let leaves = leaves.max(1);
        Self { share: share.clamp(0.0, 1.0), leaves, drawn: drawn_leaves(leaves, least) }
    }

    /// Probability that a contribution of which this is wrong convicts its author; 0 where no audit does.
    pub fn convicts(&self, wrong: Wrong) -> f64 {
        self.share * wrong.found(self.leaves, self.drawn).unwrap_or(0.0)
    }

    /// ρ: share of all leaves that are recomputed.
    pub fn recomputed(&self) -> f64 {
        self.share * f64::from(self.drawn) / f64::from(self.leaves)
    }
}

/// A probability with the digits that matter.
pub fn percent(probability: f64) -> String {
    match 100.0 * probability {
        0.0 => "0 %".into(),
        small if small < 0.05 => "<0.1 %".into(),
        some if some < 9.95 => format!("{some:.1} %"),
        most => format!("{most:.0} %"),
    }
}
