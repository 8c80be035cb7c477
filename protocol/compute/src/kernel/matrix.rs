//! Matrix products: every output element is one chain (ARITH-2) `acc = fma(a[i][k], b[k][j], acc)` in order of k.
//!
//! The right factor is packed into panels of a tile's width, the left one is read in strips of rows; the depth is cut
//! into blocks that are joined by storing and loading the output, which loses nothing; vectors run over output columns.
//! None of this changes the chain.
#![allow(unsafe_code)]

use std::ops::Range;

pub(crate) use super::panels::Panels;
use super::strided::Strided;
use super::strips::{DEPTH, PackedStrip, TILES, with_buffer};
use super::tile::{Task, TileProduct, run};
use super::vector::Vector;
use crate::path::Kernels;

/// Columns of a block: its panels stay in the second-level cache.
const COLUMNS: usize = 512;

/// A product: `rows` of `left` by the first `columns` of `right`, over a range of the depth.
pub(crate) struct Product<'a> {
    /// Its columns are counted as the depth of `right` is.
    pub left: Strided<'a>,
    pub right: &'a Panels,
    pub rows: usize,
    pub depth: Range<usize>,
    pub columns: usize,
    /// Whether the chains start from the old output instead of +0.
    pub add: bool,
}

impl<'a> Product<'a> {
    /// All of `left`, which has `rows` rows, by all of `right`.
    pub(crate) fn full(left: Strided<'a>, right: &'a Panels, rows: usize) -> Self {
        Self { left, right, rows, depth: 0..right.depth(), columns: right.columns(), add: false }
    }
}

/// Computes a product into row-major `out` with `stride` values from row to row.
///
/// # Panics
/// When a slice is too short for the product.
pub(crate) fn multiply(kernels: Kernels, product: &Product<'_>, out: &mut [f32], stride: usize) {
    let Product { left, right, rows, depth, columns, .. } = product;
    if *rows == 0 || *columns == 0 {
        return;
    }
    // What follows reads by pointer: these are the only checks.
    assert!(right.fits(kernels), "panels of another path");
    assert!(depth.start < depth.end && depth.end <= right.depth() && *columns <= right.columns());
    assert!((rows - 1) * left.row + (depth.end - 1) * left.column < left.data.len());
    assert!((rows - 1) * stride + columns <= out.len() && (*rows == 1 || *columns <= stride));
    let out = out.as_mut_ptr();
    // SAFETY: the extents were checked, and the panels have this path's width.
    with_buffer(|buffer| unsafe { run(kernels, Walk { product, out, stride, buffer }) });
}

/// A product on its way through its blocks.
struct Walk<'a> {
    product: &'a Product<'a>,
    out: *mut f32,
    stride: usize,
    /// Where strips of the left factor are packed.
    buffer: *mut f32,
}

impl Task for Walk<'_> {
    /// # Safety
    /// The extents of the product must lie within its factors and the output, the right factor must be packed for this
    /// tile's width, and `buffer` must be that of this thread.
    #[inline(always)]
    unsafe fn run<V: Vector, const ROWS: usize, const VECTORS: usize>(self) {
        // SAFETY: passed on.
        unsafe {
            if self.product.left.column == 1 {
                self.strips::<V, ROWS, VECTORS, true>();
            } else {
                self.strips::<V, ROWS, VECTORS, false>();
            }
        }
    }
}

/// A block of a product.
struct ProductBlock {
    rows: Range<usize>,
    columns: Range<usize>,
    depth: Range<usize>,
}

