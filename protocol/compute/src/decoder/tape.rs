//! Buffers of a decoder for windows that are taken together. Every buffer holds one row a token.

use super::choice::Choice;
use super::heads::NormedHeads;
use super::ranges::DecoderRanges;
use crate::attention::Attention;
use crate::kernel::matrix::Panels;
use crate::plan::NetworkPlan;

/// Activations of one layer.
#[derive(Default)]
pub(super) struct DecoderActivations {
    /// Of the normalised input of attention.
    pub scales: Vec<f32>,
    /// Of a variant: of queries and keys, before they are rotated.
    pub heads: NormedHeads,
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
    /// Of what every token passes.
    pub feed: SwigluActivations,
    /// Of a mixture: weight of `feed`.
    pub feed_weights: Vec<f32>,
    pub row: RowActivations,
}

/// Activations of SwiGLU.
#[derive(Default)]
pub(super) struct SwigluActivations {
    pub gate_up: Vec<f32>,
    /// σ(gate).
    pub sigmoid: Vec<f32>,
}

/// Activations of the experts that tokens choose among.
#[derive(Default)]
pub(super) struct RowActivations {
    pub choice: Choice,
    /// Softmax of a token's scores, over all experts.
    pub probabilities: Vec<f32>,
    /// A row for each choice, in the order of `choice.by_expert`.
    pub passed: SwigluActivations,
}

/// Inputs of a layer's matrices that no layer keeps: the backward pass makes them once more, for two multiplications a
/// value.
#[derive(Default)]
pub(super) struct Passing {
    /// Of attention or of the feed-forward.
    pub normed: Vec<f32>,
    /// Of one expert, times its weight.
    pub product: Vec<f32>,
    pub of_expert: ExpertRows,
}

/// Rows of the tokens that chose one expert.
#[derive(Default)]
pub(super) struct ExpertRows {
    /// Normed inputs.
    pub normed: Vec<f32>,
    /// Of the stream, or its gradient.
    pub stream: Vec<f32>,
    pub weights: Vec<f32>,
    /// Gradients of the weights.
    pub d_weights: Vec<f32>,
    /// Right factor of the gradient of a matrix.
    pub panels: Panels,
}

/// Gradients on their way back through one layer.
#[derive(Default)]
pub(super) struct LayerGradients {
    /// Of a norm's output; then, per row, of its gain.
    pub normed: Vec<f32>,
    pub joint: Vec<f32>,
    pub mixed: Vec<f32>,
    pub gate_up: Vec<f32>,
    /// Of gate and up's product; then that product, times the expert's weight.
    pub product: Vec<f32>,
    /// Of the weights of what every token passes; then of the scores they are made of.
    pub feed_weights: Vec<f32>,
    /// Of the weights of chosen experts, as they are chosen.
    pub weights: Vec<f32>,
    /// Of the router's scores.
    pub scores: Vec<f32>,
}

/// What the forward pass over some windows keeps for the backward pass.
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
    pub(super) fn load(
        &mut self,
        plan: &NetworkPlan,
        decoder: &DecoderRanges,
        layers: usize,
        windows: &[Vec<u32>],
    ) {
        self.inputs.clear();
        self.targets.clear();
        for window in windows {
            self.inputs.extend(window[..plan.tokens].iter().map(|token| plan.token(*token)));
            self.targets.extend(window[1..].iter().map(|token| plan.token(*token)));
        }
        let rows = self.inputs.len();
        let size = |buffer: &mut Vec<f32>, width: usize| buffer.resize(rows * width, 0.0);
        self.residual.resize_with(plan.layers + 1, Vec::new);
        self.residual.iter_mut().for_each(|buffer| size(buffer, plan.width));
        size(&mut self.normed, plan.width);
        size(&mut self.scales, 1);
        size(&mut self.logits, plan.vocabulary);
        self.layers.resize_with(layers, DecoderActivations::default);
        for (layer, ranges) in self.layers.iter_mut().zip(&decoder.layers) {
            size(&mut layer.mixed, plan.heads.query_width());
            size(&mut layer.middle, plan.width);
            size(&mut layer.scales, 1);
            size(&mut layer.feed_scales, 1);
            size(&mut layer.joint, plan.heads.joint_width());
            if ranges.head_norms.is_some() {
                layer.heads.size(rows, &plan.heads);
            }
            size(&mut layer.feed.gate_up, 2 * ranges.feed.hidden);
            size(&mut layer.feed.sigmoid, ranges.feed.hidden);
        }
        for (layer, row) in self.layers.iter_mut().zip(&decoder.rows) {
            size(&mut layer.feed_weights, 1);
            size(&mut layer.row.probabilities, row.experts.len());
            layer.row.choice.size(rows, row);
            size(&mut layer.row.passed.gate_up, row.active * 2 * row.hidden());
            size(&mut layer.row.passed.sigmoid, row.active * row.hidden());
        }
        size(&mut self.passing.normed, plan.width);
        size(&mut self.passing.product, decoder.widest());
    }

    /// Sizes the buffers of the backward pass.
    pub(super) fn make_gradients(&mut self, plan: &NetworkPlan, decoder: &DecoderRanges) {
        let rows = self.inputs.len();
        let size = |buffer: &mut Vec<f32>, width: usize| buffer.resize(rows * width, 0.0);
        let to = &mut self.gradients;
        size(&mut to.normed, plan.width);
        size(&mut to.joint, plan.heads.joint_width());
        size(&mut to.mixed, plan.heads.query_width());
        size(&mut to.gate_up, 2 * decoder.widest());
        size(&mut to.product, decoder.widest());
        if let Some(row) = decoder.rows.first() {
            size(&mut to.feed_weights, 1);
            size(&mut to.weights, row.active);
            size(&mut to.scores, row.experts.len());
        }
    }
}
