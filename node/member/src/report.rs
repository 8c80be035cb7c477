//! The outcome of a membership, for programs: `result.json`.

use std::collections::BTreeMap;

use muster_core::ids::MemberId;
use muster_replica::{Phase, Replica, Stopwatch};
use serde::Serialize;

/// The contents of `result.json`.
#[derive(Serialize)]
pub struct ResultFile {
    id: String,
    role: &'static str,
    leaves_counted: u64,
    final_state_root: String,
    rounds: u32,
    /// Rounds whose leaves were computed before they began.
    rounds_ahead: u64,
    bytes_sent: u64,
    seconds: BTreeMap<&'static str, f64>,
}

impl ResultFile {
    /// Of a node.
    pub fn new(
        id: MemberId,
        leaves_counted: u64,
        replica: &Replica,
        bytes_sent: u64,
        rounds_ahead: u64,
        stopwatch: &Stopwatch,
    ) -> Self {
        let seconds = Phase::ALL.into_iter().map(|phase| (phase.word(), stopwatch.seconds(phase)));
        Self {
            id: format!("{id:#}"),
            role: "node",
            leaves_counted,
            final_state_root: format!("{:#}", replica.snapshot().0),
            rounds: replica.round().0,
            rounds_ahead,
            bytes_sent,
            seconds: seconds.collect(),
        }
    }

    /// As text.
    pub fn json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default()
    }
}
