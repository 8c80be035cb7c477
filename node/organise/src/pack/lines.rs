//! Files of JSON lines, of which a field is the text.

use std::io::{BufRead, Read};
use std::rc::Rc;
use std::sync::Arc;

use muster_replica::exit::{Failure, Outcome};
use muster_store::dataset::TextName;
use serde_json::{Map, Value};

use super::opened::{Opened, unread};
use super::piece::{Piece, ROW_BYTES, Reading};

/// A text for each line.
pub(super) struct JsonLines {
    name: Arc<str>,
    bytes: Box<dyn BufRead>,
    reading: Rc<Reading>,
    /// Lines that were read.
    line: u64,
    /// Rows that were read: lines that are not blank.
    rows: u64,
    over: bool,
}

impl JsonLines {
    pub(super) fn new(opened: Opened, reading: &Rc<Reading>) -> Self {
        let (name, reading) = (opened.name.clone(), Rc::clone(reading));
        Self { name, bytes: opened.bytes(), reading, line: 0, rows: 0, over: false }
    }

    fn piece(&mut self) -> Outcome<Option<Piece>> {
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
            let row = serde_json::from_slice(&line)
                .map_err(|error| self.wrong(&format!("is no JSON ({error})"), "mend it or leave it out"))?;
            match self.text(row)? {
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
    fn text(&self, row: Value) -> Outcome<Option<String>> {
        let column = &self.reading.column;
        let Value::Object(row) = row else {
            return Err(self.wrong("is no JSON object", "mend it or leave it out"));
        };
        match field(&row, column) {
            Some(Value::String(text)) => Ok(Some(text.clone())),
            Some(Value::Null) => Ok(None),
            None if self.rows > 1 => Ok(None),
            None => Err(self.wrong(&format!("has no field {column:?}"), &other(&row))),
            Some(other_kind) => {
                let what = format!("has {} in its field {column:?}", kind(other_kind));
                Err(self.wrong(&what, &other(&row)))
            }
        }
    }

    fn wrong(&self, what: &str, then: &str) -> Failure {
        Failure::usage(format!("{}, line {}: {what}; {then}", self.name, self.line))
    }
}

impl Iterator for JsonLines {
    type Item = Outcome<Piece>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.over {
            return None;
        }
        let piece = self.piece().transpose();
        self.over = !matches!(piece, Some(Ok(_)));
        piece
    }
}

/// A field of a row, or of an object in it: `doc.text`.
fn field<'a>(row: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    row.get(name).or_else(|| {
        let (outer, inner) = name.split_once('.')?;
        field(row.get(outer)?.as_object()?, inner)
    })
}

/// The way out: the fields that hold text.
fn other(row: &Map<String, Value>) -> String {
    let mut names = Vec::new();
    texts(row, "", &mut names);
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

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "nothing",
        Value::Bool(_) => "a truth value",
        Value::Number(_) => "a number",
        Value::String(_) => "text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
