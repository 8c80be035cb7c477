//! Local updates: chains of steps, what becomes of them, how far they can lead.

use muster_compute::{Exact, paths, reach};
use muster_core::ids::{Leaf, Row};
use muster_core::layout::Layout;
use muster_core::manifest::{Exchange, Manifest, Schedule, fixture};
use muster_core::state::{Arithmetic, LeafTask, State, Update};

use crate::setting::{ROUND_SEED, manifest, mixture, model, models, real, windows};

/// A run of local updates of this model: three segments of two steps.
pub fn local(model: muster_core::manifest::Model) -> Manifest {
    let mut manifest = manifest(model);
    fixture::local(&mut manifest, 3);
    manifest.training.grid_bits = 8;
    manifest.check().unwrap();
    manifest
}

/// Integers and losses of the first segments of a slot.
fn chain(exact: &mut Exact, manifest: &Manifest, state: &State, segments: u32) -> Vec<(Vec<i32>, i64)> {
    let count = manifest.windows_of_leaf();
    let mut tasks = (0..segments).map(|segment| LeafTask {
        state,
        round_seed: ROUND_SEED,
        leaf: Leaf(u64::from(2 + 5 * segment)),
        windows: windows(&manifest.model, count, 1 + segment),
        q: vec![1; 2],
    });
    let mut found = Vec::new();
    exact.leaves(manifest, &mut tasks, &mut |q, loss| found.push((q, loss)));
    found
}

fn sum(segments: &[(Vec<i32>, i64)]) -> Vec<i32> {
    let mut sum = vec![0; segments[0].0.len()];
    segments.iter().for_each(|(q, _)| sum.iter_mut().zip(q).for_each(|(sum, q)| *sum += q));
    sum
}

/// The state after a round whose aggregate is this sum, of which the second plane is exchanged or not.
fn applied(exact: &mut Exact, manifest: &Manifest, state: &State, sum: &[i32], planes: usize) -> State {
    let (layout, mut state) = (Layout::of_run(manifest), state.clone());
    let mut update = Update::empty(&layout, state.held());
    for block in layout.path_blocks(Row(0)).filter(|block| planes == 2 || !layout.is_of_moments(*block)) {
        let range = layout.block(block).unwrap().range.clone();
        let values: Vec<f32> = sum[range].iter().map(|value| *value as f32).collect();
        update.put(&layout, block, &values).unwrap();
    }
    exact.apply(manifest, &mut state, &update);
    state
}

#[test]
fn local_2_paths_and_threads_agree_on_chains() {
    for model in models() {
        let manifest = local(model);
        let rounds = |exact: &mut Exact| {
            let mut state = exact.initial(&manifest, &[]);
            let mut all = Vec::new();
            for planes in [2, 1] {
                let found = chain(exact, &manifest, &state, 3);
                state = applied(exact, &manifest, &state, &sum(&found), planes);
                all.push(found);
            }
            (all, state)
        };
        let expected = rounds(&mut Exact::new(1, None).unwrap());
        for path in paths() {
            for threads in [1, 2, 3] {
                let found = rounds(&mut Exact::new(threads, Some(path)).unwrap());
                assert!(found == expected, "{path:?} {threads}");
            }
        }
    }
}

#[test]
fn local_4_segments_add_up_to_what_the_whole_chain_has() {
    let manifest = local(model([33, 20, 1, 2, 1, 17, 25], true));
    let mut exact = Exact::new(1, None).unwrap();
    let state = exact.initial(&manifest, &[]);
    let all = chain(&mut exact, &manifest, &state, 3);
    for segments in 1..3 {
        assert_eq!(chain(&mut exact, &manifest, &state, segments as u32)[..], all[..segments], "a prefix");
    }
    // One long segment of the same steps ends where the short ones do: there is one dither.
    let mut whole = manifest.clone();
    let Exchange::Local(local) = &mut whole.exchange else { panic!("local updates") };
    local.segment = local.steps;
    let text = (0..3).flat_map(|segment| windows(&manifest.model, manifest.windows_of_leaf(), 1 + segment));
    let windows: Vec<_> = text.collect();
    let task = LeafTask { state: &state, round_seed: ROUND_SEED, leaf: Leaf(2), windows, q: Vec::new() };
    let mut at_once = Vec::new();
    exact.leaves(&whole, &mut [task].into_iter(), &mut |q, _| at_once = q);
    assert_eq!(at_once, sum(&all));
}

