//! One result for every path, thread count and history of a machine; and none of it for values that are not finite.

use muster_compute::{Exact, Path, paths};
use muster_core::grid::LOSS_NOT_FINITE;
use muster_core::layout::Layout;
use muster_core::manifest::Manifest;
use muster_core::state::{Arithmetic, State, Update};

use crate::setting::{leaf, manifest, model, models, windows};

/// Everything that two rounds compute.
fn two_rounds(exact: &mut Exact, manifest: &Manifest) -> (State, Vec<i64>, u64) {
    let model = &manifest.model;
    let mut state = exact.initial(manifest, &windows(model, 2, 0));
    let mut losses = Vec::new();
    for round in 0..2 {
        let (loss, sum) = leaf(exact, manifest, &state, round, &windows(model, 3, round as u32));
        losses.push(loss);
        let values = sum.iter().map(|value| *value as f32).collect();
        exact.apply(manifest, &mut state, &Update::whole(&Layout::of(model), values));
    }
    let held_out = exact.evaluate(manifest, &state, &windows(model, 3, 8));
    (state, losses, held_out.to_bits())
}

#[test]
fn paths_and_threads_agree() {
    for model in [
        model([70, 32, 2, 4, 2, 56, 49], true),
        model([33, 20, 1, 2, 1, 17, 25], false),
        model([1100, 8, 1, 1, 1, 9, 6], true),
    ] {
        let manifest = manifest(model);
        let expected = two_rounds(&mut Exact::new(1, None).unwrap(), &manifest);
        for path in paths() {
            for threads in [1, 2, 3, 8] {
                let mut exact = Exact::new(threads, Some(path)).unwrap();
                assert_eq!(two_rounds(&mut exact, &manifest), expected, "{path:?} {threads}");
            }
        }
    }
}

#[test]
fn earlier_work_leaves_no_trace() {
    let manifest_of = |shape, tied| manifest(model(shape, tied));
    let big = manifest_of([64, 32, 2, 4, 2, 56, 49], true);
    let small = manifest_of([33, 20, 1, 2, 1, 17, 25], false);
    let expected = two_rounds(&mut Exact::new(1, None).unwrap(), &small);
    let mut used = Exact::new(1, None).unwrap();
    two_rounds(&mut used, &big);
    let state = used.initial(&big, &[]);
    used.evaluate(&big, &state, &windows(&big.model, 5, 3));
    assert_eq!(two_rounds(&mut used, &small), expected);
}

#[test]
fn sums_add_up_and_leaves_differ() {
    let manifest = manifest(model([33, 20, 1, 2, 1, 17, 25], true));
    let mut exact = Exact::new(1, None).unwrap();
    let windows = windows(&manifest.model, 2, 1);
    let state = exact.initial(&manifest, &windows);
    let (_, one) = leaf(&mut exact, &manifest, &state, 1, &windows);
    let (_, two) = leaf(&mut exact, &manifest, &state, 2, &windows);
    assert_ne!(one, two, "the dither is the leaf's own");
    let mut again = one.clone();
    let job = muster_core::state::LeafJob {
        state: &state,
        round_seed: muster_core::ids::Digest([9; 32]),
        leaf: muster_core::ids::Leaf(2),
        windows: &windows,
    };
    exact.leaf(&manifest, &job, &mut again);
    assert_eq!(again, two, "whatever the vector held");
}

