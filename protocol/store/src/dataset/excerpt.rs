//! A few windows of a text for somebody who lacks the text: its chunks, each with what ties it to the manifest.

use core::ops::Range;
use std::collections::{BTreeMap, BTreeSet};

use borsh::{BorshDeserialize, BorshSerialize};
use muster_core::ids::Row;
use muster_core::limits::DATA_CHUNK_BYTES;
use muster_core::manifest::{Data, DataFile};
use muster_core::merkle::{Proof, leaf};

use super::{Dataset, Routing, tokens};
use crate::error::Result;

/// Chunks of the training text as they travel, and the router's file where the run has one. Nothing of it is checked.
#[derive(Clone, Debug, Default, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
pub struct Pieces {
    chunks: Vec<Piece>,
    router: Vec<u8>,
}

#[derive(Clone, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
struct Piece {
    chunk: u64,
    bytes: Vec<u8>,
    proof: Proof,
}

impl Dataset {
    /// What gives these windows, and those of `routed` their rows, to somebody who lacks the text; nothing where that takes more
    /// than `most` bytes.
    ///
    /// # Errors
    /// As of [`Self::read`].
    pub fn pieces(
        &self,
        windows: &BTreeSet<u64>,
        routed: &BTreeSet<u64>,
        sequence: u32,
        most: u64,
    ) -> Result<Pieces> {
        let (data, before_row) = (self.data(), self.routing.as_ref().map_or(0, Routing::tokens));
        let router = self.routing.as_ref().filter(|_| !routed.is_empty()).map(Routing::file);
        let mut bytes = router.map_or(0, |file| file.len() as u64);
        let read = windows.iter().map(|window| within(*window, sequence));
        let before = routed.iter().map(|window| before(*window, sequence, before_row));
        let mut wanted = BTreeSet::new();
        for chunk in read.chain(before).flat_map(|tokens| chunks(&data, tokens)) {
            bytes += if wanted.insert(chunk) { DATA_CHUNK_BYTES as u64 } else { 0 };
            if bytes > most {
                return Ok(Pieces::default());
            }
        }
        let upper = self.upper();
        let piece = |chunk| {
            let bytes = self.chunks(DataFile::Training, chunk, 1)?;
            let proof = self.prove(&upper, chunk)?;
            Ok(proof.map(|proof| Piece { chunk, bytes, proof }))
        };
        let router = router.map_or_else(Vec::new, <[u8]>::to_vec);
        let chunks = wanted.into_iter().filter_map(|chunk| piece(chunk).transpose());
        Ok(Pieces { chunks: chunks.collect::<Result<_>>()?, router })
    }
}

/// Tokens of a window, by their places in the text.
fn within(window: u64, sequence: u32) -> Range<u64> {
    // DATA-2: the s + 1 tokens w·s ..= (w + 1)·s.
    let first = window.saturating_mul(sequence.into());
    first..first.saturating_add(u64::from(sequence) + 1)
}

/// Tokens before a window, `most` at most.
fn before(window: u64, sequence: u32, most: usize) -> Range<u64> {
    let end = window.saturating_mul(sequence.into());
    end.saturating_sub(most as u64)..end
}

/// Chunks that hold these tokens of the training text.
fn chunks(data: &Data, tokens: Range<u64>) -> Range<u64> {
    let (size, chunk) = (data.token_bytes(), DATA_CHUNK_BYTES as u64);
    let at = |token: u64| token.saturating_mul(size).min(data.bytes);
    at(tokens.start) / chunk..at(tokens.end).div_ceil(chunk)
}

/// A part of a training text that is the one that a manifest commits to.
#[derive(Debug)]
pub struct Excerpt {
    data: Data,
    chunks: BTreeMap<u64, Vec<u8>>,
    routing: Option<Routing>,
}

impl Excerpt {
    /// Checks every piece against the manifest.
    ///
    /// # Errors
    /// In words: which piece is not what the run committed to.
    pub fn checked(data: &Data, pieces: Pieces) -> core::result::Result<Self, String> {
        let size = DATA_CHUNK_BYTES as u64;
        let count = data.bytes.div_ceil(size);
        let mut chunks = BTreeMap::new();
        for Piece { chunk, bytes, proof } in pieces.chunks {
            // DATA-1: the last chunk may be shorter.
            let length = data.bytes.saturating_sub(chunk.saturating_mul(size)).min(size);
            let proved = proof.verify(&data.root, count, chunk, leaf(chunk, &bytes)).is_ok();
            if !proved || bytes.len() as u64 != length {
                return Err(format!(
                    "chunk {chunk} of the training text is not the one that the run committed to"
                ));
            }
            // DATA-5: a number that the tokeniser does not know.
            let unknown = |token| token >= data.kinds();
            if tokens::read(&bytes, tokens::size(&data.tokeniser)).any(unknown) {
                return Err(format!(
                    "chunk {chunk} of the training text has a token that the tokeniser lacks"
                ));
            }
            chunks.insert(chunk, bytes);
        }
        let named = data.router.as_ref().filter(|_| !pieces.router.is_empty());
        let routing = match named {
            Some(named) => Some(
                Routing::of(named, pieces.router)
                    .ok_or("the router's file is not the one that the run committed to")?,
            ),
            None if pieces.router.is_empty() => None,
            None => return Err("there is a router's file, and the run has none".into()),
        };
        Ok(Self { data: data.clone(), chunks, routing })
    }

