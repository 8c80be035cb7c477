//! Which files are packed, in which order, and what each of them holds.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::fs::{self, FileType};
use std::path::Path;
use std::rc::Rc;

use muster_replica::exit::{Failure, Outcome};

use super::arrow::ArrowRows;
use super::lines::JsonLines;
use super::opened::{Input, Opened, unread};
use super::parquet::ParquetRows;
use super::piece::{Format, Piece, Pieces, Reading, until_fault};
use super::plain::{self, PlainText};
use super::saved;
use super::table::{Dialect, Table};

/// Faults of files that are told at once.
const TOLD: usize = 20;
/// How names of compressed files end. Whether they are is seen in their beginnings.
const COMPRESSED: [&str; 3] = [".gz", ".zst", ".zstd"];

/// Bytes of an input's text, where that is a file as it is.
pub(super) fn length_of_text(input: &Input) -> Option<u64> {
    let plain = named(&input.path) == Kind::Plain
        && !COMPRESSED.iter().any(|end| file_name(&input.path).ends_with(end));
    input.bytes.filter(|_| plain)
}

/// What a file holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Plain,
    /// JSON lines, or else no rows that can be read one by one.
    Json,
    Jsonl,
    Csv,
    Tsv,
    TsvPlain,
    Arrow,
    Parquet,
}

impl From<Format> for Kind {
    fn from(format: Format) -> Self {
        match format {
            Format::Text => Self::Plain,
            Format::Jsonl => Self::Jsonl,
            Format::Csv => Self::Csv,
            Format::Tsv => Self::Tsv,
            Format::TsvPlain => Self::TsvPlain,
        }
    }
}

/// What a file holds by its name.
fn named(path: &Path) -> Kind {
    let name = file_name(path);
    let compressed = COMPRESSED.iter().find_map(|end| name.strip_suffix(end));
    match Path::new(compressed.unwrap_or(&name)).extension().and_then(OsStr::to_str) {
        Some("jsonl" | "ndjson" | "jsonlines") => Kind::Jsonl,
        Some("json") => Kind::Json,
        Some("csv") => Kind::Csv,
        Some("tsv" | "tab") => Kind::Tsv,
        Some("arrow") => Kind::Arrow,
        Some("parquet") => Kind::Parquet,
        _ => Kind::Plain,
    }
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().to_lowercase()
}

/// The inputs below a path that somebody named: a file or pipe, a folder, or a dataset that is one. Of a dataset with several
/// splits, one of these is taken, and those to hold out are returned apart.
///
/// # Errors
/// [`Failure`] naming what cannot be read, and the folder without files.
pub(super) fn inputs(path: &Path, splits: &[&str], reading: &Reading) -> Outcome<(Vec<Input>, Vec<Input>)> {
    let (mut found, mut held_out) = (Vec::new(), Vec::new());
    if saved::is_dataset(path) {
        let (files, own) = saved::files(path, splits)?;
        for (files, into) in [(files, &mut found), (own, &mut held_out)] {
            for file in files {
                into.push(Input { bytes: Some(length(&file)?), path: file });
            }
        }
        return Ok((found, held_out));
    }
    if path == Path::new("-") {
        return Ok((vec![Input { path: path.to_owned(), bytes: None }], held_out));
    }
    let about = fs::metadata(path).map_err(|error| unread(&path.display().to_string(), &error))?;
    if !about.is_dir() {
        let bytes = (!is_pipe(about.file_type())).then_some(about.len());
        return Ok((vec![Input { path: path.to_owned(), bytes }], held_out));
    }
    walk(path, reading, &mut found)?;
    if found.is_empty() {
        let what = "has no files to pack; hidden ones and links are left out";
        return Err(Failure::usage(format!("{}: {what}, name them to pack them", path.display())));
    }
    Ok((found, held_out))
}

fn is_pipe(found: FileType) -> bool {
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt;
        found.is_fifo()
    }
    #[cfg(not(unix))]
    {
        let _ = found;
        false
    }
}

fn length(path: &Path) -> Outcome<u64> {
    let about = fs::metadata(path).map_err(|error| unread(&path.display().to_string(), &error))?;
    Ok(about.len())
}