#[test]
fn what_is_not_finite_stays_out() {
    let manifest = manifest(model([33, 20, 1, 2, 1, 17, 25], true));
    for path in paths() {
        let mut exact = Exact::new(1, Some(path)).unwrap();
        let windows = windows(&manifest.model, 2, 1);
        let mut state = exact.initial(&manifest, &windows);
        state.parameters[40] = f32::NAN;
        let (loss, _) = leaf(&mut exact, &manifest, &state, 1, &windows);
        assert_eq!(loss, LOSS_NOT_FINITE);
        // ARITH-45: an evaluation that is not finite is the one NaN, on every path.
        assert_eq!(exact.evaluate(&manifest, &state, &windows).to_bits(), f64::NAN.to_bits());
        let mut values = vec![1.0; state.parameters.len()];
        (values[3], values[4]) = (f32::INFINITY, f32::from_bits(0xffc0_0001));
        exact.apply(&manifest, &mut state, &Update::whole(&Layout::of(&manifest.model), values));
        assert!(state.parameters[3].is_finite() && state.first[4] == 0.0);
        assert_eq!(state.parameters[40].to_bits(), 0x7fc0_0000);
    }
}

/// A leaf of each kind of model whose windows meet NaN, infinities and −0 in the parameters: what is hashed has the same
/// bits everywhere.
#[test]
fn nan_reaches_no_hash() {
    // One thread on one path, three on the next, and the other way round at the next place.
    let mut turn = 0;
    for manifest in models().into_iter().map(manifest) {
        let windows = windows(&manifest.model, 3, 1);
        let mut good = Exact::new(1, None).unwrap().initial(&manifest, &windows);
        for (place, value) in [(41, -0.0), (47, f32::from_bits(1)), (5, 3e38), (9, -3e38)] {
            good.parameters[place] = value;
        }
        for bad in [f32::NAN, -f32::NAN, f32::from_bits(0x7f80_0001), f32::INFINITY, f32::NEG_INFINITY] {
            for place in [0, 45, good.parameters.len() / 2, good.parameters.len() - 1] {
                let mut state = good.clone();
                state.parameters[place] = bad;
                turn += 1;
                let mut found = paths().into_iter().zip(turn..).map(|(path, turn)| {
                    let mut exact = Exact::new([1, 3][turn % 2], Some(path)).unwrap();
                    (path, hashed(&mut exact, &manifest, &state, &windows, bad))
                });
                let (_, expected) = found.next().unwrap();
                for (path, found) in found {
                    assert!(found == expected, "{bad} at {place}: {path:?}");
                }
            }
        }
    }
}

/// The bits of all that is hashed or sealed of a leaf, an evaluation and an update with a bad aggregate.
fn hashed(
    exact: &mut Exact,
    manifest: &Manifest,
    state: &State,
    windows: &[Vec<u32>],
    bad: f32,
) -> (i64, Vec<i32>, u64, [Vec<u32>; 3], Vec<i16>) {
    let (loss, sum) = leaf(exact, manifest, state, 1, windows);
    let held_out = exact.evaluate(manifest, state, windows).to_bits();
    let mut next = state.clone();
    let values = sum.iter().map(|value| *value as f32 * bad).collect();
    exact.apply(manifest, &mut next, &Update::whole(&Layout::of(&manifest.model), values));
    let vectors = [next.parameters, next.first, next.second]
        .map(|vector| vector.iter().map(|value| value.to_bits()).collect());
    (loss, sum, held_out, vectors, next.exponents)
}

#[test]
fn tokens_beyond_the_vocabulary_count_as_the_last() {
    let manifest = manifest(model([33, 20, 1, 2, 1, 17, 25], true));
    let mut exact = Exact::new(1, None).unwrap();
    let last = vec![vec![32; 26]];
    let state = exact.initial(&manifest, &last);
    assert_eq!(
        leaf(&mut exact, &manifest, &state, 0, &last),
        leaf(&mut exact, &manifest, &state, 0, &[vec![u32::MAX; 26]])
    );
}

#[test]
fn self_test_passes_and_a_missing_path_is_refused() {
    for path in Path::ALL {
        for threads in [1, 2, 3, 8] {
            match Exact::new(threads, Some(path)) {
                Ok(mut exact) => {
                    assert_eq!(exact.path(), path);
                    exact.self_test().unwrap();
                }
                Err(misuse) => {
                    assert!(!path.available());
                    assert!(misuse.to_string().contains(path.name()));
                }
            }
        }
    }
}
