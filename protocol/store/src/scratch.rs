//! Files that outlive no process. One that nobody has any more is written over by the next one of its length: its pages and its
//! place on the disk are there already.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use muster_core::lock::lock;

use crate::error::{Result, StoreError};
use crate::files;
use crate::patience::patiently;

/// Files that wait to be written over, one of a length: parameters and moments of the trunk, and of a row of experts.
const SPARE: usize = 4;

/// How often a process has begun such a directory. No number of a file comes again: files of a membership that has ended are removed by
/// their names once nobody has them, which may be after the next one began.
static BEGUN: AtomicU64 = AtomicU64::new(0);

/// A directory of scratch files.
#[derive(Clone, Debug)]
pub(crate) struct ScratchFiles {
    directory: PathBuf,
    /// Number of the next file.
    next: Arc<AtomicU64>,
    spare: Arc<Spare>,
}

impl ScratchFiles {
    /// An empty directory. What another process left there is dropped.
    ///
    /// # Errors
    /// What the system reports.
    pub(crate) fn open(directory: PathBuf) -> Result<Self> {
        files::remove_directory(&directory)?;
        files::make_directory(&directory)?;
        let next = BEGUN.fetch_add(1, Ordering::Relaxed) << 32;
        Ok(Self { directory, next: Arc::new(AtomicU64::new(next)), spare: Arc::default() })
    }

    /// A file that will have this length. Until it is written, its bytes are any.
    ///
    /// # Errors
    /// What the system reports.
    pub(crate) fn file(&self, bytes: u64) -> Result<Arc<ScratchFile>> {
        let spare = self.spare.take(bytes);
        let is_new = spare.is_none();
        let path = match spare {
            Some(path) => path,
            None => {
                let number = self.next.fetch_add(1, Ordering::Relaxed);
                let path = self.directory.join(format!("{number}.row"));
                let created = patiently(|| File::options().write(true).create_new(true).open(&path));
                created.map_err(|error| StoreError::io(&path, &error))?;
                path
            }
        };
        let (whole, spare) = (AtomicBool::new(false), self.spare.clone());
        Ok(Arc::new(ScratchFile { path, bytes, is_new, whole, spare }))
    }
}

/// A file that is spare, or removed, when this is dropped.
#[derive(Debug)]
pub(crate) struct ScratchFile {
    path: PathBuf,
    bytes: u64,
    is_new: bool,
    /// Whether all of it was written. What a full disk has cut short is removed.
    whole: AtomicBool,
    spare: Arc<Spare>,
}

impl ScratchFile {
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether what is not written reads as zeros.
    pub(crate) fn is_new(&self) -> bool {
        self.is_new
    }

    /// From now on all of it is written.
    pub(crate) fn complete(&self) {
        self.whole.store(true, Ordering::Relaxed);
    }
}

impl Drop for ScratchFile {
    fn drop(&mut self) {
        let path = std::mem::take(&mut self.path);
        let removed = if *self.whole.get_mut() { self.spare.put(self.bytes, path) } else { Some(path) };
        // What stays is dropped with the directory at the next start.
        let _ = removed.map(|path| files::remove(&path));
    }
}

/// Files that nobody has, each with its length, the oldest one first. They go with the last file and the last that makes files.
#[derive(Debug, Default)]
struct Spare(Mutex<Vec<(u64, PathBuf)>>);

impl Spare {
    fn take(&self, bytes: u64) -> Option<PathBuf> {
        let mut files = lock(&self.0);
        let found = files.iter().position(|(length, _)| *length == bytes)?;
        Some(files.remove(found).1)
    }

    /// Takes a file in; the file for which there is no room.
    fn put(&self, bytes: u64, path: PathBuf) -> Option<PathBuf> {
        let mut files = lock(&self.0);
        if files.iter().any(|(length, _)| *length == bytes) {
            return Some(path);
        }
        files.push((bytes, path));
        (files.len() > SPARE).then(|| files.remove(0).1)
    }
}

impl Drop for Spare {
    fn drop(&mut self) {
        for (_, path) in lock(&self.0).drain(..) {
            let _ = files::remove(&path);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_file_that_nobody_has_is_written_over_by_one_of_its_length() {
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path().join("scratch");
        let files = ScratchFiles::open(directory.clone()).unwrap();
        let count = || fs::read_dir(&directory).unwrap().count();
        let whole = |bytes| {
            let file = files.file(bytes).unwrap();
            file.complete();
            file
        };
        let (one, another) = (whole(5), whole(5));
        let path = one.path().to_owned();
        assert_ne!(path, another.path());
        drop(one);
        assert_ne!(files.file(6).unwrap().path(), path, "of another length");
        let again = whole(5);
        assert_eq!((again.path(), count()), (&*path, 2));
        // One of a length is enough.
        drop((another, again));
        assert_eq!(count(), 1);
        // What was not written to its end leaves nothing.
        drop(files.file(7).unwrap());
        assert_eq!(count(), 1);
        (10..30).for_each(|bytes| drop(whole(bytes)));
        assert_eq!(count(), SPARE);
        let kept = whole(100);
        drop(files);
        assert_eq!(count(), SPARE + 1, "somebody still has one");
        drop(kept);
        assert_eq!(count(), 0);
    }
}
