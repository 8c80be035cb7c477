//! One round's update: clipping, AdamW or LAMB with bias correction, learning-rate schedule, next grid exponents.
//!
//! Scalars are computed in f64 and rounded to f32 once; coefficients in f32. A block that was left out keeps
//! parameters and moments, and its tensor keeps its exponent.

mod decay;
mod exponents;
pub(crate) mod lamb;
mod outer;
mod step;
mod vectors;

use muster_core::grid::power_of_two;
use muster_core::ids::ShardId;
use muster_core::layout::{Layout, Tensor};
use muster_core::manifest::{Method, Optimiser, Schedule};
use muster_core::messages::offer::StateVector;
use muster_core::state::{Shard, ShardMut, State, Update};

use crate::function;
use crate::kernel::update::{AdamStep, adamw};
use crate::parallel::{each, parts};
use crate::path::Kernels;
use decay::decay;
use exponents::{block_squares, next_exponents};
pub(crate) use step::{Rules, ShardPlan};
use step::{ShardUpdate, Stepped, TensorStep, Values};
pub use vectors::ShardStream;
use vectors::{Streamed, Vectors};

/// Learning rate of the update that follows `step` earlier ones (ARITH-46).
///
/// Warm-up: `rate·(step + 1)/warmup`. Then from `rate` to `minimum_rate`, which the last round has.
pub(crate) fn learning_rate(optimiser: &Optimiser, rounds: u32, step: u32) -> f64 {
    let [rate, minimum] = [optimiser.rate, optimiser.minimum_rate].map(|real| f64::from(real.value()));
    if step < optimiser.warmup {
        return rate * (f64::from(step) + 1.0) / f64::from(optimiser.warmup);
    }
    // At least 1, where the warm-up fills the whole run.
    let length = rounds.saturating_sub(1).saturating_sub(optimiser.warmup).max(1);
    let progress = f64::from((step - optimiser.warmup).min(length)) / f64::from(length);
    match optimiser.schedule {
        Schedule::Constant => rate,
        Schedule::Linear => rate + (minimum - rate) * progress,
        Schedule::Cosine => {
            let (_, cosine) = function::sine_cosine(std::f64::consts::PI * progress);
            minimum + (rate - minimum) * 0.5 * (1.0 + cosine)
        }
    }
}

/// Applies an aggregate to the shards that it has, on as many threads as there are `workers`.
pub(crate) fn apply<W: Send>(
    kernels: Kernels,
    workers: &mut [W],
    rules: &Rules<'_>,
    state: &mut State,
    update: &Update,
) {
    for id in &update.shards {
        let Some(ShardMut { shard, exponents, mut vectors }) = state.shard_mut(*id) else { continue };
        let stepped = Stepped { shard, exponents, vectors: &mut vectors };
        let Ok(()) = take_run_step(kernels, workers, rules, *id, stepped, update);
    }
}

/// Applies an aggregate to a shard whose vectors are elsewhere; what it lacks of the shard changes nothing.
///
/// # Errors
/// What reading and writing them reports.
pub(crate) fn apply_streamed<W: Send, S: ShardStream>(
    kernels: Kernels,
    workers: &mut [W],
    rules: &Rules<'_>,
    state: (&mut Shard, &mut [i16], &mut S),
    update: &Update,
) -> Result<(), S::Error> {
    let (shard, exponents, stream) = state;
    let id = shard.id;
    let stepped = Stepped { shard, exponents, vectors: &mut Streamed(stream) };
    take_run_step(kernels, workers, rules, id, stepped, update)
}

/// Takes the step of the run, in one shard of it.
fn take_run_step<W: Send, V: Vectors>(
    kernels: Kernels,
    workers: &mut [W],
    rules: &Rules<'_>,
    id: ShardId,
    stepped: Stepped<'_, V>,
    update: &Update,
) -> Result<(), V::Error> {
    let layout = Layout::of(rules.model);
    let layout = if rules.local.is_some() { layout.with_moments() } else { layout };
    let of_shard = layout.shard(id).zip(update.shard(&layout, id));
    // What an aggregate lacks changes nothing.
    of_shard.map_or(Ok(()), |(range, results)| {
        let plan = ShardPlan::of(&layout, range);
        let (late, behind) = (update.late.contains(&id), update.behind);
        let step = ShardUpdate { plan: &plan, values: Values::Results(results), late, behind };
        match rules.local {
            Some(local) => outer::apply_to_shard(kernels, workers, rules, local, stepped, &step),
            None => apply_to_shard(kernels, workers, rules, stepped, &step),
        }
    })
}

/// LOCAL-3: takes a member's own step of AdamW along the gradient of a leaf. The first β power is that of the steps of the round,
/// the learning rate that of the round.
pub(crate) fn inner<W: Send>(
    kernels: Kernels,
    workers: &mut [W],
    rules: &Rules<'_>,
    state: &mut State,
    gradient: &[f32],
) {
    let layout = Layout::of(rules.model);
    for (id, range) in state.held().collect::<Vec<_>>().into_iter().zip(layout.shards()) {
        let Some(ShardMut { shard, mut vectors, .. }) = state.shard_mut(id) else { continue };
        let plan = ShardPlan::of(&layout, range);
        let values = Values::Gradient(&gradient[range.coefficients.clone()]);
        let step = ShardUpdate { plan: &plan, values, late: false, behind: false };
        // A gradient is in real units.
        let units = vec![0; plan.tensors.len()];
        let Ok(_) = take_step(kernels, workers, rules, (shard, &units, &mut vectors), &step);
    }
}

