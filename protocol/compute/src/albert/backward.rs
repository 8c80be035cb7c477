//! ALBERT's backward pass.

use std::ops::Range;

use super::ranges::{AlbertMatrix, AlbertRanges, LayerNorm};
use super::tape::AlbertTape;
use super::{WindowPass, words};
use crate::kernel::albert::{add_columns, gelu_backward, layer_norm, layer_norm_backward, scale_columns};
use crate::kernel::matrix::Panels;
use crate::kernel::rows::add_rows;
use crate::passes::Passes;
use crate::turns::{GradientSlice, WindowTurns};

impl AlbertTape {
    /// Runs back from the gradient of the logits, and adds this window's gradient in its turn (ARITH-66).
    pub(crate) fn backward(
        &mut self,
        passes: &Passes<'_>,
        albert: &AlbertRanges,
        turn: &WindowTurns<'_, '_>,
    ) {
        let plan = passes.plan;
        self.make_gradients(plan, words(plan));
        let run = WindowPass { passes, albert };
        run.head_backward(self);
        for number in (0..plan.layers).rev() {
            if passes.recompute && number + 1 < plan.layers {
                run.again(self, number);
            }
            let kept = if passes.recompute { 0 } else { number };
            run.feed_backward(self, kept);
            run.attention_backward(self, kept, number);
        }
        run.embed_backward(self);
        // At the very end: layers share parameters, so that a part is whole only once all layers have added to it.
        for (part, GradientSlice { range, width }) in plan.parts.iter().enumerate() {
            turn.take(part, |row, out, holds| {
                let window = &self.window[range.start + row * width..][..out.len()];
                if holds {
                    add_rows(passes.kernels, window, out);
                } else {
                    out.copy_from_slice(window);
                }
            });
        }
    }
}

