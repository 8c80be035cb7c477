//! Reading an archive without owning it: no lock, nothing written.

use std::path::Path;

use muster_core::ids::{Digest, MemberId, Round};
use muster_core::state::integers;

use crate::archive::{EXHIBIT_ADVICE, evidence_file, exhibit_file, exhibit_name};
use crate::error::{Kind, Result};
use crate::files;
use crate::home::{EVIDENCE, EXHIBITS};

/// The bytes of a file.
///
/// # Errors
/// [`Kind::Missing`]; what the system reports.
pub fn file(path: &Path) -> Result<Vec<u8>> {
    files::read(path)
}

/// A convict's contribution in an archive, if it is there.
///
/// # Errors
/// [`Kind::Corrupt`]; what the system reports.
pub fn exhibit(folder: &Path, round: Round, member: &MemberId) -> Result<Option<Vec<i32>>> {
    let path = folder.join(EXHIBITS).join(exhibit_file(round, member));
    let name = exhibit_name(round, member);
    present(files::read_sealed(&path, &name, EXHIBIT_ADVICE)).map(|bytes| bytes.map(|bytes| integers(&bytes)))
}

/// The bytes of a piece of evidence in an archive, if it is there; they may be anything.
///
/// # Errors
/// What the system reports.
pub fn evidence(folder: &Path, digest: &Digest) -> Result<Option<Vec<u8>>> {
    present(files::read(&folder.join(EVIDENCE).join(evidence_file(digest))))
}

fn present<T>(read: Result<T>) -> Result<Option<T>> {
    match read {
        Err(error) if matches!(error.kind(), Kind::Missing) => Ok(None),
        read => read.map(Some),
    }
}
