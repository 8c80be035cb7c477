//! A corpus directory that appears whole: it is written beside its path and renamed into it.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};

use super::names::ABOUT;
use crate::error::{Kind, Result, StoreError};
use crate::files::{self, Care};
use crate::patience::patiently;

const LOCK: &str = "lock";

/// Refuses a path for a new corpus where something is already.
///
/// # Errors
/// [`crate::error::Kind::Refused`].
pub fn vacant(out: &Path) -> Result<()> {
    let names = files::names(out)?;
    if out.file_name().is_none() {
        return Err(StoreError::refused(out, "is not a name for a new directory", "name another one"));
    }
    if !names.is_empty() {
        return Err(StoreError::refused(
            out,
            "already holds something",
            "name a new directory or remove it first",
        ));
    }
    Ok(())
}

/// A corpus that is being written beside its path, which it takes once it is whole.
#[derive(Debug)]
pub struct Draft {
    out: PathBuf,
    half: PathBuf,
    /// Whether what is there stays when it is dropped before it is whole.
    stays: bool,
    /// Held until the end.
    _lock: File,
}

impl Draft {
    /// With nothing in it: what a killed process left is removed, and nothing is left of one that is dropped before it is whole.
    ///
    /// # Errors
    /// [`crate::error::Kind::Refused`] where something is at `out`; [`crate::error::Kind::Locked`]; what the system reports.
    pub fn new(out: &Path) -> Result<Self> {
        let mut draft = Self::resumed(out)?;
        draft.stays = false;
        let left = files::names(&draft.half)?;
        left.iter().filter(|name| *name != LOCK).try_for_each(|name| files::remove(&draft.path(name)))?;
        Ok(draft)
    }

    /// With what an earlier process left, which stays until it is whole.
    pub(super) fn resumed(out: &Path) -> Result<Self> {
        vacant(out)?;
        let half = half(out);
        files::make_directory(&half)?;
        let lock = lock(&half, out)?;
        Ok(Self { out: out.to_owned(), half, stays: true, _lock: lock })
    }

    /// Has what is there removed in the end.
    pub(super) fn forget(&mut self) {
        self.stays = false;
    }

    /// The path that it is to take.
    pub(super) fn out(&self) -> &Path {
        &self.out
    }

    /// Where it has a file meanwhile.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.half.join(name)
    }

    /// A new file, to be written to and read from.
    pub(super) fn create(&self, name: &str) -> Result<File> {
        let path = self.path(name);
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(true);
        patiently(|| options.open(&path)).map_err(|error| StoreError::io(&path, &error))
    }

    /// Writes a whole file.
    pub(super) fn write(&self, name: &str, bytes: &[u8]) -> Result<()> {
        files::write(&self.path(name), Care::Durable, |file| file.write_all(bytes))
    }

    /// Takes its path with what people read about it, once its files are on the disk.
    pub(super) fn settle(self, about: &str) -> Result<()> {
        self.write(ABOUT, about.as_bytes())?;
        for name in files::names(&self.half)? {
            let path = self.path(&name);
            let synced = patiently(|| File::open(&path)).and_then(|file| file.sync_all());
            synced.map_err(|error| StoreError::io(&path, &error))?;
        }
        // The lock stays held by its open file: only its name must not be in the corpus.
        files::remove(&self.path(LOCK))?;
        files::sync_directory(&self.half)?;
        // An empty directory gives way.
        let _ = fs::remove_dir(&self.out);
        fs::rename(&self.half, &self.out).map_err(|error| StoreError::io(&self.out, &error))?;
        files::sync_directory(files::parent(&self.out))
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        // Of one that has taken its path there is nothing here.
        if !self.stays {
            let _ = files::remove_directory(&self.half);
        }
    }
}

fn half(out: &Path) -> PathBuf {
    let mut name = std::ffi::OsString::from(".");
    name.push(out.file_name().unwrap_or_default());
    name.push(".half");
    files::parent(out).join(name)
}

/// Two packers of one path would mix their files.
fn lock(half: &Path, out: &Path) -> Result<File> {
    let path = half.join(LOCK);
    let failed = |error| StoreError::io(&path, &error);
    let file = patiently(|| File::create(&path)).map_err(failed)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(StoreError::new(
            Kind::Locked,
            out,
            "another process is writing it",
            "wait for it or name another one",
        )),
        Err(TryLockError::Error(error)) => Err(failed(error)),
    }
}
