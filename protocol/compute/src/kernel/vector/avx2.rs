//! Eight lanes of AVX2 with FMA.

use std::arch::x86_64::{
    __m256, __m256i, _MM_HINT_T0, _mm_prefetch, _mm256_add_epi32, _mm256_castps_si256, _mm256_castsi256_ps,
    _mm256_fmadd_ps, _mm256_loadu_ps, _mm256_loadu_si256, _mm256_maskload_ps, _mm256_maskstore_ps,
    _mm256_or_si256, _mm256_permute2f128_ps, _mm256_set1_ps, _mm256_setzero_ps, _mm256_shuffle_ps,
    _mm256_slli_epi32, _mm256_srli_epi32, _mm256_storeu_ps, _mm256_unpackhi_ps, _mm256_unpacklo_ps,
    _mm256_xor_si256,
};

use super::Vector;

/// Eight lanes to take, eight to leave.
const MASKS: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];

/// A mask of the first lanes.
///
/// # Safety
/// AVX2, and `count` ≤ 8.
#[inline(always)]
unsafe fn first(count: usize) -> __m256i {
    // SAFETY: 8 − count … 16 − count lies within the table.
    unsafe { _mm256_loadu_si256(MASKS.as_ptr().add(8 - count).cast()) }
}

/// As [`Vector::transpose_8`].
///
/// # Safety
/// AVX2, and as there.
#[inline(always)]
pub(super) unsafe fn transpose_8(from: *const f32, from_row: usize, to: *mut f32, to_row: usize) {
    // SAFETY: by contract.
    unsafe {
        let row = |i: usize| _mm256_loadu_ps(from.add(i * from_row));
        let pair = |i: usize| {
            let (a, b) = (row(i), row(i + 1));
            [_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b)]
        };
        let four = |i: usize| {
            let ([a, b], [c, d]) = (pair(i), pair(i + 2));
            [
                _mm256_shuffle_ps::<0x44>(a, c),
                _mm256_shuffle_ps::<0xee>(a, c),
                _mm256_shuffle_ps::<0x44>(b, d),
                _mm256_shuffle_ps::<0xee>(b, d),
            ]
        };
        let (low, high) = (four(0), four(4));
        for i in 0..4 {
            _mm256_storeu_ps(to.add(i * to_row), _mm256_permute2f128_ps::<0x20>(low[i], high[i]));
            _mm256_storeu_ps(to.add((i + 4) * to_row), _mm256_permute2f128_ps::<0x31>(low[i], high[i]));
        }
    }
}

// SAFETY of every block: by the trait's contract.
impl Vector for __m256 {
    const LANES: usize = 8;

    #[inline(always)]
    unsafe fn zero() -> Self {
        unsafe { _mm256_setzero_ps() }
    }

    #[inline(always)]
    unsafe fn splat(from: *const f32) -> Self {
        unsafe { _mm256_set1_ps(*from) }
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        unsafe { _mm256_loadu_ps(from) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        unsafe { _mm256_storeu_ps(to, self) }
    }

    #[inline(always)]
    unsafe fn load_first(from: *const f32, count: usize) -> Self {
        unsafe { _mm256_maskload_ps(from, first(count)) }
    }

    #[inline(always)]
    unsafe fn store_first(self, to: *mut f32, count: usize) {
        unsafe { _mm256_maskstore_ps(to, first(count), self) }
    }

    #[inline(always)]
    unsafe fn fma(a: Self, b: Self, c: Self) -> Self {
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    unsafe fn add_words(a: Self, b: Self) -> Self {
        unsafe { _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(a), _mm256_castps_si256(b))) }
    }

    #[inline(always)]
    unsafe fn mix_words<const LEFT: i32, const RIGHT: i32>(a: Self, b: Self) -> Self {
        unsafe {
            let mixed = _mm256_xor_si256(_mm256_castps_si256(a), _mm256_castps_si256(b));
            let (left, right) = (_mm256_slli_epi32::<LEFT>(mixed), _mm256_srli_epi32::<RIGHT>(mixed));
            _mm256_castsi256_ps(_mm256_or_si256(left, right))
        }
    }

    #[inline(always)]
    unsafe fn prefetch(at: *const f32) {
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
    }

    #[inline(always)]
    unsafe fn transpose_8(from: *const f32, from_row: usize, to: *mut f32, to_row: usize) {
        unsafe { transpose_8(from, from_row, to, to_row) }
    }
}
