//! Any inputs: finite values, factors in 0..=1, no panic.
#![no_main]

use libfuzzer_sys::fuzz_target;
use muster_core::aggregate::{Input, block, weights};
use muster_core::manifest::Aggregation;

#[derive(arbitrary::Arbitrary, Debug)]
struct Case {
    settings: Aggregation,
    length: u8,
    inputs: Vec<(u8, Vec<i32>)>,
}

fuzz_target!(|case: Case| {
    let sizes: Vec<u32> = case.inputs.iter().map(|(m, _)| u32::from(*m)).collect();
    let weights = weights(&sizes, case.settings.cap_ppm);
    let vectors: Vec<Vec<i32>> = case
        .inputs
        .iter()
        .map(|(_, q)| q.iter().copied().chain(std::iter::repeat(0)).take(usize::from(case.length)).collect())
        .collect();
    let inputs: Vec<Input<'_>> = vectors
        .iter()
        .zip(sizes.iter().zip(&weights))
        .map(|(q, (m, weight))| Input { q, m: *m, weight: *weight })
        .collect();
    if let Some(aggregate) = block(&case.settings, &inputs) {
        assert!(aggregate.values.iter().all(|value| value.is_finite()));
        assert!(aggregate.factors.iter().all(|factor| (0.0..=1.0).contains(factor)));
        assert_eq!(aggregate.values.len(), usize::from(case.length));
    }
});
