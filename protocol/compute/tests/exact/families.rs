//! All families, with and without recomputation, on every path and number of threads: one result.

use muster_compute::{Exact, Path, paths};
use muster_core::grid::LOSS_NOT_FINITE;
use muster_core::layout::Layout;
use muster_core::manifest::{Manifest, Method, Projection};
use muster_core::state::{Arithmetic, State, Update};

use crate::setting::{albert, leaf, manifest, mixture, model, models, variant, windows};

/// Two rounds: states, sums, losses, and the held-out loss.
fn two_rounds(exact: &mut Exact, manifest: &Manifest, count: u32) -> (State, Vec<(i64, Vec<i32>)>, u64) {
    let model = &manifest.model;
    // The start is the same whether activations are computed again or not, but not the manifest's hash.
    let mut stored = manifest.clone();
    stored.training.recompute = false;
    let mut state = exact.initial(&stored, &windows(model, 2, 0));
    let mut leaves = Vec::new();
    for round in 0..2 {
        let (loss, sum) = leaf(exact, manifest, &state, round, &windows(model, count, round as u32));
        let values = sum.iter().map(|value| *value as f32).collect();
        leaves.push((loss, sum));
        exact.apply(manifest, &mut state, &Update::whole(&Layout::of(model), values));
    }
    let held_out = exact.evaluate(&stored, &state, &windows(model, 3, 8));
    (state, leaves, held_out.to_bits())
}

#[test]
fn recomputing_packing_threads_and_paths_change_nothing() {
    for (index, model) in models().into_iter().enumerate() {
        let mut manifest = manifest(model);
        manifest.optimiser.method = if index % 2 == 0 { Method::AdamW } else { Method::Lamb };
        let count = [1, 3, 4][index % 3];
        let expected = two_rounds(&mut Exact::new(1, Some(Path::Portable)).unwrap(), &manifest, count);
        assert!(expected.1.iter().all(|(loss, _)| *loss != LOSS_NOT_FINITE));
        for (path, turn) in paths().into_iter().zip(index..) {
            for (threads, turn) in [1, 2, 3, 8].into_iter().zip(turn..) {
                // Half of the ways, and the other half with the next number of threads, on the next path, of the next model.
                let ways = [(false, u64::MAX), (true, 0), (true, u64::MAX), (false, 0)];
                for (recompute, packed) in &ways[2 * (turn % 2)..][..2] {
                    manifest.training.recompute = *recompute;
                    let mut exact = Exact::new(threads, Some(path)).unwrap();
                    exact.pack_up_to(*packed);
                    let found = two_rounds(&mut exact, &manifest, count);
                    manifest.training.recompute = false;
                    assert!(found == expected, "{path:?} {threads} {recompute} {packed} model {index}");
                }
            }
        }
    }
}

#[test]
fn products_shared_by_threads_change_nothing() {
    let experts = mixture(model([300, 256, 1, 4, 2, 700, 200], true), [3, 2, 512], 0.01);
    let decoder = || model([300, 256, 1, 4, 2, 700, 200], true);
    for model in [
        decoder(),
        albert([300, 256, 1, 4, 700, 200], 64),
        experts,
        variant(decoder(), 96, Projection::Normed),
    ] {
        let manifest = manifest(model);
        let windows = windows(&manifest.model, 1, 3);
        let mut one = Exact::new(1, None).unwrap();
        let state = one.initial(&manifest, &windows);
        let expected = leaf(&mut one, &manifest, &state, 1, &windows);
        for threads in [2, 3, 8] {
            for packed in [u64::MAX, 0] {
                let mut exact = Exact::new(threads, None).unwrap();
                exact.pack_up_to(packed);
                let found = leaf(&mut exact, &manifest, &state, 1, &windows);
                assert!(found == expected, "{threads} {packed}");
            }
        }
    }
}

