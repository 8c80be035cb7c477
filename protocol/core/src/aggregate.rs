//! The robust rule: members' sums of one block become one vector, in defined bits.
//!
//! With x_i = Q_i/m_i, the centred-clip rule solves Σ w_i (x_i − v)·min(1, c·s/(√m_i‖x_i − v‖)) = 0: Huber's
//! M-estimator on standardised residuals, which have one size for honest members however much they computed. The
//! radius c·s/√m_i follows from s, the weighted median of √m_i‖x_i − v₀‖ around the weighted coordinate median v₀.
//! It breaks down at half the weight. The other rules, one file each, are there to be compared with it.
//!
//! Everything is IEEE-754 f64, rounded to nearest after each operation, never contracted; sums run in the order of
//! slots unless another order is named. The steps are computed on the Gram matrix of the y_i = x_i − v₀: every v is
//! v₀ + Σ k_j y_j, so that a block is read twice, whatever the number of iterations. A vector longer than a block is
//! cut into pieces of a block's length, whose products add up in their order.

use std::sync::Mutex;

use crate::limits;
use crate::lock::lock;
use crate::manifest::{Aggregation, Rule};

mod combination;
mod fixed_radius;
mod geometric_median;
mod gram;
mod input;
mod krum;
mod mixing;
mod order;
mod products;
mod rows;
mod runner;
mod strip;
mod sum;
mod trimmed_mean;
mod trust;

use combination::Combination;
use gram::Gram;
pub use input::Input;
use mixing::Mixing;
use order::Sorter;
use products::Products;
use rows::{Base, InputRows, combine};
pub use runner::{CoefficientPass, Plain, Runner};
use strip::STRIP;
use sum::ordered_sum;
use trimmed_mean::Trim;
pub use trust::bound;

