//! Texts in folders that Python's `datasets` has saved with `save_to_disk`: Arrow streams, and JSON that names them.
//!
//! A folder holds one split, whose files its `state.json` names; or several, which `dataset_dict.json` names, each in a
//! folder of its own.

use std::ffi::OsStr;
use std::fmt::Display;
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::vec;

use arrow_array::RecordBatch;
use arrow_array::cast::AsArray;
use arrow_buffer::Buffer;
use arrow_ipc::reader::StreamDecoder;
use muster_replica::exit::{Failure, Outcome};
use muster_store::regular;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::passage::{HELD_OUT_PART, Passage, Sources};

/// Names the splits of a folder that has several.
const SPLITS: &str = "dataset_dict.json";
/// Names the files of a split.
const FILES: &str = "state.json";
/// The split to train on.
const TRAIN: &str = "train";
/// Bytes of either, at most: a line for each file of a split.
const NAMES_BYTES: u64 = 16 << 20;
/// Bytes that are read at once.
const PIECE: u64 = 4 << 20;
/// Splits to hold out, the first that is there.
const HELD_OUT: [&str; 2] = ["validation", "test"];

#[derive(Deserialize)]
struct SplitNames {
    splits: Vec<String>,
}

#[derive(Deserialize)]
struct FileNames {
    #[serde(rename = "_data_files")]
    files: Vec<FileName>,
    /// Old versions wrote rows in another order beside them.
    #[serde(rename = "_indices_data_files")]
    indices: Option<Vec<FileName>>,
}

#[derive(Deserialize)]
struct FileName {
    filename: String,
}

/// The texts to train on, and those to hold out: a folder's split for that, or the last rows.
///
/// # Errors
/// [`Failure`] naming the folder or file that is no saved dataset, or has no such column of text.
pub(super) fn sources(text: &[PathBuf], held_out: &[PathBuf], column: &str) -> Outcome<Sources> {
    let (mut train, mut kept) = (Vec::new(), Vec::new());
    for folder in text {
        let split = split(folder, &[TRAIN])?.ok_or_else(|| without(folder, TRAIN))?;
        train.extend(files(&split)?);
        let own = if held_out.is_empty() { self::split(folder, &HELD_OUT)? } else { None };
        if let Some(own) = own.filter(|own| *own != split) {
            kept.extend(files(&own)?);
        }
    }
    for folder in held_out {
        let split = split(folder, &HELD_OUT)?.ok_or_else(|| without(folder, HELD_OUT[0]))?;
        kept.extend(files(&split)?);
    }
    let (rows, mut bytes) = counted(&train, column)?;
    let (trained, measured) = if kept.is_empty() {
        kept.clone_from(&train);
        let cut = rows - rows.div_ceil(HELD_OUT_PART as u64);
        (0..cut, cut..rows)
    } else {
        let (others, more) = counted(&kept, column)?;
        bytes += more;
        (0..rows, 0..others)
    };
    let read = |files: Vec<PathBuf>, rows| {
        Box::new(Rows { files: files.into_iter(), stream: None, column: column.to_owned(), next: 0, rows })
    };
    Ok(Sources { train: read(train, trained), held_out: read(kept, measured), bytes })
}

/// The folder of the first of these splits that a saved dataset has; itself where it is one split.
fn split(folder: &Path, wanted: &[&str]) -> Outcome<Option<PathBuf>> {
    if !folder.join(SPLITS).exists() {
        return Ok(Some(folder.to_owned()));
    }
    let names: SplitNames = said(&folder.join(SPLITS))?;
    let found = wanted.iter().find(|name| names.splits.iter().any(|split| split == *name));
    Ok(found.map(|name| folder.join(name)))
}

fn without(folder: &Path, split: &str) -> Failure {
    let folder = folder.display();
    Failure::usage(format!("{folder}: has no split {split:?}; name the folder of one of its splits"))
}

/// The files of a split, in order.
fn files(split: &Path) -> Outcome<Vec<PathBuf>> {
    let path = split.join(FILES);
    let names: FileNames = said(&path)?;
    if names.indices.is_some_and(|indices| !indices.is_empty()) {
        let advice = "call flatten_indices() on the dataset and save it again";
        let what = "names rows in another order than their files have";
        return Err(Failure::environment(format!("{}: {what}; {advice}", path.display())));
    }
    let plain = |file: FileName| {
        // The folder may be a stranger's: a name like `../../secret` would pack what its owner never meant to publish.
        if Path::new(&file.filename).file_name() == Some(OsStr::new(&file.filename)) {
            return Ok(split.join(file.filename));
        }
        let what = format!("names {:?}, which is no file of this folder", file.filename);
        Err(Failure::environment(format!("{}: {what}; save the dataset again", path.display())))
    };
    names.files.into_iter().map(plain).collect()
}

