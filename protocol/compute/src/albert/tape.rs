//! Buffers of one window of an ALBERT. A buffer holds one row a token, in the head one row a predicted token.

use crate::attention::Attention;
use crate::kernel::matrix::Panels;
use crate::matrix::Matrix;
use crate::plan::NetworkPlan;

/// A LayerNorm's input, output, and rows' means and scales.
#[derive(Default)]
pub(super) struct Normed {
    pub input: Vec<f32>,
    pub output: Vec<f32>,
    pub means: Vec<f32>,
    pub scales: Vec<f32>,
}

impl Normed {
    fn size(&mut self, rows: usize, width: usize) {
        self.input.resize(rows * width, 0.0);
        self.output.resize(rows * width, 0.0);
        self.means.resize(rows, 0.0);
        self.scales.resize(rows, 0.0);
    }
}

/// Activations of one layer.
#[derive(Default)]
pub(super) struct AlbertActivations {
    /// Queries (scaled), keys, values.
    pub joint: Vec<f32>,
    /// Of every head.
    pub probabilities: Vec<f32>,
    /// Output of the heads.
    pub mixed: Vec<f32>,
    /// Norm after attention.
    pub middle: Normed,
    /// Inside the feed-forward, before and after GELU.
    pub feed: Vec<f32>,
    pub active: Vec<f32>,
    /// Input of the last norm, with its statistics; its output is the residual stream.
    pub last: Vec<f32>,
    pub means: Vec<f32>,
    pub scales: Vec<f32>,
}

/// The head.
#[derive(Default)]
pub(super) struct PredictionHead {
    /// Last layer's output at the predicted positions.
    pub gathered: Vec<f32>,
    /// Before GELU.
    pub dense: Vec<f32>,
    pub normed: Normed,
    /// Logits; after the loss, their gradient.
    pub logits: Vec<f32>,
}

/// Gradients on their way back.
#[derive(Default)]
pub(super) struct ActivationGradients {
    /// Of the residual stream.
    pub stream: Vec<f32>,
    pub joint: Vec<f32>,
    pub mixed: Vec<f32>,
    pub feed: Vec<f32>,
    /// Of the head, as wide as the embedding.
    pub narrow: Vec<f32>,
}

/// One window: what the forward pass keeps for the backward pass, and the window's own gradient.
#[derive(Default)]
pub(crate) struct AlbertTape {
    /// Token at each position, after masking.
    pub(super) inputs: Vec<usize>,
    /// Predicted positions, ascending, and the tokens there.
    pub(super) predicted: Vec<usize>,
    pub(super) targets: Vec<usize>,
    pub(super) embedded: Normed,
    /// Residual stream before each layer and after the last.
    pub(super) residual: Vec<Vec<f32>>,
    /// Of every layer, or of one.
    pub(super) layers: Vec<AlbertActivations>,
    pub(super) head: PredictionHead,
    pub(super) gradients: ActivationGradients,
    /// The whole flat gradient of this window.
    pub(super) window: Vec<f32>,
    pub(super) attention: Attention,
    /// Right factor of a weight's gradient.
    pub(super) panels: Panels,
}

impl AlbertTape {
    /// Sizes the buffers of the forward pass, with the activations of this many layers.
    pub(super) fn size(&mut self, plan: &NetworkPlan, layers: usize, words: Matrix) {
        let rows = |buffer: &mut Vec<f32>, width: usize| buffer.resize(plan.tokens * width, 0.0);
        self.embedded.size(plan.tokens, words.inputs);
        self.residual.resize_with(plan.layers + 1, Vec::new);
        self.residual.iter_mut().for_each(|buffer| rows(buffer, plan.width));
        self.layers.resize_with(layers, AlbertActivations::default);
        for layer in &mut self.layers {
            rows(&mut layer.joint, plan.heads.joint_width());
            rows(&mut layer.mixed, plan.width);
            layer.middle.size(plan.tokens, plan.width);
            rows(&mut layer.feed, plan.hidden);
            rows(&mut layer.active, plan.hidden);
            rows(&mut layer.last, plan.width);
            rows(&mut layer.means, 1);
            rows(&mut layer.scales, 1);
        }
        let rows = |buffer: &mut Vec<f32>, width: usize| buffer.resize(plan.predicted * width, 0.0);
        rows(&mut self.head.gathered, plan.width);
        rows(&mut self.head.dense, words.inputs);
        self.head.normed.size(plan.predicted, words.inputs);
        rows(&mut self.head.logits, plan.vocabulary);
    }

    /// Sizes the buffers of the backward pass; those that are added to become 0.
    pub(super) fn make_gradients(&mut self, plan: &NetworkPlan, words: Matrix) {
        let ActivationGradients { stream, joint, mixed, feed, narrow } = &mut self.gradients;
        let rows = |buffer: &mut Vec<f32>, width: usize| buffer.resize(plan.tokens * width, 0.0);
        stream.clear();
        rows(stream, plan.width);
        rows(joint, plan.heads.joint_width());
        rows(mixed, plan.width);
        rows(feed, plan.hidden);
        narrow.resize(plan.predicted.max(plan.tokens) * words.inputs, 0.0);
        self.window.clear();
        self.window.resize(plan.layout.parameters(), 0.0);
    }
}
