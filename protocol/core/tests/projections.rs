//! How often 64 projections mistake a wrong leaf for an honest one and the other way round: the figures of
//! spec/tolerance.md, *Soundness*.

use muster_core::limits::PROJECTIONS;
use muster_core::sketch::probe::projected;
use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};

const AUDITS: u32 = 40_000;
/// Coefficients of the group, and the norm of its integers.
const GROUP: usize = 100_000_000;
const NORM: i64 = 45 * 1000;
/// Coefficients of a leaf that differ, and the root of that: every projection of them would be this, were it exact.
const FLIPS: u32 = 2025;
const ROOT: i64 = 45;

/// Sums of so many random signs.
fn signs(random: &mut ChaCha8Rng, count: u32) -> i64 {
    let rest = random.next_u64() >> (64 - count % 64);
    let words = (0..count / 64).map(|_| random.next_u64());
    let negative: u32 = words.chain([rest]).map(u64::count_ones).sum();
    i64::from(count) - 2 * i64::from(negative)
}

/// Shares of audits in which a deviation looks less than 1/2 and than 2/3, and more than 3/2 and than 2 times what it is;
/// each coefficient that differs does so by `step`.
fn mistaken(step: i64) -> [f64; 4] {
    let said = |own: &[i64], apart: &[i64]| -> Vec<i64> {
        own.iter().zip(apart).map(|(own, apart)| own + step * apart).collect()
    };
    let exact = vec![NORM; PROJECTIONS];
    let right = projected(GROUP, &exact, &said(&exact, &[ROOT; PROJECTIONS]));
    let mut random = ChaCha8Rng::from_seed([5; 32]);
    let mut found = [0u32; 4];
    for _ in 0..AUDITS {
        let own: Vec<i64> = (0..PROJECTIONS).map(|_| NORM / ROOT * signs(&mut random, FLIPS)).collect();
        let apart: Vec<i64> = (0..PROJECTIONS).map(|_| signs(&mut random, FLIPS)).collect();
        let ratio = projected(GROUP, &own, &said(&own, &apart)) / right;
        let cases = [ratio < 0.5, ratio < 2.0 / 3.0, ratio > 1.5, ratio > 2.0];
        found.iter_mut().zip(cases).for_each(|(found, case)| *found += u32::from(case));
    }
    found.map(|found| f64::from(found) / f64::from(AUDITS))
}

#[test]
fn a_deviation_of_many_grid_steps_is_told_by_its_root() {
    let [half, less, more, double] = mistaken(100_000);
    assert!(half < 1e-4 && double < 1e-4, "{half} {double}: 5·10⁻⁸");
    assert!((3e-4..1.5e-3).contains(&less) && (3e-4..1.5e-3).contains(&more), "{less} {more}: 7·10⁻⁴");
}

#[test]
fn a_deviation_of_flips_is_told_by_its_square() {
    let [half, less, more, double] = mistaken(1);
    assert!((2e-4..1.5e-3).contains(&half), "{half}: 6·10⁻⁴");
    assert!((1.8e-2..3.4e-2).contains(&less), "{less}: 2.6 %");
    assert!((1.0e-2..2.3e-2).contains(&more), "{more}: 1.6 %");
    assert!(double < 6e-4, "{double}: 10⁻⁴");
}
