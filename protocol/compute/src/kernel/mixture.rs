//! Kernels over tokens that choose among experts.
#![allow(unsafe_code)]

use super::rows::{softmax_of, swiglu_back};
use super::{dot, exp, kernels};

/// Whether a score stands before another one, not counting their places (ARITH-70): larger first, NaN last.
fn precedes(a: f32, b: f32) -> bool {
    a > b || (b.is_nan() && !a.is_nan())
}

/// The experts with the first scores, ascending.
fn choose(scores: &[f32], chosen: &mut [u16]) {
    let mut found = 0;
    for (expert, score) in (0u16..).zip(scores) {
        // From the last on, as most come after all that are there. Among equals the lower expert stays before: it came
        // first.
        let after = |other: &&u16| precedes(*score, scores[usize::from(**other)]);
        let place = found - chosen[..found].iter().rev().take_while(after).count();
        if place < chosen.len() {
            found = chosen.len().min(found + 1);
            chosen.copy_within(place..found - 1, place + 1);
            chosen[place] = expert;
        }
    }
    chosen.sort_unstable();
}

/// β of ARITH-73, from `balance`·columns and the leaf's share.
pub(crate) fn balance_factor(balance: f64, share: f32) -> f32 {
    (balance * f64::from(share)) as f32
}

/// What the way back through the weights of one window reads.
pub(crate) struct Routed<'a> {
    /// Of each token: experts it chose, ascending.
    pub chosen: &'a [u16],
    /// Their weights.
    pub weights: &'a [f32],
    /// Gradients of these weights.
    pub d_weights: &'a [f32],
    /// Of each token: softmax of all scores.
    pub probabilities: &'a [f32],
    /// Of each expert: its share of the window's choices.
    pub shares: &'a [f32],
    /// Factor of the loss that balances them: β of ARITH-73.
    pub balance: f32,
}

kernels! {
    /// 1/(1 + exp(−x)) of each value, in place (ARITH-71).
    pub(crate) fn sigmoid(values: &mut [f32]) {
        for value in values {
            *value = 1.0 / (1.0 + exp::<F>(-*value));
        }
    }

    /// The gradient of what a sigmoid was made of, from the sigmoid's, in place (ARITH-73).
    pub(crate) fn sigmoid_backward(sigmoid: &[f32], d: &mut [f32]) {
        for (d, s) in d.iter_mut().zip(sigmoid) {
            *d *= s * (1.0 - s);
        }
    }

    /// Multiplies each row by its weight (ARITH-71).
    pub(crate) fn weigh_rows(weights: &[f32], rows: &mut [f32]) {
        let width = rows.len() / weights.len();
        for (row, weight) in rows.chunks_exact_mut(width).zip(weights) {
            for value in row {
                *value *= weight;
            }
        }
    }

    /// Chooses experts for each token (ARITH-70), and weighs them; scores become their softmax over all experts.
    pub(crate) fn route(scores: &mut [f32], columns: usize, chosen: &mut [u16], weights: &mut [f32]) {
        let active = chosen.len() / (scores.len() / columns);
        let tokens = chosen.chunks_exact_mut(active).zip(weights.chunks_exact_mut(active));
        for (scores, (chosen, weights)) in scores.chunks_exact_mut(columns).zip(tokens) {
            choose(scores, chosen);
            for (weight, expert) in weights.iter_mut().zip(&*chosen) {
                *weight = scores[usize::from(*expert)];
            }
            softmax_of::<F>(weights);
            softmax_of::<F>(scores);
        }
    }

    /// The gradient of the router's scores (ARITH-73).
    pub(crate) fn route_backward(at: &Routed<'_>, d_scores: &mut [f32]) {
        let columns = at.shares.len();
        let active = at.chosen.len() / (d_scores.len() / columns);
        let chosen = at.chosen.chunks_exact(active).zip(at.weights.chunks_exact(active));
        let tokens = chosen.zip(at.d_weights.chunks_exact(active)).zip(at.probabilities.chunks_exact(columns));
        for ((((chosen, weights), d_weights), probabilities), d_scores) in tokens.zip(d_scores.chunks_exact_mut(columns)) {
            let mean = dot::<F>(weights, d_weights);
            d_scores.fill(0.0);
            for ((expert, weight), d_weight) in chosen.iter().zip(weights).zip(d_weights) {
                d_scores[usize::from(*expert)] = weight * (d_weight - mean);
            }
            let mean = dot::<F>(at.shares, probabilities);
            for ((d, share), probability) in d_scores.iter_mut().zip(at.shares).zip(probabilities) {
                *d = F::fma(at.balance * probability, share - mean, *d);
            }
        }
    }

    /// Back through SwiGLU whose rows had weights (ARITH-72). `d_product` is the gradient of the weighted product, and
    /// then that product; gradients of the weights go to `d_weights`. Kept: gate and up, σ(gate), weights.
    pub(crate) fn weighted_swiglu_backward(
        kept: [&[f32]; 3],
        d_product: &mut [f32],
        d_gate_up: &mut [f32],
        d_weights: &mut [f32],
    ) {
        let [gate_up, sigmoid, weights] = kept;
        let hidden = d_product.len() / weights.len();
        let rows = gate_up.chunks_exact(2 * hidden).zip(d_gate_up.chunks_exact_mut(2 * hidden));
        let rows = rows.zip(sigmoid.chunks_exact(hidden)).zip(d_product.chunks_exact_mut(hidden));
        for ((((gate_up, d_gate_up), sigmoid), d_product), (weight, d_weight)) in rows.zip(weights.iter().zip(d_weights)) {
            *d_weight = dot_with_product::<F>(d_product, gate_up, sigmoid);
            for d in d_product.iter_mut() {
                *d *= weight;
            }
            swiglu_back::<F>(gate_up, sigmoid, d_product, d_gate_up);
            for product in d_product {
                *product *= weight;
            }
        }
    }
}

