//! The decoder over one window, forward and backward.
//!
//! A weight's gradient is one chain over all tokens of the leaf (ARITH-4): each window adds to it in its turn. The
//! embedding's is added last, by [`embed`], from what the backward pass of every window leaves.

pub(crate) mod ranges;
mod tape;

use crate::attention::Attention;
use crate::kernel::matrix::Panels;
use crate::kernel::rows::{
    Rotation, cross_entropy, rms_norm, rms_norm_again, rms_norm_backward, rotate, swiglu, swiglu_backward,
};
use crate::passes::Passes;
use crate::turns::WindowTurns;
use ranges::{DecoderMatrix, DecoderRanges, RmsNorm};
pub(crate) use tape::DecoderTape;
use tape::{DecoderActivations, Passing};

/// Gradient of a window's embedded tokens.
#[derive(Default)]
pub(crate) struct Embedded {
    pub tokens: Vec<usize>,
    /// Per token.
    pub rows: Vec<f32>,
}

impl DecoderTape {
    /// Runs a window up to its loss, a sum over its tokens, and the gradient of its logits (ARITH-41).
    pub(crate) fn forward(&mut self, passes: &Passes<'_>, decoder: &DecoderRanges, window: &[u32]) -> f64 {
        self.logits(passes, decoder, window, 0);
        let Passes { kernels, plan, share, .. } = *passes;
        cross_entropy(kernels, &mut self.logits, plan.vocabulary, &self.targets, share)
    }

    /// Runs a window up to its logits, a row for each token from `first` on.
    pub(crate) fn logits(
        &mut self,
        passes: &Passes<'_>,
        decoder: &DecoderRanges,
        window: &[u32],
        first: usize,
    ) -> &[f32] {
        let Passes { kernels, plan, parameters, .. } = *passes;
        self.load(plan, if passes.recompute { 1 } else { plan.layers }, window);
        for (row, token) in self.residual[0].chunks_exact_mut(plan.width).zip(&self.inputs) {
            row.copy_from_slice(&parameters[decoder.embedding.offset + token * plan.width..][..plan.width]);
        }
        for number in 0..plan.layers {
            let [input, output] = &mut self.residual[number..number + 2] else { unreachable!("two streams") };
            let layer = &mut self.layers[if passes.recompute { 0 } else { number }];
            let run = LayerPass { passes, decoder, number };
            run.forward(layer, input, &mut self.passing, &mut self.attention);
            // The chains of a residual sum start from the stream (ARITH-41, steps 4 and 6).
            output.copy_from_slice(&layer.middle);
            passes.forward(
                DecoderRanges::matrix(number, DecoderMatrix::Down),
                &self.passing.product,
                output,
                true,
            );
        }
        let gain = &parameters[decoder.last_gain()];
        let last = &self.residual[plan.layers];
        rms_norm(kernels, last, gain, plan.epsilon, &mut self.normed, &mut self.scales);
        // Rows that nobody asked for are left out: the head is a product as wide as the vocabulary.
        let logits = &mut self.logits[first * plan.vocabulary..];
        passes.forward(decoder.head(), &self.normed[first * plan.width..], logits, false);
        logits
    }

    /// Runs back from the gradient of the logits to that of the embedded tokens (ARITH-42).
    pub(crate) fn backward(
        &mut self,
        passes: &Passes<'_>,
        decoder: &DecoderRanges,
        turn: &WindowTurns<'_, '_>,
        embedded: &mut Embedded,
    ) {
        let Passes { kernels, plan, parameters, .. } = *passes;
        self.make_gradients(plan);
        let normed = &mut self.gradients.normed;
        passes.backward(decoder.head(), &self.logits, normed, false);
        let factors = [&*self.logits, &*self.normed];
        passes.weigh_in_turn(turn, decoder.head_part(), decoder.head(), factors, &mut self.panels);
        let gradient = &mut embedded.rows;
        // Norms add to it, from +0 (ARITH-42).
        gradient.clear();
        gradient.resize(plan.tokens * plan.width, 0.0);
        let gain = &parameters[decoder.last_gain()];
        rms_norm_backward(kernels, &self.residual[plan.layers], gain, &self.scales, normed, gradient);
        passes.add_rows(turn, decoder.last_gain_part(), normed);
        for number in (0..plan.layers).rev() {
            let run = LayerPass { passes, decoder, number };
            // The forward pass ended with the last layer, whose activations are still there.
            if passes.recompute && number + 1 < plan.layers {
                let (layer, input) = (&mut self.layers[0], &self.residual[number]);
                run.forward(layer, input, &mut self.passing, &mut self.attention);
            }
            run.feed_backward(self, gradient, turn);
            run.attention_backward(self, gradient, turn);
        }
        embedded.tokens.clone_from(&self.inputs);
    }
}

