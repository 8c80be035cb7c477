//! Texts in files.

use std::fs;
use std::path::{Path, PathBuf};

use muster_replica::exit::{Failure, Outcome};
use muster_store::dataset::SourceText;

use super::passage::{HELD_OUT_PART, Passage, Sources};

/// A file, or one end of it.
struct TextSlice {
    path: PathBuf,
    bytes: u64,
    piece: FilePortion,
}

#[derive(Clone, Copy)]
enum FilePortion {
    Whole,
    Head,
    Tail,
}

impl TextSlice {
    fn read(self) -> Outcome<Passage> {
        let SourceText { name, bytes } = SourceText::read(&self.path, self.path.display().to_string())?;
        let mut text = String::from_utf8(bytes)
            .map_err(|error| Failure::environment(format!("{name}: is not UTF-8 text ({error})")))?;
        // A character is not cut in two.
        let cut = text.ceil_char_boundary(text.len() - text.len() / HELD_OUT_PART);
        match self.piece {
            FilePortion::Whole => {}
            FilePortion::Head => text.truncate(cut),
            FilePortion::Tail => text = text.split_off(cut),
        }
        Ok(Passage { name, texts: vec![text] })
    }
}

/// The files to train on, and those to hold out.
///
/// # Errors
/// [`Failure`] naming the file or folder that cannot be read.
pub(super) fn sources(text: &[PathBuf], held_out: &[PathBuf]) -> Outcome<Sources> {
    let mut train = files(text)?;
    let mut held_out = files(held_out)?;
    if held_out.is_empty() && train.len() > 1 {
        let kept = train.len() - train.len().div_ceil(HELD_OUT_PART);
        held_out = train.split_off(kept);
    } else if let (true, [only]) = (held_out.is_empty(), train.as_mut_slice()) {
        only.piece = FilePortion::Head;
        held_out.push(TextSlice { path: only.path.clone(), bytes: 0, piece: FilePortion::Tail });
    }
    let bytes = train.iter().chain(&held_out).map(|source| source.bytes).sum();
    let read = |slices: Vec<TextSlice>| Box::new(slices.into_iter().map(TextSlice::read));
    Ok(Sources { train: read(train), held_out: read(held_out), bytes })
}

fn files(paths: &[PathBuf]) -> Outcome<Vec<TextSlice>> {
    let mut found = Vec::new();
    for path in paths {
        walk(path, &mut found)?;
    }
    Ok(found)
}

fn walk(path: &Path, found: &mut Vec<TextSlice>) -> Outcome<()> {
    let failed =
        |error: std::io::Error| Failure::environment(format!("{}: cannot be read ({error})", path.display()));
    let about = fs::metadata(path).map_err(failed)?;
    if !about.is_dir() {
        found.push(TextSlice { path: path.to_owned(), bytes: about.len(), piece: FilePortion::Whole });
        return Ok(());
    }
    let entries: Result<Vec<_>, _> = fs::read_dir(path).map_err(failed)?.collect();
    let mut entries = entries.map_err(failed)?;
    // The system gives them in any order, and two people should pack the same corpus.
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        // A link could lead in a circle; what it names is packed by naming it.
        let kind = entry.file_type().map_err(failed)?;
        if kind.is_dir() || kind.is_file() {
            walk(&entry.path(), found)?;
        }
    }
    Ok(())
}
