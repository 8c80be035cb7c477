//! The committed files of a run: packed once, the same bytes for everyone.
//!
//! A corpus is a directory with `train.bin`, `held-out.bin` and, for people, `corpus.txt`. Each binary file is the
//! texts one after the other. A text is its bytes, followed by one byte 0; or it is numbers that a tokeniser gave it,
//! little-endian and in [`Data::token_bytes`] bytes each, and `tokenizer.json` is beside them. A run that does not
//! begin with drawn parameters has `parameters.bin`, too, and a text of several rows of experts has `router.bin`. A
//! directory that was only half written has another name, so it is never taken for a corpus.

mod assembly;
mod baselines;
mod committed;
mod directory;
mod ending;
mod excerpt;
mod joined;
mod pack;
mod parameters;
mod routing;
mod rows;
mod tokens;

use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::path::Path;

use muster_core::ids::{Digest, Row};
use muster_core::limits::{DATA_BYTES, DATA_CHUNK_BYTES, PARAMETER_BYTES, ROWS, TOKENISER_BYTES};
use muster_core::manifest::{CommittedFile, Data, DataFile, Router, Start, Tokeniser};
use muster_core::merkle::{Proof, Tree};
use muster_core::router;
use muster_core::state::reals;

pub use assembly::Assembly;
pub use baselines::unigram_bigram;
pub use committed::{PARAMETERS, RECENT_BYTES};
pub use directory::{Draft, vacant};
pub use ending::last_tokens;
pub use excerpt::{Excerpt, Pieces};
pub use joined::{JoinedTexts, Numbering, TextName};
pub use pack::{SourceText, described, pack, pack_joined, pack_routed, pack_tokens};
pub use parameters::{add_parameters, committed_parameters};
pub use routing::{ROUTER, Routing};
pub use rows::{RouterSize, row_shares};
pub use tokens::token_numbers;

use crate::error::{Result, StoreError};
use crate::regular;
use committed::{Committed, bounded};
use directory::Place;

const TRAIN: &str = "train.bin";
const HELD_OUT: &str = "held-out.bin";
const ABOUT: &str = "corpus.txt";
/// The tokeniser in a corpus of token numbers.
pub const TOKENISER: &str = "tokenizer.json";
const ADVICE: &str = "get the corpus again from where it was packed";
const ROUTER_ADVICE: &str =
    "copy router.bin from data/ of the run's folder, or of another member's directory";

/// A corpus, equal to the one that a manifest commits to. Of its texts, what was read last is in memory.
#[derive(Debug)]
pub struct Dataset {
    train: Committed,
    held_out: Committed,
    tokeniser: Tokeniser,
    /// Its file; empty where tokens are bytes.
    tokeniser_file: Vec<u8>,
    given: Option<Committed>,
    routing: Option<Routing>,
}

/// A window, and the row of experts that it belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoutedWindow {
    /// Its tokens.
    pub tokens: Vec<u32>,
    /// Its row; none where no row is open.
    pub row: Option<Row>,
}

impl Dataset {
    /// Reads a corpus once and checks every byte of it against the manifest.
    ///
    /// # Errors
    /// [`crate::error::Kind::Corrupt`] naming the file that has another length, root or digest;
    /// [`crate::error::Kind::Missing`]; [`crate::error::Kind::Refused`] for a file beyond its limit, and where the bytes
    /// are no tokens of the tokeniser, the tokeniser knows other numbers, or parameters are not finite; what the system reports.
    pub fn open(directory: &Path, data: &Data) -> Result<Self> {
        let place = Place { at: directory, named: directory };
        Self::checked(place, data, "its bytes are not those that were committed to", ADVICE)
    }

