//! Texts one after the other, as a corpus holds them.

use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;

use muster_core::codec::is_hidden;
use muster_core::hash::{Domain, Hasher};
use muster_core::manifest::{Tokeniser, TokeniserFile};

use super::tokens;
use crate::error::{Result, StoreError};

/// A tokeniser whose numbers a corpus holds.
#[derive(Clone, Copy, Debug)]
pub struct Numbering<'a> {
    /// Its `tokenizer.json`, which the corpus keeps.
    pub file: &'a [u8],
    /// Numbers that it knows, from 0 on.
    pub tokens: u32,
    /// What ends each text.
    pub end: Option<u32>,
}

impl Numbering<'_> {
    /// What a manifest says of it.
    pub fn tokeniser(&self) -> Tokeniser {
        // DATA-4: the digest is H("tokeniser", file).
        let digest = Hasher::new(Domain::TOKENISER).part(self.file).finish();
        let bytes = u32::try_from(self.file.len()).unwrap_or(u32::MAX);
        Tokeniser::File(TokeniserFile { digest, bytes, tokens: self.tokens })
    }
}

/// What people call a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextName {
    /// Where it is from: a file, a pipe.
    pub source: Arc<str>,
    /// Its row there, from 1 on; none where all of the source is one text.
    pub row: Option<u64>,
}

impl From<String> for TextName {
    fn from(name: String) -> Self {
        Self { source: name.into(), row: None }
    }
}

/// A text that is whole.
#[derive(Debug)]
struct EndedText {
    name: TextName,
    /// Where the text after it begins, in bytes.
    after: usize,
}

/// Texts in tokens, each with its end. The last one may still be without.
#[derive(Debug)]
pub struct JoinedTexts {
    /// Bytes of a token.
    size: usize,
    /// Token numbers; none where tokens are bytes.
    known: Option<u32>,
    /// What ends a text.
    end: Vec<u8>,
    bytes: Vec<u8>,
    texts: Vec<EndedText>,
}

impl JoinedTexts {
    /// None yet; tokens are bytes, or those of a tokeniser.
    pub fn new(numbering: Option<&Numbering<'_>>) -> Self {
        let Some(numbering) = numbering else {
            return Self { size: 1, known: None, end: vec![0], bytes: Vec::new(), texts: Vec::new() };
        };
        let size = tokens::size(&numbering.tokeniser());
        let mut end = Vec::new();
        numbering.end.iter().for_each(|token| tokens::write(*token, size, &mut end));
        Self { size, known: Some(numbering.tokens), end, bytes: Vec::new(), texts: Vec::new() }
    }

    /// Bytes in all.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether nothing is there.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Texts that are whole.
    pub fn count(&self) -> usize {
        self.texts.len()
    }

