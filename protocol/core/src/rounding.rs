//! Values of a result as multiples of one step: few bits in place of 32.

mod values;

use crate::error::Reject;
use crate::grid::{Dither, power_of_two, quantise};
use crate::ids::{Block, Digest};
use crate::layout::Layout;
use crate::limits::GRID_LIMIT;
use crate::packing::{pack, unpack_first};

pub use values::BlockValues;

/// Values that are rounded at a time.
const PIECE: usize = 1024;

/// The multiples that the values of a block are: q·2^k grid units with |q| ≤ 2²² (AGG-23).
#[derive(Clone, Copy, Debug)]
pub struct ResultGrid {
    exponent: i32,
}

impl ResultGrid {
    /// Of a block in the layout of a run ([`Layout::of_run`]).
    pub fn of(layout: &Layout, block: Block) -> Self {
        Self::by(layout.result_exponent(block))
    }

    /// Of steps of 2^`exponent`.
    pub fn by(exponent: u8) -> Self {
        Self { exponent: exponent.into() }
    }

    /// 2^k, in grid units.
    pub fn step(self) -> f64 {
        power_of_two(self.exponent)
    }

    /// AGG-23: rounds each value to ⌊v·2^−k + u⌋·2^k, u its dither by R_t = `freeze` and the block's number.
    pub fn round(self, values: &mut [f32], freeze: &Digest, block: Block) {
        let (step, inverse) = (self.step(), power_of_two(-self.exponent));
        let mut dither = Dither::of_block(freeze, block);
        let mut words = [0; PIECE];
        for piece in values.chunks_mut(PIECE) {
            dither.fill(&mut words);
            for (value, word) in piece.iter_mut().zip(&words) {
                // Exact: 23 bits, and a small exponent.
                *value = (f64::from(quantise(*value, inverse, *word)) * step) as f32;
            }
        }
    }

    /// The bytes of a block's values (AGG-24); `None` where one of them is no such multiple.
    pub fn pack(self, values: &[f32]) -> Option<Vec<u8>> {
        let inverse = power_of_two(-self.exponent);
        let multiples: Vec<i32> = values.iter().map(|value| (f64::from(*value) * inverse) as i32).collect();
        let good = |(value, q): (&f32, &i32)| {
            // By the bits: −0 is another value in a digest.
            q.unsigned_abs() <= GRID_LIMIT.unsigned_abs() && self.value(*q).to_bits() == value.to_bits()
        };
        values.iter().zip(&multiples).all(good).then(|| pack(&multiples))
    }

    /// The `count` values that bytes begin with, and what follows them (AGG-24).
    ///
    /// # Errors
    /// [`Reject`] when the bytes do not begin with the one encoding of so many values.
    pub fn unpack(self, bytes: &[u8], count: usize) -> Result<(Vec<f32>, &[u8]), Reject> {
        let mut multiples = Vec::new();
        let rest = unpack_first(bytes, count, &mut multiples)?;
        if multiples.iter().any(|q| q.unsigned_abs() > GRID_LIMIT.unsigned_abs()) {
            return Err(Reject::Rule("a result is within what saturates the grid"));
        }
        Ok((multiples.into_iter().map(|q| self.value(q)).collect(), rest))
    }

    /// Exact, or infinite: 23 bits times a power of two.
    fn value(self, q: i32) -> f32 {
        q as f32 * self.step() as f32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: Block = Block(3);

    fn rounded(exponent: i32, values: &[f32], freeze: u8, block: Block) -> Vec<f32> {
        let mut values = values.to_vec();
        ResultGrid { exponent }.round(&mut values, &Digest([freeze; 32]), block);
        values
    }

    #[test]
    fn agg_23_values_are_rounded_to_a_neighbour_and_fairly() {
        let exact: Vec<f32> = (0..20_000u16).map(|i| (f32::from(i) - 7000.0) * 0.37).collect();
        let got = rounded(4, &exact, 7, BLOCK);
        let step = 16.0;
        let away = |(value, exact): (&f32, &f32)| f64::from(*value) - f64::from(*exact);
        assert!(got.iter().all(|value| value % step == 0.0));
        assert!(got.iter().zip(&exact).map(away).all(|away| away.abs() < f64::from(step)));
        let mean = got.iter().zip(&exact).map(away).sum::<f64>() / exact.len() as f64;
        // The mean of so many errors of 0.4 steps.
        assert!(mean.abs() < 0.2, "{mean}");
        assert!(got == rounded(4, &exact, 7, BLOCK) && got != rounded(4, &exact, 8, BLOCK));
        assert!(got != rounded(4, &exact, 7, Block(4)), "each block has words of its own");
    }

    #[test]
    fn agg_23_what_is_on_the_grid_stays_and_what_is_beyond_it_saturates() {
        let most = (1 << 22) as f32;
        let values = [-3.0, 0.0, 255.0, most, -most];
        assert_eq!(rounded(0, &values, 1, BLOCK), values);
        let beyond = rounded(2, &[1e30, f32::MIN, f32::NAN, f32::INFINITY, -0.0], 1, BLOCK);
        let expected = [4.0 * most, -4.0 * most, 0.0, 0.0, 0.0];
        assert_eq!(beyond.iter().map(|v| v.to_bits()).collect::<Vec<_>>(), expected.map(f32::to_bits));
    }

    #[test]
    fn agg_24_values_have_one_encoding() {
        let grid = ResultGrid { exponent: 2 };
        let values = rounded(2, &[5.0, -7.5, 0.3, 1e9, -1e9, 16.0], 5, BLOCK);
        let bytes = grid.pack(&values).unwrap();
        let after = [&bytes[..], &[9, 9]].concat();
        assert_eq!(grid.unpack(&after, values.len()).unwrap(), (values.clone(), &[9, 9][..]));
        assert!(grid.unpack(&bytes, values.len() + 1).is_err());
        for odd in [1.0, -0.0, f32::NAN, f32::INFINITY, 1e30, -1e30, 4.0 * (1 << 22) as f32 + 4.0] {
            assert!(grid.pack(&[odd]).is_none(), "{odd}");
        }
        let beyond = pack(&[GRID_LIMIT + 1]);
        assert!(grid.unpack(&beyond, 1).is_err());
    }
}
