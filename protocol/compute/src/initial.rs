//! The state before the first round.

use muster_core::grid::exponent_of;
use muster_core::hash::{Domain, Hasher};
use muster_core::ids::{Digest, Row};
use muster_core::layout::{Layout, Tensor};
use muster_core::manifest::{Local, Manifest, Model};
use muster_core::state::State;
use rand_chacha::ChaCha20Rng;
use rand_core::{Rng, SeedableRng};

use crate::optimiser::learning_rate;

/// Exponent of a tensor whose calibration gradient is zero or not finite (GRID-3).
const FALLBACK_EXPONENT: i16 = -20;

/// Parameters drawn from the manifest, of as many rows as the run begins with; zero moments, exponents still 0.
pub(crate) fn state(manifest: &Manifest) -> State {
    let key = Hasher::new(Domain::INITIAL).value(manifest).finish();
    let (model, layout) = (&manifest.model, Layout::of_run(manifest));
    let path = layout.parameters();
    let mut drawn = draw(model, key, model.rows_after(0));
    let rows = drawn.split_off(path);
    let mut state = State::initial(&layout, drawn);
    let Some(row) = layout.shards().get(1).map(|row| row.coefficients.len()) else { return state };
    for (number, parameters) in (1..).zip(rows.chunks_exact(row)) {
        state = state.with_row(Row(number), parameters);
    }
    state
}

/// The same with these parameters of a path, which all rows begin with.
pub(crate) fn from(manifest: &Manifest, parameters: Vec<f32>) -> State {
    let path = State::initial(&Layout::of_run(manifest), parameters);
    match manifest.model.rows_after(0) {
        1 => path,
        rows => path.branched((0..rows).map(Row)),
    }
}

/// Initial parameters of a model with so many rows, the trunk's and then each row's (ARITH-8).
///
/// Coefficient `c` of them has word `c` of ChaCha20 keyed by `key`. Its upper 24 bits `u` give
/// `(2u + 1)/2²⁴ − 1`, times √3·`initial_scale` (and 1/√(2·layers) in `o_proj` and `down_proj`, whose outputs add up
/// in the residual stream), in f64, rounded to f32 once. A tensor of one row is 0 where it is a bias or the gate of a
/// shared expert, else 1; it uses up its words.
pub(crate) fn draw(model: &Model, key: Digest, rows: u16) -> Vec<f32> {
    let layout = Layout::of(model);
    let mut words = ChaCha20Rng::from_seed(key.0);
    let bound = 3f64.sqrt() * f64::from(model.initial_scale.value());
    let residual = 1.0 / (2.0 * f64::from(model.layers)).sqrt();
    let mut parameters = Vec::with_capacity(layout.parameters());
    let of_shard = |id| layout.shard(id).map_or(&[][..], |shard| &layout.tensors()[shard.tensors.clone()]);
    for tensor in layout.all_shards(rows).flat_map(of_shard) {
        let adds_up = tensor.name.ends_with("o_proj.weight") || tensor.name.ends_with("down_proj.weight");
        let bound = if adds_up { bound * residual } else { bound };
        let zero = [".bias", "shared_expert_gate.weight"].iter().any(|end| tensor.name.ends_with(end));
        let constant = (tensor.shape[0] == 1).then_some(if zero { 0.0 } else { 1.0 });
        // A constant takes its word, too: coefficient c has word c, whatever stands before it.
        parameters.extend((0..tensor.len()).map(|_| {
            let u = f64::from(words.next_u32() >> 8);
            let unit = (2.0 * u + 1.0) / 16_777_216.0 - 1.0;
            constant.unwrap_or((unit * bound) as f32)
        }));
    }
    parameters
}

/// Grid exponents of a calibration gradient, from each tensor's rms (ARITH-49). `squares` has the sum of each tensor's.
pub(crate) fn exponents(manifest: &Manifest, squares: &[f64]) -> Vec<i16> {
    let layout = Layout::of(&manifest.model);
    let exponent = |(tensor, squares): (&Tensor, &f64)| {
        let mean = squares / tensor.len() as f64;
        exponent_of(mean.sqrt(), manifest.training.grid_bits, FALLBACK_EXPONENT)
    };
    layout.tensors().iter().zip(squares).map(exponent).collect()
}

/// LOCAL-12: the first exponent of every tensor in a run of local updates, as if the steps of the first round moved a parameter
/// by a quarter of their learning rates.
// No gradient tells it: AdamW's steps have one size, whatever the gradient's.
pub(crate) fn local_exponent(manifest: &Manifest, local: &Local) -> i16 {
    let rate = learning_rate(&manifest.optimiser, manifest.training.rounds, 0);
    exponent_of(rate * f64::from(local.steps) * 0.25, manifest.training.grid_bits, FALLBACK_EXPONENT)
}
