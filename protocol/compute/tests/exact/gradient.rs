//! The leaf gradient of each family against central differences of the f64 reference.

use std::cell::RefCell;

use muster_compute::Exact;
use muster_core::assign::calibration_seed;
use muster_core::grid::{LOSS_ONE, power_of_two};
use muster_core::ids::Leaf;
use muster_core::layout::Layout;
use muster_core::manifest::{Manifest, Model, Projection};
use muster_core::state::{Arithmetic, State};

use crate::reference::Reference;
use crate::setting::{ROUND_SEED, albert, leaf, manifest, mixture, model, variant, windows};

/// Coefficients looked at in each tensor.
const SAMPLES: usize = 24;
/// Largest distance from the reference over the samples of a tensor, relative to their norm.
const TOLERANCE: f64 = 1e-5;
/// The leaf.
const LEAF: u64 = 3;

/// A state with norms and biases that differ from coefficient to coefficient.
fn uneven(exact: &mut Exact, manifest: &Manifest, windows: &[Vec<u32>]) -> State {
    let mut state = exact.initial(manifest, windows);
    for tensor in Layout::of(&manifest.model).tensors().iter().filter(|tensor| tensor.shape[0] == 1) {
        let values = state.parameters[tensor.range()].iter_mut().enumerate();
        values.for_each(|(index, value)| *value += 0.1 * (index % 7) as f32 - 0.3);
    }
    state
}

/// Loss, and the gradient on a grid so fine that its largest value has 21 bits.
fn gradient(
    exact: &mut Exact,
    manifest: &Manifest,
    state: &mut State,
    windows: &[Vec<u32>],
) -> (i64, Vec<f64>) {
    let tensors = Layout::of(&manifest.model);
    for _ in 0..4 {
        let (_, sum) = leaf(exact, manifest, state, LEAF, windows);
        for (tensor, exponent) in tensors.tensors().iter().zip(&mut state.exponents) {
            let largest = sum[tensor.range()].iter().map(|q| q.unsigned_abs()).max().unwrap_or(0);
            *exponent += (largest.max(1).ilog2() as i16 + 1).min(22) - 21;
        }
    }
    let (loss, sum) = leaf(exact, manifest, state, LEAF, windows);
    let mut gradient = Vec::new();
    for (tensor, exponent) in tensors.tensors().iter().zip(&state.exponents) {
        let step = power_of_two(i32::from(*exponent));
        gradient.extend(sum[tensor.range()].iter().map(|q| f64::from(*q) * step));
    }
    (loss, gradient)
}

fn check(model: Model) {
    let manifest = manifest(model);
    let model = &manifest.model;
    let mut exact = Exact::new(1, None).unwrap();
    let windows = windows(model, 2, 5);
    let mut state = uneven(&mut exact, &manifest, &windows);
    let (loss, found) = gradient(&mut exact, &manifest, &mut state, &windows);
    let parameters = state.parameters.iter().map(|value| f64::from(*value)).collect();
    let choices = RefCell::default();
    let mut reference = Reference { model, layout: Layout::of(model), parameters, choices };
    let masks = (ROUND_SEED, Leaf(LEAF));
    // ARITH-41 and ARITH-65: the loss of the network as it is usually written.
    let expected = reference.loss(&windows, masks);
    assert!((loss as f64 / LOSS_ONE as f64 - expected).abs() < 2e-6 * expected, "{loss} {expected}");
    let held_out = reference.loss(&windows, (calibration_seed(manifest.run()), Leaf(1)));
    assert!((exact.evaluate(&manifest, &state, &windows) - held_out).abs() < 2e-6 * held_out);
    for (tensor, exponent) in Layout::of(model).tensors().iter().zip(&state.exponents) {
        let [mut error, mut norm] = [0.0; 2];
        // What the dither alone may do to a coefficient, which counts where the sampled ones are small.
        let grid = power_of_two(i32::from(*exponent));
        for sample in 0..SAMPLES.min(tensor.len()) {
            let place = tensor.offset + (sample * 7919 + 3) % tensor.len();
            let mut at = |offset: f64| {
                let old = reference.parameters[place];
                reference.parameters[place] = old + offset;
                let [loss, balance] = reference.objective(&windows, masks);
                reference.parameters[place] = old;
                (loss + balance, reference.choices.take())
            };
            let (_, chosen) = at(0.0);
            // Where a token goes to another expert, the loss jumps, and has no derivative: the steps stay short of that.
            let steps = [1e-3, 1e-4, 1e-5].into_iter();
            let mut around = steps.map(|step| (step, [1.0, -1.0, 2.0, -2.0].map(|turn| at(turn * step))));
            let within = around.find(|(_, around)| around.iter().all(|(_, choices)| *choices == chosen));
            let (step, [right, left, far_right, far_left]) = within.expect("no token between two experts");
            // Of fourth order: what is left of the series is far below the tolerance.
            let difference = (8.0 * (right.0 - left.0) - (far_right.0 - far_left.0)) / (12.0 * step);
            error += ((found[place] - difference).abs() - grid).max(0.0).powi(2);
            norm += difference.powi(2);
        }
        assert!(norm > 0.0, "{} has no gradient", tensor.name);
        let relative = (error / norm).sqrt();
        // Each rule that goes back is the derivative of the one that goes forward: of the decoder ARITH-42 by way of
        // ARITH-32, ARITH-36 and ARITH-39, of ALBERT ARITH-66 by way of ARITH-62 and ARITH-64.
        assert!(relative <= TOLERANCE, "{}: {relative:e}", tensor.name);
    }
}

#[test]
fn tied_decoder() {
    check(model([19, 16, 2, 4, 4, 24, 27], true));
}

#[test]
fn shared_key_heads_and_untied_head() {
    check(model([23, 24, 1, 6, 2, 20, 30], false));
}

#[test]
fn narrowest_heads() {
    check(model([5, 6, 3, 3, 1, 7, 3], true));
}

#[test]
fn wide_heads_with_biases_and_scaled_positions() {
    check(variant(model([19, 16, 2, 4, 2, 24, 27], true), 6, Projection::Biased));
}

#[test]
fn narrow_heads_that_do_not_divide_the_stream() {
    check(variant(model([23, 25, 1, 6, 3, 20, 30], false), 2, Projection::Biased));
}

/// ARITH-77
#[test]
fn norms_of_queries_and_keys() {
    check(variant(model([19, 16, 2, 4, 2, 24, 27], true), 6, Projection::Normed));
}

#[test]
fn norms_of_wide_heads_that_share_no_keys() {
    check(variant(model([23, 25, 1, 3, 3, 20, 30], false), 18, Projection::Normed));
}

#[test]
fn albert_of_one_layer() {
    check(albert([29, 16, 1, 4, 24, 27], 8));
}

#[test]
fn albert_of_shared_layers() {
    check(albert([31, 18, 3, 3, 40, 33], 5));
}

#[test]
fn experts_of_which_tokens_choose_two() {
    check(mixture(model([19, 16, 2, 4, 4, 12, 45], true), [5, 2, 10], 0.1));
}

#[test]
fn one_expert_a_token_and_shared_key_heads() {
    check(mixture(model([23, 24, 1, 6, 2, 20, 30], false), [3, 1, 9], 0.2));
}

#[test]
fn every_expert_for_every_token() {
    check(mixture(model([5, 6, 3, 3, 1, 7, 9], true), [3, 3, 4], 1.0));
}
