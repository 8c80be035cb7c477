//! The decoder over one window: forward and backward, up to the factors of the weights' gradients.

use crate::attention::{Attention, rotate_joint};
use crate::kernel::matrix::{Panels, Product, Strided, multiply};
use crate::kernel::rows::{cross_entropy, rms_norm, rms_norm_backward, swiglu, swiglu_backward};
use crate::path::Kernels;
use crate::plan::{MATRICES, Matrix, Plan, Weight};
use crate::tape::Tape;

/// Weight matrices packed as right factors.
#[derive(Default)]
pub(crate) struct Packed {
    /// By layer, and [`Weight`] as index.
    layers: Vec<[Panels; 4]>,
    head: Panels,
}

impl Packed {
    /// Sizes the tables and lists every panel set with its matrix.
    pub(crate) fn entries(&mut self, plan: &Plan) -> impl Iterator<Item = (&mut Panels, Matrix)> {
        self.layers.resize_with(plan.layers.len(), Default::default);
        let layers = self.layers.iter_mut().enumerate().flat_map(move |(layer, panels)| {
            panels.iter_mut().zip(MATRICES).map(move |(panels, weight)| (panels, plan.matrix(layer, weight)))
        });
        layers.chain(std::iter::once((&mut self.head, plan.head)))
    }

    fn panels(&self, layer: usize, weight: Weight) -> &Panels {
        &self.layers[layer][weight as usize]
    }
}

/// Packs `W` transposed, as the forward pass multiplies by it.
pub(crate) fn pack_forward(kernels: Kernels, panels: &mut Panels, parameters: &[f32], matrix: Matrix) {
    let weights = Strided::transposed(&parameters[matrix.range()], matrix.inputs);
    panels.pack(kernels, weights, matrix.inputs, matrix.outputs);
}

/// Packs `W`, as the backward pass multiplies by it.
pub(crate) fn pack_backward(kernels: Kernels, panels: &mut Panels, parameters: &[f32], matrix: Matrix) {
    let weights = Strided::rows(&parameters[matrix.range()], matrix.inputs);
    panels.pack(kernels, weights, matrix.outputs, matrix.inputs);
}

/// What the passes over a window read.
#[derive(Clone, Copy)]
pub(crate) struct Decoder<'a> {
    pub kernels: Kernels,
    pub plan: &'a Plan,
    pub parameters: &'a [f32],
    pub forward: &'a Packed,
    pub backward: &'a Packed,
    /// One over the tokens of the leaf: scale of the loss gradient.
    pub share: f32,
}

/// Buffers of the passes, one set a thread.
#[derive(Default)]
pub(crate) struct Buffers {
    attention: Attention,
    d_mixed: Vec<f32>,
    d_product: Vec<f32>,
}

