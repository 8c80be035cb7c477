//! Tables with commas or tabs, of which a column is the text.

use std::cell::Cell;
use std::io::{self, Cursor, Read};
use std::rc::Rc;
use std::sync::Arc;

use csv::{Reader, ReaderBuilder, StringRecord};
use muster_replica::exit::{Failure, Outcome};
use muster_store::dataset::TextName;

use super::opened::Opened;
use super::piece::{Piece, ROW_BYTES, Reading};

/// A row behind the last one: if a quote is never closed, it is within that quote and no row.
const LAST: &str = "\u{1}muster\u{1}";

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
    /// The row that was read last.
    row: u64,
}

impl Table {
    /// A table with one of these delimiters: the one by which it has the column.
    ///
    /// # Errors
    /// [`Failure`] naming the columns that are there, where the wanted one is not.
    pub(super) fn new(opened: Opened, delimiters: &[u8], reading: &Rc<Reading>) -> Outcome<Self> {
        let (name, reading) = (opened.name.clone(), Rc::clone(reading));
        let names: Vec<StringRecord> =
            delimiters.iter().map(|delimiter| header(&opened.head, *delimiter)).collect();
        let wanted = |names: &StringRecord| names.iter().any(|name| name == reading.column);
        let chosen = names.iter().position(wanted);
        let (delimiter, names) = match chosen {
            Some(chosen) => (delimiters[chosen], &names[chosen]),
            // An empty table has no rows.
            None if opened.head.trim_ascii().is_empty() => (b',', &names[0]),
            None => {
                let names = names.iter().max_by_key(|names| names.len());
                let names: Vec<&str> = names.into_iter().flatten().take(20).collect();
                let (column, names) = (&reading.column, names.join(", "));
                return Err(Failure::usage(format!(
                    "{name}: has no column {column:?} in its first line; name one with --column ({names}), or put a line with the \
                     names of the columns before it"
                )));
            }
        };
        let mut places = names.iter().enumerate().filter(|(_, name)| *name == reading.column);
        let column = places.next().map_or(0, |(place, _)| place);
        if places.next().is_some() {
            let column = &reading.column;
            return Err(Failure::usage(format!("{name}: has two columns {column:?}; rename one of them")));
        }
        let left = Rc::new(Cell::new(ROW_BYTES));
        let columns = names.len();
        let last = Cursor::new(format!("\n{LAST}\n"));
        let bounded = Bounded { source: opened.bytes(), left: Rc::clone(&left) };
        let all: Box<dyn Read> = Box::new(bounded.chain(last));
        let rows = builder(delimiter).from_reader(all);
        let mut table = Self { name, rows, left, reading, columns, column, row: 0 };
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
        let there = read.map_err(|error| self.wrong(line, &format!("cannot be read ({error})")))?;
        if !there {
            return Err(self.wrong(line, "has a quote that is never closed"));
        }
        self.row += 1;
        if record.len() == 1 && record.get(0) == Some(LAST) {
            return Ok(None);
        }
        if record.len() != self.columns {
            let line = record.position().map_or(line, csv::Position::line);
            let what = format!("has {} fields, and the first line has {}", record.len(), self.columns);
            return Err(self.wrong(line, &what));
        }
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

    fn wrong(&self, line: u64, what: &str) -> Failure {
        let then = "mend it, or pack the file as it is with --format text";
        Failure::usage(format!("{}, line {line}: {what}; {then}", self.name))
    }
}

fn builder(delimiter: u8) -> ReaderBuilder {
    let mut builder = ReaderBuilder::new();
    builder.delimiter(delimiter).has_headers(false).flexible(true);
    builder
}

/// The names of the columns by this delimiter.
fn header(head: &[u8], delimiter: u8) -> StringRecord {
    let mut names = StringRecord::new();
    let mut rows = builder(delimiter).from_reader(head);
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
