//! Tables with commas or tabs, of which a column is the text.

use std::cell::Cell;
use std::io::{self, Read};
use std::rc::Rc;
use std::sync::Arc;

use csv::{ErrorKind, Reader, ReaderBuilder, StringRecord};
use muster_replica::exit::{Failure, Outcome};
use muster_store::dataset::TextName;
use muster_view::words::counted;

use super::opened::{CONVERT, Opened};
use super::piece::{Piece, ROW_BYTES, Reading};
use super::quotes::{Quotes, Stray};

/// What a spreadsheet writes before the delimiter, in a line of its own before all others.
const SEPARATOR: &[u8] = b"sep=";

/// What tables are written with.
pub(super) const COMMON: &[u8] = b",;\t|";

/// How the fields of a table are told apart.
#[derive(Clone, Copy)]
pub(super) struct Dialect {
    /// One of them, whichever the column shows up with.
    pub(super) delimiters: &'static [u8],
    /// Whether a quote may hold delimiters and line ends. Otherwise it is text like any other.
    pub(super) quoting: bool,
}

impl Dialect {
    pub(super) const CSV: Self = Self { delimiters: COMMON, quoting: true };
    pub(super) const TSV: Self = Self { delimiters: b"\t", quoting: true };
    pub(super) const TSV_PLAIN: Self = Self { delimiters: b"\t", quoting: false };
}

/// A text for each row.
pub(super) struct Table {
    name: Arc<str>,
    rows: Reader<Box<dyn Read>>,
    /// Bytes that the row in work may still have.
    left: Rc<Cell<usize>>,
    reading: Rc<Reading>,
    /// Columns, and the place of the text's.
    columns: usize,
    column: usize,
    delimiter: u8,
    /// The row that was read last.
    row: u64,
    /// Lines before the first one that is read.
    before: u64,
}

impl Table {
    /// A table in this dialect, with the delimiter by which it has the column.
    ///
    /// # Errors
    /// [`Failure`] naming the columns that are there, where the wanted one is not.
    pub(super) fn new(mut opened: Opened, dialect: Dialect, reading: &Rc<Reading>) -> Outcome<Self> {
        let (name, reading) = (opened.name.clone(), Rc::clone(reading));
        let said = separator(&opened.head).filter(|_| dialect.delimiters.contains(&b';'));
        if let Some((_, length)) = said {
            opened.head.drain(..length);
        }
        let delimiters = said.map_or_else(|| dialect.delimiters.to_vec(), |(delimiter, _)| vec![delimiter]);
        let (delimiter, names) = columns(&opened.head, &delimiters, dialect, &reading.column)
            .map_err(|what| Failure::usage(format!("{name}: {what}")))?;
        let column = names.iter().position(|name| name.trim() == reading.column).unwrap_or_default();
        let (left, columns) = (Rc::new(Cell::new(ROW_BYTES)), names.len());
        let bounded = Bounded { source: opened.bytes(), left: Rc::clone(&left) };
        let all: Box<dyn Read> =
            if dialect.quoting { Box::new(Quotes::new(bounded, delimiter)) } else { Box::new(bounded) };
        let rows = builder(delimiter, dialect).from_reader(all);
        let before = u64::from(said.is_some());
        let mut table = Self { name, rows, left, reading, columns, column, delimiter, row: 0, before };
        if columns > 0 {
            table.record()?;
        }
        Ok(table)
    }

    /// The next row; none after the last one.
    fn record(&mut self) -> Outcome<Option<StringRecord>> {
        let mut record = StringRecord::new();
        self.left.set(ROW_BYTES);
        let line = self.rows.position().line();
        let read = self.rows.read_record(&mut record);
        let there = read.map_err(|error| self.unread(line, &error))?;
        if !there {
            return Ok(None);
        }
        self.row += 1;
        if record.len() != self.columns {
            let line = record.position().map_or(line, csv::Position::line);
            let fields = counted(record.len(), "field");
            let what = format!("has {fields}, and the first line has {}", self.columns);
            return Err(self.wrong(line, &what));
        }
        let joined = record.iter().filter(|field| looks_joined(field, self.delimiter, self.columns)).count();
        self.reading.joined.set(self.reading.joined.get() + joined as u64);
        Ok(Some(record))
    }

    /// The next text; none after the last one.
    pub(super) fn piece(&mut self) -> Outcome<Option<Piece>> {
        while let Some(record) = self.record()? {
            let text = record.get(self.column).unwrap_or_default();
            if text.is_empty() {
                self.reading.skip();
                continue;
            }
            let line = record.position().map_or(0, csv::Position::line);
            let text = self.reading.settled(text.to_owned()).map_err(|what| self.wrong(line, &what))?;
            let name = TextName { source: self.name.clone(), row: Some(self.row - 1) };
            return Ok(Some(Piece { text, name, ends: true }));
        }
        Ok(None)
    }

