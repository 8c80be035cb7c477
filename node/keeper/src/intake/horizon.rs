//! How far back blocks stay in memory.

use muster_core::ids::Round;

/// Rounds whose blocks stay in memory beside the newest: its aggregators may still be reducing them. Older ones are on disk
/// until retention ends.
const ROUNDS: u32 = 1;

/// The oldest round that is remembered beside this one.
pub(super) fn horizon(round: Round) -> Round {
    Round(round.0.saturating_sub(ROUNDS))
}
