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

/// The projections of each group, one after the other, of what lies in the piece `q` of a vector that begins at `offset`.
/// Those of all pieces add up to those of the vector.
pub fn projections(seed: &Digest, groups: &[Range<usize>], (offset, q): (usize, &[i32])) -> Vec<i64> {
    let mut stream = ChaCha8Rng::from_seed(seed.0);
    let mut all = Vec::with_capacity(groups.len() * PROJECTIONS);
    for group in groups {
        let (start, end) = (group.start.max(offset), group.end.min(offset + q.len()));
        stream.set_word_pos(2 * start as u128);
        let (mut words, mut sums) = ([0; STRETCH], [0; PROJECTIONS]);
        for stretch in q.get(start - offset..end.saturating_sub(offset)).unwrap_or_default().chunks(STRETCH) {
            let words = &mut words[..stretch.len()];
            words.iter_mut().for_each(|word| *word = stream.next_u64());
            pulp::Arch::new().dispatch(|| add(words, stretch, &mut sums));
        }
        all.extend(sums);
    }
    all
}

#[inline(always)]
fn add(words: &[u64], stretch: &[i32], sums: &mut [i64; PROJECTIONS]) {
    for (word, q) in words.iter().zip(stretch) {
        let q = i64::from(*q);
        for (bit, sum) in sums.iter_mut().enumerate() {
            let negative = -((word >> bit & 1) as i64);
            *sum = sum.wrapping_add((q ^ negative).wrapping_sub(negative));
        }
    }
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
            seed in any::<[u8; 32]>(), q in prop::collection::vec(any::<i32>(), 2..1500), cut in 0usize..1500,
            piece in 0usize..1500,
        ) {
            let (seed, cut) = (Digest(seed), cut % q.len());
            let said = projections(&seed, &[0..cut, cut..q.len()], (0, &q));
            prop_assert_eq!(&said[..PROJECTIONS], naive(&seed, 0..cut, &q));
            prop_assert_eq!(&said[PROJECTIONS..], naive(&seed, cut..q.len(), &q));
            let at = piece % q.len();
            let groups = [0..cut, cut..q.len()];
            let pieces = [(0, &q[..at]), (at, &q[at..])].map(|piece| projections(&seed, &groups, piece));
            let sum: Vec<i64> = pieces[0].iter().zip(&pieces[1]).map(|(a, b)| a.wrapping_add(*b)).collect();
            prop_assert_eq!(sum, said);
        }
    }

    #[test]
    fn tell_the_norm() {
        let q: Vec<i32> = (0..20_000).map(|c| (c * 7919) % 2001 - 1000).collect();
        let norm: f64 = q.iter().map(|q| f64::from(*q).powi(2)).sum();
        let all = Range { start: 0, end: q.len() };
        for byte in 0..20 {
            let said = projections(&Digest([byte; 32]), std::slice::from_ref(&all), (0, &q));
            let told = said.iter().map(|p| (*p as f64).powi(2)).sum::<f64>() / PROJECTIONS as f64;
            assert!((0.4..1.8).contains(&(told / norm)), "{told} of {norm}");
        }
    }
}
