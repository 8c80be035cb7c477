//! The rows of experts that a text is read with: which suit it best, and how their answers become one.

use muster_core::ids::{Digest, Round, Row};
use muster_core::ledger::Ledger;
use muster_core::router::NAT;
use muster_store::dataset::Routing;

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

/// A row that a text is read with, and how well it suits the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RankedRow {
    pub(super) row: Row,
    pub(super) score: i64,
}

impl RankedRow {
    /// The row of a state that has one.
    pub(super) const ONLY: Self = Self { row: Row(0), score: 0 };
}

/// CALL-12: all rows by their scores for a text that a model with this `sequence` is to continue, the best first.
pub(super) fn ranked(router: &Routing, text: &[u32], sequence: usize) -> Vec<RankedRow> {
    let before = before(text, sequence, router.tokens());
    let scores = router.scores(before);
    router.ranked(before).into_iter().map(|row| RankedRow { row, score: scores[row.index()] }).collect()
}

/// CALL-12: the text before place max(n − s, min(n, t)), of which the router reads the last t tokens.
fn before(text: &[u32], sequence: usize, tokens: usize) -> &[u32] {
    let length = text.len();
    &text[..length.saturating_sub(sequence).max(length.min(tokens))]
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
    use muster_core::router::{BUCKETS, RouterRow, Table};

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

    #[test]
    fn call_12_the_router_reads_the_text_before_the_window_or_the_first_tokens_of_a_short_one() {
        let (sequence, tokens, text) = (4, 3, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
        let read = |length: usize| {
            let before = before(&text[..length], sequence, tokens);
            &before[before.len().saturating_sub(tokens)..]
        };
        assert_eq!((read(0), read(2), read(3)), (&text[..0], &text[..2], &text[..3]));
        // What it reads stays the same until so much text is before the window.
        assert!((3..=7).all(|length| read(length) == &text[..3]));
        assert_eq!((read(8), read(10)), (&text[1..4], &text[3..6]));
    }

    #[test]
    fn call_12_rows_are_ranked_with_their_scores() {
        let row = |liked: usize, bias| {
            let mut entries = [0; BUCKETS];
            entries[liked] = 4;
            RouterRow { entries, bias }
        };
        let router = Routing::new(2, Table::new(vec![row(1, 0), row(2, 0), row(9, 5)]).unwrap());
        let ranked = |text: &[u32]| -> Vec<(u16, i64)> {
            ranked(&router, text, 3).into_iter().map(|ranked| (ranked.row.0, ranked.score)).collect()
        };
        assert_eq!(ranked(&[]), [(2, 5), (0, 0), (1, 0)]);
        assert_eq!(ranked(&[1, 1, 2, 2, 2]), [(0, 8), (2, 5), (1, 0)]);
        assert_eq!(ranked(&[1, 1, 2, 2, 2, 7, 7]), [(1, 8), (2, 5), (0, 0)]);
    }
}
