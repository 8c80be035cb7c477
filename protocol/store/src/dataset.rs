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

use std::io::Read;
use std::path::Path;

use muster_core::ids::{Digest, Row};
use muster_core::limits::{DATA_CHUNK_BYTES, PARAMETER_BYTES, ROWS, TOKENISER_BYTES};
use muster_core::manifest::{CommittedFile, Data, DataFile, Router, Start, Tokeniser};
use muster_core::merkle::Proof;
use muster_core::router;
use muster_core::state::reals;

pub use assembly::Assembly;
pub use baselines::unigram_bigram;
pub use committed::PARAMETERS;
pub use ending::last_tokens;
pub use excerpt::{Excerpt, Pieces};
pub use joined::{JoinedTexts, Numbering, TextName};
pub use pack::{SourceText, described, pack, pack_joined, pack_routed, pack_tokens, vacant};
pub use parameters::{add_parameters, committed_parameters};
pub use routing::{ROUTER, Routing};
pub use rows::{RouterSize, row_shares};
pub use tokens::token_numbers;

use crate::error::{Result, StoreError};
use crate::regular;
use committed::{Committed, bounded};

/// Most bytes of a text of a corpus, which is held in memory.
pub const MOST_BYTES: u64 = 1 << 30;

const TRAIN: &str = "train.bin";
const HELD_OUT: &str = "held-out.bin";
const ABOUT: &str = "corpus.txt";
/// The tokeniser in a corpus of token numbers.
pub const TOKENISER: &str = "tokenizer.json";
const ADVICE: &str = "get the corpus again from where it was packed";
const ROUTER_ADVICE: &str =
    "copy router.bin from data/ of the run's folder, or of another member's directory";