impl WindowPass<'_> {
    /// Computes the activations of a layer once more.
    fn again(&self, tape: &mut AlbertTape, number: usize) {
        let Passes { kernels, plan, .. } = *self.passes;
        let layer = &mut tape.layers[0];
        self.layer(layer, &tape.residual[number], &mut tape.attention);
        let (affine, statistics) =
            (self.affine(&self.albert.last_norm), [&mut *layer.means, &mut *layer.scales]);
        // Its output is in the residual stream already: only the statistics are wanted.
        let output = &mut tape.residual[number + 1];
        layer_norm(kernels, &layer.last, affine, plan.epsilon, output, statistics);
    }

    /// From the logits to the last layer's output.
    fn head_backward(&self, tape: &mut AlbertTape) {
        let Passes { kernels, plan, .. } = *self.passes;
        let (albert, head) = (self.albert, &mut tape.head);
        let (window, panels) = (&mut *tape.window, &mut tape.panels);
        // The buffer serves head and embedding, of which the larger one has sized it.
        let narrow = &mut tape.gradients.narrow[..head.dense.len()];
        add_rows(kernels, &head.logits, &mut window[albert.word_bias.clone()]);
        self.weigh(window, AlbertMatrix::Words, [&head.logits, &head.normed.output], panels);
        self.passes.backward(AlbertMatrix::Words as usize, &head.logits, narrow, false);
        let statistics = [&*head.normed.means, &*head.normed.scales];
        self.norm_backward(window, &albert.prediction_norm, (&head.normed.input, statistics), narrow);
        gelu_backward(kernels, &head.dense, narrow);
        add_rows(kernels, narrow, &mut window[albert.prediction_bias.clone()]);
        self.weigh(window, AlbertMatrix::Prediction, [narrow, &head.gathered], panels);
        // The last use of the gathered rows was above: the buffer takes their gradient.
        let gathered = &mut head.gathered;
        self.passes.backward(AlbertMatrix::Prediction as usize, narrow, gathered, false);
        // Elsewhere the stream's gradient is +0 (`make_gradients`): other places predict nothing.
        for (row, position) in gathered.chunks_exact(plan.width).zip(&tape.predicted) {
            tape.gradients.stream[position * plan.width..][..plan.width].copy_from_slice(row);
        }
    }

    /// Turns the gradient of a layer's output into that of its middle.
    fn feed_backward(&self, tape: &mut AlbertTape, kept: usize) {
        let (kernels, albert) = (self.passes.kernels, self.albert);
        let (layer, to) = (&tape.layers[kept], &mut tape.gradients);
        let (window, panels) = (&mut *tape.window, &mut tape.panels);
        let statistics = [&*layer.means, &*layer.scales];
        self.norm_backward(window, &albert.last_norm, (&layer.last, statistics), &mut to.stream);
        add_rows(kernels, &to.stream, &mut window[albert.feed_output_bias.clone()]);
        self.weigh(window, AlbertMatrix::FeedOutput, [&to.stream, &layer.active], panels);
        self.passes.backward(AlbertMatrix::FeedOutput as usize, &to.stream, &mut to.feed, false);
        gelu_backward(kernels, &layer.feed, &mut to.feed);
        add_rows(kernels, &to.feed, &mut window[albert.feed_bias.clone()]);
        self.weigh(window, AlbertMatrix::Feed, [&to.feed, &layer.middle.output], panels);
        // Added: the residual sum has sent the gradient past the feed-forward as well.
        self.passes.backward(AlbertMatrix::Feed as usize, &to.feed, &mut to.stream, true);
        let statistics = [&*layer.middle.means, &*layer.middle.scales];
        self.norm_backward(window, &albert.attention_norm, (&layer.middle.input, statistics), &mut to.stream);
    }

    /// Turns the gradient of the sum after attention into that of the layer's input.
    fn attention_backward(&self, tape: &mut AlbertTape, kept: usize, number: usize) {
        let Passes { kernels, plan, .. } = *self.passes;
        let (albert, heads) = (self.albert, &plan.heads);
        let (layer, to) = (&tape.layers[kept], &mut tape.gradients);
        let (window, panels) = (&mut *tape.window, &mut tape.panels);
        add_rows(kernels, &to.stream, &mut window[albert.dense_bias.clone()]);
        self.weigh(window, AlbertMatrix::Dense, [&to.stream, &layer.mixed], panels);
        self.passes.backward(AlbertMatrix::Dense as usize, &to.stream, &mut to.mixed, false);
        let rows = [&*layer.joint, &*layer.mixed, &*to.mixed];
        tape.attention.backward(kernels, heads, &layer.probabilities, rows, &mut to.joint);
        let (stride, width) = (heads.joint_width(), plan.width);
        // Before the biases: theirs is the gradient of what the scale was applied to (ARITH-66).
        scale_columns(kernels, &mut to.joint, stride, width, heads.score_scale());
        add_columns(kernels, &to.joint, stride, 0, &mut window[albert.query_bias.clone()]);
        add_columns(kernels, &to.joint, stride, 2 * width, &mut window[albert.value_bias.clone()]);
        self.weigh(window, AlbertMatrix::QueryKeyValue, [&to.joint, &tape.residual[number]], panels);
        self.passes.backward(AlbertMatrix::QueryKeyValue as usize, &to.joint, &mut to.stream, true);
    }

    /// From the first layer's input to words and positions.
    fn embed_backward(&self, tape: &mut AlbertTape) {
        let Passes { kernels, plan, .. } = *self.passes;
        let (albert, words) = (self.albert, words(plan));
        let (window, to) = (&mut *tape.window, &mut tape.gradients);
        add_rows(kernels, &to.stream, &mut window[albert.mapping_bias.clone()]);
        self.weigh(window, AlbertMatrix::Mapping, [&to.stream, &tape.embedded.output], &mut tape.panels);
        let narrow = &mut to.narrow[..tape.embedded.input.len()];
        self.passes.backward(AlbertMatrix::Mapping as usize, &to.stream, narrow, false);
        let statistics = [&*tape.embedded.means, &*tape.embedded.scales];
        self.norm_backward(window, &albert.embedding_norm, (&tape.embedded.input, statistics), narrow);
        add_rows(kernels, narrow, &mut window[albert.positions.clone()]);
        // One by one, ascending: several places may hold one word, whose row is then one sum in order.
        for (row, token) in narrow.chunks_exact(words.inputs).zip(&tape.inputs) {
            add_rows(kernels, row, &mut window[words.offset + token * words.inputs..][..words.inputs]);
        }
    }

    /// Adds to the gradient of a matrix.
    fn weigh(&self, window: &mut [f32], weight: AlbertMatrix, factors: [&[f32]; 2], panels: &mut Panels) {
        let range = self.passes.plan.matrices[weight as usize].range();
        self.passes.weigh(weight as usize, factors, panels, &mut window[range]);
    }

    /// Turns the gradient of a norm's output into that of its input, and adds to those of gain and bias.
    fn norm_backward(
        &self,
        window: &mut [f32],
        norm: &LayerNorm,
        (input, statistics): (&[f32], [&[f32]; 2]),
        d: &mut [f32],
    ) {
        let gain = &self.passes.parameters[norm.gain.clone()];
        layer_norm_backward(self.passes.kernels, input, gain, statistics, d, neighbours(window, norm));
    }
}

/// The gradients of a norm's gain and bias, which follow each other.
fn neighbours<'a>(window: &'a mut [f32], norm: &LayerNorm) -> [&'a mut [f32]; 2] {
    let Range { start, end } = norm.gain;
    let (gain, bias) = window[start..norm.bias.end].split_at_mut(end - start);
    [gain, bias]
}
