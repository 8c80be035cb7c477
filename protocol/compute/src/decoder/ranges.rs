//! Where a decoder's parameters live, and its rotary tables.

use std::ops::Range;

use muster_core::layout::Tensor;
use muster_core::manifest::{self, Family, Model};

use super::positions;
use crate::matrix::Matrix;
use crate::turns::GradientSlice;

/// A weight matrix: its number among those that the passes multiply by, and among the parts of the gradient.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Weight {
    pub matrix: usize,
    pub part: usize,
}

/// The gain of a norm.
#[derive(Clone, Debug)]
pub(crate) struct Gain {
    pub range: Range<usize>,
    /// Part of the gradient.
    pub part: usize,
}

/// A SwiGLU: the feed-forward of a layer, or an expert.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Expert {
    pub hidden: usize,
    /// Gate and up projections, joined.
    pub gate_up: Weight,
    pub down: Weight,
}

/// One layer, without the experts that tokens choose among.
#[derive(Debug)]
pub(crate) struct LayerRanges {
    pub attention_norm: Gain,
    /// Query, key and value projections, joined.
    pub joint: Weight,
    /// Of a variant: biases of queries, keys and values, joined.
    pub bias: Option<Gain>,
    /// Of a variant: of the heads of queries, and of those of keys.
    pub head_norms: Option<[Gain; 2]>,
    /// Projection of the attention's output.
    pub output: Weight,
    pub feed_norm: Gain,
    /// What every token passes.
    pub feed: Expert,
    /// Of a mixture: from a normed token to the weight of `feed`.
    pub feed_gate: Option<Weight>,
}

/// The experts of a layer that tokens choose among.
#[derive(Debug)]
pub(crate) struct Row {
    /// From a normed token to a score for each expert.
    pub router: Weight,
    pub experts: Vec<Expert>,
    /// Experts that a token passes.
    pub active: usize,
    /// `balance`·columns of ARITH-73.
    pub balance: f64,
}

impl Row {
    /// Width inside each of its experts.
    pub(crate) fn hidden(&self) -> usize {
        self.experts.first().map_or(0, |expert| expert.hidden)
    }
}

/// What a decoder has beside matrices.
#[derive(Debug)]
pub(crate) struct DecoderRanges {
    /// Whether the head shares the embedding.
    pub tied: bool,
    pub embedding: Matrix,
    pub layers: Vec<LayerRanges>,
    /// Of each layer; none but in a mixture.
    pub rows: Vec<Row>,
    pub last_norm: Gain,
    pub head: Weight,
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
        let mut taking = Taking { tensors, matrices: Vec::new(), parts: Vec::new() };
        let embedding = taking.part(1);
        let layers = (0..model.layers).map(|_| taking.layer(model)).collect();
        let last_norm = taking.gain();
        let head = if decoder.tied {
            taking.matrices.push(embedding);
            Weight { matrix: taking.matrices.len() - 1, part: 0 }
        } else {
            taking.weight(1)
        };
        // LAYOUT-5: rows stand behind the trunk.
        let rows = match &model.family {
            Family::Mixture(mixture) => (0..model.layers).map(|_| taking.row(model, mixture)).collect(),
            _ => Vec::new(),
        };
        let Taking { matrices, parts, .. } = taking;
        let [cosines, sines] = positions::tables(model, decoder.rope_base.value().into());
        (
            Self { tied: decoder.tied, embedding, layers, rows, last_norm, head, cosines, sines },
            matrices,
            parts,
        )
    }

    /// Width inside the widest expert.
    pub(crate) fn widest(&self) -> usize {
        let rows = self.rows.iter().map(Row::hidden);
        self.layers.iter().map(|layer| layer.feed.hidden).chain(rows).max().unwrap_or(0)
    }
}

/// Tensors that are left, in order, and what has been made of those before.
struct Taking<'a> {
    tensors: &'a [Tensor],
    matrices: Vec<Matrix>,
    parts: Vec<GradientSlice>,
}

impl Taking<'_> {
    /// The next part of the gradient: some tensors, joined.
    fn part(&mut self, count: usize) -> Matrix {
        let (own, rest) = self.tensors.split_at(count);
        self.tensors = rest;
        let matrix = Matrix::joined(own);
        self.parts.push(matrix.part());
        matrix
    }

    fn weight(&mut self, count: usize) -> Weight {
        let matrix = self.part(count);
        self.matrices.push(matrix);
        Weight { matrix: self.matrices.len() - 1, part: self.parts.len() - 1 }
    }

    fn gain(&mut self) -> Gain {
        Gain { range: self.part(1).range(), part: self.parts.len() - 1 }
    }

    /// The next vectors, joined.
    fn bias(&mut self, count: usize) -> Gain {
        let (own, rest) = self.tensors.split_at(count);
        self.tensors = rest;
        let range = own[0].offset..own[count - 1].range().end;
        self.parts.push(GradientSlice { range: range.clone(), width: range.len() });
        Gain { range, part: self.parts.len() - 1 }
    }

    fn expert(&mut self, hidden: u32) -> Expert {
        Expert { hidden: hidden as usize, gate_up: self.weight(2), down: self.weight(1) }
    }

    fn layer(&mut self, model: &Model) -> LayerRanges {
        let mixture = if let Family::Mixture(mixture) = &model.family { Some(mixture) } else { None };
        LayerRanges {
            attention_norm: self.gain(),
            joint: self.weight(3),
            bias: model.has_biases().then(|| self.bias(3)),
            head_norms: model.has_head_norms().then(|| [(); 2].map(|()| self.gain())),
            output: self.weight(1),
            feed_norm: self.gain(),
            feed: self.expert(mixture.map_or(model.hidden, |mixture| mixture.shared_hidden)),
            feed_gate: mixture.map(|_| self.weight(1)),
        }
    }

    fn row(&mut self, model: &Model, mixture: &manifest::Mixture) -> Row {
        Row {
            router: self.weight(1),
            experts: (0..mixture.columns).map(|_| self.expert(model.hidden)).collect(),
            active: mixture.active.into(),
            balance: f64::from(mixture.balance.value()) * f64::from(mixture.columns),
        }
    }
}
