//! A strip of coefficients of one input.

/// Coefficients of a strip: a multiple of [`LANES`]; the rows of a few inputs stay in a first-level cache.
pub(super) const STRIP: usize = 128;
/// Partial sums of a product of two rows.
pub(super) const LANES: usize = 8;
/// Strips hold a multiple of so many rows, the last ones zero: products are computed in squares of them.
pub(super) const TILE: usize = 2;

/// One input's coefficients of a strip, at an address that no vector crosses a cache line from.
#[derive(Clone, Copy)]
#[repr(align(64))]
pub(super) struct StripRow(pub(super) [f64; STRIP]);

impl StripRow {
    pub(super) const ZERO: Self = Self([0.0; STRIP]);

    /// In groups of [`LANES`].
    #[inline(always)]
    pub(super) fn lanes(&self) -> &[[f64; LANES]] {
        self.0.as_chunks().0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_strip_keeps_lanes_apart() {
        assert_eq!(STRIP % LANES, 0);
    }
}
