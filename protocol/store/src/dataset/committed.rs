//! Committed files, of which a page at a time is in memory: each page is checked whenever it is read.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use muster_core::ids::Digest;
use muster_core::limits::{DATA_CHUNK_BYTES, PAGE_CHUNKS};
use muster_core::lock::lock;
use muster_core::merkle::{self, Outline, Proof, Tree};
use muster_core::messages::wire::DataQuery;

use super::partial::{Lack, Partial};
use crate::error::{Kind, Result, StoreError};

pub(super) const ADVICE: &str = "get the corpus again from where it was packed";
/// The parameters before the first round, where they were given.
pub const PARAMETERS: &str = "parameters.bin";

/// Bytes of a page.
pub(super) const PAGE_BYTES: u64 = PAGE_CHUNKS * DATA_CHUNK_BYTES as u64;
/// Pages of a file that stay in memory after they were read.
pub(super) const RECENT: usize = 64;
/// Bytes of a committed file in memory, beside what is being read.
pub const RECENT_BYTES: u64 = RECENT as u64 * PAGE_BYTES;

/// Bytes, and the outline of the tree that commits to them.
#[derive(Debug)]
pub(super) struct Committed {
    path: PathBuf,
    bytes: u64,
    outline: Arc<Outline>,
    source: Source,
    recent: Mutex<VecDeque<(u64, Arc<[u8]>)>>,
    /// Where pages may be lacking.
    partial: Option<Partial>,
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

    /// A file of which pages may be lacking, by its outline, which was compared with the root.
    pub(super) fn partial(path: &Path, file: File, bytes: u64, outline: Outline, partial: Partial) -> Self {
        Self {
            path: path.to_owned(),
            bytes,
            outline: Arc::new(outline),
            source: Source::File(Mutex::new(file)),
            recent: Mutex::default(),
            partial: Some(partial),
        }
    }

    fn of(path: &Path, bytes: u64, pages: Vec<Digest>, source: Source) -> Self {
        let outline = Outline::new(chunks(bytes), pages).expect("a node for each page");
        let outline = Arc::new(outline);
        Self { path: path.to_owned(), bytes, outline, source, recent: Mutex::default(), partial: None }
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
        joined(begin..end, |number| self.page(number))
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
        let page: Arc<[u8]> = match &self.partial {
            Some(partial) => match partial.holds(number).then(|| self.read_checked(number)) {
                Some(Ok(page)) => page,
                // What a disk has lost is fetched again, too.
                Some(Err(_)) | None => {
                    let page = self.obtain(partial, number..number + 1)?;
                    // What a full disk does not take is fetched again when it is needed.
                    let _ = self.keep(partial, number, &page);
                    page
                }
            },
            None => self.read_checked(number)?,
        }
        .into();
        let mut recent = lock(&self.recent);
        recent.truncate(RECENT - 1);
        recent.push_front((number, page.clone()));
        Ok(page)
    }

    /// Bytes that are there.
    pub(super) fn held(&self) -> u64 {
        let pages = |partial: &Partial| partial.count().saturating_mul(PAGE_BYTES).min(self.bytes);
        self.partial.as_ref().map_or(self.bytes, pages)
    }

    /// The bytes of a range as far as there are any, if all of these are on the disk.
    pub(super) fn read_held(&self, range: Range<u64>) -> Option<Vec<u8>> {
        let Some(partial) = &self.partial else { return self.read(range).ok() };
        let end = range.end.min(self.bytes);
        let page = |number| partial.holds(number).then(|| self.read_checked(number).ok()).flatten().ok_or(());
        joined(range.start.min(end)..end, page).ok()
    }

    /// Chunks of the outline, as of a file.
    pub(super) fn read_outline(&self, first: u64, count: u32) -> Vec<u8> {
        let at = |chunk: u64| chunk.saturating_mul(DATA_CHUNK_BYTES as u64 / 32);
        let pages = self.outline.pages();
        let at = |chunk: u64| usize::try_from(at(chunk)).unwrap_or(usize::MAX).min(pages.len());
        let nodes = &pages[at(first)..at(first.saturating_add(u64::from(count)))];
        nodes.iter().flat_map(|node| node.0).collect()
    }

