//! The gradient of one leaf, and losses without gradient.
//!
//! Threads take windows in order, one or a few at a time, each with its own tape, and add to every part of the gradient
//! in order of the windows: the number of threads changes no bit, and memory grows with it, not with the leaf.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use muster_core::grid::fixed_loss;
use muster_core::ids::{Digest, Leaf};
use muster_core::layout::split;
use muster_core::manifest::{Manifest, Model};
use muster_core::state::LeafJob;

use crate::albert::{self, Masking};
use crate::decoder::{self, Embedded, embed};
use crate::grid::Grid;
use crate::kernel::matrix::Panels;
use crate::parallel::{each, parts};
use crate::passes::{Passes, Weights, pack_backward, pack_forward};
use crate::path::Kernels;
use crate::plan::{FamilyPlan, NetworkPlan, PACKED_BYTES, joined};
use crate::squares::TensorSquares;
use crate::turns::{Give, GridTarget, Integers, Pieces, Turns};

/// Rows of an embedding's gradient that one task adds to.
const EMBEDDING_ROWS: usize = 512;

/// A model, and how a run wants it computed.
#[derive(Clone, Copy)]
pub(crate) struct Setting<'a> {
    pub model: &'a Model,
    pub recompute: bool,
}

impl<'a> Setting<'a> {
    pub(crate) fn of(manifest: &'a Manifest) -> Self {
        Self { model: &manifest.model, recompute: manifest.training.recompute }
    }
}

/// Windows, and the randomness that masks them where a network wants that.
#[derive(Clone, Copy)]
pub(crate) struct Batch<'a> {
    pub windows: &'a [Vec<u32>],
    pub seed: Digest,
    pub leaf: Leaf,
}

/// Buffers of one thread.
#[derive(Default)]
struct ThreadBuffers {
    decoder: decoder::DecoderTape,
    albert: albert::AlbertTape,
}

/// The model's gradient machine, with every buffer it reuses from call to call.
pub(crate) struct Engine {
    kernels: Kernels,
    plan: Option<NetworkPlan>,
    /// Packed matrices, by number; none where they are packed when they are multiplied by.
    forward: Vec<Panels>,
    backward: Vec<Panels>,
    /// Where they are packed then.
    panels: Mutex<Vec<Panels>>,
    /// Bytes up to which matrices are kept packed.
    pub(crate) packed_bytes: u64,
    workers: Vec<ThreadBuffers>,
    embedded: Vec<Embedded>,
    /// What is kept of the gradient, from its beginning on: all of it, or what is whole only after the last window.
    gradient: Vec<f32>,
    pieces: Pieces,
    pub(crate) spent: LeafTimes,
}

/// Time spent on leaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeafTimes {
    /// On forward and backward passes.
    pub gradient: Duration,
    /// On the integer grid, as if all threads had shared it.
    pub grid: Duration,
}

impl Engine {
    pub(crate) fn new(kernels: Kernels, threads: usize) -> Self {
        let mut workers = Vec::new();
        workers.resize_with(threads.max(1), ThreadBuffers::default);
        Self {
            kernels,
            plan: None,
            forward: Vec::new(),
            backward: Vec::new(),
            panels: Mutex::default(),
            packed_bytes: PACKED_BYTES,
            workers,
            embedded: Vec::new(),
            gradient: Vec::new(),
            pieces: Pieces::default(),
            spent: LeafTimes::default(),
        }
    }

    /// The plan of a model, kept until another model comes.
    fn plan(&mut self, model: &Model) -> NetworkPlan {
        // Taken out, so that the caller may change the buffers beside it; the caller puts it back.
        match self.plan.take() {
            Some(plan) if plan.model == *model => plan,
            _ => NetworkPlan::new(model),
        }
    }

    /// Writes the grid integers of a leaf to `q`; returns its fixed-point mean loss.
    ///
    /// # Panics
    /// When `q` has another length than the gradient.
    pub(crate) fn leaf(&mut self, setting: Setting<'_>, job: &LeafJob<'_>, q: &mut [i32]) -> i64 {
        let parameters = setting.model.parameters();
        assert_eq!(q.len() as u64, parameters, "a leaf has an integer for each parameter");
        self.leaf_into(setting, job, Integers::Into(q))
    }

    /// Gives the grid integers of a leaf away, piece by piece: the index of the first, and these, on any thread. Returns its
    /// fixed-point mean loss.
    pub(crate) fn leaf_in_pieces(&mut self, setting: Setting<'_>, job: &LeafJob<'_>, give: &Give<'_>) -> i64 {
        self.leaf_into(setting, job, Integers::Given(give))
    }

