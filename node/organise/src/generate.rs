//! Continuing a prompt with a trained decoder, with experts or without, one token after another.

use std::path::Path;

use muster_core::hash::{Domain, Hasher};
use muster_core::manifest::{self, Manifest};
use muster_replica::exit::{Failure, Outcome};
use muster_store::dataset::TOKENISER;
use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};

use crate::DATA;
use crate::tokenise::LoadedTokeniser;

/// How the next token is drawn.
#[derive(Clone, Copy, Debug)]
pub struct Sampling {
    /// Divides the logits; 0 always takes the most likely token.
    pub temperature: f64,
    /// Draw among this many of the most likely tokens; 0 stands for all.
    pub top: usize,
    /// The same seed draws the same text.
    pub seed: u64,
}

/// The text to write.
#[derive(Clone, Copy, Debug)]
pub struct Continuation<'a> {
    /// The text that it continues.
    pub prompt: &'a str,
    /// Tokens to draw.
    pub count: usize,
    /// How each of them is drawn.
    pub sampling: Sampling,
}

impl Default for Sampling {
    fn default() -> Self {
        Self { temperature: 0.7, top: 40, seed: 0 }
    }
}

/// Continues a prompt by `count` tokens; `show` gets the text piece by piece and says whether to go on. An empty
/// prompt stands for the end of the text before.
///
/// `after` gives the logits of the token that follows a text, from a model at hand or from its holders.
///
/// # Errors
/// [`Failure`] for a model that does not predict the next token; as `after`.
pub fn continue_text(
    manifest: &Manifest,
    after: &mut dyn FnMut(&[u32]) -> Outcome<Vec<f32>>,
    words: &Words,
    continuation: &Continuation<'_>,
    show: &mut dyn FnMut(&str) -> bool,
) -> Outcome<()> {
    let Continuation { prompt, count, sampling } = *continuation;
    if manifest.model.decoder().is_none() {
        return Err(Failure::usage("only a decoder continues text: this model fills masked tokens in"));
    }
    let mut tokens = words.prompt(prompt)?;
    let kinds = manifest.data.kinds() as usize;
    let seed = Hasher::new(Domain::INITIAL).value(&sampling.seed).finish();
    let mut stream = ChaCha8Rng::from_seed(seed.0);
    let (first, mut shown) = (tokens.len(), 0);
    for _ in 0..count {
        let logits = after(&tokens)?;
        // A padded vocabulary has kinds that no text has.
        tokens.push(draw(&logits[..kinds.min(logits.len())], sampling, &mut stream));
        let text = words.write(&tokens[first..]);
        // A character whose bytes are not all there yet is shown with the next token.
        let whole = text.trim_end_matches('\u{fffd}');
        let new = whole.get(shown..).unwrap_or_default();
        if !new.is_empty() && !show(new) {
            return Ok(());
        }
        shown = shown.max(whole.len());
    }
    Ok(())
}

/// What the model reads of a text: its last `sequence` tokens.
pub fn read_of<'a>(manifest: &Manifest, text: &'a [u32]) -> &'a [u32] {
    &text[text.len().saturating_sub(manifest.model.sequence as usize)..]
}

/// How text and tokens become each other.
pub enum Words {
    /// A byte is a token.
    Bytes,
    /// As a `tokenizer.json` says.
    File(Box<LoadedTokeniser>),
}

impl Words {
    /// Those of a run, with the file named or the one in the folder.
    ///
    /// # Errors
    /// [`Failure`] naming a tokeniser that is missing or not the run's.
    pub fn of(manifest: &Manifest, folder: &Path, file: Option<&Path>) -> Outcome<Self> {
        let wanted = match &manifest.data.tokeniser {
            manifest::Tokeniser::Bytes => return Ok(Self::Bytes),
            manifest::Tokeniser::File(wanted) => wanted,
        };
        let own = folder.join(DATA).join(TOKENISER);
        let path = file.unwrap_or(&own);
        if !path.exists() {
            let what = "does not exist; name the run's tokenizer.json by --tokenizer";
            return Err(Failure::environment(format!("{}: {what}", path.display())));
        }
        let tokeniser = LoadedTokeniser::open(path)?;
        if tokeniser.digest() != wanted.digest {
            return Err(Failure::environment(format!(
                "{}: is not the tokeniser of this run",
                path.display()
            )));
        }
        Ok(Self::File(Box::new(tokeniser)))
    }

    /// The tokens of a prompt; of an empty one, the token that stands for the end of the text before.
    ///
    /// # Errors
    /// [`Failure`] for a text that the tokeniser does not read.
    pub fn prompt(&self, text: &str) -> Outcome<Vec<u32>> {
        let mut tokens = match self {
            Self::Bytes => text.bytes().map(u32::from).collect(),
            Self::File(tokeniser) => tokeniser.encode(text)?,
        };
        if tokens.is_empty() {
            tokens.push(0);
        }
        Ok(tokens)
    }

    fn write(&self, tokens: &[u32]) -> String {
        let text = match self {
            Self::Bytes => {
                let bytes: Vec<u8> = tokens.iter().map(|token| *token as u8).collect();
                String::from_utf8_lossy(&bytes).into_owned()
            }
            Self::File(tokeniser) => tokeniser.decode(tokens),
        };
        // A model may have learnt, or been taught, what steers a terminal.
        text.replace(|c: char| c.is_control() && !matches!(c, '\n' | '\t'), "\u{b7}")
    }
}

/// Draws a token; where no logit is finite, token 0.
fn draw(logits: &[f32], sampling: Sampling, stream: &mut ChaCha8Rng) -> u32 {
    let mut order: Vec<u32> =
        (0..logits.len() as u32).filter(|token| logits[*token as usize].is_finite()).collect();
    order.sort_by(|a, b| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b)));
    if sampling.top > 0 {
        order.truncate(sampling.top);
    }
    let Some(first) = order.first().copied() else { return 0 };
    if sampling.temperature <= 0.0 {
        return first;
    }
    // The largest exponent is 0, so that nothing overflows.
    let most = f64::from(logits[first as usize]);
    let weight = |token: u32| ((f64::from(logits[token as usize]) - most) / sampling.temperature).exp();
    let total: f64 = order.iter().map(|token| weight(*token)).sum();
    let mut left = stream.next_u64() as f64 / u64::MAX as f64 * total;
    for token in &order {
        left -= weight(*token);
        if left <= 0.0 {
            return *token;
        }
    }
    first
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_follow_the_logits() {
        let mut stream = ChaCha8Rng::from_seed([1; 32]);
        let logits = [1.0, 3.0, f32::NAN, 2.0, f32::NEG_INFINITY];
        let sampling = Sampling { temperature: 1.0, top: 0, seed: 0 };
        let mut counts = [0u32; 5];
        for _ in 0..30_000 {
            counts[draw(&logits, sampling, &mut stream) as usize] += 1;
        }
        let expected = [0.0900, 0.6652, 0.0, 0.2447, 0.0];
        for (count, expected) in counts.iter().zip(expected) {
            assert!((f64::from(*count) / 30_000.0 - expected).abs() < 0.02, "{counts:?}");
        }
        assert_eq!(draw(&logits, Sampling { temperature: 0.0, ..sampling }, &mut stream), 1);
        assert_eq!(draw(&logits, Sampling { top: 1, ..sampling }, &mut stream), 1);
        assert_eq!(draw(&[f32::NAN], sampling, &mut stream), 0);
    }
}
