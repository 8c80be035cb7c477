//! What went wrong with a file, and what to do about it.

use std::io;
use std::path::{Path, PathBuf};

use crate::patience::is_shortage;

/// Outcome of work on a disk.
pub type Result<T> = core::result::Result<T, StoreError>;

/// What kind of thing went wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Another process holds the directory.
    Locked,
    /// No room is left.
    Full,
    /// The bytes are not what was written.
    Corrupt,
    /// It is not there.
    Missing,
    /// Against a rule of the store; nothing was changed.
    Refused,
    /// The system refuses or fails.
    Io,
}

/// One failure: which file, why, and what to do. Shown as one sentence.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{}: {cause}; {advice}", .path.display())]
pub struct StoreError {
    kind: Kind,
    path: PathBuf,
    cause: String,
    advice: String,
}

impl StoreError {
    pub(crate) fn new(kind: Kind, path: &Path, cause: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { kind, path: path.to_owned(), cause: cause.into(), advice: advice.into() }
    }

    pub(crate) fn corrupt(path: &Path, cause: impl Into<String>, advice: impl Into<String>) -> Self {
        Self::new(Kind::Corrupt, path, format!("is damaged ({})", cause.into()), advice)
    }

    pub(crate) fn refused(path: &Path, cause: impl Into<String>, advice: impl Into<String>) -> Self {
        Self::new(Kind::Refused, path, cause, advice)
    }

    /// Sorts a system error by what a person can do about it.
    pub fn io(path: &Path, error: &io::Error) -> Self {
        use io::ErrorKind;
        let (kind, cause, advice) = match error.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
                (Kind::Full, "the disk is full".into(), "make room and start again, nothing is damaged")
            }
            ErrorKind::FileTooLarge => (
                Kind::Full,
                "may not grow any more (`ulimit -f`, or the file system)".into(),
                "allow larger files and start again, nothing is damaged",
            ),
            ErrorKind::NotFound => (Kind::Missing, "does not exist".into(), "check the path"),
            ErrorKind::PermissionDenied => {
                (Kind::Io, "access is denied".into(), "give yourself access to it or use another directory")
            }
            ErrorKind::ReadOnlyFilesystem => {
                (Kind::Io, "the file system is read-only".into(), "use a directory that can be written to")
            }
            ErrorKind::NotADirectory => (Kind::Io, "is not a directory".into(), "use another path"),
            ErrorKind::InvalidData | ErrorKind::UnexpectedEof => {
                (Kind::Corrupt, format!("is damaged ({error})"), "restore it from a copy")
            }
            _ if is_shortage(error) => (
                Kind::Io,
                format!("cannot be opened: {error}"),
                "let the program have more files open, with a higher `ulimit -n` (65536)",
            ),
            _ => (Kind::Io, format!("the system reports: {error}"), "check the disk and start again"),
        };
        Self::new(kind, path, cause, advice)
    }

    /// The same failure with other advice.
    pub(crate) fn advise(self, advice: impl Into<String>) -> Self {
        Self { advice: advice.into(), ..self }
    }

    /// The same failure with another cause beside the first.
    #[must_use]
    pub fn and(self, cause: impl std::fmt::Display) -> Self {
        Self { cause: format!("{}, and {cause}", self.cause), ..self }
    }

    /// What kind of thing went wrong.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Which file and why, without what to do: for what is done without.
    pub fn brief(&self) -> String {
        format!("{}: {}", self.path.display(), self.cause)
    }

    /// Why, without which file and what to do: for a sentence that says both.
    pub fn cause(&self) -> &str {
        &self.cause
    }

    /// The file or directory.
    pub fn path(&self) -> &Path {
        &self.path
    }
}
