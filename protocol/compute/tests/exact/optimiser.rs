//! The update against AdamW and LAMB in plain f64, its schedule, its exponents, and blocks that were left out.

use muster_compute::Exact;
use muster_core::assign::calibration_seed;
use muster_core::codec::Real;
use muster_core::ids::Leaf;
use muster_core::layout::Layout;
use muster_core::manifest::{Manifest, Method, Model, Schedule};
use muster_core::state::{Arithmetic, LeafJob, State, Update};

use crate::setting::{albert, manifest, model, real, windows};

/// AdamW as Loshchilov and Hutter write it, and LAMB as You et al. do.
struct Plain {
    parameters: Vec<f64>,
    first: Vec<f64>,
    second: Vec<f64>,
}

fn rate(manifest: &Manifest, step: u32) -> f64 {
    let optimiser = &manifest.optimiser;
    let [peak, least] = [optimiser.rate, optimiser.minimum_rate].map(|r| f64::from(r.value()));
    if step < optimiser.warmup {
        return peak * f64::from(step + 1) / f64::from(optimiser.warmup);
    }
    let progress =
        f64::from(step - optimiser.warmup) / f64::from(manifest.training.rounds - 1 - optimiser.warmup);
    match optimiser.schedule {
        Schedule::Constant => peak,
        Schedule::Linear => peak + (least - peak) * progress,
        Schedule::Cosine => least + (peak - least) * (1.0 + (progress * std::f64::consts::PI).cos()) / 2.0,
    }
}

impl Plain {
    fn apply(&mut self, manifest: &Manifest, exponents: &[i16], step: u32, values: &[f32]) {
        let optimiser = &manifest.optimiser;
        let value = |real: Real| f64::from(real.value());
        let layout = Layout::of(&manifest.model);
        let mut gradient = vec![0.0; values.len()];
        for (tensor, exponent) in layout.tensors().iter().zip(exponents) {
            for c in tensor.range() {
                gradient[c] = f64::from(values[c]) * 2f64.powi(i32::from(*exponent));
            }
        }
        let norm = gradient.iter().map(|g| g * g).sum::<f64>().sqrt();
        let clip = value(optimiser.clip_norm);
        if clip > 0.0 && norm > clip {
            gradient.iter_mut().for_each(|g| *g *= clip / norm);
        }
        let [beta1, beta2] = [optimiser.beta1, optimiser.beta2].map(value);
        let rate = rate(manifest, step);
        let t = step as i32 + 1;
        for tensor in layout.tensors() {
            let decay = if tensor.shape[0] > 1 { value(optimiser.weight_decay) } else { 0.0 };
            let mut direction = Vec::new();
            for c in tensor.range() {
                let g = gradient[c];
                self.first[c] = beta1 * self.first[c] + (1.0 - beta1) * g;
                self.second[c] = beta2 * self.second[c] + (1.0 - beta2) * g * g;
                let m = self.first[c] / (1.0 - beta1.powi(t));
                let v = self.second[c] / (1.0 - beta2.powi(t));
                direction.push(m / (v.sqrt() + value(optimiser.epsilon)) + decay * self.parameters[c]);
            }
            let layerwise = optimiser.method == Method::Lamb && tensor.shape[0] > 1;
            let norm = |values: &[f64]| values.iter().map(|x| x * x).sum::<f64>().sqrt();
            let trust = norm(&self.parameters[tensor.range()]) / norm(&direction);
            let rate = if layerwise { rate * trust } else { rate };
            let parameters = &mut self.parameters[tensor.range()];
            parameters.iter_mut().zip(direction).for_each(|(parameter, step)| *parameter -= rate * step);
        }
    }
}

/// Aggregates about 2⁸ grid units large.
fn values(count: usize, round: u32) -> Vec<f32> {
    (0..count as u32)
        .map(|c| ((c.wrapping_mul(2_654_435_761) ^ (round * 77)) % 1021) as f32 - 510.0)
        .collect()
}

fn initial(manifest: &Manifest) -> (Exact, State) {
    let mut exact = Exact::new(1, None).unwrap();
    let state = exact.initial(manifest, &windows(&manifest.model, 2, 1));
    (exact, state)
}

