//! The squares of a gradient, tensor by tensor, while it is computed.

use std::sync::Mutex;

use muster_core::layout::Layout;
use muster_core::lock::lock;

/// `Σ x²` of values that come one after the other, to the bits of [`crate::kernel::update::sum_of_squares`] (ARITH-22).
#[derive(Clone, Copy, Default)]
struct Squares {
    lanes: [f64; 8],
    /// Values so far.
    count: usize,
}

impl Squares {
    fn add(&mut self, values: &[f32]) {
        let square = |value: f32| if value.is_finite() { f64::from(value) * f64::from(value) } else { 0.0 };
        // Up to the next whole chunk.
        let (first, rest) = values.split_at((self.count.next_multiple_of(8) - self.count).min(values.len()));
        for value in first {
            self.lanes[self.count % 8] += square(*value);
            self.count += 1;
        }
        let (chunks, rest) = rest.as_chunks::<8>();
        for chunk in chunks {
            for (lane, value) in self.lanes.iter_mut().zip(chunk) {
                *lane += square(*value);
            }
        }
        for (lane, value) in self.lanes.iter_mut().zip(rest) {
            *lane += square(*value);
        }
        self.count += 8 * chunks.len() + rest.len();
    }

    fn sum(&self) -> f64 {
        let lanes = self.lanes;
        let four: [f64; 4] = std::array::from_fn(|lane| lanes[lane] + lanes[lane + 4]);
        (four[0] + four[2]) + (four[1] + four[3])
    }
}

/// The squares of each tensor of a gradient that comes in pieces.
pub(crate) struct TensorSquares<'a> {
    layout: &'a Layout,
    tensors: Vec<Mutex<Squares>>,
}

impl<'a> TensorSquares<'a> {
    /// Of no values yet.
    pub(crate) fn new(layout: &'a Layout) -> Self {
        Self { layout, tensors: layout.tensors().iter().map(|_| Mutex::default()).collect() }
    }

    /// Adds a piece whose first value has this index in the gradient. Pieces of one tensor come in order.
    ///
    /// # Panics
    /// When they do not: their sum would have other bits.
    pub(crate) fn add(&self, mut first: usize, mut values: &[f32]) {
        let tensors = self.layout.tensors();
        let mut tensor = tensors.partition_point(|tensor| tensor.range().end <= first);
        while !values.is_empty() {
            let range = tensors[tensor].range();
            let (own, later) = values.split_at(values.len().min(range.end - first));
            let mut squares = lock(&self.tensors[tensor]);
            assert_eq!(squares.count, first - range.start, "pieces of a tensor come in order");
            squares.add(own);
            (first, values, tensor) = (first + own.len(), later, tensor + 1);
        }
    }

    /// The sum of each tensor.
    pub(crate) fn sums(&self) -> Vec<f64> {
        self.tensors.iter().map(|squares| lock(squares).sum()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::update::sum_of_squares;
    use crate::path::{Kernels, Path};

    #[test]
    fn pieces_of_any_length_have_the_bits_of_the_whole() {
        let kernels = Kernels::new(Path::detect()).unwrap();
        for length in [0, 1, 7, 8, 9, 1000, 1003] {
            let mut values: Vec<f32> = (0..length).map(|place| (place as f32 * 0.37).sin() * 1e3).collect();
            if let Some(odd) = values.get_mut(3) {
                *odd = f32::INFINITY;
            }
            for step in [1, 3, 8, 13, 999] {
                let mut squares = Squares::default();
                values.chunks(step).for_each(|piece| squares.add(piece));
                assert_eq!(
                    squares.sum().to_bits(),
                    sum_of_squares(kernels, &values).to_bits(),
                    "{length} by {step}"
                );
            }
        }
    }
}
