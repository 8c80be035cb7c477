//! Sixteen lanes of AVX-512.

use std::arch::x86_64::{
    __m256, __m256i, __m512, _MM_FROUND_NO_EXC, _MM_FROUND_TO_NEG_INF, _MM_HINT_T0, _mm_prefetch,
    _mm256_storeu_si256, _mm512_add_epi32, _mm512_castps_si512, _mm512_castps512_ps256, _mm512_castsi512_ps,
    _mm512_castsi512_si256, _mm512_cvt_roundpd_epi32, _mm512_cvtepi32_pd, _mm512_cvtps_pd,
    _mm512_extractf32x8_ps, _mm512_extracti32x8_epi32, _mm512_fmadd_pd, _mm512_fmadd_ps,
    _mm512_fpclass_ps_mask, _mm512_loadu_ps, _mm512_loadu_si512, _mm512_mask_storeu_ps,
    _mm512_maskz_loadu_ps, _mm512_maskz_mov_ps, _mm512_max_pd, _mm512_min_pd, _mm512_mul_pd,
    _mm512_rol_epi32, _mm512_set1_pd, _mm512_set1_ps, _mm512_setzero_ps, _mm512_srli_epi32, _mm512_storeu_ps,
    _mm512_xor_si512,
};

use muster_core::grid::quantise;
use muster_core::limits::GRID_LIMIT;

use super::Vector;
use super::avx2::transpose_8;

/// The first lanes.
#[inline(always)]
fn first(count: usize) -> u16 {
    ((1u32 << count) - 1) as u16
}

// SAFETY of every block: by the trait's contract.
impl Vector for __m512 {
    const LANES: usize = 16;

    #[inline(always)]
    unsafe fn zero() -> Self {
        unsafe { _mm512_setzero_ps() }
    }

    #[inline(always)]
    unsafe fn splat(from: *const f32) -> Self {
        unsafe { _mm512_set1_ps(*from) }
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        unsafe { _mm512_loadu_ps(from) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        unsafe { _mm512_storeu_ps(to, self) }
    }

    #[inline(always)]
    unsafe fn load_first(from: *const f32, count: usize) -> Self {
        unsafe { _mm512_maskz_loadu_ps(first(count), from) }
    }

    #[inline(always)]
    unsafe fn store_first(self, to: *mut f32, count: usize) {
        unsafe { _mm512_mask_storeu_ps(to, first(count), self) }
    }

    #[inline(always)]
    unsafe fn fma(a: Self, b: Self, c: Self) -> Self {
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    unsafe fn add_words(a: Self, b: Self) -> Self {
        unsafe { _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(a), _mm512_castps_si512(b))) }
    }

    #[inline(always)]
    unsafe fn mix_words<const LEFT: i32, const RIGHT: i32>(a: Self, b: Self) -> Self {
        unsafe {
            let mixed = _mm512_xor_si512(_mm512_castps_si512(a), _mm512_castps_si512(b));
            _mm512_castsi512_ps(_mm512_rol_epi32::<LEFT>(mixed))
        }
    }

    #[inline(always)]
    unsafe fn prefetch(at: *const f32) {
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
    }

    #[inline(always)]
    unsafe fn quantise(gradient: &[f32], inverse_step: f64, words: &[u32], q: &mut [i32]) {
        let count = gradient.len().min(words.len()).min(q.len());
        let (gradient, gradient_rest) = gradient[..count].as_chunks::<16>();
        let (words, words_rest) = words[..count].as_chunks::<16>();
        let (q, q_rest) = q[..count].as_chunks_mut::<16>();
        for ((gradient, words), q) in gradient.iter().zip(words).zip(q) {
            unsafe { quantise_16(gradient, inverse_step, words, q) };
        }
        for ((value, word), q) in gradient_rest.iter().zip(words_rest).zip(q_rest) {
            *q = quantise(*value, inverse_step, *word);
        }
    }

    #[inline(always)]
    unsafe fn transpose_8(from: *const f32, from_row: usize, to: *mut f32, to_row: usize) {
        unsafe { transpose_8(from, from_row, to, to_row) }
    }
}

/// Sixteen grid integers: as `quantise`, the portable twin in muster-core (`grid.rs`), but that the processor rounds down as it converts, and that one operation
/// multiplies, which is exact, and adds.
///
/// # Safety
/// The processor must have AVX-512.
#[inline(always)]
unsafe fn quantise_16(gradient: &[f32; 16], inverse_step: f64, words: &[u32; 16], q: &mut [i32; 16]) {
    /// NaN of both kinds, both infinities.
    const NOT_FINITE: i32 = 0x99;
    const DOWN: i32 = _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC;
    // SAFETY: by contract.
    unsafe {
        let values = _mm512_loadu_ps(gradient.as_ptr());
        let values = _mm512_maskz_mov_ps(!_mm512_fpclass_ps_mask::<NOT_FINITE>(values), values);
        let words = _mm512_srli_epi32::<8>(_mm512_loadu_si512(words.as_ptr().cast()));
        let (step, unit) = (_mm512_set1_pd(inverse_step), _mm512_set1_pd(1.0 / 16_777_216.0));
        let [least, most] =
            [-f64::from(GRID_LIMIT), f64::from(GRID_LIMIT)].map(|limit| _mm512_set1_pd(limit));
        let half = |values: __m256, words: __m256i, to: *mut i32| {
            let dither = _mm512_mul_pd(_mm512_cvtepi32_pd(words), unit);
            let sum = _mm512_fmadd_pd(_mm512_cvtps_pd(values), step, dither);
            let limited = _mm512_max_pd(_mm512_min_pd(sum, most), least);
            _mm256_storeu_si256(to.cast(), _mm512_cvt_roundpd_epi32::<DOWN>(limited));
        };
        let q = q.as_mut_ptr();
        half(_mm512_castps512_ps256(values), _mm512_castsi512_si256(words), q);
        half(_mm512_extractf32x8_ps::<1>(values), _mm512_extracti32x8_epi32::<1>(words), q.add(8));
    }
}