/// A corpus in memory, equal to the one that a manifest commits to.
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
    /// Reads a corpus and checks every byte of it against the manifest.
    ///
    /// # Errors
    /// [`crate::error::Kind::Corrupt`] naming the file that has another length, root or digest;
    /// [`crate::error::Kind::Missing`]; [`crate::error::Kind::Refused`] for a file beyond its limit, and where the bytes
    /// are no tokens of the tokeniser, the tokeniser knows other numbers, or parameters are not finite; what the system reports.
    pub fn open(directory: &Path, data: &Data) -> Result<Self> {
        let mut files: Files = Default::default();
        for (file, bytes) in DataFile::ALL.into_iter().zip(&mut files) {
            if is_there(data, file) {
                *bytes = read(&directory.join(name(file)), data.file_bytes(file), most(file))?;
            }
        }
        Self::checked(directory, data, files, "its bytes are not those that were committed to", ADVICE)
    }

    /// Checks files, in the order of [`DataFile::ALL`], against a manifest. An error names the file in `directory`, with
    /// `cause` and `advice`.
    fn checked(directory: &Path, data: &Data, files: Files, cause: &str, advice: &str) -> Result<Self> {
        let [train, held_out, tokeniser_file, given, router] = files;
        let wrong = |file| StoreError::corrupt(&directory.join(name(file)), cause, advice);
        // DATA-1: fetched bytes are checked against root and length before they are used.
        let committed = |file, bytes: Vec<u8>, root: &Digest| {
            let committed = Committed::new(bytes);
            let fits =
                committed.bytes.len() as u64 == data.file_bytes(file) && committed.tree.root() == *root;
            if fits { Ok(committed) } else { Err(wrong(file)) }
        };
        let train = committed(DataFile::Training, train, &data.root)?;
        let held_out = committed(DataFile::HeldOut, held_out, &data.held_out_root)?;
        // After the roots, so that damage is told from a text that was packed wrongly.
        tokens::check(&directory.join(TRAIN), &train.bytes, &data.tokeniser)?;
        tokens::check(&directory.join(HELD_OUT), &held_out.bytes, &data.tokeniser)?;
        if !tokens::is_file(&tokeniser_file, &data.tokeniser) {
            return Err(wrong(DataFile::Tokeniser));
        }
        tokens::check_count(&directory.join(TOKENISER), &tokeniser_file, &data.tokeniser)?;
        let given = match &data.start {
            Start::Drawn => None,
            Start::Given(file) => Some(committed(DataFile::Parameters, given, &file.root)?),
        };
        if let Some(given) = &given {
            parameters::check(&directory.join(PARAMETERS), &given.bytes)?;
        }
        let routing = match &data.router {
            None => None,
            Some(named) => Some(Routing::of(named, router).ok_or_else(|| wrong(DataFile::Router))?),
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
            root: self.train.tree.root(),
            bytes: self.train.bytes.len() as u64,
            held_out_root: self.held_out.tree.root(),
            held_out_bytes: self.held_out.bytes.len() as u64,
            tokeniser: self.tokeniser.clone(),
            start: match &self.given {
                None => Start::Drawn,
                Some(given) => {
                    Start::Given(CommittedFile { root: given.tree.root(), bytes: given.bytes.len() as u64 })
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
    pub fn given(&self) -> Option<Vec<f32>> {
        self.given.as_ref().map(|given| reals(&given.bytes))
    }

    /// The `sequence + 1` tokens of a window of the training text, from token `index·sequence` on. Beyond the end
    /// of the text, where no window of the manifest lies, tokens are 0.
    // DATA-2: the s + 1 tokens w·s ..= (w + 1)·s.
    pub fn window(&self, index: u64, sequence: u32) -> Vec<u32> {
        let size = tokens::size(&self.tokeniser);
        let start = index.saturating_mul(u64::from(sequence)).saturating_mul(size as u64);
        let rest =
            usize::try_from(start).ok().and_then(|start| self.train.bytes.get(start..)).unwrap_or_default();
        tokens::read(rest, size).chain(core::iter::repeat(0)).take(sequence as usize + 1).collect()
    }

    /// The row of a window of the training text among those that are open; none where no row is. Without a router,
    /// row 0 is the only one.
    pub fn row_of(&self, window: u64, sequence: u32, open: impl Fn(Row) -> bool) -> Option<Row> {
        // DATA-9: by the text before the window's first token, from the training text's start on.
        let first = window.saturating_mul(u64::from(sequence));
        self.row_at(&self.train, usize::try_from(first).unwrap_or(usize::MAX), open)
    }

    fn row_at(&self, text: &Committed, place: usize, open: impl Fn(Row) -> bool) -> Option<Row> {
        let only = || open(Row(0)).then_some(Row(0));
        let Some(routing) = &self.routing else { return only() };
        routing.row(&self.last(text, place, routing.tokens()), open)
    }

    /// At most `most` tokens of the training text that end before this place.
    fn before(&self, place: usize, most: usize) -> Vec<u32> {
        self.last(&self.train, place, most)
    }

    fn last(&self, text: &Committed, place: usize, most: usize) -> Vec<u32> {
        let size = tokens::size(&self.tokeniser);
        let end = place.min(text.bytes.len() / size);
        let start = end.saturating_sub(most);
        tokens::read(&text.bytes[start * size..end * size], size).collect()
    }

    /// Training tokens.
    fn training_tokens(&self) -> usize {
        self.train.bytes.len() / tokens::size(&self.tokeniser)
    }

    /// At most `most` windows of `sequence + 1` tokens, spread evenly over the held-out text; where all are taken, each
    /// begins with the last token of the one before.
    pub fn held_out_windows(&self, sequence: u32, most: usize) -> Vec<Vec<u32>> {
        self.held_out_places(sequence, most).map(|place| self.held_out_window(place, sequence)).collect()
    }

    /// The same windows with their rows among those that are open, by the held-out text before each.
    pub fn routed_held_out_windows(
        &self,
        sequence: u32,
        most: usize,
        open: impl Fn(Row) -> bool,
    ) -> Vec<RoutedWindow> {
        let routed = |place| RoutedWindow {
            tokens: self.held_out_window(place, sequence),
            row: self.row_at(&self.held_out, place, &open),
        };
        self.held_out_places(sequence, most).map(routed).collect()
    }

    /// Where the windows of [`Self::held_out_windows`] begin, in tokens.
    fn held_out_places(&self, sequence: u32, most: usize) -> impl Iterator<Item = usize> {
        let (size, length) = (tokens::size(&self.tokeniser), sequence.max(1) as usize);
        let all = (self.held_out.bytes.len() / size).saturating_sub(1) / length;
        let taken = all.min(most);
        (0..taken).map(move |index| (index as u64 * all as u64 / taken as u64) as usize * length)
    }

    fn held_out_window(&self, place: usize, sequence: u32) -> Vec<u32> {
        let (size, length) = (tokens::size(&self.tokeniser), sequence.max(1) as usize);
        tokens::read(&self.held_out.bytes[place * size..(place + length + 1) * size], size).collect()
    }

    /// Chunks of [`DATA_CHUNK_BYTES`] from number `first` on: as many of `count` as there are, the last one of the
    /// file shorter. None of a file that the run does not have.
    pub fn chunks(&self, file: DataFile, first: u64, count: u32) -> &[u8] {
        let bytes = self.file(file);
        let at = |chunk: u64| {
            let offset = chunk.saturating_mul(DATA_CHUNK_BYTES as u64);
            usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len())
        };
        &bytes[at(first)..at(first.saturating_add(u64::from(count)))]
    }

    /// That a chunk belongs to its file; none when there is no such chunk, and for tokeniser and router, which
    /// have no root.
    pub fn proof(&self, file: DataFile, chunk: u64) -> Option<Proof> {
        let committed = match file {
            DataFile::Training => &self.train,
            DataFile::HeldOut => &self.held_out,
            DataFile::Tokeniser | DataFile::Router => return None,
            DataFile::Parameters => self.given.as_ref()?,
        };
        committed.tree.prove(chunk)
    }

    /// The tokens of the training text, and of the held-out one.
    fn tokens(&self) -> [impl Iterator<Item = u32> + Clone; 2] {
        [&self.train, &self.held_out].map(|text| tokens::read(&text.bytes, tokens::size(&self.tokeniser)))
    }

    /// The training bytes.
    pub fn train(&self) -> &[u8] {
        &self.train.bytes
    }

    /// The held-out bytes.
    pub fn held_out(&self) -> &[u8] {
        &self.held_out.bytes
    }

    fn file(&self, file: DataFile) -> &[u8] {
        match file {
            DataFile::Training => &self.train.bytes,
            DataFile::HeldOut => &self.held_out.bytes,
            DataFile::Tokeniser => &self.tokeniser_file,
            DataFile::Parameters => self.given.as_ref().map_or(&[], |given| &given.bytes),
            DataFile::Router => self.routing.as_ref().map_or(&[], Routing::file),
        }
    }
}

/// Reads the router that a manifest names from a corpus, and nothing else of it.
///
/// # Errors
/// [`crate::error::Kind::Corrupt`] naming the file that has another length or digest; [`crate::error::Kind::Missing`];
/// what the system reports.
pub fn open_router(directory: &Path, named: &Router) -> Result<Routing> {
    let path = directory.join(name(DataFile::Router));
    let advise = |error: StoreError| error.advise(ROUTER_ADVICE);
    let file = read(&path, named.bytes(), most(DataFile::Router)).map_err(advise)?;
    Routing::of(named, file).ok_or_else(|| {
        StoreError::corrupt(&path, "its bytes are not those that the run committed to", ROUTER_ADVICE)
    })
}

/// Bytes of the committed files, in the order of [`DataFile::ALL`]; empty where the run has none.
type Files = [Vec<u8>; DataFile::ALL.len()];

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
        DataFile::Training | DataFile::HeldOut => MOST_BYTES,
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

/// A file of exactly this length, which a stranger may have said: it is compared before memory is taken.
fn read(path: &Path, length: u64, most: u64) -> Result<Vec<u8>> {
    let failed = |error| StoreError::io(path, &error);
    // The manifest is a stranger's, too: what it says is bounded before the file is believed.
    bounded(path, length, most)?;
    let file = regular::open(path, u64::MAX)?;
    let found = file.metadata().map_err(failed)?.len();
    if found != length {
        let cause = format!("it has {found} bytes instead of {length}");
        return Err(StoreError::corrupt(path, cause, ADVICE));
    }
    let mut bytes = Vec::with_capacity(length as usize);
    file.take(length).read_to_end(&mut bytes).map_err(failed)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests;
