//! LAMB (ARITH-67): AdamW's direction with the decay in it, scaled in every tensor by the norm of its parameters over the
//! direction's own.

use muster_core::layout::Tensor;
use muster_core::messages::offer::StateVector;

use super::step::{ShardPlan, ShardUpdate, TensorStep};
use super::vectors::Vectors;
use crate::kernel::lamb::{Layerwise, descend, direction, moments};
use crate::kernel::update::sum_of_squares;
use crate::parallel::{each, parts};
use crate::path::Kernels;

/// Takes LAMB's step in every block that is present: moments and norms first, then the parameters.
pub(super) fn apply<W: Send, V: Vectors>(
    kernels: Kernels,
    workers: &mut [W],
    steps: &[TensorStep],
    vectors: &mut V,
    step: &ShardUpdate<'_>,
) -> Result<(), V::Error> {
    let plan = step.plan;
    let layerwise = |tensor: usize| {
        let TensorStep { first_scale, decay, .. } = steps[tensor];
        Layerwise { first_scale, decay }
    };
    let mut squares = vec![[0.0; 2]; plan.blocks.len()];
    vectors.pass(&plan.blocks, &[StateVector::First, StateVector::Second], &mut |some, vectors| {
        let [parameters, first, second] = vectors;
        let lengths = || plan.blocks[some.clone()].iter().map(|block| block.range.len());
        let tasks = some.clone().zip(&mut squares[some.clone()]).zip(parts(parameters, lengths()));
        let tasks = tasks.zip(parts(first, lengths())).zip(parts(second, lengths()));
        each(workers, tasks, |_, ((((index, squares), parameters), first), second)| {
            // ARITH-48: a block without a result keeps parameters and moments.
            if let Some(values) = step.block(index) {
                let tensor = plan.blocks[index].tensor;
                moments(kernels, &values, first, second, &steps[tensor].adam);
                // Computed again below instead of kept: directions of all blocks are as large as the model.
                let mut along = vec![0.0; parameters.len()];
                let moments = [&*first, &*second];
                direction(kernels, parameters, moments, &steps[tensor].adam, layerwise(tensor), &mut along);
                *squares = [sum_of_squares(kernels, parameters), sum_of_squares(kernels, &along)];
            }
        });
    })?;
    // Between the two passes: a tensor's trust takes the old parameters of all its blocks.
    let trusts = trusts(plan, &squares);
    let rates: Vec<f32> = steps.iter().zip(trusts).map(|(step, trust)| (step.rate * trust) as f32).collect();
    vectors.pass(&plan.blocks, &[StateVector::Parameters], &mut |some, vectors| {
        let [parameters, first, second] = vectors;
        let lengths = || plan.blocks[some.clone()].iter().map(|block| block.range.len());
        let tasks = some.clone().zip(parts(parameters, lengths()));
        let tasks = tasks.zip(parts(first, lengths())).zip(parts(second, lengths()));
        each(workers, tasks, |_, (((index, parameters), first), second)| {
            if !step.has(index) {
                return;
            }
            let tensor = plan.blocks[index].tensor;
            let mut along = vec![0.0; parameters.len()];
            let moments = [&*first, &*second];
            direction(kernels, parameters, moments, &steps[tensor].adam, layerwise(tensor), &mut along);
            descend(kernels, parameters, &along, rates[tensor]);
        });
    })
}

/// Trust (ARITH-67), by tensor: √P/√D in f64, P and D the sums of squares of old parameters and of directions, those of
/// present blocks added in order; 1 where either is zero or the tensor has one row.
pub(crate) fn trusts(plan: &ShardPlan<'_>, squares: &[[f64; 2]]) -> Vec<f64> {
    let mut sums = vec![[0.0; 2]; plan.tensors.len()];
    for (block, squares) in plan.blocks.iter().zip(squares) {
        sums[block.tensor].iter_mut().zip(squares).for_each(|(sum, square)| *sum += square);
    }
    let trust = |(tensor, [parameters, along]): (&Tensor, [f64; 2])| {
        let some = tensor.shape[0] > 1 && parameters > 0.0 && along > 0.0;
        if some { parameters.sqrt() / along.sqrt() } else { 1.0 }
    };
    plan.tensors.iter().zip(sums).map(trust).collect()
}
