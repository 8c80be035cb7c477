//! `muster data pack`: texts become a corpus with Merkle roots.

mod arrow;
mod field;
mod inputs;
mod lines;
mod mixture;
mod opened;
mod parquet;
mod piece;
mod plain;
mod quotes;
mod saved;
mod table;

use std::cell::Cell;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use muster_core::limits::DATA_BYTES;
use muster_core::manifest::{Data, DataFile};
use muster_replica::exit::{Failure, Outcome};
use muster_store::dataset::{
    self, Draft, JoinedTexts, Numbering, RouterSize, TextName, row_shares, unigram_bigram,
};
use muster_view::words::counted;

use self::inputs::{length_of_text, together};
use self::mixture::{Mixture, Share};
use self::opened::Input;
pub use self::piece::Format;
use self::piece::{Piece, Reading};
use super::tokenise::{END, EncodedPart, Ending, LoadedTokeniser, TextEncoder, Unknown, learn};

/// Tokens before a window that a router reads, unless somebody says otherwise.
pub const ROUTE_TOKENS: u16 = 64;
/// The field or column that holds the text, unless somebody says otherwise.
pub const COLUMN: &str = "text";
/// One of this many texts, or tokens of a single text, is held out when nothing is said about it.
const HELD_OUT_PART: u64 = 20;
/// Bytes that a corpus may have beyond where somebody wanted no more: texts come a piece at a time.
const SPARE: u64 = 32 << 20;
/// Bytes of text that a tokeniser is made from, nearly.
const LEARNT: u64 = 64 << 20;
/// One of this many tokens may stand for unknown text before somebody should know.
const LOST_PART: u64 = 1000;
/// Held-out tokens below which somebody should know that losses measured on them say little.
const FEW: u64 = 1024;

/// What to pack.
#[derive(Clone, Debug, Default)]
pub struct PackOptions {
    /// Files, pipes (`-` is standard input), folders of which every file is taken, in order of their paths, and folders that
    /// Python's `datasets` has saved.
    pub text: Vec<PathBuf>,
    /// The same for the held-out text. Without it, a saved dataset's own split for it is held out, else the last twentieth
    /// of the texts, or the last twentieth of a single text.
    pub held_out: Vec<PathBuf>,
    /// The field or column that holds the text, where a file has rows; without it, [`COLUMN`].
    pub column: Option<String>,
    /// What all files hold; without it, their names and beginnings say it.
    pub format: Option<Format>,
    /// The share of each path of `text` in the bytes that are packed, in whole parts; without any, all of each is packed.
    pub weights: Vec<u32>,
    /// Bytes of the corpus, beyond which no more is read.
    pub most: Option<u64>,
    /// The `tokenizer.json` whose numbers the corpus holds; without it, bytes.
    pub tokeniser: Option<PathBuf>,
    /// The numbers that a new tokeniser should have, which is made from the training text; with it, `tokeniser` is none.
    pub train_tokeniser: Option<u32>,
    /// The token that ends a text; without it, the files beside the tokeniser say it. An empty word: none does.
    pub end: Option<String>,
    /// Whether the tokeniser's control words in a text are control tokens. They are plain text otherwise.
    pub control_words: bool,
    /// The router for a mixture of several rows of experts.
    pub router: Option<RouterSize>,
    /// The new directory.
    pub out: PathBuf,
}

/// What was packed.
#[derive(Clone, Debug)]
pub struct PackedCorpus {
    /// What a manifest says of it.
    pub data: Data,
    /// What ends each text, where that is no zero byte.
    pub ending: Option<Ending>,
    /// What people should know of how it came about, a sentence each.
    pub remarks: Vec<String>,
    /// Loss on the held-out text of a unigram model of the training text, in nats per token; of long texts, of their first
    /// tokens.
    pub unigram: f64,
    /// The same of a bigram model.
    pub bigram: f64,
    /// The share of the windows that each row has; empty without a router.
    pub shares: Vec<f64>,
}

