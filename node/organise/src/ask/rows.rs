//! The rows of experts of the newest state, and how their answers become one.

use muster_core::ids::{Digest, Round};
use muster_core::ledger::Ledger;
use muster_core::router::NAT;

use crate::ranking::RankedRow;

/// The newest state that every node at work has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Newest {
    /// The round that it is before.
    pub(super) round: Round,
    pub(super) root: Digest,
    /// How many rows it has.
    pub(super) rows: u16,
}

/// The state that whoever takes part in the newest round computes on.
pub(super) fn newest(ledger: &Ledger) -> Newest {
    let (round, state) = match ledger.current() {
        Some(view) => (view.round(), view.state()),
        None => (ledger.next_round(), ledger.state()),
    };
    Newest { round, root: state.root(), rows: state.rows() }
}

/// An answer of a row.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct RowAnswer {
    pub(super) ranked: RankedRow,
    pub(super) logits: Vec<f32>,
}

/// CALL-14: logits of several rows become one, weighted by the softmax of their scores, in nats, over those that have answered.
pub(super) fn mixed(answers: &[RowAnswer]) -> Vec<f32> {
    let [first, others @ ..] = answers else { return Vec::new() };
    if others.is_empty() {
        return first.logits.clone();
    }
    let best = answers.iter().map(|answer| answer.ranked.score).max().unwrap_or_default();
    // The largest exponent is 0, so that nothing overflows.
    let weight = |answer: &RowAnswer| ((answer.ranked.score - best) as f64 / NAT).exp();
    let weights: Vec<f64> = answers.iter().map(weight).collect();
    let total: f64 = weights.iter().sum();
    let mix = |place: usize| {
        let parts = answers.iter().zip(&weights);
        parts.map(|(answer, weight)| f64::from(answer.logits[place]) * weight / total).sum::<f64>() as f32
    };
    (0..first.logits.len()).map(mix).collect()
}

#[cfg(test)]
mod tests {
    use muster_core::ids::Row;

    use super::*;

    fn answer(score: i64, logits: &[f32]) -> RowAnswer {
        RowAnswer { ranked: RankedRow { row: Row(0), score }, logits: logits.to_vec() }
    }

    #[test]
    fn call_14_one_answer_is_taken_as_it_is_and_several_are_mixed_by_their_scores() {
        assert_eq!(mixed(&[answer(3, &[1.0, f32::NEG_INFINITY])]), [1.0, f32::NEG_INFINITY]);
        assert_eq!(mixed(&[answer(512, &[1.0, 4.0]), answer(512, &[3.0, 0.0])]), [2.0, 2.0]);
        assert_eq!(mixed(&[answer(0, &[1.0]), answer(-1_024_000, &[9.0])]), [1.0]);
        assert_eq!(mixed(&[]), [0.0; 0]);
        // 1,024 units are a nat: e : 1.
        let [mean] = mixed(&[answer(-7, &[0.0]), answer(1017, &[1.0])])[..] else { panic!("one logit") };
        assert!((f64::from(mean) - 0.731_058_578_6).abs() < 1e-7, "{mean}");
        // Whatever a table may hold.
        let most = 1 << 44;
        assert_eq!(mixed(&[answer(-most, &[2.0]), answer(most, &[5.0])]), [5.0]);
    }
}
