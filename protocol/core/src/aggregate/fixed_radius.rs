//! Centred clipping as published (Karimireddy, He and Jaggi 2021): v ← v + Σ (w_i/W)·(x_i − v)·min(1, τ/‖x_i − v‖) from
//! v = 0, with one absolute radius τ for all. For comparison only: τ must be known beforehand.

use super::combination::Combination;
use super::gram::Gram;
use super::input::Input;
use super::sum::ordered_sum;

/// AGG-16: from k = 0, `iterations` times: f_i = τ/d_i where d_i = ‖x_i − Σ k_j·x_j‖ > τ, else 1; a_i = (w_i/W)·f_i;
/// k_i = (1 − Σ a_j)·k_i + a_i. The result is Σ k_j·x_j.
pub(super) fn steps(inputs: &[Input<'_>], gram: &Gram, radius: f64, iterations: u8) -> Combination {
    let total = ordered_sum(inputs.iter().map(|input| input.weight as f64));
    let mut k = vec![0.0; inputs.len()];
    let mut factors = vec![1.0; inputs.len()];
    for _ in 0..iterations {
        let distances = gram.distances_to(&k).into_iter().map(f64::sqrt);
        factors = distances.map(|d| if d > radius { radius / d } else { 1.0 }).collect();
        let shares: Vec<f64> =
            inputs.iter().zip(&factors).map(|(input, f)| (input.weight as f64 / total) * f).collect();
        let kept = 1.0 - ordered_sum(shares.iter().copied());
        k.iter_mut().zip(&shares).for_each(|(k, share)| *k = kept * *k + share);
    }
    Combination { k, factors }
}
