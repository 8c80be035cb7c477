//! The gradient of one leaf, and losses without gradient.
//!
//! Threads take windows, then parts of the gradient. A weight's chain runs through all tokens of the leaf, window by
//! window, so that the number of threads changes nothing.

use std::time::{Duration, Instant};

use muster_core::grid::{Dither, fixed_loss, power_of_two};
use muster_core::manifest::Model;
use muster_core::state::LeafJob;

use crate::decoder::{Buffers, Decoder, Packed, pack_backward, pack_forward};
use crate::kernel::matrix::{Panels, Product, Strided, multiply};
use crate::kernel::rows::add_rows;
use crate::kernel::update::add_quantised;
use crate::parallel::{each, parts};
use crate::path::Kernels;
use crate::plan::{Matrix, Piece, Plan, Source};
use crate::tape::Tape;

/// Dither words drawn at once.
const DITHER_WORDS: usize = 4096;

/// Buffers of one thread.
#[derive(Default)]
pub(crate) struct Worker {
    buffers: Buffers,
    /// Window of an evaluation.
    tape: Tape,
    /// Right factor of a weight's gradient.
    panels: Panels,
    dither: Vec<u32>,
}

/// The model's gradient machine, with every buffer it reuses from call to call.
pub(crate) struct Engine {
    kernels: Kernels,
    plan: Option<Plan>,
    forward: Packed,
    backward: Packed,
    tapes: Vec<Tape>,
    workers: Vec<Worker>,
    gradient: Vec<f32>,
    pub(crate) spent: Spent,
}

/// Time spent on leaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    /// On forward and backward passes.
    pub gradient: Duration,
    /// On the integer grid.
    pub grid: Duration,
}

impl Engine {
    pub(crate) fn new(kernels: Kernels, threads: usize) -> Self {
        let mut workers = Vec::new();
        workers.resize_with(threads.max(1), Worker::default);
        Self {
            kernels,
            plan: None,
            forward: Packed::default(),
            backward: Packed::default(),
            tapes: Vec::new(),
            workers,
            gradient: Vec::new(),
            spent: Spent::default(),
        }
    }

    /// The plan of a model, kept until another model comes.
    fn plan(&mut self, model: &Model) -> Plan {
        match self.plan.take() {
            Some(plan) if plan.model == *model => plan,
            _ => Plan::new(model),
        }
    }

    /// Adds the grid integers of a leaf to `sum`; returns its fixed-point mean loss.
    pub(crate) fn leaf(&mut self, model: &Model, job: &LeafJob<'_>, sum: &mut [i32]) -> i64 {
        let begun = Instant::now();
        let loss = self.differentiate(model, &job.state.parameters, job.windows);
        let differentiated = Instant::now();
        let plan = self.plan(model);
        let blocks = plan.layout.blocks();
        let sums = parts(sum, blocks.iter().map(|block| block.range.len()));
        let (kernels, gradient) = (self.kernels, &self.gradient);
        each(&mut self.workers, blocks.iter().zip(sums), |worker, (block, sum)| {
            let inverse_step = power_of_two(-i32::from(job.state.exponents[block.tensor]));
            let mut dither = Dither::new(&job.round_seed, job.leaf);
            dither.seek(block.range.start as u64);
            let pairs = gradient[block.range.clone()].chunks(DITHER_WORDS).zip(sum.chunks_mut(DITHER_WORDS));
            for (gradient, sum) in pairs {
                worker.dither.resize(gradient.len(), 0);
                dither.fill(&mut worker.dither);
                add_quantised(kernels, gradient, inverse_step, &worker.dither, sum);
            }
        });
        self.plan = Some(plan);
        self.spent.gradient += differentiated - begun;
        self.spent.grid += differentiated.elapsed();
        fixed_loss(loss)
    }

    /// The real gradient of the windows' mean loss.
    pub(crate) fn gradient(&mut self, model: &Model, parameters: &[f32], windows: &[Vec<u32>]) -> &[f32] {
        self.differentiate(model, parameters, windows);
        &self.gradient
    }

