//! Causal attention of one window.
//!
//! Tokens are cut into blocks of [`BLOCK`]. A row's chain over keys ends with its block, and a key's chain over rows
//! starts with its block; the probabilities beyond a row's own token are +0 and take part. The query heads that
//! share a key head are added to its gradient in order.

use crate::kernel::matrix::{Panels, Product, Strided, multiply};
use crate::kernel::rows::{Rotation, ScoreRows, rotate, softmax, softmax_backward};
use crate::path::Kernels;
use crate::plan::Plan;

/// Tokens of a block: a multiple of every path's tile height.
const BLOCK: usize = 24;

/// Buffers of attention, one set a thread.
#[derive(Default)]
pub(crate) struct Attention {
    /// Probabilities of every layer and head of a window.
    probabilities: Vec<f32>,
    d_scores: Vec<f32>,
    panels: [Panels; 2],
}

/// Values from row to row of scores: padded, so that columns do not share cache sets.
fn score_stride(plan: &Plan) -> usize {
    plan.tokens.next_multiple_of(16) + 16
}

fn blocks(plan: &Plan) -> impl Iterator<Item = ScoreRows> {
    let (tokens, stride) = (plan.tokens, score_stride(plan));
    (0..tokens).step_by(BLOCK).map(move |first| {
        let keys = tokens.min(first + BLOCK);
        ScoreRows { first, rows: keys - first, keys, stride }
    })
}

/// Rotates queries and keys (`direction` 1) or their gradients back (−1); queries are scaled by 1/√head width.
pub(crate) fn rotate_joint(kernels: Kernels, plan: &Plan, joint: &mut [f32], direction: f32) {
    let of = |heads, scale| Rotation {
        stride: plan.joint_width(),
        heads,
        half: plan.head_width / 2,
        cosines: &plan.cosines,
        sines: &plan.sines,
        direction,
        scale,
    };
    rotate(kernels, joint, &of(plan.heads, plan.score_scale));
    rotate(kernels, &mut joint[plan.width..], &of(plan.heads / plan.group, 1.0));
}

impl Attention {
    fn probabilities_at(&mut self, plan: &Plan, layer: usize, head: usize) -> &mut [f32] {
        let size = plan.tokens * score_stride(plan);
        self.probabilities.resize(plan.layers.len() * plan.heads * size, 0.0);
        &mut self.probabilities[(layer * plan.heads + head) * size..][..size]
    }

    /// From rotated queries, keys, values to the heads' outputs; keeps the probabilities.
    pub(crate) fn forward(
        &mut self,
        kernels: Kernels,
        plan: &Plan,
        layer: usize,
        joint: &[f32],
        mixed: &mut [f32],
    ) {
        let (stride, width) = (plan.joint_width(), plan.head_width);
        for head in 0..plan.heads {
            if head % plan.group == 0 {
                let key = &joint[plan.width + head / plan.group * width..];
                self.panels[0].pack(kernels, Strided::transposed(key, stride), width, plan.tokens);
                let value = Strided::rows(&key[plan.key_width..], stride);
                self.panels[1].pack(kernels, value, plan.tokens, width);
            }
            let panels = std::mem::take(&mut self.panels);
            let scores = self.probabilities_at(plan, layer, head);
            for block in blocks(plan) {
                let ScoreRows { first, rows, keys, .. } = block;
                let scores = &mut scores[first * block.stride..];
                let query = Strided::rows(&joint[first * stride + head * width..], stride);
                let product = Product { columns: keys, ..Product::full(query, &panels[0], rows) };
                multiply(kernels, &product, scores, block.stride);
                softmax(kernels, &mut scores[..rows * block.stride], block);
                let scores = Strided::rows(scores, block.stride);
                let product = Product { depth: 0..keys, ..Product::full(scores, &panels[1], rows) };
                multiply(kernels, &product, &mut mixed[first * plan.width + head * width..], plan.width);
            }
            self.panels = panels;
        }
    }

