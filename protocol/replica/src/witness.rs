//! What a judge may look at: states that this replica has computed, its text, contributions that were brought.

use std::collections::BTreeMap;
use std::sync::Arc;

use muster_core::audit::Witness;
use muster_core::ids::{Digest, MemberId, Round};
use muster_core::state::State;
use muster_store::dataset::Dataset;

/// Kept states by root, the text, and contributions.
pub struct Exhibited {
    states: Vec<(Digest, Arc<State>)>,
    dataset: Arc<Dataset>,
    sequence: u32,
    contributions: BTreeMap<(Round, MemberId), Vec<i32>>,
}

impl Exhibited {
    /// States must have been checked against their roots, the text against the manifest; contributions need not.
    pub fn new(
        states: Vec<(Digest, Arc<State>)>,
        dataset: Arc<Dataset>,
        sequence: u32,
        contributions: BTreeMap<(Round, MemberId), Vec<i32>>,
    ) -> Self {
        Self { states, dataset, sequence, contributions }
    }
}

impl Witness for Exhibited {
    fn state(&mut self, root: &Digest) -> Option<State> {
        self.states.iter().find(|(held, _)| held == root).map(|(_, state)| State::clone(state))
    }

    fn windows(&mut self, indices: &[u64]) -> Option<Vec<Vec<u32>>> {
        Some(indices.iter().map(|index| self.dataset.window(*index, self.sequence)).collect())
    }

    fn contribution(&mut self, round: Round, member: &MemberId) -> Option<Vec<i32>> {
        self.contributions.get(&(round, *member)).cloned()
    }
}
