//! Attention within windows, causal or in both directions.
//!
//! Causal (ARITH-5, back: ARITH-37): tokens are cut into blocks of [`BLOCK`]. A row's chain over keys ends with its
//! block, and a key's chain over rows starts with its block; the probabilities beyond a row's own token are +0 and take
//! part. In both directions (ARITH-65) every chain is whole. The query heads that share a key head are added to its
//! gradient in order.

use crate::kernel::matrix::{Panels, Product, multiply};
use crate::kernel::rows::{ScoreRows, softmax, softmax_backward};
use crate::kernel::strided::Strided;
use crate::path::Kernels;

/// Tokens of a block: a multiple of every path's tile height.
pub(crate) const BLOCK: usize = 24;

/// The shape of attention.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Heads {
    pub tokens: usize,
    /// Query heads.
    pub count: usize,
    /// Query heads that share a key and value head.
    pub group: usize,
    /// Width of a head.
    pub width: usize,
    /// Whether a token sees only itself and those before it.
    pub causal: bool,
}

/// One of the heads.
#[derive(Clone, Copy)]
struct OneHead<'a> {
    heads: &'a Heads,
    head: usize,
}

impl Heads {
    /// Width of all queries.
    pub(crate) fn query_width(&self) -> usize {
        self.count * self.width
    }

    /// Width of all keys; the values are as wide.
    pub(crate) fn key_width(&self) -> usize {
        self.count / self.group * self.width
    }

    /// Width of a row of queries, keys and values.
    pub(crate) fn joint_width(&self) -> usize {
        self.query_width() + 2 * self.key_width()
    }

    /// 1/√head width, in f64, rounded to f32: the scale of queries (ARITH-34, ARITH-65).
    pub(crate) fn score_scale(&self) -> f32 {
        (1.0 / (self.width as f64).sqrt()) as f32
    }

    /// Values from row to row of scores: padded, so that columns do not share cache sets.
    fn score_stride(&self) -> usize {
        self.tokens.next_multiple_of(16) + 16
    }

    /// Values of a window's scores, of every head.
    fn window_scores(&self) -> usize {
        self.count * self.tokens * self.score_stride()
    }

    /// Columns of a row of queries, keys and values where a head's own begin.
    pub(crate) fn columns(&self, head: usize) -> [usize; 3] {
        let key = self.query_width() + head / self.group * self.width;
        [head * self.width, key, key + self.key_width()]
    }

    fn blocks(self) -> impl Iterator<Item = ScoreBlock> {
        (0..self.tokens).step_by(BLOCK).map(move |first| {
            let end = self.tokens.min(first + BLOCK);
            let (keys, since) = if self.causal { (end, first) } else { (self.tokens, 0) };
            ScoreBlock { first, rows: end - first, keys, since, stride: self.score_stride() }
        })
    }
}

/// Rows of scores that are computed together.
#[derive(Clone, Copy)]
struct ScoreBlock {
    /// Token of the first row.
    first: usize,
    rows: usize,
    /// Keys that take part in the rows' chains.
    keys: usize,
    /// Row at which the chains of these tokens' keys begin.
    since: usize,
    stride: usize,
}

impl ScoreBlock {
    fn scores(&self, heads: &Heads) -> ScoreRows {
        let Self { first, rows, keys, stride, .. } = *self;
        ScoreRows { first: if heads.causal { first } else { keys }, rows, keys, stride }
    }
}

/// Buffers of attention, one set a thread.
#[derive(Default)]
pub(crate) struct Attention {
    d_scores: Vec<f32>,
    panels: [Panels; 2],
}

impl Attention {
    /// From the (rotated, scaled) queries, keys, values of some windows to the heads' outputs; keeps every head's
    /// probabilities.
    pub(crate) fn forward(
        &mut self,
        kernels: Kernels,
        heads: &Heads,
        joint: &[f32],
        probabilities: &mut Vec<f32>,
        mixed: &mut [f32],
    ) {
        let windows = joint.chunks_exact(heads.tokens * heads.joint_width());
        probabilities.resize(windows.len() * heads.window_scores(), 0.0);
        let outputs = mixed.chunks_exact_mut(heads.tokens * heads.query_width());
        for ((joint, probabilities), mixed) in
            windows.zip(probabilities.chunks_exact_mut(heads.window_scores())).zip(outputs)
        {
            self.window_forward(kernels, heads, joint, probabilities, mixed);
        }
    }

