//! Makes a corpus out of texts.

use std::fmt::Write;
use std::io::Read;
use std::path::{Path, PathBuf};

use muster_core::ids::{Digest, unhex};
use muster_core::limits::DATA_BYTES;
use muster_core::manifest::{Data, DataFile, Router, Start, Tokeniser, TokeniserFile};

use super::committed::ADVICE;
use super::joined::{JoinedTexts, Numbering};
use super::names::{ABOUT, TOKENISER};
use super::rows::{self, RouterSize};
use super::{Dataset, Draft, ROUTER, bounded};
use crate::error::{Result, StoreError};
use crate::regular;

/// Bytes of `corpus.txt` that are read: the lines of [`head`] take less.
const HEAD_BYTES: u64 = 4096;

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
    let push = |joined: &mut JoinedTexts, SourceText { name, bytes }: SourceText| {
        joined.push_bytes(&bytes)?;
        Ok(name)
    };
    let draft = Draft::new(out)?;
    let mut done = 0;
    let mut join = |file, texts: &mut dyn Iterator<Item = core::result::Result<SourceText, E>>| {
        let before = done;
        join(out, JoinedTexts::new(&draft, file, None)?, texts, &push, &mut |bytes| {
            done = before + bytes;
            progress(done);
        })
    };
    let train = join(DataFile::Training, &mut train.into_iter())?;
    let held_out = join(DataFile::HeldOut, &mut held_out.into_iter())?;
    Ok(pack_joined(train, held_out, draft, None, router)?)
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
    let push = |joined: &mut JoinedTexts, (name, numbers): (String, Vec<u32>)| {
        joined.push_numbers(&numbers, &name)?;
        Ok(name)
    };
    let draft = Draft::new(out)?;
    let join = |file, texts: &mut dyn Iterator<Item = _>| {
        join(out, JoinedTexts::new(&draft, file, Some(numbering))?, texts, &push, &mut |_| ())
    };
    let train = join(DataFile::Training, &mut train.into_iter())?;
    let held_out = join(DataFile::HeldOut, &mut held_out.into_iter())?;
    Ok(pack_joined(train, held_out, draft, Some(numbering), router)?)
}

/// Makes a corpus of texts that were joined in its draft, in tokens of bytes or of this tokeniser, and returns what a manifest says
/// of it.
///
/// # Errors
/// As [`pack_routed`].
pub fn pack_joined(
    train: JoinedTexts,
    held_out: JoinedTexts,
    draft: Draft,
    numbering: Option<&Numbering<'_>>,
    router: Option<RouterSize>,
) -> Result<Data> {
    let out = draft.out();
    if let Some(Numbering { tokens, end: Some(end), .. }) = numbering.filter(|of| of.end >= Some(of.tokens)) {
        let cause = format!("texts end with token {end}, but the tokeniser knows {tokens} numbers");
        return Err(StoreError::refused(out, cause, "use the tokeniser that has it"));
    }
    within(out, &train)?;
    within(out, &held_out)?;
    let unit = if numbering.is_some() { "tokens" } else { "bytes" };
    let ((train, trained), (held_out, held)) = (train.into_parts(out)?, held_out.into_parts(out)?);
    let about = format!("\ntraining texts ({unit}, name)\n{trained}\nheld-out texts ({unit}, name)\n{held}");
    let tokeniser = numbering.map_or(Tokeniser::Bytes, Numbering::tokeniser);
    let tokeniser_file = numbering.map(|numbering| numbering.file.to_vec()).unwrap_or_default();
    let mut dataset = Dataset { train, held_out, tokeniser, tokeniser_file, given: None, routing: None };
    if let Some(size) = router {
        if let Some(cause) = size.fault(dataset.training_tokens()) {
            return Err(StoreError::refused(out, cause, "use fewer rows, fewer tokens or more text"));
        }
        let routing = rows::fitted(&dataset, size)?;
        dataset = dataset.with_router(routing);
    }
    if let Some(numbering) = numbering {
        draft.write(TOKENISER, numbering.file)?;
    }
    if let Some(routing) = dataset.routing() {
        draft.write(ROUTER, routing.file())?;
    }
    let data = dataset.data();
    let about = head(&data) + &shares(&dataset)? + &about;
    // Its files must not be open where they are renamed.
    drop(dataset);
    draft.settle(&about)?;
    Ok(data)
}

fn within(out: &Path, joined: &JoinedTexts) -> Result<()> {
    bounded(out, joined.len(), DATA_BYTES)
}

/// Joins texts that are at hand; `push` takes one and returns its name, `progress` gets the bytes so far.
fn join<T, E: From<StoreError>>(
    out: &Path,
    mut joined: JoinedTexts,
    texts: &mut dyn Iterator<Item = core::result::Result<T, E>>,
    push: &dyn Fn(&mut JoinedTexts, T) -> Result<String>,
    progress: &mut dyn FnMut(u64),
) -> core::result::Result<JoinedTexts, E> {
    for text in texts {
        let name = push(&mut joined, text?)?;
        joined.end(name.into())?;
        within(out, &joined)?;
        progress(joined.len());
    }
    Ok(joined)
}

/// What `corpus.txt` says of a corpus, to be checked by [`Dataset::open`]. It says nothing of parameters: they belong
/// to one run.
///
/// # Errors
/// [`crate::error::Kind::Missing`] when the directory is no corpus; [`crate::error::Kind::Corrupt`].
pub fn described(directory: &Path) -> Result<Data> {
    let path: PathBuf = directory.join(ABOUT);
    // What is read stands above the list of texts, which is as long as they are many.
    let file = regular::open(&path, u64::MAX)
        .map_err(|error| error.advise("name a directory made by `muster data pack`"))?;
    let mut bytes = Vec::new();
    file.take(HEAD_BYTES).read_to_end(&mut bytes).map_err(|error| StoreError::io(&path, &error))?;
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
fn shares(dataset: &Dataset) -> Result<String> {
    let shares = rows::row_shares(dataset)?;
    let title = if shares.is_empty() { "" } else { "\nrow, share of the windows\n" };
    Ok(shares.into_iter().enumerate().fold(title.to_owned(), |mut text, (row, share)| {
        let _ = writeln!(text, "{row:>10} {share:.4}");
        text
    }))
}

fn entry<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(": "))
}
