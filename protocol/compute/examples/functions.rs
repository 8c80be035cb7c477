//! How far the elementary functions of ARITH-6 are from the true ones: the bounds of the table in `spec/arithmetic.md`.
//!
//!     cargo run --release -p muster-compute --example functions
//!
//! Those of f32 for every argument of the domain, beside the platform's f64; those of f64 for arguments that are drawn,
//! beside sums of two f64. A few minutes on two cores.
#![allow(clippy::print_stdout)]

use std::thread;

use muster_compute::measure;

/// Arguments of f64 that are drawn for each function.
const DRAWN: u64 = 20_000_000;
/// Arguments that are computed at once.
const PIECE: u32 = 1 << 16;

fn main() {
    let [ulp, relative] = over_all(88.0, exponential);
    println!("exp, f32, −87 ..= 88, all arguments: {ulp:.4} ulp, 2^{:.3} relative", relative.log2());
    let [value, slope] = over_all(12.0, gelu);
    println!(
        "GELU, −12 ..= 12, all arguments: {value:.3e} of max(|y|, 10⁻³); its derivative {slope:.3e} absolute"
    );
    let names = ["ln, f64, ulp", "exp, f64, ulp", "sin, f64, log₂ absolute", "cos, f64, log₂ absolute"];
    for (name, worst) in names.into_iter().zip(drawn()) {
        let shown = if name.contains("log₂") { worst.log2() } else { worst };
        println!("{name}, {DRAWN} arguments: {shown:.3}");
    }
}

/// The largest errors over all arguments of both signs up to a bound, on all cores.
fn over_all(bound: f32, of: fn(&[f32]) -> [f64; 2]) -> [f64; 2] {
    let pieces = bound.to_bits() / PIECE + 1;
    let threads = thread::available_parallelism().map_or(1, |count| count.get() as u32);
    let work = move |first: u32| {
        let mut worst = [0.0f64; 2];
        for piece in (first..pieces).step_by(threads as usize) {
            for sign in [0, 1 << 31] {
                let of_piece = |place: u32| f32::from_bits((piece * PIECE + place) | sign);
                let x: Vec<f32> = (0..PIECE).map(of_piece).filter(|x| x.abs() <= bound).collect();
                worst = larger(worst, of(&x));
            }
        }
        worst
    };
    let running: Vec<_> = (0..threads).map(|first| thread::spawn(move || work(first))).collect();
    let found = running.into_iter().map(|thread| thread.join().expect("a sweep does not panic"));
    found.fold([0.0; 2], larger)
}

fn larger(a: [f64; 2], b: [f64; 2]) -> [f64; 2] {
    [a[0].max(b[0]), a[1].max(b[1])]
}

/// Errors of e^x, in units of the last place and relative.
fn exponential(x: &[f32]) -> [f64; 2] {
    let mut worst = [0.0f64; 2];
    for (x, y) in x.iter().zip(measure::exponentials(x)).filter(|(x, _)| **x >= -87.0) {
        let expected = f64::from(*x).exp();
        let error = (f64::from(y) - expected).abs();
        let unit = (expected.log2().floor() - 23.0).exp2();
        worst[0] = f64::max(worst[0], error / unit);
        worst[1] = f64::max(worst[1], error / expected);
    }
    worst
}

/// Errors of GELU and of its derivative.
fn gelu(x: &[f32]) -> [f64; 2] {
    let root = (2.0 / std::f64::consts::PI).sqrt();
    let [values, slopes] = measure::gelu(x);
    let mut worst = [0.0f64; 2];
    for ((x, y), slope) in x.iter().zip(values).zip(slopes) {
        let x = f64::from(*x);
        let tanh = (root * (x + 0.044715 * x * x * x)).tanh();
        let inner = root * (1.0 + 3.0 * 0.044715 * x * x);
        let expected = 0.5 * x * (1.0 + tanh);
        let derivative = 0.5 * (1.0 + tanh) + 0.5 * x * (1.0 - tanh * tanh) * inner;
        let error = (f64::from(y) - expected).abs() / expected.abs().max(1e-3);
        worst[0] = f64::max(worst[0], error);
        worst[1] = f64::max(worst[1], (f64::from(slope) - derivative).abs());
    }
    worst
}

/// The largest errors of ln, exp, sin, cos.
fn drawn() -> [f64; 4] {
    let mut word = 1u64;
    let mut worst = [0.0f64; 4];
    for turn in 0..DRAWN {
        word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let unit = (word >> 11) as f64 / (1u64 << 53) as f64;
        // Every second one near 1, where the logarithm is small, or of any exponent.
        let positive =
            if turn % 2 == 0 { 2.0 * unit + 1e-9 } else { f64::from_bits((word >> 2) + (1 << 52)) };
        if positive.is_normal() {
            let found = measure::ln(positive);
            worst[0] = worst[0].max(ulps(found, logarithm(positive)));
        }
        let x = 1400.0 * unit - 700.0;
        worst[1] = worst[1].max(ulps(measure::exp_64(x), exponential_of(Two::from(x))));
        let x = if turn % 2 == 0 { 262_144.0 * unit - 131_072.0 } else { 8.0 * unit - 4.0 };
        let ((sine, cosine), (true_sine, true_cosine)) = (measure::sine_cosine(x), turned(x));
        worst[2] = worst[2].max(true_sine.minus(sine).abs());
        worst[3] = worst[3].max(true_cosine.minus(cosine).abs());
    }
    worst
}

