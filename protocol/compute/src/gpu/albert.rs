//! ALBERT on a device: the passes of `crate::albert`, kernel for kernel, one window after the other.
//!
//! A window's gradient is its own (ARITH-66). That of the first is made where the leaf's belongs, the others are added to it.

use std::ops::Range;

use muster_core::assign::masked;
use muster_core::manifest::Albert;

use super::attention::Attention;
use super::buffers::albert::{Activations, AlbertBuffers, Normed};
use super::buffers::taking::LeafPlaces;
use super::driver::{Outcome, Place};
use super::order::Order;
use super::queue::{Kind, Lying, Queue, Weighing};
use crate::albert::ranges::{AlbertMatrix, AlbertRanges, LayerNorm};
use crate::leaf::Batch;
use crate::matrix::Matrix;
use crate::plan::NetworkPlan;

/// A leaf of an ALBERT.
pub(super) struct AlbertLeaf<'a> {
    pub queue: &'a mut Queue,
    pub plan: &'a NetworkPlan,
    pub albert: &'a Albert,
    pub ranges: &'a AlbertRanges,
    pub leaf: LeafPlaces,
    pub buffers: &'a AlbertBuffers,
    pub batch: Batch<'a>,
}

impl AlbertLeaf<'_> {
    /// Leaves on the device what the losses are made of, and with `back` the gradient.
    pub(super) fn windows(&mut self, back: bool) -> Outcome<()> {
        let kinds = self.load()?;
        let Self { plan, ranges, leaf, buffers, batch, .. } = *self;
        let predicted = batch.windows.len() * plan.predicted;
        let share = if back { (1.0 / predicted as f64) as f32 } else { 1.0 };
        let d = plan.layout.parameters();
        for (number, kinds) in kinds.into_iter().enumerate() {
            let queue = &mut *self.queue;
            let gradient = if number == 0 { leaf.gradient } else { buffers.window };
            let mut pass = Pass { queue, plan, ranges, leaf, buffers, number, share, gradient };
            pass.forward()?;
            if back {
                pass.queue.driver.clear(gradient, d)?;
                pass.backward(kinds)?;
            }
            if back && number > 0 {
                self.queue.add_vectors(d, [leaf.gradient, gradient, leaf.gradient])?;
            }
        }
        Ok(())
    }

    /// Masks all windows and copies them to the device; gives how many tokens occur in each.
    fn load(&mut self) -> Outcome<Vec<usize>> {
        let Self { plan, albert, leaf, buffers, batch, .. } = *self;
        let [mut inputs, mut predicted, mut targets] = [(); 3].map(|()| Vec::<i32>::new());
        let [mut by_token, mut starts, mut names] = [(); 3].map(|()| Vec::<i32>::new());
        let mut kinds = Vec::new();
        for (number, window) in (0u32..).zip(batch.windows) {
            let found = masked(&plan.model, albert, &batch.seed, batch.leaf, number, window);
            let tokens: Vec<i32> = found.inputs.iter().map(|token| plan.token(*token) as i32).collect();
            predicted.extend(found.positions.iter().map(|place| *place as i32));
            targets.extend(found.positions.iter().map(|place| plan.token(window[*place as usize]) as i32));
            let order = Order::of(&tokens);
            kinds.push(order.names.len());
            by_token.extend(order.by_token);
            starts.extend(order.starts);
            names.extend(order.names);
            // Each window's begin where they would if every token were another one.
            starts.resize(inputs.len() + tokens.len() + number as usize + 1, 0);
            names.resize(inputs.len() + tokens.len(), 0);
            inputs.extend(tokens);
        }
        let [to_order, to_starts, to_names] = buffers.order;
        let copies = [
            (leaf.inputs, &inputs),
            (buffers.predicted, &predicted),
            (leaf.targets, &targets),
            (to_order, &by_token),
            (to_starts, &starts),
            (to_names, &names),
        ];
        for (place, values) in copies {
            self.queue.driver.upload(place, bytemuck::cast_slice(values))?;
        }
        Ok(kinds)
    }
}

/// A pass over one window.
struct Pass<'a> {
    queue: &'a mut Queue,
    plan: &'a NetworkPlan,
    ranges: &'a AlbertRanges,
    leaf: LeafPlaces,
    buffers: &'a AlbertBuffers,
    /// Of the window, in its leaf.
    number: usize,
    /// 1/(predicted tokens) of the leaf.
    share: f32,
    /// Of this window.
    gradient: Place,
}

