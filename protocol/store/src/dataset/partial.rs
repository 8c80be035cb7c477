//! What of a committed file is on a member's disk, and who gives it the rest.
//!
//! A file has its whole length from the beginning, and holes where pages are still to come. A map beside it says which pages are
//! there. Neither need be written with care: a page is checked whenever it is read, and fetched again where it is not the one that
//! was committed to.

use std::fmt::{self, Debug};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex};

use muster_core::lock::lock;
use muster_core::manifest::DataFile;
use muster_core::messages::wire::DataQuery;

use crate::error::{Result, StoreError};
use crate::patience::patiently;

/// Pages that are fetched in one answer ahead of need: 1 MiB.
const TOGETHER: u64 = 16;

/// Whether an answer has the bytes that were committed to.
pub type IsGood = dyn Fn(&[u8]) -> bool + Send + Sync;

/// Why nobody has given a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lack {
    /// Nobody answered in time.
    Nobody,
    /// Whoever must have it has sent other bytes.
    OtherBytes,
}

/// Whoever has the text of a run.
pub trait Supply: Debug + Send + Sync {
    /// The first answer to a query that is good. Waits for it, within bounds.
    ///
    /// # Errors
    /// Why there is none.
    fn chunks(&self, query: DataQuery, is_good: Arc<IsGood>) -> core::result::Result<Vec<u8>, Lack>;
}

/// What is wrong with a page, by its number, though it is the one that was committed to.
pub(super) type Fault = dyn Fn(u64, &[u8]) -> Result<()> + Send + Sync;

/// A file of which pages may be lacking.
pub(super) struct Partial {
    file: DataFile,
    pub(super) fault: Box<Fault>,
    pub(super) supply: Arc<dyn Supply>,
    held: Mutex<Held>,
}

impl Debug for Partial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Partial").field("file", &self.file).field("held", &self.held).finish_non_exhaustive()
    }
}

/// Which pages are there.
#[derive(Debug)]
struct Held {
    marks: Vec<u8>,
    file: File,
    pages: u64,
    count: u64,
    /// Pages that may be kept.
    room: u64,
}

impl Partial {
    /// By the map at `path`, which is made where there is none, of a file with so many pages; of them `room` may be kept.
    pub(super) fn open(
        path: &Path,
        (file, fault): (DataFile, Box<Fault>),
        pages: u64,
        room: u64,
        supply: Arc<dyn Supply>,
    ) -> Result<Self> {
        let failed = |error| StoreError::io(path, &error);
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false);
        let mut map = patiently(|| options.open(path)).map_err(failed)?;
        let mut marks = Vec::new();
        (&mut map).take(pages.div_ceil(8)).read_to_end(&mut marks).map_err(failed)?;
        marks.resize(pages.div_ceil(8) as usize, 0);
        // Only bits of pages that there are.
        if let Some(last) = marks.last_mut().filter(|_| !pages.is_multiple_of(8)) {
            *last &= (1 << (pages % 8)) - 1;
        }
        let count = marks.iter().map(|byte| u64::from(byte.count_ones())).sum();
        let held = Mutex::new(Held { marks, file: map, pages, count, room });
        Ok(Self { file, fault, supply, held })
    }

    pub(super) fn file(&self) -> DataFile {
        self.file
    }

    pub(super) fn holds(&self, page: u64) -> bool {
        lock(&self.held).is_marked(page)
    }

    /// Pages that are there.
    pub(super) fn count(&self) -> u64 {
        lock(&self.held).count
    }

    /// Whether one more page may be kept.
    pub(super) fn has_room(&self) -> bool {
        let held = lock(&self.held);
        held.count < held.room
    }

    /// Notes that a page was written.
    pub(super) fn mark(&self, page: u64) {
        lock(&self.held).mark(page);
    }

    /// Pages to be fetched next, the first lacking ones from some place on; none where all that may be kept are there.
    pub(super) fn wanted(&self, from: u64) -> Option<Range<u64>> {
        let held = lock(&self.held);
        let most = TOGETHER.min(held.room.saturating_sub(held.count));
        let from = from % held.pages.max(1);
        let first = (from..held.pages).chain(0..from).find(|page| !held.is_marked(*page))?;
        let end = (first..held.pages.min(first + most)).find(|page| held.is_marked(*page));
        (most > 0).then(|| first..end.unwrap_or(held.pages.min(first + most)))
    }
}

impl Held {
    fn is_marked(&self, page: u64) -> bool {
        self.marks.get((page / 8) as usize).is_some_and(|byte| byte >> (page % 8) & 1 == 1)
    }

    fn mark(&mut self, page: u64) {
        let byte = self.marks.get_mut((page / 8) as usize);
        if let Some(byte) = byte.filter(|byte| **byte >> (page % 8) & 1 == 0) {
            *byte |= 1 << (page % 8);
            self.count += 1;
            let byte = [*byte];
            // A mark that is lost costs one more fetch.
            let _ = self.file.seek(SeekFrom::Start(page / 8)).and_then(|_| self.file.write_all(&byte));
        }
    }
}
