//! ALBERT over one window, forward and backward.
//!
//! One layer's parameters serve all layers. A window's gradient is its own: every chain runs over the layers, last to
//! first, and within a layer over the tokens; the windows' gradients are then added in order.

mod backward;
pub(crate) mod ranges;
mod tape;

use muster_core::assign::masked;
use muster_core::ids::{Digest, Leaf};
use muster_core::manifest::Family;

use crate::attention::Attention;
use crate::kernel::albert::{biased, gelu, layer_norm, scale_columns};
use crate::kernel::rows::cross_entropy;
use crate::matrix::Matrix;
use crate::passes::Passes;
use crate::plan::NetworkPlan;
use ranges::{AlbertMatrix, AlbertRanges, LayerNorm};
pub(crate) use tape::AlbertTape;
use tape::{AlbertActivations, Normed};

/// Public randomness of a window's masks.
#[derive(Clone, Copy)]
pub(crate) struct Masking {
    pub seed: Digest,
    pub leaf: Leaf,
    pub window: u32,
}

/// The word embedding.
fn words(plan: &NetworkPlan) -> Matrix {
    plan.matrices[AlbertMatrix::Words as usize]
}

impl AlbertTape {
    /// Masks a window and runs it (ARITH-65) up to its loss, a sum over the predicted tokens, and the gradient of its
    /// logits.
    pub(crate) fn forward(
        &mut self,
        passes: &Passes<'_>,
        albert: &AlbertRanges,
        window: &[u32],
        masking: Masking,
    ) -> f64 {
        self.logits(passes, albert, window, masking);
        let Passes { kernels, plan, share, .. } = *passes;
        cross_entropy(kernels, &mut self.head.logits, plan.vocabulary, &self.targets, share)
    }

    /// Masks a window and runs it up to its logits, a row for each predicted token.
    pub(crate) fn logits(
        &mut self,
        passes: &Passes<'_>,
        albert: &AlbertRanges,
        window: &[u32],
        masking: Masking,
    ) -> &[f32] {
        let Passes { kernels, plan, .. } = *passes;
        self.size(plan, if passes.recompute { 1 } else { plan.layers }, words(plan));
        self.load(plan, window, masking);
        let run = WindowPass { passes, albert };
        run.embed(self);
        for number in 0..plan.layers {
            let [input, output] = &mut self.residual[number..number + 2] else { unreachable!("two streams") };
            let layer = &mut self.layers[if passes.recompute { 0 } else { number }];
            run.layer(layer, input, &mut self.attention);
            let affine = run.affine(&albert.last_norm);
            let statistics = [&mut *layer.means, &mut *layer.scales];
            layer_norm(kernels, &layer.last, affine, plan.epsilon, output, statistics);
        }
        run.head(self);
        &self.head.logits
    }

    /// Takes up the masked tokens.
    fn load(&mut self, plan: &NetworkPlan, window: &[u32], Masking { seed, leaf, window: number }: Masking) {
        let Family::Albert(albert) = &plan.model.family else { unreachable!("an ALBERT's plan") };
        let masked = masked(&plan.model, albert, &seed, leaf, number, window);
        self.inputs.clear();
        self.inputs.extend(masked.inputs.iter().map(|token| plan.token(*token)));
        self.predicted.clear();
        self.predicted.extend(masked.positions.iter().map(|position| *position as usize));
        self.targets.clear();
        self.targets.extend(self.predicted.iter().map(|position| plan.token(window[*position])));
    }
}

/// A pass over one window.
#[derive(Clone, Copy)]
struct WindowPass<'a> {
    passes: &'a Passes<'a>,
    albert: &'a AlbertRanges,
}