    fn leaf_into(&mut self, setting: Setting<'_>, job: &LeafJob<'_>, q: Integers<'_>) -> i64 {
        let begun = Instant::now();
        let batch = Batch { windows: job.windows, seed: job.round_seed, leaf: job.leaf };
        let plan = self.plan(setting.model);
        let grid = Grid::new(self.kernels, &plan.layout, job);
        let quantise = |first, values: &[f32], q: &mut [i32]| grid.quantise(first, values, q);
        let target = GridTarget { q, quantise: &quantise };
        let loss = self.differentiate(&plan, setting.recompute, &job.state.parameters, batch, target);
        let spent = grid.spent() / self.workers.len() as u32;
        self.plan = Some(plan);
        self.spent.grid += spent;
        self.spent.gradient += begun.elapsed().saturating_sub(spent);
        fixed_loss(loss)
    }

    /// The real gradient of the windows' mean loss.
    pub(crate) fn gradient(&mut self, setting: Setting<'_>, parameters: &[f32], batch: Batch<'_>) -> &[f32] {
        self.gradient_and_loss(setting, parameters, batch).0
    }

    /// The same, and the fixed-point mean loss.
    pub(crate) fn gradient_and_loss(
        &mut self,
        setting: Setting<'_>,
        parameters: &[f32],
        batch: Batch<'_>,
    ) -> (&[f32], i64) {
        let begun = Instant::now();
        let plan = self.plan(setting.model);
        let target = GridTarget { q: Integers::Nowhere, quantise: &|_, _, _| () };
        let loss = self.differentiate(&plan, setting.recompute, parameters, batch, target);
        self.plan = Some(plan);
        self.spent.gradient += begun.elapsed();
        (&self.gradient, fixed_loss(loss))
    }

    /// The squares of the gradient of the windows' mean loss, tensor by tensor (ARITH-22): it is as large as the model, and is not
    /// kept.
    pub(crate) fn squares(&mut self, setting: Setting<'_>, parameters: &[f32], batch: Batch<'_>) -> Vec<f64> {
        let plan = self.plan(setting.model);
        let squares = TensorSquares::new(&plan.layout);
        let late = plan.late();
        // The embedding's come last, of several threads at once, and stay.
        let add = |first: usize, values: &[f32], _: &mut [i32]| {
            let before = late.saturating_sub(first).min(values.len());
            squares.add(first + before, &values[before..]);
        };
        let target = GridTarget { q: Integers::Given(&|_, _| ()), quantise: &add };
        self.differentiate(&plan, setting.recompute, parameters, batch, target);
        squares.add(0, &self.gradient[..late]);
        let sums = squares.sums();
        drop(squares);
        self.plan = Some(plan);
        sums
    }

    /// The kernels that it computes with.
    pub(crate) fn kernels(&self) -> Kernels {
        self.kernels
    }

