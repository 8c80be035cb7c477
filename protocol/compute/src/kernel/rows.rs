//! Kernels over rows of activations: normalisation, rotary positions, softmax, SwiGLU, cross-entropy.
//!
//! Shapes: a buffer holds whole rows of one width; `scales` holds one value a row.
#![allow(unsafe_code)]

use super::{Fma, LANES, dot, exp, kernels, tree};
use crate::function;

/// The largest value of a row, by lanes; NaN is skipped, −∞ when nothing is left (ARITH-21).
#[inline(always)]
pub(crate) fn largest(row: &[f32]) -> f32 {
    // A comparison with NaN is false, so that it is never taken.
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let (chunks, rest) = row.as_chunks::<LANES>();
    for chunk in chunks {
        for lane in 0..LANES {
            lanes[lane] = larger(lanes[lane], chunk[lane]);
        }
    }
    for (lane, value) in rest.iter().enumerate() {
        lanes[lane] = larger(lanes[lane], *value);
    }
    lanes.into_iter().fold(f32::NEG_INFINITY, larger)
}

/// Replaces a row by e^(x − shift) and returns its sum, by lanes (ARITH-3).
#[inline(always)]
fn exponentials<F: Fma>(row: &mut [f32], shift: f32) -> f32 {
    let mut lanes = [0.0; LANES];
    let (chunks, rest) = row.as_chunks_mut::<LANES>();
    for chunk in chunks {
        for lane in 0..LANES {
            chunk[lane] = exp::<F>(chunk[lane] - shift);
            lanes[lane] += chunk[lane];
        }
    }
    for (lane, value) in rest.iter_mut().enumerate() {
        *value = exp::<F>(*value - shift);
        lanes[lane] += *value;
    }
    tree(lanes)
}

/// `Σ (a·b)·c`, the outer product fused, by lanes (ARITH-3).
#[inline(always)]
pub(super) fn dot_of_three<F: Fma>(a: &[f32], b: &[f32], c: &[f32]) -> f32 {
    let mut lanes = [0.0; LANES];
    let (a, a_rest) = a.as_chunks::<LANES>();
    let (b, b_rest) = b.as_chunks::<LANES>();
    let (c, c_rest) = c.as_chunks::<LANES>();
    for ((a, b), c) in a.iter().zip(b).zip(c) {
        for lane in 0..LANES {
            lanes[lane] = F::fma(a[lane] * b[lane], c[lane], lanes[lane]);
        }
    }
    for (lane, ((a, b), c)) in a_rest.iter().zip(b_rest).zip(c_rest).enumerate() {
        lanes[lane] = F::fma(a * b, *c, lanes[lane]);
    }
    tree(lanes)
}

/// `y = x·scale·gain` of a row.
#[inline(always)]
pub(super) fn normed(x: &[f32], gain: &[f32], scale: f32, y: &mut [f32]) {
    for ((x, y), gain) in x.iter().zip(y).zip(gain) {
        *y = x * scale * gain;
    }
}

/// Softmax of a row, in place (ARITH-35).
#[inline(always)]
pub(super) fn softmax_of<F: Fma>(row: &mut [f32]) {
    let inverse = 1.0 / exponentials::<F>(row, largest(row));
    for value in row {
        *value *= inverse;
    }
}

/// The gradient of a row of gate and up from that of their product (ARITH-39), in whose place the product is then.
#[inline(always)]
pub(super) fn swiglu_back<F: Fma>(
    gate_up: &[f32],
    sigmoid: &[f32],
    d_product: &mut [f32],
    d_gate_up: &mut [f32],
) {
    let hidden = d_product.len();
    let (gate, up) = gate_up.split_at(hidden);
    let (d_gate, d_up) = d_gate_up.split_at_mut(hidden);
    for ((gate, up), (((sigmoid, d), d_gate), d_up)) in
        gate.iter().zip(up).zip(sigmoid.iter().zip(d_product).zip(d_gate).zip(d_up))
    {
        *d_up = *d * (gate * sigmoid);
        *d_gate = *d * up * (sigmoid * F::fma(*gate, 1.0 - sigmoid, 1.0));
        // The input of the next matrix back, which the forward pass did not keep.
        *d = gate * sigmoid * up;
    }
}

