//! Matrix products: every output element is one chain (ARITH-2) `acc = fma(a[i][k], b[k][j], acc)` in order of k.
//!
//! The right factor is packed into panels of a tile's width, the left one tile by tile; the depth is cut into blocks
//! that are joined by storing and loading the output, which loses nothing; vectors run over output columns. None of
//! this changes the chain.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::ops::Range;

pub(crate) use super::panels::Panels;
use super::tile::{DEPTH, GROUPS, PACKED, Task, Tile, origin, place, run};
use super::vector::Vector;
use crate::path::Kernels;

/// Columns of a block: its panels stay in the second-level cache.
const COLUMNS: usize = 512;

/// A matrix within a slice: element (i, j) at `i·row + j·column`.
#[derive(Clone, Copy, Debug)]
pub struct Strided<'a> {
    /// From element (0, 0).
    pub data: &'a [f32],
    /// From row to row.
    pub row: usize,
    /// From column to column.
    pub column: usize,
}

impl<'a> Strided<'a> {
    /// Row-major with this many values from row to row.
    pub(crate) fn rows(data: &'a [f32], row: usize) -> Self {
        Self { data, row, column: 1 }
    }

    /// The transpose of a row-major matrix.
    pub(crate) fn transposed(data: &'a [f32], row: usize) -> Self {
        Self { data, row: 1, column: row }
    }
}

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
    assert!(right.fits(kernels), "panels of another path");
    assert!(depth.start < depth.end && depth.end <= right.depth() && *columns <= right.columns());
    assert!((rows - 1) * left.row + (depth.end - 1) * left.column < left.data.len());
    assert!((rows - 1) * stride + columns <= out.len() && (*rows == 1 || *columns <= stride));
    // SAFETY: the extents were checked, and the panels have this path's width.
    unsafe { run(kernels, Walk { product, out: out.as_mut_ptr(), stride }) };
}

/// A product on its way through its blocks.
struct Walk<'a> {
    product: &'a Product<'a>,
    out: *mut f32,
    stride: usize,
}

impl Task for Walk<'_> {
    /// # Safety
    /// The extents of the product must lie within its factors and the output, and the right factor must be packed for
    /// this tile's width.
    #[inline(always)]
    unsafe fn run<V: Vector, const ROWS: usize, const VECTORS: usize>(self) {
        let Product { left, columns, depth, .. } = self.product;
        for first in (0..*columns).step_by(COLUMNS) {
            let columns = first..(*columns).min(first + COLUMNS);
            for start in depth.clone().step_by(DEPTH) {
                let block = Block { columns: columns.clone(), depth: start..depth.end.min(start + DEPTH) };
                // SAFETY: by contract; the blocks lie within the product.
                unsafe {
                    if left.column == 1 {
                        self.strips::<V, ROWS, VECTORS, true>(&block);
                    } else {
                        self.strips::<V, ROWS, VECTORS, false>(&block);
                    }
                }
            }
        }
    }
}

/// A block of a product: all rows, some columns, some of the depth.
struct Block {
    columns: Range<usize>,
    depth: Range<usize>,
}

/// Some rows of a block of the left factor, as tiles read them.
#[repr(align(64))]
struct Packed([MaybeUninit<f32>; PACKED]);

impl Walk<'_> {
    /// Computes a block by strips of rows, and these by bands of as many rows as a tile has, then of fewer.
    ///
    /// # Safety
    /// As [`Walk::run`].
    #[inline(always)]
    unsafe fn strips<V: Vector, const ROWS: usize, const VECTORS: usize, const BY_ROWS: bool>(
        &self,
        block: &Block,
    ) {
        let rows = self.product.rows;
        let mut packed = Packed([const { MaybeUninit::uninit() }; PACKED]);
        let packed = packed.0.as_mut_ptr().cast::<f32>();
        for first in (0..rows).step_by(GROUPS * ROWS) {
            let strip = first..rows.min(first + GROUPS * ROWS);
            let mut row = first;
            // SAFETY: by contract; a band has no more rows than are left of the strip.
            unsafe {
                self.pack::<V, ROWS, BY_ROWS>(strip.clone(), block.depth.clone(), packed);
                while row < strip.end {
                    let a = packed.add(origin::<ROWS, BY_ROWS>(row - first));
                    row += match strip.end - row {
                        left if left >= ROWS => self.band::<V, ROWS, VECTORS, BY_ROWS>(row, block, a),
                        4.. => self.band::<V, 4, VECTORS, BY_ROWS>(row, block, a),
                        2.. => self.band::<V, 2, VECTORS, BY_ROWS>(row, block, a),
                        _ => self.band::<V, 1, VECTORS, BY_ROWS>(row, block, a),
                    }
                }
            }
        }
    }

    /// Computes some rows of a block; returns their number.
    ///
    /// # Safety
    /// As [`Walk::run`]; the rows must exist and be packed at `a`.
    #[inline(always)]
    unsafe fn band<V: Vector, const ROWS: usize, const VECTORS: usize, const BY_ROWS: bool>(
        &self,
        row: usize,
        Block { columns, depth }: &Block,
        a: *const f32,
    ) -> usize {
        let Product { right, .. } = self.product;
        let width = V::LANES * VECTORS;
        let add = self.product.add || depth.start > self.product.depth.start;
        for column in columns.clone().step_by(width) {
            // SAFETY: by contract; the panel of a column starts at column · depth, and its rows of this block exist.
            unsafe {
                let tile = Tile {
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

    /// Copies some rows of a block of the left factor to where tiles read them.
    ///
    /// # Safety
    /// The rows and the depth must lie within the left factor; no more of either than a strip has.
    #[inline(always)]
    unsafe fn pack<V: Vector, const ROWS: usize, const BY_ROWS: bool>(
        &self,
        rows: Range<usize>,
        depth: Range<usize>,
        to: *mut f32,
    ) {
        let Strided { data, row: down, column: along } = self.product.left;
        let (rows, depth, first) = (rows.len(), depth.len(), rows.start * down + depth.start * along);
        // SAFETY: by contract; [`origin`] and [`place`] stay below `PACKED` for a strip's rows and a block's depth.
        unsafe {
            let from = data.as_ptr().add(first);
            if BY_ROWS {
                for r in 0..rows {
                    let to = to.add(origin::<ROWS, BY_ROWS>(r));
                    from.add(r * down).copy_to_nonoverlapping(to, depth);
                }
            } else if down == 1 {
                let whole = rows - rows % ROWS;
                for k in 0..depth {
                    let (from, to) = (from.add(k * along), to.add(place::<BY_ROWS>(0, k)));
                    V::prefetch(from.wrapping_add(8 * along));
                    V::prefetch(from.wrapping_add(8 * along + 16));
                    for r in (0..whole).step_by(ROWS) {
                        from.add(r).copy_to_nonoverlapping(to.add(origin::<ROWS, BY_ROWS>(r)), ROWS);
                    }
                    for r in whole..rows {
                        *to.add(origin::<ROWS, BY_ROWS>(r)) = *from.add(r);
                    }
                }
            } else {
                for (r, k) in (0..rows).flat_map(|r| (0..depth).map(move |k| (r, k))) {
                    *to.add(origin::<ROWS, BY_ROWS>(r) + place::<BY_ROWS>(0, k)) =
                        *from.add(r * down + k * along);
                }
            }
        }
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
