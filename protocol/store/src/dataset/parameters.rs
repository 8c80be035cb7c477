//! Parameters that a run begins with instead of drawn ones: the flat vector, each a little-endian `f32`.

use std::path::Path;

use muster_core::limits::PARAMETER_BYTES;
use muster_core::manifest::CommittedFile;
use muster_core::state::{real_bytes, reals};

use super::committed::{Committed, PARAMETERS, bounded};
use crate::error::{Result, StoreError};
use crate::files::{self, Care};

/// Values that are looked at in one piece.
const PIECE: usize = 1 << 16;

/// What a manifest says of these parameters.
pub fn committed_parameters(parameters: &[f32]) -> CommittedFile {
    let committed = Committed::new(real_bytes(parameters).into_owned());
    CommittedFile { root: committed.tree.root(), bytes: committed.bytes.len() as u64 }
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
    check(&path, &bytes)?;
    files::write(&path, Care::Durable, |file| file.write_all(&bytes))
}

/// Refuses a value that is not finite; `path` is named.
pub(super) fn check(path: &Path, bytes: &[u8]) -> Result<()> {
    // DATA-6: a value that is not finite is refused.
    let pieces = bytes.chunks(4 * PIECE).zip((0..).step_by(PIECE));
    for (piece, first) in pieces {
        if let Some((index, value)) =
            reals(piece).into_iter().enumerate().find(|(_, value)| !value.is_finite())
        {
            let cause = format!("parameter {} is {value}", first + index);
            return Err(StoreError::refused(
                path,
                cause,
                "get other parameters, nothing can be trained from these",
            ));
        }
    }
    Ok(())
}
