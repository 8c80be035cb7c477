//! Nearest-neighbour mixing (Allouah et al. 2023, arXiv 2302.01772): before a rule, each input is replaced by the mean
//! of the n − f inputs nearest to it, itself included.
//!
//! Unweighted: every input counts once, whatever its leaves. For comparison only.

use super::gram::Gram;
use super::strip::{STRIP, StripRow};
use super::sum::ordered_sum;

/// Whom each input is mixed with (AGG-17).
#[derive(Clone, Debug)]
pub(super) struct Mixing {
    /// The f farthest inputs of each one, ascending.
    left_out: Vec<Vec<usize>>,
    /// 1/(n − f).
    share: f64,
}

impl Mixing {
    /// Of the distances that follow from the x_i; f < n.
    pub(super) fn new(gram: &Gram, f: usize) -> Self {
        let count = gram.count();
        let farthest = |i: usize| {
            let mut order: Vec<(f64, usize)> = (0..count).map(|j| (gram.between(i, j), j)).collect();
            // Stable: among equals the later slots are left out.
            order.sort_by(|a, b| a.0.total_cmp(&b.0));
            let mut left_out: Vec<usize> = order.iter().skip(count - f).map(|(_, j)| *j).collect();
            left_out.sort_unstable();
            left_out
        };
        Self { left_out: (0..count).map(farthest).collect(), share: 1.0 / (count - f) as f64 }
    }

    /// (T − E_i)/(n − f), T the sum of all, E_i of what i leaves out, both from 0 in order of slot.
    #[inline(always)]
    pub(super) fn mix(&self, rows: &[StripRow], mixed: &mut [StripRow]) {
        let mut total = StripRow::ZERO;
        for row in rows {
            for c in 0..STRIP {
                total.0[c] += row.0[c];
            }
        }
        for (mixed, left_out) in mixed.iter_mut().zip(&self.left_out) {
            // What is left out is added up, not what is taken: f is the smaller number, and sums of 32-bit
            // integers over m lose nothing that f32 would show.
            let mut missing = StripRow::ZERO;
            for other in left_out {
                let row = &rows[*other];
                for c in 0..STRIP {
                    missing.0[c] += row.0[c];
                }
            }
            for c in 0..STRIP {
                mixed.0[c] = (total.0[c] - missing.0[c]) * self.share;
            }
        }
    }

    /// What is left of each input where a rule leaves `factors` of the mixed ones.
    pub(super) fn trace(&self, factors: &[f64]) -> Vec<f64> {
        let counts = |i: usize, left_out: &[usize]| !left_out.contains(&i);
        let left = |i: usize| {
            let mixed = factors.iter().zip(&self.left_out);
            let counted = mixed.filter(|(_, left_out)| counts(i, left_out)).map(|(factor, _)| *factor);
            (ordered_sum(counted) * self.share).min(1.0)
        };
        (0..factors.len()).map(left).collect()
    }
}
