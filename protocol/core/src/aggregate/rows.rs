//! Passes over the coefficients of a block, a strip of every input at a time, so that compilers vectorise them.

use super::Input;

/// Coefficients of a strip: a multiple of [`LANES`]; the rows of a few inputs stay in a first-level cache.
const STRIP: usize = 128;
/// Partial sums of a product of two inputs.
const LANES: usize = 8;

type Row = [f64; STRIP];

/// The inputs of one block, in order of slot.
pub(super) struct Rows<'a> {
    inputs: &'a [Input<'a>],
    sorter: Sorter,
}

/// A symmetric matrix over the inputs.
pub(super) struct Gram {
    /// Rows up to the diagonal, one after the other.
    half: Vec<f64>,
}

impl Gram {
    /// One entry.
    pub(super) fn at(&self, i: usize, j: usize) -> f64 {
        self.half[triangle(i, j)]
    }
}

fn triangle(i: usize, j: usize) -> usize {
    let (low, high) = if i < j { (i, j) } else { (j, i) };
    high * (high + 1) / 2 + low
}

impl<'a> Rows<'a> {
    /// Inputs of one length, at least one.
    pub(super) fn new(inputs: &'a [Input<'a>]) -> Self {
        Self { inputs, sorter: Sorter::new(inputs.iter().map(|input| input.weight as f64).collect()) }
    }

    /// The weighted coordinate median v₀.
    pub(super) fn medians(&mut self) -> Vec<f64> {
        let mut medians = Vec::with_capacity(self.length());
        self.each_strip(|sorter, x, length| medians.extend(&sorter.medians(x)[..length]));
        medians
    }

    /// v₀, and the products ⟨y_i, y_j⟩ of the y_i = x_i − v₀.
    pub(super) fn gram(&mut self) -> (Vec<f64>, Gram) {
        let count = self.inputs.len();
        let mut medians = Vec::with_capacity(self.length());
        let mut sums = vec![[0.0; LANES]; triangle(count, 0)];
        self.each_strip(|sorter, x, length| {
            let centre = sorter.medians(x);
            medians.extend(&centre[..length]);
            for row in x.iter_mut() {
                for (x, centre) in row.iter_mut().zip(&centre) {
                    *x -= centre;
                }
            }
            // The padding is 0 in every row, and adds 0.
            let pairs =
                x.iter().enumerate().flat_map(|(i, one)| x[..=i].iter().map(move |other| (one, other)));
            for (sums, (one, other)) in sums.iter_mut().zip(pairs) {
                add_products(sums, one, other);
            }
        });
        let half = sums.iter().map(|s| ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7])));
        (medians, Gram { half: half.collect() })
    }

    /// `base + Σ k_j (x_j − base)`, the sum from 0 in order of slot, rounded to f32.
    pub(super) fn combine(&mut self, base: &[f64], k: &[f64]) -> Vec<f32> {
        let mut values = Vec::with_capacity(self.length());
        self.each_strip(|_, x, length| {
            let mut strip = [0.0; STRIP];
            strip[..length].copy_from_slice(&base[values.len()..values.len() + length]);
            let mut shift = [0.0; STRIP];
            for (row, k) in x.iter().zip(k) {
                for ((shift, x), base) in shift.iter_mut().zip(row).zip(&strip) {
                    *shift += k * (x - base);
                }
            }
            values.extend(strip.iter().zip(&shift).map(|(base, shift)| (base + shift) as f32).take(length));
        });
        values
    }

    fn length(&self) -> usize {
        self.inputs.first().map_or(0, |input| input.q.len())
    }

    /// Shows the x_i of one strip after the other, padded with zeros, and how many coefficients are no padding.
    fn each_strip(&mut self, mut visit: impl FnMut(&mut Sorter, &mut [Row], usize)) {
        let mut x = vec![[0.0; STRIP]; self.inputs.len()];
        for start in (0..self.length()).step_by(STRIP) {
            let length = STRIP.min(self.length() - start);
            for (row, input) in x.iter_mut().zip(self.inputs) {
                let m = f64::from(input.m);
                row[length..].fill(0.0);
                for (x, q) in row.iter_mut().zip(&input.q[start..start + length]) {
                    *x = f64::from(*q) / m;
                }
            }
            visit(&mut self.sorter, &mut x, length);
        }
    }
}

