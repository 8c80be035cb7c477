//! Norms of the heads of queries and keys on a device (ARITH-77).

use super::Pass;
use crate::decoder::ranges::Gain;
use crate::gpu::driver::{Outcome, Place};
use crate::gpu::queue::HeadRows;

/// Queries or keys of a layer.
struct NormedHeads<'a> {
    at: HeadRows,
    gain: &'a Gain,
    /// Columns before them in a row of queries, keys and values.
    first: usize,
    /// What they were, and their scales.
    kept: [Place; 2],
}

impl<'a> Pass<'a> {
    /// Norms them in place, where they have norms.
    pub(super) fn norm_heads(&mut self, number: usize) -> Outcome<()> {
        let joint = self.layer(number).attended.joint;
        for NormedHeads { at, gain, first, kept: [before, scales] } in self.normed_heads(number) {
            let places = [joint.after(first), self.parameters(&gain.range), before, scales];
            self.queue.norm_heads(at, self.plan.epsilon, places)?;
        }
        Ok(())
    }

    /// Back through them, from the gradient of queries and keys, and to those of their gains.
    pub(super) fn norm_heads_back(&mut self, number: usize) -> Outcome<()> {
        let joint = self.buffers.d_attended.joint;
        for NormedHeads { at, gain, first, kept: [before, scales] } in self.normed_heads(number) {
            let places = [joint.after(first), self.parameters(&gain.range), before, scales];
            self.queue.norm_heads_back(at, places)?;
            let sums = self.leaf.gradient.after(gain.range.start);
            self.queue.add_rows([at.rows * at.heads, at.width], self.first > 0, before, sums)?;
        }
        Ok(())
    }

    fn normed_heads(&self, number: usize) -> Vec<NormedHeads<'a>> {
        let (rows, heads) = (self.rows(), &self.plan.heads);
        let ranges = self.ranges;
        let Some([queries, keys]) = &ranges.layers[number].head_norms else { return Vec::new() };
        let [before, scales] = self.layer(number).heads;
        let of = |count| HeadRows { rows, heads: count, width: heads.width, stride: heads.joint_width() };
        let behind = [before.after(rows * heads.query_width()), scales.after(rows * heads.count)];
        vec![
            NormedHeads { at: of(heads.count), gain: queries, first: 0, kept: [before, scales] },
            NormedHeads {
                at: of(heads.count / heads.group),
                gain: keys,
                first: heads.query_width(),
                kept: behind,
            },
        ]
    }
}
