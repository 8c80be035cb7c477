//! Local updates (LOCAL): a member's own steps from the state before the round, and how far they can lead.

use std::time::{Duration, Instant};

use muster_core::assign::leaves_of;
use muster_core::ids::{Digest, Leaf};
use muster_core::layout::Layout;
use muster_core::manifest::{Local, Manifest};
use muster_core::state::{LeafJob, LeafTask, Shard, State};

use crate::grid::Grid;
use crate::kernel::local::{difference, moment_steps, saturate, telescope};
use crate::leaf::{Batch, Engine, Setting};
use crate::optimiser::{self, Rules};
use crate::parallel::{each, parts};
use crate::path::Kernels;

/// What computes the gradient that a step takes: the processor, or a device beside it.
pub(crate) trait Gradients {
    /// The kernels that it computes with, and that the optimiser takes.
    fn kernels(&self) -> Kernels;

    /// The real gradient of some windows' mean loss, and that loss in fixed point.
    fn gradient_and_loss(
        &mut self,
        manifest: &Manifest,
        parameters: &[f32],
        batch: Batch<'_>,
    ) -> (&[f32], i64);

    /// Notes time that was spent on the integer grid.
    fn note_grid(&mut self, spent: Duration);
}

impl Gradients for Engine {
    fn kernels(&self) -> Kernels {
        Self::kernels(self)
    }

    fn gradient_and_loss(
        &mut self,
        manifest: &Manifest,
        parameters: &[f32],
        batch: Batch<'_>,
    ) -> (&[f32], i64) {
        Self::gradient_and_loss(self, Setting::of(manifest), parameters, batch)
    }

    fn note_grid(&mut self, spent: Duration) {
        self.spent.grid += spent;
    }
}

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
        // LOCAL-3: with a power of 0, the first moment is taken as it is.
        now.shards.iter_mut().for_each(|shard| shard.beta_powers[0] = 0.0);
        let moved = vec![0.0; start.parameters.len()];
        // At θ_t itself: no dither reaches 1, so that nothing has moved (LOCAL-4).
        let q = vec![0; 2 * moved.len()];
        Self { start, now, seed: first.round_seed, leaf: first.leaf, q, moved }
    }

    /// Takes the steps of the next segment. Writes what it adds to the contribution to the task's integers; gives the mean
    /// of its fixed-point losses, rounded down.
    pub(crate) fn segment(
        &mut self,
        engine: &mut impl Gradients,
        threads: &mut [()],
        manifest: &Manifest,
        local: &Local,
        task: &mut LeafTask<'_>,
    ) -> i64 {
        let (kernels, rules) = (engine.kernels(), Rules::of(manifest));
        let leaves = leaves_of(manifest, task.leaf);
        let windows = task.windows.chunks(manifest.training.leaf_windows as usize);
        let mut loss = 0i64;
        // LOCAL-2: one leaf a step, its gradient taken as it is, without the grid.
        for (leaf, windows) in leaves.zip(windows) {
            let batch = Batch { windows, seed: task.round_seed, leaf };
            let (gradient, fixed) = engine.gradient_and_loss(manifest, &self.now.parameters, batch);
            loss = loss.saturating_add(fixed);
            optimiser::inner(kernels, threads, &rules, &mut self.now, gradient);
        }
        let begun = Instant::now();
        self.put(kernels, threads, manifest, &mut task.q);
        engine.note_grid(begun.elapsed());
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
        let most = Layout::of_run(manifest).most(0);
        each(threads, parts(steps, lengths()), |_, steps| saturate(kernels, steps, most));
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

/// LOCAL-13: how far AdamW can move a parameter in so many steps of a round, weight decay apart, from a state whose shard is
/// this.
///
/// With m = 0 before the first step, |m_k| ≤ (1 − β₁)·√(Σ_{i<k} (β₁²/β₂)^i/(1 − β₂))·√v_k by Cauchy–Schwarz, whatever the
/// gradients and v before. What is left are the correction of the second moment and the learning rate.
pub fn reach(manifest: &Manifest, shard: &Shard, steps: u32) -> f64 {
    let optimiser = &manifest.optimiser;
    let [beta1, beta2] = [optimiser.beta1, optimiser.beta2].map(|beta| f64::from(beta.value()));
    let rate = optimiser::learning_rate(optimiser, manifest.training.rounds, shard.step);
    let mut power = shard.beta_powers[1];
    let (ratio, mut term, mut sum, mut reach) = (beta1 * beta1 / beta2, 1.0, 0.0, 0.0);
    for _ in 0..steps {
        power *= beta2;
        (sum, term) = (sum + term, term * ratio);
        reach += rate * (1.0 - beta1) * f64::sqrt(sum * (1.0 - power) / (1.0 - beta2));
    }
    reach
}
