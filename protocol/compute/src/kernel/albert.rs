//! Kernels of ALBERT over rows of activations: biases, LayerNorm, GELU.
//!
//! Shapes: a buffer holds whole rows of one width; `means` and `scales` hold one value a row.
#![allow(unsafe_code)]

use super::{Fma, LANES, exp, kernels, tree};

/// √(2/π)·2, rounded down: GELU's tanh form is `x·σ(SLOPE·x + CUBE·x³)`, because `(1 + tanh z)/2 = σ(2z)`.
const SLOPE: f32 = 1.595_769;
/// 0.044715 times that.
const CUBE: f32 = 0.071_354_814;

/// `Σ f(a, b)` of two rows, by lanes (ARITH-3); `f` adds its term to what it gets.
#[inline(always)]
pub(crate) fn sum(a: &[f32], b: &[f32], f: impl Fn(f32, f32, f32) -> f32) -> f32 {
    let mut lanes = [0.0; LANES];
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    for (a, b) in a.iter().zip(b) {
        for lane in 0..LANES {
            lanes[lane] = f(a[lane], b[lane], lanes[lane]);
        }
    }
    for (lane, (a, b)) in a_rest.iter().zip(b_rest).enumerate() {
        lanes[lane] = f(*a, *b, lanes[lane]);
    }
    tree(lanes)
}

/// σ of GELU's argument, and 1 − σ without cancellation (ARITH-63): `P = exp(−(x·fma(x·x, CUBE, SLOPE)))`, `σ = 1/(1 +
/// P)`, `1 − σ = P·σ`.
#[inline(always)]
fn gate<F: Fma>(x: f32) -> [f32; 2] {
    let power = exp::<F>(-(x * F::fma(x * x, CUBE, SLOPE)));
    let sigmoid = 1.0 / (1.0 + power);
    [sigmoid, power * sigmoid]
}