impl WindowPass<'_> {
    /// Words and positions, normalised and mapped to the width of the layers.
    fn embed(&self, tape: &mut AlbertTape) {
        let (parameters, words) = (self.passes.parameters, words(self.passes.plan));
        let positions = parameters[self.albert.positions.clone()].chunks_exact(words.inputs);
        let rows = tape.embedded.input.chunks_exact_mut(words.inputs).zip(positions);
        for ((row, position), token) in rows.zip(&tape.inputs) {
            let word = &parameters[words.offset + token * words.inputs..][..words.inputs];
            row.iter_mut().zip(word).zip(position).for_each(|((sum, word), position)| *sum = word + position);
        }
        self.norm(&self.albert.embedding_norm, &mut tape.embedded);
        let bias = &parameters[self.albert.mapping_bias.clone()];
        self.linear(AlbertMatrix::Mapping, &tape.embedded.output, bias, &mut tape.residual[0]);
    }

    /// A layer up to the input of its last norm.
    fn layer(&self, layer: &mut AlbertActivations, input: &[f32], attention: &mut Attention) {
        let Passes { kernels, plan, parameters, .. } = *self.passes;
        let (albert, heads) = (self.albert, &plan.heads);
        let (stride, width) = (heads.joint_width(), plan.width);
        for row in layer.joint.chunks_exact_mut(stride) {
            row[..width].copy_from_slice(&parameters[albert.query_bias.clone()]);
            // Keys have no bias.
            row[width..2 * width].fill(0.0);
            row[2 * width..].copy_from_slice(&parameters[albert.value_bias.clone()]);
        }
        self.passes.forward(AlbertMatrix::QueryKeyValue as usize, input, &mut layer.joint, true);
        scale_columns(kernels, &mut layer.joint, stride, width, heads.score_scale());
        attention.forward(kernels, heads, &layer.joint, &mut layer.probabilities, &mut layer.mixed);
        // The chains of the residual sum start from the stream and the bias together (ARITH-65, step 3).
        biased(kernels, input, &parameters[albert.dense_bias.clone()], &mut layer.middle.input);
        self.passes.forward(AlbertMatrix::Dense as usize, &layer.mixed, &mut layer.middle.input, true);
        self.norm(&albert.attention_norm, &mut layer.middle);
        let middle = &layer.middle.output;
        self.linear(AlbertMatrix::Feed, middle, &parameters[albert.feed_bias.clone()], &mut layer.feed);
        gelu(kernels, &layer.feed, &mut layer.active);
        biased(kernels, middle, &parameters[albert.feed_output_bias.clone()], &mut layer.last);
        self.passes.forward(AlbertMatrix::FeedOutput as usize, &layer.active, &mut layer.last, true);
    }

    /// From the last layer's output to the logits of the predicted tokens.
    fn head(&self, tape: &mut AlbertTape) {
        let Passes { kernels, plan, parameters, .. } = *self.passes;
        let (albert, head) = (self.albert, &mut tape.head);
        let last = &tape.residual[plan.layers];
        for (row, position) in head.gathered.chunks_exact_mut(plan.width).zip(&tape.predicted) {
            row.copy_from_slice(&last[position * plan.width..][..plan.width]);
        }
        let bias = &parameters[albert.prediction_bias.clone()];
        self.linear(AlbertMatrix::Prediction, &head.gathered, bias, &mut head.dense);
        gelu(kernels, &head.dense, &mut head.normed.input);
        self.norm(&albert.prediction_norm, &mut head.normed);
        let bias = &parameters[albert.word_bias.clone()];
        self.linear(AlbertMatrix::Words, &head.normed.output, bias, &mut head.logits);
    }

    /// `output = input · Wᵀ + bias`: every chain starts from the bias.
    fn linear(&self, weight: AlbertMatrix, input: &[f32], bias: &[f32], output: &mut [f32]) {
        output.chunks_exact_mut(bias.len()).for_each(|row| row.copy_from_slice(bias));
        self.passes.forward(weight as usize, input, output, true);
    }

    fn norm(&self, norm: &LayerNorm, normed: &mut Normed) {
        let Passes { kernels, plan, .. } = *self.passes;
        let statistics = [&mut *normed.means, &mut *normed.scales];
        layer_norm(kernels, &normed.input, self.affine(norm), plan.epsilon, &mut normed.output, statistics);
    }

    /// Gain and bias of a norm.
    fn affine(&self, norm: &LayerNorm) -> [&[f32]; 2] {
        [&norm.gain, &norm.bias].map(|range| &self.passes.parameters[range.clone()])
    }
}
