//! Known answers: two rounds of a small model of each family, whose every bit is fixed.
//!
//! The models have odd sizes, the decoder shared key heads and an untied head, so that every kernel meets whole and
//! partial tiles.

use muster_core::codec::Real;
use muster_core::error::Misuse;
use muster_core::hash::{Domain, Hasher};
use muster_core::ids::{Digest, Leaf, hex};
use muster_core::manifest::{
    Albert, Decoder, Family, Method, Mixture, Model, Optimiser, Projection, Scaling, Schedule, Variant,
};
use muster_core::state::{LeafJob, State, Update, integer_bytes, real_bytes};

#[cfg(feature = "tch")]
use crate::backend::Closeness;
use crate::initial;
use crate::leaf::{Batch, Engine, Setting};
use crate::optimiser::{Rules, apply};
use crate::path::Kernels;

/// Hash of what [`digest`] computes of each of [`families`].
const ANSWERS: [&str; 5] = [
    "10b6d0d6e1987c0abf83a97e4701f57f9163c20a42826fbaaaf0dd4ddf5730c1",
    "f0bfebc6d80b6516e6aabf52c30756cd5a74830ad8b3e2111888e98fe79d4967",
    "54ed5a407964d71728db08fc720a03cdef5de0ad2bc11ea2a99133512464e6a5",
    "1c696b59d1a4bd147458f1113989567ba6749d6f111ebdffaea8fb7ae37a7452",
    "aed97f2730042706c8581d3368a2713b04f53ac1d74dde00ddb51871c3365bd2",
];

/// Compares [`digest`] with the known answers; `name` is what computes. What follows a leaf is the processor's.
pub(crate) fn run(tested: &mut dyn Computes, kernels: Kernels, name: &str) -> Result<(), Misuse> {
    for ((family, method), answer) in families()?.into_iter().zip(ANSWERS) {
        let model = model(family)?;
        let found = hex(&digest(tested, kernels, &model, &optimiser(method)?)?.0);
        if found != answer {
            return Err(Misuse(format!(
                "the self-test of {name} gave {found} instead of {answer}: results of this machine or build would differ \
                 from every other member's"
            )));
        }
    }
    Ok(())
}

fn families() -> Result<[(Family, Method); 5], Misuse> {
    Ok([
        (decoder()?, Method::AdamW),
        (albert(), Method::Lamb),
        (mixture()?, Method::AdamW),
        (variant(10, Projection::Biased)?, Method::AdamW),
        (variant(22, Projection::Normed)?, Method::AdamW),
    ])
}

/// What is tested: what computes leaves and losses.
pub(crate) trait Computes {
    /// Writes a leaf's integers; gives its fixed-point mean loss.
    fn leaf(&mut self, setting: Setting<'_>, job: &LeafJob<'_>, q: &mut [i32]) -> Result<i64, Misuse>;

    /// The mean loss of some windows.
    fn evaluate(&mut self, model: &Model, parameters: &[f32], batch: Batch<'_>) -> Result<f64, Misuse>;
}

impl Computes for Engine {
    fn leaf(&mut self, setting: Setting<'_>, job: &LeafJob<'_>, q: &mut [i32]) -> Result<i64, Misuse> {
        Ok(Self::leaf(self, setting, job, q))
    }

