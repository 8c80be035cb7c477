//! Projections of integer vectors on random signs: of a vector of length n, each has mean square ‖q‖², so that those of
//! a difference tell its norm.
//!
//! `P_i(q) = Σ σ_i(c)·q[c]` over the coefficients of one tensor group, i < 64, modulo 2⁶⁴ as a signed number. The sign
//! σ_i(c) is − where bit i of the word of coefficient c is 1; the word is the 64-bit little-endian number at byte 8c of
//! the ChaCha8 stream of the audit's seed. `Σ P_i(q)² / 64` is ‖q‖² within 18 % (one standard deviation), and below a
//! quarter of it with probability 10⁻¹⁰ (χ² with 64 degrees of freedom).

use std::ops::Range;

use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};

use crate::ids::Digest;
use crate::limits::PROJECTIONS;

/// Coefficients whose words are made at a time.
const STRETCH: usize = 512;
/// Projections that are summed at a time.
const LANES: usize = 16;
/// So many smaller ones than this add up to less than 2³¹. On the grid none is larger (GRID-4).
const SMALL: u32 = 1 << 22;

/// The projections of each group, one after the other, of what lies in the piece `q` of a vector that begins at
/// `offset`. Those of all pieces add up to those of the vector.
pub fn projections(seed: &Digest, groups: &[Range<usize>], offset: usize, q: &[i32]) -> Vec<i64> {
    let mut stream = ChaCha8Rng::from_seed(seed.0);
    let mut all = Vec::with_capacity(groups.len() * PROJECTIONS);
    for group in groups {
        let (start, end) = (group.start.max(offset), group.end.min(offset + q.len()));
        // By position, so that pieces can be projected apart and in any order.
        stream.set_word_pos(2 * start as u128);
        let (mut words, mut sums) = ([[0; 8]; STRETCH], [0; PROJECTIONS]);
        for stretch in q.get(start - offset..end.saturating_sub(offset)).unwrap_or_default().chunks(STRETCH) {
            let words = &mut words[..stretch.len()];
            stream.fill_bytes(words.as_flattened_mut());
            pulp::Arch::new().dispatch(Stretch { words, q: stretch, sums: &mut sums });
        }
        all.extend(sums);
    }
    all
}

/// Coefficients, their words, and the sums to which they are added.
struct Stretch<'a> {
    words: &'a [[u8; 8]],
    q: &'a [i32],
    sums: &'a mut [i64; PROJECTIONS],
}

impl pulp::NullaryFnOnce for Stretch<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let Self { words, q, sums } = self;
        let whole = q.iter().fold(0i64, |sum, q| sum + i64::from(*q));
        let largest = q.iter().fold(0, |largest: u32, q| largest.max(q.unsigned_abs()));
        // Sums of leaves, and lies, may be too large for the narrow lanes.
        let negative = if largest < SMALL { small(words, q) } else { large(words, q) };
        for (sum, negative) in sums.iter_mut().zip(negative) {
            *sum = sum.wrapping_add(whole - 2 * negative);
        }
    }
}

/// For each projection the sum of what it takes with −. Every sum of these coefficients fits a lane of 32 bits.
///
/// Sixteen lanes at a time, each bit moved to the sign and spread over its lane: compilers make vector code of this
/// shape, and none of a comparison of the bit.
#[inline(always)]
fn small(words: &[[u8; 8]], stretch: &[i32]) -> [i64; PROJECTIONS] {
    let mut sums = [[0i32; LANES]; PROJECTIONS / LANES];
    for (word, q) in words.iter().zip(stretch) {
        let mut word = u64::from_le_bytes(*word);
        for sums in &mut sums {
            let bits = word as u32;
            for (bit, sum) in sums.iter_mut().enumerate() {
                let spread = (bits << (31 - bit)).cast_signed() >> 31;
                *sum = sum.wrapping_add(q & spread);
            }
            word >>= LANES;
        }
    }
    let mut wide = [0; PROJECTIONS];
    wide.iter_mut().zip(sums.as_flattened()).for_each(|(wide, sum)| *wide = i64::from(*sum));
    wide
}

/// The same of any coefficients.
#[inline(always)]
fn large(words: &[[u8; 8]], stretch: &[i32]) -> [i64; PROJECTIONS] {
    let mut sums = [0i64; PROJECTIONS];
    for (word, q) in words.iter().zip(stretch) {
        let word = u64::from_le_bytes(*word);
        for (bit, sum) in sums.iter_mut().enumerate() {
            *sum += if word >> bit & 1 == 0 { 0 } else { i64::from(*q) };
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn naive(seed: &Digest, group: Range<usize>, q: &[i32]) -> Vec<i64> {
        let mut stream = ChaCha8Rng::from_seed(seed.0);
        let words: Vec<u64> = q.iter().map(|_| stream.next_u64()).collect();
        let sign = |place: usize, bit: usize| if words[place] >> bit & 1 == 1 { -1 } else { 1 };
        (0..PROJECTIONS).map(|bit| group.clone().map(|c| sign(c, bit) * i64::from(q[c])).sum()).collect()
    }

    proptest! {
        #[test]
        fn equal_the_definition(
            seed in any::<[u8; 32]>(), mut q in prop::collection::vec(any::<i32>(), 2..1500), cut in 0usize..1500,
            piece in 0usize..1500, shift in 0u32..20,
        ) {
            // From 10 on, every coefficient is one of the grid.
            q.iter_mut().for_each(|q| *q >>= shift);
            let (seed, cut) = (Digest(seed), cut % q.len());
            let said = projections(&seed, &[0..cut, cut..q.len()], 0, &q);
            prop_assert_eq!(&said[..PROJECTIONS], naive(&seed, 0..cut, &q));
            prop_assert_eq!(&said[PROJECTIONS..], naive(&seed, cut..q.len(), &q));
            let at = piece % q.len();
            let groups = [0..cut, cut..q.len()];
            let pieces = [(0, &q[..at]), (at, &q[at..])].map(|(offset, q)| projections(&seed, &groups, offset, q));
            let sum: Vec<i64> = pieces[0].iter().zip(&pieces[1]).map(|(a, b)| a.wrapping_add(*b)).collect();
            prop_assert_eq!(sum, said);
        }
    }

    #[test]
    fn extreme_coefficients() {
        let limit = SMALL.cast_signed();
        for value in [limit - 1, limit, 1 - limit, -limit, i32::MAX, i32::MIN] {
            let q = vec![value; 2 * STRETCH + 3];
            let all = Range { start: 0, end: q.len() };
            let said = projections(&Digest([9; 32]), std::slice::from_ref(&all), 0, &q);
            assert_eq!(said, naive(&Digest([9; 32]), all, &q), "{value}");
        }
    }

    #[test]
    fn tell_the_norm() {
        let q: Vec<i32> = (0..20_000).map(|c| (c * 7919) % 2001 - 1000).collect();
        let norm: f64 = q.iter().map(|q| f64::from(*q).powi(2)).sum();
        let all = Range { start: 0, end: q.len() };
        for byte in 0..20 {
            let said = projections(&Digest([byte; 32]), std::slice::from_ref(&all), 0, &q);
            let told = said.iter().map(|p| (*p as f64).powi(2)).sum::<f64>() / PROJECTIONS as f64;
            assert!((0.4..1.8).contains(&(told / norm)), "{told} of {norm}");
        }
    }
}
