//! Tiles: the registers' share of a product, and which vectors and which tile each path has.
#![allow(unsafe_code)]

use super::vector::Vector;
use crate::path::{Kernels, Path};

/// Most rows of a tile, over all paths.
const ROWS_MAX: usize = 8;
/// Depth of a block: a tile's share of the left factor stays in the first-level cache.
pub(super) const DEPTH: usize = 512;
/// Tiles of a left factor that are packed together: whole lines of its transpose are read.
pub(super) const GROUPS: usize = 4;
/// Values from row to row of a packed left factor: rows do not share cache sets.
const PITCH: usize = DEPTH + 16;
/// Values of a packed left factor.
pub(super) const PACKED: usize = GROUPS * ROWS_MAX * PITCH;

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

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
unsafe fn avx512(task: impl Task) {
    // SAFETY: passed on.
    unsafe { task.run::<std::arch::x86_64::__m512, 8, 2>() }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn avx2(task: impl Task) {
    // SAFETY: passed on.
    unsafe { task.run::<std::arch::x86_64::__m256, 6, 2>() }
}

/// Where a row of a packed left factor begins: by rows of [`PITCH`], or by depth with a tile's rows together.
#[inline(always)]
pub(super) const fn origin<const ROWS: usize, const BY_ROWS: bool>(row: usize) -> usize {
    if BY_ROWS { row * PITCH } else { row / ROWS * DEPTH * ROWS_MAX + row % ROWS }
}

/// Where an element of a tile lies from its first.
#[inline(always)]
pub(super) const fn place<const BY_ROWS: bool>(row: usize, k: usize) -> usize {
    if BY_ROWS { row * PITCH + k } else { k * ROWS_MAX + row }
}

/// One tile of one block of the depth.
#[derive(Clone, Copy)]
pub(super) struct Tile {
    /// Rows of the left factor, at [`place`].
    pub a: *const f32,
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

impl Tile {
    /// Computes `ROWS` rows with as few vectors as `width`, which is less than a whole tile's, needs.
    ///
    /// # Safety
    /// As [`Tile::run`].
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
    /// `a` must be readable at [`place`] for the rows and the depth, `b` at `depth` rows of `VECTORS` vectors, `c`
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
            for k in 0..self.depth {
                let from = self.b.add(k * self.b_row);
                let b: [V; VECTORS] = std::array::from_fn(|v| V::load(from.add(v * V::LANES)));
                for (r, row) in sums.iter_mut().enumerate() {
                    let a = V::splat(self.a.add(place::<BY_ROWS>(r, k)));
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
