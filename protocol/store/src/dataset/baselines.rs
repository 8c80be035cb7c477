//! What simple models make of a text, to show beside a trained one. For display only: plain floats.

/// Weight of the unigram model within the bigram model, in occurrences.
const PRIOR: f64 = 8.0;

/// Held-out cross-entropy, in nats per byte, of a unigram and a bigram model of bytes fitted on the training text.
///
/// Unigram: add one, `p(b) = (n(b) + 1) / (n + 256)`. Bigram: the same smoothed by it with a Dirichlet prior (MacKay
/// & Peto 1995), `p(b | a) = (n(ab) + 8·p(b)) / (n(a·) + 8)`. The byte before the first one counts as 0, the
/// separator. An empty held-out text gives 0.
pub fn unigram_bigram(train: &[u8], held_out: &[u8]) -> (f64, f64) {
    let mut pairs = vec![0u64; 1 << 16];
    for (before, byte) in with_before(train) {
        pairs[pair(before, byte)] += 1;
    }
    let mut after = [0u64; 256];
    let mut single = [0u64; 256];
    for before in 0..=255 {
        for byte in 0..=255 {
            let count = pairs[pair(before, byte)];
            after[usize::from(before)] += count;
            single[usize::from(byte)] += count;
        }
    }
    let total = train.len() as f64 + 256.0;
    let unigram = |byte: u8| (single[usize::from(byte)] as f64 + 1.0) / total;
    let (mut one, mut two) = (0.0, 0.0);
    for (before, byte) in with_before(held_out) {
        let prior = unigram(byte);
        one -= prior.ln();
        let (seen, all) = (pairs[pair(before, byte)] as f64, after[usize::from(before)] as f64);
        two -= ((seen + PRIOR * prior) / (all + PRIOR)).ln();
    }
    let bytes = held_out.len().max(1) as f64;
    (one / bytes, two / bytes)
}

fn with_before(text: &[u8]) -> impl Iterator<Item = (u8, u8)> {
    core::iter::once(0).chain(text.iter().copied()).zip(text.iter().copied())
}

fn pair(before: u8, byte: u8) -> usize {
    usize::from(before) << 8 | usize::from(byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_texts() {
        let (one, two) = unigram_bigram(b"", b"any");
        let uniform = 256f64.ln();
        assert!((one - uniform).abs() < 1e-12 && (two - uniform).abs() < 1e-12);
        let alternating = b"ab".repeat(100_000);
        let (one, two) = unigram_bigram(&alternating, &alternating);
        assert!((one - 2f64.ln()).abs() < 2e-3, "{one}");
        assert!(two > 0.0 && two < 2e-3, "{two}");
        assert_eq!(unigram_bigram(b"text", b""), (0.0, 0.0));
    }

    #[test]
    fn probabilities_add_up() {
        let train = b"some text, in which some things follow others";
        // The probability of a byte after another is the ratio of that of two held-out texts.
        let sum: f64 = (0..=255).map(|byte| (-2.0 * unigram_bigram(train, &[b's', byte]).1).exp()).sum();
        let first = (-unigram_bigram(train, b"s").1).exp();
        assert!((sum - first).abs() < 1e-12, "{sum} {first}");
        let sum: f64 = (0..=255).map(|byte| (-unigram_bigram(train, &[byte]).0).exp()).sum();
        assert!((sum - 1.0).abs() < 1e-12);
    }
}
