//! Peer that moves every coefficient as far as steps could, and against what its own steps found.

use muster_compute::reach;
use muster_core::layout::Layout;
use muster_core::regime::Regime;
use muster_core::state::Arithmetic;
use muster_member::{Assignment, NodeConduct, Summed};

use super::forge::changed;

pub(super) struct Edge;

impl NodeConduct for Edge {
    fn contribute(&self, work: &Assignment, arithmetic: &mut dyn Arithmetic) -> Summed {
        let layout = Layout::of_run(&work.manifest);
        let steps = work.quota * Regime::of(&work.manifest).leaves_of_number();
        let reaches: Vec<f64> =
            work.state.shards.iter().map(|shard| reach(&work.manifest, shard, steps)).collect();
        let shards = layout.shards().iter().zip(&reaches);
        let tensors =
            shards.flat_map(|(shard, reach)| shard.tensors.clone().map(move |tensor| (tensor, *reach)));
        let edges: Vec<_> = tensors
            .map(|(tensor, reach)| {
                let unit = 2f64.powi(i32::from(work.state.exponents[tensor]));
                let edge = reach / unit / f64::from(work.quota.max(1));
                (layout.tensors()[tensor].range(), edge.min(f64::from(layout.most(0)) / 64.0) as i32)
            })
            .collect();
        changed(work, arithmetic, |_, q| {
            for (range, edge) in &edges {
                q[range.clone()].iter_mut().for_each(|q| *q = -q.signum() * edge);
            }
        })
    }
}
