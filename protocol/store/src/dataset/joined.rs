//! Texts one after the other, as a corpus holds them.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufWriter, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use muster_core::codec::is_hidden;
use muster_core::hash::{Domain, Hasher};
use muster_core::manifest::{DataFile, Tokeniser, TokeniserFile};

use super::committed::{Committed, PAGE_BYTES};
use super::names::name;
use super::{Draft, tokens};
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

/// Bytes of the place where a text ends, and of its row, as they are noted down: texts may be a hundred million.
const NOTE: u64 = 16;

/// Texts that follow each other in one source, which have one line in `corpus.txt`.
#[derive(Clone, Debug)]
struct Stretch {
    source: Arc<str>,
    /// The rows of its first text and of its last one; none where its only text is all of the source.
    rows: Option<[u64; 2]>,
    /// Texts before it.
    first: u64,
    /// Where it begins and ends, in bytes.
    bytes: Range<u64>,
}

/// Texts in tokens, each with its end, in a file of a [`Draft`]. The last one may still be without.
#[derive(Debug)]
pub struct JoinedTexts {
    /// Bytes of a token.
    size: usize,
    /// Token numbers; none where tokens are bytes.
    known: Option<u32>,
    /// What ends a text.
    end: Vec<u8>,
    bytes: Spool,
    /// Where each text ends, and its row.
    notes: Spool,
    stretches: Vec<Stretch>,
}

/// A file that grows.
#[derive(Debug)]
struct Spool {
    path: PathBuf,
    file: BufWriter<File>,
    length: u64,
}

impl Spool {
    fn new(draft: &Draft, name: &str) -> Result<Self> {
        Ok(Self { path: draft.path(name), file: BufWriter::new(draft.create(name)?), length: 0 })
    }

    fn push(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all(bytes).map_err(|error| StoreError::io(&self.path, &error))?;
        self.length += bytes.len() as u64;
        Ok(())
    }

    /// The bytes from a place on, as many as there are of this length.
    fn read(&mut self, begin: u64, length: u64) -> Result<Vec<u8>> {
        let mut bytes = vec![0; length.min(self.length.saturating_sub(begin)) as usize];
        let read = self.file.flush().and_then(|()| {
            let file = self.file.get_mut();
            file.seek(SeekFrom::Start(begin))?;
            file.read_exact(&mut bytes)?;
            // What is pushed goes to the end.
            file.seek(SeekFrom::End(0))
        });
        read.map_err(|error| StoreError::io(&self.path, &error))?;
        Ok(bytes)
    }

    /// Moves what is behind a place to another spool.
    fn split_off(&mut self, begin: u64, to: &mut Self) -> Result<()> {
        for piece in (begin..self.length).step_by(PAGE_BYTES as usize) {
            to.push(&self.read(piece, PAGE_BYTES)?)?;
        }
        let cut =
            self.file.get_mut().set_len(begin).and_then(|()| self.file.get_mut().seek(SeekFrom::End(0)));
        cut.map_err(|error| StoreError::io(&self.path, &error))?;
        self.length = begin;
        Ok(())
    }
}

impl JoinedTexts {
    /// None yet, of a training text or a held-out one; tokens are bytes, or those of a tokeniser.
    ///
    /// # Errors
    /// What the system reports.
    pub fn new(draft: &Draft, file: DataFile, numbering: Option<&Numbering<'_>>) -> Result<Self> {
        let (mut size, mut known, mut end) = (1, None, vec![0]);
        if let Some(numbering) = numbering {
            (size, known) = (tokens::size(&numbering.tokeniser()), Some(numbering.tokens));
            end.clear();
            numbering.end.iter().for_each(|token| tokens::write(*token, size, &mut end));
        }
        let (bytes, notes) = spools(draft, file)?;
        Ok(Self { size, known, end, bytes, notes, stretches: Vec::new() })
    }

    /// Bytes in all.
    pub fn len(&self) -> u64 {
        self.bytes.length
    }

