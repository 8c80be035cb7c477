//! Files of a corpus in memory, with the trees that commit to them.

use std::path::Path;

use muster_core::limits::DATA_CHUNK_BYTES;
use muster_core::merkle::{self, Tree};

use crate::error::{Result, StoreError};

/// The parameters before the first round, where they were given.
pub const PARAMETERS: &str = "parameters.bin";

/// Bytes and the tree over their chunks.
#[derive(Debug)]
pub(super) struct Committed {
    pub(super) bytes: Vec<u8>,
    pub(super) tree: Tree,
}

impl Committed {
    pub(super) fn new(bytes: Vec<u8>) -> Self {
        let leaves =
            (0u64..).zip(bytes.chunks(DATA_CHUNK_BYTES)).map(|(index, chunk)| merkle::leaf(index, chunk));
        let tree = Tree::new(leaves);
        Self { bytes, tree }
    }
}

/// Refuses what this version does not hold in memory.
pub(super) fn bounded(path: &Path, length: u64, most: u64) -> Result<()> {
    if length > most {
        let cause = format!("{length} bytes are more than the {most} that this version holds in memory");
        return Err(StoreError::refused(path, cause, "use less text or a smaller model"));
    }
    Ok(())
}
