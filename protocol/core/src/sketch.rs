//! Sketches of integer vectors: linear, so that those of leaves add up to that of their sum. Fingerprints tell whether
//! two vectors are equal, [`projection`]s how far they are apart; [`probe`] is what an audit makes of them.
//!
//! A fingerprint is
//! `F_r(q) = Σ q[c]·r^c mod p` over the Goldilocks field, p = 2⁶⁴ − 2³² + 1, a negative coefficient being p − |q|.
//! Two different vectors of length d agree at a random point with probability at most d/p, at both points with
//! (d/p)²: below 2⁻⁶² for d = 2³³, and 2⁻⁷⁵ for d = 10⁸ (Schwartz–Zippel).

use std::fmt;

pub mod probe;
pub mod projection;

use crate::codec::List;
use crate::hash::{Domain, Hasher, below, hash_of};
use crate::ids::Digest;
use crate::{limits, wire};

pub use probe::Probe;

wire! {
    /// What is said of an integer vector in an audit.
    pub enum Sketch {
        /// In profile exact: `F_r` at both points.
        Fingerprint(Fingerprint),
        /// In the other profiles: [`limits::PROJECTIONS`] of each tensor group, group by group.
        Projections(List<i64, { limits::GROUPS * limits::PROJECTIONS }>),
    }
}

wire! {
    /// What is said of one leaf.
    pub struct TableRow {
        /// Of its integers.
        pub sketch: Sketch,
        /// Fixed-point loss.
        pub loss: i64,
    }
}

impl Sketch {
    fn projected(values: Vec<i64>) -> Self {
        Self::Projections(List::new(values).unwrap_or_default())
    }

    fn fingerprint(&self) -> Option<Fingerprint> {
        if let Self::Fingerprint(value) = self { Some(*value) } else { None }
    }

    fn projections(&self) -> &[i64] {
        if let Self::Projections(values) = self { values } else { &[] }
    }
}

impl fmt::Display for Sketch {
    /// For people: a fingerprint in full, of projections a digest.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fingerprint([first, second]) => write!(f, "{first:016x} {second:016x}"),
            Self::Projections(_) => {
                write!(f, "{} ({} projections)", hash_of(Domain::SKETCH, self), self.projections().len())
            }
        }
    }
}

/// The Goldilocks prime.
pub const PRIME: u64 = 0xffff_ffff_0000_0001;

/// Values at both points, each below [`PRIME`]. SKETCH-3: a stranger's may not be: compare it as it is, add it with
/// [`add`].
pub type Fingerprint = [u64; 2];

/// Coefficients between two reductions modulo p: the limbs of their powers fit a first-level cache, and as many
/// products of a limb with 32 bits fit 64 bits.
const STRIDE: usize = 512;
/// Bits of a limb.
const LIMB: u32 = 22;

/// The two points of a round (SKETCH-1).
///
/// With `h = H(SKETCH, R_t)` and `u_j` its bytes `8j .. 8j+8` as a little-endian number, point `j` is
/// `2 + ⌊u_j·(p − 2) / 2⁶⁴⌋`.
pub fn points(freeze: &Digest) -> [u64; 2] {
    let hash = Hasher::new(Domain::SKETCH).value(freeze).finish();
    let (words, _) = hash.0.as_chunks::<8>();
    // Not 0 and 1: there the fingerprint forgets which coefficient is which.
    let point = |j: usize| 2 + below(words.get(j).map_or(0, |word| u64::from_le_bytes(*word)), PRIME - 2);
    [point(0), point(1)]
}

/// The fingerprint of a whole vector (SKETCH-2).
pub fn fingerprint(points: [u64; 2], q: &[i32]) -> Fingerprint {
    let mut sketcher = Sketcher::new(points);
    sketcher.absorb(0, q);
    sketcher.finish()
}

/// The sum of two fingerprints: that of the sum of two vectors.
#[must_use]
pub fn add(a: Fingerprint, b: Fingerprint) -> Fingerprint {
    [0, 1].map(|j| reduce(u128::from(a[j]) + u128::from(b[j])))
}

/// The limbs of a stretch of powers, lowest first; each as wide as its products.
type Limbs = [[u64; STRIDE]; 3];

/// A fingerprint in the making, over pieces of a vector in any order.
#[derive(Clone)]
pub struct Sketcher {
    points: [u64; 2],
    /// r^0 … r^(STRIDE−1) at both points.
    powers: Box<[Limbs; 2]>,
    /// r^STRIDE.
    stride: [u64; 2],
    /// 2³¹·(r^0 + … + r^(STRIDE−1)).
    bias: [u64; 2],
    sum: Fingerprint,
}

