//! Parquet files, of which a column is the text.

use std::fmt::Display;
use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::vec;

use muster_replica::exit::{Failure, Outcome};
use muster_store::dataset::TextName;
use muster_store::regular;
use parquet::basic::{ConvertedType, LogicalType, Type};
use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::data_type::{ByteArray, ByteArrayType};
use parquet::errors::ParquetError;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::schema::types::{ColumnDescriptor, SchemaDescriptor};

use super::opened::{check_unwrapped, unread};
use super::piece::{Piece, Reading};

/// Rows that are read at once.
const ROWS: usize = 1024;

/// A text for each row, of which a page or so is in memory at a time. Texts are copied out of it one by one: a thousand of them may be
/// the same bytes of a file.
pub(super) struct ParquetRows {
    name: Arc<str>,
    reader: SerializedFileReader<File>,
    reading: Rc<Reading>,
    /// The place of the text's column, and how deep a text lies in it where there is one; rows may have none.
    column: usize,
    depth: i16,
    /// Groups of rows that were begun, and the column of the last one.
    groups: usize,
    group: Option<ColumnReaderImpl<ByteArrayType>>,
    /// Nothing where a row has no text.
    batch: vec::IntoIter<Option<ByteArray>>,
    row: u64,
}

impl ParquetRows {
    /// Opens a file.
    ///
    /// # Errors
    /// [`Failure`] naming the file that is none, or has no such column of text.
    pub(super) fn open(path: &Path, reading: &Rc<Reading>) -> Outcome<Self> {
        let name: Arc<str> = path.display().to_string().into();
        let file = regular::open(path, u64::MAX).map_err(|error| unread(&name, &error.cause()))?;
        check_unwrapped(path, &file)?;
        let reader = caught(|| SerializedFileReader::new(file)).map_err(|error| damaged(&name, &error))?;
        let (column, depth) = column(reader.metadata().file_metadata().schema_descr(), &reading.column)
            .map_err(|what| Failure::usage(format!("{name}: {what}")))?;
        let (reading, batch) = (Rc::clone(reading), Vec::new().into_iter());
        Ok(Self { name, reader, reading, column, depth, groups: 0, group: None, batch, row: 0 })
    }

    /// The next text; none after the last one.
    pub(super) fn piece(&mut self) -> Outcome<Option<Piece>> {
        loop {
            let Some(value) = self.batch.next() else {
                let read = caught(|| self.read()).map_err(|error| damaged(&self.name, &error))?;
                let Some(values) = read else { return Ok(None) };
                self.batch = values.into_iter();
                continue;
            };
            self.row += 1;
            let bytes = value.as_ref().map_or(&[][..], ByteArray::data).to_owned();
            let text = String::from_utf8(bytes).map_err(|_| {
                let then = "write the column anew as UTF-8, or name another with --column";
                Failure::environment(format!("{}, row {}: is not UTF-8 text; {then}", self.name, self.row))
            })?;
            // A row without text is no text: its end would follow the end of the one before.
            if text.is_empty() {
                self.reading.skip();
                continue;
            }
            let name = TextName { source: self.name.clone(), row: Some(self.row) };
            let text = self.reading.settled(text).map_err(|what| {
                Failure::environment(format!(
                    "{}, row {}: {what}; mend it or leave it out",
                    self.name, self.row
                ))
            })?;
            return Ok(Some(Piece { text, name, ends: true }));
        }
    }

    /// The values of the next rows.
    fn read(&mut self) -> Result<Option<Vec<Option<ByteArray>>>, ParquetError> {
        loop {
            let Some(group) = &mut self.group else {
                if self.groups == self.reader.num_row_groups() {
                    return Ok(None);
                }
                let group = self.reader.get_row_group(self.groups)?;
                self.groups += 1;
                let compressed: i64 =
                    group.metadata().columns().iter().map(|column| column.compressed_size()).sum();
                self.reading.bytes.set(self.reading.bytes.get() + u64::try_from(compressed).unwrap_or(0));
                let ColumnReader::ByteArrayColumnReader(column) = group.get_column_reader(self.column)?
                else {
                    return Err(ParquetError::General("a column of text holds none".into()));
                };
                self.group = Some(column);
                continue;
            };
            let (mut depths, mut values) = (Vec::new(), Vec::new());
            let (rows, ..) = group.read_records(ROWS, Some(&mut depths), None, &mut values)?;
            if rows == 0 {
                self.group = None;
                continue;
            }
            if self.depth == 0 {
                depths = vec![0; rows];
            }
            let (mut values, deepest) = (values.into_iter(), self.depth);
            let value = |depth: i16| if depth == deepest { values.next() } else { None };
            return Ok(Some(depths.into_iter().map(value).collect()));
        }
    }
}

