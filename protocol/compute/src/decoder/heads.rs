//! Norms of the heads of queries and keys, forward and backward (ARITH-77).

use super::ranges::Gain;
use crate::attention::Heads;
use crate::kernel::heads::{HeadRows, norm_heads, norm_heads_backward};
use crate::passes::Passes;
use crate::turns::WindowTurns;

/// What the forward pass of a layer keeps of queries and of keys.
#[derive(Default)]
pub(super) struct NormedHeads([Kept; 2]);

#[derive(Default)]
struct Kept {
    /// The heads that are normed; after the backward pass, their shares of the gain's gradient.
    before: Vec<f32>,
    scales: Vec<f32>,
}

/// Where queries and keys lie in a row of queries, keys and values: the first column, and how many heads.
fn places(heads: &Heads) -> [(usize, HeadRows); 2] {
    let of = |heads_of: usize| HeadRows { stride: heads.joint_width(), heads: heads_of };
    [(0, of(heads.count)), (heads.query_width(), of(heads.count / heads.group))]
}

impl NormedHeads {
    pub(super) fn size(&mut self, rows: usize, heads: &Heads) {
        for (Kept { before, scales }, (_, at)) in self.0.iter_mut().zip(places(heads)) {
            before.resize(rows * at.heads * heads.width, 0.0);
            scales.resize(rows * at.heads, 0.0);
        }
    }

    /// Norms queries and keys in place.
    pub(super) fn forward(&mut self, passes: &Passes<'_>, gains: &[Gain; 2], joint: &mut [f32]) {
        let Passes { kernels, plan, parameters, .. } = *passes;
        for ((Kept { before, scales }, gain), (first, at)) in
            self.0.iter_mut().zip(gains).zip(places(&plan.heads))
        {
            let gain = &parameters[gain.range.clone()];
            norm_heads(kernels, &mut joint[first..], at, gain, plan.epsilon, [before, scales]);
        }
    }

    /// Turns the gradients of normed queries and keys into those of the product, and adds to the gains' in the window's turn.
    pub(super) fn backward(
        &mut self,
        passes: &Passes<'_>,
        gains: &[Gain; 2],
        joint: &mut [f32],
        turn: &WindowTurns<'_, '_>,
    ) {
        let Passes { kernels, plan, parameters, .. } = *passes;
        for ((Kept { before, scales }, gain), (first, at)) in
            self.0.iter_mut().zip(gains).zip(places(&plan.heads))
        {
            let values = &parameters[gain.range.clone()];
            norm_heads_backward(kernels, &mut joint[first..], at, values, before, scales);
            passes.add_rows(turn, gain.part, before);
        }
    }
}
