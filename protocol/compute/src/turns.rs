//! Turns: threads that hold different windows add to each part of the gradient in order of the windows. Those that a
//! thread takes together count as one window here.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};

use muster_core::lock::lock;

use crate::parallel::parts as cut;

/// Rows of a part that are waited for and added to together: few, so that threads follow each other closely.
const ROWS: usize = 256;

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
    failed: AtomicBool,
}

struct Segment<'g> {
    /// First row within its part.
    row: usize,
    /// Index of its first value in the gradient.
    first: usize,
    next: Mutex<Next<'g>>,
    moved: Condvar,
}

struct Next<'g> {
    window: usize,
    values: &'g mut [f32],
    /// Where the values go on the grid once they are whole; empty where they are not wanted there.
    q: &'g mut [i32],
}

/// Puts values on the grid: the index of the first in the gradient, the values, their integers.
pub(crate) type Quantise<'g> = dyn Fn(usize, &[f32], &mut [i32]) + Sync + 'g;

/// The end of a gradient's grid integers, and what computes them.
pub(crate) struct GridTarget<'g> {
    /// Empty where the gradient is not wanted on the grid.
    pub q: &'g mut [i32],
    pub quantise: &'g Quantise<'g>,
}

/// The turns of one window.
pub(crate) struct WindowTurns<'a, 'g> {
    turns: &'a Turns<'g>,
    window: usize,
}

impl<'g> Turns<'g> {
    /// `parts` cover the gradient in order. The last of the windows puts each piece that has a target on the grid, while
    /// it is in a cache.
    pub(crate) fn new(
        gradient: &'g mut [f32],
        parts: &[GradientSlice],
        windows: usize,
        target: GridTarget<'g>,
    ) -> Self {
        let GridTarget { mut q, quantise } = target;
        // Targets belong to the end of the gradient: its beginning may be whole only after all turns.
        let placed = gradient.len() - q.len();
        let failed = AtomicBool::new(false);
        let mut turns = Self { parts: Vec::new(), pieces: Vec::new(), windows, quantise, failed };
        for (values, GradientSlice { range, width }) in
            cut(gradient, parts.iter().map(|part| part.range.len())).zip(parts)
        {
            let piece = turns.pieces.len();
            for (index, values) in values.chunks_mut(ROWS * width).enumerate() {
                let (row, first) = (index * ROWS, range.start + index * ROWS * width);
                let length = if first < placed { 0 } else { values.len() };
                let (own, later) = std::mem::take(&mut q).split_at_mut(length);
                q = later;
                let next = Mutex::new(Next { window: 0, values, q: own });
                turns.pieces.push(Segment { row, first, next, moved: Condvar::new() });
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
        for Segment { row, first, next, moved } in &self.turns.pieces[self.turns.parts[part].clone()] {
            // Waits for earlier windows only, so that no two ever wait for each other.
            let mut turn = lock(next);
            while turn.window != self.window {
                assert!(!self.turns.failed.load(Ordering::SeqCst), "the thread of an earlier window failed");
                // A poisoned lock means no more than `failed`, which says it in words.
                turn = moved.wait(turn).unwrap_or_else(PoisonError::into_inner);
            }
            let Next { window, values, q } = &mut *turn;
            run(*row, values, self.window > 0);
            *window += 1;
            if *window == self.turns.windows && !q.is_empty() {
                (self.turns.quantise)(*first, values, q);
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
        for threads in 1..5 {
            let mut values = vec![0.0; 2003];
            let parts = [0..1, 1..2001, 2001..2003].map(|range| GradientSlice { range, width: 2 });
            let mut q = vec![0; 2002];
            let quantise = |first: usize, values: &[f32], q: &mut [i32]| {
                for (index, (value, q)) in values.iter().zip(q).enumerate() {
                    *q += (first + index) as i32 + *value as i32;
                }
            };
            let target = GridTarget { q: &mut q, quantise: &quantise };
            let turns = Turns::new(&mut values, &parts, 20, target);
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
    #[should_panic(expected = "")]
    fn a_failure_does_not_leave_others_waiting() {
        let mut values = [0.0];
        let parts = [GradientSlice { range: 0..1, width: 1 }];
        let target = GridTarget { q: &mut [], quantise: &|_, _, _| () };
        let turns = Turns::new(&mut values, &parts, 3, target);
        each(&mut [(); 3], 0..3, |(), window| {
            let turn = turns.of(window);
            assert_ne!(window, 0, "the first window fails");
            turn.take(0, |_, _, _| {});
        });
    }
}
