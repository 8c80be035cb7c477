//! Order statistics of columns, by a sorting network over rows: no branch depends on a value.

use super::strip::{STRIP, StripRow};

/// Columns that are sorted at once: those of 64 rows stay in a first-level cache.
const COLUMNS: usize = 64;

/// One row's values in these columns.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct RowSlice([f64; COLUMNS]);

/// Finds in each column the smallest values at which the weights of it and of all smaller ones reach given thresholds.
pub(super) struct Sorter {
    weights: Vec<f64>,
    thresholds: Vec<f64>,
    /// Where rows of equal weight are sorted: the positions of what is looked for.
    positions: Option<Vec<usize>>,
    network: Vec<CompareExchange>,
    x: Vec<RowSlice>,
    w: Vec<RowSlice>,
    /// A row for each threshold.
    pub(super) found: Vec<StripRow>,
}

/// Puts the smaller value of two rows into `low`, the larger one into `high`, or only one of them.
#[derive(Clone, Copy)]
struct CompareExchange {
    low: usize,
    high: usize,
    keeps: [bool; 2],
}

impl Sorter {
    /// Weights and thresholds are whole or half numbers below 2⁵³, thresholds positive and at most Σ weights.
    pub(super) fn new(weights: Vec<f64>, thresholds: Vec<f64>) -> Self {
        let count = weights.len();
        let equal = weights.windows(2).all(|pair| pair[0] == pair[1]);
        let mut pairs = network(count);
        let positions: Option<Vec<usize>> =
            equal.then(|| thresholds.iter().map(|threshold| position(&weights, *threshold)).collect());
        let network = match &positions {
            Some(positions) => prune(count, &pairs, positions),
            None => {
                pairs.drain(..).map(|[low, high]| CompareExchange { low, high, keeps: [true; 2] }).collect()
            }
        };
        let rows = |needed: bool| if needed { vec![RowSlice([0.0; COLUMNS]); count] } else { Vec::new() };
        let found = vec![StripRow::ZERO; thresholds.len()];
        Self { network, x: rows(true), w: rows(!equal), weights, thresholds, positions, found }
    }

    /// Fills `found`. A weight of 0 changes nothing.
    #[inline(always)]
    pub(super) fn find(&mut self, rows: &[StripRow]) {
        for first in (0..STRIP).step_by(COLUMNS) {
            for (x, row) in self.x.iter_mut().zip(rows) {
                x.0.copy_from_slice(&row.0[first..first + COLUMNS]);
            }
            self.find_part(first);
        }
    }

    #[inline(always)]
    fn find_part(&mut self, first: usize) {
        if let Some(positions) = &self.positions {
            for step in &self.network {
                if let Ok([low, high]) = self.x.get_disjoint_mut([step.low, step.high]) {
                    exchange(low, high, step.keeps);
                }
            }
            for (found, position) in self.found.iter_mut().zip(positions) {
                found.0[first..first + COLUMNS].copy_from_slice(&self.x[*position].0);
            }
            return;
        }
        for (row, weight) in self.w.iter_mut().zip(&self.weights) {
            row.0.fill(*weight);
        }
        for step in &self.network {
            let pair = [step.low, step.high];
            if let (Ok(x), Ok(w)) = (self.x.get_disjoint_mut(pair), self.w.get_disjoint_mut(pair)) {
                exchange_weighted(x, w);
            }
        }
        for (found, threshold) in self.found.iter_mut().zip(&self.thresholds) {
            let part = pick(&self.x, &self.w, *threshold);
            found.0[first..first + COLUMNS].copy_from_slice(&part.0);
        }
    }
}

/// The last position that begins below the threshold.
fn position(weights: &[f64], threshold: f64) -> usize {
    let mut before = 0.0;
    let begins = weights.iter().map(|weight| {
        let begin = before;
        before += weight;
        begin
    });
    begins.take_while(|begin| *begin < threshold).count().saturating_sub(1)
}

/// The last value of each sorted column that begins below the threshold.
#[inline(always)]
fn pick(x: &[RowSlice], w: &[RowSlice], threshold: f64) -> RowSlice {
    let (mut found, mut before) = (RowSlice([0.0; COLUMNS]), [0.0; COLUMNS]);
    for (x, w) in x.iter().zip(w) {
        for (((found, before), x), w) in found.0.iter_mut().zip(&mut before).zip(&x.0).zip(&w.0) {
            *found = if *before < threshold { *x } else { *found };
            *before += w;
        }
    }
    found
}

