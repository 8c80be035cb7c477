//! LAMB (ARITH-67): AdamW's direction with the decay in it, scaled in every tensor by the norm of its parameters over the
//! direction's own.

use muster_core::layout::Tensor;

use super::step::{ShardPlan, ShardUpdate, TensorStep};
use crate::kernel::lamb::{Layerwise, descend, direction, moments};
use crate::kernel::update::sum_of_squares;
use crate::parallel::{each, parts};
use crate::path::Kernels;

/// Takes LAMB's step in every block that is present: moments and norms first, then the parameters.
pub(super) fn apply<W: Send>(
    kernels: Kernels,
    workers: &mut [W],
    steps: &[TensorStep],
    vectors: &mut [&mut [f32]; 3],
    step: &ShardUpdate<'_>,
) {
    let ShardUpdate { plan, values, present, .. } = *step;
    let layerwise = |tensor: usize| {
        let TensorStep { first_scale, decay, .. } = steps[tensor];
        Layerwise { first_scale, decay }
    };
    let [parameters, first, second] = vectors;
    let lengths = || plan.blocks.iter().map(|block| block.range.len());
    let mut squares = vec![[0.0; 2]; plan.blocks.len()];
    let tasks = plan.blocks.iter().zip(present).zip(&mut squares);
    let tasks = tasks.zip(parts(first, lengths())).zip(parts(second, lengths()));
    each(workers, tasks, |_, ((((block, present), squares), first), second)| {
        if *present {
            let (step, parameters) = (&steps[block.tensor].adam, &parameters[block.range.clone()]);
            moments(kernels, &values[block.range.clone()], first, second, step);
            // Computed again below instead of kept: directions of all blocks are as large as the model.
            let mut along = vec![0.0; parameters.len()];
            direction(kernels, parameters, [first, second], step, layerwise(block.tensor), &mut along);
            *squares = [sum_of_squares(kernels, parameters), sum_of_squares(kernels, &along)];
        }
    });
    // Between the two passes: a tensor's trust takes the old parameters of all its blocks.
    let trusts = trusts(plan, &squares);
    let rates: Vec<f32> = steps.iter().zip(trusts).map(|(step, trust)| (step.rate * trust) as f32).collect();
    let tasks = plan.blocks.iter().zip(present).zip(parts(parameters, lengths()));
    each(workers, tasks, |_, ((block, present), parameters)| {
        if *present {
            let moments = [&first[block.range.clone()], &second[block.range.clone()]];
            let mut along = vec![0.0; parameters.len()];
            direction(
                kernels,
                parameters,
                moments,
                &steps[block.tensor].adam,
                layerwise(block.tensor),
                &mut along,
            );
            descend(kernels, parameters, &along, rates[block.tensor]);
        }
    });
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
