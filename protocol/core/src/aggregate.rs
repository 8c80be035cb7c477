//! The robust rule: members' sums of one block become one vector, in defined bits.
//!
//! With x_i = Q_i/m_i, the centred-clip rule solves Σ w_i (x_i − v)·min(1, c·s/(√m_i‖x_i − v‖)) = 0: Huber's
//! M-estimator on standardised residuals, which have one size for honest members however much they computed. The
//! radius c·s/√m_i follows from s, the weighted median of √m_i‖x_i − v₀‖ around the weighted coordinate median v₀.
//! It breaks down at half the weight.
//!
//! Everything is IEEE-754 f64, rounded to nearest after each operation, never contracted; sums run in the order of
//! slots unless another order is named. The steps are computed on the Gram matrix of the y_i = x_i − v₀: every v is
//! v₀ + Σ k_j y_j, so that a block is read twice, whatever the number of iterations.

use crate::manifest::{Aggregation, Rule};

mod rows;

use rows::{Gram, Rows};

/// One member's contribution to a block.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    /// Q: the sum of its leaves.
    pub q: &'a [i32],
    /// Leaves in the sum; the rule takes x = Q/m.
    pub m: u32,
    /// Weight, from [`weights`].
    pub weight: u64,
}

/// What a rule makes of a block.
#[derive(Clone, Debug, PartialEq)]
pub struct Aggregate {
    /// The aggregate, in grid units per leaf.
    pub values: Vec<f32>,
    /// How far the last step let each input count: min(1, c·s/(√m‖x − v‖)); 1 under the other rules.
    pub factors: Vec<f64>,
}

/// What one leaf weighs.
pub const WEIGHT_ONE: u64 = 1 << 16;

/// Weights of members that summed `m` leaves, none above its share of the *capped* total.
///
/// With n members of m > 0 and `share = max(cap_ppm, ⌈10⁶/n⌉)` in parts per million, `w_i = min(m_i·2¹⁶, C)` for the
/// largest integer `C ≤ 2¹⁶·max m` with `C·10⁶ ≤ share·Σ w_i`. The `C` that satisfy it are those up to the largest,
/// because Σ w_i is concave in `C`: a binary search finds it.
pub fn weights(m: &[u32], cap_ppm: u32) -> Vec<u64> {
    let count = m.iter().filter(|m| **m > 0).count() as u64;
    let share = u128::from(u64::from(cap_ppm).max(1_000_000u64.div_ceil(count.max(1))));
    let capped = |cap: u64| m.iter().map(move |m| (u64::from(*m) * WEIGHT_ONE).min(cap));
    let fits = |cap: u64| u128::from(cap) * 1_000_000 <= share * capped(cap).map(u128::from).sum::<u128>();
    let (mut cap, mut above) = (0, u64::from(m.iter().copied().max().unwrap_or(0)) * WEIGHT_ONE + 1);
    while above - cap > 1 {
        let middle = cap + (above - cap) / 2;
        *(if fits(middle) { &mut cap } else { &mut above }) = middle;
    }
    capped(cap).collect()
}

/// Combines one block; inputs in order of slot, all of one length.
///
/// `None` where there is nothing to combine: no input, lengths that differ, m = 0, a total weight of 0 or from 2⁵³.
///
/// - *Median*: v₀, coordinate by coordinate the smallest x_i at which the weights of it and all smaller values reach
///   half of the total.
/// - *Mean*: x₀ + Σ (w_j/W)·(x_j − x₀), x₀ being the first input.
/// - *Centred clip*: with y_i = x_i − v₀ and G_ij = ⟨y_i, y_j⟩, s is the median, by weight as above, of √(m_i·G_ii).
///   If c·s = 0, v = v₀. Else, from k = 0, `iterations` times:
///   `h_i = Σ_j k_j·G_ij`; `d_i² = max(0, (G_ii − 2·h_i) + Σ_j k_j·h_j)`; `r_i = √(m_i·d_i²)`;
///   `f_i = (c·s)/r_i` where r_i > c·s, else 1; `k_i = (w_i·f_i) / Σ_j w_j·f_j`.
///   This is the step `v ← v + Σ w_j f_j (x_j − v) / Σ w_j f_j`. At last v = v₀ + Σ k_j·y_j.
///
/// A product G_ij has 8 partial sums; number l adds the coefficients ≡ l mod 8 of the block, in order, and they add
/// up as `((0+4)+(2+6))+((1+5)+(3+7))`. In every other sum, terms are added from 0 in order of slot. Values are
/// rounded to f32 at the end.
pub fn block(settings: &Aggregation, inputs: &[Input<'_>]) -> Option<Aggregate> {
    let length = inputs.first()?.q.len();
    let total = inputs.iter().try_fold(0u64, |sum, input| sum.checked_add(input.weight))?;
    let alike = inputs.iter().all(|input| input.q.len() == length && input.m > 0);
    if !alike || total == 0 || total >= 1 << 53 {
        return None;
    }
    let mut rows = Rows::new(inputs);
    let (values, factors) = match settings.rule {
        Rule::Mean => {
            let (base, shares) = mean(inputs.first()?, inputs, total as f64);
            (rows.combine(&base, &shares), None)
        }
        Rule::Median => (rows.medians().iter().map(|v| *v as f32).collect(), None),
        Rule::CenteredClip => {
            let (centre, gram) = rows.gram();
            let steps = Steps::new(inputs, &gram, f64::from(settings.radius.value()));
            let (k, factors) = steps.run(settings.iterations);
            (rows.combine(&centre, &k), Some(factors))
        }
    };
    Some(Aggregate { values, factors: factors.unwrap_or_else(|| vec![1.0; inputs.len()]) })
}

fn mean(first: &Input<'_>, inputs: &[Input<'_>], total: f64) -> (Vec<f64>, Vec<f64>) {
    let base = first.q.iter().map(|q| f64::from(*q) / f64::from(first.m));
    (base.collect(), inputs.iter().map(|input| input.weight as f64 / total).collect())
}

