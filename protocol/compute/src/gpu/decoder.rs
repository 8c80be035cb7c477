//! The decoder on a device: the passes of `crate::decoder`, kernel for kernel, over all windows of a portion at once.

mod heads;
pub(super) mod mixture;

use super::attention::Attention;
use super::buffers::decoder::{Activations, DecoderBuffers};
use super::buffers::taking::LeafPlaces;
use super::driver::{Outcome, Place};
use super::host::Host;
use super::order::Order;
use super::queue::{Kind, Lying, Queue, Turn, Weighing};
use crate::decoder::ranges::{DecoderRanges, Gain, LayerRanges, Weight};
use crate::leaf::Batch;
use crate::matrix::Matrix;
use crate::plan::NetworkPlan;
use mixture::Chosen;

/// A leaf of a decoder.
pub(super) struct DecoderLeaf<'a> {
    pub queue: &'a mut Queue,
    pub host: Host,
    pub plan: &'a NetworkPlan,
    pub ranges: &'a DecoderRanges,
    pub leaf: LeafPlaces,
    pub buffers: &'a DecoderBuffers,
    /// What experts the tokens of a portion choose, by layer.
    pub chosen: &'a mut Vec<Chosen>,
    pub batch: Batch<'a>,
}

impl DecoderLeaf<'_> {
    /// Leaves the gradient on the device, and what the losses are made of.
    pub(super) fn differentiate(&mut self) -> Outcome<()> {
        let tokens = self.name_tokens()?;
        self.windows(true)?;
        let Self { queue, plan, ranges, leaf, buffers, .. } = self;
        let out = leaf.gradient.after(ranges.embedding.offset);
        if !ranges.tied {
            queue.driver.clear(out, ranges.embedding.range().len())?;
        }
        // ARITH-44: after the head's chains over all windows, where it is tied.
        let [by_token, begin, name] = buffers.order;
        queue.embed_back([tokens, plan.width], [name, begin, by_token, buffers.embedded, out])
    }

    /// Forward and, with `back`, backward over all windows, a portion at a time.
    pub(super) fn windows(&mut self, back: bool) -> Outcome<()> {
        let Self { plan, host, ranges, leaf, buffers, batch, .. } = *self;
        for (place, shift) in [(leaf.inputs, 0), (leaf.targets, 1)] {
            let tokens = self.tokens(shift);
            self.queue.driver.upload(place, bytemuck::cast_slice(&tokens))?;
        }
        self.chosen.resize_with(ranges.rows.len(), Chosen::default);
        let predicted = batch.windows.len() * plan.predicted;
        let share = if back { (1.0 / predicted as f64) as f32 } else { 1.0 };
        let mut first = 0;
        for windows in batch.windows.chunks(buffers.portion.windows) {
            let windows = windows.len();
            let (queue, chosen) = (&mut *self.queue, &mut self.chosen[..]);
            let mut pass = Pass { queue, host, plan, ranges, leaf, buffers, chosen, first, windows, share };
            pass.forward()?;
            if back {
                pass.backward()?;
            }
            first += windows;
        }
        Ok(())
    }

    /// Leaves the logits of the only window on the device.
    pub(super) fn read(&mut self) -> Outcome<()> {
        let Self { plan, host, ranges, leaf, buffers, .. } = *self;
        let tokens = self.tokens(0);
        self.queue.driver.upload(leaf.inputs, bytemuck::cast_slice(&tokens))?;
        self.chosen.resize_with(ranges.rows.len(), Chosen::default);
        let (queue, chosen) = (&mut *self.queue, &mut self.chosen[..]);
        let (first, windows, share) = (0, 1, 1.0);
        Pass { queue, host, plan, ranges, leaf, buffers, chosen, first, windows, share }.read()
    }

    /// The tokens of all windows, from this one on.
    fn tokens(&self, first: usize) -> Vec<i32> {
        let Self { plan, batch, .. } = self;
        let tokens = batch.windows.iter().flat_map(|window| &window[first..first + plan.tokens]);
        tokens.map(|token| plan.token(*token) as i32).collect()
    }

    /// Copies to the device which rows are which token's; gives how many tokens there are.
    fn name_tokens(&mut self) -> Outcome<usize> {
        let Order { by_token, starts, names } = Order::of(&self.tokens(0));
        for (place, values) in self.buffers.order.into_iter().zip([&by_token, &starts, &names]) {
            self.queue.driver.upload(place, bytemuck::cast_slice(values))?;
        }
        Ok(names.len())
    }
}

/// A pass over some windows of a leaf.
pub(super) struct Pass<'a> {
    pub queue: &'a mut Queue,
    pub host: Host,
    pub plan: &'a NetworkPlan,
    pub ranges: &'a DecoderRanges,
    pub leaf: LeafPlaces,
    pub buffers: &'a DecoderBuffers,
    pub chosen: &'a mut [Chosen],
    /// The first window of the leaf that it takes, and how many.
    pub first: usize,
    pub windows: usize,
    /// 1/(windows·T) of the leaf.
    pub share: f32,
}