    /// Computes the gradient and returns the mean loss (ARITH-45). Each piece of the gradient that has a target is put on
    /// the grid as soon as it is whole.
    fn differentiate(
        &mut self,
        plan: &NetworkPlan,
        recompute: bool,
        parameters: &[f32],
        batch: Batch<'_>,
        target: GridTarget<'_>,
    ) -> f64 {
        let GridTarget { mut q, quantise } = target;
        let wanted = !matches!(q, Integers::Nowhere);
        check(plan, batch.windows);
        // The embedding's gradient is whole only after all turns.
        let late = plan.late();
        // Values of the leaf before stay: the first window to take a part overwrites it.
        self.gradient.resize(if wanted { late } else { plan.layout.parameters() }, 0.0);
        self.gradient.shrink_to(2 * self.gradient.len());
        if batch.windows.is_empty() {
            self.gradient.fill(0.0);
            for range in split(0..plan.layout.parameters(), NOTHING.len()) {
                let (mut own, later) = q.split_at(range.len());
                q = later;
                own.put(quantise, range.start, &NOTHING[..range.len()]);
            }
            return f64::NAN;
        }
        let crew = Crew::of(plan, batch.windows.len(), self.workers.len());
        let is_packed = self.pack(plan, crew, parameters, true);
        let Self { kernels, workers, forward, backward, panels, gradient, embedded, pieces, .. } = self;
        embedded.resize_with(crew.tasks, Embedded::default);
        let predicted = batch.windows.len() * plan.predicted;
        let passes = Passes {
            kernels: *kernels,
            plan,
            parameters,
            weights: weights(is_packed, [forward, backward], panels),
            share: (1.0 / predicted as f64) as f32,
            recompute,
            helpers: crew.helpers,
        };
        let mut losses = vec![0.0; batch.windows.len()];
        let (mut late_q, q) = if wanted { q.split_at(late) } else { (Integers::Nowhere, Integers::Nowhere) };
        let turns = Turns::new(gradient, pieces, &plan.parts, crew.tasks, GridTarget { q, quantise });
        let tasks = losses.chunks_mut(crew.joined).zip(embedded.iter_mut()).enumerate();
        each(&mut workers[..crew.busy], tasks, |worker, (index, (losses, embedded))| {
            let turn = turns.of(index);
            forward_pass(&passes, worker, batch, index * crew.joined, losses);
            match &plan.network {
                FamilyPlan::Decoder(ranges) => worker.decoder.backward(&passes, ranges, &turn, embedded),
                FamilyPlan::Albert(ranges) => worker.albert.backward(&passes, ranges, &turn),
            }
        });
        // The turns have borrowed the gradient, of which the embedding's rows are changed now.
        drop(turns);
        if let FamilyPlan::Decoder(ranges) = &plan.network {
            let lengths = || split(0..plan.vocabulary, EMBEDDING_ROWS).map(|rows| rows.len() * plan.width);
            let outputs = parts(&mut gradient[ranges.embedding.range()], lengths());
            let integers = lengths().map(|length| {
                let (own, later) = std::mem::replace(&mut late_q, Integers::Nowhere).split_at(length);
                late_q = later;
                own
            });
            each(workers, outputs.zip(integers).enumerate(), |_, (index, (out, mut q))| {
                // Tied, the turns have left the head's gradient there, from which it goes on (ARITH-44).
                if !ranges.tied {
                    out.fill(0.0);
                }
                embed(plan.width, index * EMBEDDING_ROWS, embedded, out);
                q.put(quantise, index * EMBEDDING_ROWS * plan.width, out);
            });
        }
        // In order of the windows, whichever was done first.
        losses.iter().fold(0.0, |sum, loss| sum + loss) / predicted as f64
    }

    /// Mean loss of the windows, in nats per predicted token; NaN when it is not finite or there is no window.
    pub(crate) fn evaluate(&mut self, model: &Model, parameters: &[f32], batch: Batch<'_>) -> f64 {
        let plan = self.plan(model);
        check(&plan, batch.windows);
        // Nothing goes back: neither the other packing nor more than one layer's activations are wanted.
        let crew = Crew::of(&plan, batch.windows.len(), self.workers.len());
        let is_packed = self.pack(&plan, crew, parameters, false);
        let Self { kernels, workers, forward, backward, panels, .. } = self;
        let passes = Passes {
            kernels: *kernels,
            plan: &plan,
            parameters,
            weights: weights(is_packed, [forward, backward], panels),
            share: 1.0,
            recompute: true,
            helpers: crew.helpers,
        };
        let mut losses = vec![0.0; batch.windows.len()];
        let tasks = losses.chunks_mut(crew.joined).enumerate();
        each(&mut workers[..crew.busy], tasks, |worker, (index, losses)| {
            forward_pass(&passes, worker, batch, index * crew.joined, losses);
        });
        // ARITH-45: An evaluation has the same mean over its windows; NaN where that is not finite. From +0, by `fold`: `sum`
        // would start from −0.
        let predicted = batch.windows.len() * plan.predicted;
        let mean = losses.iter().fold(0.0, |sum, loss| sum + loss) / predicted as f64;
        self.plan = Some(plan);
        if mean.is_finite() { mean } else { f64::NAN }
    }

    /// Packs a model's parameters for [`Engine::logits`].
    pub(crate) fn open(&mut self, model: &Model, parameters: &[f32]) {
        let plan = self.plan(model);
        self.keep_packed(&plan, parameters, false);
        self.plan = Some(plan);
    }

