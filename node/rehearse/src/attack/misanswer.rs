//! Peer that trains honestly, and answers calls with something else than the logits.
//!
//! It saves the computation, or wants others to read something else. Its answer binds it. Whoever asks another holder as
//! well sees that the two differ, and one forward pass tells who lies.

use muster_member::{AskedCall, NodeConduct};

/// What it says instead of the logits.
pub(super) enum Misanswer {
    /// The logits, each with the other sign: the least likely token seems the likeliest.
    Turned,
    /// Those of the oldest state that it keeps.
    Old,
    /// Nothing.
    Silent,
}

impl NodeConduct for Misanswer {
    fn answer(&self, call: &AskedCall<'_>, logits: Vec<i32>) -> Option<Vec<i32>> {
        match self {
            Self::Turned => Some(logits.into_iter().map(i32::saturating_neg).collect()),
            // Where it keeps no other state, its answer is true.
            Self::Old => Some((call.older)().unwrap_or(logits)),
            Self::Silent => None,
        }
    }
}
