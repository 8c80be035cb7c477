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
mod names;
mod pack;
mod parameters;
mod partial;
mod routing;
mod rows;
mod tokens;

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::panic::resume_unwind;
use std::path::Path;
use std::sync::Arc;

use muster_core::ids::{Digest, Row};
use muster_core::limits::DATA_CHUNK_BYTES;
use muster_core::manifest::{CommittedFile, Data, DataFile, Router, Start, Tokeniser};
use muster_core::merkle::{Proof, Tree};
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
pub use partial::{IsGood, Lack, Supply};
pub use routing::{ROUTER, Routing};
pub use rows::{RouterSize, row_shares};
pub use tokens::token_numbers;

use crate::error::{Kind, Result, StoreError};
use crate::patience::patiently;
use crate::regular;
use committed::{ADVICE, Committed, bounded};
pub use names::{TOKENISER, is_fetched};
use names::{is_there, most, name, outline_bytes, outline_name};
use partial::Partial;

/// Pages that are fetched at once for windows that are needed.
const AT_ONCE: usize = 4;
/// Most windows that are read together.
const FEW: u64 = 16;
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
        if !is_whole(directory, data)? {
            let cause = "has only a part of the text so far";
            let advice = "take part until it has all, or use data/ of the run's own folder";
            return Err(StoreError::new(Kind::Missing, directory, cause, advice));
        }
        Self::of(directory, data, &mut |file, root| {
            let (path, length) = (directory.join(name(file)), data.file_bytes(file));
            let (opened, mut found) = (opened(directory, file, length)?, Ok(()));
            let committed = Committed::open(&path, opened, length, &mut |number, page| {
                if found.is_ok() {
                    found = fault(file, &path, number, page, &data.tokeniser);
                }
            })?;
            // DATA-1: bytes are checked against root and length before they are used.
            if committed.root() != *root {
                return Err(wrong(&path));
            }
            // After the root, so that damage is told from a text that was packed wrongly.
            found.map(|()| committed)
        })
    }

    /// Opens a corpus that [`Assembly::finish`] has made, of which pages may still be lacking: `supply` gives them when they are
    /// read. Of the training text as many bytes are kept as there is `room`, of the other files all.
    ///
    /// # Errors
    /// As of [`Self::open`], for what is there.
    pub fn open_partial(directory: &Path, data: &Data, room: u64, supply: &Arc<dyn Supply>) -> Result<Self> {
        Self::of(directory, data, &mut |file, root| {
            let (path, length) = (directory.join(name(file)), data.file_bytes(file));
            // To be written to, too; who it is was looked at by its other opening.
            opened(directory, file, length)?;
            let open = patiently(|| File::options().read(true).write(true).open(&path));
            let open = open.map_err(|error| StoreError::io(&path, &error))?;
            let outlined = directory.join(outline_name(file));
            let nodes = regular::read(&outlined, outline_bytes(length))?;
            let outline = names::outline(&nodes, length).filter(|outline| outline.root() == *root);
            let outline = outline.ok_or_else(|| wrong(&outlined))?;
            let (pages, room) =
                (outline.pages().len() as u64, if file == DataFile::Training { room } else { u64::MAX });
            let map = directory.join(names::map(file));
            let (named, tokeniser) = (path.clone(), data.tokeniser.clone());
            let fault = Box::new(move |number, page: &[u8]| fault(file, &named, number, page, &tokeniser));
            let room = room / committed::PAGE_BYTES;
            let partial = Partial::open(&map, (file, fault), pages, room, supply.clone())?;
            Ok(Committed::partial(&path, open, length, outline, partial))
        })
    }

    /// A corpus whose texts and given parameters `open` opens, by their roots.
    fn of(
        directory: &Path,
        data: &Data,
        open: &mut dyn FnMut(DataFile, &Digest) -> Result<Committed>,
    ) -> Result<Self> {
        let path = |file| directory.join(name(file));
        let mut text = |file, root| {
            tokens::check_length(&path(file), data.file_bytes(file), &data.tokeniser)?;
            open(file, root)
        };
        let train = text(DataFile::Training, &data.root)?;
        let held_out = text(DataFile::HeldOut, &data.held_out_root)?;
        let whole = |file| match is_there(data, file) {
            true => read(directory, file, data.file_bytes(file)),
            false => Ok(Vec::new()),
        };
        let tokeniser_file = whole(DataFile::Tokeniser)?;
        if !tokens::is_file(&tokeniser_file, &data.tokeniser) {
            return Err(wrong(&path(DataFile::Tokeniser)));
        }
        tokens::check_count(&path(DataFile::Tokeniser), &tokeniser_file, &data.tokeniser)?;
        let given = match &data.start {
            Start::Drawn => None,
            Start::Given(file) => Some(open(DataFile::Parameters, &file.root)?),
        };
        let router = DataFile::Router;
        let routing = match &data.router {
            None => None,
            Some(named) => Some(Routing::of(named, whole(router)?).ok_or_else(|| wrong(&path(router)))?),
        };
        let tokeniser = data.tokeniser.clone();
        Ok(Self { train, held_out, tokeniser, tokeniser_file, given, routing })
    }

    /// Bytes that are on the disk, of those that a manifest commits to.
    pub fn held(&self) -> u64 {
        let routing = self.routing.as_ref().map_or(0, |routing| routing.file().len());
        let whole = (self.tokeniser_file.len() + routing) as u64;
        self.committed().map(Committed::held).fold(whole, u64::saturating_add)
    }

    /// Fetches 1 MiB that is still lacking: of the training text from a drawn byte on, then of the other files. Returns whether
    /// anything was lacking that may be kept.
    ///
    /// # Errors
    /// As of [`Self::read`].
    pub fn fetch_ahead(&self, drawn: u64) -> Result<bool> {
        for committed in self.committed() {
            if committed.fetch_ahead(drawn / committed::PAGE_BYTES)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Fetches what is still lacking of the parameters before the first round, 1 MiB at a time. Returns whether anything was.
    ///
    /// # Errors
    /// As of [`Self::read`].
    pub fn fetch_given(&self) -> Result<bool> {
        self.given.as_ref().map_or(Ok(false), |given| given.fetch_ahead(0))
    }

    fn committed(&self) -> impl Iterator<Item = &Committed> {
        [&self.train, &self.held_out].into_iter().chain(&self.given)
    }

    /// Windows as of [`Self::window`]. What they lack is fetched several pages at once.
    ///
    /// # Errors
    /// As of [`Self::read`].
    pub fn windows(&self, indices: &[u64], sequence: u32) -> Result<Vec<Vec<u32>>> {
        let mut windows = Vec::with_capacity(indices.len());
        // Few enough that what is fetched first is still in memory when it is read.
        let pages = self.window_bytes(0, sequence).end / committed::PAGE_BYTES + 2;
        let few = (committed::RECENT as u64 / pages).clamp(1, FEW);
        for some in indices.chunks(few as usize) {
            self.fetch_windows(some, sequence)?;
            for index in some {
                windows.push(self.window(*index, sequence)?);
            }
        }
        Ok(windows)
    }

    fn fetch_windows(&self, windows: &[u64], sequence: u32) -> Result<()> {
        let lacking = |window: &u64| self.train.lacking(self.window_bytes(*window, sequence));
        let pages = windows.iter().flat_map(lacking);
        let pages: Vec<u64> = pages.collect::<BTreeSet<u64>>().into_iter().collect();
        if pages.is_empty() {
            return Ok(());
        }
        let share = pages.len().div_ceil(AT_ONCE);
        std::thread::scope(|scope| {
            let fetch = |share: &[u64]| share.iter().try_for_each(|page| self.train.fetch(*page));
            let threads: Vec<_> =
                pages.chunks(share).map(|share| scope.spawn(move || fetch(share))).collect();
            threads
                .into_iter()
                .try_for_each(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)))
        })
    }

    /// Where a window's tokens are in the training text.
    fn window_bytes(&self, window: u64, sequence: u32) -> Range<u64> {
        let size = tokens::size(&self.tokeniser) as u64;
        let begin = window.saturating_mul(sequence.into()).saturating_mul(size);
        begin..begin.saturating_add((u64::from(sequence) + 1) * size)
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
                Some(given) => Start::Given(CommittedFile { root: given.root(), bytes: given.bytes() }),
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

    /// Chunks as of [`Self::chunks`], for somebody who asks for them: nothing where any of them is still lacking here.
    pub fn held_chunks(&self, file: DataFile, first: u64, count: u32) -> Option<Vec<u8>> {
        let at = |chunk: u64| chunk.saturating_mul(DATA_CHUNK_BYTES as u64);
        let range = at(first)..at(first.saturating_add(u64::from(count)));
        match self.outlined(file) {
            Some(committed) => committed.read_held(range),
            None => self.read(file, range).ok(),
        }
    }

    /// The same of a file's outline, 32 bytes for each page; empty for a file that has none.
    pub fn outline_chunks(&self, file: DataFile, first: u64, count: u32) -> Vec<u8> {
        self.outlined(file).map_or_else(Vec::new, |committed| committed.read_outline(first, count))
    }

    fn outlined(&self, file: DataFile) -> Option<&Committed> {
        match file {
            DataFile::Training => Some(&self.train),
            DataFile::HeldOut => Some(&self.held_out),
            DataFile::Parameters => self.given.as_ref(),
            DataFile::Tokeniser | DataFile::Router => None,
        }
    }

    /// The bytes of a range of a committed file, as far as it goes.
    ///
    /// # Errors
    /// [`crate::error::Kind::Corrupt`] where the file has changed since it was opened; [`crate::error::Kind::Missing`] where nobody
    /// gives what is lacking; what the system reports.
    pub fn read(&self, file: DataFile, range: Range<u64>) -> Result<Vec<u8>> {
        if let Some(committed) = self.outlined(file) {
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

/// What is wrong with a page of a text or of parameters, whatever was committed to.
fn fault(file: DataFile, path: &Path, number: u64, page: &[u8], tokeniser: &Tokeniser) -> Result<()> {
    match file {
        DataFile::Parameters => parameters::check(path, number, page),
        _ => tokens::check(path, number, page, tokeniser),
    }
}

/// Whether all of a corpus is in a directory. Without a map of what is there, it is.
///
/// # Errors
/// What the system reports.
fn is_whole(directory: &Path, data: &Data) -> Result<bool> {
    for file in [DataFile::Training, DataFile::HeldOut, DataFile::Parameters] {
        let path = directory.join(names::map(file));
        let marks = match regular::read(&path, data.file_bytes(file)) {
            Err(error) if error.kind() == Kind::Missing => continue,
            marks => marks?,
        };
        let there: u64 = marks.iter().map(|byte| u64::from(byte.count_ones())).sum();
        if there < data.file_bytes(file).div_ceil(committed::PAGE_BYTES) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Of a corpus that was committed to.
fn wrong(path: &Path) -> StoreError {
    StoreError::corrupt(path, "its bytes are not those that were committed to", ADVICE)
}

/// Reads the router that a manifest names from a corpus, and nothing else of it.
///
/// # Errors
/// [`crate::error::Kind::Corrupt`] naming the file that has another length or digest; [`crate::error::Kind::Missing`];
/// what the system reports.
pub fn open_router(directory: &Path, named: &Router) -> Result<Routing> {
    let path = directory.join(name(DataFile::Router));
    let file =
        read(directory, DataFile::Router, named.bytes()).map_err(|error| error.advise(ROUTER_ADVICE))?;
    Routing::of(named, file).ok_or_else(|| {
        StoreError::corrupt(&path, "its bytes are not those that the run committed to", ROUTER_ADVICE)
    })
}

/// A file of exactly this length, which a stranger may have said: it is compared before anything is read.
fn opened(directory: &Path, file: DataFile, length: u64) -> Result<File> {
    let path = directory.join(name(file));
    // The manifest is a stranger's, too: what it says is bounded before the file is believed.
    bounded(&path, length, most(file))?;
    let open = regular::open(&path, u64::MAX)?;
    let found = open.metadata().map_err(|error| StoreError::io(&path, &error))?.len();
    if found != length {
        let cause = format!("it has {found} bytes instead of {length}");
        return Err(StoreError::corrupt(&path, cause, ADVICE));
    }
    Ok(open)
}

/// All bytes of a file of exactly this length.
fn read(directory: &Path, file: DataFile, length: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(length.min(most(file)) as usize);
    let read = opened(directory, file, length)?.take(length).read_to_end(&mut bytes);
    read.map_err(|error| StoreError::io(&directory.join(name(file)), &error))?;
    Ok(bytes)
}

#[cfg(test)]
mod tests;
