//! What a node computes in a round beside leaves and the update, timed.

use std::time::{Duration, Instant};

use muster_core::aggregate::{self, Input, WEIGHT_ONE};
use muster_core::contribution::{PackedContribution, PartDigest, open_block};
use muster_core::ids::{Block, Digest};
use muster_core::layout::Layout;
use muster_core::manifest::Manifest;
use muster_core::rounding::{BlockValues, ResultGrid};
use muster_core::state::State;

/// Inputs of a block, at most: more nodes have smaller parts.
const INPUTS: usize = 16;

/// Packs and hashes a sum of leaves; checks as much of other nodes' and combines a part of it, as one of the nodes that the run
/// begins with; reads the results of all parts; hashes the state. `None` of a run whose layout does not fit the sum.
pub(super) fn exchange(manifest: &Manifest, sum: &[i32], state: &State) -> Option<Duration> {
    let layout = Layout::of_run(manifest);
    let q = sum.repeat(layout.planes());
    let nodes = usize::from(manifest.admission.start_nodes).clamp(2, INPUTS);
    let freeze = Digest([1; 32]);
    let begun = Instant::now();
    let packed = PackedContribution::new(&layout, &q);
    let (root, mut digest) = (packed.root(), PartDigest::default());
    for number in 0..layout.blocks().len() {
        let block = Block(u32::try_from(number).ok()?);
        let integers = open_block(&layout, &root, &packed.block(&layout, block)?).ok()?;
        let mut values = if number % nodes == 0 && !layout.is_of_moments(block) {
            let input = Input { q: &integers, m: 1, weight: WEIGHT_ONE };
            aggregate::block(&manifest.aggregation, &vec![input; nodes])?.values
        } else {
            integers.iter().map(|q| *q as f32).collect()
        };
        let (grid, count) = (ResultGrid::of(&layout, block), values.len());
        grid.round(&mut values, &freeze, block);
        let result = BlockValues::of(grid, values);
        digest = digest.block(&BlockValues::read(grid, result.bytes()?, count).ok()?.1);
    }
    std::hint::black_box((digest.finish(), state.roots()));
    Some(begun.elapsed())
}