fn walk(folder: &Path, reading: &Reading, found: &mut Vec<Input>) -> Outcome<()> {
    let failed = |error: std::io::Error| unread(&folder.display().to_string(), &error);
    let entries: Result<Vec<_>, _> = fs::read_dir(folder).map_err(failed)?.collect();
    let mut entries = entries.map_err(failed)?;
    // The system gives them in any order, and two people should pack the same corpus.
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        // A link could lead in a circle; what it names is packed by naming it.
        let kind = entry.file_type().map_err(failed)?;
        if entry.file_name().as_encoded_bytes().starts_with(b".") {
            reading.hidden.set(reading.hidden.get() + 1);
        } else if kind.is_dir() && saved::is_dataset(&entry.path()) {
            let (files, _) = saved::files(&entry.path(), &saved::TRAINED)?;
            for file in files {
                found.push(Input { bytes: Some(length(&file)?), path: file });
            }
        } else if kind.is_dir() {
            walk(&entry.path(), reading, found)?;
        } else if kind.is_file() {
            found.push(Input { bytes: Some(length(&entry.path())?), path: entry.path() });
        } else {
            reading.links.set(reading.links.get() + 1);
        }
    }
    Ok(())
}

/// The texts of an input.
///
/// # Errors
/// [`Failure`] naming what is no text, and the way to have it read.
fn texts(input: &Input, reading: &Rc<Reading>) -> Outcome<Pieces> {
    let kind = reading.format.map_or_else(|| named(&input.path), Kind::from);
    let rows = |mut lines: JsonLines| until_fault(move || lines.piece());
    let table = |mut table: Table| until_fault(move || table.piece());
    // The first two are read at several places, which a pipe does not let, and compress their parts by themselves.
    Ok(match kind {
        Kind::Arrow => {
            let mut rows = ArrowRows::open(&input.path, reading)?;
            until_fault(move || rows.piece())
        }
        Kind::Parquet => {
            let mut rows = ParquetRows::open(&input.path, reading)?;
            until_fault(move || rows.piece())
        }
        Kind::Jsonl => rows(JsonLines::new(Opened::new(input, reading)?, reading)),
        Kind::Csv => table(Table::new(Opened::new(input, reading)?, Dialect::CSV, reading)?),
        Kind::Tsv => table(Table::new(Opened::new(input, reading)?, Dialect::TSV, reading)?),
        Kind::TsvPlain => table(Table::new(Opened::new(input, reading)?, Dialect::TSV_PLAIN, reading)?),
        Kind::Json | Kind::Plain => {
            let opened = Opened::new(input, reading)?;
            if kind == Kind::Json && plain::whole_object(&opened.head) {
                rows(JsonLines::new(opened, reading))
            } else {
                Box::new(PlainText::new(opened, reading)?)
            }
        }
    })
}

/// The texts of inputs that follow each other, each of which is opened when its turn comes.
pub(super) struct Texts {
    inputs: VecDeque<Input>,
    current: Option<Pieces>,
    reading: Rc<Reading>,
}

impl Texts {
    pub(super) fn new(inputs: Vec<Input>, reading: &Rc<Reading>) -> Self {
        Self { inputs: inputs.into(), current: None, reading: Rc::clone(reading) }
    }

    fn piece(&mut self) -> Outcome<Option<Piece>> {
        loop {
            if let Some(pieces) = &mut self.current {
                match pieces.next() {
                    Some(piece) => return piece.map(Some),
                    None => self.current = None,
                }
            }
            let Some(input) = self.inputs.pop_front() else { return Ok(None) };
            self.current = Some(texts(&input, &self.reading)?);
        }
    }

    /// What is wrong with the inputs whose turn has not come, as far as their beginnings tell it.
    pub(super) fn faults(&mut self) -> Vec<Failure> {
        let inputs = std::mem::take(&mut self.inputs).into_iter().filter(|input| !input.is_pipe());
        let begun = |input: Input| {
            texts(&input, &self.reading).and_then(|mut pieces| pieces.next().transpose()).err()
        };
        inputs.filter_map(begun).collect()
    }
}

impl Iterator for Texts {
    type Item = Outcome<Piece>;

    fn next(&mut self) -> Option<Self::Item> {
        self.piece().transpose()
    }
}

/// All faults as one, so that nobody mends files one by one.
pub(super) fn together(first: Failure, others: Vec<Failure>) -> Failure {
    if others.is_empty() {
        return first;
    }
    let count = others.len() + 1;
    let exit = first.exit;
    let told = std::iter::once(first).chain(others).take(TOLD).map(|fault| format!("\n  {}", fault.message));
    let more = if count > TOLD { format!("\n  and {} more", count - TOLD) } else { String::new() };
    let message = format!("{count} files cannot be packed:{}{more}", told.collect::<String>());
    Failure { exit, message }
}