/// The place of a column of text, `doc.text` where it lies within another one, and how deep its texts lie.
///
/// # Errors
/// What is wrong with it, and the columns that are there.
fn column(schema: &SchemaDescriptor, name: &str) -> Result<(usize, i16), String> {
    let path = |column: &ColumnDescriptor| column.path().parts().join(".");
    let found = schema.columns().iter().enumerate().find(|(_, column)| path(column) == name);
    // One value of each row, and no list of them. Some programs write texts as bytes of which they say nothing.
    let of_text = |column: &ColumnDescriptor| {
        let said = match column.logical_type_ref() {
            Some(logical) => *logical == LogicalType::String,
            None => matches!(column.converted_type(), ConvertedType::UTF8 | ConvertedType::NONE),
        };
        said && column.max_rep_level() == 0 && column.physical_type() == Type::BYTE_ARRAY
    };
    match found {
        Some((place, column)) if of_text(column) => Ok((place, column.max_def_level())),
        _ => {
            let what = if found.is_some() { "holds no text in its column" } else { "has no column" };
            let texts = schema.columns().iter().filter(|column| of_text(column));
            let texts = texts.map(|column| path(column)).collect::<Vec<_>>().join(", ");
            let then = if texts.is_empty() {
                "it has no column of text; texts in lists can be written as JSON lines by another program"
                    .into()
            } else {
                format!("name one of text with --column: {texts}")
            };
            Err(format!("{what} {name:?}; {then}"))
        }
    }
}

/// What the library says. It may panic where a file contradicts itself.
fn caught<T>(work: impl FnOnce() -> Result<T, ParquetError>) -> Result<T, String> {
    let done = catch_unwind(AssertUnwindSafe(work));
    done.map_err(|_| "its lengths contradict each other".to_owned())?.map_err(|error| error.to_string())
}

