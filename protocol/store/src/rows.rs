//! Shards on disk instead of in memory, rows of experts above all: scratch files in `rows/`, each removed once no state has it
//! any more.
//!
//! They outlive no process: a restart makes them anew from what is kept of states and aggregates.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use muster_core::ids::ShardId;
use muster_core::messages::offer::StateVector;
use muster_core::state::{Shard, ShardRoots, ShardView, State, vector_root};

use crate::error::{Result, StoreError};
use crate::files::{self, Care};
use crate::home::{Home, ROWS};
use crate::patience::patiently;
use crate::vectors::{VECTORS, damaged, read_reals, write_reals};

const ADVICE: &str = "check the disk and start again: what lies there is computed anew";

/// Rows of one state, by shard.
pub type Rows = BTreeMap<ShardId, RowFile>;

/// The directory of the shards that a process does not keep in memory.
#[derive(Clone, Debug)]
pub struct RowFiles {
    directory: PathBuf,
    /// Number of the next file.
    next: Arc<AtomicU64>,
}

/// A row of a state. Copies of it share its files, which go with the last of them.
#[derive(Clone, Debug)]
pub struct RowFile {
    /// The row under the number that it was written with: states may have it under others.
    shard: Shard,
    exponents: Arc<[i16]>,
    roots: ShardRoots,
    parameters: Arc<ScratchFile>,
    moments: Option<Arc<ScratchFile>>,
}

/// A file that is removed when this is dropped.
#[derive(Debug)]
struct ScratchFile(PathBuf);

impl Home {
    /// Where rows lie that are not kept in memory. What another process left there is dropped.
    ///
    /// # Errors
    /// What the system reports.
    pub fn row_files(&self) -> Result<RowFiles> {
        let directory = self.at(ROWS);
        files::remove_directory(&directory)?;
        files::make_directory(&directory)?;
        Ok(RowFiles { directory, next: Arc::default() })
    }
}

impl RowFiles {
    /// Writes a row down, which has these roots, with whatever it has of its moments. Nothing is synced.
    ///
    /// # Errors
    /// [`crate::error::Kind::Full`]; what the system reports.
    pub fn put(&self, row: ShardView<'_>, roots: ShardRoots) -> Result<RowFile> {
        let [parameters, moments @ ..] = row.vectors;
        let has_moments = moments.iter().all(|moments| moments.len() == parameters.len());
        Ok(RowFile {
            shard: row.shard,
            exponents: row.exponents.into(),
            roots,
            parameters: self.write(&[parameters])?,
            moments: has_moments.then(|| self.write(&moments)).transpose()?,
        })
    }

    fn write(&self, vectors: &[&[f32]]) -> Result<Arc<ScratchFile>> {
        let path = self.directory.join(format!("{}.row", self.next.fetch_add(1, Ordering::Relaxed)));
        files::write(&path, Care::Cheap, |file| {
            vectors.iter().try_for_each(|values| write_reals(file, values))
        })?;
        Ok(Arc::new(ScratchFile(path)))
    }
}

impl RowFile {
    /// The row as it is, by another state's number for it or by its own.
    pub fn shard(&self, id: ShardId) -> Shard {
        Shard { id, ..self.shard }
    }

    /// Exponents of its tensors.
    pub fn exponents(&self) -> &[i16] {
        &self.exponents
    }

    /// Its roots.
    pub fn roots(&self) -> &ShardRoots {
        &self.roots
    }

    /// The same row without its moments, whose file may go then.
    #[must_use]
    pub fn without_moments(&self) -> Self {
        Self { moments: None, ..self.clone() }
    }

    /// A state of this row alone, with its moments, under this number.
    ///
    /// # Errors
    /// [`crate::error::Kind::Refused`] when its moments are not kept; [`crate::error::Kind::Corrupt`] when the disk has changed
    /// a bit; what the system reports.
    pub fn load(&self, id: ShardId) -> Result<State> {
        self.read(id, &VECTORS)
    }

