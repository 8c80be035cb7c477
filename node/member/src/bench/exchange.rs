//! What a node computes in a round beside leaves and the update, timed.

use std::time::{Duration, Instant};

use muster_core::aggregate::{self, Input, WEIGHT_ONE};
use muster_core::bug::OrBug;
use muster_core::contribution::{PackedContribution, PartDigest, open_block};
use muster_core::ids::{Block, Digest};
use muster_core::layout::Layout;
use muster_core::manifest::Manifest;
use muster_core::rounding::{BlockValues, ResultGrid};
use muster_core::state::State;

/// Inputs of a block, at most: more nodes have smaller parts.
const INPUTS: usize = 16;

/// Packs and hashes a sum of leaves; checks as much of other nodes' and combines a part of it, as one of the nodes that the run
/// begins with; reads the results of all parts; hashes the state.
pub(super) fn exchange(manifest: &Manifest, sum: Vec<i32>, state: &State) -> Option<Duration> {
    let layout = Layout::of_run(manifest);
    let q = of_planes(&layout, sum);
    let begun = Instant::now();
    let digest = exchanged(manifest, &layout, &q).or_bug("a contribution that was packed here");
    std::hint::black_box((digest, state.roots()));
    digest.map(|_| begun.elapsed())
}

/// The same integers in each plane, within what that one may have (GRID-7).
fn of_planes(layout: &Layout, mut q: Vec<i32>) -> Vec<i32> {
    let length = q.len();
    (1..layout.planes()).for_each(|_| q.extend_from_within(..length));
    for (plane, q) in q.chunks_mut(length.max(1)).enumerate() {
        let most = layout.most(plane);
        q.iter_mut().for_each(|q| *q = (*q).clamp(-most, most));
    }
    q
}

fn exchanged(manifest: &Manifest, layout: &Layout, q: &[i32]) -> Option<Digest> {
    let nodes = usize::from(manifest.admission.start_nodes).clamp(2, INPUTS);
    let freeze = Digest([1; 32]);
    let packed = PackedContribution::new(layout, q);
    let (root, mut digest) = (packed.root(), PartDigest::default());
    for number in 0..layout.blocks().len() {
        let block = Block(u32::try_from(number).ok()?);
        let integers = open_block(layout, &root, &packed.block(layout, block)?).ok()?;
        let mut values = if number % nodes == 0 && !layout.is_of_moments(block) {
            let input = Input { q: &integers, m: 1, weight: WEIGHT_ONE };
            aggregate::block(&manifest.aggregation, &vec![input; nodes])?.values
        } else {
            integers.iter().map(|q| *q as f32).collect()
        };
        let (grid, count) = (ResultGrid::of(layout, block), values.len());
        grid.round(&mut values, &freeze, block);
        let result = BlockValues::of(grid, values);
        digest = digest.block(&BlockValues::read(grid, result.bytes()?, count).ok()?.1);
    }
    Some(digest.finish())
}
