//! Which rows of experts suit a text best, by the router that the run committed to.

use std::path::Path;

use muster_core::ids::Row;
use muster_core::manifest::Manifest;
use muster_replica::exit::{Failure, Outcome};
use muster_store::dataset::{Routing, open_router};

use super::DATA;

/// A row that a text is read with, and how well it suits the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankedRow {
    /// Which.
    pub row: Row,
    /// The router's score of it for the text.
    pub score: i64,
}

impl RankedRow {
    /// The row of a state that has one.
    pub const ONLY: Self = Self { row: Row(0), score: 0 };
}

/// CALL-12: all rows by their scores for a text that a model with this `sequence` is to continue, the best first.
pub fn ranked(router: &Routing, text: &[u32], sequence: usize) -> Vec<RankedRow> {
    let before = before(text, sequence, router.tokens());
    let scores = router.scores(before);
    router.ranked(before).into_iter().map(|row| RankedRow { row, score: scores[row.index()] }).collect()
}

/// CALL-12: the text before place max(n − s, min(n, t)), of which the router reads the last t tokens.
fn before(text: &[u32], sequence: usize, tokens: usize) -> &[u32] {
    let length = text.len();
    &text[..length.saturating_sub(sequence).max(length.min(tokens))]
}

/// The router of a run of several rows, from its folder or a member's.
///
/// # Errors
/// [`Failure`] naming the file that is missing or not the run's.
pub fn router(manifest: &Manifest, folder: &Path) -> Outcome<Routing> {
    let named = manifest.data.router.as_ref();
    // MANIFEST-15.
    let named = named.ok_or_else(|| Failure::environment("the run has several rows and no router"))?;
    Ok(open_router(&folder.join(DATA), named)?)
}

#[cfg(test)]
mod tests {
    use muster_core::router::{BUCKETS, RouterRow, Table};

    use super::*;

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
