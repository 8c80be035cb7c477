//! Puts a corpus together out of chunks from a stranger.

use std::path::{Path, PathBuf};

use muster_core::error::Reject;
use muster_core::limits::DATA_CHUNK_BYTES;
use muster_core::manifest::{Data, DataFile};
use muster_core::messages::wire::{BULK_BYTES, DataQuery};

use super::{Dataset, Files, bounded, directory, most, name, pack};
use crate::error::Result;

const QUERY_CHUNKS: u32 = (BULK_BYTES / DATA_CHUNK_BYTES) as u32;

/// A corpus that is being fetched: ask for [`Self::wanted`], give the answer to [`Self::put`], and [`Self::finish`]
/// when nothing is wanted. No answer is believed before all are there and give the roots and the digest.
#[derive(Debug)]
pub struct Assembly {
    out: PathBuf,
    data: Data,
    files: Files,
}

impl Assembly {
    /// Nothing yet, for a new directory.
    ///
    /// # Errors
    /// [`crate::error::Kind::Refused`] when the corpus is too large or there is something at `out`.
    pub fn new(out: &Path, data: Data) -> Result<Self> {
        directory::vacant(out)?;
        for file in DataFile::ALL {
            // Before the first byte is fetched: all of it is held in memory until it can be checked.
            bounded(&out.join(name(file)), data.file_bytes(file), most(file))?;
        }
        Ok(Self { out: out.to_owned(), data, files: Default::default() })
    }

    /// The next chunks to ask for.
    pub fn wanted(&self) -> Option<DataQuery> {
        DataFile::ALL.into_iter().zip(&self.files).find_map(|(file, taken)| {
            let have = taken.len() as u64;
            let query = DataQuery { file, first: have / DATA_CHUNK_BYTES as u64, count: QUERY_CHUNKS };
            (have < self.data.file_bytes(file)).then_some(query)
        })
    }

    /// Takes the answer to [`Self::wanted`].
    ///
    /// # Errors
    /// [`Reject`] unless it has exactly the length of the wanted chunks; nothing was taken.
    pub fn put(&mut self, answer: &[u8]) -> core::result::Result<(), Reject> {
        let nothing = Reject::Rule("nothing more is wanted of the files");
        let file = self.wanted().ok_or(nothing.clone())?.file;
        let mut files = DataFile::ALL.into_iter().zip(&mut self.files);
        let (_, taken) = files.find(|(other, _)| *other == file).ok_or(nothing)?;
        // DATA-7: an answer of another length than was asked for is refused.
        let expected = (self.data.file_bytes(file) - taken.len() as u64).min(BULK_BYTES as u64);
        if answer.len() as u64 != expected {
            return Err(Reject::Rule("an answer holds exactly the wanted chunks"));
        }
        taken.extend_from_slice(answer);
        Ok(())
    }

    /// Bytes taken so far.
    pub fn taken(&self) -> u64 {
        self.files.iter().map(|taken| taken.len() as u64).sum()
    }

    /// Checks the whole and writes it.
    ///
    /// # Errors
    /// [`crate::error::Kind::Corrupt`] when the bytes are not those committed to, and
    /// [`crate::error::Kind::Refused`] when they are no tokens or no parameters, and nothing is written;
    /// [`crate::error::Kind::Full`]; what the system reports.
    pub fn finish(self) -> Result<Dataset> {
        let cause = "the bytes that were sent are not those of the run";
        let advice = "nothing was written, fetch it again";
        let dataset = Dataset::checked(&self.out, &self.data, self.files, cause, advice)?;
        directory::write(&self.out, &dataset, &(pack::head(&self.data) + "\nreceived from the run\n"))?;
        Ok(dataset)
    }
}
