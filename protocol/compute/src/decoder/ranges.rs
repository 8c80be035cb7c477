//! Where a decoder's parameters live, and its rotary tables.

use std::ops::Range;

use muster_core::layout::Tensor;
use muster_core::manifest::{self, Model};

use crate::function;
use crate::matrix::Matrix;
use crate::turns::GradientSlice;

/// Tensors of a layer: norm, q, k, v, o, norm, gate, up, down.
const TENSORS: usize = 9;

/// A weight matrix of a layer, in the order of the flat vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DecoderMatrix {
    /// Query, key and value projections, joined.
    QueryKeyValue,
    /// Projection of the attention's output.
    Output,
    /// Gate and up projections, joined.
    GateUp,
    /// Down projection.
    Down,
}

/// A norm of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RmsNorm {
    /// Before attention.
    Attention,
    /// Before the feed-forward.
    Feed,
}

/// What a decoder has beside matrices.
#[derive(Debug)]
pub(crate) struct DecoderRanges {
    pub layers: usize,
    /// Whether the head shares the embedding.
    pub tied: bool,
    pub embedding: Matrix,
    /// Gains of every layer's two norms, then of the last.
    pub gains: Vec<Range<usize>>,
    /// Per token and frequency.
    pub cosines: Vec<f32>,
    pub sines: Vec<f32>,
}

impl DecoderRanges {
    /// With the matrices by number, and the parts of the gradient.
    pub(crate) fn new(
        model: &Model,
        decoder: &manifest::Decoder,
        tensors: &[Tensor],
    ) -> (Self, Vec<Matrix>, Vec<GradientSlice>) {
        let layers = model.layers as usize;
        let embedding = Matrix::joined(&tensors[..1]);
        let (mut matrices, mut gains, mut parts) = (Vec::new(), Vec::new(), vec![embedding.part()]);
        for layer in tensors[1..].chunks_exact(TENSORS).take(layers) {
            let of_layer = [1..4, 4..5, 6..8, 8..9].map(|range| Matrix::joined(&layer[range]));
            let [joint, output, gate_up, down] = of_layer.map(|matrix| matrix.part());
            let [before, between] = [layer[0].range(), layer[5].range()];
            parts.extend([row(&before), joint, output, row(&between), gate_up, down]);
            gains.extend([before, between]);
            matrices.extend(of_layer);
        }
        let last = tensors[1 + TENSORS * layers].range();
        parts.push(row(&last));
        gains.push(last);
        let head = if decoder.tied { embedding } else { Matrix::joined(&tensors[tensors.len() - 1..]) };
        if !decoder.tied {
            parts.push(head.part());
        }
        matrices.push(head);
        let head_width = (model.width / model.heads) as usize;
        let base = f64::from(decoder.rope_base.value());
        let [cosines, sines] = rotary_tables(model.sequence as usize, head_width, base);
        (Self { layers, tied: decoder.tied, embedding, gains, cosines, sines }, matrices, parts)
    }

    /// Number of a layer's matrix.
    pub(crate) fn matrix(layer: usize, weight: DecoderMatrix) -> usize {
        4 * layer + weight as usize
    }

    /// Number of the head's matrix.
    pub(crate) fn head(&self) -> usize {
        4 * self.layers
    }

    /// Part of the gradient that is a layer's matrix.
    pub(crate) fn part(layer: usize, weight: DecoderMatrix) -> usize {
        let number = weight as usize;
        // Two gains of each layer are parts, too: before the first matrix, and before the third.
        2 + 6 * layer + number + number / 2
    }

    /// Part of the gradient that is a layer's gain.
    pub(crate) fn gain_part(layer: usize, norm: RmsNorm) -> usize {
        1 + 6 * layer + 3 * norm as usize
    }

    /// Part of the gradient that is the last gain.
    pub(crate) fn last_gain_part(&self) -> usize {
        1 + 6 * self.layers
    }

    /// Part of the gradient that is the head's matrix.
    pub(crate) fn head_part(&self) -> usize {
        if self.tied { 0 } else { self.last_gain_part() + 1 }
    }

    /// Range of a layer's gain.
    pub(crate) fn gain(&self, layer: usize, norm: RmsNorm) -> Range<usize> {
        self.gains[2 * layer + norm as usize].clone()
    }

    /// Range of the last gain.
    pub(crate) fn last_gain(&self) -> Range<usize> {
        self.gains[2 * self.layers].clone()
    }
}

/// A gain as a part of the gradient.
fn row(gain: &Range<usize>) -> GradientSlice {
    GradientSlice { range: gain.clone(), width: gain.len() }
}

/// Cosine and sine (ARITH-33) of `token · base^(−2i/head width)`, computed in f64.
fn rotary_tables(tokens: usize, head_width: usize, base: f64) -> [Vec<f32>; 2] {
    let half = head_width / 2;
    let log = function::ln(base);
    let frequencies: Vec<f64> =
        (0..half).map(|i| function::exp(-((2 * i) as f64) / head_width as f64 * log)).collect();
    let angles = (0..tokens).flat_map(|token| frequencies.iter().map(move |f| token as f64 * f));
    angles.map(function::sine_cosine).map(|(sine, cosine)| (cosine as f32, sine as f32)).unzip().into()
}