    /// Computes the gradient and returns the mean loss.
    fn differentiate(&mut self, model: &Model, parameters: &[f32], windows: &[Vec<u32>]) -> f64 {
        let plan = self.plan(model);
        let kernels = self.kernels;
        each(&mut self.workers, self.forward.entries(&plan), |_, (panels, matrix)| {
            pack_forward(kernels, panels, parameters, matrix);
        });
        each(&mut self.workers, self.backward.entries(&plan), |_, (panels, matrix)| {
            pack_backward(kernels, panels, parameters, matrix);
        });
        let tokens = windows.len() * plan.tokens;
        let (forward, backward) = (&self.forward, &self.backward);
        let share = (1.0 / tokens as f64) as f32;
        let decoder = Decoder { kernels, plan: &plan, parameters, forward, backward, share };
        self.tapes.resize_with(windows.len(), Tape::default);
        each(&mut self.workers, self.tapes.iter_mut().zip(windows), |worker, (tape, window)| {
            tape.load(&plan, window);
            decoder.run_forward(tape, &mut worker.buffers);
            decoder.run_backward(tape, &mut worker.buffers);
        });
        self.gradient.resize(plan.layout.parameters(), 0.0);
        let outputs = parts(&mut self.gradient, plan.pieces.iter().map(|piece| piece.range.len()));
        let tapes = &self.tapes;
        each(&mut self.workers, plan.pieces.iter().zip(outputs), |worker, (piece, out)| {
            weigh(kernels, &plan, piece, tapes, &mut worker.panels, out);
        });
        self.plan = Some(plan);
        self.tapes.iter().map(|tape| tape.loss).fold(0.0, |sum, loss| sum + loss) / tokens as f64
    }

    /// Mean loss of the windows, in nats per token; NaN when it is not finite or there is no window.
    pub(crate) fn evaluate(&mut self, model: &Model, parameters: &[f32], windows: &[Vec<u32>]) -> f64 {
        let plan = self.plan(model);
        let kernels = self.kernels;
        each(&mut self.workers, self.forward.entries(&plan), |_, (panels, matrix)| {
            pack_forward(kernels, panels, parameters, matrix);
        });
        let (forward, backward) = (&self.forward, &self.backward);
        let decoder = Decoder { kernels, plan: &plan, parameters, forward, backward, share: 1.0 };
        let mut losses = vec![0.0; windows.len()];
        each(&mut self.workers, losses.iter_mut().zip(windows), |worker, (loss, window)| {
            worker.tape.load(&plan, window);
            decoder.run_forward(&mut worker.tape, &mut worker.buffers);
            *loss = worker.tape.loss;
        });
        let mean = losses.iter().fold(0.0, |sum, loss| sum + loss) / (windows.len() * plan.tokens) as f64;
        self.plan = Some(plan);
        if mean.is_finite() { mean } else { f64::NAN }
    }
}

/// One part of the gradient, over all windows in order.
fn weigh(kernels: Kernels, plan: &Plan, piece: &Piece, tapes: &[Tape], panels: &mut Panels, out: &mut [f32]) {
    if tapes.is_empty() {
        return out.fill(0.0);
    }
    match piece.source {
        Source::Matrix(layer, weight) => {
            let factors = tapes.iter().map(|tape| tape.factors(layer, weight));
            outer(kernels, piece, plan.matrix(layer, weight), factors, panels, out);
        }
        Source::Head => {
            let factors = tapes.iter().map(|tape| (&*tape.logits, &*tape.normed));
            outer(kernels, piece, plan.head, factors, panels, out);
        }
        Source::Embedding => {
            out.fill(0.0);
            if plan.tied {
                weigh(kernels, plan, &Piece { source: Source::Head, ..piece.clone() }, tapes, panels, out);
            }
            embed(plan, piece, tapes, out);
        }
        Source::Gain(..) | Source::FinalGain => {
            out.fill(0.0);
            for tape in tapes {
                add_rows(kernels, tape.gain_rows(piece.source), out);
            }
        }
    }
}

/// `Σ d_output ⊗ input` over all tokens, for some rows of a matrix.
fn outer<'a>(
    kernels: Kernels,
    piece: &Piece,
    matrix: Matrix,
    factors: impl Iterator<Item = (&'a [f32], &'a [f32])>,
    panels: &mut Panels,
    out: &mut [f32],
) {
    for (index, (d_output, input)) in factors.enumerate() {
        let tokens = input.len() / matrix.inputs;
        panels.pack(kernels, Strided::rows(input, matrix.inputs), tokens, matrix.inputs);
        let left = Strided::transposed(&d_output[piece.row..], matrix.outputs);
        let product = Product { add: index > 0, ..Product::full(left, panels, piece.rows) };
        multiply(kernels, &product, out, matrix.inputs);
    }
}

/// Adds the gradient of the embedded tokens, in order, to some rows of the embedding's.
fn embed(plan: &Plan, piece: &Piece, tapes: &[Tape], out: &mut [f32]) {
    let rows = piece.row..piece.row + piece.rows;
    for tape in tapes {
        let gradients = tape.d_residual[0].chunks_exact(plan.width);
        for (token, gradient) in tape.inputs.iter().zip(gradients).filter(|(token, _)| rows.contains(token)) {
            let sums = &mut out[(token - rows.start) * plan.width..][..plan.width];
            sums.iter_mut().zip(gradient).for_each(|(sum, value)| *sum += value);
        }
    }
}
