//! Makes a corpus out of texts.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use muster_core::codec::is_hidden;
use muster_core::hash::{Domain, Hasher};
use muster_core::ids::{Digest, unhex};
use muster_core::limits::DATA_BYTES;
use muster_core::manifest::{Data, Router, Start, Tokeniser, TokeniserFile};

use super::rows::{self, RouterSize};
use super::{ABOUT, ADVICE, Committed, Dataset, MOST_BYTES, ROUTER, TOKENISER, bounded, directory, tokens};
use crate::error::{Result, StoreError};
use crate::regular;

/// A text to pack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceText {
    /// What people call it.
    pub name: String,
    /// Its bytes, UTF-8.
    pub bytes: Vec<u8>,
}

impl SourceText {
    /// Reads a file.
    ///
    /// # Errors
    /// [`crate::error::Kind::Refused`] naming the first byte that is not UTF-8; what the system reports.
    pub fn read(path: &Path, name: String) -> Result<Self> {
        let bytes = regular::read(path, DATA_BYTES)?;
        if let Err(error) = core::str::from_utf8(&bytes) {
            let cause = format!("is not UTF-8 text (byte {})", error.valid_up_to());
            return Err(StoreError::refused(path, cause, "leave it out or convert it"));
        }
        Ok(Self { name, bytes })
    }
}

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

/// Packs texts in their order into a new directory, and returns what a manifest says of it. `progress` gets the
/// bytes taken so far.
///
/// # Errors
/// The first error of the texts; [`crate::error::Kind::Refused`] when there is no text, too much of it, or
/// something at `out` already; [`crate::error::Kind::Full`]; what the system reports. On an error there is nothing
/// at `out`.
pub fn pack(
    train: impl IntoIterator<Item = Result<SourceText>>,
    held_out: impl IntoIterator<Item = Result<SourceText>>,
    out: &Path,
    progress: &mut dyn FnMut(u64),
) -> Result<Data> {
    pack_routed(train, held_out, out, None, progress)
}

/// As [`pack`]; where a router is wanted, makes one.
///
/// # Errors
/// As [`pack`]; [`crate::error::Kind::Refused`] when no router has this size, and when the training text is too short.
pub fn pack_routed<E: From<StoreError>>(
    train: impl IntoIterator<Item = core::result::Result<SourceText, E>>,
    held_out: impl IntoIterator<Item = core::result::Result<SourceText, E>>,
    out: &Path,
    router: Option<RouterSize>,
    progress: &mut dyn FnMut(u64),
) -> core::result::Result<Data, E> {
    let bytes = |text: core::result::Result<SourceText, E>| {
        text.map(|SourceText { name, bytes }| PackedText { name, count: bytes.len(), bytes })
    };
    let packer = Packer { out, tokeniser: Tokeniser::Bytes, end: vec![0], file: &[], router };
    packer.pack(train.into_iter().map(bytes), held_out.into_iter().map(bytes), progress)
}

/// Packs texts that are token numbers already, each with its name, in their order into a new directory, and returns
/// what a manifest says of it.
///
/// # Errors
/// As [`pack_routed`]; [`crate::error::Kind::Refused`] for a number that the tokeniser does not know.
pub fn pack_tokens<E: From<StoreError>>(
    train: impl IntoIterator<Item = core::result::Result<(String, Vec<u32>), E>>,
    held_out: impl IntoIterator<Item = core::result::Result<(String, Vec<u32>), E>>,
    out: &Path,
    numbering: &Numbering<'_>,
    router: Option<RouterSize>,
) -> core::result::Result<Data, E> {
    let tokeniser = numbering.tokeniser();
    let size = tokens::size(&tokeniser);
    let bytes = |numbers: &[u32]| {
        let mut bytes = Vec::with_capacity(numbers.len() * size);
        numbers.iter().for_each(|token| tokens::write(*token, size, &mut bytes));
        bytes
    };
    let part = |text: core::result::Result<(String, Vec<u32>), E>| {
        let (name, numbers) = text?;
        if let Some(token) = numbers.iter().chain(&numbering.end).find(|token| **token >= numbering.tokens) {
            let cause = format!("has token {token}, but the tokeniser knows {} numbers", numbering.tokens);
            let advice = "use the tokeniser that made it";
            return Err(StoreError::refused(Path::new(&name), cause, advice).into());
        }
        Ok(PackedText { name, count: numbers.len(), bytes: bytes(&numbers) })
    };
    let end = bytes(numbering.end.as_slice());
    let packer = Packer { out, tokeniser, end, file: numbering.file, router };
    packer.pack(train.into_iter().map(part), held_out.into_iter().map(part), &mut |_| ())
}

/// What `corpus.txt` says of a corpus, to be checked by [`Dataset::open`]. It says nothing of parameters: they belong
/// to one run.
///
/// # Errors
/// [`crate::error::Kind::Missing`] when the directory is no corpus; [`crate::error::Kind::Corrupt`].
pub fn described(directory: &Path) -> Result<Data> {
    let path: PathBuf = directory.join(ABOUT);
    let bytes = regular::read(&path, regular::TEXT_BYTES)
        .map_err(|error| error.advise("name a directory made by `muster data pack`"))?;
    let text = String::from_utf8_lossy(&bytes);
    let data = || {
        let digest = |key| Some(Digest(unhex(entry(&text, key)?)?));
        let tokeniser = match entry(&text, "tokeniser") {
            None => Tokeniser::Bytes,
            Some(_) => Tokeniser::File(TokeniserFile {
                digest: digest("tokeniser")?,
                bytes: entry(&text, "tokeniser bytes")?.parse().ok()?,
                tokens: entry(&text, "token numbers")?.parse().ok()?,
            }),
        };
        let router = match entry(&text, "router") {
            None => None,
            Some(_) => Some(Router {
                rows: entry(&text, "router rows")?.parse().ok()?,
                tokens: entry(&text, "router tokens")?.parse().ok()?,
                digest: digest("router")?,
            }),
        };
        Some(Data {
            root: digest("training root")?,
            bytes: entry(&text, "training bytes")?.parse().ok()?,
            held_out_root: digest("held-out root")?,
            held_out_bytes: entry(&text, "held-out bytes")?.parse().ok()?,
            tokeniser,
            start: Start::Drawn,
            router,
        })
    };
    data().ok_or_else(|| StoreError::corrupt(&path, "it lacks the roots", ADVICE))
}

