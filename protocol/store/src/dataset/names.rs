//! The files of a corpus: their names and bounds, and the outline and map beside one of which only a part is there.

use std::path::Path;

use muster_core::ids::Digest;
use muster_core::limits::{DATA_BYTES, PARAMETER_BYTES, ROWS, TOKENISER_BYTES};
use muster_core::manifest::{Data, DataFile, Start, Tokeniser};
use muster_core::merkle::Outline;
use muster_core::router;

use super::committed::{PARAMETERS, chunks};
use super::routing::ROUTER;

pub(super) const TRAIN: &str = "train.bin";
pub(super) const HELD_OUT: &str = "held-out.bin";
pub(super) const ABOUT: &str = "corpus.txt";
/// The tokeniser in a corpus of token numbers.
pub const TOKENISER: &str = "tokenizer.json";
/// Bytes of a page's node in an outline.
const NODE: usize = 32;

/// A file's name in a corpus.
pub(super) fn name(file: DataFile) -> &'static str {
    match file {
        DataFile::Training => TRAIN,
        DataFile::HeldOut => HELD_OUT,
        DataFile::Tokeniser => TOKENISER,
        DataFile::Parameters => PARAMETERS,
        DataFile::Router => ROUTER,
    }
}

/// Most bytes of a file.
pub(super) fn most(file: DataFile) -> u64 {
    match file {
        DataFile::Training | DataFile::HeldOut => DATA_BYTES,
        DataFile::Tokeniser => TOKENISER_BYTES.into(),
        DataFile::Parameters => PARAMETER_BYTES,
        DataFile::Router => router::file_bytes(ROWS),
    }
}

/// Whether a corpus has this file.
pub(super) fn is_there(data: &Data, file: DataFile) -> bool {
    match file {
        DataFile::Training | DataFile::HeldOut => true,
        DataFile::Tokeniser => data.tokeniser != Tokeniser::Bytes,
        DataFile::Parameters => data.start != Start::Drawn,
        DataFile::Router => data.router.is_some(),
    }
}

/// The outline of a file, of which a member has only a part.
pub(super) fn outline_name(file: DataFile) -> String {
    format!("{}.outline", name(file))
}

/// Whether a corpus was fetched, so that outlines are there and pages may be lacking; and not packed.
pub fn is_fetched(directory: &Path) -> bool {
    directory.join(outline_name(DataFile::Training)).exists()
}

/// Which pages of a file are there.
pub(super) fn map(file: DataFile) -> String {
    format!("{}.held", name(file))
}

/// Bytes of the outline of a file of so many bytes.
pub(super) fn outline_bytes(length: u64) -> u64 {
    Outline::pages_of(chunks(length)) * NODE as u64
}

/// The outline of a file of so many bytes, as it travels and as it lies on the disk.
pub(super) fn outline(bytes: &[u8], length: u64) -> Option<Outline> {
    let (nodes, _) = bytes.as_chunks::<NODE>();
    Outline::new(chunks(length), nodes.iter().map(|node| Digest(*node)).collect())
}
