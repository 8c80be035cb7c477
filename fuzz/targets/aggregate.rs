//! Any inputs and rule: finite values between the smallest and the largest input (and 0, where a rule starts there),
//! factors in 0..=1; and whatever more than half of the weight agrees on is the result of centred clip and median.
#![no_main]

use libfuzzer_sys::fuzz_target;
use muster_core::aggregate::{Input, block, weights};
use muster_core::manifest::{Aggregation, Manifest, Rule};
use muster_fuzz::manifest;

#[derive(arbitrary::Arbitrary, Debug)]
struct Case {
    settings: Aggregation,
    length: u8,
    inputs: Vec<Contribution>,
}

#[derive(arbitrary::Arbitrary, Debug)]
struct Contribution {
    leaves: u8,
    q: Values,
}

#[derive(arbitrary::Arbitrary, Debug)]
enum Values {
    Small(Vec<i8>),
    Any(Vec<i32>),
    Constant(i32),
    /// Those of an earlier input, as if this one had summed the same leaves.
    Copy(u8),
}

impl Values {
    fn of(&self, earlier: &[Vec<i32>], length: usize) -> Vec<i32> {
        let padded =
            |values: &mut dyn Iterator<Item = i32>| values.chain(std::iter::repeat(0)).take(length).collect();
        match self {
            Self::Small(values) => padded(&mut values.iter().map(|value| i32::from(*value))),
            Self::Any(values) => padded(&mut values.iter().copied()),
            Self::Constant(value) => vec![*value; length],
            Self::Copy(place) if earlier.is_empty() => vec![i32::from(*place); length],
            Self::Copy(place) => earlier[usize::from(*place) % earlier.len()].clone(),
        }
    }
}

/// The input that more than half of the weight equals, if there is one.
fn majority<'a>(inputs: &'a [Input<'a>]) -> Option<&'a Input<'a>> {
    let total: u64 = inputs.iter().map(|input| input.weight).sum();
    let same = |a: &Input<'_>, b: &Input<'_>| {
        a.q.iter()
            .zip(b.q)
            // Crosswise, so that nothing is rounded.
            .all(|(a_q, b_q)| i64::from(*a_q) * i64::from(b.m) == i64::from(*b_q) * i64::from(a.m))
    };
    let weight = |one: &Input<'_>| -> u64 {
        inputs.iter().filter(|other| same(one, other)).map(|other| other.weight).sum()
    };
    inputs.iter().find(|one| 2 * weight(one) > total)
}

fuzz_target!(|case: Case| {
    // Settings that no manifest may have reach no rule.
    let mut manifest = Manifest::clone(&manifest(1, 1));
    manifest.aggregation = case.settings.clone();
    if manifest.check().is_err() {
        return;
    }
    let length = usize::from(case.length);
    let sizes: Vec<u32> = case.inputs.iter().map(|input| u32::from(input.leaves)).collect();
    let weights = weights(&sizes, case.settings.cap_ppm);
    let mut vectors: Vec<Vec<i32>> = Vec::new();
    for input in &case.inputs {
        vectors.push(input.q.of(&vectors, length));
    }
    let shares = sizes.iter().zip(&weights);
    let inputs: Vec<Input<'_>> =
        vectors.iter().zip(shares).map(|(q, (m, weight))| Input { q, m: *m, weight: *weight }).collect();
    let Some(aggregate) = block(&case.settings, &inputs) else { return };
    assert_eq!(aggregate.values.len(), length);
    assert!(aggregate.factors.iter().all(|factor| (0.0..=1.0).contains(factor)));
    for (place, value) in aggregate.values.iter().enumerate() {
        let inputs = inputs.iter().filter(|input| input.weight > 0);
        let coordinates = inputs.map(|input| f64::from(input.q[place]) / f64::from(input.m));
        let (low, high) =
            coordinates.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), x| (low.min(x), high.max(x)));
        // This rule starts at 0 and need not get as far as the inputs.
        let (low, high) = if case.settings.rule == Rule::FixedRadiusClip {
            (low.min(0.0), high.max(0.0))
        } else {
            (low, high)
        };
        // Results are f32, the bounds f64.
        let slack = 1e-6 * low.abs().max(high.abs());
        assert!(
            (low - slack..=high + slack).contains(&f64::from(*value)),
            "{value} is not in {low}..={high}"
        );
    }
    let follows = matches!(case.settings.rule, Rule::CenteredClip | Rule::Median) && !case.settings.mixing;
    if let Some(agreed) = majority(&inputs).filter(|_| follows) {
        let expected = agreed.q.iter().map(|q| (f64::from(*q) / f64::from(agreed.m)) as f32);
        assert!(aggregate.values.iter().copied().eq(expected), "the majority is not followed");
    }
});