    /// A window of the training text, if it is all here.
    pub fn window(&self, index: u64, sequence: u32) -> Option<Vec<u32>> {
        let mut window = self.tokens(within(index, sequence))?;
        // As of the whole text.
        window.resize(sequence as usize + 1, 0);
        Some(window)
    }

    /// The row of a window among those that are open; none where no row is, and where what tells it is not here.
    pub fn row_of(&self, window: u64, sequence: u32, open: impl Fn(Row) -> bool) -> Option<Row> {
        if self.data.router.is_none() {
            return open(Row(0)).then_some(Row(0));
        }
        let routing = self.routing.as_ref()?;
        routing.row(&self.tokens(before(window, sequence, routing.tokens()))?, open)
    }

    /// The tokens at these places, as far as the text goes; none where a chunk of them is not here.
    fn tokens(&self, places: Range<u64>) -> Option<Vec<u32>> {
        let (size, chunk) = (self.data.token_bytes(), DATA_CHUNK_BYTES as u64);
        let of = chunks(&self.data, places.clone());
        let mut bytes = Vec::new();
        for chunk in of.clone() {
            bytes.extend_from_slice(self.chunks.get(&chunk)?);
        }
        let at = |token: u64| {
            let place = token.saturating_mul(size).min(self.data.bytes);
            usize::try_from(place.saturating_sub(of.start.saturating_mul(chunk))).ok()
        };
        let bytes = bytes.get(at(places.start)?..at(places.end)?)?;
        Some(tokens::read(bytes, tokens::size(&self.data.tokeniser)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text() -> Dataset {
        let train = (0..20_001u32).map(|place| (place * 7 % 251) as u8).collect();
        Dataset::of_bytes(train, vec![1; 9])
    }

    #[test]
    fn an_excerpt_gives_its_windows_and_no_others() {
        let (text, sequence) = (text(), 100);
        let wanted: BTreeSet<u64> = [0, 40, 41, 199].into();
        let pieces = text.pieces(&wanted, &BTreeSet::new(), sequence, u64::MAX).unwrap();
        let excerpt = Excerpt::checked(&text.data(), pieces).unwrap();
        for window in wanted {
            assert_eq!(
                excerpt.window(window, sequence),
                Some(text.window(window, sequence).unwrap()),
                "{window}"
            );
            assert_eq!(excerpt.row_of(window, sequence, |_| true), Some(Row(0)));
        }
        assert_eq!(excerpt.window(90, sequence), None);
    }

    #[test]
    fn audit_30_of_more_windows_than_there_is_room_for_nothing_is_copied() {
        let text = text();
        let pieces = |most| text.pieces(&(0..200).collect(), &BTreeSet::new(), 100, most).unwrap();
        let whole = 5 * DATA_CHUNK_BYTES as u64;
        assert_eq!((pieces(whole).chunks.len(), pieces(whole - 1)), (5, Pieces::default()));
    }

    #[test]
    fn data_1_a_piece_that_was_not_committed_to_is_refused() {
        let text = text();
        let pieces = text.pieces(&[0, 199].into(), &BTreeSet::new(), 100, u64::MAX).unwrap();
        let refused = |change: &dyn Fn(&mut Pieces)| {
            let mut changed = pieces.clone();
            change(&mut changed);
            Excerpt::checked(&text.data(), changed).is_err()
        };
        assert!(!refused(&|_| ()));
        assert!(refused(&|pieces| pieces.chunks[0].bytes[5] ^= 1));
        assert!(refused(&|pieces| pieces.chunks[1].bytes.truncate(9)));
        assert!(refused(&|pieces| pieces.chunks[0].chunk = 1));
        assert!(refused(&|pieces| pieces.chunks[0].chunk = u64::MAX));
        assert!(refused(&|pieces| pieces.chunks[0].proof = pieces.chunks[1].proof.clone()));
        assert!(refused(&|pieces| pieces.router = vec![0; 9]));
    }

    #[test]
    fn data_5_a_number_that_the_tokeniser_lacks_is_refused() {
        use muster_core::manifest::{Tokeniser, TokeniserFile};
        let text =
            Dataset::of_bytes([1u16, 2, 300].into_iter().flat_map(u16::to_le_bytes).collect(), vec![1]);
        let named = |tokens| Data {
            tokeniser: Tokeniser::File(TokeniserFile { tokens, bytes: 1, digest: Default::default() }),
            ..text.data()
        };
        let pieces = || text.pieces(&[0].into(), &BTreeSet::new(), 2, u64::MAX).unwrap();
        assert!(Excerpt::checked(&named(300), pieces()).is_err());
        let excerpt = Excerpt::checked(&named(301), pieces()).unwrap();
        assert_eq!(excerpt.window(0, 2), Some(vec![1, 2, 300]));
    }

    #[test]
    fn data_9_rows_follow_from_the_text_before_a_window() {
        use muster_core::router::{RouterRow, Table};
        let row = |of: usize| RouterRow {
            entries: core::array::from_fn(|token| i32::from(token % 2 == of)),
            bias: 0,
        };
        let text = text().with_router(Routing::new(64, Table::new(vec![row(0), row(1)]).unwrap()));
        let routed: BTreeSet<u64> = [0, 1, 57, 130].into();
        let pieces = text.pieces(&BTreeSet::new(), &routed, 100, u64::MAX).unwrap();
        let excerpt = Excerpt::checked(&text.data(), pieces).unwrap();
        for window in routed {
            assert_eq!(
                excerpt.row_of(window, 100, |_| true),
                text.row_of(window, 100, |_| true).unwrap(),
                "{window}"
            );
        }
        assert_eq!(excerpt.row_of(90, 100, |_| true), None);
    }
}
