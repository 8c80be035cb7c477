//! ALBERT in libtorch (ARITH-65). Parts are the tensors of LAYOUT-4, by number.

use std::ops::Range;

use muster_core::assign::masked;
use muster_core::manifest::Family;
use tch::{Kind, Tensor};

use super::network::{Network, ParameterTensors, heads};
use crate::leaf::Batch;
use crate::plan::NetworkPlan;

/// Number of a tensor; where a bias or a norm's bias is the next one, it is not named.
mod part {
    pub(super) const WORDS: usize = 0;
    pub(super) const POSITIONS: usize = 1;
    pub(super) const EMBEDDING_NORM: usize = 2;
    pub(super) const MAPPING: usize = 4;
    pub(super) const QUERY: usize = 6;
    pub(super) const KEY: usize = 7;
    pub(super) const VALUE: usize = 8;
    pub(super) const QUERY_BIAS: usize = 9;
    pub(super) const VALUE_BIAS: usize = 10;
    pub(super) const DENSE: usize = 11;
    pub(super) const ATTENTION_NORM: usize = 13;
    pub(super) const FEED: usize = 15;
    pub(super) const FEED_OUTPUT: usize = 17;
    pub(super) const LAST_NORM: usize = 19;
    pub(super) const PREDICTION: usize = 21;
    pub(super) const PREDICTION_NORM: usize = 23;
    pub(super) const WORD_BIAS: usize = 25;
}

pub(super) struct TorchAlbert<'a> {
    plan: &'a NetworkPlan,
    weights: &'a ParameterTensors,
    /// Tokens with the mask over them, `[windows, tokens]`.
    inputs: Tensor,
    /// Rows of a window that are predicted, `[windows, predicted]`, and what belongs there.
    predicted: Tensor,
    targets: Tensor,
}

impl<'a> TorchAlbert<'a> {
    /// `first` is the number of the first window in its leaf: what is masked depends on it.
    pub(super) fn new(
        plan: &'a NetworkPlan,
        weights: &'a ParameterTensors,
        batch: Batch<'_>,
        first: u32,
    ) -> Self {
        let Family::Albert(albert) = &plan.model.family else { unreachable!("an ALBERT's plan") };
        let [mut inputs, mut predicted, mut targets] = [const { Vec::<i64>::new() }; 3];
        for (number, window) in (first..).zip(batch.windows) {
            let masked = masked(&plan.model, albert, &batch.seed, batch.leaf, number, window);
            inputs.extend(masked.inputs.iter().map(|token| plan.token(*token) as i64));
            predicted.extend(masked.positions.iter().map(|position| i64::from(*position)));
            targets.extend(
                masked.positions.iter().map(|position| plan.token(window[*position as usize]) as i64),
            );
        }
        let device = weights.of(0).device();
        let rows = |numbers: &[i64], columns: usize| {
            Tensor::from_slice(numbers).view([-1, columns as i64]).to_device(device)
        };
        let [predicted, targets] = [rows(&predicted, plan.predicted), rows(&targets, plan.predicted)];
        Self { plan, weights, inputs: rows(&inputs, plan.tokens), predicted, targets }
    }

    fn norm(&self, x: &Tensor, gain: usize) -> Tensor {
        let [gain, bias] = [gain, gain + 1].map(|part| self.weights.of(part));
        let x = x.to_kind(Kind::Float);
        x.layer_norm(gain.size(), Some(gain), Some(bias), f64::from(self.plan.epsilon), false)
    }

    /// A product with the bias that follows its matrix.
    fn product(&self, x: &Tensor, matrix: usize) -> Tensor {
        self.weights.product(x, matrix, Some(matrix + 1))
    }
}

impl Network for TorchAlbert<'_> {
    fn embed(&self) -> Tensor {
        let words = Tensor::embedding(self.weights.of(part::WORDS), &self.inputs, -1, false, false);
        let normed = self.norm(&(words + self.weights.of(part::POSITIONS)), part::EMBEDDING_NORM);
        self.product(&normed, part::MAPPING).to_kind(Kind::Float)
    }

    fn layer(&self, _: usize, stream: &Tensor) -> Tensor {
        let row = |matrix, bias| heads(&self.weights.product(stream, matrix, bias), self.plan.heads.width);
        let [queries, keys, values] = [
            row(part::QUERY, Some(part::QUERY_BIAS)),
            row(part::KEY, None),
            row(part::VALUE, Some(part::VALUE_BIAS)),
        ];
        let mixed = self.weights.attend(&queries, &keys, &values, false);
        let middle = self.norm(&(stream + self.product(&mixed, part::DENSE)), part::ATTENTION_NORM);
        let hidden = self.product(&middle, part::FEED).gelu("tanh");
        self.norm(&(&middle + self.product(&hidden, part::FEED_OUTPUT)), part::LAST_NORM)
    }

    fn losses(&self, windows: Range<usize>, stream: &Tensor) -> Tensor {
        let of = |rows: &Tensor| rows.narrow(0, windows.start as i64, windows.len() as i64);
        let starts = Tensor::arange(windows.len() as i64, (Kind::Int64, stream.device()));
        let rows = of(&self.predicted) + (starts * self.plan.tokens as i64).unsqueeze(1);
        let predicted = stream.flatten(0, 1).index_select(0, &rows.flatten(0, 1));
        let hidden = self.product(&predicted, part::PREDICTION).gelu("tanh");
        let normed = self.norm(&hidden, part::PREDICTION_NORM);
        let logits = self.weights.product(&normed, part::WORDS, Some(part::WORD_BIAS));
        self.weights.losses(&logits, &of(&self.targets).flatten(0, 1))
    }
}
