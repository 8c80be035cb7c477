//! Packed right factors.
#![allow(unsafe_code)]

use super::line::Line;
use super::strided::Strided;
use super::tile::{Task, run, tile_width};
use super::vector::Vector;
use crate::path::Kernels;

/// Rows of a row-major matrix that are packed together.
const ROWS: usize = 8;
/// Depth of a transposed matrix that is packed together.
const STRIPE: usize = 64;

/// A packed right factor: panels of a tile's width, each with its depth in order, the last one filled up with zeros.
#[derive(Default)]
pub(crate) struct Panels {
    lines: Vec<Line>,
    /// Values in one row of a panel.
    width: usize,
    depth: usize,
    columns: usize,
}

impl Panels {
    /// Packs a `depth` × `columns` matrix.
    ///
    /// # Panics
    /// When the slice is too short for it.
    pub(crate) fn pack(&mut self, kernels: Kernels, right: Strided<'_>, depth: usize, columns: usize) {
        let width = tile_width(kernels);
        (self.width, self.depth, self.columns) = (width, depth, columns);
        // Old lines keep their values: packing overwrites all of them, the last panel's unused columns included.
        self.lines.resize(columns.div_ceil(width) * width / 16 * depth, Line([0.0; 16]));
        if depth == 0 || columns == 0 {
            return;
        }
        assert!((depth - 1) * right.row + (columns - 1) * right.column < right.data.len());
        let to = self.lines.as_mut_ptr().cast::<f32>();
        // SAFETY: the extent of `right` was checked, `lines` has all panels of this path's width.
        unsafe { run(kernels, Packing { right, depth, columns, to }) };
    }

    /// Whether this was packed for a path.
    pub(super) fn fits(&self, kernels: Kernels) -> bool {
        self.width == tile_width(kernels)
    }

    /// Rows of the factor.
    pub(crate) fn depth(&self) -> usize {
        self.depth
    }

    /// Columns of the factor.
    pub(crate) fn columns(&self) -> usize {
        self.columns
    }

    /// Panel `c / width` starts at `c · depth`.
    pub(super) fn as_ptr(&self) -> *const f32 {
        self.lines.as_ptr().cast()
    }
}

/// Fills the panels at `to`.
struct Packing<'a> {
    right: Strided<'a>,
    depth: usize,
    columns: usize,
    to: *mut f32,
}

impl Task for Packing<'_> {
    /// # Safety
    /// `right` must have its extents, `to` must be writable for all panels of a tile's width.
    #[inline(always)]
    unsafe fn run<V: Vector, const TILE_ROWS: usize, const VECTORS: usize>(self) {
        let width = V::LANES * VECTORS;
        // SAFETY: by contract.
        unsafe {
            if self.right.column == 1 {
                for start in (0..self.depth).step_by(ROWS) {
                    for column in (0..self.columns).step_by(width) {
                        self.rows::<V, VECTORS>(start, column);
                    }
                }
            } else {
                for start in (0..self.depth).step_by(STRIPE) {
                    for column in (0..self.columns).step_by(8) {
                        self.columns::<V>(width, start, column);
                    }
                }
            }
        }
    }
}

impl Packing<'_> {
    /// Copies up to [`ROWS`] rows of one panel.
    ///
    /// # Safety
    /// As for the whole; `start` lies in the depth, `column` starts a panel.
    #[inline(always)]
    unsafe fn rows<V: Vector, const VECTORS: usize>(&self, start: usize, column: usize) {
        let width = V::LANES * VECTORS;
        let whole = column + width <= self.columns;
        for k in start..self.depth.min(start + ROWS) {
            for v in 0..VECTORS {
                let at = column + v * V::LANES;
                // SAFETY: row k of the panel; lanes beyond the columns are not read.
                unsafe {
                    let from = self.right.data.as_ptr().wrapping_add(k * self.right.row + at);
                    let count = self.columns.saturating_sub(at).min(V::LANES);
                    let values = if whole { V::load(from) } else { V::load_first(from, count) };
                    values.store(self.to.add(column * self.depth + k * width + v * V::LANES));
                }
            }
        }
    }

    /// Transposes up to [`STRIPE`] of the depth of eight columns, and fills up the last panel with zeros.
    ///
    /// # Safety
    /// As for the whole; `start` lies in the depth, `column` among the columns.
    #[inline(always)]
    unsafe fn columns<V: Vector>(&self, width: usize, start: usize, column: usize) {
        let Self { right, depth, .. } = self;
        let end = (*depth).min(start + STRIPE);
        let mut k = start;
        // SAFETY: eight columns of the panel at `column / width`, or as many as there are.
        unsafe {
            let to = self.to.add(column / width * width * depth + column % width);
            let from = right.data.as_ptr().add(column * right.column);
            if right.row == 1 && column + 8 <= self.columns {
                while k + 8 <= end {
                    V::transpose_8(from.add(k), right.column, to.add(k * width), width);
                    k += 8;
                }
            }
            let count = (self.columns - column).min(8);
            // After the last column come zeros up to the panel's end.
            let fill = if column + 8 < self.columns { count } else { width - column % width };
            for k in k..end {
                for c in 0..fill {
                    let value = if c < count { *from.add(c * right.column + k * right.row) } else { 0.0 };
                    *to.add(k * width + c) = value;
                }
            }
            if fill > 8 {
                for k in start..k {
                    for c in 8..fill {
                        *to.add(k * width + c) = 0.0;
                    }
                }
            }
        }
    }
}
