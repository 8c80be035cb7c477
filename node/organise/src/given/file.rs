//! The files of a checkpoint, which a stranger wrote.

use std::path::Path;

use muster_replica::exit::{Failure, Outcome};
use muster_store::regular;

use crate::pointer::no_pointer;

/// A file of at most `most` bytes: its length is checked before memory is taken.
///
/// # Errors
/// [`Failure`] naming the file, and what a checkpoint consists of where it is missing; as [`no_pointer`].
pub(super) fn bounded(path: &Path, most: u64) -> Outcome<Vec<u8>> {
    let bytes = regular::read(path, most).map_err(|error| {
        let what = "a checkpoint has config.json and model.safetensors";
        Failure::environment(format!("{}: cannot be read ({}); {what}", path.display(), error.cause()))
    })?;
    no_pointer(path, &bytes)?;
    Ok(bytes)
}