/// An error in units of the last place of what is true.
fn ulps(found: f64, truth: Two) -> f64 {
    let exponent = ((truth.0.to_bits() >> 52) & 0x7ff) as i32 - 1023;
    truth.minus(found).abs() / f64::exp2(f64::from(exponent - 52))
}

/// A sum of two f64 of which the second is at most half a last place of the first: 106 bits (Dekker 1971).
#[derive(Clone, Copy)]
struct Two(f64, f64);

impl From<f64> for Two {
    fn from(value: f64) -> Self {
        Self(value, 0.0)
    }
}

impl Two {
    fn sum(a: f64, b: f64) -> Self {
        let total = a + b;
        let back = total - a;
        Self(total, (a - (total - back)) + (b - back))
    }

    fn plus(self, other: Self) -> Self {
        let (high, low) = (Self::sum(self.0, other.0), Self::sum(self.1, other.1));
        let middle = Self::sum(high.0, high.1 + low.0);
        Self::sum(middle.0, middle.1 + low.1)
    }

    fn times(self, other: Self) -> Self {
        let high = self.0 * other.0;
        let low = self.0.mul_add(other.0, -high);
        Self::sum(high, low + (self.0 * other.1 + self.1 * other.0))
    }

    fn over(self, divisor: f64) -> Self {
        let first = self.0 / divisor;
        let rest = self.plus(Self(-first, 0.0).times(Self(divisor, 0.0)));
        Self::sum(first, (rest.0 + rest.1) / divisor)
    }

    /// The difference from an f64 near to it.
    fn minus(self, value: f64) -> f64 {
        (self.0 - value) + self.1
    }
}

/// ln 2 and π/2.
const LN_2: Two = Two(std::f64::consts::LN_2, 2.319_046_813_846_299_6e-17);
const HALF_PI: Two = Two(std::f64::consts::FRAC_PI_2, 6.123_233_995_736_766e-17);

fn exponential_of(x: Two) -> Two {
    let n = (x.0 / LN_2.0).round();
    // Small enough for twelve terms; squared as often as it was halved.
    let r = x.plus(Two(-n, 0.0).times(LN_2)).times(Two(1.0 / 256.0, 0.0));
    // e^r − 1, of which the square is smaller than of e^r.
    let mut series = Two(1.0, 0.0);
    for divisor in (2..=13).rev() {
        series = Two(1.0, 0.0).plus(series.times(r).over(f64::from(divisor)));
    }
    let mut less_one = series.times(r);
    for _ in 0..8 {
        less_one = less_one.plus(less_one).plus(less_one.times(less_one));
    }
    let Two(high, low) = less_one.plus(Two(1.0, 0.0));
    // Twice, so that neither factor is beyond the range.
    let half = f64::exp2((n / 2.0).floor());
    let rest = f64::exp2(n - (n / 2.0).floor());
    Two(high * half * rest, low * half * rest)
}

/// One step of Newton from the platform's.
fn logarithm(x: f64) -> Two {
    let exponent = ((x.to_bits() >> 52) & 0x7ff) as i32 - 1023;
    let mantissa = x / f64::exp2(f64::from(exponent));
    let (exponent, mantissa) = if mantissa > std::f64::consts::SQRT_2 {
        (exponent + 1, mantissa / 2.0)
    } else {
        (exponent, mantissa)
    };
    let first = mantissa.ln();
    let power = exponential_of(Two(-first, 0.0)).times(Two(mantissa, 0.0)).plus(Two(-1.0, 0.0));
    let of_mantissa = Two(first, 0.0).plus(power.plus(power.times(power).times(Two(-0.5, 0.0))));
    Two(f64::from(exponent), 0.0).times(LN_2).plus(of_mantissa)
}

fn turned(x: f64) -> (Two, Two) {
    let n = (x / HALF_PI.0).round();
    let r = Two(x, 0.0).plus(Two(-n, 0.0).times(HALF_PI));
    let square = r.times(r);
    let (mut sine, mut cosine) = (Two(1.0, 0.0), Two(1.0, 0.0));
    for even in (2..=28).rev().step_by(2) {
        let even = f64::from(even);
        let term = |series: Two, divisor: f64| Two(1.0, 0.0).plus(series.times(square).over(-divisor));
        cosine = term(cosine, even * (even - 1.0));
        sine = term(sine, even * (even + 1.0));
    }
    let sine = sine.times(r);
    let opposite = |value: Two| Two(-value.0, -value.1);
    match n as i64 & 3 {
        0 => (sine, cosine),
        1 => (cosine, opposite(sine)),
        2 => (opposite(sine), opposite(cosine)),
        _ => (opposite(cosine), sine),
    }
}
