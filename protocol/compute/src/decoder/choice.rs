//! Which experts tokens choose, and the way back through their weights: of scores that something else has computed.

use std::ops::Range;

use super::ranges::Row;
use crate::kernel::mixture::{Routed, balance_factor, route, route_backward};
use crate::parallel::each;
use crate::path::Kernels;

/// Which experts the tokens chose (ARITH-70).
#[derive(Default)]
pub(crate) struct Choice {
    /// Chosen experts of each token, ascending.
    pub chosen: Vec<u16>,
    /// Their weights.
    pub weights: Vec<f32>,
    /// Places in `chosen`: by expert, then by token.
    pub by_expert: Vec<usize>,
    /// Where each expert's places begin; at last where all end.
    pub starts: Vec<usize>,
}

/// A layer's router, for windows of so many tokens.
pub(crate) struct Router<'a> {
    pub kernels: Kernels,
    pub row: &'a Row,
    /// Tokens of a window.
    pub tokens: usize,
    /// 1/(windows·T) of the leaf.
    pub share: f32,
    pub threads: usize,
}

impl Router<'_> {
    /// Chooses experts for each token; scores become their softmax over all experts (ARITH-70).
    pub(crate) fn choose(&self, scores: &mut [f32], choice: &mut Choice) {
        let Self { kernels, row, tokens, .. } = *self;
        let (columns, of_window) = (row.experts.len(), tokens * row.active);
        let Choice { chosen, weights, .. } = choice;
        let windows = scores.chunks_mut(tokens * columns).zip(chosen.chunks_mut(of_window));
        each(
            &mut self.workers(),
            windows.zip(weights.chunks_mut(of_window)),
            |(), ((scores, chosen), weights)| {
                route(kernels, scores, columns, chosen, weights);
            },
        );
        choice.sort(columns);
    }

    /// The gradient of the router's scores, window by window: each balances its own choices (ARITH-73). `probabilities` is
    /// what became of the scores, `d_weights` are the gradients of the weights as they are chosen.
    pub(crate) fn back(
        &self,
        choice: &Choice,
        probabilities: &[f32],
        d_weights: &[f32],
        d_scores: &mut [f32],
    ) {
        let Self { kernels, row, tokens, share, .. } = *self;
        let (columns, of_window) = (row.experts.len(), tokens * row.active);
        each(
            &mut self.workers(),
            d_scores.chunks_mut(tokens * columns).enumerate(),
            |(), (window, d_scores)| {
                let chosen = window * of_window..(window + 1) * of_window;
                let routed = Routed {
                    chosen: &choice.chosen[chosen.clone()],
                    weights: &choice.weights[chosen.clone()],
                    d_weights: &d_weights[chosen.clone()],
                    probabilities: &probabilities[window * tokens * columns..][..tokens * columns],
                    shares: &choice.shares(chosen, columns),
                    balance: balance_factor(row.balance, share),
                };
                route_backward(kernels, &routed, d_scores);
            },
        );
    }

    fn workers(&self) -> Vec<()> {
        vec![(); self.threads]
    }
}

impl Choice {
    /// Makes room for so many tokens.
    pub(crate) fn size(&mut self, tokens: usize, row: &Row) {
        self.chosen.resize(tokens * row.active, 0);
        self.weights.resize(tokens * row.active, 0.0);
    }

    /// Sorts the choices by expert.
    fn sort(&mut self, experts: usize) {
        self.starts.clear();
        self.starts.resize(experts + 1, 0);
        for expert in &self.chosen {
            self.starts[usize::from(*expert) + 1] += 1;
        }
        for expert in 0..experts {
            self.starts[expert + 1] += self.starts[expert];
        }
        let mut next = self.starts.clone();
        self.by_expert.resize(self.chosen.len(), 0);
        for (place, expert) in self.chosen.iter().enumerate() {
            let to = &mut next[usize::from(*expert)];
            self.by_expert[*to] = place;
            *to += 1;
        }
    }

    /// Of each expert: its share of some choices.
    fn shares(&self, places: Range<usize>, experts: usize) -> Vec<f32> {
        let mut counts = vec![0u32; experts];
        for expert in &self.chosen[places.clone()] {
            counts[usize::from(*expert)] += 1;
        }
        counts.into_iter().map(|count| count as f32 / places.len() as f32).collect()
    }

    /// Where an expert's places stand in `by_expert`.
    pub(crate) fn of(&self, expert: usize) -> Range<usize> {
        self.starts[expert]..self.starts[expert + 1]
    }
}