/// One layer of a pass.
struct LayerPass<'a> {
    passes: &'a Passes<'a>,
    decoder: &'a DecoderRanges,
    number: usize,
}

impl LayerPass<'_> {
    /// All of the layer but its last product.
    fn forward(
        &self,
        layer: &mut DecoderActivations,
        input: &[f32],
        passing: &mut Passing,
        attention: &mut Attention,
    ) {
        let Self { passes, number, .. } = *self;
        let Passes { kernels, plan, .. } = *passes;
        let Passing { normed, product } = passing;
        rms_norm(kernels, input, self.gain(RmsNorm::Attention), plan.epsilon, normed, &mut layer.scales);
        passes.forward(
            DecoderRanges::matrix(number, DecoderMatrix::QueryKeyValue),
            normed,
            &mut layer.joint,
            false,
        );
        self.rotate(&mut layer.joint, 1.0);
        attention.forward(kernels, &plan.heads, &layer.joint, &mut layer.probabilities, &mut layer.mixed);
        layer.middle.copy_from_slice(input);
        passes.forward(
            DecoderRanges::matrix(number, DecoderMatrix::Output),
            &layer.mixed,
            &mut layer.middle,
            true,
        );
        let scales = &mut layer.feed_scales;
        rms_norm(kernels, &layer.middle, self.gain(RmsNorm::Feed), plan.epsilon, normed, scales);
        passes.forward(
            DecoderRanges::matrix(number, DecoderMatrix::GateUp),
            normed,
            &mut layer.gate_up,
            false,
        );
        swiglu(kernels, &layer.gate_up, plan.hidden, &mut layer.sigmoid, product);
    }

    /// Turns the gradient of the layer's output into that of its middle.
    fn feed_backward(&self, tape: &mut DecoderTape, gradient: &mut [f32], turn: &WindowTurns<'_, '_>) {
        let Self { passes, number, .. } = *self;
        let Passes { kernels, plan, .. } = *passes;
        let (layer, to) = (&tape.layers[self.kept()], &mut tape.gradients);
        passes.backward(DecoderRanges::matrix(number, DecoderMatrix::Down), gradient, &mut to.product, false);
        let product = &mut to.product;
        swiglu_backward(kernels, &layer.gate_up, plan.hidden, &layer.sigmoid, product, &mut to.gate_up);
        // The kernel has put the product itself back: it is the input of this matrix.
        self.weigh(turn, DecoderMatrix::Down, [gradient, product], &mut tape.panels);
        passes.backward(
            DecoderRanges::matrix(number, DecoderMatrix::GateUp),
            &to.gate_up,
            &mut to.normed,
            false,
        );
        // The input of the next matrix was not kept: scales and stream give it again.
        let (gain, scales) = (self.gain(RmsNorm::Feed), &layer.feed_scales);
        let normed = &mut tape.passing.normed;
        rms_norm_again(kernels, &layer.middle, gain, scales, normed);
        self.weigh(turn, DecoderMatrix::GateUp, [&to.gate_up, normed], &mut tape.panels);
        rms_norm_backward(kernels, &layer.middle, gain, scales, &mut to.normed, gradient);
        passes.add_rows(turn, DecoderRanges::gain_part(number, RmsNorm::Feed), &to.normed);
    }

    /// Turns the gradient of the layer's middle into that of its input.
    fn attention_backward(&self, tape: &mut DecoderTape, gradient: &mut [f32], turn: &WindowTurns<'_, '_>) {
        let Self { passes, number, .. } = *self;
        let Passes { kernels, plan, .. } = *passes;
        let (layer, to) = (&tape.layers[self.kept()], &mut tape.gradients);
        passes.backward(DecoderRanges::matrix(number, DecoderMatrix::Output), gradient, &mut to.mixed, false);
        self.weigh(turn, DecoderMatrix::Output, [gradient, &layer.mixed], &mut tape.panels);
        let rows = [&*layer.joint, &*layer.mixed, &*to.mixed];
        tape.attention.backward(kernels, &plan.heads, &layer.probabilities, rows, &mut to.joint);
        // Back by the negative angle: a rotation's transpose is its inverse.
        self.rotate(&mut to.joint, -1.0);
        passes.backward(
            DecoderRanges::matrix(number, DecoderMatrix::QueryKeyValue),
            &to.joint,
            &mut to.normed,
            false,
        );
        let (gain, input, normed) =
            (self.gain(RmsNorm::Attention), &tape.residual[number], &mut tape.passing.normed);
        rms_norm_again(kernels, input, gain, &layer.scales, normed);
        self.weigh(turn, DecoderMatrix::QueryKeyValue, [&to.joint, normed], &mut tape.panels);
        rms_norm_backward(kernels, input, gain, &layer.scales, &mut to.normed, gradient);
        passes.add_rows(turn, DecoderRanges::gain_part(number, RmsNorm::Attention), &to.normed);
    }

    /// Where the tape keeps this layer.
    fn kept(&self) -> usize {
        if self.passes.recompute { 0 } else { self.number }
    }

    fn gain(&self, norm: RmsNorm) -> &[f32] {
        &self.passes.parameters[self.decoder.gain(self.number, norm)]
    }

    /// In the window's turn, adds to the gradient of a matrix.
    fn weigh(
        &self,
        turn: &WindowTurns<'_, '_>,
        weight: DecoderMatrix,
        factors: [&[f32]; 2],
        panels: &mut Panels,
    ) {
        let (part, matrix) =
            (DecoderRanges::part(self.number, weight), DecoderRanges::matrix(self.number, weight));
        self.passes.weigh_in_turn(turn, part, matrix, factors, panels);
    }

    /// Rotates queries and keys (`direction` 1) or their gradients back (−1); queries are scaled by 1/√head width.
    fn rotate(&self, joint: &mut [f32], direction: f32) {
        let (decoder, plan) = (self.decoder, self.passes.plan);
        let of = |heads, scale| Rotation {
            stride: plan.heads.joint_width(),
            heads,
            half: plan.heads.width / 2,
            cosines: &decoder.cosines,
            sines: &decoder.sines,
            direction,
            scale,
        };
        rotate(self.passes.kernels, joint, &of(plan.heads.count, plan.heads.score_scale()));
        let keys = plan.heads.count / plan.heads.group;
        rotate(self.passes.kernels, &mut joint[plan.heads.query_width()..], &of(keys, 1.0));
    }
}

/// Adds the gradient of the embedded tokens of every window, in order, to some rows of the embedding's (ARITH-44).
pub(crate) fn embed(width: usize, first: usize, windows: &[Embedded], out: &mut [f32]) {
    // Tasks share the embedding by rows, each reads all windows: a row's sum has one order however many threads there are.
    let rows = first..first + out.len() / width;
    for Embedded { tokens, rows: gradients } in windows {
        let gradients = gradients.chunks_exact(width);
        for (token, gradient) in tokens.iter().zip(gradients).filter(|(token, _)| rows.contains(token)) {
            let sums = &mut out[(token - rows.start) * width..][..width];
            sums.iter_mut().zip(gradient).for_each(|(sum, value)| *sum += value);
        }
    }
}
