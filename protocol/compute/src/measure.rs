//! Kernels and functions on their own, for benchmarks.

use std::hint::black_box;
use std::time::{Duration, Instant};

use muster_core::error::Misuse;
use muster_core::grid::Dither;
use muster_core::ids::{Digest, Leaf};

pub use crate::function::{exp as exp_64, ln, sine_cosine};
use crate::kernel::albert;
use crate::kernel::dither::dithered;
use crate::kernel::matrix::{Panels, Product, multiply};
use crate::kernel::mixture::{Routed, route, route_backward, weigh_rows, weighted_swiglu_backward};
use crate::kernel::rows::{
    ScoreRows, add_rows, cross_entropy, exponentials_of, rms_norm, rms_norm_backward, softmax,
    softmax_backward, swiglu, swiglu_backward,
};
pub use crate::kernel::strided::Strided;
use crate::kernel::tile::chains;
use crate::kernel::update::{AdamStep, adamw, sum_of_squares};
use crate::path::{Kernels, Path};

/// FLOP/s of one core on fused multiply-adds in its registers, along the fastest path of this processor: the best of
/// some. Nothing that is computed here can be faster.
pub fn peak() -> f64 {
    /// Some 10 µs each, so that interruptions spoil few of them.
    const STEPS: usize = 2000;
    let kernels = Kernels::detect();
    let (begun, mut best) = (Instant::now(), 0.0f64);
    while begun.elapsed() < Duration::from_millis(200) {
        let begun = Instant::now();
        let (operations, sum) = chains(kernels, STEPS);
        black_box(sum);
        best = best.max(operations / begun.elapsed().as_secs_f64());
    }
    best
}

/// e^x (ARITH-23) of each value.
pub fn exponentials(x: &[f32]) -> Vec<f32> {
    let mut y = vec![0.0; x.len()];
    exponentials_of(Kernels::detect(), x, &mut y);
    y
}

/// GELU (ARITH-63) of each value, and its derivative (ARITH-64).
pub fn gelu(x: &[f32]) -> [Vec<f32>; 2] {
    let (mut y, mut slopes) = (vec![0.0; x.len()], vec![1.0; x.len()]);
    albert::gelu(Kernels::detect(), x, &mut y);
    albert::gelu_backward(Kernels::detect(), x, &mut slopes);
    [y, slopes]
}

/// One matrix product after another, both factors packed anew for each.
pub struct MatrixBenchmark {
    kernels: Kernels,
    panels: Panels,
}

impl MatrixBenchmark {
    /// Along a path.
    ///
    /// # Errors
    /// [`Misuse`] when the processor lacks it.
    pub fn new(path: Path) -> Result<Self, Misuse> {
        Ok(Self { kernels: Kernels::new(path)?, panels: Panels::default() })
    }

    /// `out = left · right`, row-major; `size` is rows, columns, depth.
    ///
    /// # Panics
    /// When a slice is too short.
    pub fn multiply(&mut self, left: Strided<'_>, right: Strided<'_>, size: [usize; 3], out: &mut [f32]) {
        let [rows, columns, depth] = size;
        self.panels.pack(self.kernels, right, depth, columns);
        multiply(self.kernels, &Product::full(left, &self.panels, rows), out, columns);
    }
}

/// A kernel over rows or over the flat vector, with buffers of its own.
pub struct KernelBenchmark {
    /// What it computes.
    pub name: &'static str,
    /// Bytes read and written for each element.
    pub bytes: usize,
    /// Runs it once over all elements.
    pub run: Box<dyn FnMut()>,
}

/// Every kernel but the products, over `rows` of `width`.
///
/// # Errors
/// [`Misuse`] when the processor lacks the path.
pub fn elementwise(path: Path, rows: usize, width: usize) -> Result<Vec<KernelBenchmark>, Misuse> {
    let kernels = Kernels::new(path)?;
    let mut cases = of_rows(kernels, rows, width);
    cases.extend(of_feed_forward(kernels, rows, width));
    cases.extend(of_experts(kernels, rows, width));
    cases.extend(of_vector(kernels, rows * width));
    Ok(cases)
}

/// Values between −2 and 2.
fn values(count: usize) -> Vec<f32> {
    (0..count).map(|index| (index * 2_654_435_761 % 1021) as f32 / 255.0 - 2.0).collect()
}

fn case(name: &'static str, bytes: usize, run: impl FnMut() + 'static) -> KernelBenchmark {
    KernelBenchmark { name, bytes, run: Box::new(run) }
}

fn of_rows(kernels: Kernels, rows: usize, width: usize) -> Vec<KernelBenchmark> {
    let (x, gain, mut scales) = (values(rows * width), values(width), values(rows));
    let (x_again, gain_again, scales_again) = (x.clone(), gain.clone(), scales.clone());
    let [mut y, mut d, mut residual, mut scores, mut d_scores, mut logits] =
        std::array::from_fn(|_| x.clone());
    let (probabilities, summed) = (x.clone(), x.clone());
    let targets: Vec<usize> = (0..rows).map(|row| row % width).collect();
    let [fresh, fresh_logits] = std::array::from_fn(|_| x.clone());
    let mut sums = gain.clone();
    let at = ScoreRows { first: width - rows.min(width), rows: rows.min(width), keys: width, stride: width };
    let of_softmax = [y.clone(), y.clone()];
    vec![
        case("copy", 8, {
            let (from, mut to) = (x.clone(), x.clone());
            move || std::hint::black_box(&mut to).copy_from_slice(&from)
        }),
        case("rms_norm", 8, move || rms_norm(kernels, &x, &gain, 1e-5, &mut y, &mut scales)),
        case("rms_norm_backward", 20, move || {
            rms_norm_backward(kernels, &x_again, &gain_again, &scales_again, &mut d, &mut residual);
        }),
        case("add_rows", 4, move || add_rows(kernels, &summed, &mut sums)),
        case("softmax + copy", 16, move || {
            scores.copy_from_slice(&fresh);
            softmax(kernels, &mut scores, at);
        }),
        case("softmax_backward", 12, move || {
            let outputs = [&*of_softmax[0], &*of_softmax[1]];
            softmax_backward(kernels, &mut d_scores, &probabilities, at, outputs, [64, 64]);
        }),
        case("cross_entropy + copy", 16, move || {
            logits.copy_from_slice(&fresh_logits);
            cross_entropy(kernels, &mut logits, width, &targets, 0.01);
        }),
    ]
}

