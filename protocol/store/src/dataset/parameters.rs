//! Parameters that a run begins with instead of drawn ones: the flat vector, each a little-endian `f32`.

use std::path::Path;

use muster_core::limits::PARAMETER_BYTES;
use muster_core::manifest::CommittedFile;
use muster_core::state::{real_bytes, reals};

use super::committed::{Committed, PAGE_BYTES, PARAMETERS, bounded};
use crate::error::{Result, StoreError};
use crate::files::{self, Care};

/// What a manifest says of these parameters.
pub fn committed_parameters(parameters: &[f32]) -> CommittedFile {
    let committed = Committed::new(real_bytes(parameters).into_owned());
    CommittedFile { root: committed.root(), bytes: committed.bytes() }
}

/// Writes parameters into a corpus.
///
/// # Errors
/// [`crate::error::Kind::Refused`] when they are too many, or not finite; [`crate::error::Kind::Full`]; what the
/// system reports.
pub fn add_parameters(corpus: &Path, parameters: &[f32]) -> Result<()> {
    let path = corpus.join(PARAMETERS);
    bounded(&path, 4 * parameters.len() as u64, PARAMETER_BYTES)?;
    let bytes = real_bytes(parameters);
    let pages = (0..).zip(bytes.chunks(PAGE_BYTES as usize));
    pages.into_iter().try_for_each(|(number, page)| check(&path, number, page))?;
    files::write(&path, Care::Durable, |file| file.write_all(&bytes))
}

/// Refuses a page with a value that is not finite; `path` is named.
pub(super) fn check(path: &Path, page: u64, bytes: &[u8]) -> Result<()> {
    // DATA-6: a value that is not finite is refused.
    let values = (page * PAGE_BYTES / 4..).zip(reals(bytes));
    if let Some((index, value)) = values.into_iter().find(|(_, value)| !value.is_finite()) {
        let cause = format!("parameter {index} is {value}");
        return Err(StoreError::refused(
            path,
            cause,
            "get other parameters, nothing can be trained from these",
        ));
    }
    Ok(())
}