    /// The logits of a batch's first window, as [`Engine::evaluate`] reads it: a row for each predicted token, from row
    /// `first` on. The parameters must be those opened; the model may differ from theirs in its sequence.
    pub(crate) fn logits(
        &mut self,
        model: &Model,
        parameters: &[f32],
        batch: Batch<'_>,
        first: usize,
    ) -> Vec<f32> {
        let plan = self.plan(model);
        check(&plan, batch.windows);
        let Self { kernels, workers, forward, backward, .. } = self;
        let helpers = workers.len();
        let passes = Passes {
            kernels: *kernels,
            plan: &plan,
            parameters,
            weights: Weights::Packed { forward, backward },
            share: 1.0,
            recompute: true,
            helpers,
        };
        let worker = &mut workers[0];
        let logits = match &plan.network {
            FamilyPlan::Decoder(ranges) => worker.decoder.logits(&passes, ranges, &batch.windows[..1], first),
            FamilyPlan::Albert(ranges) => {
                let window = &batch.windows[0];
                let masking = Masking { seed: batch.seed, leaf: batch.leaf, window: 0 };
                &worker.albert.logits(&passes, ranges, window, masking)[first * plan.vocabulary..]
            }
        };
        let logits = logits.to_vec();
        self.plan = Some(plan);
        logits
    }

    /// Packs every matrix, if they are kept packed; whether they are.
    fn pack(&mut self, plan: &NetworkPlan, crew: Crew, parameters: &[f32], backward: bool) -> bool {
        let is_packed = crew.reuses() && plan.packed_bytes() <= self.packed_bytes;
        if is_packed {
            self.keep_packed(plan, parameters, backward);
        } else {
            (self.forward, self.backward) = Default::default();
        }
        is_packed
    }

    /// Packs every matrix for the forward pass, and for the backward pass if wanted.
    fn keep_packed(&mut self, plan: &NetworkPlan, parameters: &[f32], backward: bool) {
        let kernels = self.kernels;
        self.forward.resize_with(plan.matrices.len(), Panels::default);
        self.backward.resize_with(plan.matrices.len(), Panels::default);
        each(&mut self.workers, self.forward.iter_mut().zip(&plan.matrices), |_, (panels, matrix)| {
            pack_forward(kernels, panels, parameters, *matrix);
        });
        if backward {
            each(&mut self.workers, self.backward.iter_mut().zip(&plan.matrices), |_, (panels, matrix)| {
                pack_backward(kernels, panels, parameters, *matrix);
            });
        }
    }
}

/// A gradient of no window.
const NOTHING: [f32; 4096] = [0.0; 4096];

/// A network's weights, as its size has them.
fn weights<'a>(
    is_packed: bool,
    [forward, backward]: [&'a [Panels]; 2],
    panels: &'a Mutex<Vec<Panels>>,
) -> Weights<'a> {
    if is_packed { Weights::Packed { forward, backward } } else { Weights::Unpacked(panels) }
}

/// # Panics
/// When a window does not have `sequence + 1` tokens.
pub(crate) fn check(plan: &NetworkPlan, windows: &[Vec<u32>]) {
    let right = windows.iter().all(|window| window.len() == plan.tokens + 1);
    assert!(right, "a window has sequence + 1 tokens");
}

/// Runs some of a batch's windows up to their losses: as many as there is room for, from `first` on.
fn forward_pass(
    passes: &Passes<'_>,
    worker: &mut ThreadBuffers,
    batch: Batch<'_>,
    first: usize,
    losses: &mut [f64],
) {
    let windows = &batch.windows[first..][..losses.len()];
    match &passes.plan.network {
        FamilyPlan::Decoder(ranges) => worker.decoder.forward(passes, ranges, windows, losses),
        FamilyPlan::Albert(ranges) => {
            // One at a time, as `joined` has it: each window has a gradient of its own (ARITH-66).
            let masking = Masking { seed: batch.seed, leaf: batch.leaf, window: first as u32 };
            losses[0] = worker.albert.forward(passes, ranges, &windows[0], masking);
        }
    }
}

/// How threads share windows.
#[derive(Clone, Copy)]
struct Crew {
    /// Windows that a thread takes together.
    joined: usize,
    /// Times that some are taken.
    tasks: usize,
    /// Threads that take windows.
    busy: usize,
    /// Threads for each of these: the others help within a product.
    helpers: usize,
}

impl Crew {
    fn of(plan: &NetworkPlan, windows: usize, threads: usize) -> Self {
        let joined = joined(&plan.model, windows as u64, threads as u64) as usize;
        let tasks = windows.div_ceil(joined);
        let busy = threads.min(tasks).max(1);
        Self { joined, tasks, busy, helpers: threads / busy }
    }

    /// Whether packed matrices are worth their memory: one window reads each of them once for each direction. Several threads
    /// pack them together, and one window's products by itself.
    fn reuses(&self) -> bool {
        self.tasks > 1 || self.helpers > 1
    }
}
