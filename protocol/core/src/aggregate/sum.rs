//! Sums in one order.

/// From 0, in order.
pub(super) fn ordered_sum(terms: impl Iterator<Item = f64>) -> f64 {
    terms.fold(0.0, |sum, term| sum + term)
}
