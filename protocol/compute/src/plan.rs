//! A model as the arithmetic sees it: sizes, places in the flat vector, rotary tables.

use std::ops::Range;

use muster_core::layout::{Layout, Tensor, split};
use muster_core::manifest::{Family, Model};

use crate::function;

/// Rows of one [`Piece`] of a matrix.
const PIECE_ROWS: usize = 512;

/// A weight matrix `[outputs, inputs]`, row-major in the flat vector.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Matrix {
    pub offset: usize,
    pub outputs: usize,
    pub inputs: usize,
}

impl Matrix {
    /// Neighbours in the flat vector taken as one matrix: their outputs follow each other.
    fn joined(tensors: &[Tensor]) -> Self {
        let outputs = tensors.iter().map(|tensor| tensor.shape[0]).sum();
        Self { offset: tensors[0].offset, outputs, inputs: tensors[0].shape[1] }
    }

    pub(crate) fn range(&self) -> Range<usize> {
        self.offset..self.offset + self.outputs * self.inputs
    }
}

/// The weight matrices of a layer, in the order of the flat vector.
pub(crate) const MATRICES: [Weight; 4] =
    [Weight::QueryKeyValue, Weight::Output, Weight::GateUp, Weight::Down];

/// A weight matrix of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Weight {
    /// Query, key and value projections, joined.
    QueryKeyValue,
    /// Projection of the attention's output.
    Output,
    /// Gate and up projections, joined.
    GateUp,
    /// Down projection.
    Down,
}

/// Places of one layer.
#[derive(Debug)]
pub(crate) struct Layer {
    /// By [`Weight`] as index.
    pub matrices: [Matrix; 4],
    /// Gains of the norms before attention and before the feed-forward.
    pub gains: [Range<usize>; 2],
}

/// What a part of the flat gradient is the gradient of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Embedding,
    Head,
    FinalGain,
    /// Layer, and which of its two norms.
    Gain(usize, usize),
    Matrix(usize, Weight),
}

/// A part of the flat gradient that one thread computes.
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    pub source: Source,
    /// First row within the matrix.
    pub row: usize,
    pub rows: usize,
    pub range: Range<usize>,
}

/// Everything about a model that does not change with its parameters.
#[derive(Debug)]
pub(crate) struct Plan {
    pub model: Model,
    /// Whether the head shares the embedding.
    pub tied: bool,
    pub layout: Layout,
    /// Tokens of a window.
    pub tokens: usize,
    pub width: usize,
    pub hidden: usize,
    pub vocabulary: usize,
    pub heads: usize,
    /// Query heads that share a key and value head.
    pub group: usize,
    /// Width of a head.
    pub head_width: usize,
    /// Width of all key heads; the value heads are as wide.
    pub key_width: usize,
    pub epsilon: f32,
    /// 1/√head width.
    pub score_scale: f32,
    pub layers: Vec<Layer>,
    pub embedding: Matrix,
    pub final_gain: Range<usize>,
    pub head: Matrix,
    /// Parts of the flat gradient, in order, covering it.
    pub pieces: Vec<Piece>,
    /// Per token and frequency.
    pub cosines: Vec<f32>,
    pub sines: Vec<f32>,
}

impl Plan {
    /// Plans a model that [`Model::check`] accepts.
    pub(crate) fn new(model: &Model) -> Self {
        let Family::Decoder(decoder) = &model.family else { unreachable!("a decoder's plan") };
        let layout = Layout::of(model);
        let size = |n: u32| n as usize;
        let [width, heads, tokens] = [model.width, model.heads, model.sequence].map(size);
        let head_width = width / heads;
        let tensors = layout.tensors();
        let layers: Vec<Layer> = tensors[1..].chunks_exact(9).take(size(model.layers)).map(layer).collect();
        let embedding = Matrix::joined(&tensors[..1]);
        let head = if decoder.tied { embedding } else { Matrix::joined(&tensors[tensors.len() - 1..]) };
        let final_gain = tensors[1 + 9 * layers.len()].range();
        let [cosines, sines] = rotary_tables(tokens, head_width, f64::from(decoder.rope_base.value()));
        let mut plan = Self {
            model: model.clone(),
            tied: decoder.tied,
            tokens,
            width,
            heads,
            head_width,
            hidden: size(model.hidden),
            vocabulary: size(model.vocabulary),
            group: heads / size(decoder.key_value_heads),
            key_width: head_width * size(decoder.key_value_heads),
            epsilon: model.norm_epsilon.value(),
            score_scale: (1.0 / (head_width as f64).sqrt()) as f32,
            layout,
            layers,
            embedding,
            final_gain,
            head,
            pieces: Vec::new(),
            cosines,
            sines,
        };
        plan.pieces = plan.all_pieces();
        plan
    }