impl Sketcher {
    /// The fingerprint of nothing.
    pub fn new(points: [u64; 2]) -> Self {
        let mut powers = Box::new([[[0; STRIDE]; 3]; 2]);
        let mut power = [1, 1];
        for place in 0..STRIDE {
            for (limbs, power) in powers.iter_mut().zip(power) {
                for (limb, bits) in limbs.iter_mut().zip([0, LIMB, 2 * LIMB]) {
                    limb[place] = (power >> bits) & ((1 << LIMB) - 1);
                }
            }
            power = product(power, points);
        }
        let bias = [0, 1].map(|j| bias(&powers[j], STRIDE));
        Self { points, powers, stride: power, bias, sum: [0, 0] }
    }

    /// Adds the coefficients `offset`, `offset + 1`, … of the vector. Each coefficient is absorbed once.
    ///
    /// Coefficients are made non-negative by 2³¹, so that every product is one of 32 bits, and what that added is taken
    /// away again.
    pub fn absorb(&mut self, offset: u64, q: &[i32]) {
        let mut shift = self.points.map(|point| power(point, offset));
        for stretch in q.chunks(STRIDE) {
            let sums = pulp::Arch::new().dispatch(|| biased(&self.powers, stretch));
            let sum = [0, 1].map(|j| {
                let bias =
                    if stretch.len() == STRIDE { self.bias[j] } else { bias(&self.powers[j], stretch.len()) };
                let sum = reduce(sums[j]);
                // Both are below p: the difference needs no wider number.
                if sum < bias { sum + (PRIME - bias) } else { sum - bias }
            });
            self.sum = add(self.sum, product(shift, sum));
            shift = product(shift, self.stride);
        }
    }

    /// The fingerprint of what was absorbed.
    pub fn finish(self) -> Fingerprint {
        self.sum
    }
}

/// `x` mod p. From 2⁶⁴ ≡ 2³² − 1 and 2⁹⁶ ≡ −1: `lo + 2⁶⁴·mid + 2⁹⁶·hi ≡ lo + (2³² − 1)·mid − hi`.
fn reduce(x: u128) -> u64 {
    let (low, mid, high) = (x as u64, (x >> 64) as u64 & 0xffff_ffff, (x >> 96) as u64);
    let (difference, borrow) = low.overflowing_sub(high);
    // 2⁶⁴ ≡ 2³² − 1; after a borrow the difference is at least 2⁶⁴ − 2³².
    let difference = if borrow { difference.wrapping_sub(0xffff_ffff) } else { difference };
    let (sum, carry) = difference.overflowing_add((mid << 32) - mid);
    let sum = if carry { sum.wrapping_add(0xffff_ffff) } else { sum };
    if sum >= PRIME { sum - PRIME } else { sum }
}

fn multiply(a: u64, b: u64) -> u64 {
    reduce(u128::from(a) * u128::from(b))
}

fn product(a: [u64; 2], b: [u64; 2]) -> [u64; 2] {
    [multiply(a[0], b[0]), multiply(a[1], b[1])]
}

fn power(base: u64, mut exponent: u64) -> u64 {
    let (mut square, mut result) = (base, 1);
    while exponent > 0 {
        if exponent & 1 == 1 {
            result = multiply(result, square);
        }
        square = multiply(square, square);
        exponent >>= 1;
    }
    result
}

/// Σ (q + 2³¹)·r^c over at most a stretch, at both points.
#[inline(always)]
fn biased([one, other]: &[Limbs; 2], stretch: &[i32]) -> [u128; 2] {
    let mut sums = [[0u64; 3]; 2];
    let one = one[0].iter().zip(&one[1]).zip(&one[2]);
    let other = other[0].iter().zip(&other[1]).zip(&other[2]);
    for ((q, ((a, b), c)), ((d, e), f)) in stretch.iter().zip(one).zip(other) {
        let q = u64::from((*q ^ i32::MIN) as u32);
        // So that the compiler sees a product of 32 bits.
        let times = |limb: &u64| q * (limb & u64::from(u32::MAX));
        for (sum, limb) in sums.as_flattened_mut().iter_mut().zip([a, b, c, d, e, f]) {
            *sum += times(limb);
        }
    }
    sums.map(joined)
}

/// 2³¹·(r^0 + … + r^(length−1)) mod p.
fn bias(powers: &Limbs, length: usize) -> u64 {
    let sums = powers.each_ref().map(|limb| limb[..length].iter().sum::<u64>() << 31);
    reduce(joined(sums))
}

