//! Matrix products: every output element is one chain `acc = fma(a[i][k], b[k][j], acc)` in order of k.
//!
//! The right factor is packed into panels of a few columns; the depth is cut into blocks that are joined by storing
//! and loading the output, which loses nothing; vectors run over output columns. None of this changes the chain.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::ops::Range;

#[cfg(target_arch = "x86_64")]
use super::Hardware;
use super::{Anywhere, Fma};
use crate::path::{Kernels, Path};

/// Depth of a block: a panel of it stays in the first-level cache.
const DEPTH: usize = 256;
/// Columns of a block: its panels stay in the second-level cache.
const COLUMNS: usize = 256;
/// Most rows of a tile, over all paths.
const ROWS_MAX: usize = 8;

/// A matrix within a slice: element (i, j) at `i·row + j·column`.
#[derive(Clone, Copy)]
pub(crate) struct Strided<'a> {
    pub data: &'a [f32],
    pub row: usize,
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

/// One cache line.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([f32; 16]);

/// A packed right factor: panels of columns, each with its depth in order, the last one filled up with zeros.
#[derive(Default)]
pub(crate) struct Panels {
    lines: Vec<Line>,
    /// Lines in one row of a panel.
    across: usize,
    depth: usize,
    columns: usize,
}

/// Lines in one row of a path's panels: its tile's width over 16.
fn lines_across(kernels: Kernels) -> usize {
    if kernels.path() == Path::Avx512 { 2 } else { 1 }
}

impl Panels {
    /// Packs a `depth` × `columns` matrix.
    pub(crate) fn pack(&mut self, kernels: Kernels, right: Strided<'_>, depth: usize, columns: usize) {
        self.pack_across(lines_across(kernels), right, depth, columns);
    }

