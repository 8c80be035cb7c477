//! What an interrupted replay leaves, in memory.

use std::collections::BTreeMap;

use muster_core::ids::Round;
use muster_core::layout::Layout;
use muster_core::state::Update;
use muster_replica::HeldState;
use muster_replica::archive::{KeptProgress, Replay};

/// States and aggregates of a replay.
#[derive(Clone)]
pub struct Kept {
    /// States, by the rounds that they are before.
    pub states: BTreeMap<Round, HeldState>,
    /// Aggregates that wait, by round.
    pub aggregates: BTreeMap<Round, Update>,
}

impl Kept {
    /// What goes with the progress of a replay.
    pub fn of(replay: &Replay<'_>) -> Self {
        let states = replay.progress().1.map(|(round, held)| (round, held.clone())).collect();
        let aggregates = replay.waiting().map(|(round, update)| (round, update.clone())).collect();
        Self { states, aggregates }
    }
}

impl KeptProgress for Kept {
    fn state(&self, round: Round) -> Option<HeldState> {
        self.states.get(&round).cloned()
    }

    fn aggregate(&self, _: &Layout, round: Round) -> Option<Update> {
        self.aggregates.get(&round).cloned()
    }
}
