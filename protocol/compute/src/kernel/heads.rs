//! RMSNorm of heads that lie side by side in rows, each by itself (ARITH-77).
#![allow(unsafe_code)]

use super::rows::{dot_of_three, normed};
use super::{dot, kernels};

/// The heads with which each row begins. They are as wide as their gain.
#[derive(Clone, Copy)]
pub(crate) struct HeadRows {
    /// Values from row to row.
    pub stride: usize,
    pub heads: usize,
}

kernels! {
    /// Norms every head in place (ARITH-31). What it was, head after head, and its scale are kept.
    pub(crate) fn norm_heads(
        values: &mut [f32],
        at: HeadRows,
        gain: &[f32],
        epsilon: f32,
        kept: [&mut [f32]; 2],
    ) {
        let (width, [before, scales]) = (gain.len(), kept);
        let kept = before.chunks_exact_mut(at.heads * width).zip(scales.chunks_exact_mut(at.heads));
        for (row, (before, scales)) in values.chunks_mut(at.stride).zip(kept) {
            let kept = before.chunks_exact_mut(width).zip(scales);
            for (head, (before, scale)) in row.chunks_exact_mut(width).zip(kept) {
                before.copy_from_slice(head);
                *scale = 1.0 / (dot::<F>(before, before) / width as f32 + epsilon).sqrt();
                normed(before, gain, *scale, head);
            }
        }
    }

    /// Turns the gradient of normed heads into that of the heads, and `before` into each head's share of the gain's gradient
    /// (ARITH-32).
    pub(crate) fn norm_heads_backward(
        gradient: &mut [f32],
        at: HeadRows,
        gain: &[f32],
        before: &mut [f32],
        scales: &[f32],
    ) {
        let width = gain.len();
        let kept = before.chunks_exact_mut(at.heads * width).zip(scales.chunks_exact(at.heads));
        for (row, (before, scales)) in gradient.chunks_mut(at.stride).zip(kept) {
            let kept = before.chunks_exact_mut(width).zip(scales);
            for (head, (before, scale)) in row.chunks_exact_mut(width).zip(kept) {
                let mean = dot_of_three::<F>(head, gain, before) * *scale / width as f32;
                for ((d, x), gain) in head.iter_mut().zip(before).zip(gain) {
                    let (unit, normed) = (*x * *scale, *d);
                    // A head is read by nothing else: its gradient starts from +0.
                    *d = F::fma(*scale, F::fma(-unit, mean, normed * gain), 0.0);
                    *x = normed * unit;
                }
            }
        }
    }
}
