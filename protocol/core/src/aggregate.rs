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

use rows::Rows;

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
/// - *Median*: v₀, coordinate by coordinate the smallest x_i at which the weights of this and all smaller values
///   reach half of the total.
/// - *Mean*: x₀ + Σ (w_j/W)(x_j − x₀), x₀ of the first input.
/// - *Centred clip*: see [`Rows::gram`] for G, the products of the y_i = x_i − v₀. Then s is the median by weight, as
///   above, of √(m_i·G_ii). If s = 0, v = v₀. Else k = 0, and `iterations` times: `h_i = Σ_j k_j G_ij`,
///   `d_i² = max(0, (G_ii − 2h_i) + Σ_j k_j h_j)`, `r_i = √(m_i·d_i²)`, `f_i = min(1, c·s/r_i)` (1 for r_i = 0),
///   `k_i = w_i f_i / Σ_j w_j f_j`: the fixed-point step `v ← v + Σ w_j f_j (x_j − v) / Σ w_j f_j`. At last
///   v = v₀ + Σ k_j y_j.
///
/// Values are rounded to f32 at the end.
pub fn block(settings: &Aggregation, inputs: &[Input<'_>]) -> Option<Aggregate> {
    let length = inputs.first()?.q.len();
    let total = inputs.iter().try_fold(0u64, |sum, input| sum.checked_add(input.weight))?;
    let alike = inputs.iter().all(|input| input.q.len() == length && input.m > 0);
    if !alike || total == 0 || total >= 1 << 53 {
        return None;
    }
    let ones = vec![1.0; inputs.len()];
    let mut rows = Rows::new(inputs, total as f64);
    Some(match settings.rule {
        Rule::Mean => {
            let shares: Vec<f64> = inputs.iter().map(|input| input.weight as f64 / total as f64).collect();
            Aggregate { values: rows.combine(inputs.first()?.q, &shares), factors: ones }
        }
        Rule::Median => Aggregate { values: rows.medians().iter().map(|v| *v as f32).collect(), factors: ones },
        Rule::CenteredClip => {
            let (centre, gram) = rows.gram();
            todo!()
        }
    })
}