fn said<T: DeserializeOwned>(path: &Path) -> Outcome<T> {
    let unfit = |error: &dyn Display| {
        let advice = "name a folder that save_to_disk of Python's `datasets` has written";
        Failure::environment(format!("{}: cannot be read ({error}); {advice}", path.display()))
    };
    let bytes = regular::read(path, NAMES_BYTES).map_err(|error| unfit(&error.cause()))?;
    serde_json::from_slice(&bytes).map_err(|error| unfit(&error))
}

fn unread(path: &Path, error: &dyn Display) -> Failure {
    Failure::environment(format!("{}: cannot be read ({error})", path.display()))
}

/// Rows of files, and bytes of their texts.
fn counted(files: &[PathBuf], column: &str) -> Outcome<(u64, u64)> {
    let (mut rows, mut bytes) = (0, 0);
    for file in files {
        tracing::info!("counting the rows of {}", file.display());
        let mut stream = Stream::open(file)?;
        while let Some(batch) = stream.next()? {
            let texts = stream.texts(&batch, column)?;
            rows += texts.len() as u64;
            bytes += texts.iter().map(|text| text.len() as u64).sum::<u64>();
        }
    }
    Ok((rows, bytes))
}

/// The texts of some rows of files, a batch of rows at a time.
struct Rows {
    files: vec::IntoIter<PathBuf>,
    stream: Option<Stream>,
    column: String,
    /// The row that comes next.
    next: u64,
    /// Those that are wanted.
    rows: Range<u64>,
}

impl Rows {
    fn passage(&mut self) -> Outcome<Option<Passage>> {
        while self.next < self.rows.end {
            let Some(stream) = &mut self.stream else {
                let Some(file) = self.files.next() else { return Ok(None) };
                self.stream = Some(Stream::open(&file)?);
                continue;
            };
            let Some(batch) = stream.next()? else {
                self.stream = None;
                continue;
            };
            let (first, after) = (self.next, self.next + batch.num_rows() as u64);
            self.next = after;
            if after <= self.rows.start {
                continue;
            }
            let texts = stream.texts(&batch, &self.column)?;
            let numbered = (first..).zip(&texts).filter(|(row, _)| self.rows.contains(row));
            // A row without text is no text: its end would follow the end of the one before.
            let wanted: Vec<String> =
                numbered.map(|(_, text)| (*text).to_owned()).filter(|text| !text.is_empty()).collect();
            if !wanted.is_empty() {
                let name = {
                    let (first, last) = (first.max(self.rows.start), after.min(self.rows.end) - 1);
                    format!("{}, rows {first} to {last}", stream.path.display())
                };
                return Ok(Some(Passage { name, texts: wanted }));
            }
        }
        Ok(None)
    }
}

impl Iterator for Rows {
    type Item = Outcome<Passage>;

    fn next(&mut self) -> Option<Self::Item> {
        self.passage().transpose()
    }
}

/// A file of batches of rows.
struct Stream {
    path: PathBuf,
    file: File,
    /// What was read and not decoded.
    bytes: Buffer,
    decoder: StreamDecoder,
}

impl Stream {
    fn open(path: &Path) -> Outcome<Self> {
        let file = regular::open(path, u64::MAX).map_err(|error| unread(path, &error.cause()))?;
        let (bytes, decoder) = (Buffer::from_vec(Vec::<u8>::new()), StreamDecoder::new());
        Ok(Self { path: path.to_owned(), file, bytes, decoder })
    }

