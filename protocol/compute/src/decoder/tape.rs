//! Buffers of one window of a decoder. Every buffer holds one row a token.

use crate::attention::Attention;
use crate::kernel::matrix::Panels;
use crate::plan::NetworkPlan;

/// Activations of one layer.
#[derive(Default)]
pub(super) struct DecoderActivations {
    /// Of the normalised input of attention.
    pub scales: Vec<f32>,
    /// Queries (rotated, scaled), keys (rotated), values.
    pub joint: Vec<f32>,
    /// Of every head.
    pub probabilities: Vec<f32>,
    /// Output of the heads.
    pub mixed: Vec<f32>,
    /// Residual stream between attention and feed-forward.
    pub middle: Vec<f32>,
    /// Of the normalised input of the feed-forward.
    pub feed_scales: Vec<f32>,
    pub gate_up: Vec<f32>,
    /// σ(gate).
    pub sigmoid: Vec<f32>,
}

/// Inputs of a layer's matrices that no layer keeps: the backward pass makes them once more, for two multiplications a
/// value.
#[derive(Default)]
pub(super) struct Passing {
    /// Of attention or of the feed-forward.
    pub normed: Vec<f32>,
    pub product: Vec<f32>,
}

/// Gradients on their way back through one layer.
#[derive(Default)]
pub(super) struct LayerGradients {
    /// Of a norm's output; then, per row, of its gain.
    pub normed: Vec<f32>,
    pub joint: Vec<f32>,
    pub mixed: Vec<f32>,
    pub gate_up: Vec<f32>,
    /// Of gate and up's product; then that product.
    pub product: Vec<f32>,
}

/// One window: what the forward pass keeps for the backward pass.
#[derive(Default)]
pub(crate) struct DecoderTape {
    /// Token at each position.
    pub(super) inputs: Vec<usize>,
    /// Token after it.
    pub(super) targets: Vec<usize>,
    /// Residual stream before each layer and after the last.
    pub(super) residual: Vec<Vec<f32>>,
    /// Of every layer, or of one.
    pub(super) layers: Vec<DecoderActivations>,
    pub(super) passing: Passing,
    pub(super) normed: Vec<f32>,
    pub(super) scales: Vec<f32>,
    /// Logits; after the loss, their gradient.
    pub(super) logits: Vec<f32>,
    pub(super) gradients: LayerGradients,
    pub(super) attention: Attention,
    /// Right factor of a weight's gradient.
    pub(super) panels: Panels,
}

impl DecoderTape {
    /// Sizes the buffers of the forward pass, with the activations of this many layers, and takes up the tokens.
    pub(super) fn load(&mut self, plan: &NetworkPlan, layers: usize, window: &[u32]) {
        self.inputs.clear();
        self.inputs.extend(window[..plan.tokens].iter().map(|token| plan.token(*token)));
        self.targets.clear();
        self.targets.extend(window[1..].iter().map(|token| plan.token(*token)));
        let size = |buffer: &mut Vec<f32>, width: usize| buffer.resize(plan.tokens * width, 0.0);
        self.residual.resize_with(plan.layers + 1, Vec::new);
        self.residual.iter_mut().for_each(|buffer| size(buffer, plan.width));
        size(&mut self.normed, plan.width);
        size(&mut self.scales, 1);
        size(&mut self.logits, plan.vocabulary);
        self.layers.resize_with(layers, DecoderActivations::default);
        for layer in &mut self.layers {
            size(&mut layer.mixed, plan.width);
            size(&mut layer.middle, plan.width);
            size(&mut layer.scales, 1);
            size(&mut layer.feed_scales, 1);
            size(&mut layer.joint, plan.heads.joint_width());
            size(&mut layer.gate_up, 2 * plan.hidden);
            size(&mut layer.sigmoid, plan.hidden);
        }
        size(&mut self.passing.normed, plan.width);
        size(&mut self.passing.product, plan.hidden);
    }

    /// Sizes the buffers of the backward pass.
    pub(super) fn make_gradients(&mut self, plan: &NetworkPlan) {
        let size = |buffer: &mut Vec<f32>, width: usize| buffer.resize(plan.tokens * width, 0.0);
        let LayerGradients { normed, joint, mixed, gate_up, product } = &mut self.gradients;
        size(normed, plan.width);
        size(joint, plan.heads.joint_width());
        size(mixed, plan.width);
        size(gate_up, 2 * plan.hidden);
        size(product, plan.hidden);
    }
}
