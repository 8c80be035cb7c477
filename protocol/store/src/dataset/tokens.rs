//! Bytes as token numbers.

use std::path::Path;

use muster_core::hash::{Domain, Hasher};
use muster_core::manifest::Tokeniser;

use crate::error::{Result, StoreError};

/// Bytes of a token.
pub(super) fn size(tokeniser: &Tokeniser) -> usize {
    tokeniser.token_bytes() as usize
}

/// Whether these are the bytes of the tokeniser's file; none where tokens are bytes.
pub(super) fn is_file(file: &[u8], tokeniser: &Tokeniser) -> bool {
    let Tokeniser::File(named) = tokeniser else { return file.is_empty() };
    // DATA-4: the digest is H("tokeniser", file), of so many bytes.
    let length = u64::from(named.bytes) == file.len() as u64;
    length && Hasher::new(Domain::TOKENISER).part(file).finish() == named.digest
}

/// The little-endian numbers of `size` bytes each; bytes that make no whole one are left out.
pub(super) fn read(bytes: &[u8], size: usize) -> impl Iterator<Item = u32> + Clone {
    bytes
        .chunks_exact(size)
        .map(|bytes| bytes.iter().rev().fold(0, |high, byte| high << 8 | u32::from(*byte)))
}

/// Appends a number below `256^size`.
pub(super) fn write(token: u32, size: usize, bytes: &mut Vec<u8>) {
    bytes.extend_from_slice(&token.to_le_bytes()[..size]);
}

/// Refuses bytes that are not whole tokens that the tokeniser knows; `path` is named.
pub(super) fn check(path: &Path, bytes: &[u8], tokeniser: &Tokeniser) -> Result<()> {
    let advice = "get another text, the one who packed it made a mistake";
    let Tokeniser::File(file) = tokeniser else { return Ok(()) };
    let size = size(tokeniser);
    if !bytes.len().is_multiple_of(size) {
        let cause = format!("{} bytes are no whole number of tokens of {size} bytes", bytes.len());
        return Err(StoreError::refused(path, cause, advice));
    }
    // DATA-5: a text with a number that its tokeniser does not know is refused.
    let unknown = read(bytes, size).enumerate().find(|(_, token)| *token >= file.tokens);
    match unknown {
        None => Ok(()),
        Some((place, token)) => {
            let cause = format!(
                "token {place} is number {token}, but the tokeniser knows {} numbers, from 0 on",
                file.tokens
            );
            Err(StoreError::refused(path, cause, advice))
        }
    }
}
