//! Bytes as token numbers.

use std::fmt;
use std::path::Path;

use muster_core::hash::{Domain, Hasher};
use muster_core::manifest::Tokeniser;
use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::committed::PAGE_BYTES;
use crate::error::{Result, StoreError};

const PACKED_WRONGLY: &str = "get another text, the one who packed it made a mistake";

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

/// One more than the greatest number that a `tokenizer.json` gives in `model.vocab` and `added_tokens`; none where it is
/// no such file.
pub fn token_numbers(file: &[u8]) -> Option<u32> {
    let file: File = serde_json::from_slice(file).ok()?;
    let added = file.added_tokens.into_iter().flatten().map(|added| added.id);
    added.chain(file.model.vocab.0).max()?.checked_add(1)
}

/// Refuses a tokeniser's file that knows other numbers than the manifest says; `path` is named.
pub(super) fn check_count(path: &Path, file: &[u8], tokeniser: &Tokeniser) -> Result<()> {
    let Tokeniser::File(named) = tokeniser else { return Ok(()) };
    // DATA-4: the greatest number of the file is `tokens` − 1.
    let cause = match token_numbers(file) {
        Some(tokens) if tokens == named.tokens => return Ok(()),
        Some(tokens) => format!(
            "data.tokeniser.tokens is {}, but this file knows {tokens} numbers: it must be one more than the greatest",
            named.tokens
        ),
        None => "it gives no token a number in model.vocab".into(),
    };
    Err(StoreError::refused(path, cause, "pack the text again with `muster data pack --tokenizer`"))
}

/// What a `tokenizer.json` says of its numbers.
#[derive(Deserialize)]
struct File {
    model: TokeniserModel,
    added_tokens: Option<Vec<Added>>,
}

#[derive(Deserialize)]
struct TokeniserModel {
    vocab: Greatest,
}

#[derive(Deserialize)]
struct Added {
    id: u32,
}

/// The greatest number of a vocabulary: tokens with their numbers, or tokens in the order of their numbers. Nothing of it
/// is kept, it may be a stranger's.
struct Greatest(Option<u32>);

impl<'de> Deserialize<'de> for Greatest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> core::result::Result<Self, D::Error> {
        deserializer.deserialize_any(GreatestVisitor)
    }
}

struct GreatestVisitor;

impl<'de> Visitor<'de> for GreatestVisitor {
    type Value = Greatest;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a vocabulary")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> core::result::Result<Greatest, A::Error> {
        let mut greatest = None;
        while let Some((IgnoredAny, number)) = map.next_entry()? {
            greatest = greatest.max(Some(number));
        }
        Ok(Greatest(greatest))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> core::result::Result<Greatest, A::Error> {
        let mut count = 0u32;
        while let Some(IgnoredAny) = list.next_element()? {
            count = count.saturating_add(1);
        }
        Ok(Greatest(count.checked_sub(1)))
    }
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

/// Refuses a text whose bytes are not whole tokens; `path` is named.
pub(super) fn check_length(path: &Path, bytes: u64, tokeniser: &Tokeniser) -> Result<()> {
    let size = tokeniser.token_bytes();
    if !bytes.is_multiple_of(size) {
        let cause = format!("{bytes} bytes are not a whole number of tokens of {size} bytes");
        return Err(StoreError::refused(path, cause, PACKED_WRONGLY));
    }
    Ok(())
}

/// Refuses a page of a text that has tokens which the tokeniser does not know; `path` is named.
pub(super) fn check(path: &Path, page: u64, bytes: &[u8], tokeniser: &Tokeniser) -> Result<()> {
    let Tokeniser::File(file) = tokeniser else { return Ok(()) };
    let size = size(tokeniser);
    // DATA-5: a text with a number that its tokeniser does not know is refused.
    let first = page * (PAGE_BYTES / size as u64);
    let unknown = (first..).zip(read(bytes, size)).find(|(_, token)| *token >= file.tokens);
    match unknown {
        None => Ok(()),
        Some((position, token)) => {
            let cause = format!(
                "token {position} is number {token}, but the tokeniser knows {} numbers, from 0 on",
                file.tokens
            );
            Err(StoreError::refused(path, cause, PACKED_WRONGLY))
        }
    }
}
