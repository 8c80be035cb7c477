//! Rows of audits on several threads.

use muster_core::messages::audit::TableRow;
use muster_core::sketch::Probe;

use crate::parallel::each;

/// Coefficients that one task takes: enough to pay for the powers and signs that it begins with.
const PIECE: usize = 1 << 18;

/// As [`Probe::row`], on `threads` threads (0 counts as one).
pub fn row(threads: usize, probe: &Probe, q: &[i32], loss: i64) -> TableRow {
    let mut pieces: Vec<Option<TableRow>> = vec![None; q.len().div_ceil(PIECE).max(1)];
    let mut workers = vec![(); threads.clamp(1, pieces.len())];
    let tasks = pieces.iter_mut().enumerate().map(|(index, row)| {
        let start = (index * PIECE).min(q.len());
        (start, &q[start..(start + PIECE).min(q.len())], row)
    });
    each(&mut workers, tasks, |(), (start, piece, row)| {
        *row = Some(probe.row_of_piece(start, piece));
    });
    let pieces: Vec<TableRow> = pieces.into_iter().flatten().collect();
    TableRow { sketch: probe.sum(&pieces).0, loss }
}

#[cfg(test)]
mod tests {
    use muster_core::ids::Digest;

    use super::*;

    #[test]
    fn pieces_make_the_fingerprint() {
        let probe = Probe::exact(&Digest([3; 32]));
        for length in [0, 5, PIECE, 3 * PIECE + 77] {
            let q: Vec<i32> = (0..length).map(|c| (c as i32).wrapping_mul(-1_640_531_535) >> 9).collect();
            let right = probe.row(&q, 7);
            assert!((0..5).all(|threads| row(threads, &probe, &q, 7) == right), "{length}");
        }
    }
}
