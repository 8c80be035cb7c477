//! Kernels of local updates: differences of states, second moments on their grid, the step of the whole run.
#![allow(unsafe_code)]

use super::kernels;
use super::update::canonical;

/// What one step of the run does to every coefficient (LOCAL-10).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outer {
    /// From aggregate to difference: 2^e.
    pub unit: f32,
    /// Step size.
    pub rate: f32,
    /// Momentum.
    pub decay: f32,
}

/// Exponent field of 2⁻⁵⁹ and two bits of the mantissa: what the lowest number stands for.
const FIRST: i32 = (127 - 59) << 2;

/// The number of a second moment on its grid (LOCAL-5): a quarter of an octave is a step, 1 stands for what is below 2⁻⁵⁹,
/// 255 for what is above, 0 for 0 and what is no number.
#[inline(always)]
fn code(value: f32) -> i32 {
    // The bits of a positive float rise with it: exponent, then the two highest bits of the mantissa.
    let quarter = (value.to_bits() >> 21) as i32 - FIRST + 1;
    let bounded = quarter.clamp(1, 255);
    if value > 0.0 && value < f32::INFINITY { bounded } else { 0 }
}

/// The second moment that a number stands for: the middle of its quarter.
#[inline(always)]
fn decoded(code: i32) -> f32 {
    let bits = ((code - 1 + FIRST) as u32) << 21 | 1 << 20;
    if code > 0 { f32::from_bits(bits) } else { 0.0 }
}

kernels! {
    /// `start − now`, each rounded once.
    pub(crate) fn difference(start: &[f32], now: &[f32], out: &mut [f32]) {
        for ((start, now), out) in start.iter().zip(now).zip(out) {
            *out = start - now;
        }
    }

    /// By how many steps of their grid second moments have changed.
    pub(crate) fn moment_steps(start: &[f32], now: &[f32], out: &mut [i32]) {
        for ((start, now), out) in start.iter().zip(now).zip(out) {
            *out = code(*now) - code(*start);
        }
    }

    /// Bounds integers on both sides (GRID-7).
    pub(crate) fn saturate(q: &mut [i32], most: i32) {
        for q in q {
            *q = (*q).clamp(-most, most);
        }
    }

    /// Takes what was there before away from integers, which are there before the next time.
    pub(crate) fn telescope(q: &mut [i32], before: &mut [i32]) {
        for (q, before) in q.iter_mut().zip(before) {
            let whole = *q;
            *q = whole.wrapping_sub(*before);
            *before = whole;
        }
    }

    /// One step of the run (LOCAL-10): u ← μ·u + Δ; θ ← θ − η·(Δ + μ·u). An aggregate that is not finite counts 0.
    pub(crate) fn nesterov(values: &[f32], parameters: &mut [f32], momentum: &mut [f32], outer: &Outer) {
        let Outer { unit, rate, decay } = *outer;
        for ((value, parameter), momentum) in values.iter().zip(parameters).zip(momentum) {
            let moved = if value.is_finite() { value * unit } else { 0.0 };
            let u = F::fma(decay, *momentum, moved);
            *momentum = canonical(u);
            *parameter = canonical(F::fma(-rate, F::fma(decay, u, moved), *parameter));
        }
    }

    /// LOCAL-11: moves second moments by so many steps of their grid. What is not finite counts 0.
    pub(crate) fn renew(steps: &[f32], second: &mut [f32]) {
        for (steps, second) in steps.iter().zip(second) {
            let bounded = if steps.is_finite() { steps.clamp(-255.0, 255.0) } else { 0.0 };
            *second = decoded((code(*second) + bounded as i32).clamp(0, 255));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::Kernels;

    #[test]
    fn local_5_a_number_is_that_of_the_moment_that_it_stands_for() {
        assert_eq!((code(0.0), code(-0.0), code(f32::NAN), code(f32::INFINITY), code(-1.0)), (0, 0, 0, 0, 0));
        for number in 0..=255 {
            assert_eq!(code(decoded(number)), number);
            let next = decoded(number + 1);
            assert!(number == 255 || next > decoded(number));
        }
        assert_eq!((code(2f32.powi(-59)), code(2f32.powi(-60)), code(f32::MIN_POSITIVE)), (1, 1, 1));
        assert_eq!((code(f32::MAX), code(1.0), code(1.25)), (255, 237, 238));
    }

    #[test]
    fn local_11_renewed_moments_are_those_that_were_reached() {
        let kernels = Kernels::detect();
        let (start, now) = ([0.0, 1.0, 3e-9, 1e-30, 2e-4], [1e-7, 1.1, 0.0, 1e-3, 1e-4]);
        let mut steps = [0; 5];
        moment_steps(kernels, &start, &now, &mut steps);
        let mut second = start;
        renew(kernels, &steps.map(|step| step as f32), &mut second);
        assert_eq!(second.map(code), now.map(code));
        renew(kernels, &[f32::NAN, f32::INFINITY, -1e9, 1e9, -0.5], &mut second);
        assert_eq!(second.map(code), [code(now[0]), code(now[1]), 0, 255, code(now[4])]);
    }
}