    /// The same without its moments.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn load_parameters(&self, id: ShardId) -> Result<State> {
        self.read(id, &VECTORS[..1])
    }

    fn read(&self, id: ShardId, vectors: &[StateVector]) -> Result<State> {
        let mut read = Vec::with_capacity(vectors.len());
        for vector in vectors {
            let (path, file) = self.open(*vector)?;
            let values = read_reals(&mut BufReader::new(file), self.shard.size.coefficients);
            let values = values.map_err(|error| StoreError::io(path, &error).advise(ADVICE))?;
            if vector_root(&values) != vector.root(&self.roots) {
                return Err(StoreError::corrupt(path, "its values do not give its roots", ADVICE));
            }
            read.push(values.into());
        }
        let mut read = read.into_iter();
        let mut next = || read.next().unwrap_or_default();
        let (shards, exponents) = (vec![self.shard(id)], self.exponents.to_vec());
        Ok(State { shards, exponents, parameters: next(), first: next(), second: next() })
    }

    /// The file of a vector, at its first value.
    fn open(&self, vector: StateVector) -> Result<(&Path, File)> {
        let moments = self.moments.as_deref();
        let (file, before) = match vector {
            StateVector::First => (moments, 0),
            StateVector::Second => (moments, self.shard.size.coefficients),
            StateVector::Parameters | StateVector::Exponents => (Some(&*self.parameters), 0),
        };
        let lacks = || {
            StoreError::refused(&self.parameters.0, "is a row without its moments", "ask for a newer state")
        };
        let ScratchFile(path) = file.ok_or_else(lacks)?;
        let opened = patiently(|| File::open(path)).and_then(|mut file| {
            file.seek(SeekFrom::Start(4 * before as u64))?;
            Ok(file)
        });
        Ok((path, opened.map_err(|error| StoreError::io(path, &error).advise(ADVICE))?))
    }

    /// Writes the bytes of one of its vectors to `to`; they are not checked.
    pub(crate) fn copy(&self, vector: StateVector, to: &mut dyn Write) -> io::Result<()> {
        let (_, file) = self.open(vector).map_err(io::Error::other)?;
        let bytes = 4 * self.shard.size.coefficients as u64;
        let copied = io::copy(&mut file.take(bytes), to)?;
        if copied == bytes { Ok(()) } else { Err(damaged("a row is cut short")) }
    }
}

impl Drop for ScratchFile {
    fn drop(&mut self) {
        // What stays is dropped with the directory at the next start.
        let _ = files::remove(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use muster_core::layout::ShardSize;

    use super::*;
    use crate::error::Kind;

    fn row(values: usize) -> State {
        let reals = |scale: f32| (0..values).map(|place| place as f32 * scale - 3.0).collect();
        let size = ShardSize { exponents: 2, coefficients: values };
        let shard = Shard { id: ShardId(1), step: 7, beta_powers: [0.5, 0.25], size };
        let (shards, exponents) = (vec![shard], vec![-12, 9]);
        State { shards, exponents, parameters: reals(0.25), first: reals(0.5), second: reals(1.0) }
    }

    #[test]
    fn a_row_comes_back_under_any_number_and_goes_with_its_last_owner() {
        let directory = tempfile::tempdir().unwrap();
        let home = Home::open(directory.path()).unwrap();
        let (files, state) = (home.row_files().unwrap(), row(100_000));
        let put = |state: &State| files.put(state.shard(ShardId(1)).unwrap(), state.roots().shards[0]);
        let file = put(&state).unwrap();
        assert_eq!(file.load(ShardId(1)).unwrap(), state);
        let other = file.load(ShardId(4)).unwrap();
        assert_eq!(other.shards[0].id, ShardId(4));
        assert_eq!(State { shards: state.shards.clone(), ..other }, state);
        let parameters = file.load_parameters(ShardId(1)).unwrap();
        assert!(parameters.first.is_empty() && parameters.parameters == state.parameters);
        let mut copied = Vec::new();
        file.copy(StateVector::First, &mut copied).unwrap();
        assert_eq!(copied, muster_core::state::real_bytes(&state.first));

        let second = file.clone();
        let alone = file.without_moments();
        drop(file);
        let count = || fs::read_dir(home.at(ROWS)).unwrap().count();
        assert_eq!(count(), 2);
        let path = second.parameters.0.clone();
        let whole = fs::read(&path).unwrap();
        for forged in [&whole[..whole.len() - 1], &[&[whole[0] ^ 1], &whole[1..]].concat()] {
            fs::write(&path, forged).unwrap();
            let error = second.load(ShardId(1)).unwrap_err();
            assert!(error.kind() != Kind::Missing && error.to_string().contains(".row"), "{error}");
        }
        fs::write(&path, whole).unwrap();
        drop(second);
        assert_eq!(count(), 1);
        assert_eq!(alone.load_parameters(ShardId(1)).unwrap().parameters, state.parameters);
        assert_eq!(alone.load(ShardId(1)).unwrap_err().kind(), Kind::Refused);
        drop(alone);
        assert_eq!(count(), 0);
        // What a killed process left is gone with the next one.
        std::mem::forget(put(&state).unwrap());
        assert_eq!(count(), 2);
        home.row_files().unwrap();
        assert_eq!(count(), 0);
    }
}
