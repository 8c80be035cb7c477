//! The integer grid: real gradients become integers whose sums are exact and free of order.

use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};

use crate::hash::{Domain, Hasher};
use crate::ids::{Block, Digest, Leaf};
use crate::limits::GRID_LIMIT;

/// Smallest grid exponent (GRID-4).
pub const EXPONENT_MIN: i16 = -120;
/// Largest grid exponent.
pub const EXPONENT_MAX: i16 = 100;
/// Fixed-point one of a loss, in nats per token.
pub const LOSS_ONE: i64 = 1 << 24;
/// Loss of a leaf whose mean is not finite.
pub const LOSS_NOT_FINITE: i64 = 1 << 40;

/// Uniform 24-bit numbers, one a coefficient, in the order of the flat vector.
///
/// GRID-1: the dither word of coefficient `c` is word `c` of the ChaCha8 stream keyed by `H("dither", round seed,
/// leaf)`; its upper 24 bits are used.
pub struct Dither(ChaCha8Rng);

impl Dither {
    /// The stream of one leaf, at coefficient 0.
    pub fn new(round_seed: &Digest, leaf: Leaf) -> Self {
        Self(ChaCha8Rng::from_seed(Self::key(round_seed, leaf).0))
    }

    /// AGG-23: the stream of one block of a result, at its first coefficient: keyed by `H("rounding", R_t, block)`.
    pub fn of_block(freeze: &Digest, block: Block) -> Self {
        let key = Hasher::new(Domain::ROUNDING).part(&freeze.0).value(&block).finish();
        Self(ChaCha8Rng::from_seed(key.0))
    }

    /// Key of one leaf's stream.
    pub fn key(round_seed: &Digest, leaf: Leaf) -> Digest {
        Hasher::new(Domain::DITHER).part(&round_seed.0).value(&leaf).finish()
    }

    /// Fills 32-bit words; the dither of a coefficient is its word shifted right by 8.
    pub fn fill(&mut self, words: &mut [u32]) {
        for word in words {
            *word = self.0.next_u32();
        }
    }

    /// Moves to a coefficient.
    pub fn seek(&mut self, coefficient: u64) {
        self.0.set_word_pos(u128::from(coefficient));
    }
}

/// `floor(g·2^−e + u/2²⁴)`, saturated at ±2²²; 0 for a value that is not finite.
///
/// GRID-2: computed in f64, clamped to ±2²²; 0 where the value is not finite. The product is exact, the sum is
/// rounded once to nearest even, as IEEE 754 defines. No branch and no call, so that loops over it become vector code
/// on any processor.
#[inline(always)]
pub fn quantise(gradient: f32, inverse_step: f64, dither_word: u32) -> i32 {
    /// 1.5·2⁵²: adding it rounds to an integer, which then stands in the low bits.
    const ROUND: f64 = 6_755_399_441_055_744.0;
    const LIMIT: f64 = GRID_LIMIT as f64;
    // Also NaN, which fails every comparison: one broken coefficient must not spoil the sum.
    let finite = if gradient.abs() < f32::INFINITY { gradient } else { 0.0 };
    let u = f64::from((dither_word >> 8) as i32) * (1.0 / 16_777_216.0);
    // A power of two times an f32 is exact in f64: the sum rounds once, and so alike everywhere.
    let sum = f64::from(finite) * inverse_step + u;
    let below = if sum < LIMIT { sum } else { LIMIT };
    let limited = if below > -LIMIT { below } else { -LIMIT };
    let rounded = limited + ROUND;
    let nearest = rounded.to_bits() as i32;
    if rounded - ROUND > limited { nearest - 1 } else { nearest }
}

/// 2^e as an exact f64.
///
/// # Panics
/// Never for exponents within ±1022.
pub fn power_of_two(exponent: i32) -> f64 {
    let biased = (1023 + exponent.clamp(-1022, 1023)) as u64;
    f64::from_bits(biased << 52)
}

/// The grid exponent of a tensor whose aggregate has this rms: `floor(log₂(rms)) − grid_bits`, clamped.
///
/// GRID-4: E − 1023 − `grid_bits`, clamped to −120 ..= 100, E the 11 exponent bits of the f64; where the rms is zero,
/// subnormal, negative or not finite it is undefined: `fallback`.
pub fn exponent_of(rms: f64, grid_bits: u8, fallback: i16) -> i16 {
    // A tensor that did not move tells nothing of its scale: the exponent stays.
    if !rms.is_normal() || rms < 0.0 {
        return fallback;
    }
    let log = ((rms.to_bits() >> 52) & 0x7ff) as i32 - 1023;
    (log - i32::from(grid_bits)).clamp(i32::from(EXPONENT_MIN), i32::from(EXPONENT_MAX)) as i16
}

/// One step, at most, from the last exponent towards the wanted one.
///
/// GRID-5: after each round a tensor's exponent moves by at most 1.
pub fn step_exponent(last: i16, wanted: i16) -> i16 {
    last + (wanted - last).clamp(-1, 1)
}

/// A mean loss in nats as fixed point, to nearest; [`LOSS_NOT_FINITE`] where it is not finite or beyond it.
///
/// GRID-6: the mean times 2²⁴, in f64, rounded to nearest, ties to even; 2⁴⁰ where that is not finite or reaches 2⁴⁰.
pub fn fixed_loss(mean: f64) -> i64 {
    let scaled = mean * LOSS_ONE as f64;
    if scaled.is_finite() && scaled.abs() < LOSS_NOT_FINITE as f64 {
        scaled.round_ties_even() as i64
    } else {
        LOSS_NOT_FINITE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantise_edges() {
        let one = power_of_two(0);
        assert_eq!(quantise(0.0, one, 0), 0);
        assert_eq!(quantise(-0.0, one, u32::MAX), 0);
        assert_eq!(quantise(0.5, one, 0x7fff_ffff), 0);
        assert_eq!(quantise(0.5, one, 0x8000_0000), 1);
        assert_eq!(quantise(-0.25, one, 0), -1);
        assert_eq!(quantise(f32::NAN, one, 9), 0);
        assert_eq!(quantise(f32::INFINITY, one, 9), 0);
        assert_eq!(quantise(f32::MAX, one, 0), GRID_LIMIT);
        assert_eq!(quantise(f32::MIN, one, 0), -GRID_LIMIT);
        assert_eq!(quantise(f32::from_bits(1), power_of_two(149), 0), 1);
    }

    #[test]
    fn grid_4_and_grid_5_exponents_follow_the_rms_and_move_by_one() {
        assert_eq!(exponent_of(1.0, 8, 0), -8);
        assert_eq!(exponent_of(0.0, 8, -3), -3);
        assert_eq!(exponent_of(f64::NAN, 8, -3), -3);
        // GRID-5
        assert_eq!(step_exponent(-8, -20), -9);
        assert_eq!(step_exponent(-8, -8), -8);
        assert_eq!(step_exponent(-8, 4), -7);
    }

    #[test]
    fn dither_is_positional() {
        let seed = Digest([3; 32]);
        let mut all = [0; 100];
        Dither::new(&seed, Leaf(5)).fill(&mut all);
        let mut tail = [0; 37];
        let mut stream = Dither::new(&seed, Leaf(5));
        stream.seek(63);
        stream.fill(&mut tail);
        assert_eq!(tail, all[63..]);
    }
}
