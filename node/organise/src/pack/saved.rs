//! Folders that Python's `datasets` has saved with `save_to_disk`: Arrow streams, and JSON that names them.
//!
//! A folder holds one split, whose files its `state.json` names; or several, which `dataset_dict.json` names, each in a
//! folder of its own.

use std::ffi::OsStr;
use std::fmt::Display;
use std::path::{Path, PathBuf};

use muster_replica::exit::{Failure, Outcome};
use muster_store::regular;
use serde::Deserialize;
use serde::de::DeserializeOwned;

/// Names the splits of a folder that has several.
const SPLITS: &str = "dataset_dict.json";
/// Names the files of a split.
const FILES: &str = "state.json";
/// Bytes of either, at most: a line for each file of a split.
const NAMES_BYTES: u64 = 16 << 20;
/// The split to train on.
pub(super) const TRAINED: [&str; 1] = ["train"];
/// Splits to hold out, the first that is there.
pub(super) const HELD_OUT: [&str; 2] = ["validation", "test"];

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

/// Whether somebody saved a dataset there.
pub(super) fn is_dataset(folder: &Path) -> bool {
    folder.join(SPLITS).exists() || folder.join(FILES).exists()
}

/// The files of the first of these splits that a saved dataset has, or of the only one; and those of its split to hold out, if
/// that is another one.
///
/// # Errors
/// [`Failure`] naming the folder without such a split, and what is no saved dataset.
pub(super) fn files(folder: &Path, wanted: &[&str]) -> Outcome<(Vec<PathBuf>, Vec<PathBuf>)> {
    let first = wanted.first().copied().unwrap_or_default();
    let split = self::split(folder, wanted)?.ok_or_else(|| without(folder, first))?;
    let own = self::split(folder, &HELD_OUT)?.filter(|own| *own != split);
    Ok((files_of(&split)?, own.map(|own| files_of(&own)).transpose()?.unwrap_or_default()))
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
fn files_of(split: &Path) -> Outcome<Vec<PathBuf>> {
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
    serde_json::from_slice(&regular::unmarked(bytes)).map_err(|error| unfit(&error))
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::rc::Rc;
    use std::sync::Arc;

    use arrow_array::{ArrayRef, Int64Array, LargeStringArray, RecordBatch, StringArray};
    use arrow_ipc::writer::StreamWriter;
    use muster_core::manifest::DataFile;
    use muster_replica::exit::Exit;
    use muster_store::dataset::Dataset;

    use super::super::arrow::ArrowRows;
    use super::super::piece::Reading;
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
            out: out.to_owned(),
            ..PackOptions::default()
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
            assert_eq!(
                [
                    corpus.read(DataFile::Training, 0..u64::MAX).unwrap(),
                    corpus.read(DataFile::HeldOut, 0..u64::MAX).unwrap()
                ],
                [&b"a\0b\0c\0"[..], "dä\0".as_bytes()]
            );
        }
        let (other, out) = (at("saved-true"), at("named"));
        let named = packed(&at("saved-false"), Some(&other), "text", &out).unwrap();
        let corpus = Dataset::open(&out, &named.data).unwrap();
        assert_eq!(
            corpus.read(DataFile::Training, 0..u64::MAX).unwrap(),
            corpus.read(DataFile::HeldOut, 0..u64::MAX).unwrap()
        );
    }

    /// Rows of views may all be the same bytes: a file of some megabytes would be terabytes of text in memory.
    #[cfg(target_os = "linux")]
    #[test]
    fn no_more_of_a_batch_is_copied_than_somebody_wants() {
        use arrow_array::builder::StringViewBuilder;
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let mut texts = StringViewBuilder::new();
        let block = texts.append_block(arrow_buffer::Buffer::from_vec("a".repeat(1 << 20).into_bytes()));
        (0..1 << 12).for_each(|_| texts.try_append_view(block, 0, 1 << 20).unwrap());
        let texts: ArrayRef = Arc::new(texts.finish());
        let batch = RecordBatch::try_from_iter([("text", texts)]).unwrap();
        let file = File::create(at("rows.arrow")).unwrap();
        let mut writer = StreamWriter::try_new(file, &batch.schema()).unwrap();
        writer.write(&batch).unwrap();
        writer.finish().unwrap();
        let (out, most) = (at("out"), Some(4 << 20));
        let options = PackOptions { text: vec![at("rows.arrow")], out, most, ..PackOptions::default() };
        let packed = pack(&options, &mut |_, _| ()).unwrap();
        let corpus = Dataset::open(&at("out"), &packed.data).unwrap();
        assert!((4 << 20..6 << 20).contains(
            &(corpus.read(DataFile::Training, 0..u64::MAX).unwrap().len()
                + corpus.read(DataFile::HeldOut, 0..u64::MAX).unwrap().len())
        ));
        // The most that this process has ever had, of 4 GiB that the rows are.
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let most = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB"));
        assert!(most.unwrap().parse::<u64>().unwrap() < 3 << 20, "{most:?}");
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
            tokeniser: Some(at("rules.json")),
            end: Some("</s>".into()),
            out: at("out"),
            ..PackOptions::default()
        };
        let mut told = Vec::new();
        let packed = pack(&options, &mut |done, total| told.push((done, total))).unwrap();
        assert_eq!(packed.data.tokens(), 30 * 4 + 30 * 3);
        assert!(told.last().is_some_and(|(done, total)| done == total && *total > 840), "{told:?}");
        let corpus = Dataset::open(&at("out"), &packed.data).unwrap();
        assert_eq!(corpus.window(0, 8).unwrap(), [1, 2, 258, 300, 1, 2, 258, 300, 1]);
        assert_eq!(corpus.window(20, 6).unwrap(), [258, 4, 300, 258, 4, 300, 258]);
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
        assert!(failure("text").message.contains("saved: cannot be read"), "{}", failure("text"));
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
            if let Ok(mut rows) = ArrowRows::open(&file, &Rc::new(Reading::new("text", None))) {
                while let Ok(Some(_)) = rows.piece() {}
            }
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
