//! Arrow files, of which a column is the text.

use std::fmt::Display;
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, RecordBatch, StringArray, StructArray};
use arrow_buffer::Buffer;
use arrow_ipc::reader::StreamDecoder;
use muster_replica::exit::{Failure, Outcome};
use muster_store::dataset::TextName;
use muster_store::regular;

use super::opened::{check_unwrapped, unread};
use super::piece::{Piece, Reading};

/// Bytes that are read at once.
const PIECE: u64 = 4 << 20;

/// A text for each row, of which a batch is in memory at a time.
pub(super) struct ArrowRows {
    stream: Stream,
    reading: Rc<Reading>,
    batch: Texts,
    row: u64,
}

/// The texts of a batch that were not taken yet. They are copied one by one: a thousand of them may be the same bytes of a file.
struct Texts {
    column: ArrayRef,
    rows: Range<usize>,
}

impl ArrowRows {
    /// Opens an Arrow stream.
    ///
    /// # Errors
    /// [`Failure`] naming the file that is none.
    pub(super) fn open(path: &Path, reading: &Rc<Reading>) -> Outcome<Self> {
        let stream = Stream::open(path, reading)?;
        let none = Texts { column: Arc::new(StringArray::new_null(0)), rows: 0..0 };
        Ok(Self { stream, reading: Rc::clone(reading), batch: none, row: 0 })
    }

    /// The next text; none after the last one.
    pub(super) fn piece(&mut self) -> Outcome<Option<Piece>> {
        loop {
            let Some(text) = self.batch.next() else {
                let Some(batch) = self.stream.next()? else { return Ok(None) };
                self.batch = self.stream.texts(&batch, &self.reading.column)?;
                continue;
            };
            self.row += 1;
            // A row without text is no text: its end would follow the end of the one before.
            if text.is_empty() {
                self.reading.skip();
                continue;
            }
            let name = &self.stream.name;
            let wrong = |what| {
                Failure::environment(format!("{name}, row {}: {what}; mend it or leave it out", self.row))
            };
            let text = self.reading.settled(text).map_err(wrong)?;
            let name = TextName { source: name.clone(), row: Some(self.row) };
            return Ok(Some(Piece { text, name, ends: true }));
        }
    }
}

/// A file of batches of rows.
struct Stream {
    name: Arc<str>,
    file: File,
    /// What was read and not decoded.
    bytes: Buffer,
    decoder: StreamDecoder,
    reading: Rc<Reading>,
}

impl Stream {
    fn open(path: &Path, reading: &Rc<Reading>) -> Outcome<Self> {
        let name: Arc<str> = path.display().to_string().into();
        let file = regular::open(path, u64::MAX).map_err(|error| unread(&name, &error.cause()))?;
        check_unwrapped(path, &file)?;
        let (bytes, decoder) = (Buffer::from_vec(Vec::<u8>::new()), StreamDecoder::new());
        Ok(Self { name, file, bytes, decoder, reading: Rc::clone(reading) })
    }

    fn next(&mut self) -> Outcome<Option<RecordBatch>> {
        loop {
            if self.bytes.is_empty() {
                let mut piece = Vec::new();
                let read = (&self.file).take(PIECE).read_to_end(&mut piece);
                read.map_err(|error| unread(&self.name, &error))?;
                if piece.is_empty() {
                    return self.decoder.finish().map(|()| None).map_err(|error| self.damaged(&error));
                }
                self.reading.bytes.set(self.reading.bytes.get() + piece.len() as u64);
                self.bytes = Buffer::from_vec(piece);
            }
            // What a damaged file says of its own lengths is waited for, never allocated; where it lies about those within a
            // batch, the decoder panics.
            let decoded = catch_unwind(AssertUnwindSafe(|| self.decoder.decode(&mut self.bytes)));
            match decoded {
                Ok(Ok(None)) => {}
                Ok(Ok(batch)) => return Ok(batch),
                Ok(Err(error)) => return Err(self.damaged(&error)),
                Err(_) => return Err(self.damaged(&"its lengths contradict each other")),
            }
        }
    }

    fn damaged(&self, error: &dyn Display) -> Failure {
        let name = &self.name;
        Failure::environment(format!(
            "{name}: is no Arrow stream, or damaged ({error}); save the dataset again"
        ))
    }

    /// The texts of a batch.
    fn texts(&self, batch: &RecordBatch, column: &str) -> Outcome<Texts> {
        let schema = batch.schema();
        let wrong = |what: &str| {
            let columns: Vec<String> = schema
                .fields()
                .iter()
                .map(|field| format!("{} ({})", field.name(), field.data_type()))
                .collect();
            let (file, columns) = (&self.name, columns.join(", "));
            Failure::usage(format!("{file}: {what} {column:?}; name one of text with --column: {columns}"))
        };
        let all = StructArray::from(batch.clone());
        let column = inner(&all, column).ok_or_else(|| wrong("has no column"))?;
        let is_short = column.as_string_opt::<i32>().is_some();
        let is_text =
            is_short || column.as_string_opt::<i64>().is_some() || column.as_string_view_opt().is_some();
        let rows = 0..column.len();
        is_text.then_some(Texts { column, rows }).ok_or_else(|| wrong("holds no text in its column"))
    }
}

/// A column, or one within a column: `doc.text`.
fn inner(columns: &StructArray, name: &str) -> Option<ArrayRef> {
    columns.column_by_name(name).cloned().or_else(|| {
        let (outer, rest) = name.split_once('.')?;
        inner(columns.column_by_name(outer)?.as_struct_opt()?, rest)
    })
}

impl Iterator for Texts {
    type Item = String;

    /// Nothing where a row has no text.
    fn next(&mut self) -> Option<String> {
        let (row, column) = (self.rows.next()?, &self.column);
        if column.is_null(row) {
            return Some(String::new());
        }
        let short = || column.as_string_opt::<i32>().map(|texts| texts.value(row));
        let long = || column.as_string_opt::<i64>().map(|texts| texts.value(row));
        let viewed = || column.as_string_view_opt().map(|texts| texts.value(row));
        short().or_else(long).or_else(viewed).map(str::to_owned)
    }
}
