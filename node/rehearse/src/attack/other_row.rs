//! Peer that computes on another row of experts than its own, one that it can draw itself instead of fetching it.
//!
//! It takes the next row as the run began with it. The gradients are true ones, of another model: every row of its table is
//! wrong.

use muster_core::assign;
use muster_core::ids::{Leaf, ShardId};
use muster_core::layout::Layout;
use muster_core::state::{Arithmetic, State};
use muster_member::{Assignment, NodeConduct, Summed};
use muster_replica::leaf_windows;

use super::forge::computed;

pub(super) struct OtherRow;

impl NodeConduct for OtherRow {
    fn contribute(&self, work: &Assignment, arithmetic: &mut dyn Arithmetic) -> Summed {
        let layout = Layout::of_run(&work.manifest);
        let shard = layout.shards().get(1).map(|shard| shard.coefficients.clone());
        let (Some(route), Some(row)) = (&work.route, shard) else { return work.sum(arithmetic) };
        let seed = assign::calibration_seed(work.manifest.run());
        let windows = leaf_windows(&work.manifest, &work.dataset, &seed, Leaf(0), None);
        let Ok(windows) = windows else { return work.sum(arithmetic) };
        let initial = arithmetic.initial(&work.manifest, &windows);
        // As many as the run began with: where the rows came to be later, that is the one of which all are copies.
        let rows = initial.held().filter(|shard| *shard != ShardId::TRUNK).count().max(1);
        let other = ShardId((usize::from(route.row.0 + 1) % rows) as u16 + 1);
        let mut mixed = State::clone(&work.state);
        mixed.parameters[row].copy_from_slice(&initial.select([other]).parameters);
        computed(work, arithmetic, &mixed, |leaf| work.windows(leaf))
    }
}
