//! Tiles: the registers' share of a product, and which vectors and which tile each path has.
#![allow(unsafe_code)]

use std::hint::black_box;

use super::strips::PackedStrip;
use super::vector::Vector;
use crate::path::{Kernels, Path};

/// Rows of the right factor between one that is asked for and the one that is multiplied by: the first-level cache does
/// not hold a panel.
const AHEAD: usize = 24;

/// Work to be done with a path's vectors and tile.
pub(super) trait Task {
    /// With tiles of `ROWS` by `VECTORS`.
    ///
    /// # Safety
    /// The processor must have the instruction set of `V`; more as the task says.
    unsafe fn run<V: Vector, const ROWS: usize, const VECTORS: usize>(self);
}

/// Values across a tile.
pub(super) fn tile_width(kernels: Kernels) -> usize {
    if kernels.path() == Path::Avx512 { 32 } else { 16 }
}

/// Runs a task on a path.
///
/// # Safety
/// As the task says.
pub(super) unsafe fn run(kernels: Kernels, task: impl Task) {
    match kernels.path() {
        // SAFETY: a `Kernels` exists only for a path that this processor has; the rest is passed on.
        #[cfg(target_arch = "x86_64")]
        Path::Avx512 => unsafe { avx512(task) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Path::Avx2 => unsafe { avx2(task) },
        // SAFETY: as above.
        #[cfg(target_arch = "aarch64")]
        Path::Neon => unsafe { task.run::<std::arch::aarch64::float32x4_t, 6, 4>() },
        // SAFETY: passed on.
        _ => unsafe { task.run::<[f32; 4], 4, 4>() },
    }
}

/// # Safety
/// The processor must have these instruction sets; more as the task says.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
unsafe fn avx512(task: impl Task) {
    // SAFETY: passed on.
    unsafe { task.run::<std::arch::x86_64::__m512, 12, 2>() }
}

/// # Safety
/// As [`avx512`].
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn avx2(task: impl Task) {
    // SAFETY: passed on.
    unsafe { task.run::<std::arch::x86_64::__m256, 6, 2>() }
}

/// Fused multiply-adds in registers only, as many chains at once as a tile has: no product can be faster.
///
/// Returns the number of floating-point operations, and a sum of the results, which keeps the compiler from dropping them.
pub(crate) fn chains(kernels: Kernels, steps: usize) -> (f64, f32) {
    let mut done = (0.0, 0.0);
    // SAFETY: the task reads nothing but its own values.
    unsafe { run(kernels, Chains { steps, done: &mut done }) };
    done
}

struct Chains<'a> {
    steps: usize,
    done: &'a mut (f64, f32),
}

impl Task for Chains<'_> {
    /// # Safety
    /// As the trait says.
    #[inline(always)]
    unsafe fn run<V: Vector, const ROWS: usize, const VECTORS: usize>(self) {
        // Different starts, or the compiler would see that all chains are one.
        let starts: [f32; 32] = black_box(std::array::from_fn(|place| place as f32));
        let factors = black_box([1e-3, 0.5]);
        // SAFETY: 32 values are readable from `starts`, and a vector has at most 16 lanes.
        unsafe {
            let [a, b] = [V::splat(&factors[0]), V::splat(&factors[1])];
            let mut sums: [[V; VECTORS]; ROWS] =
                std::array::from_fn(|row| std::array::from_fn(|v| V::load(&starts[(row + v) % 16])));
            for _ in 0..self.steps {
                for row in &mut sums {
                    for sum in row {
                        *sum = V::fma(a, b, *sum);
                    }
                }
            }
            let mut lanes = [0.0; 16];
            for row in &sums {
                for sum in row {
                    sum.store(lanes.as_mut_ptr());
                    self.done.1 += black_box(lanes)[0];
                }
            }
        }
        self.done.0 = (2 * V::LANES * ROWS * VECTORS * self.steps) as f64;
    }
}

/// One tile of one block of the depth.
#[derive(Clone, Copy)]
pub(super) struct TileProduct {
    /// Rows of the left factor.
    pub a: PackedStrip,
    /// Rows of a panel of the right factor.
    pub b: *const f32,
    pub b_row: usize,
    pub depth: usize,
    pub c: *mut f32,
    pub c_row: usize,
    /// Columns; the last vector may have fewer than its lanes.
    pub width: usize,
    /// Whether the chains start from `c` instead of +0.
    pub add: bool,
}

impl TileProduct {
    /// Computes `ROWS` rows with as few vectors as `width`, which is less than a whole tile's, needs.
    ///
    /// # Safety
    /// As [`TileProduct::run`].
    #[inline(always)]
    pub(super) unsafe fn narrow<V: Vector, const ROWS: usize, const VECTORS: usize, const BY_ROWS: bool>(
        &self,
    ) {
        // SAFETY: by contract.
        unsafe {
            match self.width.div_ceil(V::LANES) {
                3 if VECTORS > 3 => self.run::<V, ROWS, 3, BY_ROWS>(),
                2 if VECTORS > 2 => self.run::<V, ROWS, 2, BY_ROWS>(),
                _ => self.run::<V, ROWS, 1, BY_ROWS>(),
            }
        }
    }

    /// Computes `ROWS` rows of `width`, which needs `VECTORS` vectors.
    ///
    /// # Safety
    /// `a` must be readable for the rows and the depth, `b` at `depth` rows of `VECTORS` vectors, `c`
    /// readable and writable at `ROWS` rows of `width`.
    #[inline(always)]
    pub(super) unsafe fn run<V: Vector, const ROWS: usize, const VECTORS: usize, const BY_ROWS: bool>(&self) {
        let whole = self.width == VECTORS * V::LANES;
        let last = self.width - (VECTORS - 1) * V::LANES;
        // SAFETY: by contract.
        unsafe {
            let mut sums = [[V::zero(); VECTORS]; ROWS];
            for (r, row) in sums.iter_mut().enumerate() {
                for (v, sum) in row.iter_mut().enumerate() {
                    let c = self.c.add(r * self.c_row + v * V::LANES);
                    V::prefetch(c.wrapping_add(VECTORS * V::LANES));
                    if self.add {
                        *sum = if whole || v + 1 < VECTORS { V::load(c) } else { V::load_first(c, last) };
                    }
                }
            }
            let PackedStrip { first, step } = self.a;
            // Kept as they are: the compiler would add up the place of each row from the one before.
            let (three, four) = (black_box(3 * step), black_box(4 * step));
            for k in 0..self.depth {
                let from = self.b.add(k * self.b_row);
                // May lie beyond the panel: a hint reads nothing.
                for line in (0..VECTORS * V::LANES).step_by(16) {
                    V::prefetch(from.wrapping_add(AHEAD * self.b_row + line));
                }
                let b: [V; VECTORS] = std::array::from_fn(|v| V::load(from.add(v * V::LANES)));
                for (r, row) in sums.iter_mut().enumerate() {
                    let place = if BY_ROWS {
                        r / 4 * four + [0, step, 2 * step, three][r % 4] + k
                    } else {
                        k * step + r
                    };
                    let a = V::splat(first.add(place));
                    for (sum, b) in row.iter_mut().zip(&b) {
                        *sum = V::fma(a, *b, *sum);
                    }
                }
            }
            for (r, row) in sums.iter().enumerate() {
                for (v, sum) in row.iter().enumerate() {
                    let c = self.c.add(r * self.c_row + v * V::LANES);
                    if whole || v + 1 < VECTORS { sum.store(c) } else { sum.store_first(c, last) }
                }
            }
        }
    }
}