#[test]
fn local_1_nothing_but_the_public_state_counts() {
    let manifest = local(model([33, 20, 1, 2, 1, 17, 25], true));
    let mut exact = Exact::new(1, None).unwrap();
    let mut state = exact.initial(&manifest, &[]);
    state.second.fill(1e-6);
    state.shards[0].beta_powers = [1.0, 0.5];
    let expected = chain(&mut exact, &manifest, &state, 2);
    let momentum = State { first: vec![0.25; state.first.len()].into(), ..state.clone() };
    assert_eq!(chain(&mut exact, &manifest, &momentum, 2), expected, "outer momentum is none of the chain's");
    let second = State { second: vec![1e-4; state.second.len()].into(), ..state.clone() };
    assert_ne!(chain(&mut exact, &manifest, &second, 2), expected);
}

#[test]
fn local_10_the_run_steps_with_nesterovs_momentum() {
    let manifest = local(mixture(model([33, 20, 1, 2, 1, 17, 25], true), [4, 2, 8], 0.01));
    let mut exact = Exact::new(1, None).unwrap();
    let state = exact.initial(&manifest, &[]);
    // LOCAL-12
    let exponents = &state.exponents;
    let step = 2f64.powi(i32::from(exponents[0]) + 8);
    let first = 0.01 / 2.0 * 6.0 / 4.0;
    assert!(
        exponents.iter().all(|e| *e == exponents[0]) && step <= first && first < 2.0 * step,
        "{exponents:?}"
    );
    let d = state.parameters.len();
    let moved: Vec<i32> =
        (0..2 * d).map(|c| if c < d { c as i32 % 300 - 150 } else { c as i32 % 5 - 2 }).collect();
    let once = applied(&mut exact, &manifest, &state, &moved, 1);
    let twice = applied(
        &mut exact,
        &manifest,
        &State { exponents: state.exponents.clone(), ..once.clone() },
        &moved,
        1,
    );
    for c in (0..d).step_by(97) {
        let delta = moved[c] as f32 * 2f32.powi(exponents[0].into());
        assert_eq!(once.first[c], delta);
        assert!((once.parameters[c] - (state.parameters[c] - 0.7 * 1.9 * delta)).abs() <= 1e-6);
        let u = 1.9 * delta;
        assert!((twice.parameters[c] - (once.parameters[c] - 0.7 * (delta + 0.9 * u))).abs() <= 1e-6);
    }
    assert_eq!((&once.second, once.shards[0].beta_powers), (&state.second, [1.0, 1.0]), "not renewed");
    let renewed = applied(&mut exact, &manifest, &state, &moved, 2);
    assert!((renewed.shards[0].beta_powers[1] - 0.95f64.powi(6)).abs() < 1e-6);
    // From the number 0: a quarter of an octave a step, beginning at 2⁻⁵⁹.
    assert!(renewed.second.iter().all(|v| *v == 0.0 || (2f32.powi(-59)..2f32.powi(-58)).contains(v)));
    assert!(renewed.second.iter().any(|v| *v > 0.0));
}

#[test]
fn grid_7_a_chain_saturates_its_grid() {
    let mut manifest = local(model([33, 20, 1, 2, 1, 17, 25], true));
    manifest.training.grid_bits = 1;
    let mut exact = Exact::new(1, None).unwrap();
    let mut state = exact.initial(&manifest, &[]);
    // A unit that is far too fine.
    state.exponents.iter_mut().for_each(|exponent| *exponent -= 12);
    let found = chain(&mut exact, &manifest, &state, 3);
    let d = state.parameters.len();
    let most = sum(&found)[..d].iter().map(|q| q.abs()).max();
    assert_eq!(most, Some(63));
    assert!(found[0].0[..d].iter().all(|q| q.abs() <= 63), "the first segment is all that there is then");
}

