//! The size of an aggregate, and the grid exponents that follow from it.

use muster_core::grid::{exponent_of, power_of_two, step_exponent};

use super::step::{ShardPlan, ShardUpdate};
use crate::kernel::update::sum_of_squares;
use crate::parallel::each;
use crate::path::Kernels;

/// Sum of squares of each block in grid units; `None` where it was left out.
pub(super) fn block_squares<W: Send>(
    kernels: Kernels,
    workers: &mut [W],
    step: &ShardUpdate<'_>,
) -> Vec<Option<f64>> {
    let ShardUpdate { plan, values, present, .. } = *step;
    let mut squares = vec![None; plan.blocks.len()];
    let tasks = plan.blocks.iter().zip(present).zip(&mut squares);
    each(workers, tasks, |_, ((block, present), square)| {
        if *present {
            *square = Some(sum_of_squares(kernels, &values[block.range.clone()]));
        }
    });
    squares
}

/// Moves the exponents of whole tensors towards `exponent_of` the aggregate's rms (ARITH-48).
pub(super) fn next_exponents(
    plan: &ShardPlan<'_>,
    grid_bits: u8,
    squares: &[Option<f64>],
    exponents: &mut [i16],
) {
    let mut sums: Vec<Option<f64>> = vec![Some(0.0); exponents.len()];
    for (block, square) in plan.blocks.iter().zip(squares) {
        let sum = &mut sums[block.tensor];
        // A block that was left out makes the tensor's rms unknown: its exponent stays (GRID-5).
        *sum = sum.zip(*square).map(|(sum, square)| sum + square);
    }
    for ((tensor, exponent), sum) in plan.tensors.iter().zip(exponents).zip(sums) {
        if let Some(sum) = sum {
            let rms = (sum / tensor.len() as f64).sqrt() * power_of_two(i32::from(*exponent));
            *exponent = step_exponent(*exponent, exponent_of(rms, grid_bits, *exponent));
        }
    }
}