/// The number with these limbs, each at most 64 bits.
fn joined([low, middle, high]: [u64; 3]) -> u128 {
    u128::from(low) + (u128::from(middle) << LIMB) + (u128::from(high) << (2 * LIMB))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn naive(points: [u64; 2], offset: u64, q: &[i32]) -> Fingerprint {
        let p = u128::from(PRIME);
        points.map(|r| {
            let step = |power: u128| power * u128::from(r) % p;
            let mut power = (0..offset).fold(1, |power, _| step(power));
            let mut sum = 0;
            for q in q {
                sum = (sum + i128::from(*q).rem_euclid(i128::from(PRIME)) as u128 * power) % p;
                power = step(power);
            }
            sum as u64
        })
    }

    #[test]
    fn reduction_at_its_edges() {
        let edges = [0, 1, 2, 0xffff_fffe, 0xffff_ffff, 1 << 32, PRIME - 1, PRIME, PRIME + 1, u64::MAX];
        for high in edges {
            for low in edges {
                let x = u128::from(high) << 64 | u128::from(low);
                assert_eq!(reduce(x), (x % u128::from(PRIME)) as u64, "{x:#x}");
            }
        }
        assert_eq!(add([u64::MAX; 2], [PRIME - 1, 1]), [u64::MAX - PRIME - 1, u64::MAX - PRIME + 1]);
    }

    #[test]
    fn sketch_3_a_stranger_s_value_is_compared_as_it_is_and_reduced_when_added() {
        let leaf = fingerprint([3, 5], &[2, 0, 1]);
        let padded = leaf.map(|value| value + PRIME);
        assert_ne!(padded, leaf, "the same number modulo p, and never a leaf's");
        assert_eq!(add(padded, [1, 1]), add(leaf, [1, 1]));
        assert!(fingerprint([PRIME - 1, 2], &[-1, -1, -1]).iter().all(|value| *value < PRIME));
    }

    #[test]
    fn extreme_coefficients() {
        for point in [2, PRIME / 2, PRIME / 2 + 1, PRIME - 1] {
            let points = [point, PRIME - 2];
            for q in [i32::MIN, i32::MAX, -1] {
                let q = vec![q; 2 * STRIDE + 3];
                assert_eq!(fingerprint(points, &q), naive(points, 0, &q));
            }
        }
    }

    #[test]
    fn points_are_in_range_and_known() {
        let at = |byte| points(&Digest([byte; 32]));
        for byte in 0..=255 {
            assert!(at(byte).iter().all(|point| (2..PRIME).contains(point)));
            assert_ne!(at(byte)[0], at(byte)[1]);
        }
        assert_eq!(at(7), [16_544_992_548_282_718_512, 14_065_718_242_972_338_580]);
        let known = [2_509_136_914_180_483_025, 5_034_723_340_884_467_622];
        assert_eq!(fingerprint(at(7), &[1, -2, 3, -4_000_000]), known);
    }

    #[test]
    fn a_moved_coefficient_shows() {
        let points = points(&Digest([1; 32]));
        assert_ne!(fingerprint(points, &[0, 5]), fingerprint(points, &[5, 0]));
        assert_eq!(fingerprint(points, &[5]), [5, 5]);
        assert_eq!(fingerprint(points, &[]), [0, 0]);
    }

    proptest! {
        #[test]
        fn equals_the_definition(
            points in [2..PRIME, 2..PRIME],
            offset in 0u64..3000,
            q in prop::collection::vec(any::<i32>(), 0..2500),
        ) {
            let mut sketcher = Sketcher::new(points);
            sketcher.absorb(offset, &q);
            prop_assert_eq!(sketcher.finish(), naive(points, offset, &q));
        }

        #[test]
        fn pieces_and_sums(
            freeze in any::<[u8; 32]>(), pairs in prop::collection::vec(any::<[i16; 2]>(), 1..3000), cut in 0usize..3000,
        ) {
            let points = points(&Digest(freeze));
            let [a, b]: [Vec<i32>; 2] = [0, 1].map(|j| pairs.iter().map(|pair| i32::from(pair[j])).collect());
            let sum: Vec<i32> = a.iter().zip(&b).map(|(a, b)| a + b).collect();
            prop_assert_eq!(add(fingerprint(points, &a), fingerprint(points, &b)), fingerprint(points, &sum));
            let cut = cut.min(sum.len());
            let mut sketcher = Sketcher::new(points);
            sketcher.absorb(cut as u64, &sum[cut..]);
            sketcher.absorb(0, &sum[..cut]);
            prop_assert_eq!(sketcher.finish(), fingerprint(points, &sum));
        }
    }
}
