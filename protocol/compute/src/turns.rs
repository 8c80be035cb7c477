//! Turns: threads that hold different windows add to each part of the gradient in order of the windows. Those that a
//! thread takes together count as one window here.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};

use muster_core::layout::split;
use muster_core::lock::lock;

/// Rows of a part that are waited for and added to together: few, so that threads follow each other closely.
pub(crate) const ROWS: usize = 256;

/// A part of a gradient.
#[derive(Clone, Debug)]
pub(crate) struct GradientSlice {
    pub range: Range<usize>,
    /// Width of its rows.
    pub width: usize,
}

/// A gradient in pieces, each with the window whose turn it is.
pub(crate) struct Turns<'g> {
    /// Pieces of every part.
    parts: Vec<Range<usize>>,
    pieces: Vec<Segment<'g>>,
    windows: usize,
    quantise: &'g Quantise<'g>,
    spare: &'g Pieces,
    failed: AtomicBool,
}

/// Vectors that pieces have had, by their length.
#[derive(Default)]
pub(crate) struct Pieces(Mutex<BTreeMap<usize, Vec<Vec<f32>>>>);

impl Pieces {
    /// One of this length, with any values.
    fn take(&self, length: usize) -> Vec<f32> {
        let spare = lock(&self.0).get_mut(&length).and_then(Vec::pop);
        spare.unwrap_or_else(|| vec![0.0; length])
    }

    fn give(&self, piece: Vec<f32>) {
        lock(&self.0).entry(piece.len()).or_default().push(piece);
    }
}

struct Segment<'g> {
    /// First row within its part.
    row: usize,
    /// Index of its first value in the gradient, and how many it has.
    first: usize,
    length: usize,
    next: Mutex<Next<'g>>,
    moved: Condvar,
}

struct Next<'g> {
    window: usize,
    values: Values<'g>,
}

/// The values of a piece.
enum Values<'g> {
    /// In the gradient.
    Kept(&'g mut [f32]),
    /// On their way to the grid: from the first window until the last, which puts them there.
    Passing(Vec<f32>, Integers<'g>),
}

/// Puts values on the grid: the index of the first in the gradient, the values, their integers.
pub(crate) type Quantise<'g> = dyn Fn(usize, &[f32], &mut [i32]) + Sync + 'g;

/// Takes integers of a gradient: the index of the first, and these.
pub(crate) type Give<'g> = dyn Fn(usize, &[i32]) + Sync + 'g;

/// Where the grid integers of a gradient, or of a piece of it, go.
pub(crate) enum Integers<'g> {
    /// They are not wanted.
    Nowhere,
    /// They are all kept.
    Into(&'g mut [i32]),
    /// They are given away, piece by piece.
    Given(&'g Give<'g>),
}

impl<'g> Integers<'g> {
    /// Those of the first values, and those of the others.
    pub(crate) fn split_at(self, count: usize) -> (Self, Self) {
        match self {
            Self::Nowhere => (Self::Nowhere, Self::Nowhere),
            Self::Into(q) => {
                let (first, others) = q.split_at_mut(count);
                (Self::Into(first), Self::Into(others))
            }
            Self::Given(give) => (Self::Given(give), Self::Given(give)),
        }
    }

    /// Puts these values on the grid, whose first has this index in the gradient.
    pub(crate) fn put(&mut self, quantise: &Quantise<'_>, first: usize, values: &[f32]) {
        match self {
            Self::Nowhere => {}
            Self::Into(q) => quantise(first, values, q),
            Self::Given(give) => {
                let mut q = vec![0; values.len()];
                quantise(first, values, &mut q);
                give(first, &q);
            }
        }
    }
}

/// Where the end of a gradient's grid integers goes, and what computes them.
pub(crate) struct GridTarget<'g> {
    pub q: Integers<'g>,
    pub quantise: &'g Quantise<'g>,
}

/// The turns of one window.
pub(crate) struct WindowTurns<'a, 'g> {
    turns: &'a Turns<'g>,
    window: usize,
}

impl<'g> Turns<'g> {
    /// `parts` cover the gradient in order. `kept` is its beginning, which may be whole only after all turns, or all of it. The
    /// last of the windows puts each later piece on the grid, while it is in a cache; only then does it take memory.
    pub(crate) fn new(
        kept: &'g mut [f32],
        spare: &'g Pieces,
        parts: &[GradientSlice],
        windows: usize,
        target: GridTarget<'g>,
    ) -> Self {
        let GridTarget { mut q, quantise } = target;
        let (end, mut kept) = (kept.len(), kept);
        let failed = AtomicBool::new(false);
        let mut turns = Self { parts: Vec::new(), pieces: Vec::new(), windows, quantise, spare, failed };
        for GradientSlice { range, width } in parts {
            let piece = turns.pieces.len();
            for (index, range) in split(range.clone(), ROWS * width).enumerate() {
                let values = if range.start < end {
                    let (own, later) = std::mem::take(&mut kept).split_at_mut(range.len());
                    kept = later;
                    Values::Kept(own)
                } else {
                    let (own, later) = std::mem::replace(&mut q, Integers::Nowhere).split_at(range.len());
                    q = later;
                    Values::Passing(Vec::new(), own)
                };
                let (row, first, length) = (index * ROWS, range.start, range.len());
                let next = Mutex::new(Next { window: 0, values });
                turns.pieces.push(Segment { row, first, length, next, moved: Condvar::new() });
            }
            turns.parts.push(piece..turns.pieces.len());
        }
        turns
    }

