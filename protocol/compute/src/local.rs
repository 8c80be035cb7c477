//! Local updates (LOCAL): a member's own steps from the state before the round, and the step of the whole run that follows
//! from everybody's.

use std::time::Instant;

use muster_core::grid::power_of_two;
use muster_core::ids::{Digest, Leaf};
use muster_core::layout::Layout;
use muster_core::manifest::{Local, Manifest};
use muster_core::state::{LeafJob, LeafTask, ShardMut, State};

use crate::exact::setting;
use crate::grid::Grid;
use crate::kernel::local::{Outer, difference, moment_steps, nesterov, renew, telescope};
use crate::leaf::{Batch, Engine};
use crate::optimiser::{self, Rules, ShardUpdate, block_squares, next_exponents};
use crate::parallel::{each, parts};
use crate::path::Kernels;

/// A member's steps within a round, so far.
pub(crate) struct Chain<'a> {
    /// The state before the round.
    start: &'a State,
    /// The state after the steps.
    now: State,
    /// Key of the dither, which all segments share.
    seed: Digest,
    leaf: Leaf,
    /// What a contribution would be if it ended here.
    q: Vec<i32>,
    /// θ_t − θ.
    moved: Vec<f32>,
}

impl<'a> Chain<'a> {
    /// Before the first step of the slot whose first segment this is.
    // LOCAL-1: the first moment is 0 and the second the public one. What a member had in an earlier round is gone.
    pub(crate) fn new(first: &LeafTask<'a>) -> Self {
        let start = first.state;
        let mut now = start.clone();
        now.first.fill(0.0);
        now.shards.iter_mut().for_each(|shard| shard.beta_powers[0] = 1.0);
        let moved = vec![0.0; start.parameters.len()];
        // At θ_t itself: no dither reaches 1, so that nothing has moved (LOCAL-4).
        let q = vec![0; 2 * moved.len()];
        Self { start, now, seed: first.round_seed, leaf: first.leaf, q, moved }
    }

    /// Takes the steps of the next segment. Writes what it adds to the contribution to the task's integers; gives the mean
    /// of its fixed-point losses, rounded down.
    pub(crate) fn segment(
        &mut self,
        engine: &mut Engine,
        threads: &mut [()],
        manifest: &Manifest,
        local: &Local,
        task: &mut LeafTask<'_>,
    ) -> i64 {
        let (kernels, rules) = (engine.kernels(), Rules::of(manifest));
        let leaves = muster_core::assign::leaves_of(manifest, task.leaf);
        let windows = task.windows.chunks(manifest.training.leaf_windows as usize);
        let mut loss = 0i64;
        // LOCAL-2: one leaf a step, its gradient taken as it is, without the grid.
        for (leaf, windows) in leaves.zip(windows) {
            let batch = Batch { windows, seed: task.round_seed, leaf };
            let (gradient, fixed) = engine.gradient_and_loss(setting(manifest), &self.now.parameters, batch);
            loss = loss.saturating_add(fixed);
            optimiser::inner(kernels, threads, &rules, &mut self.now, gradient);
        }
        let begun = Instant::now();
        self.put(kernels, threads, manifest, &mut task.q);
        engine.spent.grid += begun.elapsed();
        loss.div_euclid(i64::from(local.segment.max(1)))
    }

    /// Writes the integers that a segment adds: those of the state now, less those of the state before it.
    fn put(&mut self, kernels: Kernels, threads: &mut [()], manifest: &Manifest, q: &mut Vec<i32>) {
        let layout = Layout::of(&manifest.model);
        let d = self.moved.len();
        q.resize(2 * d, 0);
        let lengths = || layout.blocks().iter().map(|block| block.range.len());
        let (start, now) = (self.start, &self.now);
        each(threads, layout.blocks().iter().zip(parts(&mut self.moved, lengths())), |_, (block, moved)| {
            let range = block.range.clone();
            difference(kernels, &start.parameters[range.clone()], &now.parameters[range], moved);
        });
        let job = LeafJob { state: start, round_seed: self.seed, leaf: self.leaf, windows: &[] };
        let (steps, moments) = q.split_at_mut(d);
        // LOCAL-4: one dither for all boundaries, so that what segments add is what the whole has.
        Grid::new(kernels, &layout, &job).place_all(threads, &self.moved, steps);
        each(threads, layout.blocks().iter().zip(parts(moments, lengths())), |_, (block, moments)| {
            let range = block.range.clone();
            moment_steps(kernels, &start.second[range.clone()], &now.second[range], moments);
        });
        let pieces = || layout.blocks().iter().chain(layout.blocks()).map(|block| block.range.len());
        each(threads, parts(q, pieces()).zip(parts(&mut self.q, pieces())), |_, (q, before)| {
            telescope(kernels, q, before);
        });
    }
}

/// LOCAL-10: takes the step of the run: Nesterov momentum along the aggregated difference, then the renewed second moments.
/// A block without a result keeps what it has.
pub(crate) fn apply_to_shard<W: Send>(
    kernels: Kernels,
    workers: &mut [W],
    rules: &Rules<'_>,
    local: &Local,
    state: ShardMut<'_>,
    update: &ShardUpdate<'_>,
) {
    let ShardMut { shard, exponents, vectors: [parameters, momentum, second] } = state;
    let (plan, blocks) = (update.plan, update.plan.blocks.len());
    let (present, renewed) = update.present.split_at(blocks.min(update.present.len()));
    let (values, codes) = update.values.split_at(parameters.len().min(update.values.len()));
    let first = ShardUpdate { values, present, ..*update };
    let squares = block_squares(kernels, workers, &first);
    let lengths = || plan.blocks.iter().map(|block| block.range.len());
    let tasks = plan.blocks.iter().zip(present).zip(parts(parameters, lengths()));
    let tasks = tasks.zip(parts(momentum, lengths()));
    each(workers, tasks, |_, (((block, present), parameters), momentum)| {
        if *present {
            let unit = power_of_two(i32::from(exponents[block.tensor])) as f32;
            let [rate, decay] = [local.outer_rate, local.outer_momentum].map(|real| real.value());
            nesterov(kernels, &values[block.range.clone()], parameters, momentum, &Outer { unit, rate, decay });
        }
    });
    let tasks = plan.blocks.iter().zip(renewed).zip(parts(second, lengths()));
    each(workers, tasks, |_, ((block, renewed), second)| {
        if *renewed {
            renew(kernels, &codes[block.range.clone()], second);
        }
    });
    if renewed.iter().any(|renewed| *renewed) {
        // LOCAL-11: as if the moments had come through all steps of the round.
        let beta = f64::from(rules.optimiser.beta2.value());
        (0..local.steps).for_each(|_| shard.beta_powers[1] *= beta);
    }
    shard.step += 1;
    if !update.late {
        next_exponents(plan, rules.grid_bits, &squares, exponents);
    }
}