    fn next(&mut self) -> Outcome<Option<RecordBatch>> {
        loop {
            if self.bytes.is_empty() {
                let mut piece = Vec::new();
                let read = (&self.file).take(PIECE).read_to_end(&mut piece);
                read.map_err(|error| unread(&self.path, &error))?;
                if piece.is_empty() {
                    return self.decoder.finish().map(|()| None).map_err(|error| self.damaged(&error));
                }
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
        let path = self.path.display();
        Failure::environment(format!(
            "{path}: is no Arrow stream, or damaged ({error}); save the dataset again"
        ))
    }

    /// The texts of a batch; nothing where a row has none.
    fn texts<'a>(&self, batch: &'a RecordBatch, column: &str) -> Outcome<Vec<&'a str>> {
        let schema = batch.schema();
        let wrong = |what: &str| {
            let columns: Vec<String> = schema
                .fields()
                .iter()
                .map(|field| format!("{} ({})", field.name(), field.data_type()))
                .collect();
            let (file, columns) = (self.path.display(), columns.join(", "));
            Failure::usage(format!("{file}: {what} {column:?}; name one of text with --column: {columns}"))
        };
        let array = batch.column_by_name(column).ok_or_else(|| wrong("has no column"))?;
        if let Some(texts) = array.as_string_opt::<i32>() {
            return Ok(texts.iter().map(Option::unwrap_or_default).collect());
        }
        if let Some(texts) = array.as_string_opt::<i64>() {
            return Ok(texts.iter().map(Option::unwrap_or_default).collect());
        }
        if let Some(texts) = array.as_string_view_opt() {
            return Ok(texts.iter().map(Option::unwrap_or_default).collect());
        }
        Err(wrong("holds no text in its column"))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::Arc;

    use arrow_array::{ArrayRef, Int64Array, LargeStringArray, StringArray};
    use arrow_ipc::writer::StreamWriter;
    use muster_replica::exit::Exit;
    use muster_store::dataset::Dataset;

    use super::super::{PackOptions, PackedCorpus, pack};
    use super::*;
    use crate::tokenise::tests::WORDS;

    /// Writes a split as `datasets` does: files of batches.
    fn save(split: &Path, files: &[&[Vec<Option<&str>>]], large: bool) {
        fs::create_dir_all(split).unwrap();
        let names: Vec<_> = files
            .iter()
            .enumerate()
            .map(|(number, batches)| {
                let name = format!("data-{number:05}-of-{:05}.arrow", files.len());
                let batch = |texts: &Vec<Option<&str>>| {
                    let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(0..texts.len() as i64));
                    let texts: ArrayRef = if large {
                        Arc::new(LargeStringArray::from(texts.clone()))
                    } else {
                        Arc::new(StringArray::from(texts.clone()))
                    };
                    RecordBatch::try_from_iter_with_nullable([("id", ids, false), ("text", texts, true)])
                        .unwrap()
                };
                let batches: Vec<RecordBatch> = batches.iter().map(batch).collect();
                let file = File::create(split.join(&name)).unwrap();
                let mut writer = StreamWriter::try_new(file, &batches[0].schema()).unwrap();
                batches.iter().for_each(|batch| writer.write(batch).unwrap());
                writer.finish().unwrap();
                serde_json::json!({ "filename": name })
            })
            .collect();
        fs::write(split.join(FILES), serde_json::json!({ "_data_files": names }).to_string()).unwrap();
    }

    fn packed(text: &Path, held_out: Option<&Path>, column: &str, out: &Path) -> Outcome<PackedCorpus> {
        let options = PackOptions {
            text: vec![text.to_owned()],
            held_out: held_out.map(Path::to_owned).into_iter().collect(),
            column: Some(column.to_owned()),
            tokeniser: None,
            router: None,
            out: out.to_owned(),
        };
        pack(&options, &mut |_, _| ())
    }

    #[test]
    fn rows_are_texts_and_the_last_ones_are_held_out() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let some = |texts: &[&'static str]| texts.iter().map(|text| Some(*text)).collect::<Vec<_>>();
        let (one, two) = ([some(&["a", "b"]), vec![None, Some("")]], [some(&["c", "dä"])]);
        for large in [false, true] {
            let (saved, out) = (at(&format!("saved-{large}")), at(&format!("out-{large}")));
            save(&saved, &[&one, &two], large);
            let packed = packed(&saved, None, "text", &out).unwrap();
            let corpus = Dataset::open(&out, &packed.data).unwrap();
            assert_eq!((corpus.train(), corpus.held_out()), (&b"a\0b\0c\0"[..], "dä\0".as_bytes()));
        }
        let (other, out) = (at("saved-true"), at("named"));
        let named = packed(&at("saved-false"), Some(&other), "text", &out).unwrap();
        let corpus = Dataset::open(&out, &named.data).unwrap();
        assert_eq!(corpus.train(), corpus.held_out());
    }

