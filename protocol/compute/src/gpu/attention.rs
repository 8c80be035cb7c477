//! Attention on a device, of decoders and of ALBERTs: `crate::attention`, kernel for kernel, over some windows at once.

use super::driver::{Outcome, Place};
use super::queue::{Bound, Heads, Kind, Lying, OfHeads, Queue, Scores};
use crate::attention::{self, BLOCK};

/// Attention of some windows.
pub(super) struct Attention<'a> {
    pub queue: &'a mut Queue,
    pub heads: &'a attention::Heads,
    pub windows: usize,
}

/// What a layer keeps of it.
#[derive(Clone, Copy)]
pub(super) struct Attended {
    /// Queries (rotated, scaled), keys (rotated), values.
    pub joint: Place,
    /// `[windows, heads, tokens, tokens]`.
    pub probabilities: Place,
    /// Output of the heads.
    pub mixed: Place,
}

/// Gradients on the way back through it.
#[derive(Clone, Copy)]
pub(super) struct AttendedBack {
    pub joint: Place,
    pub scores: Place,
    pub mixed: Place,
}

impl Attention<'_> {
    /// ARITH-5.
    pub(super) fn forward(&mut self, layer: Attended) -> Outcome<()> {
        let (tokens, width) = (self.heads.tokens, self.heads.width);
        let [query, keys, values] = self.of_joint(layer.joint);
        let (probabilities, mixed) = (self.scores(layer.probabilities), self.outputs(layer.mixed));
        let of = self.each_head(Bound::Columns);
        self.queue.heads(Kind::Forward, [tokens, tokens, width], [query, keys], probabilities, of)?;
        self.queue.softmax(self.score_rows(), layer.probabilities)?;
        let of = self.each_head(Bound::End);
        self.queue.heads(Kind::Backward, [tokens, width, tokens], [probabilities, values], mixed, of)
    }

    /// ARITH-36 and ARITH-37: from the gradient of the heads' outputs to that of queries, keys and values.
    pub(super) fn backward(&mut self, layer: Attended, to: AttendedBack) -> Outcome<()> {
        let heads = self.heads;
        let (tokens, width) = (heads.tokens, heads.width);
        let [probabilities, d_scores] = [layer.probabilities, to.scores].map(|at| self.scores(at));
        let d_output = self.outputs(to.mixed);
        let [query, keys, values] = self.of_joint(layer.joint);
        let [d_query, d_keys, d_values] = self.of_joint(to.joint);
        let of = self.each_head(Bound::Columns);
        self.queue.heads(Kind::Forward, [tokens, tokens, width], [d_output, values], d_scores, of)?;
        let places = [layer.probabilities, to.scores, layer.mixed, to.mixed];
        self.queue.softmax_back(self.score_rows(), width, places)?;
        let of = self.each_head(Bound::End);
        self.queue.heads(Kind::Backward, [tokens, width, tokens], [d_scores, keys], d_query, of)?;
        let of = Heads {
            count: heads.count / heads.group,
            loops: heads.group,
            sharing: 1,
            ..self.each_head(Bound::Begin)
        };
        let shape = [tokens, width, tokens];
        self.queue.heads(Kind::Weigh, shape, [d_scores, query], d_keys, of)?;
        self.queue.heads(Kind::Weigh, shape, [probabilities, d_output], d_values, of)
    }

    /// Products with a matrix for each query head.
    fn each_head(&self, bound: Bound) -> Heads {
        let heads = self.heads;
        let bound = if heads.causal { bound } else { Bound::None };
        Heads {
            windows: self.windows,
            count: heads.count,
            loops: 1,
            sharing: heads.group,
            block: BLOCK,
            bound,
        }
    }

    fn score_rows(&self) -> Scores {
        let heads = self.heads;
        Scores {
            windows: self.windows,
            heads: heads.count,
            tokens: heads.tokens,
            block: BLOCK,
            causal: heads.causal,
        }
    }

    /// Queries, keys and values of each head.
    fn of_joint(&self, joint: Place) -> [OfHeads; 3] {
        let heads = self.heads;
        let (stride, keys) = (heads.joint_width(), heads.query_width());
        [0, keys, keys + heads.key_width()].map(|column| OfHeads {
            lying: Lying { at: joint.after(column), stride },
            apart: [heads.tokens * stride, heads.width],
        })
    }

    fn outputs(&self, mixed: Place) -> OfHeads {
        let heads = self.heads;
        let stride = heads.query_width();
        OfHeads { lying: Lying { at: mixed, stride }, apart: [heads.tokens * stride, heads.width] }
    }

    fn scores(&self, at: Place) -> OfHeads {
        let heads = self.heads;
        let head = heads.tokens * heads.tokens;
        OfHeads { lying: Lying { at, stride: heads.tokens }, apart: [heads.count * head, head] }
    }
}