    /// Fetches pages that are lacking, from some place on, ahead of need. Returns whether there were any.
    ///
    /// # Errors
    /// As of [`Self::read`].
    pub(super) fn fetch_ahead(&self, from: u64) -> Result<bool> {
        let Some(partial) = &self.partial else { return Ok(false) };
        let Some(pages) = partial.wanted(from) else { return Ok(false) };
        let answer = self.obtain(partial, pages.clone())?;
        for (page, bytes) in pages.zip(answer.chunks(PAGE_BYTES as usize)) {
            self.keep(partial, page, bytes).map_err(|error| StoreError::io(&self.path, &error))?;
        }
        Ok(true)
    }

    /// Has a page on the disk, or in memory where there is no room.
    ///
    /// # Errors
    /// As of [`Self::read`].
    pub(super) fn fetch(&self, page: u64) -> Result<()> {
        self.page(page).map(|_| ())
    }

    /// The pages of these bytes that are still to come.
    pub(super) fn lacking(&self, range: Range<u64>) -> impl Iterator<Item = u64> {
        let end = range.end.min(self.bytes);
        let pages = range.start.min(end) / PAGE_BYTES..end.div_ceil(PAGE_BYTES);
        pages.filter(|page| self.partial.as_ref().is_some_and(|partial| !partial.holds(*page)))
    }

    /// Fetches pages and checks them.
    fn obtain(&self, partial: &Partial, pages: Range<u64>) -> Result<Vec<u8>> {
        let (first, count) = (pages.start * PAGE_CHUNKS, (pages.end - pages.start) * PAGE_CHUNKS);
        let query = DataQuery { file: partial.file(), first, count: count as u32 };
        let (outline, bytes, asked) = (self.outline.clone(), self.bytes, pages.clone());
        // DATA-10: exactly the wanted bytes, and those that were committed to.
        let is_good = move |answer: &[u8]| fits(&outline, bytes, asked.clone(), answer);
        let answer =
            partial.supply.chunks(query, Arc::new(is_good)).map_err(|lack| self.lack(lack, &pages))?;
        for (page, bytes) in pages.zip(answer.chunks(PAGE_BYTES as usize)) {
            (partial.fault)(page, bytes)?;
        }
        Ok(answer)
    }

    /// Keeps a page while there is room, or in place of a damaged one.
    fn keep(&self, partial: &Partial, number: u64, bytes: &[u8]) -> io::Result<()> {
        if partial.has_room() || partial.holds(number) {
            self.write_page(number, bytes)?;
            partial.mark(number);
        }
        Ok(())
    }

    fn lack(&self, lack: Lack, pages: &Range<u64>) -> StoreError {
        match lack {
            Lack::OtherBytes => {
                let cause = "the bytes that were sent are not those of the run";
                StoreError::corrupt(&self.path, cause, "nothing of them was kept, fetch it again")
            }
            Lack::Nobody => {
                let cause =
                    format!("nobody has given the bytes from {} on in time", pages.start * PAGE_BYTES);
                StoreError::new(Kind::Missing, &self.path, cause, "check the connection; what came is kept")
            }
        }
    }

    fn write_page(&self, number: u64, bytes: &[u8]) -> io::Result<()> {
        if let Source::File(file) = &self.source {
            let mut file = lock(file);
            file.seek(SeekFrom::Start(number * PAGE_BYTES))?;
            file.write_all(bytes)?;
        }
        // In memory it is whole from the beginning.
        Ok(())
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

/// The bytes of a range, of the pages that it touches.
fn joined<T: AsRef<[u8]>, E>(
    range: Range<u64>,
    page: impl Fn(u64) -> core::result::Result<T, E>,
) -> core::result::Result<Vec<u8>, E> {
    let mut found = Vec::with_capacity((range.end - range.start) as usize);
    let mut at = range.start;
    while at < range.end {
        let page = page(at / PAGE_BYTES)?;
        let rest = &page.as_ref()[(at % PAGE_BYTES) as usize..];
        let taken = rest.len().min((range.end - at) as usize);
        found.extend_from_slice(&rest[..taken]);
        at += taken as u64;
    }
    Ok(found)
}

/// Whether these are the bytes of pages of a file that has so many.
fn fits(outline: &Outline, bytes: u64, pages: Range<u64>, answer: &[u8]) -> bool {
    let (begin, end) = (pages.start * PAGE_BYTES, (pages.end * PAGE_BYTES).min(bytes));
    let is_right = |(number, page): (u64, &[u8])| {
        outline.pages().get(number as usize) == Some(&Outline::page(number, &leaves(number, page)))
    };
    answer.len() as u64 == end - begin && pages.zip(answer.chunks(PAGE_BYTES as usize)).all(is_right)
}

/// Chunks of so many bytes.
pub(super) fn chunks(bytes: u64) -> u64 {
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
