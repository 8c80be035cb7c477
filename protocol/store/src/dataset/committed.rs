//! Committed files, of which a page at a time is in memory: each page is checked whenever it is read.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use muster_core::ids::Digest;
use muster_core::limits::{DATA_CHUNK_BYTES, PAGE_CHUNKS};
use muster_core::lock::lock;
use muster_core::merkle::{self, Outline, Proof, Tree};

use super::ADVICE;
use crate::error::{Result, StoreError};

/// The parameters before the first round, where they were given.
pub const PARAMETERS: &str = "parameters.bin";

/// Bytes of a page.
pub(super) const PAGE_BYTES: u64 = PAGE_CHUNKS * DATA_CHUNK_BYTES as u64;
/// Pages of a file that stay in memory after they were read.
const RECENT: usize = 64;
/// Bytes of a committed file in memory, beside what is being read.
pub const RECENT_BYTES: u64 = RECENT as u64 * PAGE_BYTES;

/// Bytes, and the outline of the tree that commits to them.
#[derive(Debug)]
pub(super) struct Committed {
    path: PathBuf,
    bytes: u64,
    outline: Outline,
    source: Source,
    recent: Mutex<VecDeque<(u64, Arc<[u8]>)>>,
}

/// Where the bytes are.
#[derive(Debug)]
enum Source {
    Memory(Vec<u8>),
    File(Mutex<File>),
}

impl Committed {
    /// Bytes in memory.
    pub(super) fn new(bytes: Vec<u8>) -> Self {
        let pages = (0..).zip(bytes.chunks(PAGE_BYTES as usize));
        let pages = pages.map(|(number, page)| Outline::page(number, &leaves(number, page))).collect();
        let length = bytes.len() as u64;
        Self::of(Path::new("memory"), length, pages, Source::Memory(bytes))
    }

    /// A file of `bytes` bytes, all of which are read once. `see` is shown each page, with its number.
    ///
    /// # Errors
    /// What the system reports, that of a file that has become shorter among it.
    pub(super) fn open(
        path: &Path,
        mut file: File,
        bytes: u64,
        see: &mut dyn FnMut(u64, &[u8]),
    ) -> Result<Self> {
        let mut pages = Vec::new();
        let mut page = Vec::new();
        for number in 0..bytes.div_ceil(PAGE_BYTES) {
            read_page(&mut file, number, bytes, &mut page).map_err(|error| StoreError::io(path, &error))?;
            pages.push(Outline::page(number, &leaves(number, &page)));
            see(number, &page);
        }
        Ok(Self::of(path, bytes, pages, Source::File(Mutex::new(file))))
    }

    fn of(path: &Path, bytes: u64, pages: Vec<Digest>, source: Source) -> Self {
        let outline = Outline::new(chunks(bytes), pages).expect("a node for each page");
        Self { path: path.to_owned(), bytes, outline, source, recent: Mutex::default() }
    }

    /// How many bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What a manifest says of it.
    pub(super) fn root(&self) -> Digest {
        self.outline.root()
    }

    /// The bytes of this range, as far as there are any.
    ///
    /// # Errors
    /// [`crate::error::Kind::Corrupt`] where the file no longer has the bytes that it was opened with; what the system reports.
    pub(super) fn read(&self, range: Range<u64>) -> Result<Vec<u8>> {
        let end = range.end.min(self.bytes);
        let begin = range.start.min(end);
        if let Source::Memory(bytes) = &self.source {
            return Ok(bytes[begin as usize..end as usize].to_vec());
        }
        let mut found = Vec::with_capacity((end - begin) as usize);
        let mut at = begin;
        while at < end {
            let page = self.page(at / PAGE_BYTES)?;
            let rest = &page[(at % PAGE_BYTES) as usize..];
            let taken = rest.len().min((end - at) as usize);
            found.extend_from_slice(&rest[..taken]);
            at += taken as u64;
        }
        Ok(found)
    }

    /// That a chunk belongs to the file, with the upper part of its tree; none when there is no such chunk.
    ///
    /// # Errors
    /// As of [`Self::read`].
    pub(super) fn prove(&self, upper: &Tree, chunk: u64) -> Result<Option<Proof>> {
        let number = chunk / PAGE_CHUNKS;
        let begin = number.saturating_mul(PAGE_BYTES);
        let page = self.read(begin..begin.saturating_add(PAGE_BYTES))?;
        Ok(self.outline.prove(upper, chunk, &leaves(number, &page)))
    }

    /// The upper part of the tree.
    pub(super) fn upper(&self) -> Tree {
        self.outline.tree()
    }

    /// A page, checked.
    fn page(&self, number: u64) -> Result<Arc<[u8]>> {
        if let Some((_, page)) = lock(&self.recent).iter().find(|(recent, _)| *recent == number) {
            return Ok(page.clone());
        }
        let page: Arc<[u8]> = self.read_checked(number)?.into();
        let mut recent = lock(&self.recent);
        recent.truncate(RECENT - 1);
        recent.push_front((number, page.clone()));
        Ok(page)
    }

    fn read_checked(&self, number: u64) -> Result<Vec<u8>> {
        let mut page = Vec::new();
        if let Source::File(file) = &self.source {
            let read = read_page(&mut lock(file), number, self.bytes, &mut page);
            read.map_err(|error| StoreError::io(&self.path, &error))?;
        }
        // DATA-1: a disk may have lost a bit since the file was opened, and whoever computes on it is convicted.
        if self.outline.pages().get(number as usize) != Some(&Outline::page(number, &leaves(number, &page))) {
            let cause = format!("from byte {} on it has changed", number * PAGE_BYTES);
            return Err(StoreError::corrupt(&self.path, cause, ADVICE));
        }
        Ok(page)
    }
}

/// Chunks of so many bytes.
fn chunks(bytes: u64) -> u64 {
    bytes.div_ceil(DATA_CHUNK_BYTES as u64)
}

/// Leaves of a page.
fn leaves(number: u64, page: &[u8]) -> Vec<Digest> {
    let chunks = (number * PAGE_CHUNKS..).zip(page.chunks(DATA_CHUNK_BYTES));
    chunks.map(|(index, chunk)| merkle::leaf(index, chunk)).collect()
}

/// Reads a page of a file of `bytes` bytes into `page`.
fn read_page(file: &mut File, number: u64, bytes: u64, page: &mut Vec<u8>) -> io::Result<()> {
    let begin = number * PAGE_BYTES;
    page.resize((bytes - begin).min(PAGE_BYTES) as usize, 0);
    file.seek(SeekFrom::Start(begin))?;
    file.read_exact(page)
}

/// Refuses what is longer than this version takes.
pub(super) fn bounded(path: &Path, length: u64, most: u64) -> Result<()> {
    if length > most {
        let cause = format!("{length} bytes are more than the {most} that this version takes");
        return Err(StoreError::refused(path, cause, "use less text or a smaller model"));
    }
    Ok(())
}