#[inline(always)]
fn exchange(low: &mut RowSlice, high: &mut RowSlice, keeps: [bool; 2]) {
    match keeps {
        [true, true] => {
            for c in 0..COLUMNS {
                let (a, b) = (low.0[c], high.0[c]);
                low.0[c] = if a < b { a } else { b };
                high.0[c] = if b > a { b } else { a };
            }
        }
        [true, false] => {
            for c in 0..COLUMNS {
                let (a, b) = (low.0[c], high.0[c]);
                low.0[c] = if a < b { a } else { b };
            }
        }
        _ => {
            for c in 0..COLUMNS {
                let (a, b) = (low.0[c], high.0[c]);
                high.0[c] = if b > a { b } else { a };
            }
        }
    }
}

/// The same, with the weights. Swaps by masks, because compilers make a branch of selecting two pairs.
#[inline(always)]
fn exchange_weighted([low, high]: [&mut RowSlice; 2], [low_w, high_w]: [&mut RowSlice; 2]) {
    for c in 0..COLUMNS {
        let swap = u64::from(low.0[c] > high.0[c]).wrapping_neg();
        let x = (low.0[c].to_bits() ^ high.0[c].to_bits()) & swap;
        let w = (low_w.0[c].to_bits() ^ high_w.0[c].to_bits()) & swap;
        low.0[c] = f64::from_bits(low.0[c].to_bits() ^ x);
        high.0[c] = f64::from_bits(high.0[c].to_bits() ^ x);
        low_w.0[c] = f64::from_bits(low_w.0[c].to_bits() ^ w);
        high_w.0[c] = f64::from_bits(high_w.0[c].to_bits() ^ w);
    }
}

/// Batcher's merge exchange for any number of rows: Knuth, The Art of Computer Programming 3, algorithm 5.2.2M.
fn network(rows: usize) -> Vec<[usize; 2]> {
    let mut pairs = Vec::new();
    let top = rows.next_power_of_two() / 2;
    let mut p = top;
    while p > 0 {
        let (mut q, mut r, mut d) = (top, 0, p);
        loop {
            pairs.extend((0..rows.saturating_sub(d)).filter(|i| i & p == r).map(|i| [i, i + d]));
            if q == p {
                break;
            }
            d = q - p;
            q /= 2;
            r = p;
        }
        p /= 2;
    }
    pairs
}

/// The exchanges that the rows at `positions` depend on, and which of their results do.
fn prune(rows: usize, pairs: &[[usize; 2]], positions: &[usize]) -> Vec<CompareExchange> {
    let mut needed = vec![false; rows];
    for position in positions {
        needed[*position] = true;
    }
    let mut kept = Vec::new();
    for [low, high] in pairs.iter().rev().copied() {
        let keeps = [needed[low], needed[high]];
        if keeps != [false; 2] {
            kept.push(CompareExchange { low, high, keeps });
            (needed[low], needed[high]) = (true, true);
        }
    }
    kept.reverse();
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_network_sorts() {
        for count in 1..=10 {
            for bits in 0u32..1 << count {
                let mut values: Vec<u32> = (0..count).map(|i| bits >> i & 1).collect();
                for [low, high] in network(count) {
                    if values[low] > values[high] {
                        values.swap(low, high);
                    }
                }
                assert!(values.is_sorted(), "{count} rows, {bits:b}");
            }
        }
    }

    #[test]
    fn thresholds_are_found_with_and_without_weights() {
        let mut state = 1u64;
        let mut next = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        for count in (1..20).chain([64]) {
            for equal in [true, false] {
                let weights: Vec<f64> =
                    (0..count).map(|_| if equal { 3.0 } else { next(4) as f64 }).collect();
                let total: f64 = weights.iter().sum();
                if total == 0.0 {
                    continue;
                }
                let thresholds = vec![total / 2.0, 1.0, total, total - next(total as u64) as f64];
                let rows: Vec<StripRow> =
                    (0..count).map(|_| StripRow(std::array::from_fn(|_| next(30) as f64))).collect();
                let mut sorter = Sorter::new(weights.clone(), thresholds.clone());
                sorter.find(&rows);
                for (threshold, found) in thresholds.iter().zip(&sorter.found) {
                    for c in 0..STRIP {
                        let mut column: Vec<(f64, f64)> =
                            rows.iter().zip(&weights).map(|(row, w)| (row.0[c], *w)).collect();
                        column.sort_by(|a, b| a.0.total_cmp(&b.0));
                        let mut reached = 0.0;
                        let first = column.iter().find(|(_, w)| {
                            reached += w;
                            reached >= *threshold
                        });
                        assert_eq!(found.0[c], first.unwrap().0, "{count} rows, {threshold} of {total}");
                    }
                }
            }
        }
    }
}