impl Pass<'_> {
    pub(super) fn rows(&self) -> usize {
        self.windows * self.plan.tokens
    }

    /// Of the leaf, where this pass begins.
    fn first_row(&self) -> usize {
        self.first * self.plan.tokens
    }

    fn parameters(&self, range: &std::ops::Range<usize>) -> Place {
        self.leaf.parameters.after(range.start)
    }

    fn matrix(&self, weight: Weight) -> Matrix {
        self.plan.matrices[weight.matrix]
    }

    pub(super) fn layer(&self, number: usize) -> Activations {
        self.buffers.layers[if self.buffers.portion.kept == 1 { 0 } else { number }]
    }

    /// Up to the gradient of the logits, and the losses' parts.
    fn forward(&mut self) -> Outcome<()> {
        self.read()?;
        let (plan, leaf, buffers) = (self.plan, self.leaf, self.buffers);
        let [targets, sums, chosen] =
            [leaf.targets, leaf.sums, leaf.chosen].map(|at| at.after(self.first_row()));
        let places = [targets, buffers.logits, sums, chosen];
        self.queue.cross_entropy([self.rows(), plan.vocabulary], self.share, places)
    }

    /// Up to the logits.
    fn read(&mut self) -> Outcome<()> {
        let (plan, ranges, leaf, buffers) = (self.plan, self.ranges, self.leaf, self.buffers);
        let (rows, width) = (self.rows(), plan.width);
        let inputs = leaf.inputs.after(self.first_row());
        let table = leaf.parameters.after(ranges.embedding.offset);
        self.queue.gather([rows, width], [inputs, table, buffers.residual[0]])?;
        for number in 0..plan.layers {
            self.layer_forward(number, true)?;
        }
        let gain = self.parameters(&ranges.last_norm.range);
        let places = [buffers.residual[plan.layers], gain, buffers.last_normed, buffers.last_scales];
        self.queue.norm([rows, width], plan.epsilon, false, places)?;
        self.multiply(ranges.head, buffers.last_normed, None, buffers.logits)
    }

    /// Back to the gradient of the embedded rows.
    fn backward(&mut self) -> Outcome<()> {
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
                (at.joint, buffers.d_attended.joint, buffers.normed),
                (at.feed.down, own[0], buffers.product),
                (at.output, own[1], layer.attended.mixed),
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
        let joint = layer.attended.joint;
        if let Some(bias) = &at.bias {
            // ARITH-76: every chain starts from the bias.
            let (across, bias) = (bias.range.len(), self.parameters(&bias.range));
            self.queue.bias_rows([rows, across], across, None, bias, joint)?;
        }
        self.multiply(at.joint, buffers.normed, at.bias.as_ref().map(|_| joint), joint)?;
        self.norm_heads(number)?;
        self.rotate(layer.attended.joint, 1.0)?;
        self.attention().forward(layer.attended)?;
        // ARITH-41: the chain starts from the stream.
        self.multiply(at.output, layer.attended.mixed, Some(input), layer.middle)?;
        let gain = self.parameters(&at.feed_norm.range);
        self.queue.norm(
            [rows, width],
            plan.epsilon,
            false,
            [layer.middle, gain, buffers.normed, layer.feed_scales],
        )?;
        self.multiply(at.feed.gate_up, buffers.normed, None, layer.gate_up)?;
        self.queue.swiglu([rows, at.feed.hidden], [layer.gate_up, layer.sigmoid, buffers.product])?;
        if let Some(gate) = at.feed_gate {
            self.multiply(gate, buffers.normed, None, layer.feed_weights)?;
            self.queue.sigmoids(rows, layer.feed_weights)?;
            self.queue.weigh_rows([rows, at.feed.hidden], layer.feed_weights, buffers.product)?;
        }
        let output = output.then_some(buffers.residual[number + 1]);
        if let Some(output) = output {
            self.multiply(at.feed.down, buffers.product, Some(layer.middle), output)?;
        }
        self.experts_forward(number, buffers.normed, output)
    }

    /// Through the feed-forward; what its weights' gradients are made of stays: the product itself in `product`.
    fn feed_backward(&mut self, number: usize, streams: [Place; 2]) -> Outcome<()> {
        let (plan, buffers) = (self.plan, self.buffers);
        let at: &LayerRanges = &self.ranges.layers[number];
        let (rows, width, layer) = (self.rows(), plan.width, self.layer(number));
        self.multiply_back(at.feed.down, streams[0], buffers.product)?;
        let size = [rows, at.feed.hidden];
        let d_weights = buffers.experts.d_feed_weights;
        let [gate_up, sigmoid, product, d_gate_up] =
            [layer.gate_up, layer.sigmoid, buffers.product, buffers.d_gate_up];
        if at.feed_gate.is_some() {
            let places = [gate_up, sigmoid, layer.feed_weights, product, d_gate_up, d_weights];
            self.queue.weighted_swiglu_back(size, places)?;
        } else {
            self.queue.swiglu_back(size, [gate_up, sigmoid, product, d_gate_up])?;
        }
        self.multiply_back(at.feed.gate_up, buffers.d_gate_up, buffers.d_normed)?;
        let gain = self.parameters(&at.feed_norm.range);
        let places = [layer.middle, gain, buffers.feed_normed, layer.feed_scales];
        self.queue.norm([rows, width], plan.epsilon, true, places)?;
        if let Some(gate) = at.feed_gate {
            self.queue.sigmoids_back(rows, [layer.feed_weights, d_weights])?;
            let d_normed = buffers.d_normed;
            self.multiply_rows_back(gate, rows, d_weights, Some(d_normed), d_normed)?;
            self.weigh(&[(gate, d_weights, buffers.feed_normed)])?;
        }
        self.experts_backward(number, streams[0])?;
        self.norm_back(&at.feed_norm, [layer.middle, layer.feed_scales], streams)
    }

    fn attention_backward(&mut self, number: usize, streams: [Place; 2]) -> Outcome<()> {
        let (plan, buffers) = (self.plan, self.buffers);
        let at: &LayerRanges = &self.ranges.layers[number];
        let (rows, width, layer, input) =
            (self.rows(), plan.width, self.layer(number), buffers.residual[number]);
        let to = buffers.d_attended;
        self.multiply_back(at.output, streams[0], to.mixed)?;
        self.attention().backward(layer.attended, to)?;
        self.rotate(to.joint, -1.0)?;
        self.norm_heads_back(number)?;
        if let Some(bias) = &at.bias {
            let sums = self.leaf.gradient.after(bias.range.start);
            self.queue.add_rows([rows, bias.range.len()], self.first > 0, to.joint, sums)?;
        }
        self.multiply_back(at.joint, to.joint, buffers.d_normed)?;
        let gain = self.parameters(&at.attention_norm.range);
        self.queue.norm([rows, width], plan.epsilon, true, [input, gain, buffers.normed, layer.scales])?;
        self.norm_back(&at.attention_norm, [input, layer.scales], streams)
    }

    fn attention(&mut self) -> Attention<'_> {
        Attention { queue: self.queue, heads: &self.plan.heads, windows: self.windows }
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

    /// x·W of all rows, from +0 or from `start`.
    fn multiply(&mut self, weight: Weight, x: Place, start: Option<Place>, out: Place) -> Outcome<()> {
        self.multiply_rows(weight, self.rows(), x, start, out)
    }

    /// x·W of so many rows.
    pub(super) fn multiply_rows(
        &mut self,
        weight: Weight,
        rows: usize,
        x: Place,
        start: Option<Place>,
        out: Place,
    ) -> Outcome<()> {
        let Matrix { offset, outputs, inputs } = self.matrix(weight);
        let factors = [
            Lying { at: x, stride: inputs },
            Lying { at: self.leaf.parameters.after(offset), stride: inputs },
        ];
        let out = Lying { at: out, stride: outputs };
        self.queue.product(Kind::Forward, [rows, outputs, inputs], factors, start, out)
    }

    /// d·Wᵀ of all rows, from +0.
    fn multiply_back(&mut self, weight: Weight, d: Place, out: Place) -> Outcome<()> {
        self.multiply_rows_back(weight, self.rows(), d, None, out)
    }

    /// d·Wᵀ of so many rows, from +0 or from `start`.
    pub(super) fn multiply_rows_back(
        &mut self,
        weight: Weight,
        rows: usize,
        d: Place,
        start: Option<Place>,
        out: Place,
    ) -> Outcome<()> {
        let Matrix { offset, outputs, inputs } = self.matrix(weight);
        let factors = [
            Lying { at: d, stride: outputs },
            Lying { at: self.leaf.parameters.after(offset), stride: inputs },
        ];
        let out = Lying { at: out, stride: inputs };
        self.queue.product(Kind::Backward, [rows, inputs, outputs], factors, start, out)
    }

    /// ARITH-4, of some weights over all rows.
    pub(super) fn weigh(&mut self, weights: &[(Weight, Place, Place)]) -> Outcome<()> {
        self.weigh_over(self.rows(), weights)
    }

    /// The same over so many rows: goes on with the chains of the windows before.
    pub(super) fn weigh_over(&mut self, rows: usize, weights: &[(Weight, Place, Place)]) -> Outcome<()> {
        let of = |(weight, d_output, input): &(Weight, Place, Place)| {
            let Matrix { offset, outputs, inputs } = self.matrix(*weight);
            Weighing { d_output: *d_output, input: *input, outputs, inputs, offset }
        };
        let all: Vec<Weighing> = weights.iter().map(of).collect();
        self.queue.weigh(rows, &all, self.first > 0, self.leaf.gradient)
    }

    /// Back through a norm whose output has the gradient `d_normed`, from the stream's gradient to the next, and the gradient
    /// of its gain.
    fn norm_back(&mut self, gain: &Gain, [x, scales]: [Place; 2], streams: [Place; 2]) -> Outcome<()> {
        let (buffers, size) = (self.buffers, [self.rows(), self.plan.width]);
        let values = self.parameters(&gain.range);
        self.queue.norm_back(size, [x, values, scales, buffers.d_normed], streams)?;
        self.queue.add_rows(
            size,
            self.first > 0,
            buffers.d_normed,
            self.leaf.gradient.after(gain.range.start),
        )
    }
}
