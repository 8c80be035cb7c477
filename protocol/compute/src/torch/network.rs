//! What the networks share: parameters as tensors, products, stages, and the way back through them.

use std::ops::Range;

use tch::{Kind, Reduction, Tensor, no_grad};

use crate::plan::NetworkPlan;
use crate::turns::GradientSlice;

/// The parameters of a leaf, in the parts of the flat vector, and how products are rounded.
pub(super) struct ParameterTensors {
    /// A matrix each, `[rows, columns]`, or a vector.
    parts: Vec<Tensor>,
    /// Of the factors of a product; sums are f32, as is everything else.
    products: Kind,
}

impl ParameterTensors {
    /// Views of the flat vector; every part has a gradient of its own.
    pub(super) fn new(plan: &NetworkPlan, flat: &Tensor, products: Kind) -> Self {
        let part = |GradientSlice { range, width }: &GradientSlice| {
            let [rows, columns] = [range.len() / width, *width].map(|n| n as i64);
            let part = flat.narrow(0, range.start as i64, rows * columns);
            let part = if rows == 1 { part } else { part.view([rows, columns]) };
            part.set_requires_grad(true)
        };
        Self { parts: plan.parts.iter().map(part).collect(), products }
    }

    /// A part in f32.
    pub(super) fn of(&self, part: usize) -> &Tensor {
        &self.parts[part]
    }

    /// `x · Wᵀ`, plus a bias.
    pub(super) fn product(&self, x: &Tensor, matrix: usize, bias: Option<usize>) -> Tensor {
        let factor = |tensor: &Tensor| tensor.to_kind(self.products);
        factor(x).linear(&factor(self.of(matrix)), bias.map(|bias| factor(self.of(bias))))
    }

    /// Attention of queries over keys and values, each `[windows, heads, tokens, head width]`, fused where libtorch has
    /// a deterministic kernel for it; `[windows, tokens, width]`. Fewer key heads are shared by neighbours.
    pub(super) fn attend(&self, queries: &Tensor, keys: &Tensor, values: &Tensor, causal: bool) -> Tensor {
        let group = queries.size()[1] / keys.size()[1];
        let shared = |heads: &Tensor| {
            let heads = heads.to_kind(self.products);
            if group == 1 { heads } else { heads.repeat_interleave_self_int(group, 1, None) }
        };
        let queries = queries.to_kind(self.products);
        let mixed = Tensor::scaled_dot_product_attention(
            &queries,
            &shared(keys),
            &shared(values),
            None::<&Tensor>,
            0.0,
            causal,
            None,
            false,
        );
        mixed.transpose(1, 2).flatten(2, 3)
    }

    /// Sum of the cross-entropies of rows, in f64.
    pub(super) fn losses(&self, logits: &Tensor, targets: &Tensor) -> Tensor {
        // Whatever the products are rounded to: the softmax of the losses is f32 in every profile.
        let logits = logits.to_kind(Kind::Float);
        logits.cross_entropy_loss(targets, None::<&Tensor>, Reduction::None, -100, 0.0).sum(Kind::Double)
    }

    /// Copies the gradients to their places in a flat vector.
    pub(super) fn gradient(&self, plan: &NetworkPlan, flat: &mut Tensor) {
        for (GradientSlice { range, .. }, part) in plan.parts.iter().zip(&self.parts) {
            flat.narrow(0, range.start as i64, range.len() as i64).copy_(&part.grad().view(-1));
        }
    }
}

/// Rows of heads, `[windows, tokens, heads · width]`, as `[windows, heads, tokens, width]`.
pub(super) fn heads(rows: &Tensor, width: usize) -> Tensor {
    let [windows, tokens, all] =
        <[i64; 3]>::try_from(rows.size()).expect("rows of heads have three dimensions");
    rows.reshape([windows, tokens, all / width as i64, width as i64]).transpose(1, 2)
}

/// A network over the windows of a leaf, in stages. The stream is f32, `[windows, tokens, width]`.
pub(super) trait Network {
    /// The stream before the first layer.
    fn embed(&self) -> Tensor;

    /// The stream after a layer.
    fn layer(&self, layer: usize, stream: &Tensor) -> Tensor;

    /// Sum in f64 of the losses of some windows, of which this is the stream after the last layer.
    fn losses(&self, windows: Range<usize>, stream: &Tensor) -> Tensor;
}

/// What of a leaf is computed at once.
#[derive(Clone, Copy)]
pub(super) struct Extent {
    pub layers: usize,
    pub windows: usize,
    /// Tokens that are predicted, of all windows.
    pub predicted: usize,
}

impl Extent {
    /// Mean loss.
    pub(super) fn mean(self, losses: &Tensor) -> Tensor {
        losses / self.predicted as f64
    }
}

/// The mean loss; adds its gradient to the parameters'.
pub(super) fn backward(network: &dyn Network, extent: Extent) -> f64 {
    let stream = (0..extent.layers).fold(network.embed(), |stream, layer| network.layer(layer, &stream));
    let loss = extent.mean(&network.losses(0..extent.windows, &stream));
    loss.backward();
    loss.double_value(&[])
}

/// As [`backward`], keeping only the stream before each layer, and the logits of one window.
pub(super) fn backward_recomputing(network: &dyn Network, extent: Extent) -> f64 {
    let mut streams = vec![no_grad(|| network.embed())];
    for layer in 0..extent.layers {
        let next = no_grad(|| network.layer(layer, &streams[layer]));
        streams.push(next);
    }
    let last = streams.pop().expect("the stream after the last layer");
    let mut loss = 0.0;
    let gradients: Vec<Tensor> = (0..extent.windows)
        .map(|window| {
            let stream = last.narrow(0, window as i64, 1).set_requires_grad(true);
            // Divided by the tokens of all windows: losses and gradients of windows then simply add up.
            let part = extent.mean(&network.losses(window..window + 1, &stream));
            part.backward();
            loss += part.double_value(&[]);
            stream.grad()
        })
        .collect();
    // Memory is what this path is for: what the layers do not need is let go before they are computed again.
    drop(last);
    let mut gradient = Tensor::cat(&gradients, 0);
    drop(gradients);
    for (layer, stream) in streams.into_iter().enumerate().rev() {
        let stream = stream.set_requires_grad(true);
        back(&network.layer(layer, &stream), &gradient);
        gradient = stream.grad();
    }
    back(&network.embed(), &gradient);
    loss
}

/// Sends a gradient back through what made `output`: its inner product with the output has that gradient there.
fn back(output: &Tensor, gradient: &Tensor) {
    (output * gradient).sum(Kind::Float).backward();
}
