//! Matrices within slices.

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