#[test]
fn equals_plain_adamw() {
    equals_plain(Method::AdamW, model([33, 20, 1, 2, 1, 17, 25], true));
}

#[test]
fn equals_plain_lamb() {
    equals_plain(Method::Lamb, model([33, 20, 1, 2, 1, 17, 25], true));
    equals_plain(Method::Lamb, albert([4000, 20, 2, 2, 17, 25], 24));
}

fn equals_plain(method: Method, model: Model) {
    for (schedule, clip) in [(Schedule::Constant, 0.0), (Schedule::Linear, 1e-4), (Schedule::Cosine, 1e3)] {
        let mut manifest = manifest(model.clone());
        manifest.optimiser.method = method;
        manifest.training.rounds = 8;
        manifest.optimiser.schedule = schedule;
        manifest.optimiser.clip_norm = real(clip);
        let (mut exact, mut state) = initial(&manifest);
        let parameters: Vec<f64> = state.parameters.iter().map(|p| f64::from(*p)).collect();
        let zeros = vec![0.0; parameters.len()];
        let mut plain = Plain { parameters, first: zeros.clone(), second: zeros };
        for step in 0..manifest.training.rounds {
            let values = values(state.parameters.len(), step);
            plain.apply(&manifest, &state.exponents, step, &values);
            exact.apply(&manifest, &mut state, &Update::whole(&Layout::of(&manifest.model), values));
            for (found, expected) in state.parameters.iter().zip(&plain.parameters) {
                assert!(
                    (f64::from(*found) - expected).abs() < 1e-6 * (1.0 + expected.abs()),
                    "step {step}: {found} {expected}"
                );
            }
        }
        assert_eq!(state.shards[0].step, 8);
        assert!((state.shards[0].beta_powers[0] - f64::from(0.9f32).powi(8)).abs() < 1e-12);
    }
}

/// ARITH-49, with the sums of squares in plain f64: another order moves no power of two.
#[test]
fn grid_3_exponents_begin_with_the_calibration_gradient_and_at_minus_20_without_one() {
    let manifest = manifest(model([33, 20, 1, 2, 1, 17, 25], true));
    let (mut exact, state) = initial(&manifest);
    let windows = windows(&manifest.model, 2, 1);
    let round_seed = calibration_seed(manifest.run());
    let job = LeafJob { state: &state, round_seed, leaf: Leaf(0), windows: &windows };
    let gradient = exact.gradient(&manifest, &job).to_vec();
    for (tensor, exponent) in Layout::of(&manifest.model).tensors().iter().zip(&state.exponents) {
        let squares: f64 = gradient[tensor.range()].iter().map(|g| f64::from(*g).powi(2)).sum();
        let rms = (squares / tensor.len() as f64).sqrt();
        let grid_bits = i32::from(manifest.training.grid_bits);
        assert_eq!(i32::from(*exponent), rms.log2().floor() as i32 - grid_bits, "{}", tensor.name);
    }
    // Without a window the gradient is 0.
    assert!(exact.initial(&manifest, &[]).exponents.iter().all(|exponent| *exponent == -20));
}

/// GRID-5.
#[test]
fn exponents_follow_the_aggregate_by_one() {
    let manifest = manifest(model([33, 20, 1, 2, 1, 17, 25], true));
    let (mut exact, mut state) = initial(&manifest);
    let layout = Layout::of(&manifest.model);
    let before = state.exponents.clone();
    let mut values = vec![0.0; state.parameters.len()];
    let [grows, keeps, falls] = [0, 2, 3];
    values[layout.tensors()[grows].range()].fill((1 << 20) as f32);
    values[layout.tensors()[keeps].range()].fill((1 << 14) as f32);
    values[layout.tensors()[falls].range()].fill(3.0);
    exact.apply(&manifest, &mut state, &Update::whole(&layout, values));
    assert_eq!(state.exponents[grows], before[grows] + 1);
    assert_eq!(state.exponents[keeps], before[keeps]);
    assert_eq!(state.exponents[falls], before[falls] - 1);
    assert_eq!(state.exponents[4], before[4], "a zero aggregate says nothing");
}