fn apply_to_shard<W: Send, V: Vectors>(
    kernels: Kernels,
    workers: &mut [W],
    rules: &Rules<'_>,
    stepped: Stepped<'_, V>,
    step: &ShardUpdate<'_>,
) -> Result<(), V::Error> {
    let Stepped { shard, exponents, vectors } = stepped;
    let squares = take_step(kernels, workers, rules, (shard, exponents, vectors), step)?;
    shard.step += 1;
    // After the step: aggregate and squares are in units of the old exponents. ROW-6: with a late step they stay, because
    // the row's other updates that wait are in these units as well.
    if !step.late {
        next_exponents(step, rules.grid_bits, &squares, exponents);
    }
    Ok(())
}

/// Takes a step of the optimiser, with these grid exponents ([`ShardUpdate::units`]); gives the squares of the blocks that are
/// present.
fn take_step<W: Send, V: Vectors>(
    kernels: Kernels,
    workers: &mut [W],
    rules: &Rules<'_>,
    (shard, exponents, vectors): (&mut Shard, &[i16], &mut V),
    step: &ShardUpdate<'_>,
) -> Result<Vec<Option<f64>>, V::Error> {
    let (Rules { optimiser, rounds, .. }, plan) = (*rules, step.plan);
    // The clip factor takes the squares of all blocks of a shard before any of them moves.
    let squares = block_squares(kernels, workers, step);
    // Before the step: the first update is corrected by β¹, not by β⁰ = 1, which would divide by 0.
    for (power, beta) in shard.beta_powers.iter_mut().zip([optimiser.beta1, optimiser.beta2]) {
        *power *= f64::from(beta.value());
    }
    let units = step.units(exponents);
    let norm = shard_norm(plan, units, &squares);
    let clip = clip_factor(f64::from(optimiser.clip_norm.value()), norm);
    let rate = learning_rate(optimiser, rounds, shard.step);
    let powers = shard.beta_powers;
    let of_tensor = |(tensor, exponent): (&Tensor, &i16)| {
        let (unit, decay) = (power_of_two(i32::from(*exponent)) * clip, decay(optimiser, tensor));
        let adam = step_of(optimiser, powers, [unit, rate, decay]);
        TensorStep { adam, rate, first_scale: (1.0 / (1.0 - powers[0])) as f32, decay: decay as f32 }
    };
    let steps: Vec<TensorStep> = plan.tensors.iter().zip(units).map(of_tensor).collect();
    match optimiser.method {
        Method::AdamW => adam_blocks(kernels, workers, &steps, vectors, step)?,
        Method::Lamb => lamb::apply(kernels, workers, &steps, vectors, step)?,
    }
    Ok(squares)
}

/// Takes AdamW's step in every block that is present.
fn adam_blocks<W: Send, V: Vectors>(
    kernels: Kernels,
    workers: &mut [W],
    steps: &[TensorStep],
    vectors: &mut V,
    step: &ShardUpdate<'_>,
) -> Result<(), V::Error> {
    let plan = step.plan;
    vectors.pass(&plan.blocks, &StateVector::REALS, &mut |some, vectors| {
        let [parameters, first, second] = vectors;
        let lengths = || plan.blocks[some.clone()].iter().map(|block| block.range.len());
        let tasks = some.clone().zip(parts(parameters, lengths()));
        let tasks = tasks.zip(parts(first, lengths())).zip(parts(second, lengths()));
        each(workers, tasks, |_, (((index, parameters), first), second)| {
            // ARITH-48: a block without a result keeps parameters and moments; nothing decays either.
            if let Some(values) = step.block(index) {
                let adam = &steps[plan.blocks[index].tensor].adam;
                adamw(kernels, &values, parameters, first, second, adam);
            }
        });
    })
}

/// A tensor's scalars (ARITH-7), in f64, each rounded to f32 once; 1 − β of the β that f32 has.
fn step_of(optimiser: &Optimiser, powers: [f64; 2], [unit, rate, decay]: [f64; 3]) -> AdamStep {
    let [beta1, beta2] = [optimiser.beta1.value(), optimiser.beta2.value()];
    AdamStep {
        unit: unit as f32,
        beta1,
        beta2,
        first_share: (1.0 - f64::from(beta1)) as f32,
        second_share: (1.0 - f64::from(beta2)) as f32,
        rate: (rate / (1.0 - powers[0])) as f32,
        second_scale: (1.0 / (1.0 - powers[1]).sqrt()) as f32,
        epsilon: optimiser.epsilon.value(),
        keep: (1.0 - rate * decay) as f32,
    }
}

/// Norm of a shard's present blocks in real units, added in order of block (ARITH-47).
pub(crate) fn shard_norm(plan: &ShardPlan<'_>, exponents: &[i16], squares: &[Option<f64>]) -> f64 {
    let units = plan.blocks.iter().zip(squares).filter_map(|(block, square)| {
        let unit = power_of_two(2 * i32::from(exponents[block.tensor]));
        square.map(|square| square * unit)
    });
    // `sum` would start from −0, and the rule starts from +0.
    units.fold(0.0, |sum, square| sum + square).sqrt()
}

/// What the gradient is multiplied by (ARITH-47): `clip_norm`/norm where `clip_norm` > 0 and the norm is larger, else 1.
pub(crate) fn clip_factor(most: f64, norm: f64) -> f64 {
    if most > 0.0 && norm > most { most / norm } else { 1.0 }
}
