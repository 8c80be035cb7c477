//! The text of a run: packed once, committed by Merkle roots, the same bytes for everyone.
//!
//! A corpus is a directory with `train.bin`, `held-out.bin` and, for people, `corpus.txt`. Each binary file is the
//! texts one after the other. A text is its bytes, followed by one byte 0; or it is numbers that a tokeniser gave it,
//! little-endian and in [`Data::token_bytes`] bytes each, and `tokenizer.json` is beside them. A directory that was
//! only half written has another name, so it is never taken for a corpus.

mod assembly;
mod baselines;
mod directory;
mod pack;
mod tokens;

use std::fs::File;
use std::io::Read;
use std::path::Path;

use muster_core::ids::Digest;
use muster_core::limits::DATA_CHUNK_BYTES;
use muster_core::manifest::{Data, Tokeniser};
use muster_core::merkle::{self, Proof, Tree};

pub use assembly::Assembly;
pub use baselines::unigram_bigram;
pub use pack::{Numbering, Text, described, pack, pack_tokens};

use crate::error::{Result, StoreError};

/// Most bytes of a file of a corpus, which is held in memory.
pub const MOST_BYTES: u64 = 1 << 30;

const TRAIN: &str = "train.bin";
const HELD_OUT: &str = "held-out.bin";
const ABOUT: &str = "corpus.txt";
/// The tokeniser in a corpus of token numbers.
pub const TOKENISER: &str = "tokenizer.json";
const ADVICE: &str = "get the corpus again from where it was packed";

/// A corpus in memory, equal to what a manifest commits to.
#[derive(Debug)]
pub struct Dataset {
    train: Committed,
    held_out: Committed,
    tokeniser: Tokeniser,
}

/// Bytes and the tree over their chunks.
#[derive(Debug)]
struct Committed {
    bytes: Vec<u8>,
    tree: Tree,
}

impl Dataset {
    /// Reads a corpus and checks every byte of it against the manifest.
    ///
    /// # Errors
    /// [`crate::error::Kind::Corrupt`] naming the file that has another length or root;
    /// [`crate::error::Kind::Missing`]; [`crate::error::Kind::Refused`] beyond [`MOST_BYTES`], and where the bytes
    /// are no tokens of the tokeniser; what the system reports.
    pub fn open(directory: &Path, data: &Data) -> Result<Self> {
        let dataset = Self {
            train: Committed::read(&directory.join(TRAIN), data.bytes, data.root)?,
            held_out: Committed::read(&directory.join(HELD_OUT), data.held_out_bytes, data.held_out_root)?,
            tokeniser: data.tokeniser.clone(),
        };
        dataset.check(directory)?;
        Ok(dataset)
    }

    /// A corpus of byte tokens that was on no disk: for simulations.
    pub fn of_bytes(train: Vec<u8>, held_out: Vec<u8>) -> Self {
        let (train, held_out) = (Committed::new(train), Committed::new(held_out));
        Self { train, held_out, tokeniser: Tokeniser::Bytes }
    }

    /// Refuses bytes that are no tokens of the tokeniser; the file in `directory` is named.
    fn check(&self, directory: &Path) -> Result<()> {
        tokens::check(&directory.join(TRAIN), &self.train.bytes, &self.tokeniser)?;
        tokens::check(&directory.join(HELD_OUT), &self.held_out.bytes, &self.tokeniser)
    }

    /// What a manifest says of it.
    pub fn data(&self) -> Data {
        Data {
            root: self.train.tree.root(),
            bytes: self.train.bytes.len() as u64,
            held_out_root: self.held_out.tree.root(),
            held_out_bytes: self.held_out.bytes.len() as u64,
            tokeniser: self.tokeniser.clone(),
        }
    }