#[test]
fn row_6_a_late_step_leaves_the_exponents_and_nothing_else() {
    let manifest = manifest(model([33, 20, 1, 2, 1, 17, 25], true));
    let (mut exact, state) = initial(&manifest);
    let layout = Layout::of(&manifest.model);
    let update = Update::whole(&layout, vec![(1 << 20) as f32; state.parameters.len()]);
    let late = Update { late: update.shards.clone(), ..update.clone() };
    let [now, later] = [update, late].map(|update| {
        let mut state = state.clone();
        exact.apply(&manifest, &mut state, &update);
        state
    });
    assert!(now.exponents.iter().zip(&state.exponents).all(|(after, before)| *after == before + 1));
    assert_eq!(later.exponents, state.exponents);
    assert!(later.parameters == now.parameters && later.second == now.second && later.shards == now.shards);
}

#[test]
fn grid_8_results_are_in_units_of_the_state_that_their_leaves_were_on() {
    let manifest = manifest(model([19, 16, 2, 4, 4, 24, 27], true));
    let delayed = Manifest { delay: 1, ..manifest.clone() };
    let (mut exact, mut prompt) = initial(&manifest);
    let (_, mut late) = initial(&delayed);
    let tensors = prompt.exponents.len();
    // Another run has other parameters.
    prompt.parameters.clone_from(&late.parameters);
    prompt.exponents = late.exponents[..tensors].to_vec();
    assert_eq!(late.exponents, [&prompt.exponents[..], &prompt.exponents].concat(), "both begin alike");
    let update = |behind, seed| {
        let values = values(prompt.parameters.len(), seed).iter().map(|value| value * 1e6).collect();
        Update { behind, ..Update::whole(&Layout::of(&manifest.model), values) }
    };
    let (one, two, three) = (update(false, 0), update(true, 1), update(true, 2));
    let start = prompt.exponents.clone();
    exact.apply(&delayed, &mut late, &one);
    exact.apply(&manifest, &mut prompt, &one);
    assert!(late.parameters == prompt.parameters, "the first round is on the newest state");
    assert_eq!(late.exponents, [&prompt.exponents[..], &start].concat());
    let first = prompt.exponents.clone();
    assert!(first.iter().zip(&start).all(|(now, before)| *now == before + 1));
    // As a state whose exponents had stayed takes it.
    exact.apply(&delayed, &mut late, &two);
    prompt.exponents.clone_from(&start);
    exact.apply(&manifest, &mut prompt, &two);
    assert!(late.parameters == prompt.parameters && late.second == prompt.second);
    assert_eq!(late.exponents[tensors..], first);
    assert!(late.exponents[..tensors].iter().zip(&first).all(|(now, before)| *now == before + 1));
    exact.apply(&delayed, &mut late, &three);
    prompt.exponents.clone_from(&first);
    exact.apply(&manifest, &mut prompt, &three);
    assert!(late.parameters == prompt.parameters);
}

#[test]
fn absent_blocks_stay_untouched() {
    let manifest = manifest(model([3000, 24, 1, 2, 1, 17, 5], true));
    let (mut exact, mut state) = initial(&manifest);
    let layout = Layout::of(&manifest.model);
    assert_eq!(layout.blocks()[1].tensor, 0, "the embedding has two blocks");
    let update = Update::whole(&layout, values(state.parameters.len(), 0));
    exact.apply(&manifest, &mut state, &update);
    let before = state.clone();
    let mut values = vec![(1 << 20) as f32; state.parameters.len()];
    values[layout.blocks()[1].range.clone()].fill(f32::NAN);
    let mut update = Update::whole(&layout, values);
    update.blocks[1] = None;
    exact.apply(&manifest, &mut state, &update);
    let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
    for (index, block) in layout.blocks().iter().enumerate() {
        for (old, new) in [
            (&before.parameters, &state.parameters),
            (&before.first, &state.first),
            (&before.second, &state.second),
        ] {
            let same = bits(&old[block.range.clone()]) == bits(&new[block.range.clone()]);
            assert_eq!(same, index == 1, "block {index}");
        }
    }
    // GRID-5: the tensor with the absent block keeps its exponent, others move.
    assert_eq!(state.exponents[0], before.exponents[0]);
    assert_eq!(state.exponents[1], before.exponents[1] + 1);
}