    /// Whether nothing is there.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Texts that are whole.
    fn count(&self) -> u64 {
        self.notes.length / NOTE
    }

    /// Goes on with the text in work.
    ///
    /// # Errors
    /// [`crate::error::Kind::Full`]; what the system reports.
    pub fn push_bytes(&mut self, bytes: &[u8]) -> Result<()> {
        self.bytes.push(bytes)
    }

    /// Goes on with the text in work, whose source is named.
    ///
    /// # Errors
    /// [`crate::error::Kind::Refused`] for a number that the tokeniser does not know; as of [`Self::push_bytes`].
    pub fn push_numbers(&mut self, numbers: &[u32], source: &str) -> Result<()> {
        let known = self.known.unwrap_or(256);
        if let Some(token) = numbers.iter().find(|token| **token >= known) {
            let cause = format!("has token {token}, but the tokeniser knows {known} numbers");
            let advice = "use the tokeniser that made it";
            return Err(StoreError::refused(Path::new(source), cause, advice));
        }
        let mut bytes = Vec::with_capacity(self.size * numbers.len());
        numbers.iter().for_each(|token| tokens::write(*token, self.size, &mut bytes));
        self.bytes.push(&bytes)
    }

    /// Ends the text in work, also an empty one.
    ///
    /// # Errors
    /// As of [`Self::push_bytes`].
    pub fn end(&mut self, name: TextName) -> Result<()> {
        let begin = self.open();
        self.bytes.push(&self.end)?;
        let after = self.len();
        let first = self.count();
        self.notes.push(&[after.to_le_bytes(), name.row.unwrap_or(0).to_le_bytes()].concat())?;
        let rows = name.row.map(|row| [row, row]);
        match self.stretches.last_mut() {
            Some(Stretch { source, rows: Some([_, last]), bytes, .. }) if *source == name.source => {
                *last = name.row.unwrap_or(*last);
                bytes.end = after;
            }
            _ => self.stretches.push(Stretch { source: name.source, rows, first, bytes: begin..after }),
        }
        Ok(())
    }

    /// Where the text in work begins.
    fn open(&self) -> u64 {
        self.stretches.last().map_or(0, |stretch| stretch.bytes.end)
    }

    /// Whether the text in work has nothing yet.
    pub fn is_at_start(&self) -> bool {
        self.open() == self.len()
    }

    /// Takes the last of `part` texts off as the held-out text, at least one; of a single text, the last of `part` of its tokens, at
    /// least one. Bytes are cut between characters.
    ///
    /// # Errors
    /// As of [`Self::push_bytes`].
    pub fn hold_out(&mut self, draft: &Draft, part: u64) -> Result<Self> {
        let (size, known, end) = (self.size, self.known, self.end.clone());
        let (bytes, notes) = spools(draft, DataFile::HeldOut)?;
        let mut held = Self { size, known, end, bytes, notes, stretches: Vec::new() };
        let kept = self.count().saturating_sub(self.count().div_ceil(part));
        if self.count() == 1 {
            let Some(only) = self.stretches.pop() else { return Ok(held) };
            let cut = self.cut(only.bytes.end - self.end.len() as u64, part)?;
            self.bytes.split_off(cut, &mut held.bytes)?;
            self.notes.split_off(0, &mut held.notes)?;
            held.stretches.push(Stretch { bytes: 0..held.len(), ..only.clone() });
            self.end(TextName { source: only.source, row: only.rows.map(|[row, _]| row) })?;
            return Ok(held);
        }
        let mut note = |text: u64| -> Result<[u64; 2]> {
            let note = self.notes.read(text * NOTE, NOTE)?;
            Ok([0, 8].map(|at| u64::from_le_bytes(core::array::from_fn(|byte| note[at + byte]))))
        };
        let ([cut, last], [_, first]) =
            if kept > 0 { (note(kept - 1)?, note(kept)?) } else { Default::default() };
        self.bytes.split_off(cut, &mut held.bytes)?;
        self.notes.split_off(kept * NOTE, &mut held.notes)?;
        let stretches = std::mem::take(&mut self.stretches);
        for mut stretch in stretches {
            if stretch.bytes.end <= cut {
                self.stretches.push(stretch);
                continue;
            }
            if stretch.bytes.start < cut {
                let [rows, rest] = match stretch.rows {
                    Some([from, to]) => [Some([from, last]), Some([first, to])],
                    None => [None, None],
                };
                self.stretches.push(Stretch { rows, bytes: stretch.bytes.start..cut, ..stretch.clone() });
                stretch = Stretch { rows: rest, first: kept, bytes: cut..stretch.bytes.end, ..stretch };
            }
            let bytes = stretch.bytes.start - cut..stretch.bytes.end - cut;
            held.stretches.push(Stretch { first: stretch.first - kept, bytes, ..stretch });
        }
        Ok(held)
    }