    /// As [`Self::open`]. Of other bytes than the manifest's, an error says this `cause` and `advice`.
    fn checked(place: Place<'_>, data: &Data, cause: &str, advice: &str) -> Result<Self> {
        let path = |file| place.named.join(name(file));
        let wrong = |file| StoreError::corrupt(&path(file), cause, advice);
        let open = |file, root: &Digest, fault: &mut Fault<'_>| {
            let length = data.file_bytes(file);
            let (opened, mut found) = (opened(place, file, length)?, Ok(()));
            let committed = Committed::open(&path(file), opened, length, &mut |number, page| {
                if found.is_ok() {
                    found = fault(number, page);
                }
            })?;
            // DATA-1: bytes are checked against root and length before they are used.
            if committed.root() != *root {
                return Err(wrong(file));
            }
            // After the root, so that damage is told from a text that was packed wrongly.
            found.map(|()| committed)
        };
        let text = |file, root| {
            tokens::check_length(&path(file), data.file_bytes(file), &data.tokeniser)?;
            open(file, root, &mut |number, page| tokens::check(&path(file), number, page, &data.tokeniser))
        };
        let train = text(DataFile::Training, &data.root)?;
        let held_out = text(DataFile::HeldOut, &data.held_out_root)?;
        let whole = |file| match is_there(data, file) {
            true => read(place, file, data.file_bytes(file)),
            false => Ok(Vec::new()),
        };
        let tokeniser_file = whole(DataFile::Tokeniser)?;
        if !tokens::is_file(&tokeniser_file, &data.tokeniser) {
            return Err(wrong(DataFile::Tokeniser));
        }
        tokens::check_count(&path(DataFile::Tokeniser), &tokeniser_file, &data.tokeniser)?;
        let given = match &data.start {
            Start::Drawn => None,
            Start::Given(file) => Some(open(DataFile::Parameters, &file.root, &mut |number, page| {
                parameters::check(&path(DataFile::Parameters), number, page)
            })?),
        };
        let routing = match &data.router {
            None => None,
            Some(named) => Some(
                Routing::of(named, whole(DataFile::Router)?).ok_or_else(|| wrong(DataFile::Router))?,
            ),
        };
        let tokeniser = data.tokeniser.clone();
        Ok(Self { train, held_out, tokeniser, tokeniser_file, given, routing })
    }

    /// A corpus of byte tokens that was on no disk, for a run that draws its parameters: for simulations.
    pub fn of_bytes(train: Vec<u8>, held_out: Vec<u8>) -> Self {
        let (train, held_out) = (Committed::new(train), Committed::new(held_out));
        let (tokeniser, tokeniser_file) = (Tokeniser::Bytes, Vec::new());
        Self { train, held_out, tokeniser, tokeniser_file, given: None, routing: None }
    }

    /// The same corpus with another router.
    #[must_use]
    pub fn with_router(self, routing: Routing) -> Self {
        Self { routing: Some(routing), ..self }
    }

    /// What a manifest says of it.
    pub fn data(&self) -> Data {
        Data {
            root: self.train.root(),
            bytes: self.train.bytes(),
            held_out_root: self.held_out.root(),
            held_out_bytes: self.held_out.bytes(),
            tokeniser: self.tokeniser.clone(),
            start: match &self.given {
                None => Start::Drawn,
                Some(given) => {
                    Start::Given(CommittedFile { root: given.root(), bytes: given.bytes() })
                }
            },
            router: self.routing.as_ref().map(Routing::router),
        }
    }

    /// What gives windows their rows, where there are several.
    pub fn routing(&self) -> Option<&Routing> {
        self.routing.as_ref()
    }

    /// The parameters before the first round in the canonical layout, where they were given.
    ///
    /// # Errors
    /// As of [`Self::read`].
    pub fn given(&self) -> Result<Option<Vec<f32>>> {
        let read = |given: &Committed| given.read(0..given.bytes()).map(|bytes| reals(&bytes));
        self.given.as_ref().map(read).transpose()
    }

    /// The `sequence + 1` tokens of a window of the training text, from token `index·sequence` on. Beyond the end
    /// of the text, where no window of the manifest lies, tokens are 0.
    ///
    /// # Errors
    /// As of [`Self::read`].
    // DATA-2: the s + 1 tokens w·s ..= (w + 1)·s.
    pub fn window(&self, index: u64, sequence: u32) -> Result<Vec<u32>> {
        let first = index.saturating_mul(sequence.into());
        let mut window = self.tokens(&self.train, first..first.saturating_add(u64::from(sequence) + 1))?;
        window.resize(sequence as usize + 1, 0);
        Ok(window)
    }

    /// The row of a window of the training text among those that are open; none where no row is. Without a router,
    /// row 0 is the only one.
    ///
    /// # Errors
    /// As of [`Self::read`].
    pub fn row_of(&self, window: u64, sequence: u32, open: impl Fn(Row) -> bool) -> Result<Option<Row>> {
        // DATA-9: by the text before the window's first token, from the training text's start on.
        self.row_at(&self.train, window.saturating_mul(u64::from(sequence)), open)
    }

    fn row_at(&self, text: &Committed, place: u64, open: impl Fn(Row) -> bool) -> Result<Option<Row>> {
        let Some(routing) = &self.routing else { return Ok(open(Row(0)).then_some(Row(0))) };
        Ok(routing.row(&self.last(text, place, routing.tokens())?, open))
    }

    /// At most `most` tokens of the training text that end before this place.
    fn before(&self, place: u64, most: usize) -> Result<Vec<u32>> {
        self.last(&self.train, place, most)
    }

    fn last(&self, text: &Committed, place: u64, most: usize) -> Result<Vec<u32>> {
        let end = place.min(text.bytes() / tokens::size(&self.tokeniser) as u64);
        self.tokens(text, end.saturating_sub(most as u64)..end)
    }

    /// The tokens at these places of a text, as far as it goes.
    fn tokens(&self, text: &Committed, places: Range<u64>) -> Result<Vec<u32>> {
        let size = tokens::size(&self.tokeniser);
        let at = |place: u64| place.saturating_mul(size as u64);
        Ok(tokens::read(&text.read(at(places.start)..at(places.end))?, size).collect())
    }

    /// Training tokens.
    fn training_tokens(&self) -> u64 {
        self.train.bytes() / tokens::size(&self.tokeniser) as u64
    }

    /// At most `most` windows of `sequence + 1` tokens, spread evenly over the held-out text; where all are taken, each
    /// begins with the last token of the one before.
    ///
    /// # Errors
    /// As of [`Self::read`].
    pub fn held_out_windows(&self, sequence: u32, most: usize) -> Result<Vec<Vec<u32>>> {
        self.held_out_places(sequence, most).map(|place| self.held_out_window(place, sequence)).collect()
    }

    /// The same windows with their rows among those that are open, by the held-out text before each.
    ///
    /// # Errors
    /// As of [`Self::read`].
    pub fn routed_held_out_windows(
        &self,
        sequence: u32,
        most: usize,
        open: impl Fn(Row) -> bool,
    ) -> Result<Vec<RoutedWindow>> {
        let routed = |place| {
            let tokens = self.held_out_window(place, sequence)?;
            Ok(RoutedWindow { tokens, row: self.row_at(&self.held_out, place, &open)? })
        };
        self.held_out_places(sequence, most).map(routed).collect()
    }

    /// Where the windows of [`Self::held_out_windows`] begin, in tokens.
    fn held_out_places(&self, sequence: u32, most: usize) -> impl Iterator<Item = u64> {
        let (size, length) = (tokens::size(&self.tokeniser) as u64, u64::from(sequence.max(1)));
        let all = (self.held_out.bytes() / size).saturating_sub(1) / length;
        let taken = all.min(most as u64);
        (0..taken).map(move |index| index * all / taken * length)
    }

    fn held_out_window(&self, place: u64, sequence: u32) -> Result<Vec<u32>> {
        self.tokens(&self.held_out, place..place + u64::from(sequence.max(1)) + 1)
    }

    /// Chunks of [`DATA_CHUNK_BYTES`] from number `first` on: as many of `count` as there are, the last one of the
    /// file shorter. None of a file that the run does not have.
    ///
    /// # Errors
    /// As of [`Self::read`].
    pub fn chunks(&self, file: DataFile, first: u64, count: u32) -> Result<Vec<u8>> {
        let at = |chunk: u64| chunk.saturating_mul(DATA_CHUNK_BYTES as u64);
        self.read(file, at(first)..at(first.saturating_add(u64::from(count))))
    }

    /// That a chunk of the training text belongs to it; none when there is no such chunk. `upper` is [`Self::upper`].
    fn prove(&self, upper: &Tree, chunk: u64) -> Result<Option<Proof>> {
        self.train.prove(upper, chunk)
    }

    /// What proofs of all chunks of the training text have in common.
    fn upper(&self) -> Tree {
        self.train.upper()
    }

    /// The bytes of a range of a committed file, as far as it goes.
    ///
    /// # Errors
    /// [`crate::error::Kind::Corrupt`] where the file has changed since it was opened; what the system reports.
    pub fn read(&self, file: DataFile, range: Range<u64>) -> Result<Vec<u8>> {
        let committed = match file {
            DataFile::Training => Some(&self.train),
            DataFile::HeldOut => Some(&self.held_out),
            DataFile::Parameters => self.given.as_ref(),
            DataFile::Tokeniser | DataFile::Router => None,
        };
        if let Some(committed) = committed {
            return committed.read(range);
        }
        let whole = match file {
            DataFile::Tokeniser => &self.tokeniser_file,
            _ => self.routing.as_ref().map_or(&[][..], Routing::file),
        };
        let at = |place: u64| usize::try_from(place).unwrap_or(usize::MAX).min(whole.len());
        Ok(whole[at(range.start)..at(range.end).max(at(range.start))].to_vec())
    }
}

