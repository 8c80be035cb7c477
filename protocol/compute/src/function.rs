//! Elementary functions of f64 in defined bits: additions, multiplications, divisions and exact operations only.
//!
//! Each (ARITH-6) is a range reduction and a series long enough that rounding dominates: errors are at most 2.1 ulp on
//! the ranges named, of 1 for sine and cosine. No fused operation, no platform library.

const LN_2_HIGH: f64 = 6.931_471_803_691_238e-1;
const LN_2_LOW: f64 = 1.908_214_929_270_587_7e-10;
/// π/2 to 33 bits, so that its multiples by up to 2²⁰ are exact.
const HALF_PI_HIGH: f64 = 1.570_796_326_734_125_6;
const HALF_PI_LOW: f64 = 6.077_100_506_506_192e-11;

/// Natural logarithm of a positive normal number; NaN of anything else (ARITH-24).
///
/// `x = 2^k·m` with m in [√½, √2), `ln m = 2·atanh((m − 1)/(m + 1))`.
pub fn ln(x: f64) -> f64 {
    // A subnormal has no leading bit, which the mantissa below takes as given.
    if !x.is_normal() || x < 0.0 {
        return f64::NAN;
    }
    let bits = x.to_bits();
    let mut exponent = ((bits >> 52) & 0x7ff) as i64 - 1023;
    let mut mantissa = f64::from_bits((bits & ((1 << 52) - 1)) | (1023 << 52));
    if mantissa >= std::f64::consts::SQRT_2 {
        mantissa *= 0.5;
        exponent += 1;
    }
    let s = (mantissa - 1.0) / (mantissa + 1.0);
    let square = s * s;
    let mut series = 0.0;
    for odd in (3..=23).rev().step_by(2) {
        series = (series + 1.0 / f64::from(odd)) * square;
    }
    let k = exponent as f64;
    k * LN_2_HIGH + (k * LN_2_LOW + (2.0 * s + 2.0 * s * series))
}

/// e^x for |x| ≤ 700 (ARITH-25).
pub fn exp(x: f64) -> f64 {
    let n = (x * std::f64::consts::LOG2_E).round_ties_even();
    let r = (x - n * LN_2_HIGH) - n * LN_2_LOW;
    let mut series = 1.0;
    for divisor in (1..=14).rev() {
        series = 1.0 + series * r / f64::from(divisor);
    }
    // 2ⁿ by its bits: for |x| ≤ 700 it is a normal number.
    series * f64::from_bits(((1023 + n as i64) as u64) << 52)
}

/// Sine and cosine for |x| ≤ 2¹⁷ (ARITH-26).
pub fn sine_cosine(x: f64) -> (f64, f64) {
    let n = (x * std::f64::consts::FRAC_2_PI).round_ties_even();
    let r = (x - n * HALF_PI_HIGH) - n * HALF_PI_LOW;
    let square = r * r;
    let (mut sine, mut cosine) = (1.0, 1.0);
    for even in (2..=18).rev().step_by(2) {
        let even = f64::from(even);
        cosine = 1.0 - cosine * square / (even * (even - 1.0));
        sine = 1.0 - sine * square / (even * (even + 1.0));
    }
    let sine = sine * r;
    match n as i64 & 3 {
        0 => (sine, cosine),
        1 => (cosine, -sine),
        2 => (-sine, -cosine),
        _ => (-cosine, sine),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The platform's functions, with what they may be wrong themselves: 0.6 of the last place.
    #[test]
    fn close_to_the_platform() {
        let ulps = |found: f64, expected: f64| {
            let exponent = ((expected.to_bits() >> 52) & 0x7ff) as i32 - 1023;
            (found - expected).abs() / f64::exp2(f64::from(exponent - 52))
        };
        let absolute = f64::exp2(-52.4) + 0.6 * f64::exp2(-53.0);
        for step in 1..200_000 {
            let x = f64::from(step) * 0.3277;
            let (sine, cosine) = sine_cosine(x);
            assert!((sine - x.sin()).abs() < absolute, "sin {x}");
            assert!((cosine - x.cos()).abs() < absolute, "cos {x}");
            assert!(ulps(ln(x), x.ln()) < 2.1 + 0.6, "ln {x}");
            let y = (x % 1400.0) - 700.0;
            assert!(ulps(exp(y), y.exp()) < 1.2 + 0.6, "exp {y}");
        }
        // ARITH-24: NaN where there is no positive normal number. ARITH-25 and ARITH-26 are exact at 0.
        for x in [f64::INFINITY, f64::MIN_POSITIVE / 2.0, -0.0] {
            assert!(ln(x).is_nan(), "ln {x}");
        }
        assert!(ln(0.0).is_nan() && ln(-1.0).is_nan() && ln(f64::NAN).is_nan());
        assert_eq!((ln(1.0), exp(0.0), sine_cosine(0.0)), (0.0, 1.0, (0.0, 1.0)));
    }
}