fn of_feed_forward(kernels: Kernels, rows: usize, hidden: usize) -> Vec<KernelBenchmark> {
    let gate_up = values(2 * rows * hidden);
    let [mut sigmoid, mut product, kept, mut d_product] = std::array::from_fn(|_| values(rows * hidden));
    let (again, mut d_gate_up) = (gate_up.clone(), gate_up.clone());
    vec![
        case("swiglu", 16, move || swiglu(kernels, &gate_up, hidden, &mut sigmoid, &mut product)),
        case("swiglu_backward", 28, move || {
            swiglu_backward(kernels, &again, hidden, &kept, &mut d_product, &mut d_gate_up);
        }),
    ]
}

/// Scores of a router are those of eight experts, of which a token passes two.
fn of_experts(kernels: Kernels, rows: usize, hidden: usize) -> Vec<KernelBenchmark> {
    const COLUMNS: usize = 8;
    const ACTIVE: usize = 2;
    let tokens = rows * hidden / COLUMNS;
    let (fresh, mut scores) = (values(tokens * COLUMNS), values(tokens * COLUMNS));
    let (mut chosen, mut weights) = (vec![0; tokens * ACTIVE], vec![0.0; tokens * ACTIVE]);
    let (probabilities, mut d_scores) = (fresh.clone(), fresh.clone());
    let choices: Vec<u16> = (0..tokens * ACTIVE).map(|place| (place % COLUMNS) as u16).collect();
    let (of_choices, shares) = (values(tokens * ACTIVE), values(COLUMNS));
    let gate_up = values(2 * rows * hidden);
    let [sigmoid, mut d_product, mut weighted] = std::array::from_fn(|_| values(rows * hidden));
    let (of_rows, mut d_weights, mut d_gate_up) = (values(rows), values(rows), gate_up.clone());
    let ones = vec![1.0; rows];
    vec![
        case("route + copy", 16, move || {
            scores.copy_from_slice(&fresh);
            route(kernels, &mut scores, COLUMNS, &mut chosen, &mut weights);
        }),
        case("route_backward", 8, move || {
            let [weights, d_weights] = [&*of_choices; 2];
            let at = Routed {
                chosen: &choices,
                weights,
                d_weights,
                probabilities: &probabilities,
                shares: &shares,
                balance: 0.01,
            };
            route_backward(kernels, &at, &mut d_scores);
        }),
        case("weigh_rows", 8, move || weigh_rows(kernels, &ones, &mut weighted)),
        case("weighted swiglu back", 28, move || {
            let kept = [&*gate_up, &*sigmoid, &*of_rows];
            weighted_swiglu_backward(kernels, kept, &mut d_product, &mut d_gate_up, &mut d_weights);
        }),
    ]
}

fn of_vector(kernels: Kernels, length: usize) -> Vec<KernelBenchmark> {
    let [gradient, squared, update, mut parameters, mut first] = std::array::from_fn(|_| values(length));
    let mut second: Vec<f32> = values(length).iter().map(|value| value * value).collect();
    let (mut words, mut q) = (vec![0; length], vec![0; length]);
    let mut dither = Dither::new(&Digest([1; 32]), Leaf(1));
    let step = AdamStep {
        unit: 0.25,
        beta1: 0.9,
        beta2: 0.95,
        first_share: 0.1,
        second_share: 0.05,
        rate: 0.01,
        second_scale: 1.7,
        epsilon: 1e-8,
        keep: 0.999,
    };
    vec![
        case("dither", 4, move || dither.fill(&mut words)),
        case("dithered", 8, move || dithered(kernels, &gradient, 1024.0, &Digest([2; 32]), 0, &mut q)),
        case("sum_of_squares", 4, move || {
            std::hint::black_box(sum_of_squares(kernels, &squared));
        }),
        case("adamw", 28, move || {
            adamw(kernels, &update, &mut parameters, &mut first, &mut second, &step);
        }),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_product_goes_beyond_the_peak() {
        let (size, values) = ([96, 64, 256], values(96 * 256));
        let mut out = vec![0.0; size[0] * size[1]];
        let mut products = MatrixBenchmark::new(Path::detect()).unwrap();
        let mut best = 0.0f64;
        for _ in 0..200 {
            let begun = Instant::now();
            let [left, right] = [256, 64].map(|row| Strided { data: &values, row, column: 1 });
            products.multiply(left, right, size, &mut out);
            best = best.max(
                2.0 * size.map(|size| size as f64).iter().product::<f64>() / begun.elapsed().as_secs_f64(),
            );
        }
        // Without the optimiser the chains are not in registers; and something else may take the processor for a while.
        let beyond = || (0..20).all(|_| best > 1.1 * peak());
        assert!(cfg!(debug_assertions) || !beyond(), "{best:e} beside {:e}", peak());
    }
}
