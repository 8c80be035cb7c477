//! Buffers of one window: what the forward pass keeps for the backward pass, and what that keeps for the weights.
//!
//! Every buffer holds one row a token.

use crate::plan::{Plan, Source, Weight};

/// Activations of one layer, and gradients of its products' outputs.
#[derive(Default)]
pub(crate) struct LayerTape {
    /// Normalised input of attention, with its scales.
    pub normed: Vec<f32>,
    pub scales: Vec<f32>,
    /// Queries (rotated, scaled), keys (rotated), values.
    pub joint: Vec<f32>,
    /// Output of the heads.
    pub mixed: Vec<f32>,
    /// Residual stream between attention and feed-forward.
    pub middle: Vec<f32>,
    /// Normalised input of the feed-forward, with its scales.
    pub feed_normed: Vec<f32>,
    pub feed_scales: Vec<f32>,
    pub gate_up: Vec<f32>,
    /// σ(gate).
    pub sigmoid: Vec<f32>,
    pub product: Vec<f32>,
    pub d_joint: Vec<f32>,
    /// Per row, the gradient of the gain before attention.
    pub d_gain: Vec<f32>,
    pub d_middle: Vec<f32>,
    pub d_gate_up: Vec<f32>,
    /// Per row, the gradient of the gain before the feed-forward.
    pub d_feed_gain: Vec<f32>,
}

/// One window.
#[derive(Default)]
pub(crate) struct Tape {
    /// Token at each place.
    pub inputs: Vec<usize>,
    /// Token after it.
    pub targets: Vec<usize>,
    /// Residual stream before each layer and after the last.
    pub residual: Vec<Vec<f32>>,
    pub d_residual: Vec<Vec<f32>>,
    pub layers: Vec<LayerTape>,
    pub normed: Vec<f32>,
    pub scales: Vec<f32>,
    /// Per row, the gradient of the last gain.
    pub d_gain: Vec<f32>,
    /// Logits; after the loss, their gradient.
    pub logits: Vec<f32>,
    /// Sum of the tokens' losses.
    pub loss: f64,
}

impl Tape {
    /// Sizes the buffers and takes up the tokens; tokens beyond the vocabulary count as its last one.
    ///
    /// # Panics
    /// When the window does not have `sequence + 1` tokens.
    pub(crate) fn load(&mut self, plan: &Plan, window: &[u32]) {
        assert_eq!(window.len(), plan.tokens + 1, "a window has sequence + 1 tokens");
        let token = |token: &u32| (*token as usize).min(plan.vocabulary - 1);
        self.inputs.clear();
        self.inputs.extend(window[..plan.tokens].iter().map(token));
        self.targets.clear();
        self.targets.extend(window[1..].iter().map(token));
        let rows = plan.tokens;
        let size = |buffer: &mut Vec<f32>, width: usize| buffer.resize(rows * width, 0.0);
        for stream in [&mut self.residual, &mut self.d_residual] {
            stream.resize_with(plan.layers.len() + 1, Vec::new);
            stream.iter_mut().for_each(|buffer| size(buffer, plan.width));
        }
        size(&mut self.normed, plan.width);
        size(&mut self.scales, 1);
        size(&mut self.d_gain, plan.width);
        size(&mut self.logits, plan.vocabulary);
        self.layers.resize_with(plan.layers.len(), LayerTape::default);
        for layer in &mut self.layers {
            let of_width = [&mut layer.normed, &mut layer.mixed, &mut layer.middle, &mut layer.feed_normed];
            of_width.into_iter().for_each(|buffer| size(buffer, plan.width));
            let gradients = [&mut layer.d_gain, &mut layer.d_middle, &mut layer.d_feed_gain];
            gradients.into_iter().for_each(|buffer| size(buffer, plan.width));
            size(&mut layer.scales, 1);
            size(&mut layer.feed_scales, 1);
            size(&mut layer.joint, plan.joint_width());
            size(&mut layer.d_joint, plan.joint_width());
            size(&mut layer.gate_up, 2 * plan.hidden);
            size(&mut layer.d_gate_up, 2 * plan.hidden);
            size(&mut layer.sigmoid, plan.hidden);
            size(&mut layer.product, plan.hidden);
        }
    }

    /// The gradient of a matrix's output, and its input.
    pub(crate) fn factors(&self, layer: usize, weight: Weight) -> (&[f32], &[f32]) {
        let tape = &self.layers[layer];
        match weight {
            Weight::QueryKeyValue => (&tape.d_joint, &tape.normed),
            Weight::Output => (&tape.d_middle, &tape.mixed),
            Weight::GateUp => (&tape.d_gate_up, &tape.feed_normed),
            Weight::Down => (&self.d_residual[layer + 1], &tape.product),
        }
    }

    /// Per row, the gradient of a gain.
    pub(crate) fn gain_rows(&self, source: Source) -> &[f32] {
        match source {
            Source::Gain(layer, 0) => &self.layers[layer].d_gain,
            Source::Gain(layer, _) => &self.layers[layer].d_feed_gain,
            _ => &self.d_gain,
        }
    }
}
