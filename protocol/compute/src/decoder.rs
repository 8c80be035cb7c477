//! The decoder over windows that a thread takes together, forward and backward: their rows stand one window after the
//! other, so that a chain over all rows is one over the windows in order.
//!
//! A weight's gradient is one chain over all tokens of the leaf (ARITH-4): windows add to it in their turn. The
//! embedding's is added last, by [`embed`], from what every backward pass leaves.

pub(crate) mod choice;
mod heads;
pub(crate) mod positions;
pub(crate) mod ranges;
mod row;
mod tape;

use crate::attention::Attention;
use crate::kernel::matrix::Panels;
use crate::kernel::mixture::{sigmoid, sigmoid_backward, weigh_rows, weighted_swiglu_backward};
use crate::kernel::rows::{
    Rotation, cross_entropy, rms_norm, rms_norm_again, rms_norm_backward, rotate, swiglu, swiglu_backward,
};
use crate::passes::Passes;
use crate::turns::WindowTurns;
use ranges::{DecoderRanges, Gain, LayerRanges, Row, Weight};
use row::{RowInputs, RowPass};
pub(crate) use tape::DecoderTape;
use tape::{DecoderActivations, Passing};

/// Gradient of the embedded tokens of windows that were taken together.
#[derive(Default)]
pub(crate) struct Embedded {
    pub tokens: Vec<usize>,
    /// Per token.
    pub rows: Vec<f32>,
}

impl DecoderTape {
    /// Runs windows up to the loss of each, a sum over its tokens, and the gradient of their logits (ARITH-41).
    pub(crate) fn forward(
        &mut self,
        passes: &Passes<'_>,
        decoder: &DecoderRanges,
        windows: &[Vec<u32>],
        losses: &mut [f64],
    ) {
        self.logits(passes, decoder, windows, 0);
        let Passes { kernels, plan, share, .. } = *passes;
        let logits = self.logits.chunks_exact_mut(plan.tokens * plan.vocabulary);
        for ((loss, logits), targets) in
            losses.iter_mut().zip(logits).zip(self.targets.chunks_exact(plan.tokens))
        {
            *loss = cross_entropy(kernels, logits, plan.vocabulary, targets, share);
        }
    }

