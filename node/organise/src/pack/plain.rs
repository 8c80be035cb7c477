//! Files that are texts.

use std::io::{BufRead, Read};
use std::rc::Rc;
use std::sync::Arc;

use muster_replica::exit::{Failure, Outcome};
use muster_store::dataset::TextName;
use serde::de::IgnoredAny;

use super::opened::{CONVERT, Opened, unread};
use super::piece::{Piece, Reading};
use super::table::{COMMON, separator};

/// Bytes that are read at once.
const PIECE: usize = 1 << 20;
/// Bytes of a column's name.
const COLUMN: usize = 64;

/// What pages of HTML and XML begin with.
const MARKUP: [&[u8]; 3] = [b"<!doctype ", b"<html", b"<?xml "];

/// One text, a piece at a time.
pub(super) struct PlainText {
    name: Arc<str>,
    bytes: Box<dyn BufRead>,
    reading: Rc<Reading>,
    /// What was read and not given: the beginning of a character, or of a line end.
    begun: Vec<u8>,
    /// Bytes that were given.
    given: u64,
    over: bool,
}

impl PlainText {
    /// A file that is a text, unless it looks like rows of which only one field is text. Where somebody says that it is a text,
    /// it is one.
    ///
    /// # Errors
    /// [`Failure`] that names the way to have the rows read.
    pub(super) fn new(opened: Opened, reading: &Rc<Reading>) -> Outcome<Self> {
        if reading.format.is_none()
            && let Some((what, then)) = rows(&opened.head, &reading.column)
        {
            let name = &opened.name;
            return Err(Failure::usage(format!(
                "{name}: {what}; {then}, or --format text to pack it as it is"
            )));
        }
        if reading.format.is_none() && is_markup(&opened.head) {
            reading.markup.set(reading.markup.get() + 1);
        }
        let (name, reading) = (opened.name.clone(), Rc::clone(reading));
        Ok(Self { name, bytes: opened.bytes(), reading, begun: Vec::new(), given: 0, over: false })
    }

    fn piece(&mut self) -> Outcome<Piece> {
        let mut bytes = std::mem::take(&mut self.begun);
        let before = bytes.len();
        let read = (&mut self.bytes).take(PIECE as u64).read_to_end(&mut bytes);
        read.map_err(|error| unread(&self.name, &error))?;
        self.over = bytes.len() - before < PIECE;
        let whole = match core::str::from_utf8(&bytes) {
            Ok(_) => bytes.len(),
            // A character whose other bytes come with the next piece.
            Err(error) if error.error_len().is_none() && !self.over => error.valid_up_to(),
            Err(error) => {
                let at = self.given + error.valid_up_to() as u64;
                let what = format!("is not UTF-8 text (byte {at})");
                return Err(Failure::environment(format!("{}: {what}; {CONVERT}", self.name)));
            }
        };
        let line = usize::from(!self.over && whole > 0 && bytes[whole - 1] == b'\r');
        self.begun = bytes.split_off(whole - line);
        let text = String::from_utf8(bytes).map_err(|error| unread(&self.name, &error))?;
        let length = text.len() as u64;
        let text = self.reading.settled(text).map_err(|what| {
            Failure::environment(format!("{}: {what}; leave it out or convert it", self.name))
        })?;
        self.given += length;
        Ok(Piece { text, name: TextName { source: self.name.clone(), row: None }, ends: self.over })
    }
}

impl Iterator for PlainText {
    type Item = Outcome<Piece>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.over {
            return None;
        }
        let piece = self.piece();
        self.over |= piece.is_err();
        Some(piece)
    }
}

/// Whether this is the beginning of rows: what they are, and how to have them read.
fn rows(head: &[u8], column: &str) -> Option<(&'static str, &'static str)> {
    if whole_object(head) {
        return Some(("looks like JSON lines", "say --format jsonl to pack a field of each"));
    }
    if is_json(head) {
        return Some(("looks like JSON", "make JSON lines of it (jq -c '.[]' FILE > rows.jsonl)"));
    }
    let by_commas = ("looks like a table", "say --format csv to pack a column of it");
    if separator(head).is_some() {
        return Some(by_commas);
    }
    let first = core::str::from_utf8(head.split(|byte| *byte == b'\n').next()?).ok()?;
    let table = |delimiter: char| {
        let mut names = first.split(delimiter).map(|name| name.trim().trim_matches('"'));
        let all = names.clone().all(|name| {
            name.len() <= COLUMN && name.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '.'))
        });
        all && first.contains(delimiter) && names.any(|name| name == column)
    };
    let delimiter =
        COMMON.iter().map(|delimiter| char::from(*delimiter)).find(|delimiter| table(*delimiter))?;
    let by_tabs = ("looks like a table", "say --format tsv to pack a column of it");
    Some(if delimiter == '\t' { by_tabs } else { by_commas })
}

/// Whether this is the beginning of a page of HTML, or of XML.
fn is_markup(head: &[u8]) -> bool {
    let text = head.trim_ascii_start();
    MARKUP.iter().any(|mark| text.get(..mark.len()).is_some_and(|first| first.eq_ignore_ascii_case(mark)))
}

/// Whether the first line that is not blank is a whole JSON object, or the beginning of one that is longer than what is there.
pub(super) fn whole_object(head: &[u8]) -> bool {
    let mut lines = head.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
    let Some(line) = lines.find(|line| !line.is_empty()) else { return false };
    if !is_json(line) || line[0] != b'{' {
        return false;
    }
    match serde_json::from_slice::<IgnoredAny>(line) {
        Ok(_) => true,
        Err(error) => error.is_eof() && !head.trim_ascii_start()[line.len()..].contains(&b'\n'),
    }
}

/// Whether this begins like a JSON object with a key, or a list of such.
fn is_json(head: &[u8]) -> bool {
    let text = head.trim_ascii_start();
    let Some(object) = after(after(text, b'[').unwrap_or(text), b'{') else { return false };
    let mut quoted = object.splitn(3, |byte| *byte == b'"');
    let (Some([]), Some(_), Some(rest)) = (quoted.next(), quoted.next(), quoted.next()) else { return false };
    rest.trim_ascii_start().starts_with(b":")
}

/// What follows this byte, if the text begins with it.
fn after(text: &[u8], byte: u8) -> Option<&[u8]> {
    text.strip_prefix(&[byte]).map(<[u8]>::trim_ascii_start)
}
