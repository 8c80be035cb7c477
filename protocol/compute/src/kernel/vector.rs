//! Vectors of f32: one file for each instruction set, and a portable twin that any processor runs.
#![allow(unsafe_code)]

use muster_core::grid::quantise;

#[cfg(target_arch = "x86_64")]
pub(super) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(super) mod avx512;
#[cfg(target_arch = "aarch64")]
pub(super) mod neon;
pub(super) mod portable;

/// A register of lanes.
///
/// # Safety
/// Every function requires the instruction set of its implementation; pointers must be readable or writable at the
/// lanes that are named, and need no alignment.
pub(super) trait Vector: Copy {
    const LANES: usize;

    /// +0 in every lane.
    unsafe fn zero() -> Self;

    /// One value in every lane.
    unsafe fn splat(from: *const f32) -> Self;

    unsafe fn load(from: *const f32) -> Self;

    unsafe fn store(self, to: *mut f32);

    /// The first `count` lanes; +0 in the others, which are not read.
    unsafe fn load_first(from: *const f32, count: usize) -> Self;

    /// Writes the first `count` lanes only.
    unsafe fn store_first(self, to: *mut f32, count: usize);

    /// `a·b + c` in every lane, rounded once.
    unsafe fn fma(a: Self, b: Self, c: Self) -> Self;

    /// The lanes as 32-bit words: `a + b`, wrapping.
    unsafe fn add_words(a: Self, b: Self) -> Self;

    /// The lanes as 32-bit words: `a ^ b`, rotated left; `RIGHT` is 32 − `LEFT`.
    unsafe fn mix_words<const LEFT: i32, const RIGHT: i32>(a: Self, b: Self) -> Self;

    /// Says that a line of memory will be read or written soon; the pointer may be any.
    #[inline(always)]
    unsafe fn prefetch(_at: *const f32) {}

    /// Writes the grid integers of values under dither words (GRID-2), as many as all three have.
    #[inline(always)]
    unsafe fn quantise(gradient: &[f32], inverse_step: f64, words: &[u32], q: &mut [i32]) {
        for ((value, word), q) in gradient.iter().zip(words).zip(q) {
            *q = quantise(*value, inverse_step, *word);
        }
    }

    /// Writes the transpose of 8 × 8 values; `from` and `to` step from row to row.
    #[inline(always)]
    unsafe fn transpose_8(from: *const f32, from_row: usize, to: *mut f32, to_row: usize) {
        for i in 0..8 {
            for j in 0..8 {
                // SAFETY: by contract.
                unsafe { *to.add(i * to_row + j) = *from.add(j * from_row + i) };
            }
        }
    }
}
