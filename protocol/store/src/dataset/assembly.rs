//! Puts a corpus together out of chunks from a stranger.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;

use muster_core::error::Reject;
use muster_core::limits::DATA_CHUNK_BYTES;
use muster_core::manifest::{Data, DataFile};
use muster_core::messages::wire::{BULK_BYTES, DataQuery};

use super::{Dataset, Draft, bounded, is_there, most, name, pack};
use crate::error::{Kind, Result, StoreError};
use crate::patience::patiently;

const QUERY_CHUNKS: u32 = (BULK_BYTES / DATA_CHUNK_BYTES) as u32;

/// A corpus that is being fetched: ask for [`Self::wanted`], give the answer to [`Self::put`], and [`Self::finish`]
/// when nothing is wanted. No answer is believed before all are there and give the roots and the digest. What a killed process has
/// fetched is there when the next one begins.
#[derive(Debug)]
pub struct Assembly {
    draft: Draft,
    data: Data,
    files: Vec<Fetched>,
}

/// A file as far as it is there.
#[derive(Debug)]
struct Fetched {
    file: DataFile,
    open: File,
    length: u64,
}

impl Assembly {
    /// For a new directory.
    ///
    /// # Errors
    /// [`crate::error::Kind::Refused`] when the corpus is too large or there is something at `out`.
    pub fn new(out: &Path, data: Data) -> Result<Self> {
        // Before the first byte is fetched.
        for file in DataFile::ALL {
            bounded(&out.join(name(file)), data.file_bytes(file), most(file))?;
        }
        let draft = Draft::resumed(out)?;
        let there = DataFile::ALL.into_iter().filter(|file| is_there(&data, *file));
        let files = there.map(|file| fetched(&draft, file, data.file_bytes(file))).collect::<Result<_>>()?;
        Ok(Self { draft, data, files })
    }

    /// The next chunks to ask for.
    pub fn wanted(&self) -> Option<DataQuery> {
        self.files.iter().find_map(|Fetched { file, length, .. }| {
            let query = DataQuery { file: *file, first: length / DATA_CHUNK_BYTES as u64, count: QUERY_CHUNKS };
            (*length < self.data.file_bytes(*file)).then_some(query)
        })
    }

    /// Takes the answer to [`Self::wanted`].
    ///
    /// # Errors
    /// What the disk reports; inside, [`Reject`] unless the answer has exactly the length of the wanted chunks: nothing was taken.
    pub fn put(&mut self, answer: &[u8]) -> Result<core::result::Result<(), Reject>> {
        let file = self.wanted().map(|wanted| wanted.file);
        let Some(fetched) = self.files.iter_mut().find(|fetched| Some(fetched.file) == file) else {
            return Ok(Err(Reject::Rule("nothing more is wanted of the files")));
        };
        // DATA-7: an answer of another length than was asked for is refused.
        let expected = (self.data.file_bytes(fetched.file) - fetched.length).min(BULK_BYTES as u64);
        if answer.len() as u64 != expected {
            return Ok(Err(Reject::Rule("an answer holds exactly the wanted chunks")));
        }
        let written = fetched.open.write_all(answer);
        written.map_err(|error| StoreError::io(&self.draft.path(name(fetched.file)), &error))?;
        fetched.length += answer.len() as u64;
        Ok(Ok(()))
    }

    /// Bytes that are there.
    pub fn taken(&self) -> u64 {
        self.files.iter().map(|fetched| fetched.length).sum()
    }

    /// Checks the whole, which then takes its path.
    ///
    /// # Errors
    /// [`crate::error::Kind::Corrupt`] when the bytes are not those committed to, and
    /// [`crate::error::Kind::Refused`] when they are no tokens or no parameters, and nothing is kept;
    /// [`crate::error::Kind::Full`]; what the system reports.
    pub fn finish(self) -> Result<Dataset> {
        let Self { mut draft, data, files } = self;
        drop(files);
        let cause = "the bytes that were sent are not those of the run";
        let checked = Dataset::checked(draft.place(), &data, cause, "nothing was kept, fetch it again");
        if checked.as_ref().is_err_and(|error| matches!(error.kind(), Kind::Corrupt | Kind::Refused)) {
            draft.forget();
        }
        let dataset = checked?;
        draft.settle(&(pack::head(&data) + "\nreceived from the run\n"))?;
        Ok(dataset)
    }
}

/// What an earlier process has of a file, up to the last whole answer.
fn fetched(draft: &Draft, file: DataFile, bytes: u64) -> Result<Fetched> {
    let path = draft.path(name(file));
    let failed = |error| StoreError::io(&path, &error);
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false);
    let mut open = patiently(|| options.open(&path)).map_err(failed)?;
    let found = open.metadata().map_err(failed)?.len();
    let length = if found == bytes { found } else { found.min(bytes) / BULK_BYTES as u64 * BULK_BYTES as u64 };
    open.set_len(length).and_then(|()| open.seek(SeekFrom::End(0))).map_err(failed)?;
    Ok(Fetched { file, open, length })
}