/// Σfma of a row by SwiGLU's product, which nobody kept.
#[inline(always)]
fn dot_with_product<F: super::Fma>(d: &[f32], gate_up: &[f32], sigmoid: &[f32]) -> f32 {
    let (gate, up) = gate_up.split_at(d.len());
    let mut lanes = [0.0; super::LANES];
    let (d, d_rest) = d.as_chunks::<{ super::LANES }>();
    let (gate, gate_rest) = gate.as_chunks::<{ super::LANES }>();
    let (up, up_rest) = up.as_chunks::<{ super::LANES }>();
    let (sigmoid, sigmoid_rest) = sigmoid.as_chunks::<{ super::LANES }>();
    for (((d, gate), up), sigmoid) in d.iter().zip(gate).zip(up).zip(sigmoid) {
        for lane in 0..super::LANES {
            lanes[lane] = F::fma(d[lane], gate[lane] * sigmoid[lane] * up[lane], lanes[lane]);
        }
    }
    let rest = d_rest.iter().zip(gate_rest).zip(up_rest).zip(sigmoid_rest);
    for (lane, (((d, gate), up), sigmoid)) in rest.enumerate() {
        lanes[lane] = F::fma(*d, gate * sigmoid * up, lanes[lane]);
    }
    super::tree(lanes)
}

#[cfg(test)]
mod tests {
    use libm::fmaf;

    use super::super::definition::{bits, dot, everywhere, exp, exponentials};
    use super::*;

    /// ARITH-35.
    fn softmax(row: &mut [f32]) {
        let (_, sum) = exponentials(row);
        row.iter_mut().for_each(|p| *p *= 1.0 / sum);
    }

    #[test]
    fn experts_are_chosen_by_score_then_by_number() {
        let nan = f32::NAN;
        let cases: [(&[f32], &[u16]); 8] = [
            (&[1.0, 3.0, 2.0, 3.0], &[1]),
            (&[1.0, 3.0, 2.0, 3.0], &[1, 3]),
            (&[1.0, 3.0, 2.0, 3.0], &[1, 2, 3]),
            (&[-0.0, 0.0, -0.0, 0.0], &[0, 1]),
            (&[nan, -1.0, nan, f32::NEG_INFINITY], &[1, 3]),
            (&[nan, -1.0, nan, f32::NEG_INFINITY], &[0, 1, 3]),
            (&[nan, nan, nan], &[0, 1]),
            (&[f32::INFINITY, f32::MAX, f32::INFINITY], &[0, 2]),
        ];
        for (scores, expected) in cases {
            let mut chosen = vec![9; expected.len()];
            choose(scores, &mut chosen);
            assert_eq!(chosen, expected, "{scores:?}");
        }
    }