/// Packs. `progress` is told bytes read and bytes in all, or 0 where that is not known: of pipes.
///
/// # Errors
/// [`Failure`] naming what is missing, unreadable, no UTF-8, no tokeniser or no dataset, the tokeniser without an end of texts, or
/// the corpus whose text is too short for its rows.
pub fn pack(options: &PackOptions, progress: &mut dyn FnMut(u64, u64)) -> Outcome<PackedCorpus> {
    dataset::vacant(&options.out)?;
    let numbers = Numbers::of(options, progress)?;
    let reading = Rc::new(Reading::new(options.column.as_deref().unwrap_or(COLUMN), options.format));
    let mut sources = Sources::of(options, &reading)?;
    if numbers.is_none() && options.most.is_none() && options.weights.is_empty() {
        sources.check_length(&options.out)?;
    }
    let total = sources.total();
    let mut told = || {
        let done = reading.bytes.get();
        progress(done, total.map_or(0, |total| total.max(done)));
    };
    let numbering = numbers.as_ref().map(Numbers::numbering);
    let draft = Draft::new(&options.out)?;
    let mut join = |file, texts: &mut Mixture| {
        let joined = JoinedTexts::new(&draft, file, numbering.as_ref())?;
        Joining::new(options, numbers.as_ref(), joined).join(texts, &mut told)
    };
    let mut train = join(DataFile::Training, &mut sources.train)?;
    some_text(&train, "to train on", &options.text, &reading, 0)?;
    let skipped = reading.without.get();
    let held_out = match &mut sources.held_out {
        Some(held_out) => {
            let held_out = join(DataFile::HeldOut, held_out)?;
            some_text(&held_out, "to hold out", &options.held_out, &reading, skipped)?;
            held_out
        }
        None => train.hold_out(&draft, HELD_OUT_PART)?,
    };
    let data = dataset::pack_joined(train, held_out, draft, numbering.as_ref(), options.router)?;
    if let Some(ending) = numbers.as_ref().and_then(|numbers| numbers.ending.as_ref()) {
        ending.write(&options.out)?;
    }
    let corpus = dataset::Dataset::open(&options.out, &data)?;
    let (unigram, bigram) = unigram_bigram(&corpus)?;
    let mut remarks = remarks(options, &reading, &sources, &data);
    remarks.extend(numbers.as_ref().and_then(Numbers::lost));
    let ending = numbers.and_then(|numbers| numbers.ending);
    Ok(PackedCorpus { data, ending, remarks, unigram, bigram, shares: row_shares(&corpus)? })
}

/// Refuses texts of which nothing is left; `paths` are what somebody named for them, and `skipped` the rows without text of those
/// before.
fn some_text(
    joined: &JoinedTexts,
    what: &str,
    paths: &[PathBuf],
    reading: &Reading,
    skipped: u64,
) -> Outcome<()> {
    if !joined.is_empty() {
        return Ok(());
    }
    let paths = paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ");
    let (without, column) = (reading.without.get() - skipped, &reading.column);
    let rows = if without > 0 {
        format!("; {} without text in {column:?}, --column names another", counted(without, "row"))
    } else {
        String::new()
    };
    Err(Failure::environment(format!("{paths}: nothing {what}: all of it is empty{rows}; name more text")))
}

/// A tokeniser, and what ends texts in its numbers.
struct Numbers {
    tokeniser: LoadedTokeniser,
    ending: Option<Ending>,
    /// The token for what the tokeniser does not know; how many tokens there were, and how many of them were this one.
    unknown: Option<Unknown>,
    counts: Cell<[u64; 2]>,
}

impl Numbers {
    fn of(options: &PackOptions, progress: &mut dyn FnMut(u64, u64)) -> Outcome<Option<Self>> {
        let (tokeniser, end) = match (&options.tokeniser, options.train_tokeniser) {
            (None, None) => return Ok(None),
            (Some(path), _) => (LoadedTokeniser::open(path)?, options.end.as_deref()),
            (None, Some(tokens)) => {
                let file = learn(tokens, |give| learn_from(options, give, progress))?;
                (LoadedTokeniser::of(&options.out.join(dataset::TOKENISER), file)?, Some(END))
            }
        };
        let tokeniser = tokeniser.with_words_as_text(!options.control_words);
        let mut ending = Ending::of(&tokeniser, end)?;
        if options.tokeniser.is_none() {
            ending.iter_mut().for_each(|ending| ending.said_by = "--train-tokenizer".into());
        }
        let (unknown, counts) = (tokeniser.unknown(), Cell::default());
        Ok(Some(Self { tokeniser, ending, unknown, counts }))
    }

    fn count(&self, numbers: &[u32]) {
        let Some(unknown) = &self.unknown else { return };
        let [all, lost] = self.counts.get();
        let more = numbers.iter().filter(|number| **number == unknown.number).count();
        self.counts.set([all + numbers.len() as u64, lost + more as u64]);
    }

    /// What of the texts the tokeniser does not know, in a sentence, if that is much.
    fn lost(&self) -> Option<String> {
        let ([all, lost], Unknown { word, .. }) = (self.counts.get(), self.unknown.as_ref()?);
        (lost > 0 && lost >= all / LOST_PART).then(|| {
            format!(
                "warning: {:.1} % of the tokens are {word}, which stands for what the tokeniser does not know: that text is lost; \
                 use one that knows the language",
                100.0 * lost as f64 / all as f64
            )
        })
    }

