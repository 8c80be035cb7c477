//! Kernels: each is written once, as a generic body, and compiled once per [`Path`](crate::path::Path).
//!
//! Bits are defined (ARITH-1) because nothing is left to the compiler: IEEE 754 binary32 and binary64 operations,
//! rounded to nearest even, subnormals kept, in the written order. Rust neither contracts nor reassociates, so that
//! vector and scalar code of one body agree. A fused multiply-add occurs only where [`Fma::fma`] is written.
//!
//! Sums over a row have one tree (ARITH-3): element `i` goes to lane `i mod 16`, each lane adds in order of `i` from
//! +0, and the lanes are added in pairs (0+8, 1+9, …), then (0+4, …), (0+2, …), (0+1).

pub(crate) mod albert;
#[cfg(test)]
mod definition;
pub(crate) mod dither;
pub(crate) mod heads;
pub(crate) mod lamb;
mod line;
pub(crate) mod local;
pub(crate) mod matrix;
pub(crate) mod mixture;
pub(crate) mod panels;
pub(crate) mod pass;
pub(crate) mod rows;
pub(crate) mod strided;
mod strips;
pub(crate) mod tile;
pub(crate) mod update;
mod vector;

pub(crate) use strips::BUFFER;

/// A way to compute `a·b + c` with one rounding.
pub(crate) trait Fma: Copy {
    fn fma(a: f32, b: f32, c: f32) -> f32;
}

/// The processor's own instruction; only inside functions compiled for a target that has it.
#[derive(Clone, Copy)]
pub(crate) struct Hardware;

impl Fma for Hardware {
    #[inline(always)]
    fn fma(a: f32, b: f32, c: f32) -> f32 {
        a.mul_add(b, c)
    }
}

/// In f64, where the product is exact (ARITH-1: `a·b + c` rounded once). The sum is rounded to odd, which the rounding to
/// f32 then cannot tell from the exact sum (Boldo and Melquiond, "Emulation of a FMA and correctly rounded sums", 2008).
#[derive(Clone, Copy)]
#[cfg_attr(target_arch = "aarch64", allow(dead_code))]
pub(crate) struct Software;

impl Fma for Software {
    #[inline(always)]
    fn fma(a: f32, b: f32, c: f32) -> f32 {
        let (product, c) = (f64::from(a) * f64::from(b), f64::from(c));
        let sum = product + c;
        let of_c = sum - product;
        let error = (product - (sum - of_c)) + (c - of_c);
        // A sum that is not finite has an error that is NaN, and counts as exact.
        let inexact = u64::from(error.abs() > 0.0);
        let beyond = ((error.to_bits() ^ sum.to_bits()) >> 63) & inexact;
        // To odd: one step back where the sum is beyond the exact one, then the last bit says that something was cut off.
        f64::from_bits(sum.to_bits().wrapping_sub(beyond) | inexact) as f32
    }
}

/// What [`crate::path::Path::Portable`] uses.
#[cfg(target_arch = "aarch64")]
pub(crate) use self::Hardware as Anywhere;
#[cfg(not(target_arch = "aarch64"))]
pub(crate) use self::Software as Anywhere;