/// What a rule makes of a block.
#[derive(Clone, Debug, PartialEq)]
pub struct Aggregate {
    /// The aggregate, in grid units per leaf.
    pub values: Vec<f32>,
    /// What the rule left of each input, 0 to 1. Clipping: the last step's factor. Geometric median: the least distance
    /// over its own. Krum, Multi-Krum: whether it was chosen. Trimmed mean: the share of its coefficients that were not
    /// cut off. Mean, median: 1. After mixing, the mean over what it was mixed into. Left out for its weight of 0: 0.
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
    // At least an equal share: with few members a lower cap could not be kept by anybody.
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
/// AGG-10: `None` where there is nothing to combine: no input, lengths that differ, m = 0, a total weight of 0 or
/// from 2⁵³.
///
/// - *Median* (AGG-3, AGG-8): v₀, coordinate by coordinate the smallest x_i at which the weights of it and all
///   smaller values reach half of the total.
/// - *Mean* (AGG-8): x₀ + Σ (w_j/W)·(x_j − x₀), x₀ being the first input.
/// - *Centred clip*: with y_i = x_i − v₀ and G_ij = ⟨y_i, y_j⟩, s is the median, by weight as above, of √(m_i·G_ii).
///   If c·s = 0, v = v₀. Else, from k = 0, `iterations` times:
///   `h_i = Σ_j k_j·G_ij`; `d_i² = max(0, (G_ii − 2·h_i) + Σ_j k_j·h_j)`; `r_i = √(m_i·d_i²)`;
///   `f_i = (c·s)/r_i` where r_i > c·s, else 1; `k_i = (w_i·f_i) / Σ_j w_j·f_j`.
///   This is the step `v ← v + Σ w_j f_j (x_j − v) / Σ w_j f_j`. At last v = v₀ + Σ k_j·y_j.
/// - *Geometric median, fixed-radius clip, Krum, Multi-Krum*: coefficients k_j from the products of the x_i themselves.
/// - *Trimmed mean*: coordinate by coordinate.
///
/// AGG-4: a product G_ij has 8 partial sums; number l adds the coefficients ≡ l mod 8 of the block, in order, and
/// they add up as `((0+4)+(2+6))+((1+5)+(3+7))`. In every other sum, terms are added from 0 in order of slot. Values
/// are rounded to f32 at the end.
pub fn block(settings: &Aggregation, inputs: &[Input<'_>]) -> Option<Aggregate> {
    vector(&Plain, settings, inputs)
}

/// As [`block`], with the vector instructions and threads of a runner, and for any length.
///
/// AGG-18: pieces of [`limits::BLOCK_COEFFICIENTS`] take the place of a block; their products are added in order. The
/// bits do not depend on the runner.
pub fn vector(runner: &impl Runner, settings: &Aggregation, inputs: &[Input<'_>]) -> Option<Aggregate> {
    let length = inputs.first()?.q.len();
    let total = inputs.iter().try_fold(0u64, |sum, input| sum.checked_add(input.weight))?;
    let alike = inputs.iter().all(|input| input.q.len() == length && input.m > 0);
    // From 2⁵³ on a weight is not exact in f64.
    if !alike || total == 0 || total >= 1 << 53 {
        return None;
    }
    // AGG-11: "The rules that follow, and any rule after mixing, leave out inputs of weight 0."
    let first_three = matches!(settings.rule, Rule::CenteredClip | Rule::Mean | Rule::Median);
    let counted: Vec<Input<'_>> = inputs.iter().filter(|input| input.weight > 0).copied().collect();
    if counted.len() == inputs.len() || first_three && !settings.mixing {
        return Some(RuleRun::new(runner, settings, inputs).run());
    }
    let Aggregate { values, factors } = RuleRun::new(runner, settings, &counted).run();
    let mut left = factors.into_iter();
    let factors = inputs.iter().map(|input| if input.weight > 0 { left.next().unwrap_or(0.0) } else { 0.0 });
    Some(Aggregate { values, factors: factors.collect() })
}

/// One vector under one rule.
struct RuleRun<'a, R> {
    runner: &'a R,
    settings: &'a Aggregation,
    inputs: &'a [Input<'a>],
    /// The inputs, cut into pieces of a block's length.
    pieces: Vec<Vec<Input<'a>>>,
    /// AGG-11: "Of the n inputs that are left, f = ⌊n·`assumed_ppm`/10⁶⌋ are taken for attackers."
    assumed: usize,
}

impl<'a, R: Runner> RuleRun<'a, R> {
    fn new(runner: &'a R, settings: &'a Aggregation, inputs: &'a [Input<'a>]) -> Self {
        let length = inputs.first().map_or(0, |input| input.q.len());
        let piece = |start: usize| {
            let range = start..length.min(start + limits::BLOCK_COEFFICIENTS);
            inputs.iter().map(|input| Input { q: &input.q[range.clone()], ..*input }).collect()
        };
        let starts = (0..length.max(1)).step_by(limits::BLOCK_COEFFICIENTS);
        let pieces = starts.map(piece).collect();
        let assumed = share_of(inputs.len() as u64, settings.assumed_ppm) as usize;
        Self { runner, settings, inputs, pieces, assumed }
    }

    fn run(&self) -> Aggregate {
        let mixing = self.settings.mixing.then(|| Mixing::new(&self.products(None), self.assumed));
        let mixing = mixing.as_ref();
        let Aggregate { values, mut factors } = match self.settings.rule {
            Rule::Mean => self.mean(mixing),
            Rule::Median => self.median(mixing),
            Rule::TrimmedMean => self.trimmed_mean(mixing),
            Rule::CenteredClip => self.centred_clip(mixing),
            Rule::GeometricMedian | Rule::FixedRadiusClip | Rule::Krum | Rule::MultiKrum => {
                self.combination(mixing)
            }
        };
        if let Some(mixing) = mixing {
            factors = mixing.trace(&factors);
        }
        Aggregate { values, factors }
    }

