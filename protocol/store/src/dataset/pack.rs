//! Makes a corpus out of texts.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use muster_core::ids::unhex;
use muster_core::manifest::{Data, Tokeniser};

use super::{ABOUT, ADVICE, Committed, Dataset, bounded, directory};
use crate::error::{Result, StoreError};
use crate::files;

/// A text to pack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Text {
    /// What people call it.
    pub name: String,
    /// Its bytes, UTF-8.
    pub bytes: Vec<u8>,
}

impl Text {
    /// Reads a file.
    ///
    /// # Errors
    /// [`crate::error::Kind::Refused`] naming the first byte that is not UTF-8; what the system reports.
    pub fn read(path: &Path, name: String) -> Result<Self> {
        let bytes = files::read(path)?;
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
    train: impl IntoIterator<Item = Result<Text>>,
    held_out: impl IntoIterator<Item = Result<Text>>,
    out: &Path,
    progress: &mut dyn FnMut(u64),
) -> Result<Data> {
    directory::vacant(out)?;
    let mut about = String::from("\ntraining texts (bytes, name)\n");
    let train = join(train, out, &mut about, progress)?;
    about.push_str("\nheld-out texts (bytes, name)\n");
    let before = train.len() as u64;
    let held_out = join(held_out, out, &mut about, &mut |bytes| progress(before + bytes))?;
    let dataset = Dataset { train: Committed::new(train), held_out: Committed::new(held_out) };
    directory::write(out, &dataset, &(head(&dataset.data()) + &about))?;
    Ok(dataset.data())
}

/// What `corpus.txt` says of a corpus, to be checked by [`Dataset::open`].
///
/// # Errors
/// [`crate::error::Kind::Missing`] when the directory is no corpus; [`crate::error::Kind::Corrupt`].
pub fn described(directory: &Path) -> Result<Data> {
    let path: PathBuf = directory.join(ABOUT);
    let bytes =
        files::read(&path).map_err(|error| error.advise("name a directory made by `muster data pack`"))?;
    let text = String::from_utf8_lossy(&bytes);
    let data = || {
        Some(Data {
            root: muster_core::ids::Digest(unhex(entry(&text, "training root")?)?),
            bytes: entry(&text, "training bytes")?.parse().ok()?,
            held_out_root: muster_core::ids::Digest(unhex(entry(&text, "held-out root")?)?),
            held_out_bytes: entry(&text, "held-out bytes")?.parse().ok()?,
            tokeniser: Tokeniser::Bytes,
        })
    };
    data().ok_or_else(|| StoreError::corrupt(&path, "it lacks the roots", ADVICE))
}

/// The first lines of `corpus.txt`, for people and for [`described`].
pub(super) fn head(data: &Data) -> String {
    format!(
        "Muster corpus 1\ntraining bytes: {}\ntraining root: {:#}\nheld-out bytes: {}\nheld-out root: {:#}\n",
        data.bytes, data.root, data.held_out_bytes, data.held_out_root
    )
}

fn entry<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(": "))
}

fn join(
    texts: impl IntoIterator<Item = Result<Text>>,
    out: &Path,
    about: &mut String,
    progress: &mut dyn FnMut(u64),
) -> Result<Vec<u8>> {
    let mut joined = Vec::new();
    for text in texts {
        let text = text?;
        bounded(out, (joined.len() + text.bytes.len() + 1) as u64)?;
        joined.extend_from_slice(&text.bytes);
        joined.push(0);
        let name = text.name.replace(char::is_control, "\u{fffd}");
        let _ = writeln!(about, "{:>10} {name}", text.bytes.len());
        progress(joined.len() as u64);
    }
    if joined.is_empty() {
        return Err(StoreError::refused(
            out,
            "training and held-out text both need at least one text",
            "name more text",
        ));
    }
    Ok(joined)
}