    fn pack_across(&mut self, across: usize, right: Strided<'_>, depth: usize, columns: usize) {
        (self.across, self.depth, self.columns) = (across, depth, columns);
        self.lines.resize(columns.div_ceil(16 * across) * across * depth, Line([0.0; 16]));
        for (index, start) in (0..columns.next_multiple_of(16 * across)).step_by(16).enumerate() {
            let first = index / across * depth * across + index % across;
            let lines = self.lines[first..].iter_mut().step_by(across).take(depth);
            let width = columns.saturating_sub(start).min(16);
            if right.column == 1 && width == 16 {
                for (k, line) in lines.enumerate() {
                    let from = k * right.row + start;
                    line.0.copy_from_slice(&right.data[from..from + 16]);
                }
            } else if width == 16 && right.row == 1 {
                let rows: [&[f32]; 16] =
                    std::array::from_fn(|c| &right.data[(start + c) * right.column..][..depth]);
                for (k, line) in lines.enumerate() {
                    line.0 = std::array::from_fn(|c| rows[c][k]);
                }
            } else {
                for (k, line) in lines.enumerate() {
                    let value = |c: usize| right.data[k * right.row + (start + c) * right.column];
                    line.0 = std::array::from_fn(|c| if c < width { value(c) } else { 0.0 });
                }
            }
        }
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
        Self { left, right, rows, depth: 0..right.depth, columns: right.columns, add: false }
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
    assert!(right.across == lines_across(kernels), "panels of another path");
    assert!(depth.start < depth.end && depth.end <= right.depth && *columns <= right.columns);
    assert!((rows - 1) * left.row + (depth.end - 1) * left.column < left.data.len());
    assert!((rows - 1) * stride + columns <= out.len() && (*rows == 1 || *columns <= stride));
    match kernels.path() {
        // SAFETY: a `Kernels` exists only for a path that this processor has; the extents were checked above.
        #[cfg(target_arch = "x86_64")]
        Path::Avx512 => unsafe { avx512(product, out, stride) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Path::Avx2 => unsafe { avx2(product, out, stride) },
        // SAFETY: the extents were checked above.
        _ => unsafe { blocks::<Anywhere, 4, 16>(product, out, stride) },
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
unsafe fn avx512(product: &Product<'_>, out: &mut [f32], stride: usize) {
    // SAFETY: passed on.
    unsafe { blocks::<Hardware, 8, 32>(product, out, stride) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn avx2(product: &Product<'_>, out: &mut [f32], stride: usize) {
    // SAFETY: passed on.
    unsafe { blocks::<Hardware, 6, 16>(product, out, stride) }
}

/// Walks the blocks and tiles of a product.
///
/// # Safety
/// The extents of `product` must lie within its factors and `out`, and `right` must be packed for width `N`.
#[inline(always)]
unsafe fn blocks<F: Fma, const M: usize, const N: usize>(
    product: &Product<'_>,
    out: &mut [f32],
    stride: usize,
) {
    let Product { left, right, rows, columns, .. } = product;
    let pack = left.column != 1 && *columns > N;
    let panels = right.lines.as_ptr().cast::<f32>();
    for first_column in (0..*columns).step_by(COLUMNS) {
        let last_column = (*columns).min(first_column + COLUMNS);
        for start in product.depth.clone().step_by(DEPTH) {
            let depth = DEPTH.min(product.depth.end - start);
            let add = product.add || start > product.depth.start;
            let mut packed = [const { MaybeUninit::<[f32; ROWS_MAX]>::uninit() }; DEPTH];
            for row in (0..*rows).step_by(M) {
                let height = M.min(rows - row);
                let mut a = [left.data.as_ptr(); M];
                for (r, pointer) in a.iter_mut().enumerate() {
                    // SAFETY: row + min(r, height − 1) < rows and start < depth.end: inside `left.data`.
                    *pointer =
                        unsafe { pointer.add((row + r.min(height - 1)) * left.row + start * left.column) };
                }
                let mut step = left.column;
                if pack {
                    for (k, line) in packed.iter_mut().take(depth).enumerate() {
                        let line = line.write([0.0; ROWS_MAX]);
                        for (value, pointer) in line.iter_mut().zip(&a) {
                            // SAFETY: start + k < depth.end: inside `left.data`.
                            *value = unsafe { *pointer.add(k * step) };
                        }
                    }
                    a = std::array::from_fn(|r| packed.as_ptr().cast::<f32>().wrapping_add(r));
                    step = ROWS_MAX;
                }
                for column in (first_column..last_column).step_by(N) {
                    let width = N.min(last_column - column);
                    // SAFETY: panel column/N starts at column·depth; its rows start … start + depth exist. The tile
                    // of `height` × `width` at (row, column) lies within `out`.
                    unsafe {
                        let b = panels.add(column * right.depth + start * N);
                        let c = out.as_mut_ptr().add(row * stride + column);
                        let tile = Tile { a, step, b, depth, add };
                        if height == M && width == N {
                            tile.run::<F, N>(c, stride);
                        } else {
                            tile.run_part::<F, N>(c, stride, [height, width]);
                        }
                    }
                }
            }
        }
    }
}

/// The factors of one tile of one block.
struct Tile<const M: usize> {
    /// Where each row of the left factor starts; rows beyond the output's height repeat the last one.
    a: [*const f32; M],
    step: usize,
    b: *const f32,
    depth: usize,
    add: bool,
}

impl<const M: usize> Tile<M> {
    /// Computes a whole tile in registers.
    ///
    /// # Safety
    /// `a[r]` must be readable at `k·step` and `b` at `k·N .. k·N + N` for k < depth; `c` must be readable and
    /// writable at M rows of N with `stride`.
    #[inline(always)]
    unsafe fn run<F: Fma, const N: usize>(&self, c: *mut f32, stride: usize) {
        let mut sums = [[0.0f32; N]; M];
        // SAFETY: by contract.
        unsafe {
            if self.add {
                for (r, row) in sums.iter_mut().enumerate() {
                    *row = c.add(r * stride).cast::<[f32; N]>().read_unaligned();
                }
            }
            for k in 0..self.depth {
                let b = self.b.add(k * N).cast::<[f32; N]>().read();
                for (row, pointer) in sums.iter_mut().zip(&self.a) {
                    let a = *pointer.add(k * self.step);
                    for (sum, b) in row.iter_mut().zip(&b) {
                        *sum = F::fma(a, *b, *sum);
                    }
                }
            }
            for (r, row) in sums.iter().enumerate() {
                c.add(r * stride).cast::<[f32; N]>().write_unaligned(*row);
            }
        }
    }

    /// Computes a tile at an edge of the output, through a whole one beside it.
    ///
    /// # Safety
    /// As [`Tile::run`], with `c` readable and writable at `height` rows of `width`.
    #[inline(always)]
    unsafe fn run_part<F: Fma, const N: usize>(
        &self,
        c: *mut f32,
        stride: usize,
        [height, width]: [usize; 2],
    ) {
        let mut whole = [[0.0f32; N]; M];
        // SAFETY: by contract; `whole` is M rows of N.
        unsafe {
            for (r, row) in whole.iter_mut().enumerate().take(height) {
                c.add(r * stride).copy_to_nonoverlapping(row.as_mut_ptr(), width);
            }
            self.run::<F, N>(whole.as_mut_ptr().cast(), N);
            for (r, row) in whole.iter().enumerate().take(height) {
                c.add(r * stride).copy_from_nonoverlapping(row.as_ptr(), width);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::paths;

    /// Values of all magnitudes, subnormals and −0 among them.
    fn values(count: usize, seed: u32) -> Vec<f32> {
        let mut word = seed.wrapping_mul(2_654_435_761) | 1;
        let mut next = || {
            word ^= word << 13;
            word ^= word >> 17;
            word ^= word << 5;
            word
        };
        let value = |bits: u32| match bits % 23 {
            0 => f32::from_bits(bits & 0x807f_ffff),
            1 => -0.0,
            _ => f32::from_bits((bits & 0x807f_ffff) | (110 + (bits >> 8) % 24) << 23),
        };
        (0..count).map(|_| value(next())).collect()
    }

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

    fn bits(values: &[f32]) -> Vec<u32> {
        values.iter().map(|value| value.to_bits()).collect()
    }

    #[test]
    fn every_path_computes_the_defined_chains() {
        let shapes =
            [[1, 1, 1], [6, 16, 16], [7, 17, 5], [8, 32, 300], [25, 40, 64], [13, 259, 3], [50, 33, 513]];
        for (seed, [rows, columns, depth]) in shapes.into_iter().enumerate() {
            let a = values(rows * depth + 64, seed as u32 + 1);
            let b = values(columns * depth + 64, seed as u32 + 100);
            let old = values(rows * (columns + 3), seed as u32 + 200);
            for case in 0..16 {
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

    /// The tile of AVX-512, on any processor.
    #[test]
    fn the_widest_tile_computes_the_defined_chains() {
        for [rows, columns, depth] in [[8, 32, 7], [9, 33, 300], [23, 300, 5]] {
            let (a, b) = (values(rows * depth, 1), values(columns * depth, 2));
            let right = Strided::rows(&b, columns);
            let mut panels = Panels::default();
            panels.pack_across(2, right, depth, columns);
            let product = Product::full(Strided::rows(&a, depth), &panels, rows);
            let (mut expected, mut found) = (vec![0.0; rows * columns], vec![0.0; rows * columns]);
            plain(&product, right, &mut expected, columns);
            // SAFETY: all of the factors, packed for a width of 32, into an output of their size.
            unsafe { blocks::<Anywhere, 8, 32>(&product, &mut found, columns) };
            assert_eq!(bits(&found), bits(&expected));
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
