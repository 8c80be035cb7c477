//! Four lanes of NEON.

use std::arch::aarch64::{
    float32x4_t, vaddq_u32, vdupq_n_f32, veorq_u32, vfmaq_f32, vld1q_dup_f32, vld1q_f32, vorrq_u32,
    vreinterpretq_f32_u32, vreinterpretq_u32_f32, vshlq_n_u32, vshrq_n_u32, vst1q_f32,
};

use super::Vector;

// SAFETY of every block: by the trait's contract.
impl Vector for float32x4_t {
    const LANES: usize = 4;

    #[inline(always)]
    unsafe fn zero() -> Self {
        unsafe { vdupq_n_f32(0.0) }
    }

    #[inline(always)]
    unsafe fn splat(from: *const f32) -> Self {
        unsafe { vld1q_dup_f32(from) }
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        unsafe { vld1q_f32(from) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        unsafe { vst1q_f32(to, self) }
    }

    #[inline(always)]
    unsafe fn load_first(from: *const f32, count: usize) -> Self {
        let mut lanes = [0.0; 4];
        unsafe {
            from.copy_to_nonoverlapping(lanes.as_mut_ptr(), count);
            vld1q_f32(lanes.as_ptr())
        }
    }

    #[inline(always)]
    unsafe fn store_first(self, to: *mut f32, count: usize) {
        let mut lanes = [0.0; 4];
        unsafe {
            vst1q_f32(lanes.as_mut_ptr(), self);
            to.copy_from_nonoverlapping(lanes.as_ptr(), count);
        }
    }

    #[inline(always)]
    unsafe fn fma(a: Self, b: Self, c: Self) -> Self {
        unsafe { vfmaq_f32(c, a, b) }
    }

    #[inline(always)]
    unsafe fn add_words(a: Self, b: Self) -> Self {
        unsafe { vreinterpretq_f32_u32(vaddq_u32(vreinterpretq_u32_f32(a), vreinterpretq_u32_f32(b))) }
    }

    #[inline(always)]
    unsafe fn mix_words<const LEFT: i32, const RIGHT: i32>(a: Self, b: Self) -> Self {
        unsafe {
            let mixed = veorq_u32(vreinterpretq_u32_f32(a), vreinterpretq_u32_f32(b));
            vreinterpretq_f32_u32(vorrq_u32(vshlq_n_u32::<LEFT>(mixed), vshrq_n_u32::<RIGHT>(mixed)))
        }
    }
}