#[test]
fn what_is_not_finite_stays_out() {
    for mut manifest in models().into_iter().map(manifest) {
        for (method, bad) in
            [(Method::AdamW, f32::NAN), (Method::Lamb, f32::INFINITY), (Method::Lamb, f32::NAN)]
        {
            manifest.optimiser.method = method;
            let windows = windows(&manifest.model, 2, 1);
            let mut exact = Exact::new(2, None).unwrap();
            let mut state = exact.initial(&manifest, &windows);
            let layout = Layout::of(&manifest.model);
            // A row that every window reads: the first layer's.
            let place = layout.tensors()[4].offset;
            state.parameters[place] = bad;
            let (loss, sum) = leaf(&mut exact, &manifest, &state, 1, &windows);
            assert_eq!(loss, LOSS_NOT_FINITE);
            assert!(sum.iter().filter(|value| **value == 0).count() > sum.len() / 2);
            assert_eq!(exact.evaluate(&manifest, &state, &windows).to_bits(), f64::NAN.to_bits());
            let mut values = vec![1.0; state.parameters.len()];
            (values[3], values[4]) = (f32::INFINITY, f32::from_bits(0xffc0_0001));
            exact.apply(&manifest, &mut state, &Update::whole(&layout, values));
            assert!(state.parameters[3].is_finite() && state.first[4] == 0.0);
            let nan = state.parameters.iter().filter(|value| value.is_nan());
            assert!(nan.clone().count() <= 1 && nan.into_iter().all(|nan| nan.to_bits() == 0x7fc0_0000));
        }
    }
}

#[test]
fn what_follows_a_text_changes_none_of_its_logits() {
    for model in models() {
        let decoder = model.decoder().is_some();
        let (manifest, vocabulary) = (manifest(model.clone()), model.vocabulary as usize);
        let text = windows(&manifest.model, 1, 5).remove(0);
        let text = &text[..manifest.model.sequence as usize];
        let mut exact = Exact::new(2, None).unwrap();
        let parameters = exact.initial(&manifest, &[]).parameters;
        let mut reader = exact.reader(&manifest, &parameters);
        let whole = reader.logits(text);
        for length in [1, 2, 16, 24, text.len()].into_iter().filter(|_| decoder) {
            let rows = &whole[..length * vocabulary];
            // ARITH-5: probabilities beyond a row's own token take part as +0, within its block of 24 and beyond.
            assert_eq!(bits(&reader.logits(&text[..length])), bits(rows), "{length}");
            let last = &rows[rows.len() - vocabulary..];
            assert_eq!(bits(&reader.after(&text[..length])), bits(last), "{length}");
        }
        assert_eq!(
            bits(&Exact::new(1, None).unwrap().reader(&manifest, &parameters).logits(text)),
            bits(&whole)
        );
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn masks_are_the_leafs_own() {
    let manifest = manifest(albert([70, 32, 1, 4, 56, 49], 16));
    let mut exact = Exact::new(1, None).unwrap();
    let windows = windows(&manifest.model, 2, 1);
    let state = exact.initial(&manifest, &windows);
    let [one, two] = [1, 2].map(|number| leaf(&mut exact, &manifest, &state, number, &windows).0);
    assert_ne!(one, two, "the masks of two leaves");
}

/// What would follow a text, how many positions are asked for, the path and the threads change no bit of a logit.
#[test]
fn call_4_logits_are_those_of_the_text_alone() {
    for model in models().into_iter().filter(|model| model.decoder().is_some()) {
        let manifest = manifest(model);
        let (vocabulary, text) =
            (manifest.model.vocabulary as usize, windows(&manifest.model, 1, 5).remove(0));
        let mut one = Exact::new(1, Some(Path::Portable)).unwrap();
        let state = one.initial(&manifest, &windows(&manifest.model, 2, 0));
        let text = &text[..manifest.model.sequence as usize];
        let all = one.logits(&manifest, &state, text, text.len()).unwrap();
        assert_eq!(all.len(), text.len() * vocabulary);
        for path in paths() {
            let mut exact = Exact::new(2, Some(path)).unwrap();
            for length in [1, 2, text.len() / 2, text.len()] {
                for positions in [1, length] {
                    let found = exact.logits(&manifest, &state, &text[..length], positions).unwrap();
                    let expected = &all[(length - positions) * vocabulary..length * vocabulary];
                    let same =
                        found.iter().map(|logit| logit.to_bits()).eq(expected.iter().map(|l| l.to_bits()));
                    assert!(same, "{path:?}, {positions} of {length}");
                }
            }
        }
    }
    // A model that fills masked tokens in has no logits of what follows.
    let masked = manifest(albert([70, 32, 3, 4, 56, 49], 16));
    let mut exact = Exact::new(1, None).unwrap();
    let state = exact.initial(&masked, &windows(&masked.model, 2, 0));
    assert!(exact.logits(&masked, &state, &[1], 1).is_none());
}