    /// Goes on with the text in work.
    pub fn push_bytes(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Goes on with the text in work, whose source is named.
    ///
    /// # Errors
    /// [`crate::error::Kind::Refused`] for a number that the tokeniser does not know.
    pub fn push_numbers(&mut self, numbers: &[u32], source: &str) -> Result<()> {
        let known = self.known.unwrap_or(256);
        if let Some(token) = numbers.iter().find(|token| **token >= known) {
            let cause = format!("has token {token}, but the tokeniser knows {known} numbers");
            let advice = "use the tokeniser that made it";
            return Err(StoreError::refused(Path::new(source), cause, advice));
        }
        numbers.iter().for_each(|token| tokens::write(*token, self.size, &mut self.bytes));
        Ok(())
    }

    /// Ends the text in work, also an empty one.
    pub fn end(&mut self, name: TextName) {
        self.bytes.extend_from_slice(&self.end);
        self.texts.push(EndedText { name, after: self.bytes.len() });
    }

    /// Where the text in work begins.
    fn open(&self) -> usize {
        self.texts.last().map_or(0, |text| text.after)
    }

    /// Whether the text in work has nothing yet.
    pub fn is_at_start(&self) -> bool {
        self.open() == self.bytes.len()
    }

    /// Takes the last of `part` texts off, at least one; of a single text, the last of `part` of its tokens, at least one.
    /// Bytes are cut between characters.
    #[must_use]
    pub fn hold_out(&mut self, part: usize) -> Self {
        let (size, known, end) = (self.size, self.known, self.end.clone());
        if let [only] = self.texts.as_slice() {
            let name = only.name.clone();
            let cut = self.cut(only.after - self.end.len(), part);
            let bytes = self.bytes.split_off(cut);
            self.texts.clear();
            self.end(name.clone());
            let texts = vec![EndedText { name, after: bytes.len() }];
            return Self { size, known, end, bytes, texts };
        }
        let kept = self.texts.len() - self.texts.len().div_ceil(part);
        let mut texts = self.texts.split_off(kept);
        let bytes = self.bytes.split_off(self.open());
        let before = self.bytes.len();
        texts.iter_mut().for_each(|text| text.after -= before);
        Self { size, known, end, bytes, texts }
    }

    /// Where the last part of the only text begins, which ends here.
    fn cut(&self, length: usize, part: usize) -> usize {
        let tokens = length / self.size;
        let kept = (tokens - (tokens / part).max(1).min(tokens)) * self.size;
        // Of UTF-8, every byte but the first of a character begins with the bits 10.
        let within = |at: &usize| self.known.is_none() && self.bytes[*at] & 0xC0 == 0x80;
        let cut = (kept..length).find(|at| !within(at));
        // A last character of several bytes.
        cut.unwrap_or_else(|| (0..length).rev().find(|at| !within(at)).unwrap_or(0))
    }

    /// Whether there is nothing but ends: whatever is measured on them is made up.
    pub(super) fn says_nothing(&self) -> bool {
        let ends = !self.end.is_empty() && self.bytes.chunks(self.end.len()).all(|token| token == self.end);
        self.bytes.is_empty() || ends
    }

    /// The bytes, and what `corpus.txt` says of them: texts that follow each other in one source have one line.
    pub(super) fn into_parts(self) -> (Vec<u8>, String) {
        let (mut about, mut before) = (String::new(), 0);
        for run in
            self.texts.chunk_by(|one, next| one.name.row.is_some() && one.name.source == next.name.source)
        {
            // A run is never empty.
            let (first, last) = (&run[0], &run[run.len() - 1]);
            let count = (last.after - before - run.len() * self.end.len()) / self.size;
            before = last.after;
            // A file name with a line break could forge a line that `described` reads.
            let name = first.name.source.replace(is_hidden, "\u{fffd}");
            let rows = match (first.name.row, last.name.row) {
                (Some(first), Some(last)) => format!(", rows {first} to {last}"),
                _ => String::new(),
            };
            let _ = writeln!(about, "{count:>10} {name}{rows}");
        }
        (self.bytes, about)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(of: &[&str]) -> JoinedTexts {
        let mut joined = JoinedTexts::new(None);
        for (number, text) in of.iter().enumerate() {
            joined.push_bytes(text.as_bytes());
            joined.end(TextName { source: "rows".into(), row: Some(number as u64 + 1) });
        }
        joined
    }

    #[test]
    fn the_last_texts_are_held_out_or_the_end_of_the_only_one() {
        let held = |of: &[&str], part| {
            let mut train = texts(of);
            let held = train.hold_out(part);
            let text = |joined: JoinedTexts| String::from_utf8(joined.into_parts().0).unwrap();
            [text(train), text(held)]
        };
        assert_eq!(held(&["a", "b", "c"], 20), ["a\0b\0", "c\0"]);
        assert_eq!(held(&["a", "b", "c"], 2), ["a\0", "b\0c\0"]);
        assert_eq!(held(&["abcdefgh"], 4), ["abcdef\0", "gh\0"]);
        assert_eq!(held(&["ab"], 20), ["a\0", "b\0"]);
        // Three bytes a character: none is cut in two.
        assert_eq!(held(&["\u{20ac}\u{20ac}\u{20ac}"], 2), ["\u{20ac}\u{20ac}\0", "\u{20ac}\0"]);
        assert_eq!(held(&["a\u{20ac}"], 20), ["a\0", "\u{20ac}\0"]);
        assert_eq!(held(&[""], 20), ["\0", "\0"]);
    }

    #[test]
    fn numbers_are_cut_between_tokens_and_rows_have_one_line() {
        let file = br#"{"model": {"vocab": {"a": 0, "b": 699}}}"#;
        let mut joined = JoinedTexts::new(Some(&Numbering { file, tokens: 700, end: Some(699) }));
        joined.push_numbers(&[1, 2, 3, 4], "text").unwrap();
        joined.end(TextName::from("a\nb".to_owned()));
        let held = joined.hold_out(2);
        assert_eq!(held.into_parts(), (vec![3, 0, 4, 0, 187, 2], "         2 a\u{fffd}b\n".into()));
        assert_eq!(joined.into_parts().0, [1, 0, 2, 0, 187, 2]);
        let (_, about) = texts(&["one", "two", "", "four"]).into_parts();
        assert_eq!(about, "        10 rows, rows 1 to 4\n");
    }
}