    /// The gradient of rotated queries, keys, values; `rows` are joint, mixed, d_mixed.
    pub(crate) fn backward(
        &mut self,
        kernels: Kernels,
        plan: &Plan,
        layer: usize,
        rows: [&[f32]; 3],
        d_joint: &mut [f32],
    ) {
        for head in 0..plan.heads {
            self.backward_of_rows(kernels, plan, (layer, head), rows, d_joint);
            self.backward_of_keys(kernels, plan, (layer, head), rows, d_joint);
        }
    }

    /// Gradients of the scores and queries of one head.
    fn backward_of_rows(
        &mut self,
        kernels: Kernels,
        plan: &Plan,
        (layer, head): (usize, usize),
        [joint, mixed, d_mixed]: [&[f32]; 3],
        d_joint: &mut [f32],
    ) {
        let (stride, width) = (plan.joint_width(), plan.head_width);
        let mut panels = std::mem::take(&mut self.panels);
        let mut d_scores = std::mem::take(&mut self.d_scores);
        d_scores.resize(plan.tokens * score_stride(plan), 0.0);
        let key = &joint[plan.width + head / plan.group * width..];
        let value = &key[plan.key_width..];
        panels[0].pack(kernels, Strided::transposed(value, stride), width, plan.tokens);
        panels[1].pack(kernels, Strided::rows(key, stride), plan.tokens, width);
        let probabilities = self.probabilities_at(plan, layer, head);
        for block in blocks(plan) {
            let ScoreRows { first, rows, keys, .. } = block;
            let at = first * plan.width + head * width;
            let d_output = Strided::rows(&d_mixed[at..], plan.width);
            let d_scores = &mut d_scores[first * block.stride..];
            let product = Product { columns: keys, ..Product::full(d_output, &panels[0], rows) };
            multiply(kernels, &product, d_scores, block.stride);
            let probabilities = &probabilities[first * block.stride..];
            let outputs = [&mixed[at..], &d_mixed[at..]];
            softmax_backward(kernels, d_scores, probabilities, block, outputs, [plan.width, width]);
            let d_scores = Strided::rows(d_scores, block.stride);
            let product = Product { depth: 0..keys, ..Product::full(d_scores, &panels[1], rows) };
            multiply(kernels, &product, &mut d_joint[first * stride + head * width..], stride);
        }
        (self.panels, self.d_scores) = (panels, d_scores);
    }

    /// Gradients of the keys and values that one head reads.
    fn backward_of_keys(
        &mut self,
        kernels: Kernels,
        plan: &Plan,
        (layer, head): (usize, usize),
        [joint, _, d_mixed]: [&[f32]; 3],
        d_joint: &mut [f32],
    ) {
        let (stride, width) = (plan.joint_width(), plan.head_width);
        let mut panels = std::mem::take(&mut self.panels);
        let d_scores = std::mem::take(&mut self.d_scores);
        panels[0].pack(kernels, Strided::rows(&joint[head * width..], stride), plan.tokens, width);
        panels[1].pack(kernels, Strided::rows(&d_mixed[head * width..], plan.width), plan.tokens, width);
        let probabilities = self.probabilities_at(plan, layer, head);
        let key = plan.width + head / plan.group * width;
        for ScoreRows { first, rows, stride: across, .. } in blocks(plan) {
            for (left, right, column) in
                [(&*d_scores, &panels[0], key), (&*probabilities, &panels[1], key + plan.key_width)]
            {
                let left = Strided::transposed(&left[first..], across);
                let depth = first..plan.tokens;
                let product =
                    Product { depth, add: head % plan.group > 0, ..Product::full(left, right, rows) };
                multiply(kernels, &product, &mut d_joint[first * stride + column..], stride);
            }
        }
        (self.panels, self.d_scores) = (panels, d_scores);
    }
}
