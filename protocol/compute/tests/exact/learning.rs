//! Whole rounds make the loss fall.

use muster_compute::Exact;
use muster_core::layout::Layout;
use muster_core::state::{Arithmetic, Update};

use crate::setting::{leaf, manifest, model, real};

/// Windows that count in threes.
fn windows(count: u32, seed: u32) -> Vec<Vec<u32>> {
    (0..count)
        .map(|window| (0..=32).map(|place| (place * 3 + window * 17 + seed * 5) % 40).collect())
        .collect()
}

#[test]
fn loss_falls() {
    let mut manifest = manifest(model([40, 32, 2, 4, 2, 48, 32], true));
    manifest.training.grid_bits = 8;
    manifest.model.initial_scale = real(0.1);
    let mut exact = Exact::new(2, None).unwrap();
    let mut state = exact.initial(&manifest, None, &windows(2, 100));
    let blocks = Layout::of(&manifest.model).blocks().len();
    let held_out = windows(4, 0);
    let before = exact.evaluate(&manifest, &state, &held_out);
    for round in 0..manifest.training.rounds {
        let mut total = vec![0; state.parameters.len()];
        for index in 0..4 {
            let windows = windows(2, round + index);
            let (_, sum) = leaf(&mut exact, &manifest, &state, u64::from(round * 4 + index), &windows);
            total.iter_mut().zip(sum).for_each(|(total, value)| *total += value);
        }
        let values = total.iter().map(|value| (f64::from(*value) / 4.0) as f32).collect();
        exact.apply(&manifest, &mut state, &Update { values, present: vec![true; blocks] });
    }
    let after = exact.evaluate(&manifest, &state, &held_out);
    assert!(after < 0.2 * before, "{before} {after}");
}