    #[test]
    fn splits_have_their_folders_and_tokenisers_end_every_row() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let rows = |text: &'static str| vec![Some(text); 30];
        save(&at("saved/train"), &[&[rows("bread and butter"), rows("butter.")]], false);
        save(&at("saved/test"), &[&[rows("bread")]], false);
        fs::write(at("saved").join(SPLITS), r#"{"splits": ["train", "test"]}"#).unwrap();
        fs::write(at("rules.json"), WORDS).unwrap();
        let options = PackOptions {
            text: vec![at("saved")],
            held_out: vec![],
            column: Some("text".into()),
            tokeniser: Some(at("rules.json")),
            router: None,
            out: at("out"),
        };
        let mut told = Vec::new();
        let packed = pack(&options, &mut |done, total| told.push((done, total))).unwrap();
        assert_eq!((packed.data.tokens(), told.last()), (30 * 4 + 30 * 3, Some(&(840, 840))));
        let corpus = Dataset::open(&at("out"), &packed.data).unwrap();
        assert_eq!(corpus.window(0, 8), [1, 2, 258, 300, 1, 2, 258, 300, 1]);
        assert_eq!(corpus.window(20, 6), [258, 4, 300, 258, 4, 300, 258]);
        fs::write(at("saved").join(SPLITS), r#"{"splits": ["one", "two"]}"#).unwrap();
        let failure = pack(&PackOptions { out: at("more"), ..options }, &mut |_, _| ()).unwrap_err();
        assert!(failure.message.contains("has no split \"train\""), "{failure}");
    }

    #[test]
    fn what_is_wrong_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let saved = at("saved");
        let failure = |column: &str| packed(&saved, None, column, &at("out")).unwrap_err();
        assert!(failure("text").message.contains("state.json: cannot be read"), "{}", failure("text"));
        save(&saved, &[&[vec![Some("some text"); 50]]], false);
        let none = failure("story");
        assert!(none.message.contains("has no column \"story\"") && none.exit == Exit::Usage, "{none}");
        assert!(none.message.contains("id (Int64), text (Utf8)"), "{none}");
        let numbers = failure("id");
        assert!(numbers.message.contains("holds no text in its column \"id\""), "{numbers}");
        let names = fs::read(saved.join(FILES)).unwrap();
        fs::write(at("secret.arrow"), b"not meant for anybody").unwrap();
        let secret = at("secret.arrow");
        for elsewhere in ["../secret.arrow", "..", ".", "", &secret.to_string_lossy(), "sub/secret.arrow"] {
            let text = format!(r#"{{"_data_files": [{{"filename": "{elsewhere}"}}]}}"#);
            fs::write(saved.join(FILES), text).unwrap();
            let said = failure("text");
            assert!(said.message.contains("which is no file of this folder"), "{elsewhere}: {said}");
        }
        #[cfg(unix)]
        {
            fs::write(saved.join(FILES), r#"{"_data_files": [{"filename": "endless.arrow"}]}"#).unwrap();
            std::os::unix::fs::symlink("/dev/zero", saved.join("endless.arrow")).unwrap();
            let said = failure("text");
            assert!(said.message.contains("endless.arrow: cannot be read (is a device"), "{said}");
        }
        fs::write(saved.join(FILES), &names).unwrap();
        let file = saved.join("data-00000-of-00001.arrow");
        let whole = fs::read(&file).unwrap();
        for length in [3, whole.len() / 2, whole.len() - 9] {
            fs::write(&file, &whole[..length]).unwrap();
            let cut = failure("text");
            assert!(cut.message.contains("is no Arrow stream, or damaged"), "{length}: {cut}");
        }
        // A length of petabytes.
        let mut huge = whole.clone();
        huge[4..8].copy_from_slice(&0x7FFF_FFF0u32.to_le_bytes());
        fs::write(&file, &huge).unwrap();
        assert!(failure("text").message.contains("damaged"));
        // No byte of it makes the program panic.
        for place in 0..whole.len() {
            let mut flipped = whole.clone();
            flipped[place] ^= 0x7f;
            fs::write(&file, &flipped).unwrap();
            let _ = super::sources(std::slice::from_ref(&saved), &[], "text");
        }
        let indices = r#"{"_data_files": [], "_indices_data_files": [{"filename": "indices.arrow"}]}"#;
        fs::write(saved.join(FILES), indices).unwrap();
        assert!(failure("text").message.contains("call flatten_indices()"));
        fs::write(saved.join(FILES), names).unwrap();
        fs::remove_file(&file).unwrap();
        assert!(failure("text").message.contains("00001.arrow: cannot be read"));
        assert!(!at("out").exists());
    }
}