    /// What `task` makes of the rows of each piece, in order.
    fn each<T: Send>(
        &self,
        mixing: Option<&Mixing>,
        task: impl Fn(usize, InputRows<'_>) -> T + Sync,
    ) -> Vec<T> {
        self.runner
            .each(self.pieces.len(), |piece| task(piece, InputRows { inputs: &self.pieces[piece], mixing }))
    }

    /// The values of all pieces, each written by `task` into its slice: they are as many as an input's, and not copied.
    fn write(
        &self,
        mixing: Option<&Mixing>,
        task: impl Fn(usize, InputRows<'_>, &mut [f32]) + Sync,
    ) -> Vec<f32> {
        self.write_and(mixing, task).0
    }

    /// The same, and what else `task` gives of each piece.
    fn write_and<T: Send>(
        &self,
        mixing: Option<&Mixing>,
        task: impl Fn(usize, InputRows<'_>, &mut [f32]) -> T + Sync,
    ) -> (Vec<f32>, Vec<T>) {
        let mut values = vec![0.0; self.inputs.first().map_or(0, |input| input.q.len())];
        // One task has each piece: the locks are never waited for.
        let slices: Vec<Mutex<&mut [f32]>> =
            values.chunks_mut(limits::BLOCK_COEFFICIENTS).map(Mutex::new).collect();
        let others = self.each(mixing, |piece, rows| {
            // A vector of no coefficients is one piece of none.
            let into = slices.get(piece).map(|into| lock(into));
            task(piece, rows, into.map_or(&mut [], |mut into| std::mem::take(&mut *into)))
        });
        drop(slices);
        (values, others)
    }

    fn mean(&self, mixing: Option<&Mixing>) -> Aggregate {
        let total = self.inputs.iter().map(|input| input.weight).sum::<u64>() as f64;
        let k: Vec<f64> = self.inputs.iter().map(|input| input.weight as f64 / total).collect();
        let values = self.write(mixing, |_, rows, into| combine(self.runner, rows, Base::Row(0), &k, into));
        Aggregate { values, factors: vec![1.0; k.len()] }
    }

    fn median(&self, mixing: Option<&Mixing>) -> Aggregate {
        let pass = |_, rows: InputRows<'_>, into: &mut [f32]| {
            self.runner.pass(Medians { rows, sorter: self.median_sorter(), into });
        };
        Aggregate { values: self.write(mixing, pass), factors: vec![1.0; self.inputs.len()] }
    }

    fn trimmed_mean(&self, mixing: Option<&Mixing>) -> Aggregate {
        let total = self.inputs.iter().map(|input| input.weight).sum::<u64>();
        let cut = share_of(total, self.settings.assumed_ppm);
        let pass = |_, rows: InputRows<'_>, into: &mut [f32]| self.runner.pass(Trim::new(rows, cut, into));
        let (values, counts) = self.write_and(mixing, pass);
        let length = self.inputs.first().map_or(0, |input| input.q.len());
        let mut inside = vec![0; self.inputs.len()];
        for more in &counts {
            inside.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
        }
        let share = |inside: u64| if length == 0 { 1.0 } else { inside as f64 / length as f64 };
        Aggregate { values, factors: inside.into_iter().map(share).collect() }
    }

    fn centred_clip(&self, mixing: Option<&Mixing>) -> Aggregate {
        let products =
            |_, rows: InputRows<'_>| self.runner.pass(Products { rows, centre: Some(self.median_sorter()) });
        let (centres, grams): (Vec<Vec<f64>>, Vec<Gram>) = self.each(mixing, products).into_iter().unzip();
        let gram = sum(grams);
        let steps = Steps::new(self.inputs, &gram, f64::from(self.settings.radius.value()));
        let (k, factors) = steps.run(self.settings.iterations);
        // AGG-7: "v = v₀ + Σ_j k_j·(x_j − v₀), the sum first, rounded to f32 once."
        let finish = |piece: usize, rows: InputRows<'_>, into: &mut [f32]| {
            combine(self.runner, rows, Base::Given(&centres[piece]), &k, into);
        };
        Aggregate { values: self.write(mixing, finish), factors }
    }

    /// The rules that combine the inputs with coefficients from their products.
    fn combination(&self, mixing: Option<&Mixing>) -> Aggregate {
        let gram = self.products(mixing);
        let (radius, iterations) = (f64::from(self.settings.radius.value()), self.settings.iterations);
        let honest = self.inputs.len() - self.assumed;
        let from_zero = self.settings.rule == Rule::FixedRadiusClip;
        let Combination { k, factors } = match self.settings.rule {
            Rule::Krum => krum::select(&gram, self.assumed, 1),
            Rule::MultiKrum => krum::select(&gram, self.assumed, honest),
            Rule::FixedRadiusClip => fixed_radius::steps(self.inputs, &gram, radius, iterations),
            _ => geometric_median::steps(self.inputs, &gram, radius, iterations),
        };
        // AGG-12: "v = x_b + Σ_j k_j·(x_j − x_b), rounded to f32, where b is the first input whose k is largest."
        let base = if from_zero { Base::Zero } else { Base::Row(largest(&k)) };
        let values = self.write(mixing, |_, rows, into| combine(self.runner, rows, base, &k, into));
        Aggregate { values, factors }
    }

    /// The products of the rows themselves.
    fn products(&self, mixing: Option<&Mixing>) -> Gram {
        let products = |_, rows: InputRows<'_>| self.runner.pass(Products { rows, centre: None }).1;
        sum(self.each(mixing, products))
    }

    fn median_sorter(&self) -> Sorter {
        let weights: Vec<f64> = self.inputs.iter().map(|input| input.weight as f64).collect();
        let half = weights.iter().sum::<f64>() / 2.0;
        Sorter::new(weights, vec![half])
    }
}

/// ⌊whole·ppm/10⁶⌋.
fn share_of(whole: u64, ppm: u32) -> u64 {
    (u128::from(whole) * u128::from(ppm) / 1_000_000) as u64
}

/// The products over all pieces, added in order.
fn sum(pieces: Vec<Gram>) -> Gram {
    let mut pieces = pieces.into_iter();
    let mut sum = pieces.next().expect("a vector has at least one piece");
    pieces.for_each(|later| sum.add(&later));
    sum
}

/// The first index of the largest value.
fn largest(values: &[f64]) -> usize {
    values.iter().enumerate().fold(0, |best, (index, value)| if *value > values[best] { index } else { best })
}

/// v₀ in f32.
struct Medians<'a> {
    rows: InputRows<'a>,
    sorter: Sorter,
    into: &'a mut [f32],
}

