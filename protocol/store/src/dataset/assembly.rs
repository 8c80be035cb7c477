//! What a newcomer needs of a run's files before anything else: outlines, tokeniser, router.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;

use muster_core::error::Reject;
use muster_core::ids::Digest;
use muster_core::limits::DATA_CHUNK_BYTES;
use muster_core::manifest::{Data, DataFile, Start};
use muster_core::messages::wire::{BULK_BYTES, DataQuery, Request};

use super::committed::bounded;
use super::directory::Draft;
use super::names::{is_there, map, most, name, outline, outline_bytes, outline_name};
use super::routing::Routing;
use super::{pack, tokens};
use crate::error::{Result, StoreError};
use crate::patience::patiently;
use crate::regular;

const QUERY_CHUNKS: u32 = (BULK_BYTES / DATA_CHUNK_BYTES) as u32;

/// The beginning of a corpus that is being fetched: ask for [`Self::wanted`], give the answer to [`Self::put`], and
/// [`Self::finish`] when nothing is wanted. No answer is believed before all are there and give the roots and the digests. What a
/// killed process has fetched is there when the next one begins.
#[derive(Debug)]
pub struct Assembly {
    draft: Draft,
    data: Data,
    parts: Vec<Part>,
}

/// The outline of a file, or a file without one, as far as it is there.
#[derive(Debug)]
struct Part {
    file: DataFile,
    /// What the manifest says of the tree, where there is one.
    root: Option<Digest>,
    bytes: u64,
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
        let parts = there.map(|file| Part::open(&draft, &data, file)).collect::<Result<_>>()?;
        Ok(Self { draft, data, parts })
    }

    /// What to ask for next.
    pub fn wanted(&self) -> Option<Request> {
        let part = self.parts.iter().find(|part| part.length < part.bytes)?;
        let first = part.length / DATA_CHUNK_BYTES as u64;
        let query = DataQuery { file: part.file, first, count: QUERY_CHUNKS };
        Some(if part.root.is_some() { Request::Outline(query) } else { Request::Data(query) })
    }

    /// Takes the answer to [`Self::wanted`].
    ///
    /// # Errors
    /// What the disk reports; inside, [`Reject`] unless the answer has exactly the length of the wanted chunks: nothing was taken.
    pub fn put(&mut self, answer: &[u8]) -> Result<core::result::Result<(), Reject>> {
        let Some(part) = self.parts.iter_mut().find(|part| part.length < part.bytes) else {
            return Ok(Err(Reject::Rule("nothing more is wanted of the files")));
        };
        // DATA-7: an answer of another length than was asked for is refused.
        let expected = (part.bytes - part.length).min(BULK_BYTES as u64);
        if answer.len() as u64 != expected {
            return Ok(Err(Reject::Rule("an answer holds exactly the wanted chunks")));
        }
        let written = part.open.write_all(answer);
        written.map_err(|error| StoreError::io(&self.draft.path(&part.name()), &error))?;
        part.length += answer.len() as u64;
        Ok(Ok(()))
    }

    /// Checks what came, and makes the files, which are still empty, around it.
    ///
    /// # Errors
    /// [`crate::error::Kind::Corrupt`] when the bytes are not those committed to, and
    /// [`crate::error::Kind::Refused`] when the tokeniser is none, and nothing is kept; [`crate::error::Kind::Full`]; what the system
    /// reports.
    pub fn finish(self) -> Result<()> {
        let Self { mut draft, data, parts } = self;
        for part in &parts {
            if let Err(error) = part.check(&draft, &data) {
                draft.forget();
                return Err(error);
            }
            if part.root.is_some() {
                let empty = draft.create(name(part.file))?.set_len(data.file_bytes(part.file));
                empty.map_err(|error| StoreError::io(&draft.path(name(part.file)), &error))?;
                draft.create(&map(part.file))?;
            }
        }
        drop(parts);
        draft.settle(&(pack::head(&data) + "\nreceived from the run\n"))
    }
}

impl Part {
    /// What an earlier process has of it, up to the last whole answer.
    fn open(draft: &Draft, data: &Data, file: DataFile) -> Result<Self> {
        let root = root(data, file);
        let whole = data.file_bytes(file);
        let bytes = if root.is_some() { outline_bytes(whole) } else { whole };
        let path = draft.path(&part_name(file, root.is_some()));
        let failed = |error| StoreError::io(&path, &error);
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false);
        let mut open = patiently(|| options.open(&path)).map_err(failed)?;
        let found = open.metadata().map_err(failed)?.len();
        let length =
            if found == bytes { found } else { found.min(bytes) / BULK_BYTES as u64 * BULK_BYTES as u64 };
        open.set_len(length).and_then(|()| open.seek(SeekFrom::End(0))).map_err(failed)?;
        Ok(Self { file, root, bytes, open, length })
    }

    fn name(&self) -> String {
        part_name(self.file, self.root.is_some())
    }

    fn check(&self, draft: &Draft, data: &Data) -> Result<()> {
        let named = draft.out().join(self.name());
        let bytes = regular::read(&draft.path(&self.name()), self.bytes)?;
        let right = match (self.file, &self.root, &data.router) {
            (file, Some(root), _) => {
                outline(&bytes, data.file_bytes(file)).is_some_and(|of| of.root() == *root)
            }
            (DataFile::Tokeniser, ..) => tokens::is_file(&bytes, &data.tokeniser),
            (_, None, Some(router)) => Routing::of(router, bytes.clone()).is_some(),
            (_, None, None) => false,
        };
        if !right {
            let cause = "the bytes that were sent are not those of the run";
            return Err(StoreError::corrupt(&named, cause, "nothing was kept, fetch it again"));
        }
        if self.file == DataFile::Tokeniser {
            tokens::check_count(&named, &bytes, &data.tokeniser)?;
        }
        Ok(())
    }
}

/// What a manifest says of the tree over a file; none of a file that has no tree.
pub(super) fn root(data: &Data, file: DataFile) -> Option<Digest> {
    match (file, &data.start) {
        (DataFile::Training, _) => Some(data.root),
        (DataFile::HeldOut, _) => Some(data.held_out_root),
        (DataFile::Parameters, Start::Given(given)) => Some(given.root),
        _ => None,
    }
}

fn part_name(file: DataFile, outlined: bool) -> String {
    if outlined { outline_name(file) } else { name(file).to_owned() }
}