impl Walk<'_> {
    /// Computes strip after strip of rows, each taken once for all columns.
    ///
    /// # Safety
    /// As [`Walk::run`].
    #[inline(always)]
    unsafe fn strips<V: Vector, const ROWS: usize, const VECTORS: usize, const BY_ROWS: bool>(&self) {
        let Product { left, rows, columns, ref depth, .. } = *self.product;
        for start in depth.clone().step_by(DEPTH) {
            let depth = start..depth.end.min(start + DEPTH);
            for first in (0..rows).step_by(TILES * ROWS) {
                let rows = first..rows.min(first + TILES * ROWS);
                // SAFETY: by contract; the strip lies within the product.
                let strip = unsafe {
                    PackedStrip::take::<V, ROWS, BY_ROWS>(left, rows.clone(), depth.clone(), self.buffer)
                };
                for first in (0..columns).step_by(COLUMNS) {
                    let columns = first..columns.min(first + COLUMNS);
                    let block = ProductBlock { rows: rows.clone(), columns, depth: depth.clone() };
                    // SAFETY: as above.
                    unsafe { self.block::<V, ROWS, VECTORS, BY_ROWS>(&block, strip) };
                }
            }
        }
    }

    /// Computes a block by bands of as many rows as a tile has, then of fewer.
    ///
    /// # Safety
    /// As [`Walk::run`]; its rows and depth must be those of the strip.
    #[inline(always)]
    unsafe fn block<V: Vector, const ROWS: usize, const VECTORS: usize, const BY_ROWS: bool>(
        &self,
        block: &ProductBlock,
        strip: PackedStrip,
    ) {
        let mut row = block.rows.start;
        while row < block.rows.end {
            // SAFETY: by contract; a band has no more rows than are left of the strip.
            row += unsafe {
                let first = strip.row::<V, ROWS, BY_ROWS>(row - block.rows.start);
                let a = PackedStrip { first, ..strip };
                match block.rows.end - row {
                    left if left >= ROWS => self.band::<V, ROWS, VECTORS, BY_ROWS>(row, block, a),
                    8.. => self.band::<V, 8, VECTORS, BY_ROWS>(row, block, a),
                    4.. => self.band::<V, 4, VECTORS, BY_ROWS>(row, block, a),
                    2.. => self.band::<V, 2, VECTORS, BY_ROWS>(row, block, a),
                    _ => self.band::<V, 1, VECTORS, BY_ROWS>(row, block, a),
                }
            };
        }
    }

    /// Computes some rows of a block; returns their number.
    ///
    /// # Safety
    /// As [`Walk::block`]; the rows must exist, and `a` must begin with them.
    #[inline(always)]
    unsafe fn band<V: Vector, const ROWS: usize, const VECTORS: usize, const BY_ROWS: bool>(
        &self,
        row: usize,
        ProductBlock { columns, depth, .. }: &ProductBlock,
        a: PackedStrip,
    ) -> usize {
        let Product { right, .. } = self.product;
        let width = V::LANES * VECTORS;
        // Later blocks of the depth go on with the chains that the first one has begun: the result is stored in between.
        let add = self.product.add || depth.start > self.product.depth.start;
        for column in columns.clone().step_by(width) {
            // SAFETY: by contract; the panel of a column starts at column · depth, and its rows of this block exist.
            unsafe {
                let tile = TileProduct {
                    a,
                    b: right.as_ptr().add(column * right.depth() + depth.start * width),
                    b_row: width,
                    depth: depth.len(),
                    c: self.out.add(row * self.stride + column),
                    c_row: self.stride,
                    width: width.min(columns.end - column),
                    add,
                };
                if tile.width > (VECTORS - 1) * V::LANES {
                    tile.run::<V, ROWS, VECTORS, BY_ROWS>();
                } else {
                    tile.narrow::<V, ROWS, VECTORS, BY_ROWS>();
                }
            }
        }
        ROWS
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::definition::{bits, values};
    use crate::path::{Path, paths};

    /// A product as it is defined.
    fn plain(product: &Product<'_>, right: Strided<'_>, out: &mut [f32], stride: usize) {
        for i in 0..product.rows {
            for j in 0..product.columns {
                let sum = &mut out[i * stride + j];
                *sum = if product.add { *sum } else { 0.0 };
                for k in product.depth.clone() {
                    let a = product.left.data[i * product.left.row + k * product.left.column];
                    *sum = libm::fmaf(a, right.data[k * right.row + j * right.column], *sum);
                }
            }
        }
    }

    #[test]
    fn every_path_computes_the_defined_chains() {
        let shapes = [
            [1, 1, 1],
            [6, 16, 16],
            [7, 17, 5],
            [8, 32, 300],
            [25, 40, 64],
            [13, 259, 3],
            [50, 33, 513],
            [39, 72, 24],
            [3, 550, 11],
            [2, 9, 1100],
            [3, 17, 1024],
            [135, 9, 512],
        ];
        for (seed, [rows, columns, depth]) in shapes.into_iter().enumerate() {
            for case in 0..32 {
                let draw = |count, more| values(count, seed as u32 + more, case & 16 != 0);
                let (a, b) = (draw(rows * depth, 1), draw(columns * depth, 100));
                let old = draw(rows * (columns + 3), 200);
                let left =
                    if case & 1 == 0 { Strided::rows(&a, depth) } else { Strided::transposed(&a, rows) };
                let right =
                    if case & 2 == 0 { Strided::rows(&b, columns) } else { Strided::transposed(&b, depth) };
                for path in paths() {
                    let kernels = Kernels::new(path).unwrap();
                    let mut panels = Panels::default();
                    panels.pack(kernels, Strided::rows(&[9.0; 4000], 50), 80, 50);
                    panels.pack(kernels, right, depth, columns);
                    let mut product = Product { add: case & 4 != 0, ..Product::full(left, &panels, rows) };
                    if case & 8 != 0 {
                        (product.depth, product.columns) = (depth / 3..depth, columns.div_ceil(2));
                    }
                    let (mut expected, mut found) = (old.clone(), old.clone());
                    plain(&product, right, &mut expected, columns + 3);
                    multiply(kernels, &product, &mut found, columns + 3);
                    assert_eq!(
                        bits(&found),
                        bits(&expected),
                        "{path:?} {rows}×{columns}×{depth} case {case}"
                    );
                }
            }
        }
    }

    #[test]
    #[should_panic(expected = "assertion")]
    fn a_short_output_is_refused() {
        let kernels = Kernels::new(Path::Portable).unwrap();
        let mut panels = Panels::default();
        panels.pack(kernels, Strided::rows(&[1.0; 6], 3), 2, 3);
        multiply(kernels, &Product::full(Strided::rows(&[1.0; 4], 2), &panels, 2), &mut [0.0; 5], 3);
    }
}