fn damaged(name: &str, error: &dyn Display) -> Failure {
    let error = error.to_string();
    // The library was built without what few programs use.
    if let Some((_, how)) = error.split_once("Disabled feature at compile time: ") {
        let then = "write it again with zstd or snappy";
        return Failure::environment(format!(
            "{name}: is compressed by {how}, which cannot be read here; {then}"
        ));
    }
    Failure::environment(format!("{name}: is no Parquet file, or damaged ({error}); get it again"))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use muster_core::manifest::DataFile;
    use muster_replica::exit::Exit;
    use muster_store::dataset::Dataset;
    use parquet::basic::{Compression, ZstdLevel};
    use parquet::data_type::Int64Type;
    use parquet::file::properties::WriterProperties;
    use parquet::file::writer::SerializedFileWriter;
    use parquet::schema::parser::parse_message_type;

    use super::super::{PackOptions, pack};
    use super::*;

    const SCHEMA: &str = "message rows { REQUIRED INT64 id; OPTIONAL BYTE_ARRAY text (UTF8); REQUIRED BYTE_ARRAY title (UTF8);
        OPTIONAL GROUP doc { OPTIONAL BYTE_ARRAY text (UTF8); } REPEATED BYTE_ARRAY tags (UTF8); OPTIONAL BYTE_ARRAY image; }";

    /// Two groups of rows, as other programs write them.
    fn write(path: &Path, compression: Compression) {
        let schema = Arc::new(parse_message_type(SCHEMA).unwrap());
        let properties = Arc::new(WriterProperties::builder().set_compression(compression).build());
        let mut writer = SerializedFileWriter::new(File::create(path).unwrap(), schema, properties).unwrap();
        let bytes = |texts: &[&str]| texts.iter().map(|text| ByteArray::from(*text)).collect::<Vec<_>>();
        for texts in [["one", ""], ["d\u{e4}", "last"]] {
            let mut group = writer.next_row_group().unwrap();
            let mut number = 0;
            while let Some(mut column) = group.next_column().unwrap() {
                let mut strings = |values: &[&str], depths: Option<&[i16]>, again: Option<&[i16]>| {
                    column.typed::<ByteArrayType>().write_batch(&bytes(values), depths, again).unwrap();
                };
                match number {
                    // Three rows: a text, none, and another text.
                    1 => strings(&texts, Some(&[1, 0, 1]), None),
                    2 => strings(&["t1", "t2", "t3"], None, None),
                    3 => strings(&["deep"], Some(&[0, 2, 1]), None),
                    4 => strings(&["a", "b"], Some(&[1, 1, 0, 0]), Some(&[0, 1, 0, 0])),
                    5 => strings(&[], Some(&[0, 0, 0]), None),
                    _ => drop(column.typed::<Int64Type>().write_batch(&[1, 2, 3], None, None).unwrap()),
                }
                column.close().unwrap();
                number += 1;
            }
            group.close().unwrap();
        }
        writer.close().unwrap();
    }

    fn packed(path: &Path, column: &str) -> Outcome<[String; 2]> {
        let (text, out) = (vec![path.to_owned()], path.with_extension(format!("{column}.corpus")));
        let _ = fs::remove_dir_all(&out);
        let mut told = (0, 0);
        let options =
            PackOptions { text, column: Some(column.into()), out: out.clone(), ..PackOptions::default() };
        let packed = pack(&options, &mut |done, total| told = (done, total))?;
        assert!(told.0 > 0 && told.0 <= told.1, "{told:?}");
        let corpus = Dataset::open(&out, &packed.data).unwrap();
        Ok([
            corpus.read(DataFile::Training, 0..u64::MAX).unwrap(),
            corpus.read(DataFile::HeldOut, 0..u64::MAX).unwrap(),
        ]
        .map(|bytes| String::from_utf8(bytes.to_vec()).unwrap()))
    }

    #[test]
    fn a_column_of_text_is_packed_row_by_row() {
        let directory = tempfile::tempdir().unwrap();
        let zstd = Compression::ZSTD(ZstdLevel::default());
        let gzip = Compression::GZIP(Default::default());
        for (number, compression) in
            [Compression::UNCOMPRESSED, Compression::SNAPPY, gzip, zstd].into_iter().enumerate()
        {
            let path = directory.path().join(format!("{number}.parquet"));
            write(&path, compression);
            assert_eq!(packed(&path, "text").unwrap(), ["one\0d\u{e4}\0", "last\0"]);
            assert_eq!(packed(&path, "title").unwrap(), ["t1\0t2\0t3\0t1\0t2\0", "t3\0"]);
            assert_eq!(packed(&path, "doc.text").unwrap(), ["deep\0", "deep\0"]);
        }
    }

    #[test]
    fn what_is_wrong_with_a_file_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("rows.parquet");
        write(&path, Compression::SNAPPY);
        let refused = |column: &str| packed(&path, column).unwrap_err();
        let missing = refused("story");
        assert_eq!(missing.exit, Exit::Usage);
        assert!(
            missing.message.contains(
                "has no column \"story\"; name one of text with --column: text, title, doc.text, image"
            ),
            "{missing}"
        );
        // Bytes of which nothing is said may be text; here there are none.
        assert!(refused("image").message.contains("nothing to train on"));
        for column in ["id", "tags"] {
            assert!(refused(column).message.contains("holds no text in its column"), "{column}");
        }
        let whole = fs::read(&path).unwrap();
        for length in [0, 3, whole.len() / 2, whole.len() - 5] {
            fs::write(&path, &whole[..length]).unwrap();
            assert!(refused("text").message.contains("is no Parquet file, or damaged"), "{length}");
        }
        // No byte of it makes the program panic.
        for place in 0..whole.len() {
            let mut flipped = whole.clone();
            flipped[place] ^= 0x7f;
            fs::write(&path, &flipped).unwrap();
            if let Ok(mut rows) = ParquetRows::open(&path, &Rc::new(Reading::new("text", None))) {
                while let Ok(Some(_)) = rows.piece() {}
            }
        }
        fs::write(&path, &whole).unwrap();
        let other = directory.path().join("rows");
        fs::rename(&path, &other).unwrap();
        let refused = packed(&other, "text").unwrap_err().message;
        assert!(
            refused.contains(
                "rows: is a Parquet file; name the file itself, and let its name end with .parquet"
            ),
            "{refused}"
        );
    }
}
