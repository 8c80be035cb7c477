//! The decoder in libtorch (ARITH-41).

use std::ops::Range;

use tch::{Kind, Tensor};

use super::network::{Network, ParameterTensors, heads};
use crate::decoder::ranges::{DecoderRanges, Gain, LayerRanges};
use crate::leaf::Batch;
use crate::plan::NetworkPlan;

pub(super) struct TorchDecoder<'a> {
    plan: &'a NetworkPlan,
    ranges: &'a DecoderRanges,
    weights: &'a ParameterTensors,
    /// Tokens and those that follow them, `[windows, tokens]`.
    inputs: Tensor,
    targets: Tensor,
    /// Of each token and frequency.
    cosines: Tensor,
    sines: Tensor,
}

impl<'a> TorchDecoder<'a> {
    pub(super) fn new(
        plan: &'a NetworkPlan,
        ranges: &'a DecoderRanges,
        weights: &'a ParameterTensors,
        batch: Batch<'_>,
    ) -> Self {
        let device = weights.of(0).device();
        let tokens = |skipped: usize| {
            let tokens = batch.windows.iter().flat_map(|window| &window[skipped..skipped + plan.tokens]);
            let tokens: Vec<i64> = tokens.map(|token| plan.token(*token) as i64).collect();
            Tensor::from_slice(&tokens).view([-1, plan.tokens as i64]).to_device(device)
        };
        let table =
            |angles: &[f32]| Tensor::from_slice(angles).view([plan.tokens as i64, -1]).to_device(device);
        let [cosines, sines] = [table(&ranges.cosines), table(&ranges.sines)];
        Self { plan, ranges, weights, inputs: tokens(0), targets: tokens(1), cosines, sines }
    }

    fn norm(&self, stream: &Tensor, gain: &Gain) -> Tensor {
        let (width, epsilon) = (self.plan.width as i64, f64::from(self.plan.epsilon));
        stream.rms_norm([width], Some(self.weights.of(gain.part)), epsilon)
    }

    /// Rotary positions in f32: dimension i turns with dimension i + half.
    fn rotate(&self, heads: &Tensor) -> Tensor {
        let heads = heads.to_kind(Kind::Float);
        let halves = heads.chunk(2, -1);
        let [first, second] = [&halves[0], &halves[1]];
        let turned =
            [first * &self.cosines - second * &self.sines, second * &self.cosines + first * &self.sines];
        Tensor::cat(&turned, -1)
    }

    /// Norms of the heads of queries and keys in f32, where there are any (ARITH-77).
    fn norm_heads(&self, layer: &LayerRanges, heads: Tensor) -> Tensor {
        let Some(gains) = &layer.head_norms else { return heads };
        let (shape, epsilon) = (&self.plan.heads, f64::from(self.plan.epsilon));
        let counts = [shape.count, shape.count / shape.group].map(|n| n as i64);
        let norm = |(heads, gain): (&Tensor, &Gain)| {
            heads.rms_norm([shape.width as i64], Some(self.weights.of(gain.part)), epsilon)
        };
        let heads = heads.to_kind(Kind::Float).split_with_sizes(counts, 1);
        Tensor::cat(&heads.iter().zip(gains).map(norm).collect::<Vec<_>>(), 1)
    }

    fn attention(&self, layer: &LayerRanges, stream: &Tensor) -> Tensor {
        let shape = &self.plan.heads;
        let [queries, keys] = [shape.query_width(), shape.key_width()].map(|n| n as i64);
        let normed = self.norm(stream, &layer.attention_norm);
        let bias = layer.bias.as_ref().map(|bias| bias.part);
        let joint = self.weights.product(&normed, layer.joint.part, bias);
        // Split, not cut out one by one: the way back then joins the parts, instead of adding up whole tensors of zeros.
        let parts = joint.split_with_sizes([queries + keys, keys], -1);
        let turned = self.rotate(&self.norm_heads(layer, heads(&parts[0], shape.width)));
        let values = heads(&parts[1], shape.width);
        let counts = [shape.count, shape.count / shape.group].map(|n| n as i64);
        let turned = turned.split_with_sizes(counts, 1);
        let mixed = self.weights.attend(&turned[0], &turned[1], &values, true);
        stream + self.weights.product(&mixed, layer.output.part, None)
    }

    fn feed(&self, layer: &LayerRanges, stream: &Tensor) -> Tensor {
        let normed = self.norm(stream, &layer.feed_norm);
        let both = self.weights.product(&normed, layer.feed.gate_up.part, None).chunk(2, -1);
        let product = both[0].silu() * &both[1];
        stream + self.weights.product(&product, layer.feed.down.part, None)
    }
}

impl Network for TorchDecoder<'_> {
    fn embed(&self) -> Tensor {
        Tensor::embedding(self.weights.of(0), &self.inputs, -1, false, false)
    }

    fn layer(&self, layer: usize, stream: &Tensor) -> Tensor {
        let layer = &self.ranges.layers[layer];
        self.feed(layer, &self.attention(layer, stream))
    }

    fn losses(&self, windows: Range<usize>, stream: &Tensor) -> Tensor {
        let normed = self.norm(stream, &self.ranges.last_norm);
        let logits = self.weights.product(&normed, self.ranges.head.part, None).flatten(0, 1);
        let targets = self.targets.narrow(0, windows.start as i64, windows.len() as i64).flatten(0, 1);
        self.weights.losses(&logits, &targets)
    }
}