    /// Runs windows up to their logits, a row for each token from `first` on.
    pub(crate) fn logits(
        &mut self,
        passes: &Passes<'_>,
        decoder: &DecoderRanges,
        windows: &[Vec<u32>],
        first: usize,
    ) -> &[f32] {
        let Passes { kernels, plan, parameters, .. } = *passes;
        self.load(plan, decoder, if passes.recompute { 1 } else { plan.layers }, windows);
        for (row, token) in self.residual[0].chunks_exact_mut(plan.width).zip(&self.inputs) {
            row.copy_from_slice(&parameters[decoder.embedding.offset + token * plan.width..][..plan.width]);
        }
        for number in 0..plan.layers {
            let [input, output] = &mut self.residual[number..number + 2] else { unreachable!("two streams") };
            let layer = &mut self.layers[if passes.recompute { 0 } else { number }];
            let run = LayerPass { passes, decoder, number };
            run.forward(layer, input, &mut self.passing, &mut self.attention, Some(output));
        }
        let gain = &parameters[decoder.last_norm.range.clone()];
        let last = &self.residual[plan.layers];
        rms_norm(kernels, last, gain, plan.epsilon, &mut self.normed, &mut self.scales);
        // Rows that nobody asked for are left out: the head is a product as wide as the vocabulary.
        let logits = &mut self.logits[first * plan.vocabulary..];
        passes.forward(decoder.head.matrix, &self.normed[first * plan.width..], logits, false);
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
        self.make_gradients(plan, decoder);
        let normed = &mut self.gradients.normed;
        passes.backward(decoder.head.matrix, &self.logits, normed, false);
        let factors = [&*self.logits, &*self.normed];
        passes.weigh_in_turn(turn, decoder.head.part, decoder.head.matrix, factors, &mut self.panels);
        let gradient = &mut embedded.rows;
        // Norms add to it, from +0 (ARITH-42).
        gradient.clear();
        gradient.resize(self.inputs.len() * plan.width, 0.0);
        let gain = &parameters[decoder.last_norm.range.clone()];
        rms_norm_backward(kernels, &self.residual[plan.layers], gain, &self.scales, normed, gradient);
        passes.add_rows(turn, decoder.last_norm.part, normed);
        for number in (0..plan.layers).rev() {
            let run = LayerPass { passes, decoder, number };
            // The forward pass ended with the last layer, whose activations are still there.
            if passes.recompute && number + 1 < plan.layers {
                let (layer, input) = (&mut self.layers[0], &self.residual[number]);
                run.forward(layer, input, &mut self.passing, &mut self.attention, None);
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
    /// The layer up to its output, or, where that is not wanted, to the activations that the backward pass reads.
    fn forward(
        &self,
        layer: &mut DecoderActivations,
        input: &[f32],
        passing: &mut Passing,
        attention: &mut Attention,
        output: Option<&mut [f32]>,
    ) {
        let Self { passes, .. } = *self;
        let Passes { kernels, plan, .. } = *passes;
        let (normed, at) = (&mut passing.normed, self.ranges());
        rms_norm(kernels, input, self.gain(&at.attention_norm), plan.epsilon, normed, &mut layer.scales);
        if let Some(bias) = &at.bias {
            // ARITH-76: every chain starts from the bias.
            let bias = self.gain(bias);
            layer.joint.chunks_exact_mut(bias.len()).for_each(|row| row.copy_from_slice(bias));
        }
        passes.forward(at.joint.matrix, normed, &mut layer.joint, at.bias.is_some());
        if let Some(gains) = &at.head_norms {
            layer.heads.forward(passes, gains, &mut layer.joint);
        }
        self.rotate(&mut layer.joint, 1.0);
        attention.forward(kernels, &plan.heads, &layer.joint, &mut layer.probabilities, &mut layer.mixed);
        layer.middle.copy_from_slice(input);
        passes.forward(at.output.matrix, &layer.mixed, &mut layer.middle, true);
        self.feed_forward(layer, passing, output);
    }

    /// The feed-forward, from the layer's middle.
    fn feed_forward(
        &self,
        layer: &mut DecoderActivations,
        passing: &mut Passing,
        mut output: Option<&mut [f32]>,
    ) {
        let Self { passes, .. } = *self;
        let Passes { kernels, plan, .. } = *passes;
        let Passing { normed, product, of_expert } = passing;
        let at = self.ranges();
        let scales = &mut layer.feed_scales;
        rms_norm(kernels, &layer.middle, self.gain(&at.feed_norm), plan.epsilon, normed, scales);
        passes.forward(at.feed.gate_up.matrix, normed, &mut layer.feed.gate_up, false);
        let own = &mut product[..layer.feed.sigmoid.len()];
        swiglu(kernels, &layer.feed.gate_up, at.feed.hidden, &mut layer.feed.sigmoid, own);
        if let Some(gate) = at.feed_gate {
            passes.forward(gate.matrix, normed, &mut layer.feed_weights, false);
            sigmoid(kernels, &mut layer.feed_weights);
            weigh_rows(kernels, &layer.feed_weights, own);
        }
        if let Some(output) = output.as_deref_mut() {
            // The chains of a residual sum start from the stream (ARITH-41, steps 4 and 6).
            output.copy_from_slice(&layer.middle);
            passes.forward(at.feed.down.matrix, own, output, true);
        }
        if let Some(row) = self.row() {
            RowPass { passes, row }.forward(&mut layer.row, normed, product, of_expert, output);
        }
    }

    /// Turns the gradient of the layer's output into that of its middle.
    fn feed_backward(&self, tape: &mut DecoderTape, gradient: &mut [f32], turn: &WindowTurns<'_, '_>) {
        let Self { passes, .. } = *self;
        let Passes { kernels, .. } = *passes;
        let (layer, to, at) = (&tape.layers[self.kept()], &mut tape.gradients, self.ranges());
        let Passing { normed, of_expert, .. } = &mut tape.passing;
        let hidden = at.feed.hidden;
        let rows = tape.inputs.len();
        let product = &mut to.product[..rows * hidden];
        let d_gate_up = &mut to.gate_up[..2 * rows * hidden];
        passes.backward(at.feed.down.matrix, gradient, product, false);
        let (gate_up, kept) = (&layer.feed.gate_up, &layer.feed.sigmoid);
        if at.feed_gate.is_some() {
            let (weights, d_weights) = (&layer.feed_weights, &mut to.feed_weights);
            weighted_swiglu_backward(kernels, [gate_up, kept, weights], product, d_gate_up, d_weights);
        } else {
            swiglu_backward(kernels, gate_up, hidden, kept, product, d_gate_up);
        }
        // The kernel has put the product itself back: it is the input of this matrix.
        self.weigh(turn, at.feed.down, [gradient, product], &mut tape.panels);
        passes.backward(at.feed.gate_up.matrix, d_gate_up, &mut to.normed, false);
        // The input of the next matrix was not kept: scales and stream give it again.
        let (gain, scales) = (self.gain(&at.feed_norm), &layer.feed_scales);
        rms_norm_again(kernels, &layer.middle, gain, scales, normed);
        self.weigh(turn, at.feed.gate_up, [d_gate_up, normed], &mut tape.panels);
        if let Some(gate) = at.feed_gate {
            sigmoid_backward(kernels, &layer.feed_weights, &mut to.feed_weights);
            passes.backward(gate.matrix, &to.feed_weights, &mut to.normed, true);
            self.weigh(turn, gate, [&to.feed_weights, normed], &mut tape.panels);
        }
        if let Some(row) = self.row() {
            let from = RowInputs { activations: &layer.row, normed, gradient };
            RowPass { passes, row }.backward(&from, to, of_expert, turn);
        }
        rms_norm_backward(kernels, &layer.middle, gain, scales, &mut to.normed, gradient);
        passes.add_rows(turn, at.feed_norm.part, &to.normed);
    }

    /// Turns the gradient of the layer's middle into that of its input.
    fn attention_backward(&self, tape: &mut DecoderTape, gradient: &mut [f32], turn: &WindowTurns<'_, '_>) {
        let Self { passes, number, .. } = *self;
        let Passes { kernels, plan, .. } = *passes;
        let (layer, to, at) = (&mut tape.layers[self.kept()], &mut tape.gradients, self.ranges());
        passes.backward(at.output.matrix, gradient, &mut to.mixed, false);
        self.weigh(turn, at.output, [gradient, &layer.mixed], &mut tape.panels);
        let rows = [&*layer.joint, &*layer.mixed, &*to.mixed];
        tape.attention.backward(kernels, &plan.heads, &layer.probabilities, rows, &mut to.joint);
        // Back by the negative angle: a rotation's transpose is its inverse.
        self.rotate(&mut to.joint, -1.0);
        if let Some(gains) = &at.head_norms {
            layer.heads.backward(passes, gains, &mut to.joint, turn);
        }
        if let Some(bias) = &at.bias {
            passes.add_rows(turn, bias.part, &to.joint);
        }
        passes.backward(at.joint.matrix, &to.joint, &mut to.normed, false);
        let (gain, input, normed) =
            (self.gain(&at.attention_norm), &tape.residual[number], &mut tape.passing.normed);
        rms_norm_again(kernels, input, gain, &layer.scales, normed);
        self.weigh(turn, at.joint, [&to.joint, normed], &mut tape.panels);
        rms_norm_backward(kernels, input, gain, &layer.scales, &mut to.normed, gradient);
        passes.add_rows(turn, at.attention_norm.part, &to.normed);
    }

    /// Where the tape keeps this layer.
    fn kept(&self) -> usize {
        if self.passes.recompute { 0 } else { self.number }
    }

    fn ranges(&self) -> &LayerRanges {
        &self.decoder.layers[self.number]
    }

    fn row(&self) -> Option<&Row> {
        self.decoder.rows.get(self.number)
    }

    fn gain(&self, norm: &Gain) -> &[f32] {
        &self.passes.parameters[norm.range.clone()]
    }

    /// In the window's turn, adds to the gradient of a matrix.
    fn weigh(&self, turn: &WindowTurns<'_, '_>, weight: Weight, factors: [&[f32]; 2], panels: &mut Panels) {
        self.passes.weigh_in_turn(turn, weight.part, weight.matrix, factors, panels);
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
