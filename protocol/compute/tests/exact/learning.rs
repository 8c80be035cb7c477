//! Whole rounds make the loss fall.

use muster_compute::Exact;
use muster_core::layout::Layout;
use muster_core::manifest::{Manifest, Method};
use muster_core::state::{Arithmetic, Update};

use crate::setting::{albert, leaf, manifest, model, real};

/// Windows that count by `step`.
fn windows(step: u32, count: u32, seed: u32) -> Vec<Vec<u32>> {
    (0..count)
        .map(|window| (0..=32).map(|place| (place * step + window * 17 + seed * 7) % 40).collect())
        .collect()
}

/// Trains on windows that count by `step`; the share of the first held-out loss that is left.
fn remaining(manifest: &mut Manifest, step: u32) -> f64 {
    manifest.training.grid_bits = 8;
    manifest.model.initial_scale = real(0.1);
    let mut exact = Exact::new(2, None).unwrap();
    let mut state = exact.initial(manifest, &windows(step, 2, 100));
    let layout = Layout::of(&manifest.model);
    let held_out = windows(step, 4, 0);
    let before = exact.evaluate(manifest, &state, &held_out);
    for round in 0..manifest.training.rounds {
        let mut total = vec![0; state.parameters.len()];
        for index in 0..4 {
            let windows = windows(step, 2, round + index);
            let (_, sum) = leaf(&mut exact, manifest, &state, u64::from(round * 4 + index), &windows);
            total.iter_mut().zip(sum).for_each(|(total, value)| *total += value);
        }
        let values = total.iter().map(|value| (f64::from(*value) / 4.0) as f32).collect();
        exact.apply(manifest, &mut state, &Update::whole(&layout, values));
    }
    exact.evaluate(manifest, &state, &held_out) / before
}

#[test]
fn a_decoder_learns() {
    let left = remaining(&mut manifest(model([40, 32, 2, 4, 2, 48, 32], true)), 3);
    assert!(left < 0.2, "{left}");
}

/// A window of one token: masked places are told by the others.
fn albert_remaining(method: Method, rate: f32) -> f64 {
    let mut manifest = manifest(albert([40, 32, 2, 4, 48, 32], 16));
    manifest.training.rounds = 300;
    (manifest.optimiser.method, manifest.optimiser.rate) = (method, real(rate));
    remaining(&mut manifest, 0)
}

#[test]
fn an_albert_learns() {
    let left = albert_remaining(Method::AdamW, 0.005);
    assert!(left < 0.2, "{left}");
}

#[test]
fn an_albert_learns_by_lamb() {
    let left = albert_remaining(Method::Lamb, 0.01);
    assert!(left < 0.3, "{left}");
}
