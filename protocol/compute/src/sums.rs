//! Sums of leaves on several threads.

use crate::parallel::{each, parts};

/// Coefficients that one task takes: a few times what a thread costs to start.
const PIECE: usize = 1 << 17;

/// Adds a leaf to the sum of others, coefficient by coefficient, on `threads` threads (0 counts as one). Sums saturate.
pub fn add_leaf(threads: usize, sum: &mut [i32], leaf: &[i32]) {
    on_pieces(threads, sum, leaf, |sum, leaf| {
        // Leaves on the grid never come near the limit: 256 of them add up to 2³⁰ at most (GRID-2).
        sum.iter_mut().zip(leaf).for_each(|(sum, value)| *sum = sum.saturating_add(*value));
    });
}

/// Copies a leaf into a vector of its length, on `threads` threads (0 counts as one).
pub fn copy_leaf(threads: usize, copy: &mut [i32], leaf: &[i32]) {
    on_pieces(threads, copy, leaf, <[i32]>::copy_from_slice);
}

/// Changes a vector piece by piece, each by the same piece of another vector of its length.
fn on_pieces(threads: usize, target: &mut [i32], source: &[i32], change: impl Fn(&mut [i32], &[i32]) + Sync) {
    let pieces = source.chunks(PIECE);
    let mut workers = vec![(); threads.clamp(1, pieces.len().max(1))];
    let targets = parts(target, source.chunks(PIECE).map(<[i32]>::len));
    each(&mut workers, targets.zip(pieces), |(), (target, source)| change(target, source));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_number_of_threads_gives_the_same_sum() {
        for length in [0, 5, PIECE, 3 * PIECE + 77] {
            let leaf = |factor: u32| -> Vec<i32> {
                (0..length as u32).map(|c| (c + 1).wrapping_mul(factor).cast_signed()).collect()
            };
            let leaves = [leaf(2_654_435_761), leaf(40_503), leaf(2_246_822_519)];
            let mut right = leaves[0].clone();
            for leaf in &leaves[1..] {
                right.iter_mut().zip(leaf).for_each(|(sum, value)| *sum = sum.saturating_add(*value));
            }
            for threads in 0..5 {
                let mut sum = vec![7; length];
                copy_leaf(threads, &mut sum, &leaves[0]);
                leaves[1..].iter().for_each(|leaf| add_leaf(threads, &mut sum, leaf));
                assert!(sum == right, "{length} on {threads}");
            }
        }
    }
}
