//! A symmetric matrix of products: every distance that a rule asks for follows from it.

use super::sum::ordered_sum;

/// A symmetric matrix over the inputs: G_ij = ⟨y_i, y_j⟩.
#[derive(Clone, Debug)]
pub(super) struct Gram {
    count: usize,
    /// Rows up to the diagonal, one after the other.
    half: Vec<f64>,
}

impl Gram {
    /// Rows up to the diagonal, one after the other.
    pub(super) fn new(count: usize, half: Vec<f64>) -> Self {
        Self { count, half }
    }

    /// One entry.
    pub(super) fn at(&self, i: usize, j: usize) -> f64 {
        self.half[triangle(i, j)]
    }

    /// Inputs.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Adds the products over later coefficients.
    pub(super) fn add(&mut self, later: &Self) {
        self.half.iter_mut().zip(&later.half).for_each(|(sum, more)| *sum += more);
    }

    /// ‖y_i − y_j‖², not below 0.
    pub(super) fn between(&self, i: usize, j: usize) -> f64 {
        // Roundings may leave a square of near inputs below 0, whose root would be NaN.
        ((self.at(i, i) + self.at(j, j)) - 2.0 * self.at(i, j)).max(0.0)
    }

    /// ‖y_i − Σ k_j·y_j‖² of every i, not below 0.
    pub(super) fn distances_to(&self, k: &[f64]) -> Vec<f64> {
        let products = |i: usize| ordered_sum(k.iter().enumerate().map(|(j, k)| k * self.at(i, j)));
        let h: Vec<f64> = (0..self.count).map(products).collect();
        let square = ordered_sum(k.iter().zip(&h).map(|(k, h)| k * h));
        (0..self.count).map(|i| ((self.at(i, i) - 2.0 * h[i]) + square).max(0.0)).collect()
    }
}

/// Where a row up to the diagonal has an entry, the rows one after the other.
pub(super) fn triangle(i: usize, j: usize) -> usize {
    let (low, high) = if i < j { (i, j) } else { (j, i) };
    high * (high + 1) / 2 + low
}