/// Gradients that drive AdamW far: constant, growing, falling, turning, once, and the ones by which Cauchy and Schwarz are
/// equal, g_j ∝ (β₁/β₂)^(k − j).
fn gradients(steps: usize, seed: u64) -> Vec<Vec<f32>> {
    let shapes: [&dyn Fn(i32) -> f64; 6] = [
        &|_| 1.0,
        &|k| 1.3f64.powi(k),
        &|k| 0.7f64.powi(k),
        &|k| if k % 2 == 0 { 1.0 } else { -0.9 },
        &|k| f64::from(u8::from(k == 0)),
        &|k| (0.9f64 / 0.99).powi(-k),
    ];
    let drawn = |k: i32| {
        let hash = muster_core::hash::Hasher::new(muster_core::hash::Domain::STATE);
        let word = hash.part(&[seed.to_le_bytes().as_slice(), &k.to_le_bytes()].concat()).number();
        (word as f64 / u64::MAX as f64 - 0.3) * 10f64.powi((word % 5) as i32)
    };
    let shaped = shapes.iter().map(|shape| (0..steps as i32).map(|k| shape(k) as f32).collect());
    shaped.chain([(0..steps as i32).map(|k| drawn(k) as f32).collect()]).collect()
}

/// LOCAL-13: no gradients of the search lead further than the bound, and some lead nearly as far.
#[test]
fn local_13_steps_lead_no_further_than_their_bound() {
    let mut manifest = manifest(model([33, 20, 1, 2, 1, 17, 25], true));
    let optimiser = &mut manifest.optimiser;
    (optimiser.schedule, optimiser.warmup, optimiser.beta2) = (Schedule::Constant, 0, real(0.99));
    (optimiser.weight_decay, optimiser.clip_norm) = (real(0.0), real(0.0));
    let layout = Layout::of(&manifest.model);
    let mut exact = Exact::new(1, None).unwrap();
    let mut start = exact.initial(&manifest, &[]);
    start.parameters = vec![0.0; layout.parameters()].into();
    start.exponents = vec![0; layout.tensors().len()];
    let mut nearest: f64 = 0.0;
    for (power, before) in [(1.0, 0.0), (0.9, 1e-12), (0.5, 1e-6), (1e-9, 0.0), (1e-9, 1e-3)] {
        for steps in [1usize, 2, 5, 24] {
            for gradients in (0..4).flat_map(|seed| gradients(steps, seed)) {
                let mut state = start.clone();
                state.second.fill(before);
                state.shards[0].beta_powers = [0.0, power];
                let most = reach(&manifest, &state.shards[0], steps as u32);
                for gradient in &gradients {
                    state.exponents.fill(0);
                    exact.apply(
                        &manifest,
                        &mut state,
                        &Update::whole(&layout, vec![*gradient; layout.parameters()]),
                    );
                }
                let moved = f64::from(state.parameters[7].abs());
                assert!(
                    moved <= most * (1.0 + 1e-5),
                    "{power} {before} {gradients:?}: {moved} beyond {most}"
                );
                nearest = nearest.max(moved / most);
            }
        }
    }
    assert!(nearest > 0.99, "the bound is reached: {nearest}");
    // What spec/local.md says of it: one learning rate in the first step of a late round, 2.35 after many.
    let late = muster_core::state::Shard { beta_powers: [0.0, 0.0], ..start.shards[0] };
    let of = |steps| reach(&manifest, &late, steps) / 0.01;
    assert!(
        (of(1) - 1.0).abs() < 0.01 && (of(200) - of(199) - 2.35).abs() < 0.02,
        "{} {}",
        of(1),
        of(200) - of(199)
    );
}