    /// The turns of a window. Windows must begin in order, each on a thread of its own or after another's end.
    pub(crate) fn of(&self, window: usize) -> WindowTurns<'_, 'g> {
        WindowTurns { turns: self, window }
    }
}

impl WindowTurns<'_, '_> {
    /// Adds to a part, piece by piece, each once every earlier window has: `run` gets the piece's first row, its values,
    /// and whether they hold anything yet. A window must take every part once.
    ///
    /// # Panics
    /// When the thread of another window panicked.
    pub(crate) fn take(&self, part: usize, mut run: impl FnMut(usize, &mut [f32], bool)) {
        for Segment { row, first, length, next, moved } in &self.turns.pieces[self.turns.parts[part].clone()]
        {
            // Waits for earlier windows only, so that no two ever wait for each other.
            let mut turn = lock(next);
            while turn.window != self.window {
                assert!(!self.turns.failed.load(Ordering::SeqCst), "the thread of an earlier window failed");
                // A poisoned lock means no more than `failed`, which says it in words.
                turn = moved.wait(turn).unwrap_or_else(PoisonError::into_inner);
            }
            let Next { window, values } = &mut *turn;
            *window += 1;
            match values {
                Values::Kept(values) => run(*row, values, self.window > 0),
                Values::Passing(values, q) => {
                    if self.window == 0 {
                        *values = self.turns.spare.take(*length);
                    }
                    run(*row, values, self.window > 0);
                    if *window == self.turns.windows {
                        q.put(self.turns.quantise, *first, values);
                        self.turns.spare.give(std::mem::take(values));
                    }
                }
            }
            // All of them: several windows may wait here, and only one is the next.
            moved.notify_all();
        }
    }
}

impl Drop for WindowTurns<'_, '_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.turns.failed.store(true, Ordering::SeqCst);
            for Segment { next, moved, .. } in &self.turns.pieces {
                // Between a look at `failed` and the wait a window holds this lock: without it the call could be missed.
                drop(lock(next));
                moved.notify_all();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parallel::each;

    #[test]
    fn windows_add_in_order() {
        for (threads, kept) in (1..5).flat_map(|threads| [(threads, 1), (threads, 2003)]) {
            let mut values = vec![0.0; kept];
            let parts = [0..1, 1..2001, 2001..2003].map(|range| GradientSlice { range, width: 2 });
            let (spare, mut q) = (Pieces::default(), vec![0; 2003 - kept]);
            let quantise = |first: usize, values: &[f32], q: &mut [i32]| {
                for (index, (value, q)) in values.iter().zip(q).enumerate() {
                    *q += (first + index) as i32 + *value as i32;
                }
            };
            let target = GridTarget { q: Integers::Into(&mut q), quantise: &quantise };
            let turns = Turns::new(&mut values, &spare, &parts, 20, target);
            assert_eq!(turns.parts, [0..1, 1..5, 5..6]);
            each(&mut vec![(); threads], 0..20, |(), window| {
                let turn = turns.of(window);
                for part in [2, 0, 1] {
                    turn.take(part, |row, values, holds| {
                        assert_eq!(holds, window > 0);
                        assert!(row % ROWS == 0 && values.len() <= 2 * ROWS);
                        values.iter_mut().for_each(|value| *value = *value * 0.5 + window as f32);
                    });
                }
            });
            drop(turns);
            let expected = (0..20).fold(0.0, |sum, window| sum * 0.5 + window as f32);
            assert!(values.iter().all(|value| *value == expected));
            assert!(q.iter().zip(1..).all(|(q, index)| *q == index + expected as i32));
        }
    }

    #[test]
    fn one_window_has_the_memory_of_one_piece() {
        let parts = [GradientSlice { range: 0..8 * ROWS, width: 1 }];
        let (spare, mut q) = (Pieces::default(), vec![0; 8 * ROWS]);
        let target = GridTarget { q: Integers::Into(&mut q), quantise: &|_, _, q| q.fill(1) };
        let turns = Turns::new(&mut [], &spare, &parts, 1, target);
        turns.of(0).take(0, |_, values, _| assert_eq!(values.len(), ROWS));
        drop(turns);
        assert_eq!(spare.0.into_inner().unwrap()[&ROWS].len(), 1);
        assert!(q.iter().all(|q| *q == 1));
    }

    #[test]
    #[should_panic(expected = "")]
    fn a_failure_does_not_leave_others_waiting() {
        let mut values = [0.0];
        let parts = [GradientSlice { range: 0..1, width: 1 }];
        let target = GridTarget { q: Integers::Nowhere, quantise: &|_, _, _| () };
        let spare = Pieces::default();
        let turns = Turns::new(&mut values, &spare, &parts, 3, target);
        each(&mut [(); 3], 0..3, |(), window| {
            let turn = turns.of(window);
            assert_ne!(window, 0, "the first window fails");
            turn.take(0, |_, _, _| {});
        });
    }
}
