//! Where ALBERT's parameters live.

use std::ops::Range;

use muster_core::layout::Tensor;

use crate::matrix::Matrix;

/// A matrix that the passes multiply by; the numbers of the plan's matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AlbertMatrix {
    /// From the embedding's width to the layers'.
    Mapping,
    /// Query, key and value projections, joined.
    QueryKeyValue,
    /// Projection of the attention's output.
    Dense,
    /// Into the feed-forward.
    Feed,
    /// Out of it.
    FeedOutput,
    /// From the layers' width to the embedding's, before the prediction.
    Prediction,
    /// The word embedding, as the head.
    Words,
}

/// A LayerNorm.
#[derive(Clone, Debug)]
pub(crate) struct LayerNorm {
    pub gain: Range<usize>,
    pub bias: Range<usize>,
}

/// Ranges of what is not a matrix to multiply by.
#[derive(Debug)]
pub(crate) struct AlbertRanges {
    pub(crate) positions: Range<usize>,
    pub(crate) embedding_norm: LayerNorm,
    pub(crate) mapping_bias: Range<usize>,
    pub(crate) query_bias: Range<usize>,
    pub(crate) value_bias: Range<usize>,
    pub(crate) dense_bias: Range<usize>,
    pub(crate) attention_norm: LayerNorm,
    pub(crate) feed_bias: Range<usize>,
    pub(crate) feed_output_bias: Range<usize>,
    pub(crate) last_norm: LayerNorm,
    pub(crate) prediction_bias: Range<usize>,
    pub(crate) prediction_norm: LayerNorm,
    pub(crate) word_bias: Range<usize>,
}

impl AlbertRanges {
    /// With the matrices by number. Tensors are those of the layout: words 0, positions, their norm (2, 3), mapping
    /// (4, 5), query, key, value (6 to 8), biases of query and value, dense (11, 12), norm, feed-forward (15, 16), its
    /// output (17, 18), norm, prediction (21, 22), norm, bias of the words.
    pub(crate) fn new(tensors: &[Tensor]) -> (Self, Vec<Matrix>) {
        let at = |number: usize| tensors[number].range();
        let norm = |number: usize| LayerNorm { gain: at(number), bias: at(number + 1) };
        let ranges = Self {
            positions: at(1),
            embedding_norm: norm(2),
            mapping_bias: at(5),
            query_bias: at(9),
            value_bias: at(10),
            dense_bias: at(12),
            attention_norm: norm(13),
            feed_bias: at(16),
            feed_output_bias: at(18),
            last_norm: norm(19),
            prediction_bias: at(22),
            prediction_norm: norm(23),
            word_bias: at(25),
        };
        let matrices = [4..5, 6..9, 11..12, 15..16, 17..18, 21..22, 0..1];
        (ranges, matrices.map(|range| Matrix::joined(&tensors[range])).into())
    }
}