/// The fixed-point iteration, on products alone.
struct Steps<'a> {
    inputs: &'a [Input<'a>],
    gram: &'a Gram,
    /// √(m_i·G_ii).
    residuals: Vec<f64>,
    /// c·s.
    radius: f64,
}

impl<'a> Steps<'a> {
    fn new(inputs: &'a [Input<'a>], gram: &'a Gram, c: f64) -> Self {
        let residuals: Vec<f64> =
            inputs.iter().enumerate().map(|(i, input)| (f64::from(input.m) * gram.at(i, i)).sqrt()).collect();
        let radius = c * weighted_median(&residuals, inputs);
        Self { inputs, gram, residuals, radius }
    }

    /// k, and the factors that made it; at v₀ before the first step.
    fn run(&self, iterations: u8) -> (Vec<f64>, Vec<f64>) {
        let mut k = vec![0.0; self.inputs.len()];
        let mut factors = self.factors(&self.residuals);
        if self.radius == 0.0 {
            return (k, factors);
        }
        for step in 0..iterations {
            if step > 0 {
                factors = self.factors(&self.residuals_at(&k));
            }
            for ((k, input), factor) in k.iter_mut().zip(self.inputs).zip(&factors) {
                *k = input.weight as f64 * factor;
            }
            let total = ordered_sum(k.iter().copied());
            k.iter_mut().for_each(|k| *k /= total);
        }
        (k, factors)
    }

    fn factors(&self, residuals: &[f64]) -> Vec<f64> {
        let factor = |r: &f64| if *r > self.radius { self.radius / r } else { 1.0 };
        residuals.iter().map(factor).collect()
    }

    /// r_i at v₀ + Σ k_j y_j.
    fn residuals_at(&self, k: &[f64]) -> Vec<f64> {
        let products = |i: usize| ordered_sum(k.iter().enumerate().map(|(j, k)| k * self.gram.at(i, j)));
        let h: Vec<f64> = (0..k.len()).map(products).collect();
        let square = ordered_sum(k.iter().zip(&h).map(|(k, h)| k * h));
        let distance = |i: usize| (self.gram.at(i, i) - 2.0 * h[i]) + square;
        let residual = |(i, input): (usize, &Input<'_>)| (f64::from(input.m) * distance(i).max(0.0)).sqrt();
        self.inputs.iter().enumerate().map(residual).collect()
    }
}

/// The smallest value at which the weights of it and all smaller ones reach half, equal values in order of slot.
fn weighted_median(values: &[f64], inputs: &[Input<'_>]) -> f64 {
    let mut order: Vec<(f64, u64)> =
        values.iter().copied().zip(inputs.iter().map(|input| input.weight)).collect();
    order.sort_by(|a, b| a.0.total_cmp(&b.0));
    let total: u64 = inputs.iter().map(|input| input.weight).sum();
    let mut reached = 0;
    let median = order.iter().find(|(_, weight)| {
        reached += weight;
        2 * reached >= total
    });
    median.map_or(0.0, |(value, _)| *value)
}

/// From 0, in order.
fn ordered_sum(terms: impl Iterator<Item = f64>) -> f64 {
    terms.fold(0.0, |sum, term| sum + term)
}

#[cfg(test)]
mod tests;