/// Compiles function bodies for every path. Inside a body, `F` is the [`Fma`] of the path.
macro_rules! kernels {
    ($($(#[$meta:meta])* $vis:vis fn $name:ident($($arg:ident: $type:ty),* $(,)?) $(-> $ret:ty)? $body:block)*) => {$(
        $(#[$meta])*
        $vis fn $name(kernels: $crate::path::Kernels, $($arg: $type),*) $(-> $ret)? {
            // Inlined into each path: compiled once by itself, it would have the instructions that all processors share.
            #[inline(always)]
            fn body<F: $crate::kernel::Fma>($($arg: $type),*) $(-> $ret)? $body

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
            fn avx512($($arg: $type),*) $(-> $ret)? {
                body::<$crate::kernel::Hardware>($($arg),*)
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            fn avx2($($arg: $type),*) $(-> $ret)? {
                body::<$crate::kernel::Hardware>($($arg),*)
            }
            match kernels.path() {
                // SAFETY: a `Kernels` exists only for a path that this processor has.
                #[cfg(target_arch = "x86_64")]
                $crate::path::Path::Avx512 => unsafe { avx512($($arg),*) },
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                $crate::path::Path::Avx2 => unsafe { avx2($($arg),*) },
                _ => body::<$crate::kernel::Anywhere>($($arg),*),
            }
        }
    )*};
}
pub(crate) use kernels;

/// Lanes of a sum.
pub(crate) const LANES: usize = 16;

/// Adds the lanes in pairs (ARITH-3).
#[inline(always)]
pub(crate) fn tree(mut lanes: [f32; LANES]) -> f32 {
    let mut half = LANES / 2;
    while half > 0 {
        for lane in 0..half {
            lanes[lane] += lanes[lane + half];
        }
        half /= 2;
    }
    lanes[0]
}

/// `Σ a[i]·b[i]`, fused, by lanes (ARITH-3).
#[inline(always)]
pub(crate) fn dot<F: Fma>(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0.0; LANES];
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    for (a, b) in a.iter().zip(b) {
        for lane in 0..LANES {
            lanes[lane] = F::fma(a[lane], b[lane], lanes[lane]);
        }
    }
    for (lane, (a, b)) in a_rest.iter().zip(b_rest).enumerate() {
        lanes[lane] = F::fma(*a, *b, lanes[lane]);
    }
    tree(lanes)
}

/// e^x (ARITH-23): `x = n·ln 2 + r`, then Cephes' polynomial of degree 7 in r. 0 below −87, e^88 above 88, NaN of NaN.
#[inline(always)]
pub(crate) fn exp<F: Fma>(x: f32) -> f32 {
    /// 1.5·2²³: adding it rounds to an integer, which then stands in the low bits.
    const ROUND: f32 = 12_582_912.0;
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    const POLYNOMIAL: [f32; 6] =
        [1.987_569_1e-4, 1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5];
    // Beyond 88.4, 2ⁿ would have the bits of an infinity. A comparison, not `min`: NaN goes through.
    let bounded = if x > 88.0 { 88.0 } else { x };
    let shifted = F::fma(bounded, std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = F::fma(n, -LN_2_LOW, F::fma(n, -LN_2_HIGH, bounded));
    let mut p = POLYNOMIAL[0];
    for coefficient in &POLYNOMIAL[1..] {
        p = F::fma(p, r, *coefficient);
    }
    let mantissa = F::fma(p, r * r, r) + 1.0;
    let scale = f32::from_bits((shifted.to_bits() << 23).wrapping_add(0x3f80_0000));
    // Below −87.7, the shifted bits of 2ⁿ would no longer be those of a normal number.
    if x < -87.0 { 0.0 } else { mantissa * scale }
}

#[cfg(test)]
mod tests {
    use muster_core::ieee::environment_is_ieee;

    use super::*;

    #[test]
    fn exp_is_close_and_the_same_for_both_fma() {
        let edges =
            [0.0, -0.0, 1e-40, -1e-40, -86.9, -87.1, -200.0, 88.0, 200.0, f32::NEG_INFINITY, f32::INFINITY];
        let many = (0..200_000).map(|step| step as f32 * 0.000_9 - 88.0);
        for x in many.chain(edges) {
            let y = exp::<Software>(x);
            assert_eq!(y.to_bits(), exp::<Hardware>(x).to_bits(), "e^{x}");
            let expected = if x < -87.0 { 0.0 } else { f64::from(x.min(88.0)).exp() };
            assert!(
                (f64::from(y) - expected).abs() <= (-23.4f64).exp2() * expected,
                "e^{x} = {y}, not {expected}"
            );
        }
        assert!(exp::<Software>(f32::NAN).is_nan());
    }

    #[test]
    fn software_rounds_once() {
        let mut word = 9u64;
        let mut next = || {
            word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (word >> 32) as u32
        };
        let near = |bits: u32, exponent: u32| f32::from_bits((bits & 0x807f_ffff) | exponent << 23);
        for step in 0..2_000_000u32 {
            let [a, b, c] = [next(), next(), next()];
            let [a, b, c] = match step % 4 {
                0 => [a, b, c].map(f32::from_bits),
                // Sums that cancel, that end half-way, and that are subnormal.
                1 => [near(a, 127), near(b, 127), near(c, 125 + c % 5)],
                2 => [near(a & !0xfff, 127), near(b & !0xfff, 100), near(c & !0xff, 100 + a % 64)],
                _ => [near(a, 40 + a % 30), near(b, 40 + b % 30), near(c, c % 4)],
            };
            let (found, expected) = (Software::fma(a, b, c), libm::fmaf(a, b, c));
            assert!(
                found.to_bits() == expected.to_bits() || (found.is_nan() && expected.is_nan()),
                "{a:e}·{b:e} + {c:e} = {found:e}, not {expected:e}"
            );
        }
    }

    /// What a thread finds in another mode, such as a library of the process may set.
    #[cfg(target_arch = "x86_64")]
    #[allow(unsafe_code)]
    fn in_mode<T>(mode: u32, find: impl FnOnce() -> T) -> std::thread::Result<T> {
        // SAFETY: the default mode is restored before the function returns, whether or not `find` panics.
        unsafe {
            std::arch::asm!("ldmxcsr [{}]", in(reg) &mode);
            let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(find));
            std::arch::asm!("ldmxcsr [{}]", in(reg) &DEFAULT);
            found
        }
    }

    #[cfg(target_arch = "x86_64")]
    const DEFAULT: u32 = 0x1f80;

    /// Denormals are zero, flush to zero, and the three other ways to round.
    #[cfg(target_arch = "x86_64")]
    const OTHERS: [u32; 5] = [1 << 6, 1 << 15, 1 << 13, 2 << 13, 3 << 13];

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn other_modes_are_noticed() {
        assert!(in_mode(DEFAULT, environment_is_ieee).unwrap());
        for bits in OTHERS {
            assert!(!in_mode(DEFAULT | bits, environment_is_ieee).unwrap(), "{bits:#x}");
        }
    }

    /// AGG-21: whoever reduces a part (AGG-9) or judges one (AGG-20) checks the mode, and core itself computes both.
    #[cfg(target_arch = "x86_64")]
    #[test]
    fn agg_21_no_part_is_reduced_or_judged_in_another_mode() {
        use muster_core::aggregate::{Input, block};
        use muster_core::codec::Real;
        use muster_core::manifest::{Aggregation, Rule};
        use muster_core::reduction::OwnBlock;

        let settings = Aggregation {
            rule: Rule::CenteredClip,
            radius: Real::new(1.25).unwrap(),
            iterations: 5,
            cap_ppm: 1_000_000,
            assumed_ppm: 0,
            mixing: false,
            replicas: 1,
            result_bits: 4,
        };
        let inputs = [[3, -1], [5, 4], [2, 2]];
        let reduce = || {
            let inputs: Vec<_> = inputs.iter().map(|q| Input { q, m: 2, weight: 1 << 16 }).collect();
            block(&settings, &inputs)
        };
        let own = OwnBlock { q: &[3, -1], m: 2, scale: 1.0, step: 1.0 };
        let judge = || own.objects(&[1.5, -0.5]);
        assert!(in_mode(DEFAULT, reduce).unwrap().is_some() && !in_mode(DEFAULT, judge).unwrap());
        for bits in OTHERS {
            assert!(in_mode(DEFAULT | bits, reduce).is_err(), "{bits:#x}");
            assert!(in_mode(DEFAULT | bits, judge).is_err(), "{bits:#x}");
        }
    }
}
