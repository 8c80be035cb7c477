//! The step of a run of local updates, along what its members have moved.

use muster_core::grid::power_of_two;
use muster_core::manifest::Local;
use muster_core::state::ShardMut;

use super::exponents::{block_squares, next_exponents};
use super::step::{Rules, ShardUpdate};
use crate::kernel::local::{Outer, nesterov, renew};
use crate::parallel::{each, parts};
use crate::path::Kernels;

/// LOCAL-10: takes the step of the run: Nesterov momentum along the aggregated difference, then the renewed second moments.
/// A block without a result keeps what it has.
pub(super) fn apply_to_shard<W: Send>(
    kernels: Kernels,
    workers: &mut [W],
    rules: &Rules<'_>,
    local: &Local,
    state: ShardMut<'_>,
    update: &ShardUpdate<'_>,
) {
    let ShardMut { shard, exponents, vectors: [parameters, momentum, second] } = state;
    let (plan, blocks) = (update.plan, update.plan.blocks.len());
    let (present, renewed) = update.present.split_at(blocks.min(update.present.len()));
    let (values, codes) = update.values.split_at(parameters.len().min(update.values.len()));
    let first = ShardUpdate { values, present, ..*update };
    let squares = block_squares(kernels, workers, &first);
    let lengths = || plan.blocks.iter().map(|block| block.range.len());
    let units = update.units(exponents);
    let tasks = plan.blocks.iter().zip(present).zip(parts(parameters, lengths()));
    let tasks = tasks.zip(parts(momentum, lengths()));
    each(workers, tasks, |_, (((block, present), parameters), momentum)| {
        if *present {
            let unit = power_of_two(i32::from(units[block.tensor])) as f32;
            let [rate, decay] = [local.outer_rate, local.outer_momentum].map(|real| real.value());
            nesterov(
                kernels,
                &values[block.range.clone()],
                parameters,
                momentum,
                &Outer { unit, rate, decay },
            );
        }
    });
    let tasks = plan.blocks.iter().zip(renewed).zip(parts(second, lengths()));
    each(workers, tasks, |_, ((block, renewed), second)| {
        if *renewed {
            renew(kernels, &codes[block.range.clone()], second);
        }
    });
    if renewed.iter().any(|renewed| *renewed) {
        // LOCAL-11: as if the moments had come through all steps of the round.
        let beta = f64::from(rules.optimiser.beta2.value());
        (0..local.steps).for_each(|_| shard.beta_powers[1] *= beta);
    }
    shard.step += 1;
    if !update.late {
        next_exponents(update, rules.grid_bits, &squares, exponents);
    }
}
