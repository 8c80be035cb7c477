//! The step of a run of local updates, along what its members have moved.

use muster_core::grid::power_of_two;
use muster_core::manifest::Local;
use muster_core::messages::offer::StateVector;

use super::exponents::{block_squares, next_exponents};
use super::step::{Rules, ShardUpdate, Stepped, Values};
use super::vectors::Vectors;
use crate::kernel::local::{Outer, nesterov, renew};
use crate::parallel::{each, parts};
use crate::path::Kernels;

/// LOCAL-10: takes the step of the run: Nesterov momentum along the aggregated difference, then the renewed second moments.
/// A block without a result keeps what it has.
pub(super) fn apply_to_shard<W: Send, V: Vectors>(
    kernels: Kernels,
    workers: &mut [W],
    rules: &Rules<'_>,
    local: &Local,
    stepped: Stepped<'_, V>,
    update: &ShardUpdate<'_>,
) -> Result<(), V::Error> {
    let (Stepped { shard, exponents, vectors }, plan) = (stepped, update.plan);
    // A gradient is a member's own, and no step of the run.
    let results = if let Values::Results(results) = update.values { results } else { &[] };
    let (moved, renewed) = results.split_at(plan.blocks.len().min(results.len()));
    let moved = ShardUpdate { values: Values::Results(moved), ..*update };
    let codes = ShardUpdate { values: Values::Results(renewed), ..*update };
    let squares = block_squares(kernels, workers, &moved);
    let units = update.units(exponents);
    vectors.pass(&plan.blocks, &StateVector::REALS, &mut |some, vectors| {
        let [parameters, momentum, second] = vectors;
        let lengths = || plan.blocks[some.clone()].iter().map(|block| block.range.len());
        let tasks = some.clone().zip(parts(parameters, lengths()));
        let tasks = tasks.zip(parts(momentum, lengths())).zip(parts(second, lengths()));
        each(workers, tasks, |_, (((index, parameters), momentum), second)| {
            if let Some(values) = moved.block(index) {
                let unit = power_of_two(i32::from(units[plan.blocks[index].tensor])) as f32;
                let [rate, decay] = [local.outer_rate, local.outer_momentum].map(|real| real.value());
                nesterov(kernels, &values, parameters, momentum, &Outer { unit, rate, decay });
            }
            if let Some(codes) = codes.block(index) {
                renew(kernels, &codes, second);
            }
        });
    })?;
    if renewed.iter().any(Option::is_some) {
        // LOCAL-11: as if the moments had come through all steps of the round.
        let beta = f64::from(rules.optimiser.beta2.value());
        (0..local.steps).for_each(|_| shard.beta_powers[1] *= beta);
    }
    shard.step += 1;
    if !update.late {
        next_exponents(update, rules.grid_bits, &squares, exponents);
    }
    Ok(())
}
