//! Vectors of reals in files, in pieces: the bytes of a whole vector would take as much memory again.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};

use muster_core::messages::offer::StateVector;
use muster_core::state::{real_bytes, reals};

/// Values that are converted at a time.
pub(crate) const PIECE: usize = 1 << 16;
/// The vectors of a state, in the order in which a file has them.
pub(crate) const VECTORS: [StateVector; 3] = StateVector::REALS;

pub(crate) fn write_reals(file: &mut dyn Write, values: &[f32]) -> io::Result<()> {
    values.chunks(PIECE).try_for_each(|piece| file.write_all(&real_bytes(piece)))
}

pub(crate) fn read_reals(file: &mut impl Read, count: usize) -> io::Result<Vec<f32>> {
    let mut values = Vec::with_capacity(count);
    let mut bytes = vec![0; 4 * PIECE.min(count)];
    while values.len() < count {
        let piece = 4 * (count - values.len()).min(PIECE);
        let piece = &mut bytes[..piece];
        file.read_exact(piece)?;
        values.extend(reals(piece));
    }
    Ok(values)
}

/// Reads so many bytes from a place on.
pub(crate) fn read_at(file: &mut File, place: u64, bytes: &mut [u8]) -> io::Result<()> {
    file.seek(SeekFrom::Start(place))?;
    file.read_exact(bytes)
}

/// An error that says what is damaged.
pub(crate) fn damaged(cause: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, cause)
}
