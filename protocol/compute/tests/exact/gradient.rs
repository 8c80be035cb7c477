//! The leaf gradient against central differences of the f64 reference.

use muster_compute::Exact;
use muster_core::grid::{LOSS_ONE, power_of_two};
use muster_core::layout::Layout;
use muster_core::manifest::Model;
use muster_core::state::Arithmetic;

use crate::reference::Reference;
use crate::setting::{leaf, manifest, model, windows};

/// Coefficients looked at in each tensor.
const SAMPLES: usize = 16;

fn check(model: Model) {
    let manifest = manifest(model);
    let model = &manifest.model;
    let mut exact = Exact::new(1, None).unwrap();
    let windows = windows(model, 2, 5);
    let mut state = exact.initial(&manifest, None, &windows);
    for tensor in Layout::of(model).tensors().iter().filter(|tensor| tensor.shape[0] == 1) {
        let gains = state.parameters[tensor.range()].iter_mut().enumerate();
        gains.for_each(|(index, gain)| *gain += 0.1 * (index % 7) as f32 - 0.3);
    }
    let (loss, sum) = leaf(&mut exact, &manifest, &state, 3, &windows);
    let parameters = state.parameters.iter().map(|value| f64::from(*value)).collect();
    let mut reference = Reference { model, layout: Layout::of(model), parameters };
    let expected = reference.loss(&windows);
    assert!((loss as f64 / LOSS_ONE as f64 - expected).abs() < 2e-6 * expected, "{loss} {expected}");
    assert!((exact.evaluate(&manifest, &state, &windows) - expected).abs() < 2e-6 * expected);
    for (index, tensor) in Layout::of(model).tensors().iter().enumerate() {
        let step = power_of_two(i32::from(state.exponents[index]));
        let found: Vec<f64> = sum[tensor.range()].iter().map(|q| f64::from(*q) * step).collect();
        let rms = (found.iter().map(|g| g * g).sum::<f64>() / found.len() as f64).sqrt();
        assert!(rms > 0.0, "{} has no gradient", tensor.name);
        for sample in 0..SAMPLES.min(tensor.len()) {
            let place = (sample * 7919 + 3) % tensor.len();
            let mut at = |offset: f64| {
                let old = reference.parameters[tensor.offset + place];
                reference.parameters[tensor.offset + place] = old + offset;
                let loss = reference.loss(&windows);
                reference.parameters[tensor.offset + place] = old;
                loss
            };
            let difference = (at(1e-5) - at(-1e-5)) / 2e-5;
            let error = (found[place] - difference).abs();
            assert!(
                error < 2e-4 * rms + 1e-5 * difference.abs(),
                "{} [{place}]: {} {difference}",
                tensor.name,
                found[place]
            );
        }
    }
}

#[test]
fn tied_model() {
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