    fn numbering(&self) -> Numbering<'_> {
        self.tokeniser.numbering(self.ending.as_ref().map(|ending| ending.number))
    }
}

/// Gives the training text, or pieces of it from the beginning to the end, to whoever makes a tokeniser of it.
fn learn_from(
    options: &PackOptions,
    give: &mut dyn FnMut(String) -> bool,
    progress: &mut dyn FnMut(u64, u64),
) -> Outcome<()> {
    let reading = Rc::new(Reading::new(options.column.as_deref().unwrap_or(COLUMN), options.format));
    let mut sources = Sources::of(options, &reading)?;
    let total = sources.total().ok_or_else(|| {
        let what = "a pipe can be read only once, and --train-tokenizer reads a text before it is packed";
        Failure::usage(format!("{what}; name a file"))
    })?;
    let mut given = 0;
    while let Some(piece) = sources.train.next() {
        let piece = piece.map_err(|fault| together(fault, sources.train.faults()))?;
        let read = reading.bytes.get();
        progress(read, total.max(read));
        // As large a part of what was read as of the whole.
        let wanted = u128::from(given) * u128::from(total) <= u128::from(read) * u128::from(LEARNT);
        if wanted {
            given += piece.text.len() as u64;
            if !give(piece.text) {
                break;
            }
        }
    }
    Ok(())
}

/// Where the texts come from.
struct Sources {
    train: Mixture,
    held_out: Option<Mixture>,
    /// The files and pipes of both.
    texts: Vec<Input>,
    kept: Vec<Input>,
}

impl Sources {
    fn of(options: &PackOptions, reading: &Rc<Reading>) -> Outcome<Self> {
        let (count, named) = (options.weights.len(), options.text.len());
        if ![0, named].contains(&count) {
            let what = format!("--weights has {} for {}", counted(count, "number"), counted(named, "path"));
            return Err(Failure::usage(format!("{what} of --text; give one for each, in the same order")));
        }
        let (mut shares, mut held_out, mut all) = (Vec::new(), Vec::new(), Vec::new());
        for (number, path) in options.text.iter().enumerate() {
            let (inputs, own) = inputs::inputs(path, &saved::TRAINED, reading)?;
            all.extend(inputs.clone());
            let weight = options.weights.get(number).copied();
            shares.push(Share::new(path, inputs, weight, reading));
            if options.held_out.is_empty() {
                held_out.extend(own);
            }
        }
        for path in &options.held_out {
            held_out.extend(inputs::inputs(path, &saved::HELD_OUT, reading)?.0);
        }
        let kept = held_out.clone();
        let share = |inputs| Share::new(Path::new("held out"), inputs, None, reading);
        let held_out = (!held_out.is_empty()).then(|| Mixture::new(vec![share(held_out)]));
        Ok(Self { train: Mixture::new(shares), held_out, texts: all, kept })
    }

    /// A file that is trained on and held out as well, if there is one.
    fn in_both(&self) -> Option<&Path> {
        let trained: BTreeSet<PathBuf> =
            self.texts.iter().filter_map(|input| fs::canonicalize(&input.path).ok()).collect();
        let is_trained =
            |input: &&Input| fs::canonicalize(&input.path).is_ok_and(|path| trained.contains(&path));
        self.kept.iter().find(is_trained).map(|input| input.path.as_path())
    }

    /// Bytes on the disk, where there is no pipe.
    fn total(&self) -> Option<u64> {
        self.texts.iter().chain(&self.kept).map(|input| input.bytes).sum()
    }

    /// Refuses at once what is too much: files that are texts take as many bytes as a corpus of bytes.
    fn check_length(&self, out: &Path) -> Outcome<()> {
        let bytes: u64 = self.texts.iter().filter_map(length_of_text).sum();
        if bytes > DATA_BYTES { Err(too_much(out, "the files have", bytes)) } else { Ok(()) }
    }
}

fn too_much(out: &Path, what: &str, bytes: u64) -> Failure {
    let out = out.display();
    Failure::usage(format!(
        "{out}: {what} {bytes} bytes, and a corpus may have {DATA_BYTES}; name less text, or pack only the first of it: --most 512 \
         (GiB)"
    ))
}

/// Texts that become tokens one after the other.
struct Joining<'a> {
    options: &'a PackOptions,
    numbers: Option<&'a Numbers>,
    encoder: Option<TextEncoder<'a, TextName>>,
    joined: JoinedTexts,
}

impl<'a> Joining<'a> {
    fn new(options: &'a PackOptions, numbers: Option<&'a Numbers>, joined: JoinedTexts) -> Self {
        let encoder = numbers.map(|numbers| TextEncoder::new(&numbers.tokeniser));
        Self { options, numbers, encoder, joined }
    }

