//! Krum and Multi-Krum (Blanchard et al. 2017): the input, or the mean of the n − f inputs, whose n − f nearest inputs,
//! itself included, are nearest.
//!
//! Unweighted: every input counts once, whatever its leaves. For comparison only.

use super::combination::Combination;
use super::gram::Gram;
use super::sum::ordered_sum;

/// The best `kept` of the inputs by score; f < n (AGG-15).
///
/// The score of i is the sum, ascending from 0, of the n − f least ‖x_i − x_j‖², j = i among them. Equal scores go by
/// slot.
pub(super) fn select(gram: &Gram, f: usize, kept: usize) -> Combination {
    let count = gram.count();
    let score = |i: usize| {
        let mut squares: Vec<f64> = (0..count).map(|j| gram.between(i, j)).collect();
        squares.sort_by(f64::total_cmp);
        ordered_sum(squares.into_iter().take(count - f))
    };
    let mut order: Vec<(f64, usize)> = (0..count).map(|i| (score(i), i)).collect();
    // Stable: the first slot wins among equal scores.
    order.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut factors = vec![0.0; count];
    for (_, index) in order.iter().take(kept) {
        factors[*index] = 1.0;
    }
    let share = 1.0 / kept as f64;
    let k = factors.iter().map(|factor| factor * share).collect();
    Combination { k, factors }
}
