//! What simple models make of a text, to show beside a trained one. For display only: plain floats.

use super::Dataset;
use crate::error::Result;

/// Tokens that are read at once.
const PIECE: u64 = 1 << 14;

/// Weight of the unigram model within the bigram model, in occurrences.
const PRIOR: f64 = 8.0;

/// Training tokens that are counted, and held-out tokens that are predicted, at most: the first ones of a text. More would change
/// the figures by less than people read, and pairs of tokens are counted in memory.
const COUNTED: [u64; 2] = [1 << 27, 1 << 22];

/// Held-out cross-entropy, in nats per token, of a unigram and a bigram model of tokens fitted on the training text; on the first
/// 2^27 tokens, for the first 2^22 held-out ones, where there are more.
///
/// Of `k` kinds of tokens, unigram: add one, `p(b) = (n(b) + 1) / (n + k)`. Bigram: the same smoothed by it with a
/// Dirichlet prior (MacKay & Peto 1995), `p(b | a) = (n(ab) + 8·p(b)) / (n(a·) + 8)`. The token before the first one
/// counts as 0. An empty held-out text gives 0.
///
/// # Errors
/// As of [`Dataset::read`].
pub fn unigram_bigram(dataset: &Dataset) -> Result<(f64, f64)> {
    let [counted, predicted] = COUNTED;
    let held_out = dataset.tokens(&dataset.held_out, 0..predicted)?;
    let train = |see: &mut dyn FnMut(&[u32])| {
        let pages = (0..counted.min(dataset.training_tokens())).step_by(PIECE as usize);
        for first in pages {
            see(&dataset.tokens(&dataset.train, first..counted.min(first + PIECE))?);
        }
        Ok(())
    };
    fit(dataset.data().kinds(), train, &held_out)
}

/// The same of tokens below `kinds`. `train` shows all of its tokens, a piece at a time.
fn fit(
    kinds: u32,
    train: impl FnOnce(&mut dyn FnMut(&[u32])) -> Result<()>,
    held_out: &[u32],
) -> Result<(f64, f64)> {
    let mut after = vec![0u64; kinds as usize];
    let mut single = after.clone();
    let mut pairs = Pairs::of(kinds, held_out);
    let (mut total, mut before) = (0u64, 0);
    train(&mut |tokens| {
        for token in tokens.iter().copied() {
            after[before as usize] += 1;
            single[token as usize] += 1;
            total += 1;
            if let Some(index) = pairs.index(before, token) {
                pairs.counts[index] += 1;
            }
            before = token;
        }
    })?;
    let total = total as f64 + f64::from(kinds);
    let (mut one, mut two, mut tokens) = (0.0, 0.0, 0u64);
    for (before, token) in with_before(held_out) {
        let prior = (single[token as usize] as f64 + 1.0) / total;
        one -= prior.ln();
        let seen = pairs.index(before, token).map_or(0, |index| pairs.counts[index]);
        two -= ((f64::from(seen) + PRIOR * prior) / (after[before as usize] as f64 + PRIOR)).ln();
        tokens += 1;
    }
    let tokens = tokens.max(1) as f64;
    Ok((one / tokens, two / tokens))
}

/// Counts of the pairs of a text, and of no others: of many kinds of tokens, all pairs would not fit into memory.
struct Pairs {
    /// Where the pairs that begin with a token lie; one more than there are kinds.
    starts: Vec<usize>,
    /// Second tokens, ascending within a row of `starts`.
    seconds: Vec<u32>,
    counts: Vec<u32>,
}

impl Pairs {
    fn of(kinds: u32, text: &[u32]) -> Self {
        let key = |(before, token)| u64::from(before) << 32 | u64::from(token);
        let mut pairs: Vec<u64> = with_before(text).map(key).collect();
        pairs.sort_unstable();
        pairs.dedup();
        let start = |before| pairs.partition_point(|pair| *pair < u64::from(before) << 32);
        let starts = (0..=kinds).map(start).collect();
        let seconds: Vec<u32> = pairs.iter().map(|pair| *pair as u32).collect();
        Self { starts, counts: vec![0; seconds.len()], seconds }
    }

    fn index(&self, before: u32, token: u32) -> Option<usize> {
        let (start, end) = (self.starts[before as usize], self.starts[before as usize + 1]);
        Some(start + self.seconds[start..end].binary_search(&token).ok()?)
    }
}

fn with_before(text: &[u32]) -> impl Iterator<Item = (u32, u32)> {
    core::iter::once(0).chain(text.iter().copied()).zip(text.iter().copied())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fit_tokens(kinds: u32, train: &[u32], held_out: &[u32]) -> (f64, f64) {
        let pieces = |see: &mut dyn FnMut(&[u32])| {
            train.chunks(1000).for_each(see);
            Ok(())
        };
        fit(kinds, pieces, held_out).unwrap()
    }

    fn fit_bytes(train: &[u8], held_out: &[u8]) -> (f64, f64) {
        let tokens = |text: &[u8]| text.iter().map(|byte| u32::from(*byte)).collect::<Vec<_>>();
        fit_tokens(256, &tokens(train), &tokens(held_out))
    }

    #[test]
    fn known_texts() {
        let (one, two) = fit_bytes(b"", b"any");
        let uniform = 256f64.ln();
        assert!((one - uniform).abs() < 1e-12 && (two - uniform).abs() < 1e-12);
        let alternating = b"ab".repeat(100_000);
        let (one, two) = fit_bytes(&alternating, &alternating);
        assert!((one - 2f64.ln()).abs() < 2e-3, "{one}");
        assert!(two > 0.0 && two < 2e-3, "{two}");
        assert_eq!(fit_bytes(b"text", b""), (0.0, 0.0));
    }

    #[test]
    fn probabilities_add_up() {
        let train = b"some text, in which some things follow others";
        // The probability of a byte after another is the ratio of that of two held-out texts.
        let sum: f64 = (0..=255).map(|byte| (-2.0 * fit_bytes(train, &[b's', byte]).1).exp()).sum();
        let first = (-fit_bytes(train, b"s").1).exp();
        assert!((sum - first).abs() < 1e-12, "{sum} {first}");
        let sum: f64 = (0..=255).map(|byte| (-fit_bytes(train, &[byte]).0).exp()).sum();
        assert!((sum - 1.0).abs() < 1e-12);
    }

    #[test]
    fn many_kinds_of_tokens_are_counted_alike() {
        let text: Vec<u32> = (0..10_000u32).map(|place| place * 7919 % 1013 * 1000).collect();
        let small: Vec<u32> = text.iter().map(|token| token / 1000).collect();
        let (_, two) = fit_tokens(1_013_000, &text, &text);
        let (one, small_two) = fit_tokens(1013, &small, &small);
        assert!(two > small_two && two < one, "{small_two} {two} {one}");
    }
}
