//! The state before the first round.

use muster_core::grid::exponent_of;
use muster_core::hash::{Domain, Hasher};
use muster_core::ids::Digest;
use muster_core::layout::{Layout, Tensor};
use muster_core::manifest::{Manifest, Model};
use muster_core::state::State;
use rand_chacha::ChaCha20Rng;
use rand_core::{Rng, SeedableRng};

use crate::kernel::update::sum_of_squares;
use crate::path::Kernels;

/// Exponent of a tensor whose calibration gradient is zero or not finite (GRID-3).
const FALLBACK_EXPONENT: i16 = -20;

/// Parameters drawn from the manifest, zero moments, exponents still 0.
pub(crate) fn state(manifest: &Manifest) -> State {
    let key = Hasher::new(Domain::INITIAL).value(manifest).finish();
    from(manifest, draw(&manifest.model, key))
}

/// The same with these parameters.
pub(crate) fn from(manifest: &Manifest, parameters: Vec<f32>) -> State {
    State::initial(&Layout::of(&manifest.model), parameters)
}

/// Initial parameters of a model (ARITH-8).
///
/// Coefficient `c` of the flat vector has word `c` of ChaCha20 keyed by `key`. Its upper 24 bits `u` give
/// `(2u + 1)/2²⁴ − 1`, times √3·`initial_scale` (and 1/√(2·layers) in `o_proj` and `down_proj`, whose outputs add up
/// in the residual stream), in f64, rounded to f32 once. A tensor of one row is 0 where it is a bias or the gate of a
/// shared expert, else 1; it uses up its words.
pub(crate) fn draw(model: &Model, key: Digest) -> Vec<f32> {
    let layout = Layout::of(model);
    let mut words = ChaCha20Rng::from_seed(key.0);
    let bound = 3f64.sqrt() * f64::from(model.initial_scale.value());
    let residual = 1.0 / (2.0 * f64::from(model.layers)).sqrt();
    let mut parameters = vec![0.0; layout.parameters()];
    for tensor in layout.tensors() {
        let adds_up = tensor.name.ends_with("o_proj.weight") || tensor.name.ends_with("down_proj.weight");
        let bound = if adds_up { bound * residual } else { bound };
        let zero = [".bias", "shared_expert_gate.weight"].iter().any(|end| tensor.name.ends_with(end));
        let constant = (tensor.shape[0] == 1).then_some(if zero { 0.0 } else { 1.0 });
        // A constant takes its word, too: coefficient c has word c, whatever stands before it.
        for parameter in &mut parameters[tensor.range()] {
            let u = f64::from(words.next_u32() >> 8);
            let unit = (2.0 * u + 1.0) / 16_777_216.0 - 1.0;
            *parameter = constant.unwrap_or((unit * bound) as f32);
        }
    }
    parameters
}

/// Grid exponents of a calibration gradient, from each tensor's rms (ARITH-49).
pub(crate) fn exponents(kernels: Kernels, manifest: &Manifest, gradient: &[f32]) -> Vec<i16> {
    let layout = Layout::of(&manifest.model);
    let exponent = |tensor: &Tensor| {
        let mean = sum_of_squares(kernels, &gradient[tensor.range()]) / tensor.len() as f64;
        exponent_of(mean.sqrt(), manifest.training.grid_bits, FALLBACK_EXPONENT)
    };
    layout.tensors().iter().map(exponent).collect()
}