    /// All of them, or as many as fit.
    fn join(mut self, texts: &mut Mixture, told: &mut dyn FnMut()) -> Outcome<JoinedTexts> {
        let most = self.options.most.map_or(DATA_BYTES + 1, |most| most.min(DATA_BYTES - SPARE));
        let mut open = None;
        while self.joined.len() < most
            && let Some(piece) = texts.next()
        {
            let piece = piece.map_err(|fault| together(fault, texts.faults()))?;
            told();
            open = (!piece.ends).then(|| piece.name.clone());
            self.push(piece)?;
        }
        // Where no more is read, the text in work ends.
        if let Some(name) = open {
            self.push(Piece { text: String::new(), name, ends: true })?;
        }
        if let Some(encoder) = &mut self.encoder {
            let rest = encoder.finish()?;
            rest.into_iter().try_for_each(|part| self.push_numbers(part))?;
        }
        let bytes = self.joined.len();
        if bytes > DATA_BYTES && self.options.most.is_none() {
            return Err(too_much(&self.options.out, "the text takes at least", bytes));
        }
        Ok(self.joined)
    }

    fn push(&mut self, piece: Piece) -> Outcome<()> {
        let Piece { text, name, ends } = piece;
        let Some(encoder) = &mut self.encoder else {
            self.joined.push_bytes(text.as_bytes())?;
            return self.end(name, ends);
        };
        let parts = encoder.push(&text, name, ends)?;
        parts.into_iter().try_for_each(|part| self.push_numbers(part))
    }

    fn push_numbers(&mut self, part: EncodedPart<TextName>) -> Outcome<()> {
        let EncodedPart { numbers, name, ends } = part;
        self.numbers.iter().for_each(|known| known.count(&numbers));
        let ending = self.numbers.and_then(|numbers| numbers.ending.as_ref());
        if let Some(ending) =
            ending.filter(|ending| !self.options.control_words && numbers.contains(&ending.number))
        {
            let (source, word) = (&name.source, &ending.word);
            return Err(Failure::usage(format!(
                "{source}: has the word {word:?}, which this tokeniser always takes for the end of a text; take it out, or say \
                 --control-words if it is meant so"
            )));
        }
        self.joined.push_numbers(&numbers, &name.source)?;
        self.end(name, ends)
    }

    /// Ends the text in work; one without anything is none.
    fn end(&mut self, name: TextName, ends: bool) -> Outcome<()> {
        if ends && !self.joined.is_at_start() {
            self.joined.end(name)?;
        }
        Ok(())
    }
}

/// What people should know of how a corpus came about.
fn remarks(options: &PackOptions, reading: &Reading, sources: &Sources, data: &Data) -> Vec<String> {
    let mut remarks = Vec::new();
    let mut noticed = |count: u64, noun: &str, what: &str| {
        if count > 0 {
            remarks.push(format!("{} {what}", counted(count, noun)));
        }
    };
    noticed(reading.hidden.get(), "hidden name", "left out: what begins with a dot is packed by naming it");
    let what = "left out: what is neither a file nor a folder is packed by naming it";
    noticed(reading.links.get(), "link", what);
    let what = "of HTML or XML packed with all tags; take the text out first, or say --format text if it is meant so";
    noticed(reading.markup.get(), "file", what);
    let column = &reading.column;
    noticed(reading.without.get(), "row", &format!("left out, without text in {column:?}"));
    noticed(
        reading.line_ends.get(),
        "piece",
        "of text had line ends of Windows or old Macs (CR LF, CR), which became LF",
    );
    let what = "in quotes looks like rows of the table, which a quote that nobody closed would join: see whether they are \
                texts; --format tsv-plain takes quotes of a table with tabs as text";
    noticed(reading.joined.get(), "field", what);
    if !options.weights.is_empty() {
        remarks.push(sources.train.account());
    }
    if let Some(path) = sources.in_both() {
        remarks.push(format!(
            "warning: {} is trained on and held out as well: losses on the held-out text then say nothing",
            path.display()
        ));
    }
    if let Some(wanted) = options.train_tokeniser.filter(|wanted| data.kinds() < *wanted) {
        remarks.push(format!(
            "the tokeniser has {} kinds of tokens and not {wanted}: no other pair occurs twice in this text; more text gives more",
            data.kinds()
        ));
    }
    let bytes = data.bytes + data.held_out_bytes;
    if options.most.is_some_and(|most| bytes >= most) {
        remarks.push(format!("no more was read: {bytes} bytes reach --most"));
    }
    let tokens = data.held_out_bytes / data.token_bytes();
    if tokens < FEW {
        let held_out = counted(tokens, "token");
        remarks.push(format!(
            "{held_out} held out: losses measured on so few say little; name more with --held-out"
        ));
    }
    remarks
}

#[cfg(test)]
mod tests;