impl Pass<'_> {
    fn parameters(&self, range: &Range<usize>) -> Place {
        self.leaf.parameters.after(range.start)
    }

    fn matrix(&self, weight: AlbertMatrix) -> Matrix {
        self.plan.matrices[weight as usize]
    }

    fn words(&self) -> Matrix {
        self.matrix(AlbertMatrix::Words)
    }

    fn layer(&self, number: usize) -> Activations {
        self.buffers.layers[if self.buffers.portion.kept == 1 { 0 } else { number }]
    }

    /// Up to the gradient of the logits, and the losses' parts.
    fn forward(&mut self) -> Outcome<()> {
        self.embed()?;
        for number in 0..self.plan.layers {
            self.layer_forward(number)?;
        }
        self.head()
    }

    /// Words and positions, normalised and mapped to the width of the layers.
    fn embed(&mut self) -> Outcome<()> {
        let (plan, ranges, embedded, words) = (self.plan, self.ranges, self.buffers.embedded, self.words());
        let (rows, width) = (plan.tokens, words.inputs);
        let inputs = self.leaf.inputs.after(self.number * rows);
        let (table, positions) = (self.parameters(&words.range()), self.parameters(&ranges.positions));
        self.queue.gather([rows, width], [inputs, table, embedded.input])?;
        self.queue.add_vectors(rows * width, [embedded.input, positions, embedded.input])?;
        self.norm(rows, &ranges.embedding_norm, embedded)?;
        let out = self.buffers.residual[0];
        self.linear(AlbertMatrix::Mapping, rows, embedded.output, &ranges.mapping_bias, out)
    }

    fn layer_forward(&mut self, number: usize) -> Outcome<()> {
        let (plan, ranges, layer) = (self.plan, self.ranges, self.layer(number));
        let (rows, width, stride) = (plan.tokens, plan.width, plan.heads.joint_width());
        let (input, output) = (self.buffers.residual[number], self.buffers.residual[number + 1]);
        let joint = layer.attended.joint;
        // Keys have no bias.
        self.queue.driver.clear(joint, rows * stride)?;
        for (bias, column) in [(&ranges.query_bias, 0), (&ranges.value_bias, 2 * width)] {
            let bias = self.parameters(bias);
            self.queue.bias_rows([rows, width], stride, None, bias, joint.after(column))?;
        }
        self.multiply(AlbertMatrix::QueryKeyValue, rows, input, joint)?;
        self.queue.scale_columns([rows, width], stride, plan.heads.score_scale(), joint)?;
        self.attention().forward(layer.attended)?;
        let (middle, active) = (layer.middle, layer.active);
        self.residual(AlbertMatrix::Dense, layer.attended.mixed, [input, middle.input], &ranges.dense_bias)?;
        self.norm(rows, &ranges.attention_norm, middle)?;
        self.linear(AlbertMatrix::Feed, rows, middle.output, &ranges.feed_bias, layer.feed)?;
        self.queue.gelu(rows * plan.hidden, [layer.feed, active])?;
        let sum = [middle.output, layer.last];
        self.residual(AlbertMatrix::FeedOutput, active, sum, &ranges.feed_output_bias)?;
        let last = Normed { input: layer.last, output, statistics: layer.statistics };
        self.norm(rows, &ranges.last_norm, last)
    }

    /// From the last layer's output to the gradient of the predicted tokens' logits.
    fn head(&mut self) -> Outcome<()> {
        let (plan, ranges, buffers) = (self.plan, self.ranges, self.buffers);
        let (rows, narrow) = (plan.predicted, self.words().inputs);
        let places = [self.predicted(), buffers.residual[plan.layers], buffers.gathered];
        self.queue.gather([rows, plan.width], places)?;
        let (bias, dense) = (&ranges.prediction_bias, buffers.dense);
        self.linear(AlbertMatrix::Prediction, rows, buffers.gathered, bias, dense)?;
        self.queue.gelu(rows * narrow, [dense, buffers.normed.input])?;
        self.norm(rows, &ranges.prediction_norm, buffers.normed)?;
        let bias = &ranges.word_bias;
        self.linear(AlbertMatrix::Words, rows, buffers.normed.output, bias, buffers.logits)?;
        let first = self.number * rows;
        let [targets, sums, chosen] =
            [self.leaf.targets, self.leaf.sums, self.leaf.chosen].map(|at| at.after(first));
        let places = [targets, buffers.logits, sums, chosen];
        self.queue.cross_entropy([rows, plan.vocabulary], self.share, places)
    }

    /// ARITH-66, of a window in which so many tokens occur.
    fn backward(&mut self, kinds: usize) -> Outcome<()> {
        self.head_backward()?;
        for number in (0..self.plan.layers).rev() {
            // The forward pass ended with the last layer, whose activations are still there.
            if self.buffers.portion.kept == 1 && number + 1 < self.plan.layers {
                self.layer_forward(number)?;
            }
            self.feed_backward(number)?;
            self.attention_backward(number)?;
        }
        self.embed_backward(kinds)
    }

    /// From the logits to the last layer's output.
    fn head_backward(&mut self) -> Outcome<()> {
        let (plan, ranges, buffers) = (self.plan, self.ranges, self.buffers);
        let (rows, width, narrow) = (plan.predicted, self.words().inputs, buffers.narrow);
        let factors = [buffers.logits, buffers.normed.output];
        self.linear_back(AlbertMatrix::Words, rows, factors, &ranges.word_bias)?;
        self.multiply_back(AlbertMatrix::Words, rows, buffers.logits, None, narrow)?;
        self.norm_back(rows, &ranges.prediction_norm, buffers.normed, narrow)?;
        self.queue.gelu_back(rows * width, [buffers.dense, narrow])?;
        self.linear_back(
            AlbertMatrix::Prediction,
            rows,
            [narrow, buffers.gathered],
            &ranges.prediction_bias,
        )?;
        // The last use of the gathered rows was above: the buffer takes their gradient.
        self.multiply_back(AlbertMatrix::Prediction, rows, narrow, None, buffers.gathered)?;
        self.queue.driver.clear(buffers.stream, plan.tokens * plan.width)?;
        let places = [self.predicted(), buffers.gathered, buffers.stream];
        self.queue.scatter([rows, plan.width], places)
    }

    /// Turns the gradient of a layer's output into that of its middle.
    fn feed_backward(&mut self, number: usize) -> Outcome<()> {
        let (plan, ranges, buffers, layer) = (self.plan, self.ranges, self.buffers, self.layer(number));
        let (rows, stream, d_feed) = (plan.tokens, buffers.stream, buffers.d_feed);
        let output = buffers.residual[number + 1];
        let last = Normed { input: layer.last, output, statistics: layer.statistics };
        self.norm_back(rows, &ranges.last_norm, last, stream)?;
        let factors = [stream, layer.active];
        self.linear_back(AlbertMatrix::FeedOutput, rows, factors, &ranges.feed_output_bias)?;
        self.multiply_back(AlbertMatrix::FeedOutput, rows, stream, None, d_feed)?;
        self.queue.gelu_back(rows * plan.hidden, [layer.feed, d_feed])?;
        self.linear_back(AlbertMatrix::Feed, rows, [d_feed, layer.middle.output], &ranges.feed_bias)?;
        // Added: the residual sum has sent the gradient past the feed-forward as well.
        self.multiply_back(AlbertMatrix::Feed, rows, d_feed, Some(stream), stream)?;
        self.norm_back(rows, &ranges.attention_norm, layer.middle, stream)
    }

    /// Turns the gradient of the sum after attention into that of the layer's input.
    fn attention_backward(&mut self, number: usize) -> Outcome<()> {
        let (plan, ranges, buffers, layer) = (self.plan, self.ranges, self.buffers, self.layer(number));
        let (rows, width, stride) = (plan.tokens, plan.width, plan.heads.joint_width());
        let (stream, to) = (buffers.stream, buffers.d_attended);
        self.linear_back(AlbertMatrix::Dense, rows, [stream, layer.attended.mixed], &ranges.dense_bias)?;
        self.multiply_back(AlbertMatrix::Dense, rows, stream, None, to.mixed)?;
        self.attention().backward(layer.attended, to)?;
        // Before the biases: theirs is the gradient of what the scale was applied to (ARITH-66).
        self.queue.scale_columns([rows, width], stride, plan.heads.score_scale(), to.joint)?;
        for (bias, column) in [(&ranges.query_bias, 0), (&ranges.value_bias, 2 * width)] {
            let sums = self.gradient.after(bias.start);
            self.queue.add_columns([rows, width], stride, true, to.joint.after(column), sums)?;
        }
        self.weigh(AlbertMatrix::QueryKeyValue, rows, [to.joint, buffers.residual[number]])?;
        self.multiply_back(AlbertMatrix::QueryKeyValue, rows, to.joint, Some(stream), stream)
    }

    /// From the first layer's input to words and positions.
    fn embed_backward(&mut self, kinds: usize) -> Outcome<()> {
        let (plan, ranges, buffers, words) = (self.plan, self.ranges, self.buffers, self.words());
        let (rows, stream, narrow) = (plan.tokens, buffers.stream, buffers.narrow);
        self.linear_back(
            AlbertMatrix::Mapping,
            rows,
            [stream, buffers.embedded.output],
            &ranges.mapping_bias,
        )?;
        self.multiply_back(AlbertMatrix::Mapping, rows, stream, None, narrow)?;
        self.norm_back(rows, &ranges.embedding_norm, buffers.embedded, narrow)?;
        let positions = self.gradient.after(ranges.positions.start);
        self.queue.add_vectors(rows * words.inputs, [positions, narrow, positions])?;
        let [order, starts, names] = buffers.order;
        let first = self.number * rows;
        let (order, starts, names) =
            (order.after(first), starts.after(first + self.number), names.after(first));
        let out = self.gradient.after(words.offset);
        self.queue.embed_back([kinds, words.inputs], [names, starts, order, narrow, out])
    }

    /// The places that are predicted.
    fn predicted(&self) -> Place {
        self.buffers.predicted.after(self.number * self.plan.predicted)
    }

    fn attention(&mut self) -> Attention<'_> {
        Attention { queue: self.queue, heads: &self.plan.heads, windows: 1 }
    }

    /// x·W + bias: every chain starts from the bias.
    fn linear(
        &mut self,
        weight: AlbertMatrix,
        rows: usize,
        x: Place,
        bias: &Range<usize>,
        out: Place,
    ) -> Outcome<()> {
        let (width, bias) = (bias.len(), self.parameters(bias));
        self.queue.bias_rows([rows, width], width, None, bias, out)?;
        self.multiply(weight, rows, x, out)
    }

    /// A residual sum, whose chains start from the stream and the bias together (ARITH-65, step 3).
    fn residual(
        &mut self,
        weight: AlbertMatrix,
        x: Place,
        [stream, out]: [Place; 2],
        bias: &Range<usize>,
    ) -> Outcome<()> {
        let (rows, width, bias) = (self.plan.tokens, bias.len(), self.parameters(bias));
        self.queue.bias_rows([rows, width], width, Some(stream), bias, out)?;
        self.multiply(weight, rows, x, out)
    }

    /// x·W, added to what is there.
    fn multiply(&mut self, weight: AlbertMatrix, rows: usize, x: Place, out: Place) -> Outcome<()> {
        let Matrix { offset, outputs, inputs } = self.matrix(weight);
        let factors = [
            Lying { at: x, stride: inputs },
            Lying { at: self.leaf.parameters.after(offset), stride: inputs },
        ];
        let lying = Lying { at: out, stride: outputs };
        self.queue.product(Kind::Forward, [rows, outputs, inputs], factors, Some(out), lying)
    }

    /// d·Wᵀ, from +0 or from `start`.
    fn multiply_back(
        &mut self,
        weight: AlbertMatrix,
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

    /// The gradients of a bias and a matrix, of their outputs' gradient and their input (ARITH-66).
    fn linear_back(
        &mut self,
        weight: AlbertMatrix,
        rows: usize,
        factors: [Place; 2],
        bias: &Range<usize>,
    ) -> Outcome<()> {
        let sums = self.gradient.after(bias.start);
        self.queue.add_rows([rows, bias.len()], true, factors[0], sums)?;
        self.weigh(weight, rows, factors)
    }

    /// Adds to the gradient of a matrix.
    fn weigh(&mut self, weight: AlbertMatrix, rows: usize, [d_output, input]: [Place; 2]) -> Outcome<()> {
        let Matrix { offset, outputs, inputs } = self.matrix(weight);
        let weighing = Weighing { d_output, input, outputs, inputs, offset };
        self.queue.weigh(rows, &[weighing], true, self.gradient)
    }

    fn norm(&mut self, rows: usize, norm: &LayerNorm, normed: Normed) -> Outcome<()> {
        let affine = [self.parameters(&norm.gain), self.parameters(&norm.bias)];
        let Normed { input, output, statistics } = normed;
        self.queue.layer_norm([rows, norm.gain.len()], self.plan.epsilon, [input, output], affine, statistics)
    }

    /// Turns the gradient of a norm's output into that of its input, and adds to those of gain and bias.
    fn norm_back(&mut self, rows: usize, norm: &LayerNorm, normed: Normed, d: Place) -> Outcome<()> {
        let sums = [&norm.gain, &norm.bias].map(|range| self.gradient.after(range.start));
        let (gain, size) = (self.parameters(&norm.gain), [rows, norm.gain.len()]);
        self.queue.layer_norm_back(size, [normed.input, gain, d], normed.statistics, sums)
    }
}
