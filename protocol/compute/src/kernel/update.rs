//! Kernels over the flat vector: norms, AdamW.
#![allow(unsafe_code)]

use std::hint::black_box;

use super::kernels;

/// What one step of AdamW does to every coefficient, as f32.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AdamStep {
    /// From aggregate to gradient: 2^e times the clipping factor.
    pub unit: f32,
    pub beta1: f32,
    pub beta2: f32,
    /// 1 − β₁.
    pub first_share: f32,
    /// 1 − β₂.
    pub second_share: f32,
    /// Learning rate over 1 − β₁^t.
    pub rate: f32,
    /// 1/√(1 − β₂^t).
    pub second_scale: f32,
    pub epsilon: f32,
    /// 1 − learning rate · weight decay; 1 for norms.
    pub keep: f32,
}

/// The one NaN that is ever stored (ARITH-20).
#[inline(always)]
pub(super) fn canonical(value: f32) -> f32 {
    if value.is_nan() { f32::from_bits(0x7fc0_0000) } else { value }
}

/// Says that a line of memory will be read soon; the pointer may be any.
#[inline(always)]
fn prefetch(_at: *const f32) {
    // SAFETY: a hint, which every x86-64 has.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(_at.cast());
    }
}

/// Values between one that is asked for and the one that is read.
const AHEAD: usize = 512;

kernels! {
    /// `Σ x²` in f64: eight lanes in order, then pairs (0+4, …), (0+2, …), (0+1). Values that are not finite count 0
    /// (ARITH-22).
    pub(crate) fn sum_of_squares(values: &[f32]) -> f64 {
        let square = |value: f32| if value.is_finite() { f64::from(value) * f64::from(value) } else { 0.0 };
        let mut lanes = [0.0f64; 8];
        let (chunks, rest) = values.as_chunks::<8>();
        for chunk in chunks {
            // The processor itself looks ahead to the end of a page only.
            prefetch(chunk.as_ptr().wrapping_add(AHEAD));
            for lane in 0..8 {
                lanes[lane] += square(chunk[lane]);
            }
        }
        for (lane, value) in rest.iter().enumerate() {
            lanes[lane] += square(*value);
        }
        // Stored together, so that the compiler adds to all lanes at once.
        let lanes = black_box(lanes);
        let four: [f64; 4] = std::array::from_fn(|lane| lanes[lane] + lanes[lane + 4]);
        (four[0] + four[2]) + (four[1] + four[3])
    }

    /// One step of AdamW (ARITH-7). An aggregate that is not finite counts 0.
    pub(crate) fn adamw(values: &[f32], parameters: &mut [f32], first: &mut [f32], second: &mut [f32], step: &AdamStep) {
        let step = *step;
        for (((value, parameter), first), second) in values.iter().zip(parameters).zip(first).zip(second) {
            let gradient = if value.is_finite() { value * step.unit } else { 0.0 };
            let m = F::fma(step.beta1, *first, step.first_share * gradient);
            let v = F::fma(step.beta2, *second, step.second_share * (gradient * gradient));
            let direction = m / F::fma(v.sqrt(), step.second_scale, step.epsilon);
            *first = canonical(m);
            *second = canonical(v);
            *parameter = canonical(F::fma(-step.rate, direction, *parameter * step.keep));
        }
    }
}