fn add_products(sums: &mut [f64; LANES], one: &Row, other: &Row) {
    let mut lanes = *sums;
    for (one, other) in one.as_chunks::<LANES>().0.iter().zip(other.as_chunks::<LANES>().0) {
        for lane in 0..LANES {
            lanes[lane] += one[lane] * other[lane];
        }
    }
    *sums = lanes;
}

/// Weighted medians of columns, by a sorting network over rows: no branch depends on a value.
struct Sorter {
    weights: Vec<f64>,
    half: f64,
    equal: bool,
    network: Vec<[usize; 2]>,
    x: Vec<Row>,
    w: Vec<Row>,
}

impl Sorter {
    fn new(weights: Vec<f64>) -> Self {
        let count = weights.len();
        let half = weights.iter().sum::<f64>() / 2.0;
        let equal = weights.windows(2).all(|pair| pair[0] == pair[1]);
        let [x, w] = [vec![[0.0; STRIP]; count], vec![[0.0; STRIP]; count]];
        Self { weights, half, equal, network: network(count), x, w }
    }

    /// The smallest value of each column at which the weights of it and all smaller ones reach half.
    fn medians(&mut self, rows: &[Row]) -> Row {
        self.x.copy_from_slice(rows);
        if self.equal {
            for [low, high] in &self.network {
                if let Ok([low, high]) = self.x.get_disjoint_mut([*low, *high]) {
                    exchange(low, high);
                }
            }
            return self.x[(rows.len() - 1) / 2];
        }
        for (row, weight) in self.w.iter_mut().zip(&self.weights) {
            row.fill(*weight);
        }
        for pair in &self.network {
            if let (Ok(x), Ok(w)) = (self.x.get_disjoint_mut(*pair), self.w.get_disjoint_mut(*pair)) {
                exchange_weighted(x, w);
            }
        }
        self.pick()
    }

    /// The last value of each sorted column that begins before half of the weight.
    fn pick(&self) -> Row {
        let mut medians = [0.0; STRIP];
        let mut before = [0.0; STRIP];
        for (x, w) in self.x.iter().zip(&self.w) {
            for c in 0..STRIP {
                medians[c] = if before[c] < self.half { x[c] } else { medians[c] };
                before[c] += w[c];
            }
        }
        medians
    }
}

/// Puts the smaller value of each column into `low`.
fn exchange(low: &mut Row, high: &mut Row) {
    for (low, high) in low.iter_mut().zip(high) {
        let (a, b) = (*low, *high);
        *low = if a < b { a } else { b };
        *high = if b > a { b } else { a };
    }
}

/// The same, with the weights. Swaps by masks, because compilers make a branch of selecting two pairs.
fn exchange_weighted([low, high]: [&mut Row; 2], [low_w, high_w]: [&mut Row; 2]) {
    for c in 0..STRIP {
        let swap = u64::from(low[c] > high[c]).wrapping_neg();
        let x = (low[c].to_bits() ^ high[c].to_bits()) & swap;
        let w = (low_w[c].to_bits() ^ high_w[c].to_bits()) & swap;
        low[c] = f64::from_bits(low[c].to_bits() ^ x);
        high[c] = f64::from_bits(high[c].to_bits() ^ x);
        low_w[c] = f64::from_bits(low_w[c].to_bits() ^ w);
        high_w[c] = f64::from_bits(high_w[c].to_bits() ^ w);
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
    fn a_strip_keeps_lanes_apart() {
        assert_eq!(STRIP % LANES, 0);
    }
}
