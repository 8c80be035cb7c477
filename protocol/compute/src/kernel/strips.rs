//! Strips of a left factor: some rows of a block of the depth, in place or packed, as tiles read them.
#![allow(unsafe_code)]

use std::cell::RefCell;
use std::ops::Range;

use super::line::Line;
use super::strided::Strided;
use super::vector::Vector;

/// Depth of a block: a tile's rows of it stay in the first-level cache.
pub(super) const DEPTH: usize = 512;
/// Tiles of a strip: all their rows of a block, and a block of the right factor, stay in the second-level cache.
pub(super) const TILES: usize = 11;
/// Values of a gap that keeps neighbours from sharing cache sets.
const GAP: usize = 16;
/// Rows that lie a multiple of this many values apart (half a page) share cache sets, and are not read in place.
const SHARING: usize = 512;
/// Values from row to row where rows are copied.
const PITCH: usize = DEPTH + GAP;
/// Most rows of a tile, in whole vectors, over all paths.
const HEIGHT_MAX: usize = 16;
/// Values of a thread's buffer.
pub(crate) const BUFFER: usize = TILES * (DEPTH * HEIGHT_MAX + GAP);

thread_local! {
    static STRIP: RefCell<Vec<Line>> = const { RefCell::new(Vec::new()) };
}

/// Lends this thread's buffer, which has room for a strip of any path.
pub(super) fn with_buffer(run: impl FnOnce(*mut f32)) {
    STRIP.with_borrow_mut(|lines| {
        lines.reserve(BUFFER / 16);
        run(lines.as_mut_ptr().cast());
    });
}

/// Values from depth to depth of a tile whose rows lie together: whole vectors.
const fn height<V: Vector, const ROWS: usize>() -> usize {
    const { assert!(ROWS * PITCH <= DEPTH * HEIGHT_MAX && ROWS.next_multiple_of(V::LANES) <= HEIGHT_MAX) };
    ROWS.next_multiple_of(V::LANES)
}

/// Where a tile of a packed strip whose rows lie together begins, or a row of its last tile.
const fn together<V: Vector, const ROWS: usize>(row: usize) -> usize {
    row / ROWS * (DEPTH * height::<V, ROWS>() + GAP) + row % ROWS
}

/// Rows of a strip and a block's depth, as tiles read them.
#[derive(Clone, Copy)]
pub(super) struct PackedStrip {
    pub first: *const f32,
    /// Values from row to row; where a tile's rows lie together, from depth to depth.
    pub step: usize,
}

impl PackedStrip {
    /// Where a row begins.
    ///
    /// # Safety
    /// The strip must have the row, and must have been made for `V`, `ROWS` and `BY_ROWS`.
    #[inline(always)]
    pub(super) unsafe fn row<V: Vector, const ROWS: usize, const BY_ROWS: bool>(
        &self,
        row: usize,
    ) -> *const f32 {
        // SAFETY: by contract.
        unsafe { self.first.add(if BY_ROWS { row * self.step } else { together::<V, ROWS>(row) }) }
    }

    /// Takes a strip, by rows or with a tile's rows together: in place where that is as fast, else packed.
    ///
    /// # Safety
    /// The processor must have the instruction set of `V`; the rows and the depth must lie within the left factor, with
    /// no more of either than a strip has; by rows, its columns must be neighbours. `to` is this thread's buffer.
    #[inline(always)]
    pub(super) unsafe fn take<V: Vector, const ROWS: usize, const BY_ROWS: bool>(
        left: Strided<'_>,
        rows: Range<usize>,
        depth: Range<usize>,
        to: *mut f32,
    ) -> Self {
        let Strided { data, row: down, column: along } = left;
        let (rows, depth, first) = (rows.len(), depth.len(), rows.start * down + depth.start * along);
        // SAFETY: by contract; a strip's rows and a block's depth fit into the buffer.
        unsafe {
            let from = data.as_ptr().add(first);
            if BY_ROWS && !down.is_multiple_of(SHARING) {
                return Self { first: from, step: down };
            }
            if BY_ROWS {
                for r in 0..rows {
                    from.add(r * down).copy_to_nonoverlapping(to.add(r * PITCH), depth);
                }
                return Self { first: to, step: PITCH };
            }
            let step = height::<V, ROWS>();
            if down == 1 {
                for k in 0..depth {
                    pack_together::<V, ROWS>(from.add(k * along), rows, along, to.add(k * step));
                }
            } else {
                for (r, k) in (0..rows).flat_map(|r| (0..depth).map(move |k| (r, k))) {
                    *to.add(together::<V, ROWS>(r) + k * step) = *from.add(r * down + k * along);
                }
            }
            Self { first: to, step }
        }
    }
}

/// Packs the rows of one depth, which are neighbours.
///
/// # Safety
/// As [`PackedStrip::take`].
#[inline(always)]
unsafe fn pack_together<V: Vector, const ROWS: usize>(
    from: *const f32,
    rows: usize,
    along: usize,
    to: *mut f32,
) {
    for row in (0..rows).step_by(ROWS) {
        for v in (0..height::<V, ROWS>()).step_by(V::LANES) {
            let first = row + v;
            // SAFETY: by contract; lanes beyond the rows are not read, those beyond the tile's own are never used.
            unsafe {
                V::prefetch(from.wrapping_add(8 * along + first));
                let values = match rows.saturating_sub(first) {
                    left if left >= V::LANES => V::load(from.add(first)),
                    left => V::load_first(from.wrapping_add(first), left),
                };
                values.store(to.add(together::<V, ROWS>(row) + v));
            }
        }
    }
}