/// What is wrong with a page of a file, by its number.
type Fault<'a> = dyn FnMut(u64, &[u8]) -> Result<()> + 'a;

/// Reads the router that a manifest names from a corpus, and nothing else of it.
///
/// # Errors
/// [`crate::error::Kind::Corrupt`] naming the file that has another length or digest; [`crate::error::Kind::Missing`];
/// what the system reports.
pub fn open_router(directory: &Path, named: &Router) -> Result<Routing> {
    let path = directory.join(name(DataFile::Router));
    let place = Place { at: directory, named: directory };
    let file = read(place, DataFile::Router, named.bytes()).map_err(|error| error.advise(ROUTER_ADVICE))?;
    Routing::of(named, file).ok_or_else(|| {
        StoreError::corrupt(&path, "its bytes are not those that the run committed to", ROUTER_ADVICE)
    })
}

/// A file's name in a corpus.
fn name(file: DataFile) -> &'static str {
    match file {
        DataFile::Training => TRAIN,
        DataFile::HeldOut => HELD_OUT,
        DataFile::Tokeniser => TOKENISER,
        DataFile::Parameters => PARAMETERS,
        DataFile::Router => ROUTER,
    }
}

/// Most bytes of a file.
fn most(file: DataFile) -> u64 {
    match file {
        DataFile::Training | DataFile::HeldOut => DATA_BYTES,
        DataFile::Tokeniser => TOKENISER_BYTES.into(),
        DataFile::Parameters => PARAMETER_BYTES,
        DataFile::Router => router::file_bytes(ROWS),
    }
}