    /// Where the last part of the only text begins, which ends here.
    fn cut(&mut self, length: u64, part: u64) -> Result<u64> {
        let size = self.size as u64;
        let tokens = length / size;
        let kept = (tokens - (tokens / part).max(1).min(tokens)) * size;
        if self.known.is_some() {
            return Ok(kept);
        }
        // Of UTF-8, every byte but the first of a character begins with the bits 10, and a character has 4 bytes at most.
        let begin = kept.saturating_sub(CHARACTER);
        let around = self.bytes.read(begin, (length - begin).min(2 * CHARACTER))?;
        let begins = (begin..length).zip(around).filter(|(_, byte)| byte & 0xC0 != 0x80).map(|(at, _)| at);
        let begins: Vec<u64> = begins.collect();
        // A last character of several bytes.
        Ok(begins.iter().find(|at| **at >= kept).or(begins.last()).copied().unwrap_or(0))
    }

    /// What `corpus.txt` says of the texts.
    fn about(&self) -> String {
        let mut about = String::new();
        for (index, Stretch { source, rows, first, bytes }) in self.stretches.iter().enumerate() {
            let after = self.stretches.get(index + 1).map_or(self.count(), |next| next.first);
            let ends = (after - first) * self.end.len() as u64;
            let count = (bytes.end - bytes.start - ends) / self.size as u64;
            // A file name with a line break could forge a line that `described` reads.
            let name = source.replace(is_hidden, "\u{fffd}");
            let rows = match rows {
                Some([first, last]) => format!(", rows {first} to {last}"),
                None => String::new(),
            };
            let _ = writeln!(about, "{count:>10} {name}{rows}");
        }
        about
    }

    /// The file with the bytes, and what `corpus.txt` says of them.
    ///
    /// # Errors
    /// As of [`Self::push_bytes`]; [`crate::error::Kind::Refused`] where there is nothing but ends, `out` being named: whatever is
    /// measured on them is made up.
    pub(super) fn into_parts(mut self, out: &Path) -> Result<(Committed, String)> {
        let (about, length) = (self.about(), self.len());
        self.bytes.file.flush().map_err(|error| StoreError::io(&self.bytes.path, &error))?;
        crate::files::remove(&self.notes.path)?;
        let (mut says, end) = (false, self.end);
        let file =
            self.bytes.file.into_inner().map_err(|error| StoreError::io(&self.bytes.path, error.error()))?;
        let committed = Committed::open(&self.bytes.path, file, length, &mut |_, page| {
            says |= end.is_empty() || page.chunks(end.len()).any(|token| token != end);
        })?;
        if !says {
            let cause = "training and held-out text both need at least one text that is not empty";
            return Err(StoreError::refused(out, cause, "name more text"));
        }
        Ok((committed, about))
    }
}

/// Bytes of a character, at most.
const CHARACTER: u64 = 4;

