//! Four lanes of any processor.

use super::Vector;
use crate::kernel::{Anywhere, Fma};

impl Vector for [f32; 4] {
    const LANES: usize = 4;

    #[inline(always)]
    unsafe fn zero() -> Self {
        [0.0; 4]
    }

    #[inline(always)]
    unsafe fn splat(from: *const f32) -> Self {
        // SAFETY: by contract.
        [unsafe { *from }; 4]
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: by contract.
        unsafe { from.cast::<Self>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: by contract.
        unsafe { to.cast::<Self>().write_unaligned(self) }
    }

    #[inline(always)]
    unsafe fn load_first(from: *const f32, count: usize) -> Self {
        // SAFETY: by contract, for the lanes below `count`.
        std::array::from_fn(|lane| if lane < count { unsafe { *from.add(lane) } } else { 0.0 })
    }

    #[inline(always)]
    unsafe fn store_first(self, to: *mut f32, count: usize) {
        for (lane, value) in self.iter().enumerate().take(count) {
            // SAFETY: by contract.
            unsafe { *to.add(lane) = *value };
        }
    }

    #[inline(always)]
    unsafe fn fma(a: Self, b: Self, c: Self) -> Self {
        std::array::from_fn(|lane| Anywhere::fma(a[lane], b[lane], c[lane]))
    }

    #[inline(always)]
    unsafe fn add_words(a: Self, b: Self) -> Self {
        std::array::from_fn(|lane| f32::from_bits(a[lane].to_bits().wrapping_add(b[lane].to_bits())))
    }

    #[inline(always)]
    unsafe fn mix_words<const LEFT: i32, const RIGHT: i32>(a: Self, b: Self) -> Self {
        std::array::from_fn(|lane| {
            f32::from_bits((a[lane].to_bits() ^ b[lane].to_bits()).rotate_left(LEFT as u32))
        })
    }
}
