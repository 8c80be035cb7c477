//! Leaves and the rest of a round, timed for as long as a person waits.

use std::time::{Duration, Instant};

use muster_compute::Backend;
use muster_core::ids::{Digest, Leaf};
use muster_core::layout::Layout;
use muster_core::manifest::{Local, Manifest, Model};
use muster_core::state::{LeafJob, LeafTask, State, Update};

use super::exchange::exchange;

/// What drawing a model, its first buffers, one update and the rest of a round take for each parameter, about.
const SECONDS_A_PARAMETER: f64 = 6e-8;
/// How many times as long as its products, in cache and on idle cores, a window takes at most, about.
const SLOWER: f64 = 3.0;

/// How often the rest of a round is tried.
const RESTS: usize = 3;

/// Times that this machine takes, in seconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timings {
    pub leaf: f64,
    pub basis: TimingBasis,
    /// What a node does in a round beside leaves, the update of the state included; `None` if it was not measured.
    pub round: Option<f64>,
}

impl Timings {
    /// In words that follow the figure.
    pub(super) fn estimated(&self) -> &'static str {
        match self.basis {
            TimingBasis::Leaves => "",
            TimingBasis::Window => " (from one window)",
            TimingBasis::Products => " (estimated from products alone: one window would take too long)",
        }
    }
}

/// What the seconds of a leaf follow from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TimingBasis {
    Leaves,
    Window,
    Products,
}

/// What backends are tried out on.
pub(super) struct Trials<'a> {
    pub manifest: &'a Manifest,
    /// Seconds of a window on the processor, if all of it went as products do.
    pub window: f64,
    pub patience: Duration,
}

impl Trials<'_> {
    /// Times of a backend that is at most so many times as fast as the processor.
    pub(super) fn of(&self, backend: &mut dyn Backend, faster: f64) -> Timings {
        let Self { manifest, window, patience } = *self;
        // A person waits: whether there is time to try is estimated first.
        let trial = window * SLOWER / faster + manifest.model.parameters() as f64 * SECONDS_A_PARAMETER;
        if trial > patience.as_secs_f64() {
            let leaf = window * f64::from(manifest.training.leaf_windows);
            return Timings { leaf, basis: TimingBasis::Products, round: None };
        }
        try_out(manifest, backend, patience)
    }
}

/// Computes leaves for as long as a person waits, and the rest of one round.
fn try_out(manifest: &Manifest, backend: &mut dyn Backend, patience: Duration) -> Timings {
    let mut state = backend.initial(manifest, &[]);
    let windows = windows(manifest);
    let mut sum = vec![0; state.parameters.len()];
    let mut time = |windows: &[Vec<u32>], number| {
        let job = LeafJob { state: &state, round_seed: Digest([1; 32]), leaf: Leaf(number), windows };
        let begun = Instant::now();
        backend.leaf(manifest, &job, &mut sum);
        begun.elapsed()
    };
    let one = windows.get(..1).unwrap_or_default();
    // The first one makes the buffers.
    let mut single = time(one, 0);
    if single < patience / 4 {
        single = time(one, 1);
    }
    let whole = single * windows.len() as u32;
    let mut leaves = Vec::new();
    while whole < patience && (leaves.is_empty() || leaves.iter().sum::<Duration>() + whole < patience) {
        leaves.push(time(&windows, 2 + leaves.len() as u64));
    }
    // The median: one leaf that the system interrupted does not count.
    leaves.sort_unstable();
    let (leaf, basis) = leaves
        .get(leaves.len() / 2)
        .map_or((whole, TimingBasis::Window), |half| (*half, TimingBasis::Leaves));
    let mut rests = Vec::new();
    let begun = Instant::now();
    while rests.len() < RESTS && (rests.is_empty() || begun.elapsed() < patience / 2) {
        rests.push(rest(manifest, backend, &mut state, (&sum, leaf), patience));
    }
    rests.sort_unstable();
    let round = rests.get(rests.len() / 2).and_then(|half| half.map(|half| half.as_secs_f64()));
    Timings { leaf: leaf.as_secs_f64(), basis, round }
}

/// What a round with such a sum of leaves takes beside its leaves, one of which takes so long. None where it cannot be tried.
fn rest(
    manifest: &Manifest,
    backend: &mut dyn Backend,
    state: &mut State,
    (sum, leaf): (&[i32], Duration),
    patience: Duration,
) -> Option<Duration> {
    let mut beside = Duration::ZERO;
    let mut q = sum.to_vec();
    if let Some(local) = manifest.local().filter(|local| leaf * local.segment < patience) {
        let (spent, integers) = segment(manifest, local, backend, state);
        // Of each segment, what is not the gradients of its steps.
        beside = spent.saturating_sub(leaf * local.segment) * (local.steps / local.segment.max(1));
        q = integers;
    }
    let update = Update::whole(&Layout::of_run(manifest), sum.iter().map(|q| *q as f32).collect());
    let begun = Instant::now();
    backend.apply(manifest, state, &update);
    beside += begun.elapsed();
    Some(beside + exchange(manifest, q, state)?)
}

/// Takes the steps of one segment: what that took, and what it adds to a contribution.
fn segment(
    manifest: &Manifest,
    local: &Local,
    backend: &mut dyn Backend,
    state: &State,
) -> (Duration, Vec<i32>) {
    let windows = vec![windows(manifest); local.segment as usize].concat();
    let task = LeafTask { state, round_seed: Digest([1; 32]), leaf: Leaf(0), windows, q: Vec::new() };
    let (mut integers, begun) = (Vec::new(), Instant::now());
    backend.leaves(manifest, &mut std::iter::once(task), &mut |q, _| integers = q);
    (begun.elapsed(), integers)
}

/// A leaf's windows of tokens that follow no pattern that matters.
fn windows(manifest: &Manifest) -> Vec<Vec<u32>> {
    let Model { vocabulary, sequence, .. } = manifest.model;
    let token = |index: u32| index.wrapping_mul(0x9e37_79b9) >> 7;
    let window = |w: u32| (0..=sequence).map(|t| token(w * sequence + t) % vocabulary).collect();
    (0..manifest.training.leaf_windows).map(window).collect()
}
