//! The coordinate-wise trimmed mean (Yin et al. 2018): per coefficient, the weighted mean of what is left when a share
//! of the weight is cut off at either end. For comparison only.

use super::order::Sorter;
use super::rows::InputRows;
use super::runner::CoefficientPass;
use super::strip::STRIP;

/// Cuts `cut` off the weight at either end (AGG-13).
///
/// a is the smallest value at which the weights of it and of all smaller ones exceed `cut`, b the largest one at which
/// those of it and of all larger ones do. With y_i = min(max(x_i, a), b) and W = Σ w, the result is
/// `a + (Σ w_i·(y_i − a) − cut·(b − a))/(W − 2·cut)`, the sum from 0 in order of slot: it is the mean over the values
/// between a and b, of which a and b count with what the cut left of their weights.
pub(super) struct Trim<'a> {
    pub(super) rows: InputRows<'a>,
    weights: Vec<f64>,
    cut: f64,
    sorter: Sorter,
    into: &'a mut [f32],
}

impl<'a> Trim<'a> {
    /// 2·`cut` < Σ weights < 2⁵³.
    pub(super) fn new(rows: InputRows<'a>, cut: u64, into: &'a mut [f32]) -> Self {
        let weights: Vec<f64> = rows.inputs.iter().map(|input| input.weight as f64).collect();
        let cut = cut as f64;
        // Weights are integers: cut + 1 is the least that exceeds the cut.
        let thresholds = vec![cut + 1.0, weights.iter().sum::<f64>() - cut];
        Self { rows, sorter: Sorter::new(weights.clone(), thresholds), weights, cut, into }
    }
}

impl CoefficientPass for Trim<'_> {
    /// How often each input lay between a and b.
    type Output = Vec<u64>;

    #[inline(always)]
    fn run(mut self) -> Vec<u64> {
        let (count, length) = (self.rows.count(), self.rows.length());
        let left = self.weights.iter().sum::<f64>() - 2.0 * self.cut;
        let mut inside = vec![0u64; count];
        let mut strip = self.rows.strip();
        for start in (0..length).step_by(STRIP) {
            let columns = self.rows.read(start, &mut strip);
            self.sorter.find(&strip.rows[..count]);
            let [a, b] = [self.sorter.found[0].0, self.sorter.found[1].0];
            let mut sum = [0.0; STRIP];
            for ((row, weight), inside) in strip.rows.iter().zip(&self.weights).zip(&mut inside) {
                let mut hits = 0u64;
                for c in 0..STRIP {
                    let x = row.0[c];
                    let raised = if x < a[c] { a[c] } else { x };
                    let y = if raised > b[c] { b[c] } else { raised };
                    sum[c] += weight * (y - a[c]);
                    hits += u64::from(y == x);
                }
                // The padding is 0 in every row: it lies between.
                *inside += hits - (STRIP - columns) as u64;
            }
            let mut rounded = [0.0f32; STRIP];
            for c in 0..STRIP {
                rounded[c] = (a[c] + (sum[c] - self.cut * (b[c] - a[c])) / left) as f32;
            }
            self.into[start..start + columns].copy_from_slice(&rounded[..columns]);
        }
        inside
    }
}
