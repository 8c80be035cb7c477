//! Texts as they come from wherever they are.

use std::cell::Cell;
use std::iter;

use clap::ValueEnum;
use muster_replica::exit::Outcome;
use muster_store::dataset::TextName;
use muster_view::words::counted;

/// What files hold, where their names do not say it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Text as it is: each file is one.
    Text,
    /// A JSON object a line, of which a field is the text.
    Jsonl,
    /// A table with commas, whose first line names the columns.
    Csv,
    /// A table with tabs, whose first line names the columns.
    Tsv,
    /// The same, with quotes that are text like any other.
    TsvPlain,
}

/// Bytes of a row of a table, or of a line of JSON, that are read before it is refused.
pub(super) const ROW_BYTES: usize = 256 << 20;

/// A text, or a part of it.
pub(super) struct Piece {
    /// It follows the part before.
    pub(super) text: String,
    /// What the text is called.
    pub(super) name: TextName,
    /// Whether this piece ends it.
    pub(super) ends: bool,
}

/// Pieces in order.
pub(super) type Pieces = Box<dyn Iterator<Item = Outcome<Piece>>>;

/// The pieces that a reader gives until it has none or fails: what follows a fault is not looked at.
pub(super) fn until_fault(mut piece: impl FnMut() -> Outcome<Option<Piece>> + 'static) -> Pieces {
    let mut over = false;
    Box::new(iter::from_fn(move || {
        if over {
            return None;
        }
        let piece = piece().transpose();
        over = !matches!(piece, Some(Ok(_)));
        piece
    }))
}

/// How to read, and what was noticed.
pub(super) struct Reading {
    /// The field or column that holds the text.
    pub(super) column: String,
    /// What files hold, where somebody said so.
    pub(super) format: Option<Format>,
    /// Bytes that were read, as they lie on the disk.
    pub(super) bytes: Cell<u64>,
    /// Rows that had no text.
    pub(super) without: Cell<u64>,
    /// Texts that had line ends of Windows, and files of old Macs.
    pub(super) line_ends: Cell<u64>,
    /// Files and folders that were left out since they are hidden.
    pub(super) hidden: Cell<u64>,
    /// Links, and what else is neither a file nor a folder, that were left out.
    pub(super) links: Cell<u64>,
    /// Files of HTML or XML, of which the tags are packed as well.
    pub(super) markup: Cell<u64>,
    /// Fields in quotes whose lines look like rows.
    pub(super) joined: Cell<u64>,
}

impl Reading {
    pub(super) fn new(column: &str, format: Option<Format>) -> Self {
        let [bytes, without, line_ends, hidden, links, markup, joined] = [0; 7].map(Cell::new);
        Self { column: column.to_owned(), format, bytes, without, line_ends, hidden, links, markup, joined }
    }

    /// A text as it is packed: with line ends of one kind, so that people on all systems pack the same.
    ///
    /// # Errors
    /// What is wrong with it, in words: a zero byte ends a text of bytes.
    pub(super) fn settled(&self, text: String) -> Result<String, String> {
        if let Some(at) = text.find('\0') {
            return Err(format!("has a zero byte (after {}), which no text has", counted(at as u64, "byte")));
        }
        if !text.contains("\r\n") {
            return Ok(text);
        }
        self.line_ends.set(self.line_ends.get() + 1);
        Ok(text.replace("\r\n", "\n"))
    }

    /// Notices a row that has no text.
    pub(super) fn skip(&self) {
        self.without.set(self.without.get() + 1);
    }
}
