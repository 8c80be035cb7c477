//! Peer that computes on the newest trunk and its row of experts of four rounds ago, to fetch the row less often.
//!
//! Its gradients look honest to any rule; every row of its table is wrong.

use std::collections::VecDeque;
use std::sync::Mutex;

use muster_core::layout::Layout;
use muster_core::lock::lock;
use muster_core::state::{Arithmetic, State};
use muster_member::{Assignment, NodeConduct, Summed};

use super::forge::computed;
pub(super) use super::stale::LAG;

#[derive(Default)]
pub(super) struct StaleRow {
    /// Parameters of the row, of the last rounds.
    seen: Mutex<VecDeque<Vec<f32>>>,
}

impl NodeConduct for StaleRow {
    fn contribute(&self, work: &Assignment, arithmetic: &mut dyn Arithmetic) -> Summed {
        let layout = Layout::of_run(&work.manifest);
        let Some(row) = layout.shards().get(1).map(|shard| shard.coefficients.clone()) else {
            return work.sum(arithmetic);
        };
        let mut seen = lock(&self.seen);
        seen.push_back(work.state.parameters[row.clone()].to_vec());
        let Some(old) = (seen.len() > LAG as usize).then(|| seen.pop_front()).flatten() else {
            return work.sum(arithmetic);
        };
        let mut mixed = State::clone(&work.state);
        mixed.parameters[row].copy_from_slice(&old);
        computed(work, arithmetic, &mixed, |leaf| work.windows(leaf))
    }
}