    fn unread(&self, line: u64, error: &csv::Error) -> Failure {
        let stray = match error.kind() {
            ErrorKind::Utf8 { pos, .. } => {
                let line = pos.as_ref().map_or(line, csv::Position::line) + self.before;
                let what = format!("is not UTF-8 text; {CONVERT}");
                return Failure::usage(format!("{}, line {line}: {what}", self.name));
            }
            ErrorKind::Io(error) => error.get_ref().and_then(|inner| inner.downcast_ref::<Stray>()),
            _ => None,
        };
        let Some(Stray { line, what }) = stray else {
            return self.wrong(line, &format!("cannot be read ({error})"));
        };
        let then = "double the quotes within it; where quotes are text like any other, in a table with tabs, say --format \
                    tsv-plain";
        Failure::usage(format!("{}, line {}: {what}; {then}", self.name, line + self.before))
    }

    fn wrong(&self, line: u64, what: &str) -> Failure {
        let then = "mend it, or pack the file as it is with --format text";
        Failure::usage(format!("{}, line {}: {what}; {then}", self.name, line + self.before))
    }
}

/// Whether the lines of a field look like rows: a quote that nobody closed joins the rows up to the next one. The first of
/// them is the rest of a row, and the last one may be the beginning of one.
fn looks_joined(field: &str, delimiter: u8, columns: usize) -> bool {
    let delimiters = |line: &str| line.bytes().filter(|byte| *byte == delimiter).count();
    let mut lines = field.lines().skip(1).map(delimiters).peekable();
    let mut rows = 0;
    while let Some(count) = lines.next() {
        let is_last = lines.peek().is_none();
        if count + 1 != columns && !(is_last && count > 0 && count < columns) {
            return false;
        }
        rows += 1;
    }
    // A column alone has no delimiters that could show it.
    rows > 0 && columns > 1
}

/// The delimiter that the first line of a spreadsheet's table says, and the length of that line.
pub(super) fn separator(head: &[u8]) -> Option<(u8, usize)> {
    let (delimiter, rest) = head.strip_prefix(SEPARATOR)?.split_first()?;
    let end = [&b"\r\n"[..], b"\n", b"\r"].into_iter().find(|end| rest.starts_with(end))?;
    Some((*delimiter, SEPARATOR.len() + 1 + end.len()))
}

/// The delimiter by which a table has a column, and the names of all its columns; none of an empty one.
///
/// # Errors
/// What is wrong with the first line, and the names that are there.
fn columns(
    head: &[u8],
    delimiters: &[u8],
    dialect: Dialect,
    column: &str,
) -> Result<(u8, StringRecord), String> {
    if head.trim_ascii().is_empty() {
        return Ok((b',', StringRecord::new()));
    }
    let all: Vec<(u8, StringRecord)> =
        delimiters.iter().map(|delimiter| (*delimiter, header(head, *delimiter, dialect))).collect();
    let places = |names: &StringRecord| names.iter().filter(|name| name.trim() == column).count();
    match all.iter().find(|(_, names)| places(names) > 0) {
        Some((_, names)) if places(names) > 1 => {
            Err(format!("has two columns {column:?}; rename one of them"))
        }
        Some(found) => Ok(found.clone()),
        None => {
            let names = all.iter().map(|(_, names)| names).max_by_key(|names| names.len());
            let names: Vec<&str> = names.into_iter().flatten().take(20).map(str::trim).collect();
            Err(format!(
                "has no column {column:?} in its first line; name one with --column ({}), or put a line with the names of the \
                 columns before it",
                names.join(", ")
            ))
        }
    }
}

fn builder(delimiter: u8, dialect: Dialect) -> ReaderBuilder {
    let mut builder = ReaderBuilder::new();
    builder.delimiter(delimiter).quoting(dialect.quoting).has_headers(false).flexible(true);
    builder
}

/// The names of the columns by this delimiter.
fn header(head: &[u8], delimiter: u8, dialect: Dialect) -> StringRecord {
    let mut names = StringRecord::new();
    let mut rows = builder(delimiter, dialect).from_reader(head);
    if rows.read_record(&mut names).is_err() {
        names.clear();
    }
    names
}

/// Ends with an error where a row is too long: a quote that is never closed would take all of a file into memory.
struct Bounded<R> {
    source: R,
    left: Rc<Cell<usize>>,
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.source.read(into)?;
        let left = self.left.get().checked_sub(read);
        self.left.set(left.ok_or_else(|| io::Error::other(format!("a row of more than {ROW_BYTES} bytes")))?);
        Ok(read)
    }
}
