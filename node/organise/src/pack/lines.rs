//! Files of JSON lines, of which a field is the text.

use std::io::{BufRead, Read};
use std::rc::Rc;
use std::sync::Arc;

use muster_replica::exit::{Failure, Outcome};
use muster_store::dataset::TextName;
use serde_json::{Map, Value};

use super::field::{Field, field};
use super::opened::{CONVERT, Opened, unread};
use super::piece::{Piece, ROW_BYTES, Reading};
use crate::python::words_null;

/// Bytes of a row whose fields are named.
const NAMED_BYTES: usize = 1 << 20;

/// A text for each line.
pub(super) struct JsonLines {
    name: Arc<str>,
    bytes: Box<dyn BufRead>,
    reading: Rc<Reading>,
    /// Lines that were read.
    line: u64,
    /// Rows that were read: lines that are not blank.
    rows: u64,
}

impl JsonLines {
    pub(super) fn new(opened: Opened, reading: &Rc<Reading>) -> Self {
        let (name, reading) = (opened.name.clone(), Rc::clone(reading));
        Self { name, bytes: opened.bytes(), reading, line: 0, rows: 0 }
    }

    /// The next text; none after the last one.
    pub(super) fn piece(&mut self) -> Outcome<Option<Piece>> {
        let mut line = Vec::new();
        loop {
            line.clear();
            let read = (&mut self.bytes).take(ROW_BYTES as u64 + 1).read_until(b'\n', &mut line);
            if read.map_err(|error| unread(&self.name, &error))? == 0 {
                return Ok(None);
            }
            self.line += 1;
            if line.len() > ROW_BYTES {
                return Err(self.wrong(&format!("is longer than {ROW_BYTES} bytes"), "leave it out"));
            }
            if line.trim_ascii().is_empty() {
                continue;
            }
            self.rows += 1;
            // Files that were put together have marks within.
            match self.text(line.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(&line))? {
                Some(text) if !text.is_empty() => {
                    let settled = self.reading.settled(text);
                    let text = settled.map_err(|what| self.wrong(&what, "mend it or leave it out"))?;
                    let name = TextName { source: self.name.clone(), row: Some(self.line) };
                    return Ok(Some(Piece { text, name, ends: true }));
                }
                // A row without text is no text: its end would follow the end of the one before.
                _ => self.reading.skip(),
            }
        }
    }

    /// The text of a row; none where it has none. The first row must have the field, so that a wrong name is found out.
    fn text(&self, line: &[u8]) -> Outcome<Option<String>> {
        let column = &self.reading.column;
        let broken = |what: &str| self.wrong(what, "mend it or leave it out");
        // Python writes floats that are no numbers, which no JSON has, and such a one where there is no text.
        let found = field(line, column).or_else(|error| {
            let again = field(&words_null(line), column);
            again.map_err(|_| match core::str::from_utf8(line) {
                Ok(_) => broken(&format!("is no JSON ({error})")),
                Err(_) => self.wrong("is not UTF-8 text", CONVERT),
            })
        })?;
        if !line.trim_ascii_start().starts_with(b"{") {
            let then = "mend it or leave it out (of a list: jq -c '.[]' FILE > rows.jsonl)";
            return Err(self.wrong("is no JSON object", then));
        }
        match found {
            Field::Text(text) => Ok(Some(text)),
            Field::Null => Ok(None),
            Field::Absent if self.rows > 1 => Ok(None),
            Field::Absent => Err(self.wrong(&format!("has no field {column:?}"), &other(line))),
            Field::Other(what) => {
                Err(self.wrong(&format!("has {what} in its field {column:?}"), &other(line)))
            }
        }
    }

    fn wrong(&self, what: &str, then: &str) -> Failure {
        Failure::usage(format!("{}, line {}: {what}; {then}", self.name, self.line))
    }
}

/// The way out: the fields that hold text.
fn other(line: &[u8]) -> String {
    if line.len() > NAMED_BYTES {
        return "name one of text with --column".into();
    }
    let mut names = Vec::new();
    if let Ok(row) = serde_json::from_slice(line) {
        texts(&row, "", &mut names);
    }
    if names.is_empty() {
        return "it has no field of text, and --format text packs the file as it is".into();
    }
    format!("name one of text with --column: {}", names.join(", "))
}

fn texts(row: &Map<String, Value>, before: &str, names: &mut Vec<String>) {
    for (name, value) in row {
        match value {
            Value::String(_) => names.push(format!("{before}{name}")),
            Value::Object(inner) => texts(inner, &format!("{before}{name}."), names),
            _ => {}
        }
    }
}