impl Decoder<'_> {
    /// Runs a loaded window up to its loss and the gradient of its logits.
    pub(crate) fn run_forward(&self, tape: &mut Tape, buffers: &mut Buffers) {
        let Self { kernels, plan, parameters, .. } = *self;
        let width = plan.width;
        for (row, token) in tape.residual[0].chunks_exact_mut(width).zip(&tape.inputs) {
            row.copy_from_slice(&parameters[plan.embedding.offset + token * width..][..width]);
        }
        for layer in 0..plan.layers.len() {
            self.attention_forward(layer, tape, buffers);
            self.feed_forward(layer, tape);
        }
        let gain = &parameters[plan.final_gain.clone()];
        let last = &tape.residual[plan.layers.len()];
        rms_norm(kernels, last, gain, plan.epsilon, &mut tape.normed, &mut tape.scales);
        self.product(&tape.normed, &self.forward.head, &mut tape.logits, false);
        tape.loss = cross_entropy(kernels, &mut tape.logits, plan.vocabulary, &tape.targets, self.share);
    }

    /// `out = left · right`, or added to `out`; rows are tokens.
    fn product(&self, left: &[f32], right: &Panels, out: &mut [f32], add: bool) {
        let rows = self.plan.tokens;
        let left = Strided::rows(left, left.len() / rows);
        let stride = out.len() / rows;
        multiply(self.kernels, &Product { add, ..Product::full(left, right, rows) }, out, stride);
    }

    fn attention_forward(&self, layer: usize, tape: &mut Tape, buffers: &mut Buffers) {
        let Self { kernels, plan, forward, .. } = *self;
        let input = &tape.residual[layer];
        let at = &mut tape.layers[layer];
        let gain = &self.parameters[plan.layers[layer].gains[0].clone()];
        rms_norm(kernels, input, gain, plan.epsilon, &mut at.normed, &mut at.scales);
        self.product(&at.normed, forward.panels(layer, Weight::QueryKeyValue), &mut at.joint, false);
        rotate_joint(kernels, plan, &mut at.joint, 1.0);
        buffers.attention.forward(kernels, plan, layer, &at.joint, &mut at.mixed);
        at.middle.copy_from_slice(input);
        self.product(&at.mixed, forward.panels(layer, Weight::Output), &mut at.middle, true);
    }

    fn feed_forward(&self, layer: usize, tape: &mut Tape) {
        let Self { kernels, plan, forward, .. } = *self;
        let at = &mut tape.layers[layer];
        let gain = &self.parameters[plan.layers[layer].gains[1].clone()];
        rms_norm(kernels, &at.middle, gain, plan.epsilon, &mut at.feed_normed, &mut at.feed_scales);
        self.product(&at.feed_normed, forward.panels(layer, Weight::GateUp), &mut at.gate_up, false);
        swiglu(kernels, &at.gate_up, plan.hidden, &mut at.sigmoid, &mut at.product);
        let output = &mut tape.residual[layer + 1];
        output.copy_from_slice(&at.middle);
        self.product(&at.product, forward.panels(layer, Weight::Down), output, true);
    }

    /// Runs back from the gradient of the logits to that of the embedded tokens.
    pub(crate) fn run_backward(&self, tape: &mut Tape, buffers: &mut Buffers) {
        let Self { kernels, plan, parameters, .. } = *self;
        let layers = plan.layers.len();
        buffers.d_mixed.resize(plan.tokens * plan.width, 0.0);
        buffers.d_product.resize(plan.tokens * plan.hidden, 0.0);
        self.product(&tape.logits, &self.backward.head, &mut tape.d_gain, false);
        let gain = &parameters[plan.final_gain.clone()];
        let gradient = &mut tape.d_residual[layers];
        gradient.fill(0.0);
        rms_norm_backward(kernels, &tape.residual[layers], gain, &tape.scales, &mut tape.d_gain, gradient);
        for layer in (0..layers).rev() {
            self.feed_backward(layer, tape, buffers);
            self.attention_backward(layer, tape, buffers);
        }
    }

    fn feed_backward(&self, layer: usize, tape: &mut Tape, buffers: &mut Buffers) {
        let Self { kernels, plan, backward, .. } = *self;
        let at = &mut tape.layers[layer];
        let gradient = &tape.d_residual[layer + 1];
        self.product(gradient, backward.panels(layer, Weight::Down), &mut buffers.d_product, false);
        swiglu_backward(
            kernels,
            &at.gate_up,
            plan.hidden,
            &at.sigmoid,
            &buffers.d_product,
            &mut at.d_gate_up,
        );
        self.product(&at.d_gate_up, backward.panels(layer, Weight::GateUp), &mut at.d_feed_gain, false);
        at.d_middle.copy_from_slice(gradient);
        let gain = &self.parameters[plan.layers[layer].gains[1].clone()];
        rms_norm_backward(kernels, &at.middle, gain, &at.feed_scales, &mut at.d_feed_gain, &mut at.d_middle);
    }

    fn attention_backward(&self, layer: usize, tape: &mut Tape, buffers: &mut Buffers) {
        let Self { kernels, plan, backward, .. } = *self;
        let at = &mut tape.layers[layer];
        self.product(&at.d_middle, backward.panels(layer, Weight::Output), &mut buffers.d_mixed, false);
        let rows = [&*at.joint, &*at.mixed, &*buffers.d_mixed];
        buffers.attention.backward(kernels, plan, layer, rows, &mut at.d_joint);
        rotate_joint(kernels, plan, &mut at.d_joint, -1.0);
        self.product(&at.d_joint, backward.panels(layer, Weight::QueryKeyValue), &mut at.d_gain, false);
        let gradient = &mut tape.d_residual[layer];
        gradient.copy_from_slice(&at.d_middle);
        let gain = &self.parameters[plan.layers[layer].gains[0].clone()];
        rms_norm_backward(kernels, &tape.residual[layer], gain, &at.scales, &mut at.d_gain, gradient);
    }
}