    fn evaluate(&mut self, model: &Model, parameters: &[f32], batch: Batch<'_>) -> Result<f64, Misuse> {
        Ok(Self::evaluate(self, model, parameters, batch))
    }
}

/// Losses, sums and states of two rounds of two leaves.
fn digest(
    tested: &mut dyn Computes,
    kernels: Kernels,
    model: &Model,
    optimiser: &Optimiser,
) -> Result<Digest, Misuse> {
    let rules = Rules { model, optimiser, rounds: 3, grid_bits: 8, local: None };
    let parameters = initial::draw(model, Digest([7; 32]), 1);
    let length = parameters.len();
    let tensors = muster_core::layout::Layout::of(model);
    let mut state = State::initial(&tensors, parameters);
    state.exponents.fill(-18);
    let setting = Setting { model, recompute: false };
    let mut hasher = Hasher::new(Domain::STATE);
    // The second round reads what the first one's update has written: moments, exponents, β powers.
    for round in 0..2 {
        let mut sum = vec![0; length];
        for leaf in 0..2 {
            let windows: Vec<Vec<u32>> =
                (0..2).map(|window| tokens(model, round * 4 + leaf * 2 + window)).collect();
            let round_seed = Digest([round as u8; 32]);
            let job = LeafJob { state: &state, round_seed, leaf: Leaf(leaf.into()), windows: &windows };
            let mut q = vec![0; length];
            hasher = hasher.value(&tested.leaf(setting, &job, &mut q)?);
            sum.iter_mut().zip(q).for_each(|(sum, q): (&mut i32, i32)| *sum += q);
        }
        hasher = hasher.part(&integer_bytes(&sum));
        let values = sum.iter().map(|value| *value as f32 * 0.5).collect();
        let update = Update::whole(&tensors, values);
        apply(kernels, &mut [()], &rules, &mut state, &update);
        for vector in [&state.parameters, &state.first, &state.second] {
            hasher = hasher.part(&real_bytes(vector));
        }
        hasher = hasher.value(&state.exponents);
    }
    let batch = Batch { windows: &[tokens(model, 99)], seed: Digest([9; 32]), leaf: Leaf(1) };
    let loss = tested.evaluate(model, &state.parameters, batch)?;
    Ok(hasher.value(&loss.to_bits()).finish())
}

/// Compares the gradients of the families that libtorch computes with those that have defined bits; gives the largest
/// distance. `distance` gives how far a gradient is from the right one, and how far rounding takes it at most.
#[cfg(feature = "tch")]
pub(crate) fn compare(
    mut distance: impl FnMut(Setting<'_>, &[f32], Batch<'_>) -> (f64, f64),
) -> Result<Closeness, Misuse> {
    let mut closeness = Closeness { distance: 0.0, limit: f64::INFINITY };
    // Mixtures have defined bits only.
    for family in [decoder()?, albert(), variant(10, Projection::Biased)?, variant(22, Projection::Normed)?] {
        let model = model(family)?;
        let parameters = initial::draw(&model, Digest([7; 32]), 1);
        let windows: Vec<Vec<u32>> = (0..2).map(|window| tokens(&model, window)).collect();
        let batch = Batch { windows: &windows, seed: Digest([9; 32]), leaf: Leaf(1) };
        let setting = Setting { model: &model, recompute: false };
        let (distance, limit) = distance(setting, &parameters, batch);
        // NaN is not above any limit.
        if distance.is_nan() || distance > limit {
            return Err(Misuse(format!(
                "the self-test of libtorch gave gradients that are {distance:.1e} of their length away from the right \
                 ones, more than the {limit:.0e} that rounding explains: this device or library computes wrongly"
            )));
        }
        closeness = Closeness { distance: closeness.distance.max(distance), limit };
    }
    Ok(closeness)
}

fn decoder() -> Result<Family, Misuse> {
    Ok(Family::Decoder(Decoder { key_value_heads: 1, tied: false, rope_base: Real::new(10_000.0)? }))
}

/// Heads that are wider together than the stream; of its frequencies some are scaled, some are not.
fn variant(head_width: u32, projection: Projection) -> Result<Family, Misuse> {
    let decoder = Decoder { key_value_heads: 1, tied: true, rope_base: Real::new(100.0)? };
    let (factor, low, high) = (Real::new(8.0)?, Real::new(1.0)?, Real::new(3.0)?);
    let scaling = Some(Scaling { factor, low, high, original: 20 });
    Ok(Family::Variant(Variant { decoder, head_width, projection, scaling }))
}

fn mixture() -> Result<Family, Misuse> {
    let decoder = Decoder { key_value_heads: 3, tied: true, rope_base: Real::new(10_000.0)? };
    Ok(Family::Mixture(Mixture {
        decoder,
        columns: 5,
        active: 2,
        shared_hidden: 19,
        balance: Real::new(0.01)?,
        trust: Real::new(4.0)?,
        rows: 1,
        branch: 0,
        few: 0,
        held: 0,
        lag: 0,
    }))
}

fn albert() -> Family {
    Family::Albert(Albert { embedding: 11, masked_ppm: 200_000, mask_token: 3 })
}

fn model(family: Family) -> Result<Model, Misuse> {
    Ok(Model {
        vocabulary: 37,
        width: 24,
        layers: 2,
        heads: 3,
        hidden: 42,
        sequence: 29,
        norm_epsilon: Real::new(1e-5)?,
        initial_scale: Real::new(0.2)?,
        family,
    })
}

fn optimiser(method: Method) -> Result<Optimiser, Misuse> {
    Ok(Optimiser {
        method,
        rate: Real::new(0.01)?,
        minimum_rate: Real::new(0.001)?,
        warmup: 1,
        schedule: Schedule::Cosine,
        beta1: Real::new(0.9)?,
        beta2: Real::new(0.95)?,
        epsilon: Real::new(1e-8)?,
        weight_decay: Real::new(0.1)?,
        clip_norm: Real::new(1.0)?,
    })
}

/// A window of a short cycle.
fn tokens(model: &Model, seed: u32) -> Vec<u32> {
    (0..=model.sequence).map(|place| (place * place * 3 + place * 5 + seed * 11) % model.vocabulary).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::paths;

    #[test]
    fn every_path_and_thread_count_gives_the_known_answer() {
        for path in paths() {
            for threads in 1..4 {
                let kernels = Kernels::new(path).unwrap();
                run(&mut Engine::new(kernels, threads), kernels, path.name()).unwrap();
            }
        }
    }
}
