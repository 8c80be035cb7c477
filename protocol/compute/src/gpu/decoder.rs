//! The decoder on a device: the passes of `crate::decoder`, kernel for kernel, over all windows of a portion at once.

use super::buffers::{Activations, Buffers};
use super::driver::{Outcome, Place};
use super::queue::{Bound, Heads, Kind, Lying, OfHeads, Queue, Scores, Turn, Weighing};
use crate::attention::BLOCK;
use crate::decoder::ranges::{DecoderRanges, Gain, LayerRanges, Weight};
use crate::matrix::Matrix;
use crate::plan::NetworkPlan;

/// A pass over some windows of a leaf.
pub(super) struct Pass<'a> {
    pub queue: &'a mut Queue,
    pub plan: &'a NetworkPlan,
    pub ranges: &'a DecoderRanges,
    pub buffers: &'a Buffers,
    /// The first window of the leaf that it takes, and how many.
    pub first: usize,
    pub windows: usize,
    /// 1/(windows·T) of the leaf.
    pub share: f32,
}

impl Pass<'_> {
    fn rows(&self) -> usize {
        self.windows * self.plan.tokens
    }

    /// Of the leaf, where this pass begins.
    fn first_row(&self) -> usize {
        self.first * self.plan.tokens
    }

    fn parameters(&self, range: &std::ops::Range<usize>) -> Place {
        self.buffers.parameters.after(range.start)
    }

    fn matrix(&self, weight: Weight) -> Matrix {
        self.plan.matrices[weight.matrix]
    }

    fn layer(&self, number: usize) -> Activations {
        self.buffers.layers[if self.buffers.portion.kept == 1 { 0 } else { number }]
    }

    /// Up to the logits, and with `loss` to their gradient and the losses' parts.
    pub(super) fn forward(&mut self, loss: bool) -> Outcome<()> {
        let (plan, ranges, buffers) = (self.plan, self.ranges, self.buffers);
        let (rows, width) = (self.rows(), plan.width);
        let inputs = buffers.inputs.after(self.first_row());
        let table = buffers.parameters.after(ranges.embedding.offset);
        self.queue.gather([rows, width], [inputs, table, buffers.residual[0]])?;
        for number in 0..plan.layers {
            self.layer_forward(number, true)?;
        }
        let gain = self.parameters(&ranges.last_norm.range);
        let places = [buffers.residual[plan.layers], gain, buffers.last_normed, buffers.last_scales];
        self.queue.norm([rows, width], plan.epsilon, false, places)?;
        self.multiply(ranges.head, buffers.last_normed, None, buffers.logits)?;
        if loss {
            let of_leaf =
                [buffers.targets, buffers.sums, buffers.chosen].map(|at| at.after(self.first_row()));
            let places = [of_leaf[0], buffers.logits, of_leaf[1], of_leaf[2]];
            self.queue.cross_entropy([rows, plan.vocabulary], self.share, places)?;
        }
        Ok(())
    }

    /// Back to the gradient of the embedded rows.
    pub(super) fn backward(&mut self) -> Outcome<()> {
        let (plan, ranges, buffers) = (self.plan, self.ranges, self.buffers);
        let (rows, width) = (self.rows(), plan.width);
        // Each norm makes the next of three, so that a layer's weights find the gradients of their outputs unchanged. The last
        // one is that of the embedded rows.
        let streams =
            [buffers.embedded.after(self.first_row() * width), buffers.streams[0], buffers.streams[1]];
        let stream = |norms: usize| streams[(plan.layers + norms) % 3];
        self.multiply_back(ranges.head, buffers.logits, buffers.d_normed)?;
        self.weigh(&[(ranges.head, buffers.logits, buffers.last_normed)])?;
        self.queue.driver.clear(stream(0), rows * width)?;
        let last = buffers.residual[plan.layers];
        self.norm_back(&ranges.last_norm, [last, buffers.last_scales], [stream(0); 2])?;
        for (passed, number) in (0..plan.layers).rev().enumerate() {
            if buffers.portion.kept == 1 && number + 1 < plan.layers {
                self.layer_forward(number, false)?;
            }
            let own = [0, 1, 2].map(|norms| stream(2 * passed + norms));
            self.feed_backward(number, [own[0], own[1]])?;
            self.attention_backward(number, [own[1], own[2]])?;
            // All of a layer's weights at once: one matrix alone would leave units without work.
            let (layer, at) = (self.layer(number), &ranges.layers[number]);
            self.weigh(&[
                (at.feed.gate_up, buffers.d_gate_up, buffers.feed_normed),
                (at.joint, buffers.d_joint, buffers.normed),
                (at.feed.down, own[0], buffers.product),
                (at.output, own[1], layer.mixed),
            ])?;
        }
        Ok(())
    }

    fn layer_forward(&mut self, number: usize, output: bool) -> Outcome<()> {
        let (plan, buffers) = (self.plan, self.buffers);
        let at: &LayerRanges = &self.ranges.layers[number];
        let (rows, width, layer, input) =
            (self.rows(), plan.width, self.layer(number), buffers.residual[number]);
        let gain = self.parameters(&at.attention_norm.range);
        self.queue.norm([rows, width], plan.epsilon, false, [input, gain, buffers.normed, layer.scales])?;
        self.multiply(at.joint, buffers.normed, None, layer.joint)?;
        self.rotate(layer.joint, 1.0)?;
        self.attend(layer)?;
        // ARITH-41: the chain starts from the stream.
        self.multiply(at.output, layer.mixed, Some(input), layer.middle)?;
        let gain = self.parameters(&at.feed_norm.range);
        self.queue.norm(
            [rows, width],
            plan.epsilon,
            false,
            [layer.middle, gain, buffers.normed, layer.feed_scales],
        )?;
        self.multiply(at.feed.gate_up, buffers.normed, None, layer.gate_up)?;
        self.queue.swiglu([rows, at.feed.hidden], [layer.gate_up, layer.sigmoid, buffers.product])?;
        if output {
            self.multiply(at.feed.down, buffers.product, Some(layer.middle), buffers.residual[number + 1])?;
        }
        Ok(())
    }

    /// Through the feed-forward; what its weights' gradients are made of stays: the product itself in `product`.
    fn feed_backward(&mut self, number: usize, streams: [Place; 2]) -> Outcome<()> {
        let (plan, buffers) = (self.plan, self.buffers);
        let at: &LayerRanges = &self.ranges.layers[number];
        let (rows, width, layer) = (self.rows(), plan.width, self.layer(number));
        self.multiply_back(at.feed.down, streams[0], buffers.product)?;
        let places = [layer.gate_up, layer.sigmoid, buffers.product, buffers.d_gate_up];
        self.queue.swiglu_back([rows, at.feed.hidden], places)?;
        self.multiply_back(at.feed.gate_up, buffers.d_gate_up, buffers.d_normed)?;
        let gain = self.parameters(&at.feed_norm.range);
        let places = [layer.middle, gain, buffers.feed_normed, layer.feed_scales];
        self.queue.norm([rows, width], plan.epsilon, true, places)?;
        self.norm_back(&at.feed_norm, [layer.middle, layer.feed_scales], streams)
    }

    fn attention_backward(&mut self, number: usize, streams: [Place; 2]) -> Outcome<()> {
        let (plan, buffers) = (self.plan, self.buffers);
        let at: &LayerRanges = &self.ranges.layers[number];
        let (rows, width, layer, input) =
            (self.rows(), plan.width, self.layer(number), buffers.residual[number]);
        self.multiply_back(at.output, streams[0], buffers.d_mixed)?;
        self.attend_back(layer)?;
        self.rotate(buffers.d_joint, -1.0)?;
        self.multiply_back(at.joint, buffers.d_joint, buffers.d_normed)?;
        let gain = self.parameters(&at.attention_norm.range);
        self.queue.norm([rows, width], plan.epsilon, true, [input, gain, buffers.normed, layer.scales])?;
        self.norm_back(&at.attention_norm, [input, layer.scales], streams)
    }

    /// Attention (ARITH-5).
    fn attend(&mut self, layer: Activations) -> Outcome<()> {
        let heads = &self.plan.heads;
        let (tokens, width) = (heads.tokens, heads.width);
        let (query, keys, values) =
            (self.queries(layer.joint), self.keys(layer.joint), self.values(layer.joint));
        let (probabilities, mixed) = (self.scores(layer.probabilities), self.outputs(layer.mixed));
        let of = self.each_head(Bound::Columns);
        self.queue.heads(Kind::Forward, [tokens, tokens, width], [query, keys], probabilities, of)?;
        self.queue.softmax(self.score_rows(), layer.probabilities)?;
        let of = self.each_head(Bound::End);
        self.queue.heads(Kind::Backward, [tokens, width, tokens], [probabilities, values], mixed, of)
    }

    /// ARITH-36 and ARITH-37.
    fn attend_back(&mut self, layer: Activations) -> Outcome<()> {
        let (heads, buffers) = (&self.plan.heads, self.buffers);
        let (tokens, width) = (heads.tokens, heads.width);
        let [probabilities, d_scores] = [layer.probabilities, buffers.d_scores].map(|at| self.scores(at));
        let d_output = self.outputs(buffers.d_mixed);
        let of = self.each_head(Bound::Columns);
        let values = self.values(layer.joint);
        self.queue.heads(Kind::Forward, [tokens, tokens, width], [d_output, values], d_scores, of)?;
        let places = [layer.probabilities, buffers.d_scores, layer.mixed, buffers.d_mixed];
        self.queue.softmax_back(self.score_rows(), width, places)?;
        let (keys, d_query) = (self.keys(layer.joint), self.queries(buffers.d_joint));
        let of = self.each_head(Bound::End);
        self.queue.heads(Kind::Backward, [tokens, width, tokens], [d_scores, keys], d_query, of)?;
        let of = Heads {
            count: heads.count / heads.group,
            loops: heads.group,
            sharing: 1,
            ..self.each_head(Bound::Begin)
        };
        let shape = [tokens, width, tokens];
        let (query, d_keys) = (self.queries(layer.joint), self.keys(buffers.d_joint));
        self.queue.heads(Kind::Weigh, shape, [d_scores, query], d_keys, of)?;
        self.queue.heads(Kind::Weigh, shape, [probabilities, d_output], self.values(buffers.d_joint), of)
    }

    /// Products with a matrix for each query head.
    fn each_head(&self, bound: Bound) -> Heads {
        let heads = &self.plan.heads;
        let bound = if heads.causal { bound } else { Bound::None };
        Heads {
            windows: self.windows,
            count: heads.count,
            loops: 1,
            sharing: heads.group,
            block: BLOCK,
            bound,
        }
    }

    fn score_rows(&self) -> Scores {
        let heads = &self.plan.heads;
        Scores {
            windows: self.windows,
            heads: heads.count,
            tokens: heads.tokens,
            block: BLOCK,
            causal: heads.causal,
        }
    }

    fn queries(&self, joint: Place) -> OfHeads {
        self.of_joint(joint, 0)
    }

    fn keys(&self, joint: Place) -> OfHeads {
        self.of_joint(joint, self.plan.heads.query_width())
    }

    fn values(&self, joint: Place) -> OfHeads {
        self.of_joint(joint, self.plan.heads.query_width() + self.plan.heads.key_width())
    }

    fn of_joint(&self, joint: Place, column: usize) -> OfHeads {
        let heads = &self.plan.heads;
        let stride = heads.joint_width();
        OfHeads {
            lying: Lying { at: joint.after(column), stride },
            apart: [heads.tokens * stride, heads.width],
        }
    }

    fn outputs(&self, mixed: Place) -> OfHeads {
        let heads = &self.plan.heads;
        let stride = heads.query_width();
        OfHeads { lying: Lying { at: mixed, stride }, apart: [heads.tokens * stride, heads.width] }
    }

    fn scores(&self, at: Place) -> OfHeads {
        let heads = &self.plan.heads;
        let head = heads.tokens * heads.tokens;
        OfHeads { lying: Lying { at, stride: heads.tokens }, apart: [heads.count * head, head] }
    }

    /// Rotates queries and keys, or their gradients back.
    fn rotate(&mut self, joint: Place, direction: f32) -> Outcome<()> {
        let (heads, rows) = (&self.plan.heads, self.rows());
        let turn = |count, scale| Turn {
            heads: count,
            pairs: heads.width / 2,
            stride: heads.joint_width(),
            tokens: heads.tokens,
            direction,
            scale,
            angles: self.buffers.angles,
        };
        let (queries, keys) = (turn(heads.count, heads.score_scale()), turn(heads.count / heads.group, 1.0));
        self.queue.rotate(rows, &queries, joint)?;
        self.queue.rotate(rows, &keys, joint.after(heads.query_width()))
    }

    /// x·W, from +0 or from `start`.
    fn multiply(&mut self, weight: Weight, x: Place, start: Option<Place>, out: Place) -> Outcome<()> {
        let Matrix { offset, outputs, inputs } = self.matrix(weight);
        let factors = [
            Lying { at: x, stride: inputs },
            Lying { at: self.buffers.parameters.after(offset), stride: inputs },
        ];
        let out = Lying { at: out, stride: outputs };
        self.queue.product(Kind::Forward, [self.rows(), outputs, inputs], factors, start, out)
    }

    /// d·Wᵀ.
    fn multiply_back(&mut self, weight: Weight, d: Place, out: Place) -> Outcome<()> {
        let Matrix { offset, outputs, inputs } = self.matrix(weight);
        let factors = [
            Lying { at: d, stride: outputs },
            Lying { at: self.buffers.parameters.after(offset), stride: inputs },
        ];
        let out = Lying { at: out, stride: inputs };
        self.queue.product(Kind::Backward, [self.rows(), inputs, outputs], factors, None, out)
    }

    /// ARITH-4, of some weights: goes on with the chains of the windows before.
    fn weigh(&mut self, weights: &[(Weight, Place, Place)]) -> Outcome<()> {
        let of = |(weight, d_output, input): &(Weight, Place, Place)| {
            let Matrix { offset, outputs, inputs } = self.matrix(*weight);
            Weighing { d_output: *d_output, input: *input, outputs, inputs, offset }
        };
        let all: Vec<Weighing> = weights.iter().map(of).collect();
        self.queue.weigh(self.rows(), &all, self.first > 0, self.buffers.gradient)
    }

    /// Back through a norm whose output has the gradient `d_normed`, from the stream's gradient to the next, and the gradient
    /// of its gain.
    fn norm_back(&mut self, gain: &Gain, [x, scales]: [Place; 2], streams: [Place; 2]) -> Outcome<()> {
        let (buffers, size) = (self.buffers, [self.rows(), self.plan.width]);
        let values = self.parameters(&gain.range);
        self.queue.norm_back(size, [x, values, scales, buffers.d_normed], streams)?;
        self.queue.add_rows(size, self.first > 0, buffers.d_normed, buffers.gradient.after(gain.range.start))
    }
}