kernels! {
    /// Every row becomes the sum of its own in `rows` and the bias: what the chains of a residual sum start from
    /// (ARITH-65).
    pub(crate) fn biased(rows: &[f32], bias: &[f32], out: &mut [f32]) {
        for (row, out) in rows.chunks_exact(bias.len()).zip(out.chunks_exact_mut(bias.len())) {
            for ((out, value), bias) in out.iter_mut().zip(row).zip(bias) {
                *out = value + bias;
            }
        }
    }

    /// Multiplies the first `width` values of every row of `stride`: queries by 1/√h, and their gradients (ARITH-65,
    /// ARITH-66).
    pub(crate) fn scale_columns(rows: &mut [f32], stride: usize, width: usize, scale: f32) {
        for row in rows.chunks_exact_mut(stride) {
            for value in &mut row[..width] {
                *value *= scale;
            }
        }
    }

    /// Adds the columns from `first` on of every row of `stride` to `sums`, in order of row: the gradient of a bias
    /// (ARITH-66).
    pub(crate) fn add_columns(rows: &[f32], stride: usize, first: usize, sums: &mut [f32]) {
        for row in rows.chunks_exact(stride) {
            for (sum, value) in sums.iter_mut().zip(&row[first..]) {
                *sum += value;
            }
        }
    }

    /// LayerNorm (ARITH-61): `mean = Σx/width`, `scale = 1/√(Σ(x − mean)²/width + ε)`, `y` is
    /// `(x − mean)·scale·gain + bias`.
    ///
    /// `affine` are gain and bias, `statistics` means and scales.
    pub(crate) fn layer_norm(
        x: &[f32],
        affine: [&[f32]; 2],
        epsilon: f32,
        y: &mut [f32],
        statistics: [&mut [f32]; 2],
    ) {
        let ([gain, bias], [means, scales]) = (affine, statistics);
        let width = gain.len();
        let rows = x.chunks_exact(width).zip(y.chunks_exact_mut(width));
        for ((x, y), (mean, scale)) in rows.zip(means.iter_mut().zip(scales)) {
            let m = sum(x, x, |x, _, lane| lane + x) / width as f32;
            let variance = sum(x, x, |x, _, lane| F::fma(x - m, x - m, lane)) / width as f32;
            let s = 1.0 / (variance + epsilon).sqrt();
            for (((x, y), gain), bias) in x.iter().zip(y).zip(gain).zip(bias) {
                *y = F::fma((x - m) * s, *gain, *bias);
            }
            (*mean, *scale) = (m, s);
        }
    }

    /// Turns the gradient of LayerNorm's output into that of its input, and adds every row's share to the gradients
    /// `sums` of gain and bias, in order of row (ARITH-62).
    pub(crate) fn layer_norm_backward(
        x: &[f32],
        gain: &[f32],
        statistics: [&[f32]; 2],
        d: &mut [f32],
        sums: [&mut [f32]; 2],
    ) {
        let ([means, scales], [d_gain, d_bias]) = (statistics, sums);
        let width = gain.len();
        let rows = x.chunks_exact(width).zip(d.chunks_exact_mut(width));
        for ((x, d), (mean, scale)) in rows.zip(means.iter().zip(scales)) {
            let unit = |x: &f32| (x - mean) * scale;
            for (((x, d), d_gain), d_bias) in
                x.iter().zip(&mut *d).zip(d_gain.iter_mut()).zip(d_bias.iter_mut())
            {
                *d_gain = F::fma(*d, unit(x), *d_gain);
                *d_bias += *d;
            }
            // Only now: the sums above take the gradient of the output, what follows that of the unit row.
            for (d, gain) in d.iter_mut().zip(gain) {
                *d *= gain;
            }
            let level = sum(d, x, |d, _, lane| lane + d) / width as f32;
            let slope = sum(d, x, |d, x, lane| F::fma(d, (x - mean) * scale, lane)) / width as f32;
            for (x, d) in x.iter().zip(d) {
                *d = scale * F::fma(-unit(x), slope, *d - level);
            }
        }
    }

    /// GELU in its tanh form (ARITH-63).
    pub(crate) fn gelu(x: &[f32], y: &mut [f32]) {
        for (x, y) in x.iter().zip(y) {
            let [sigmoid, _] = gate::<F>(*x);
            *y = x * sigmoid;
        }
    }

    /// Multiplies a gradient by GELU's derivative `σ + x·σ·(1 − σ)·(SLOPE + 3·CUBE·x²)` (ARITH-64).
    pub(crate) fn gelu_backward(x: &[f32], d: &mut [f32]) {
        for (x, d) in x.iter().zip(d) {
            let [sigmoid, rest] = gate::<F>(*x);
            let inner = F::fma(x * x, 3.0 * CUBE, SLOPE);
            *d *= F::fma(x * sigmoid * rest, inner, sigmoid);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::definition::{bits, values};
    use crate::path::{Kernels, Path, paths};

    /// GELU and its derivative in f64.
    fn exact(x: f64) -> [f64; 2] {
        let root = (2.0 / std::f64::consts::PI).sqrt();
        let tanh = (root * (x + 0.044715 * x * x * x)).tanh();
        let slope = root * (1.0 + 3.0 * 0.044715 * x * x);
        [0.5 * x * (1.0 + tanh), 0.5 * (1.0 + tanh) + 0.5 * x * (1.0 - tanh * tanh) * slope]
    }

    /// ARITH-63 and ARITH-64, within the errors that the chapter states.
    #[test]
    fn gelu_is_close() {
        let kernels = Kernels::new(Path::detect()).unwrap();
        let xs: Vec<f32> = (-60_000..60_000).map(|step| step as f32 * 2e-4).collect();
        let (mut ys, mut slopes) = (vec![0.0; xs.len()], vec![1.0; xs.len()]);
        gelu(kernels, &xs, &mut ys);
        gelu_backward(kernels, &xs, &mut slopes);
        for ((x, y), slope) in xs.iter().zip(&ys).zip(&slopes) {
            let [value, derivative] = exact(f64::from(*x));
            assert!(
                (f64::from(*y) - value).abs() <= 1.4e-6 * value.abs().max(1e-3),
                "gelu({x}) = {y}, not {value}"
            );
            let error = (f64::from(*slope) - derivative).abs();
            assert!(error <= 2.2e-7, "gelu'({x}) = {slope}, not {derivative}");
        }
    }

    #[test]
    fn every_path_agrees() {
        let portable = Kernels::new(Path::Portable).unwrap();
        for (case, width) in [1, 3, 16, 50, 131].into_iter().enumerate() {
            for wild in [false, true] {
                let seed = case as u32 * 2 + u32::from(wild);
                let expected = everything(portable, width, seed, wild);
                for path in paths() {
                    let found = everything(Kernels::new(path).unwrap(), width, seed, wild);
                    assert_eq!(found, expected, "{path:?} {width} {wild}");
                }
            }
        }
    }

    /// The bits that every kernel gives.
    fn everything(kernels: Kernels, width: usize, seed: u32, wild: bool) -> Vec<Vec<u32>> {
        let draw = |count: usize, more: u32| values(count, 90 * seed + more, wild);
        let (x, gain, bias) = (draw(3 * width, 1), draw(width, 2), draw(width, 3));
        let mut y = vec![0.0; 3 * width];
        let [mut means, mut scales] = [vec![0.0; 3], vec![0.0; 3]];
        layer_norm(kernels, &x, [&gain, &bias], 1e-5, &mut y, [&mut means, &mut scales]);
        let (mut d, mut d_gain, mut d_bias) = (draw(3 * width, 4), draw(width, 5), draw(width, 6));
        // ARITH-62: also that gain and bias go on from what their gradients held.
        layer_norm_backward(kernels, &x, &gain, [&means, &scales], &mut d, [&mut d_gain, &mut d_bias]);
        let (mut active, mut slopes) = (vec![0.0; 3 * width], draw(3 * width, 7));
        gelu(kernels, &x, &mut active);
        gelu_backward(kernels, &x, &mut slopes);
        let (mut moved, mut scaled, mut sums) = (vec![0.0; 3 * width], draw(3 * width, 8), draw(1, 9));
        biased(kernels, &x, &bias, &mut moved);
        scale_columns(kernels, &mut scaled, width, width / 2, 0.3);
        add_columns(kernels, &x, width, width - 1, &mut sums);
        [y, means, scales, d, d_gain, d_bias, active, slopes, moved, scaled, sums]
            .map(|all| bits(&all))
            .into()
    }

    #[test]
    fn layer_norm_is_close() {
        let kernels = Kernels::new(Path::detect()).unwrap();
        let x: Vec<f32> = (0..40).map(|i| (i * i % 17) as f32 - 5.0).collect();
        let (gain, bias) = (vec![1.5; 40], vec![-0.25; 40]);
        let mut y = vec![0.0; 40];
        let [mut means, mut scales] = [[0.0], [0.0]];
        layer_norm(kernels, &x, [&gain, &bias], 1e-5, &mut y, [&mut means, &mut scales]);
        let mean = x.iter().map(|x| f64::from(*x)).sum::<f64>() / 40.0;
        let variance = x.iter().map(|x| (f64::from(*x) - mean).powi(2)).sum::<f64>() / 40.0;
        for (x, y) in x.iter().zip(&y) {
            let expected = (f64::from(*x) - mean) / (variance + 1e-5).sqrt() * 1.5 - 0.25;
            assert!((f64::from(*y) - expected).abs() < 1e-6, "{y} {expected}");
        }
    }
}
