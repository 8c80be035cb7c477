//! One directory of one process: everything that a member keeps.

use std::fs::{File, OpenOptions, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::{Kind, Result, StoreError};
use crate::files::{self, Care};
use crate::patience::patiently;

const MARKER: &str = "format";
const LOCK: &str = "lock";
const FORMAT: &[u8] = b"muster home 1\n";

pub(crate) const STATES: &str = "states";
pub(crate) const UPDATES: &str = "updates";
pub(crate) const EXHIBITS: &str = "exhibits";
pub(crate) const EVIDENCE: &str = "evidence";
/// Scratch files.
pub(crate) const ROWS: &str = "rows";
/// Directories that survive a power failure.
const DURABLE: [&str; 4] = [STATES, UPDATES, EXHIBITS, EVIDENCE];

/// A directory that this process alone holds, until the last clone is dropped.
#[derive(Clone, Debug)]
pub struct Home {
    directory: Arc<Path>,
    /// The system frees the lock when the process ends, however it ends.
    lock: Arc<File>,
}

impl Home {
    /// Opens a home; makes it when there is nothing, or an empty directory.
    ///
    /// # Errors
    /// [`Kind::Locked`] while another process holds it; [`Kind::Refused`] for a directory that holds something
    /// else, in which nothing is touched; what the system reports.
    pub fn open(directory: &Path) -> Result<Self> {
        if directory.exists() && !directory.is_dir() {
            let cause = "is a file where a directory is needed";
            return Err(StoreError::refused(directory, cause, "use another path"));
        }
        if !directory.exists() {
            files::make_private_directory(directory)?;
        }
        // Before anything is made in it: a directory of somebody else gets not even a lock file.
        let new = is_new(directory)?;
        // Journal, states and contributions are nobody else's, and whoever may open the lock may hold it for ever.
        files::keep_from_others(directory);
        let lock = take_lock(directory)?;
        // Behind the lock: leftovers of another process could be files that it is writing.
        files::sweep(directory)?;
        if new {
            files::write(&directory.join(MARKER), Care::Durable, |file| file.write_all(FORMAT))?;
            files::sync_directory(files::parent(directory))?;
        }
        for durable in DURABLE.map(|name| directory.join(name)) {
            files::make_directory(&durable)?;
            files::sweep(&durable)?;
        }
        files::sync_directory(directory)?;
        Ok(Self { directory: directory.into(), lock: Arc::new(lock) })
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.directory
    }

    /// Writes a file of this name in the home, whole or not at all, and on the disk when this returns.
    ///
    /// # Errors
    /// [`Kind::Refused`] when the name leads elsewhere; what the system reports.
    pub fn write_file(&self, name: &str, bytes: &[u8]) -> Result<()> {
        files::write(&self.file(name)?, Care::Durable, |file| file.write_all(bytes))
    }

    /// Reads a file of this name in the home.
    ///
    /// # Errors
    /// [`Kind::Missing`]; [`Kind::Refused`] when the name leads elsewhere; what the system reports.
    pub fn read_file(&self, name: &str) -> Result<Vec<u8>> {
        files::read(&self.file(name)?)
    }

    /// As [`Home::write_file`], with a checksum.
    ///
    /// # Errors
    /// As there.
    pub fn write_sealed(&self, name: &str, bytes: &[u8]) -> Result<()> {
        files::write_sealed(&self.file(name)?, Care::Durable, name, bytes)
    }

    /// Reads what [`Home::write_sealed`] wrote.
    ///
    /// # Errors
    /// [`Kind::Missing`]; [`Kind::Corrupt`]; [`Kind::Refused`] when the name leads elsewhere; what the system reports.
    pub fn read_sealed(&self, name: &str) -> Result<Vec<u8>> {
        files::read_sealed(&self.file(name)?, name, "delete it")
    }

    /// A path within the home.
    pub(crate) fn at(&self, name: impl AsRef<Path>) -> PathBuf {
        self.directory.join(name)
    }

    /// The path of a file directly in the home. Refuses the home's own files, and names that lead elsewhere.
    pub(crate) fn file(&self, name: &str) -> Result<PathBuf> {
        let path = self.at(name);
        // A name like `../x` would lead out of the home.
        let plain = Path::new(name).file_name() == Some(name.as_ref()) && ![MARKER, LOCK].contains(&name);
        if plain {
            Ok(path)
        } else {
            Err(StoreError::refused(&path, "is no file of this home", "use a plain name"))
        }
    }

    /// Keeps the home held.
    pub(crate) fn hold(&self) -> Arc<File> {
        self.lock.clone()
    }
}

/// Whether a directory is still to be marked. A home that was being made holds no more than its lock and rubbish.
fn is_new(directory: &Path) -> Result<bool> {
    let names = files::names(directory)?;
    if names.iter().any(|name| name == MARKER) {
        let path = directory.join(MARKER);
        if files::read(&path)? != FORMAT {
            let cause = "this directory was made by another version or another program";
            return Err(StoreError::refused(&path, cause, "use another directory"));
        }
        return Ok(false);
    }
    let foreign = names.iter().find(|name| *name != LOCK && !is_marker_aside(name));
    if let Some(name) = foreign {
        let cause = format!("is not a Muster directory and holds other things ({name:?})");
        return Err(StoreError::refused(directory, cause, "use an empty or a new directory"));
    }
    Ok(true)
}

fn is_marker_aside(name: &str) -> bool {
    name.starts_with(MARKER) && name.ends_with(files::ASIDE)
}

fn take_lock(directory: &Path) -> Result<File> {
    let path = directory.join(LOCK);
    let failed = |error| StoreError::io(&path, &error);
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let file = patiently(|| options.open(&path)).map_err(failed)?;
    files::keep_from_others(&path);
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            let cause = "another process is using this directory";
            Err(StoreError::new(Kind::Locked, directory, cause, "stop it first or use another directory"))
        }
        Err(TryLockError::Error(error)) => Err(failed(error)),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn one_process_at_a_time() {
        let directory = tempfile::tempdir().unwrap();
        let home = Home::open(directory.path()).unwrap();
        let second = Home::open(directory.path()).unwrap_err();
        assert_eq!(second.kind(), Kind::Locked);
        assert!(second.to_string().starts_with(&directory.path().display().to_string()), "{second}");
        let clone = home.clone();
        drop(home);
        assert!(Home::open(directory.path()).is_err());
        drop(clone);
        Home::open(directory.path()).unwrap();
    }

    #[cfg(unix)]
    #[test]
    fn a_home_is_its_owner_s_alone_also_one_that_others_could_look_into() {
        use std::os::unix::fs::PermissionsExt;

        use crate::journal::Journal;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("above/home");
        let modes = || {
            ["", "lock", "journal.redb"]
                .map(|name| fs::metadata(path.join(name)).unwrap().permissions().mode() & 0o777)
        };
        let open = || drop(Journal::open(&Home::open(&path).unwrap()).unwrap());
        open();
        assert_eq!(modes(), [0o700, 0o600, 0o600]);
        // As earlier versions left it.
        for (name, mode) in [("lock", 0o644), ("journal.redb", 0o644), ("", 0o755)] {
            fs::set_permissions(path.join(name), PermissionsExt::from_mode(mode)).unwrap();
        }
        open();
        assert_eq!(modes(), [0o700, 0o600, 0o600]);
        // A directory that is no home keeps its mode.
        let other = directory.path().join("other");
        fs::create_dir(&other).unwrap();
        fs::write(other.join("thesis.txt"), b"years of work").unwrap();
        fs::set_permissions(&other, PermissionsExt::from_mode(0o755)).unwrap();
        Home::open(&other).unwrap_err();
        assert_eq!(fs::metadata(&other).unwrap().permissions().mode() & 0o777, 0o755);
    }

    #[test]
    fn a_foreign_directory_is_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("thesis.txt"), b"years of work").unwrap();
        let error = Home::open(directory.path()).unwrap_err();
        assert_eq!(error.kind(), Kind::Refused);
        assert!(error.to_string().contains("thesis.txt"), "{error}");
        assert_eq!(files::names(directory.path()).unwrap(), ["thesis.txt"]);
        let file = Home::open(&directory.path().join("thesis.txt")).unwrap_err();
        assert_eq!(file.kind(), Kind::Refused);
    }

    #[test]
    fn a_home_half_made_is_finished() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join(LOCK), b"").unwrap();
        fs::write(directory.path().join("format.0.tmp"), b"muster ho").unwrap();
        drop(Home::open(directory.path()).unwrap());
        let names = files::names(directory.path()).unwrap();
        assert_eq!(names, [EVIDENCE, EXHIBITS, MARKER, LOCK, STATES, UPDATES]);
        fs::write(directory.path().join(MARKER), b"muster home 9\n").unwrap();
        assert_eq!(Home::open(directory.path()).unwrap_err().kind(), Kind::Refused);
    }

    #[test]
    fn names_stay_inside() {
        let directory = tempfile::tempdir().unwrap();
        let home = Home::open(&directory.path().join("home")).unwrap();
        home.write_file("run.toml", b"name").unwrap();
        assert_eq!(home.read_file("run.toml").unwrap(), b"name");
        assert_eq!(home.read_file("other").unwrap_err().kind(), Kind::Missing);
        for name in ["../x", "a/b", "", "..", "/etc/passwd", MARKER, LOCK] {
            assert_eq!(home.write_file(name, b"").unwrap_err().kind(), Kind::Refused, "{name}");
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_place_that_cannot_be_written_is_named() {
        let error = Home::open(Path::new("/sys/muster")).unwrap_err();
        assert!(error.to_string().starts_with("/sys/muster: "), "{error}");
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().unwrap();
        fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o555)).unwrap();
        // A superuser may write here all the same.
        if let Err(error) = Home::open(directory.path()) {
            assert!(error.to_string().contains("access is denied; give yourself access"), "{error}");
        }
    }
}
