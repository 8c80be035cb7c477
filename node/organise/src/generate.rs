//! Continuing a prompt with a trained decoder, with experts or without, one token after another.

use std::path::Path;

use muster_core::hash::{Domain, Hasher};
use muster_core::manifest::{self, Manifest, TokeniserFile};
use muster_replica::exit::{Failure, Outcome};
use muster_store::dataset::TOKENISER;
use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};

use crate::DATA;
use crate::ending::ending;
use crate::tokenise::LoadedTokeniser;

/// Bytes of a character at most whose last one is not there yet: some tokenisers give U+FFFD for each of them.
const UNFINISHED: usize = 3;

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

impl Default for Sampling {
    fn default() -> Self {
        Self { temperature: 0.7, top: 40, seed: 0 }
    }
}

/// Why a text was written no further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// It has ended: the model drew the token that ends a text.
    Whole,
    /// It has as many tokens as were wanted.
    Full,
    /// Nobody reads it any more.
    Unread,
}

/// A text that a model goes on with.
pub struct Writer<'a> {
    manifest: &'a Manifest,
    words: &'a Words,
    sampling: Sampling,
    stream: ChaCha8Rng,
    tokens: Vec<u32>,
    /// Whether the next line begins another text.
    ended: bool,
}

impl<'a> Writer<'a> {
    /// A text of nothing.
    ///
    /// # Errors
    /// [`Failure`] for a model that does not predict the next token.
    pub fn new(manifest: &'a Manifest, words: &'a Words, sampling: Sampling) -> Outcome<Self> {
        if manifest.model.decoder().is_none() {
            return Err(Failure::usage("only a decoder continues text: this model fills masked tokens in"));
        }
        let seed = Hasher::new(Domain::INITIAL).value(&sampling.seed).finish();
        let stream = ChaCha8Rng::from_seed(seed.0);
        Ok(Self { manifest, words, sampling, stream, tokens: Vec::new(), ended: false })
    }

    /// Puts a prompt behind the text.
    ///
    /// # Errors
    /// [`Failure`] for a prompt that the tokeniser does not read.
    pub fn read(&mut self, prompt: &str) -> Outcome<()> {
        self.tokens.extend(self.words.encode(prompt)?);
        Ok(())
    }

    /// Puts a line of its own behind the text, or begins another text where that one has ended. Nothing is put where the line is
    /// empty.
    ///
    /// # Errors
    /// As of [`Self::read`].
    pub fn read_line(&mut self, line: &str) -> Outcome<()> {
        if std::mem::take(&mut self.ended) {
            self.tokens.clear();
        }
        match (line, &self.tokens[..]) {
            ("", _) => Ok(()),
            (line, []) => self.read(line),
            (line, _) => self.read(&format!("\n{line}")),
        }
    }

    /// Continues the text by at most `count` tokens, up to the one that ends it; `show` gets it piece by piece and says whether to go
    /// on. A text of nothing begins after the end of another.
    ///
    /// `after` gives the logits of the token that follows a text, from a model at hand or from its holders.
    ///
    /// # Errors
    /// As `after`.
    pub fn write(
        &mut self,
        count: usize,
        after: &mut dyn FnMut(&[u32]) -> Outcome<Vec<f32>>,
        show: &mut dyn FnMut(&str) -> bool,
    ) -> Outcome<Written> {
        if self.tokens.is_empty() {
            self.tokens.extend(self.words.prompt("")?);
        }
        let kinds = self.manifest.data.kinds() as usize;
        let (first, mut shown, mut why) = (self.tokens.len(), 0, Written::Full);
        for _ in 0..count {
            let logits = after(&self.tokens)?;
            // A padded vocabulary has kinds that no text has.
            let token = draw(&logits[..kinds.min(logits.len())], self.sampling, &mut self.stream);
            if self.words.end() == Some(token) {
                (self.ended, why) = (true, Written::Whole);
                break;
            }
            self.tokens.push(token);
            let text = self.words.write(&self.tokens[first..]);
            // A character whose bytes are not all there yet is shown with the next token.
            let whole = text.trim_end_matches('\u{fffd}');
            let new = whole.get(shown..).unwrap_or_default();
            if !new.is_empty() && !show(new) {
                return Ok(Written::Unread);
            }
            shown = shown.max(whole.len());
        }
        // Whatever else is no text is shown as such.
        let text = self.words.write(&self.tokens[first..]);
        let mut rest = text.get(shown..).unwrap_or_default();
        for _ in 0..if why == Written::Full { UNFINISHED } else { 0 } {
            rest = rest.strip_suffix('\u{fffd}').unwrap_or(rest);
        }
        Ok(if rest.is_empty() || show(rest) { why } else { Written::Unread })
    }
}

/// What the model reads of a text: its last `sequence` tokens.
pub fn read_of<'a>(manifest: &Manifest, text: &'a [u32]) -> &'a [u32] {
    &text[text.len().saturating_sub(manifest.model.sequence as usize)..]
}

/// How text and tokens become each other.
pub struct Words {
    /// As a `tokenizer.json` says; none where a byte is a token.
    rules: Option<Box<LoadedTokeniser>>,
    end: Option<u32>,
}

impl Words {
    /// Those of a run, with the file named or the one in the folder.
    ///
    /// # Errors
    /// [`Failure`] naming a tokeniser that is missing or not the run's, or a text that cannot be read.
    pub fn of(manifest: &Manifest, folder: &Path, file: Option<&Path>) -> Outcome<Self> {
        let rules = match &manifest.data.tokeniser {
            manifest::Tokeniser::Bytes => None,
            manifest::Tokeniser::File(wanted) => Some(Box::new(rules(wanted, folder, file)?)),
        };
        let file = rules.as_ref().map_or(&[][..], |rules| rules.file());
        let end = ending(folder, &manifest.data, file)?.map(|ending| ending.token);
        Ok(Self { rules, end })
    }

