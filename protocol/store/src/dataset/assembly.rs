//! Puts a corpus together out of chunks from a stranger.

use std::path::{Path, PathBuf};

use muster_core::error::Reject;
use muster_core::limits::DATA_CHUNK_BYTES;
use muster_core::manifest::Data;
use muster_core::messages::wire::{BULK_BYTES, DataQuery};

use super::{Committed, Dataset, HELD_OUT, TRAIN, bounded, directory, pack};
use crate::error::{Result, StoreError};

const QUERY_CHUNKS: u32 = (BULK_BYTES / DATA_CHUNK_BYTES) as u32;

/// A corpus that is being fetched: ask for [`Self::wanted`], give the answer to [`Self::put`], and [`Self::finish`]
/// when nothing is wanted. The answers are only believed when all are there and give the roots.
#[derive(Debug)]
pub struct Assembly {
    out: PathBuf,
    data: Data,
    train: Vec<u8>,
    held_out: Vec<u8>,
}

impl Assembly {
    /// Nothing yet, for a new directory.
    ///
    /// # Errors
    /// [`crate::error::Kind::Refused`] when the corpus is too large or there is something at `out`.
    pub fn new(out: &Path, data: Data) -> Result<Self> {
        directory::vacant(out)?;
        bounded(out, data.bytes)?;
        bounded(out, data.held_out_bytes)?;
        Ok(Self { out: out.to_owned(), data, train: Vec::new(), held_out: Vec::new() })
    }

    /// The next chunks to ask for.
    pub fn wanted(&self) -> Option<DataQuery> {
        let [train, held_out] = [&self.train, &self.held_out].map(|bytes| bytes.len() as u64);
        let (held_out, have) = if train < self.data.bytes {
            (false, train)
        } else if held_out < self.data.held_out_bytes {
            (true, held_out)
        } else {
            return None;
        };
        Some(DataQuery { held_out, first: have / DATA_CHUNK_BYTES as u64, count: QUERY_CHUNKS })
    }

    /// Takes the answer to [`Self::wanted`].
    ///
    /// # Errors
    /// [`Reject`] unless it has exactly the length of the wanted chunks; nothing was taken.
    pub fn put(&mut self, answer: &[u8]) -> core::result::Result<(), Reject> {
        let query = self.wanted().ok_or(Reject::Rule("nothing more is wanted of the text"))?;
        let (bytes, length) = match query.held_out {
            false => (&mut self.train, self.data.bytes),
            true => (&mut self.held_out, self.data.held_out_bytes),
        };
        let expected = (length - bytes.len() as u64).min(BULK_BYTES as u64);
        if answer.len() as u64 != expected {
            return Err(Reject::Rule("an answer holds exactly the wanted chunks"));
        }
        bytes.extend_from_slice(answer);
        Ok(())
    }

    /// Bytes taken so far.
    pub fn taken(&self) -> u64 {
        (self.train.len() + self.held_out.len()) as u64
    }

    /// Checks the whole and writes it.
    ///
    /// # Errors
    /// [`crate::error::Kind::Corrupt`] when the bytes are not those committed to, and
    /// [`crate::error::Kind::Refused`] when they are no tokens of the tokeniser, and nothing is written;
    /// [`crate::error::Kind::Full`]; what the system reports.
    pub fn finish(self) -> Result<Dataset> {
        let dataset = Dataset {
            train: Committed::new(self.train),
            held_out: Committed::new(self.held_out),
            tokeniser: self.data.tokeniser.clone(),
        };
        let data = dataset.data();
        if data != self.data {
            let train = (data.bytes, data.root) != (self.data.bytes, self.data.root);
            let path = self.out.join(if train { TRAIN } else { HELD_OUT });
            let cause = "the bytes that were sent are not those of the run";
            return Err(StoreError::corrupt(&path, cause, "nothing was written, fetch it again"));
        }
        dataset.check(&self.out)?;
        directory::write(&self.out, &dataset, &(pack::head(&data) + "\nreceived from the run\n"), None)?;
        Ok(dataset)
    }
}