    fn window_forward(
        &mut self,
        kernels: Kernels,
        heads: &Heads,
        joint: &[f32],
        probabilities: &mut [f32],
        mixed: &mut [f32],
    ) {
        let (stride, across, size) =
            (heads.joint_width(), heads.query_width(), heads.tokens * heads.score_stride());
        for (head, scores) in probabilities.chunks_exact_mut(size).enumerate() {
            let [own, key, value] = heads.columns(head);
            // Heads of a group are neighbours and share a key head: its panels are still there.
            if head % heads.group == 0 {
                let keys = Strided::transposed(&joint[key..], stride);
                self.panels[0].pack(kernels, keys, heads.width, heads.tokens);
                self.panels[1].pack(
                    kernels,
                    Strided::rows(&joint[value..], stride),
                    heads.tokens,
                    heads.width,
                );
            }
            for block in heads.blocks() {
                let ScoreBlock { first, rows, keys, .. } = block;
                let scores = &mut scores[first * block.stride..];
                let query = Strided::rows(&joint[first * stride + own..], stride);
                let product = Product { columns: keys, ..Product::full(query, &self.panels[0], rows) };
                multiply(kernels, &product, scores, block.stride);
                softmax(kernels, &mut scores[..rows * block.stride], block.scores(heads));
                let scores = Strided::rows(scores, block.stride);
                // A row's chain over keys ends with its block (ARITH-5), not with its own token.
                let product = Product { depth: 0..keys, ..Product::full(scores, &self.panels[1], rows) };
                multiply(kernels, &product, &mut mixed[first * across + own..], across);
            }
        }
    }

    /// The gradient of (rotated, scaled) queries, keys, values; `rows` are joint, mixed, d_mixed.
    pub(crate) fn backward(
        &mut self,
        kernels: Kernels,
        heads: &Heads,
        probabilities: &[f32],
        rows: [&[f32]; 3],
        d_joint: &mut [f32],
    ) {
        let size = heads.tokens * heads.score_stride();
        // One head's at a time: nothing reads them once its keys are done.
        self.d_scores.resize(size, 0.0);
        let (joint_size, size_across) =
            (heads.tokens * heads.joint_width(), heads.tokens * heads.query_width());
        let windows =
            probabilities.chunks_exact(heads.window_scores()).zip(d_joint.chunks_exact_mut(joint_size));
        for (window, (probabilities, d_joint)) in windows.enumerate() {
            let [joint, mixed, d_mixed] = rows;
            let [mixed, d_mixed] = [mixed, d_mixed].map(|rows| &rows[window * size_across..][..size_across]);
            let rows = [&joint[window * joint_size..][..joint_size], mixed, d_mixed];
            for (head, probabilities) in probabilities.chunks_exact(size).enumerate() {
                let one = OneHead { heads, head };
                self.backward_of_rows(kernels, one, probabilities, rows, d_joint);
                self.backward_of_keys(kernels, one, probabilities, rows, d_joint);
            }
        }
    }

    /// Gradients of the scores and queries of one head.
    fn backward_of_rows(
        &mut self,
        kernels: Kernels,
        OneHead { heads, head }: OneHead<'_>,
        probabilities: &[f32],
        [joint, mixed, d_mixed]: [&[f32]; 3],
        d_joint: &mut [f32],
    ) {
        let (stride, across, width) = (heads.joint_width(), heads.query_width(), heads.width);
        let [own, key, value] = heads.columns(head);
        let Self { panels, d_scores } = self;
        panels[0].pack(kernels, Strided::transposed(&joint[value..], stride), width, heads.tokens);
        panels[1].pack(kernels, Strided::rows(&joint[key..], stride), heads.tokens, width);
        for block in heads.blocks() {
            let ScoreBlock { first, rows, keys, .. } = block;
            let at = first * across + own;
            let d_output = Strided::rows(&d_mixed[at..], across);
            let d_scores = &mut d_scores[first * block.stride..];
            let product = Product { columns: keys, ..Product::full(d_output, &panels[0], rows) };
            multiply(kernels, &product, d_scores, block.stride);
            let probabilities = &probabilities[first * block.stride..];
            let outputs = [&mixed[at..], &d_mixed[at..]];
            softmax_backward(kernels, d_scores, probabilities, block.scores(heads), outputs, [across, width]);
            let d_scores = Strided::rows(d_scores, block.stride);
            let product = Product { depth: 0..keys, ..Product::full(d_scores, &panels[1], rows) };
            multiply(kernels, &product, &mut d_joint[first * stride + own..], stride);
        }
    }

    /// Gradients of the keys and values that one head reads.
    fn backward_of_keys(
        &mut self,
        kernels: Kernels,
        OneHead { heads, head }: OneHead<'_>,
        probabilities: &[f32],
        [joint, _, d_mixed]: [&[f32]; 3],
        d_joint: &mut [f32],
    ) {
        let (stride, across, tokens) = (heads.joint_width(), heads.query_width(), heads.tokens);
        let [own, key, value] = heads.columns(head);
        let Self { panels, d_scores } = self;
        panels[0].pack(kernels, Strided::rows(&joint[own..], stride), tokens, heads.width);
        panels[1].pack(kernels, Strided::rows(&d_mixed[own..], across), tokens, heads.width);
        // ARITH-37: among heads that share a key head, the chains go on where those of the head before ended.
        let add = head % heads.group > 0;
        for ScoreBlock { first, rows, since, stride: down, .. } in heads.blocks() {
            for (left, right, column) in [(&**d_scores, &panels[0], key), (probabilities, &panels[1], value)]
            {
                let left = Strided::transposed(&left[first..], down);
                // A key's chain over rows begins with its block: earlier rows have no scores of it.
                let product = Product { depth: since..tokens, add, ..Product::full(left, right, rows) };
                multiply(kernels, &product, &mut d_joint[first * stride + column..], stride);
            }
        }
    }
}