    /// The token that ends a text, where that is known.
    pub fn end(&self) -> Option<u32> {
        self.end
    }

    /// The tokens of a prompt; of an empty one, the token that ends the text before.
    ///
    /// # Errors
    /// [`Failure`] for a text that the tokeniser does not read.
    pub fn prompt(&self, text: &str) -> Outcome<Vec<u32>> {
        let tokens = self.encode(text)?;
        Ok(if tokens.is_empty() { vec![self.end.unwrap_or(0)] } else { tokens })
    }

    fn encode(&self, text: &str) -> Outcome<Vec<u32>> {
        match &self.rules {
            None => Ok(text.bytes().map(u32::from).collect()),
            Some(rules) => rules.encode(text),
        }
    }

    fn write(&self, tokens: &[u32]) -> String {
        let text = match &self.rules {
            None => {
                let bytes: Vec<u8> = tokens.iter().map(|token| *token as u8).collect();
                String::from_utf8_lossy(&bytes).into_owned()
            }
            Some(rules) => rules.decode(tokens),
        };
        // A model may have learnt, or been taught, what steers a terminal.
        text.replace(|c: char| c.is_control() && !matches!(c, '\n' | '\t'), "\u{b7}")
    }
}

/// The tokeniser that a run names, from a file or the folder.
fn rules(wanted: &TokeniserFile, folder: &Path, file: Option<&Path>) -> Outcome<LoadedTokeniser> {
    let own = folder.join(DATA).join(TOKENISER);
    let path = file.unwrap_or(&own);
    if !path.exists() {
        let what = "does not exist; name the run's tokenizer.json by --tokenizer";
        return Err(Failure::environment(format!("{}: {what}", path.display())));
    }
    let tokeniser = LoadedTokeniser::open(path)?;
    if tokeniser.digest() != wanted.digest {
        return Err(Failure::environment(format!("{}: is not the tokeniser of this run", path.display())));
    }
    Ok(tokeniser)
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
    use crate::config::{Makers, Settings};

    /// A model of bytes that writes `said`, then an end, and then the same again.
    fn spoken(writer: &mut Writer<'_>, said: &'static [u8], count: usize) -> (Written, String) {
        let (mut written, mut next) = (String::new(), said.iter().chain([&0]).cycle());
        let mut after = |_: &[u32]| {
            let byte = next.next().copied().unwrap_or_default();
            Ok((0..256).map(|token| if token == u32::from(byte) { 1.0 } else { 0.0 }).collect())
        };
        let mut show = |piece: &str| {
            written += piece;
            true
        };
        let why = writer.write(count, &mut after, &mut show).unwrap();
        (why, written)
    }

    /// The manifest of a run of bytes, whose model is a decoder.
    fn of_bytes() -> Manifest {
        let nobody = muster_core::ids::MemberId([0; 32]);
        let makers = Makers { organiser: nobody, steward: nobody, nonce: [0; 16] };
        let root = muster_core::ids::Digest::default();
        let data = manifest::Data {
            root,
            bytes: 4096,
            held_out_root: root,
            held_out_bytes: 0,
            tokeniser: manifest::Tokeniser::Bytes,
            start: manifest::Start::Drawn,
            router: None,
        };
        Settings::default().manifest(&makers, data).unwrap()
    }

    #[test]
    fn a_text_ends_where_the_model_ends_it_and_the_next_line_begins_another() {
        let manifest = of_bytes();
        let words = Words::of(&manifest, Path::new("nowhere"), None).unwrap();
        assert_eq!((words.end(), words.prompt("").unwrap()), (Some(0), vec![0]));
        let sampling = Sampling { temperature: 0.0, ..Sampling::default() };
        let mut writer = Writer::new(&manifest, &words, sampling).unwrap();
        writer.read("Once").unwrap();
        assert_eq!(spoken(&mut writer, b" upon", 3), (Written::Full, " up".to_owned()));
        assert_eq!(spoken(&mut writer, b"on a time.", 100), (Written::Whole, "on a time.".to_owned()));
        assert_eq!(writer.tokens, b"Once upon a time.".map(u32::from), "the end is no part of it");
        writer.read_line("Twice").unwrap();
        assert_eq!(writer.tokens, b"Twice".map(u32::from));
        spoken(&mut writer, b"!", 1);
        writer.read_line("").unwrap();
        writer.read_line("Thrice").unwrap();
        assert_eq!(writer.tokens, b"Twice!\nThrice".map(u32::from), "lines of one text");
    }

    #[test]
    fn bytes_that_are_no_text_are_shown_but_for_an_unfinished_character() {
        let manifest = of_bytes();
        let words = Words::of(&manifest, Path::new("nowhere"), None).unwrap();
        let sampling = Sampling { temperature: 0.0, ..Sampling::default() };
        let cases: [(&[u8], usize, Written, &str); 5] = [
            (b"\xfa\xfa", 9, Written::Whole, "\u{fffd}\u{fffd}"),
            (b"a\xfa\xfa\xfa\xfa\xfa\xfab", 6, Written::Full, "a\u{fffd}\u{fffd}"),
            (b"\xfab\xfa", 9, Written::Whole, "\u{fffd}b\u{fffd}"),
            ("a\u{6771}".as_bytes(), 3, Written::Full, "a"),
            ("a\u{6771}".as_bytes(), 9, Written::Whole, "a\u{6771}"),
        ];
        for (said, count, why, shown) in cases {
            let mut writer = Writer::new(&manifest, &words, sampling).unwrap();
            assert_eq!(spoken(&mut writer, said, count), (why, shown.to_owned()), "{said:?}");
        }
    }

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
