//! A corpus directory that appears whole: it is written beside its path and renamed into it.

use std::fs::{self, File, TryLockError};
use std::io::Write;
use std::path::{Path, PathBuf};

use muster_core::manifest::DataFile;

use super::{ABOUT, Dataset, is_there, name};
use crate::error::{Kind, Result, StoreError};
use crate::files::{self, Care};
use crate::patience::patiently;

const LOCK: &str = "lock";

/// Refuses a path where something is already.
pub(super) fn vacant(out: &Path) -> Result<()> {
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

/// Writes a corpus.
pub(super) fn write(out: &Path, dataset: &Dataset, about: &str) -> Result<()> {
    vacant(out)?;
    let half = half(out);
    files::make_directory(&half)?;
    let lock = lock(&half, out)?;
    let written = fill(&half, dataset, about).and_then(|()| settle(&half, out));
    if written.is_err() {
        let _ = files::remove_directory(&half);
    }
    drop(lock);
    written
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

fn fill(half: &Path, dataset: &Dataset, about: &str) -> Result<()> {
    let data = dataset.data();
    let files = DataFile::ALL.into_iter().filter(|file| is_there(&data, *file));
    let files = files.map(|file| (name(file), dataset.file(file)));
    files.chain([(ABOUT, about.as_bytes())]).try_for_each(|(name, bytes)| {
        let path = half.join(name);
        files::write(&path, Care::Durable, |file: &mut dyn Write| file.write_all(bytes))
    })
}

fn settle(half: &Path, out: &Path) -> Result<()> {
    files::sweep(half)?;
    // The lock stays held by its open file: only its name must not be in the corpus.
    files::remove(&half.join(LOCK))?;
    files::sync_directory(half)?;
    // An empty directory gives way.
    let _ = fs::remove_dir(out);
    fs::rename(half, out).map_err(|error| StoreError::io(out, &error))?;
    files::sync_directory(files::parent(out))
}
