//! The size of an aggregate, and the grid exponents that follow from it.

use muster_core::grid::{exponent_of, power_of_two, step_exponent};

use super::step::ShardUpdate;
use crate::kernel::update::sum_of_squares;
use crate::parallel::each;
use crate::path::Kernels;

/// Sum of squares of each block in grid units; `None` where it was left out.
pub(super) fn block_squares<W: Send>(
    kernels: Kernels,
    workers: &mut [W],
    step: &ShardUpdate<'_>,
) -> Vec<Option<f64>> {
    let mut squares = vec![None; step.plan.blocks.len()];
    each(workers, squares.iter_mut().enumerate(), |_, (index, square)| {
        *square = step.block(index).map(|values| sum_of_squares(kernels, &values));
    });
    squares
}

/// Moves the exponents of whole tensors towards `exponent_of` the aggregate's rms (ARITH-48). GRID-8: where there are two of a
/// tensor, the second becomes what the first was.
pub(super) fn next_exponents(
    step: &ShardUpdate<'_>,
    grid_bits: u8,
    squares: &[Option<f64>],
    exponents: &mut [i16],
) {
    let (plan, count) = (step.plan, step.plan.tensors.len());
    let mut sums: Vec<Option<f64>> = vec![Some(0.0); count];
    for (block, square) in plan.blocks.iter().zip(squares) {
        let sum = &mut sums[block.tensor];
        // A block that was left out makes the tensor's rms unknown: its exponent stays (GRID-5).
        *sum = sum.zip(*square).map(|(sum, square)| sum + square);
    }
    let units = step.units(exponents).to_vec();
    exponents.copy_within(..exponents.len() - count, count);
    for (((tensor, exponent), unit), sum) in plan.tensors.iter().zip(exponents).zip(units).zip(sums) {
        if let Some(sum) = sum {
            let rms = (sum / tensor.len() as f64).sqrt() * power_of_two(i32::from(unit));
            *exponent = step_exponent(*exponent, exponent_of(rms, grid_bits, *exponent));
        }
    }
}
