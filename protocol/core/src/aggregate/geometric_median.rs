//! The geometric median by Weiszfeld's iteration, smoothed (Pillutla et al. 2022): the point with the least weighted
//! sum of distances to the inputs, in a fixed number of steps from 0. For comparison only.
//!
//! A weight multiplies a distance: an input of weight 2 counts as two of weight 1.

use super::combination::Combination;
use super::gram::Gram;
use super::input::Input;
use super::sum::ordered_sum;

/// AGG-14: from k = 0, `iterations` times and at least once: d_i = max(`least`, ‖x_i − Σ k_j·x_j‖); t_i = w_i/d_i;
/// k_i = t_i/Σ t_j. An input is left the part min d/d_i.
pub(super) fn steps(inputs: &[Input<'_>], gram: &Gram, least: f64, iterations: u8) -> Combination {
    let mut k = vec![0.0; inputs.len()];
    let mut distances = k.clone();
    // At least once: k = 0 is no combination of the inputs.
    for _ in 0..iterations.max(1) {
        let squares = gram.distances_to(&k);
        // Not below the least distance: an input at the point itself would divide by 0.
        distances = squares.iter().map(|square| square.sqrt().max(least)).collect();
        for ((k, input), distance) in k.iter_mut().zip(inputs).zip(&distances) {
            *k = input.weight as f64 / distance;
        }
        let total = ordered_sum(k.iter().copied());
        k.iter_mut().for_each(|k| *k /= total);
    }
    let nearest = distances.iter().copied().fold(f64::INFINITY, f64::min);
    Combination { k, factors: distances.iter().map(|distance| nearest / distance).collect() }
}