/// The first lines of `corpus.txt`, for people and for [`described`].
pub(super) fn head(data: &Data) -> String {
    let mut head = format!(
        "Muster corpus 1\ntraining bytes: {}\ntraining root: {:#}\nheld-out bytes: {}\nheld-out root: {:#}\n",
        data.bytes, data.root, data.held_out_bytes, data.held_out_root
    );
    if let Tokeniser::File(file) = &data.tokeniser {
        let _ = write!(head, "tokeniser: {:#}\ntokeniser bytes: {}\n", file.digest, file.bytes);
        let _ = write!(head, "tokeniser file: {TOKENISER}\ntoken numbers: {}\n", file.tokens);
    }
    if let Some(Router { rows, tokens, digest }) = &data.router {
        let _ = write!(head, "router: {digest:#}\nrouter rows: {rows}\nrouter tokens: {tokens}\n");
        let _ = writeln!(head, "router file: {ROUTER}");
    }
    head
}

/// What `corpus.txt` says of a corpus's rows, for people.
fn shares(dataset: &Dataset) -> String {
    let shares = rows::row_shares(dataset);
    let title = if shares.is_empty() { "" } else { "\nrow, share of the windows\n" };
    shares.into_iter().enumerate().fold(title.to_owned(), |mut text, (row, share)| {
        let _ = writeln!(text, "{row:>10} {share:.4}");
        text
    })
}

fn entry<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(": "))
}

/// A text as a corpus holds it.
struct PackedText {
    name: String,
    /// Its length for people: bytes, or token numbers.
    count: usize,
    bytes: Vec<u8>,
}

struct Packer<'a> {
    out: &'a Path,
    tokeniser: Tokeniser,
    end: Vec<u8>,
    /// The tokeniser's file; empty where tokens are bytes.
    file: &'a [u8],
    router: Option<RouterSize>,
}

impl Packer<'_> {
    fn pack<E: From<StoreError>>(
        &self,
        train: impl Iterator<Item = core::result::Result<PackedText, E>>,
        held_out: impl Iterator<Item = core::result::Result<PackedText, E>>,
        progress: &mut dyn FnMut(u64),
    ) -> core::result::Result<Data, E> {
        directory::vacant(self.out)?;
        let unit = if self.tokeniser == Tokeniser::Bytes { "bytes" } else { "tokens" };
        let mut about = format!("\ntraining texts ({unit}, name)\n");
        let train = self.join(train, &mut about, progress)?;
        let _ = write!(about, "\nheld-out texts ({unit}, name)\n");
        let before = train.len() as u64;
        let held_out = self.join(held_out, &mut about, &mut |bytes| progress(before + bytes))?;
        let [train, held_out] = [train, held_out].map(Committed::new);
        let (tokeniser, tokeniser_file) = (self.tokeniser.clone(), self.file.to_vec());
        let mut dataset = Dataset { train, held_out, tokeniser, tokeniser_file, given: None, routing: None };
        if let Some(size) = self.router {
            dataset = self.routed(dataset, size)?;
        }
        let data = dataset.data();
        directory::write(self.out, &dataset, &(head(&data) + &shares(&dataset) + &about))?;
        Ok(data)
    }

    fn routed(&self, dataset: Dataset, size: RouterSize) -> Result<Dataset> {
        if let Some(cause) = size.fault(dataset.training_tokens() as u64) {
            return Err(StoreError::refused(self.out, cause, "use fewer rows, fewer tokens or more text"));
        }
        let routing = rows::fitted(&dataset, size);
        Ok(dataset.with_router(routing))
    }

    fn join<E: From<StoreError>>(
        &self,
        parts: impl Iterator<Item = core::result::Result<PackedText, E>>,
        about: &mut String,
        progress: &mut dyn FnMut(u64),
    ) -> core::result::Result<Vec<u8>, E> {
        let mut joined = Vec::new();
        for part in parts {
            let part = part?;
            bounded(self.out, (joined.len() + part.bytes.len() + self.end.len()) as u64, MOST_BYTES)?;
            joined.extend_from_slice(&part.bytes);
            joined.extend_from_slice(&self.end);
            // A file name with a line break could forge a line that `described` reads.
            let name = part.name.replace(is_hidden, "\u{fffd}");
            let _ = writeln!(about, "{:>10} {name}", part.count);
            progress(joined.len() as u64);
        }
        // Ends of texts alone are none: whatever is measured on them is made up.
        let ends = !self.end.is_empty() && joined.chunks(self.end.len()).all(|token| token == self.end);
        if joined.is_empty() || ends {
            return Err(StoreError::refused(
                self.out,
                "training and held-out text both need at least one text that is not empty",
                "name more text",
            )
            .into());
        }
        Ok(joined)
    }
}