/// Where rotary positions apply in a buffer of one window.
pub(crate) struct Rotation<'a> {
    /// Values from token to token.
    pub stride: usize,
    pub heads: usize,
    /// Half the width of a head.
    pub half: usize,
    /// Per token and frequency.
    pub cosines: &'a [f32],
    pub sines: &'a [f32],
    /// 1 to rotate, −1 to rotate back.
    pub direction: f32,
    /// Factor of the rotated values.
    pub scale: f32,
}

/// Rows of attention scores of one head.
#[derive(Clone, Copy)]
pub(crate) struct ScoreRows {
    /// Token of the first row.
    pub first: usize,
    pub rows: usize,
    /// Keys that take part; those after a row's own token have probability 0.
    pub keys: usize,
    /// Values from row to row.
    pub stride: usize,
}

kernels! {
    /// e^x of each value (ARITH-23) and nothing else: for measuring.
    pub(crate) fn exponentials_of(x: &[f32], y: &mut [f32]) {
        for (x, y) in x.iter().zip(y) {
            *y = exp::<F>(*x);
        }
    }

    /// RMSNorm (ARITH-31): `scale = 1/√(Σx²/width + ε)`, `y = x·scale·gain`.
    pub(crate) fn rms_norm(x: &[f32], gain: &[f32], epsilon: f32, y: &mut [f32], scales: &mut [f32]) {
        let width = gain.len();
        for ((x, y), scale) in x.chunks_exact(width).zip(y.chunks_exact_mut(width)).zip(scales) {
            *scale = 1.0 / (dot::<F>(x, x) / width as f32 + epsilon).sqrt();
            normed(x, gain, *scale, y);
        }
    }

    /// The output of RMSNorm once more, from its scales: cheaper than keeping it for every layer.
    pub(crate) fn rms_norm_again(x: &[f32], gain: &[f32], scales: &[f32], y: &mut [f32]) {
        let width = gain.len();
        for ((x, y), scale) in x.chunks_exact(width).zip(y.chunks_exact_mut(width)).zip(scales) {
            normed(x, gain, *scale, y);
        }
    }

    /// Adds the gradient of RMSNorm's input to `residual` and turns `d_normed` into each row's gradient of the gain
    /// (ARITH-32).
    pub(crate) fn rms_norm_backward(
        x: &[f32],
        gain: &[f32],
        scales: &[f32],
        d_normed: &mut [f32],
        residual: &mut [f32],
    ) {
        let width = gain.len();
        let rows = x.chunks_exact(width).zip(d_normed.chunks_exact_mut(width)).zip(residual.chunks_exact_mut(width));
        for (((x, d_normed), residual), scale) in rows.zip(scales) {
            let mean = dot_of_three::<F>(d_normed, gain, x) * *scale / width as f32;
            for (((x, d), residual), gain) in x.iter().zip(d_normed).zip(residual).zip(gain) {
                let unit = x * *scale;
                *residual = F::fma(*scale, F::fma(-unit, mean, *d * gain), *residual);
                *d *= unit;
            }
        }
    }

    /// Adds every row to `sums`, in order (ARITH-43).
    pub(crate) fn add_rows(rows: &[f32], sums: &mut [f32]) {
        for row in rows.chunks_exact(sums.len()) {
            for (sum, value) in sums.iter_mut().zip(row) {
                *sum += value;
            }
        }
    }

    /// Rotates the pairs (i, i + half) of every head of every row, in place (ARITH-34). Rows are those of whole windows.
    pub(crate) fn rotate(values: &mut [f32], at: &Rotation<'_>) {
        let angles = at.cosines.chunks_exact(at.half).zip(at.sines.chunks_exact(at.half));
        for (row, (cosines, sines)) in values.chunks_mut(at.stride).zip(angles.cycle()) {
            for head in row.chunks_exact_mut(2 * at.half).take(at.heads) {
                let (low, high) = head.split_at_mut(at.half);
                for (((low, high), cosine), sine) in low.iter_mut().zip(high).zip(cosines).zip(sines) {
                    let sine = sine * at.direction;
                    let (x, y) = (*low, *high);
                    *low = F::fma(x, *cosine, -(y * sine)) * at.scale;
                    *high = F::fma(y, *cosine, x * sine) * at.scale;
                }
            }
        }
    }

    /// Softmax (ARITH-35) of some rows of scores, in place; causal where a row's own token is below `keys`.
    pub(crate) fn softmax(scores: &mut [f32], at: ScoreRows) {
        for (row, token) in scores.chunks_mut(at.stride).zip(at.first..at.first + at.rows) {
            let row = &mut row[..at.keys];
            // They stay in the row's chain, with probability +0 (ARITH-5).
            if let Some(later) = row.get_mut(token + 1..) {
                later.fill(f32::NEG_INFINITY);
            }
            softmax_of::<F>(row);
        }
    }

    /// The gradient of some rows of scores from that of their probabilities, in place:
    /// `p·(dp − Σ o·do)` (ARITH-36).
    ///
    /// `outputs` and `d_outputs` start at the first row's head; `at.stride` counts scores, `strides` these: values from
    /// row to row, and of a head.
    pub(crate) fn softmax_backward(
        d_scores: &mut [f32],
        probabilities: &[f32],
        at: ScoreRows,
        outputs: [&[f32]; 2],
        strides: [usize; 2],
    ) {
        let rows = d_scores.chunks_mut(at.stride).zip(probabilities.chunks(at.stride));
        for (index, (d_scores, probabilities)) in rows.take(at.rows).enumerate() {
            let [output, d_output] = outputs.map(|rows| &rows[index * strides[0]..][..strides[1]]);
            let mean = dot::<F>(output, d_output);
            for (d, p) in d_scores[..at.keys].iter_mut().zip(&probabilities[..at.keys]) {
                *d = p * (*d - mean);
            }
        }
    }

    /// SwiGLU (ARITH-38): rows of gate then up become `gate·σ(gate)·up`; σ is kept.
    pub(crate) fn swiglu(gate_up: &[f32], hidden: usize, sigmoid: &mut [f32], product: &mut [f32]) {
        let rows = gate_up.chunks_exact(2 * hidden).zip(sigmoid.chunks_exact_mut(hidden));
        for ((gate_up, sigmoid), product) in rows.zip(product.chunks_exact_mut(hidden)) {
            let (gate, up) = gate_up.split_at(hidden);
            for (((gate, up), sigmoid), product) in gate.iter().zip(up).zip(sigmoid).zip(product) {
                *sigmoid = 1.0 / (1.0 + exp::<F>(-gate));
                *product = gate * *sigmoid * up;
            }
        }
    }

    /// The gradient of gate and up from that of their product (ARITH-39), in whose place the product is then.
    pub(crate) fn swiglu_backward(
        gate_up: &[f32],
        hidden: usize,
        sigmoid: &[f32],
        d_product: &mut [f32],
        d_gate_up: &mut [f32],
    ) {
        let rows = gate_up.chunks_exact(2 * hidden).zip(d_gate_up.chunks_exact_mut(2 * hidden));
        let rows = rows.zip(sigmoid.chunks_exact(hidden)).zip(d_product.chunks_exact_mut(hidden));
        for (((gate_up, d_gate_up), sigmoid), d_product) in rows {
            swiglu_back::<F>(gate_up, sigmoid, d_product, d_gate_up);
        }
    }

    /// Sum of `−ln p(target)` over rows of logits, added in order; the logits become `(p − [target])·scale` (ARITH-40).
    ///
    /// Targets must lie below `vocabulary`.
    pub(crate) fn cross_entropy(logits: &mut [f32], vocabulary: usize, targets: &[usize], scale: f32) -> f64 {
        let mut loss = 0.0;
        for (row, target) in logits.chunks_exact_mut(vocabulary).zip(targets) {
            let shift = largest(row);
            // Before the exponentials overwrite it.
            let chosen = row[*target] - shift;
            let sum = exponentials::<F>(row, shift);
            loss += function::ln(f64::from(sum)) - f64::from(chosen);
            let factor = scale / sum;
            for value in row.iter_mut() {
                *value *= factor;
            }
            // Last, as ARITH-40 has it: subtracting from the probability instead would round otherwise.
            row[*target] -= scale;
        }
        loss
    }
}
