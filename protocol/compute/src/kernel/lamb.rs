//! Kernels of LAMB (You et al. 2020): moments, the direction of a step, and the step.
#![allow(unsafe_code)]

use super::kernels;
use super::update::{AdamStep, canonical};

/// What LAMB adds to a [`AdamStep`], of which it uses moments and scales.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layerwise {
    /// 1/(1 − β₁^t).
    pub first_scale: f32,
    /// Weight decay; 0 for tensors of one row.
    pub decay: f32,
}

kernels! {
    /// Moments as AdamW has them (ARITH-7): `m ← fma(β₁, m, (1 − β₁)·g)`, `v ← fma(β₂, v, (1 − β₂)·(g·g))`. An aggregate
    /// that is not finite counts 0.
    pub(crate) fn moments(values: &[f32], first: &mut [f32], second: &mut [f32], step: &AdamStep) {
        let step = *step;
        for ((value, first), second) in values.iter().zip(first).zip(second) {
            let gradient = if value.is_finite() { value * step.unit } else { 0.0 };
            *first = canonical(F::fma(step.beta1, *first, step.first_share * gradient));
            *second = canonical(F::fma(step.beta2, *second, step.second_share * (gradient * gradient)));
        }
    }

    /// `m/(1 − β₁^t) / (√(v/(1 − β₂^t)) + ε) + decay·w` (ARITH-67): `fma(decay, w, m·c₁/fma(√v, c₂, ε))`.
    pub(crate) fn direction(
        parameters: &[f32],
        moments: [&[f32]; 2],
        step: &AdamStep,
        layerwise: Layerwise,
        out: &mut [f32],
    ) {
        let AdamStep { second_scale, epsilon, .. } = *step;
        let Layerwise { first_scale, decay } = layerwise;
        let [first, second] = moments;
        for (((parameter, first), second), out) in parameters.iter().zip(first).zip(second).zip(out) {
            let adam = first * first_scale / F::fma(second.sqrt(), second_scale, epsilon);
            *out = F::fma(decay, *parameter, adam);
        }
    }

    /// `w − rate·direction` (ARITH-67): one fused multiply-add; what is stored of any NaN is 7fc00000 (ARITH-20).
    pub(crate) fn descend(parameters: &mut [f32], direction: &[f32], rate: f32) {
        for (parameter, direction) in parameters.iter_mut().zip(direction) {
            *parameter = canonical(F::fma(-rate, *direction, *parameter));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::definition::values;
    use crate::path::{Kernels, Path, paths};

    fn everything(path: Path, width: usize, wild: bool) -> Vec<Vec<u32>> {
        let kernels = Kernels::new(path).unwrap();
        let draw = |seed: u32| values(width, 40 * width as u32 + seed, wild);
        let step = AdamStep {
            unit: 0.25,
            beta1: 0.9,
            beta2: 0.95,
            first_share: 0.1,
            second_share: 0.05,
            rate: 0.0,
            second_scale: 1.7,
            epsilon: 1e-6,
            keep: 1.0,
        };
        let (mut parameters, mut first, mut second, mut out) = (draw(1), draw(2), draw(3), draw(4));
        moments(kernels, &draw(5), &mut first, &mut second, &step);
        let layerwise = Layerwise { first_scale: 2.5, decay: 0.01 };
        direction(kernels, &parameters, [&first, &second], &step, layerwise, &mut out);
        descend(kernels, &mut parameters, &out, 0.125);
        [parameters, first, second].map(|values| values.iter().map(|value| value.to_bits()).collect()).into()
    }

    #[test]
    fn every_path_agrees() {
        for width in [1, 7, 16, 100, 131] {
            for wild in [false, true] {
                let expected = everything(Path::Portable, width, wild);
                for path in paths() {
                    assert_eq!(everything(path, width, wild), expected, "{path:?} {width} {wild}");
                }
            }
        }
    }
}