    /// ARITH-70 and ARITH-73.
    #[test]
    fn routes() {
        everywhere(|kernels, columns, draw| {
            let active = columns.div_ceil(3);
            let (scores, d_weights, shares) = (draw(3 * columns, 1), draw(3 * active, 2), draw(columns, 3));
            let (mut chosen, mut weights) = (vec![9; 3 * active], vec![9.0; 3 * active]);
            let (mut found, mut d_scores) = (scores.clone(), vec![9.0; 3 * columns]);
            route(kernels, &mut found, columns, &mut chosen, &mut weights);
            let at = Routed {
                chosen: &chosen,
                weights: &weights,
                d_weights: &d_weights,
                probabilities: &found,
                shares: &shares,
                balance: 0.03,
            };
            route_backward(kernels, &at, &mut d_scores);
            for token in 0..3 {
                let scores = &scores[token * columns..][..columns];
                let mut order: Vec<usize> = (0..columns).collect();
                order.sort_by(|a, b| {
                    let [x, y] = [scores[*a], scores[*b]];
                    // Stable: among equals, and among NaN, by number.
                    x.is_nan().cmp(&y.is_nan()).then(y.partial_cmp(&x).unwrap_or(std::cmp::Ordering::Equal))
                });
                let mut first = order[..active].to_vec();
                first.sort_unstable();
                let of_token = token * active..(token + 1) * active;
                let numbers: Vec<usize> =
                    chosen[of_token.clone()].iter().map(|expert| usize::from(*expert)).collect();
                assert_eq!(numbers, first, "{kernels:?} {scores:?}");
                let mut expected: Vec<f32> = first.iter().map(|expert| scores[*expert]).collect();
                softmax(&mut expected);
                assert_eq!(bits(&weights[of_token.clone()]), bits(&expected), "{kernels:?} {columns}");
                let mut all = scores.to_vec();
                softmax(&mut all);
                assert_eq!(bits(&found[token * columns..][..columns]), bits(&all), "{kernels:?} {columns}");
                let (mut d, mean) = (vec![0.0; columns], dot(&expected, &d_weights[of_token.clone()]));
                for ((expert, weight), d_weight) in first.iter().zip(&expected).zip(&d_weights[of_token]) {
                    d[*expert] = weight * (d_weight - mean);
                }
                let mean = dot(&shares, &all);
                for expert in 0..columns {
                    d[expert] = fmaf(0.03 * all[expert], shares[expert] - mean, d[expert]);
                }
                assert_eq!(bits(&d_scores[token * columns..][..columns]), bits(&d), "{kernels:?} {columns}");
            }
        });
    }

    /// ARITH-71, ARITH-72 and ARITH-73.
    #[test]
    fn weighted_experts() {
        everywhere(|kernels, hidden, draw| {
            let (gate_up, gates, d) = (draw(6 * hidden, 1), draw(3 * hidden, 2), draw(3 * hidden, 3));
            let (mut weights, mut d_gates) = (draw(3, 4), draw(3, 5));
            let (scores, before) = (weights.clone(), d_gates.clone());
            sigmoid(kernels, &mut weights);
            sigmoid_backward(kernels, &weights, &mut d_gates);
            for row in 0..3 {
                let s = 1.0 / (1.0 + exp(-scores[row]));
                assert_eq!(bits(&[weights[row], d_gates[row]]), bits(&[s, before[row] * (s * (1.0 - s))]));
            }
            let (mut found, mut d_gate_up, mut d_weights) = (d.clone(), vec![9.0; 6 * hidden], vec![9.0; 3]);
            weighted_swiglu_backward(
                kernels,
                [&gate_up, &gates, &weights],
                &mut found,
                &mut d_gate_up,
                &mut d_weights,
            );
            let mut weighted = Vec::new();
            for row in 0..3 {
                let (gate, up) = gate_up[row * 2 * hidden..][..2 * hidden].split_at(hidden);
                let (s, d) = (&gates[row * hidden..][..hidden], &d[row * hidden..][..hidden]);
                let product: Vec<f32> = (0..hidden).map(|i| gate[i] * s[i] * up[i]).collect();
                weighted.extend(&product);
                assert_eq!(bits(&d_weights[row..=row]), bits(&[dot(d, &product)]), "{kernels:?} {hidden}");
                for i in 0..hidden {
                    let d = d[i] * weights[row];
                    let expected =
                        [d * up[i] * (s[i] * fmaf(gate[i], 1.0 - s[i], 1.0)), d * (gate[i] * s[i])];
                    let at = row * 2 * hidden + i;
                    assert_eq!(
                        bits(&[d_gate_up[at], d_gate_up[at + hidden]]),
                        bits(&expected),
                        "{kernels:?} {hidden}"
                    );
                }
            }
            weigh_rows(kernels, &weights, &mut weighted);
            assert_eq!(bits(&found), bits(&weighted), "{kernels:?} {hidden}");
        });
    }
}