    /// The `sequence + 1` tokens of a window of the training text, from token `index·sequence` on. Beyond the end
    /// of the text, where no window of the manifest lies, tokens are 0.
    // DATA-2: the s + 1 tokens w·s ..= (w + 1)·s.
    pub fn window(&self, index: u64, sequence: u32) -> Vec<u32> {
        let size = tokens::size(&self.tokeniser);
        let start = index.saturating_mul(u64::from(sequence)).saturating_mul(size as u64);
        let rest =
            usize::try_from(start).ok().and_then(|start| self.train.bytes.get(start..)).unwrap_or_default();
        tokens::read(rest, size).chain(core::iter::repeat(0)).take(sequence as usize + 1).collect()
    }

    /// At most `most` windows of `sequence + 1` tokens, spread evenly over the held-out text; where all are taken, each
    /// begins with the last token of the one before.
    pub fn held_out_windows(&self, sequence: u32, most: usize) -> Vec<Vec<u32>> {
        let (size, length) = (tokens::size(&self.tokeniser), sequence.max(1) as usize);
        let bytes = &self.held_out.bytes;
        let all = (bytes.len() / size).saturating_sub(1) / length;
        let taken = all.min(most);
        let starts = (0..taken).map(|index| (index as u64 * all as u64 / taken as u64) as usize * length);
        starts
            .map(|start| tokens::read(&bytes[start * size..(start + length + 1) * size], size).collect())
            .collect()
    }

    /// Chunks of [`DATA_CHUNK_BYTES`] from number `first` on: as many of `count` as there are, the last one of the
    /// text shorter.
    pub fn chunks(&self, held_out: bool, first: u64, count: u32) -> &[u8] {
        let bytes = &self.committed(held_out).bytes;
        let place = |chunk: u64| {
            let place = chunk.saturating_mul(DATA_CHUNK_BYTES as u64);
            usize::try_from(place).unwrap_or(usize::MAX).min(bytes.len())
        };
        &bytes[place(first)..place(first.saturating_add(u64::from(count)))]
    }

    /// That a chunk belongs to the text; none when there is no such chunk.
    pub fn proof(&self, held_out: bool, chunk: u64) -> Option<Proof> {
        self.committed(held_out).tree.prove(chunk)
    }

    /// The tokens of the training text, and of the held-out one.
    fn tokens(&self) -> [impl Iterator<Item = u32> + Clone; 2] {
        [&self.train, &self.held_out].map(|text| tokens::read(&text.bytes, tokens::size(&self.tokeniser)))
    }

    /// The training bytes.
    pub fn train(&self) -> &[u8] {
        &self.train.bytes
    }

    /// The held-out bytes.
    pub fn held_out(&self) -> &[u8] {
        &self.held_out.bytes
    }

    fn committed(&self, held_out: bool) -> &Committed {
        if held_out { &self.held_out } else { &self.train }
    }
}

impl Committed {
    fn new(bytes: Vec<u8>) -> Self {
        let leaves =
            (0u64..).zip(bytes.chunks(DATA_CHUNK_BYTES)).map(|(index, chunk)| merkle::leaf(index, chunk));
        let tree = Tree::new(leaves);
        Self { bytes, tree }
    }

    fn read(path: &Path, length: u64, root: Digest) -> Result<Self> {
        let failed = |error| StoreError::io(path, &error);
        let file = File::open(path).map_err(failed)?;
        bounded(path, length)?;
        let found = file.metadata().map_err(failed)?.len();
        if found != length {
            let cause = format!("it has {found} bytes instead of {length}");
            return Err(StoreError::corrupt(path, cause, ADVICE));
        }
        let mut bytes = Vec::with_capacity(length as usize);
        file.take(length).read_to_end(&mut bytes).map_err(failed)?;
        let committed = Self::new(bytes);
        if committed.bytes.len() as u64 != length || committed.tree.root() != root {
            return Err(StoreError::corrupt(path, "its bytes are not those that were committed to", ADVICE));
        }
        Ok(committed)
    }
}

fn bounded(path: &Path, length: u64) -> Result<()> {
    if length > MOST_BYTES {
        let cause =
            format!("{length} bytes are more than the {MOST_BYTES} that this version holds in memory");
        return Err(StoreError::refused(path, cause, "use less text"));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