impl CoefficientPass for Medians<'_> {
    type Output = ();

    #[inline(always)]
    fn run(mut self) {
        let (count, length) = (self.rows.count(), self.rows.length());
        let mut strip = self.rows.strip();
        for start in (0..length).step_by(STRIP) {
            let columns = self.rows.read(start, &mut strip);
            self.sorter.find(&strip.rows[..count]);
            for (rounded, median) in self.into[start..start + columns].iter_mut().zip(&self.sorter.found[0].0)
            {
                *rounded = *median as f32;
            }
        }
    }
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
        // AGG-5: "s the weighted median of the r_i; radius R = `radius`·s."
        let radius = c * weighted_median(&residuals, inputs);
        Self { inputs, gram, residuals, radius }
    }

    /// k, and the factors that made it; at v₀ before the first step (AGG-6).
    fn run(&self, iterations: u8) -> (Vec<f64>, Vec<f64>) {
        let mut k = vec![0.0; self.inputs.len()];
        let mut factors = self.factors(&self.residuals);
        // The majority agrees to the bit: v₀ is its value, and a division by 0 would follow.
        if self.radius == 0.0 {
            return (k, factors);
        }
        for step in 0..iterations {
            // At v₀ the residuals are known from the diagonal, without a product.
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
        let squares = self.gram.distances_to(k);
        self.inputs.iter().zip(squares).map(|(input, square)| (f64::from(input.m) * square).sqrt()).collect()
    }
}

/// The smallest value at which the weights of it and all smaller ones reach half, equal values in order of slot
/// (AGG-2).
fn weighted_median(values: &[f64], inputs: &[Input<'_>]) -> f64 {
    let mut order: Vec<(f64, u64)> =
        values.iter().copied().zip(inputs.iter().map(|input| input.weight)).collect();
    // Stable and total: equal values stay in order of slots, and no NaN stops it.
    order.sort_by(|a, b| a.0.total_cmp(&b.0));
    let total: u64 = inputs.iter().map(|input| input.weight).sum();
    let mut reached = 0;
    let median = order.iter().find(|(_, weight)| {
        reached += weight;
        2 * reached >= total
    });
    median.map_or(0.0, |(value, _)| *value)
}

#[cfg(test)]
mod tests;