    /// Width of a row of queries, keys and values.
    pub(crate) fn joint_width(&self) -> usize {
        self.width + 2 * self.key_width
    }

    pub(crate) fn matrix(&self, layer: usize, weight: Weight) -> Matrix {
        self.layers[layer].matrices[weight as usize]
    }

    fn all_pieces(&self) -> Vec<Piece> {
        let mut pieces = Vec::new();
        let mut matrix = |source, matrix: Matrix| {
            for rows in split(0..matrix.outputs, PIECE_ROWS) {
                let range =
                    matrix.offset + rows.start * matrix.inputs..matrix.offset + rows.end * matrix.inputs;
                pieces.push(Piece { source, row: rows.start, rows: rows.len(), range });
            }
        };
        let gain = |range: &Range<usize>| Matrix { offset: range.start, outputs: 1, inputs: range.len() };
        matrix(Source::Embedding, self.embedding);
        for (index, layer) in self.layers.iter().enumerate() {
            for (norm, weights) in MATRICES.chunks(2).enumerate() {
                matrix(Source::Gain(index, norm), gain(&layer.gains[norm]));
                for weight in weights {
                    matrix(Source::Matrix(index, *weight), self.matrix(index, *weight));
                }
            }
        }
        matrix(Source::FinalGain, gain(&self.final_gain));
        if !self.tied {
            matrix(Source::Head, self.head);
        }
        pieces
    }
}

/// The nine tensors of a layer: norm, q, k, v, o, norm, gate, up, down.
fn layer(tensors: &[Tensor]) -> Layer {
    let matrices = [1..4, 4..5, 6..8, 8..9].map(|range| Matrix::joined(&tensors[range]));
    Layer { matrices, gains: [tensors[0].range(), tensors[5].range()] }
}

/// Cosine and sine of `token · base^(−2i/head width)`, computed in f64.
fn rotary_tables(tokens: usize, head_width: usize, base: f64) -> [Vec<f32>; 2] {
    let half = head_width / 2;
    let log = function::ln(base);
    let frequencies: Vec<f64> =
        (0..half).map(|i| function::exp(-((2 * i) as f64) / head_width as f64 * log)).collect();
    let angles = (0..tokens).flat_map(|token| frequencies.iter().map(move |f| token as f64 * f));
    angles.map(function::sine_cosine).map(|(sine, cosine)| (cosine as f32, sine as f32)).unzip().into()
}

#[cfg(test)]
mod tests {
    use muster_core::codec::Real;
    use muster_core::manifest;

    use super::*;

    #[test]
    fn pieces_cover_the_flat_vector() {
        for tied in [true, false] {
            let real = |value| Real::new(value).unwrap();
            let model = Model {
                vocabulary: 1300,
                width: 12,
                layers: 3,
                heads: 6,
                hidden: 20,
                sequence: 5,
                norm_epsilon: real(1e-5),
                initial_scale: real(0.02),
                family: Family::Decoder(manifest::Decoder {
                    key_value_heads: 2,
                    tied,
                    rope_base: real(10_000.0),
                }),
            };
            let plan = Plan::new(&model);
            let mut end = 0;
            for piece in &plan.pieces {
                assert_eq!(piece.range.start, end, "{piece:?}");
                end = piece.range.end;
            }
            assert_eq!(end as u64, model.parameters());
        }
    }
}