/// Whether a corpus has this file.
fn is_there(data: &Data, file: DataFile) -> bool {
    match file {
        DataFile::Training | DataFile::HeldOut => true,
        DataFile::Tokeniser => data.tokeniser != Tokeniser::Bytes,
        DataFile::Parameters => data.start != Start::Drawn,
        DataFile::Router => data.router.is_some(),
    }
}

/// A file of exactly this length, which a stranger may have said: it is compared before anything is read.
fn opened(place: Place<'_>, file: DataFile, length: u64) -> Result<File> {
    let path = place.named.join(name(file));
    // The manifest is a stranger's, too: what it says is bounded before the file is believed.
    bounded(&path, length, most(file))?;
    let open = regular::open(&place.at.join(name(file)), u64::MAX)?;
    let found = open.metadata().map_err(|error| StoreError::io(&path, &error))?.len();
    if found != length {
        let cause = format!("it has {found} bytes instead of {length}");
        return Err(StoreError::corrupt(&path, cause, ADVICE));
    }
    Ok(open)
}

/// All bytes of a file of exactly this length.
fn read(place: Place<'_>, file: DataFile, length: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(length.min(most(file)) as usize);
    let read = opened(place, file, length)?.take(length).read_to_end(&mut bytes);
    read.map_err(|error| StoreError::io(&place.named.join(name(file)), &error))?;
    Ok(bytes)
}

#[cfg(test)]
mod tests;