/// Files for a text and for the ends of its texts.
fn spools(draft: &Draft, file: DataFile) -> Result<(Spool, Spool)> {
    Ok((Spool::new(draft, name(file))?, Spool::new(draft, &format!("{}.ends", name(file)))?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(draft: &Draft, of: &[&str]) -> JoinedTexts {
        let mut joined = JoinedTexts::new(draft, DataFile::Training, None).unwrap();
        for (number, text) in of.iter().enumerate() {
            joined.push_bytes(text.as_bytes()).unwrap();
            joined.end(TextName { source: "rows".into(), row: Some(number as u64 + 1) }).unwrap();
        }
        joined
    }

    fn bytes(joined: &mut JoinedTexts) -> Vec<u8> {
        joined.bytes.read(0, u64::MAX).unwrap()
    }

    #[test]
    fn the_last_texts_are_held_out_or_the_end_of_the_only_one() {
        let directory = tempfile::tempdir().unwrap();
        let held = |of: &[&str], part| {
            let draft = Draft::new(&directory.path().join("corpus")).unwrap();
            let mut train = texts(&draft, of);
            let mut held = train.hold_out(&draft, part).unwrap();
            [&mut train, &mut held].map(|joined| String::from_utf8(bytes(joined)).unwrap())
        };
        assert_eq!(held(&["a", "b", "c"], 20), ["a\0b\0", "c\0"]);
        assert_eq!(held(&["a", "b", "c"], 2), ["a\0", "b\0c\0"]);
        assert_eq!(held(&["abcdefgh"], 4), ["abcdef\0", "gh\0"]);
        assert_eq!(held(&["ab"], 20), ["a\0", "b\0"]);
        // Three bytes a character: none is cut in two.
        assert_eq!(held(&["\u{20ac}\u{20ac}\u{20ac}"], 2), ["\u{20ac}\u{20ac}\0", "\u{20ac}\0"]);
        assert_eq!(held(&["a\u{20ac}"], 20), ["a\0", "\u{20ac}\0"]);
        assert_eq!(held(&["\u{20ac}"], 20), ["\0", "\u{20ac}\0"]);
        assert_eq!(held(&[""], 20), ["\0", "\0"]);
        let long = "\u{20ac}".repeat(100_000);
        let [train, held] = held(&[&long], 20);
        assert_eq!((train.len() - 1, held.len() - 1), (285_000, 15_000));
    }

    #[test]
    fn numbers_are_cut_between_tokens_and_rows_have_one_line() {
        let directory = tempfile::tempdir().unwrap();
        let draft = Draft::new(&directory.path().join("corpus")).unwrap();
        let file = br#"{"model": {"vocab": {"a": 0, "b": 699}}}"#;
        let numbering = Numbering { file, tokens: 700, end: Some(699) };
        let mut joined = JoinedTexts::new(&draft, DataFile::Training, Some(&numbering)).unwrap();
        joined.push_numbers(&[1, 2, 3, 4], "text").unwrap();
        joined.end(TextName::from("a\nb".to_owned())).unwrap();
        let mut held = joined.hold_out(&draft, 2).unwrap();
        assert_eq!(
            (bytes(&mut held), held.about()),
            (vec![3, 0, 4, 0, 187, 2], "         2 a\u{fffd}b\n".into())
        );
        assert_eq!(bytes(&mut joined), [1, 0, 2, 0, 187, 2]);
        assert_eq!(texts(&draft, &["one", "two", "", "four"]).about(), "        10 rows, rows 1 to 4\n");
    }

    #[test]
    fn lines_of_a_held_out_text_and_of_the_rest_say_which_rows_they_have() {
        let directory = tempfile::tempdir().unwrap();
        let draft = Draft::new(&directory.path().join("corpus")).unwrap();
        let mut train = texts(&draft, &["one", "two", "three", "four"]);
        train.push_bytes(b"a whole file").unwrap();
        train.end(TextName::from("file".to_owned())).unwrap();
        let held = train.hold_out(&draft, 3).unwrap();
        assert_eq!(train.about(), "        11 rows, rows 1 to 3\n");
        assert_eq!(held.about(), "         4 rows, rows 4 to 4\n        12 file\n");
        let (committed, _) = held.into_parts(directory.path()).unwrap();
        assert_eq!(committed.read(0..99).unwrap(), b"four\0a whole file\0");
    }
}
