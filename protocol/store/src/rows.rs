//! Shards on disk instead of in memory, those of large models and rows of experts above all: scratch files in `rows/`, each
//! spare once neither a state nor what is kept for others has it any more.
//!
//! They outlive no process: a restart makes them anew from what is kept of states and aggregates.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use muster_core::ids::ShardId;
use muster_core::layout::ShardSize;
use muster_core::messages::offer::StateVector;
use muster_core::state::{Shard, ShardRoots, ShardView, State, VectorHasher, real_bytes, reals};

use crate::error::{Result, StoreError};
use crate::home::{Home, ROWS};
use crate::patience::patiently;
use crate::scratch::{ScratchFile, ScratchFiles};
use crate::vectors::{PIECE, VECTORS, damaged, read_at};

const ADVICE: &str = "check the disk and start again: what lies there is computed anew";

/// Rows of one state, by shard.
pub type Rows = BTreeMap<ShardId, RowFile>;

/// The directory of the shards that a process does not keep in memory.
#[derive(Clone, Debug)]
pub struct RowFiles(ScratchFiles);

/// A row of a state. Copies of it share its files, which go with the last of them.
#[derive(Clone, Debug)]
pub struct RowFile {
    /// The row under the number that it was written with: states may have it under others.
    shard: Shard,
    exponents: Arc<[i16]>,
    roots: ShardRoots,
    parameters: Arc<ScratchFile>,
    moments: Option<Arc<ScratchFile>>,
    /// A checksum of each piece of each vector.
    // Of 32 bits: it tells what a disk has changed, and nobody else can write there.
    sums: Arc<[Vec<u32>; 3]>,
}

impl Home {
    /// Where rows lie that are not kept in memory. What another process left there is dropped.
    ///
    /// # Errors
    /// What the system reports.
    pub fn row_files(&self) -> Result<RowFiles> {
        ScratchFiles::open(self.at(ROWS)).map(RowFiles)
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
        let mut new = self.begin_known(row.shard.size, has_moments)?;
        for (vector, values) in VECTORS.into_iter().zip(row.vectors).take(if has_moments { 3 } else { 1 }) {
            new.write(vector, values)?;
        }
        new.finish_as(row.shard, row.exponents, roots)
    }

    /// As [`Self::begin`], a row whose roots are known.
    pub(crate) fn begin_known(&self, size: ShardSize, has_moments: bool) -> Result<NewRow> {
        let mut new = self.begin(size, has_moments)?;
        new.writers.iter_mut().flatten().for_each(|writer| writer.hasher = None);
        Ok(new)
    }

    /// Begins a row of this size, with moments or without, whose vectors are written next.
    ///
    /// # Errors
    /// As [`Self::put`].
    pub fn begin(&self, size: ShardSize, has_moments: bool) -> Result<NewRow> {
        let bytes = 4 * size.coefficients as u64;
        let parameters = self.0.file(bytes)?;
        let moments = has_moments.then(|| self.0.file(2 * bytes)).transpose()?;
        let writer = |vector: StateVector| {
            let (path, before) = match vector {
                StateVector::Parameters | StateVector::Exponents => (Some(&parameters), 0),
                StateVector::First => (moments.as_ref(), 0),
                StateVector::Second => (moments.as_ref(), size.coefficients),
            };
            path.map(|path| VectorWriter::open(path, before)).transpose()
        };
        let writers = [writer(VECTORS[0])?, writer(VECTORS[1])?, writer(VECTORS[2])?];
        Ok(NewRow { size, parameters, moments, writers })
    }
}

/// A row that is being written, each vector from its first value to its last. Dropped, it leaves nothing.
pub struct NewRow {
    size: ShardSize,
    parameters: Arc<ScratchFile>,
    moments: Option<Arc<ScratchFile>>,
    /// None of moments that it does not have.
    writers: [Option<VectorWriter>; 3],
}

impl NewRow {
    /// Writes the next values of a vector.
    ///
    /// # Errors
    /// [`crate::error::Kind::Full`]; what the system reports. The row is of no use any more then.
    pub fn write(&mut self, vector: StateVector, values: &[f32]) -> Result<()> {
        let mut writers = self.writers.iter_mut().zip(VECTORS);
        let writer = writers.find(|(_, written)| *written == vector).and_then(|(writer, _)| writer.as_mut());
        let writer = writer.ok_or_else(|| lacks_moments(self.parameters.path()))?;
        writer.write(values)?;
        // It may be read from here on.
        if writer.written == self.size.coefficients { writer.end() } else { Ok(()) }
    }

    /// Reads a vector again that was written as a whole; none of another one.
    ///
    /// # Errors
    /// What the system reports.
    pub fn reader(&self, vector: StateVector) -> Result<Option<VectorReader>> {
        let written = self.writers.iter().zip(VECTORS).find(|(_, written)| *written == vector);
        match written.and_then(|(writer, _)| writer.as_ref()) {
            Some(writer) if writer.written == self.size.coefficients => {
                let file = writer.of.clone();
                VectorReader::open(file, writer.before, self.size.coefficients, writer.sums.clone()).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// As [`Self::finish`], with the roots that the row is known to have.
    pub(crate) fn finish_as(self, shard: Shard, exponents: &[i16], roots: ShardRoots) -> Result<RowFile> {
        Ok(RowFile { roots, ..self.finish(shard, exponents)? })
    }

    /// The row, once all of its vectors are written.
    ///
    /// # Errors
    /// [`crate::error::Kind::Refused`] where values are missing; what the system reports.
    pub fn finish(self, shard: Shard, exponents: &[i16]) -> Result<RowFile> {
        let Self { size, parameters, moments, writers } = self;
        let mut sums: [Vec<u32>; 3] = Default::default();
        // Moments that it does not have count as absent: no moments have that root.
        let mut roots = [VectorHasher::default().finish(); 3];
        for ((writer, sums), root) in writers.into_iter().zip(&mut sums).zip(&mut roots) {
            if let Some(writer) = writer {
                if writer.written != size.coefficients {
                    return Err(StoreError::refused(
                        parameters.path(),
                        "is a row without all of its values",
                        "nothing is kept",
                    ));
                }
                *sums = writer.sums;
                if let Some(hasher) = writer.hasher {
                    *root = hasher.finish();
                }
            }
        }
        let [values, first, second] = roots;
        let roots = ShardRoots {
            step: shard.step,
            beta_powers: shard.beta_powers.map(f64::to_bits),
            exponents: muster_core::state::exponents_hash(exponents),
            parameters: values,
            first,
            second,
        };
        let (exponents, sums) = (exponents.into(), Arc::new(sums));
        [Some(&parameters), moments.as_ref()].into_iter().flatten().for_each(|file| file.complete());
        Ok(RowFile { shard, exponents, roots, parameters, moments, sums })
    }
}

/// Writes a vector, and computes its root and checksums on the way.
struct VectorWriter {
    of: Arc<ScratchFile>,
    file: File,
    /// Values that stand before it in the file.
    before: usize,
    /// Values so far, and those of them that are not in the file yet.
    written: usize,
    pending: Vec<f32>,
    /// None where its root is known.
    hasher: Option<VectorHasher>,
    sums: Vec<u32>,
}

impl VectorWriter {
    fn open(of: &Arc<ScratchFile>, before: usize) -> Result<Self> {
        let path = of.path();
        let opened = patiently(|| File::options().write(true).open(path)).and_then(|mut file| {
            file.seek(SeekFrom::Start(4 * before as u64))?;
            Ok(file)
        });
        let file = opened.map_err(|error| StoreError::io(path, &error))?;
        let (pending, sums) = (Vec::with_capacity(PIECE), Vec::new());
        let hasher = Some(VectorHasher::default());
        Ok(Self { of: of.clone(), file, before, written: 0, pending, hasher, sums })
    }

    fn write(&mut self, mut values: &[f32]) -> Result<()> {
        if let Some(hasher) = &mut self.hasher {
            hasher.update(values);
        }
        self.written += values.len();
        while self.pending.len() + values.len() >= PIECE {
            let (now, later) = values.split_at(PIECE - self.pending.len());
            values = later;
            if self.pending.is_empty() {
                self.put(now)?;
            } else {
                self.pending.extend_from_slice(now);
                self.flush()?;
            }
        }
        self.pending.extend_from_slice(values);
        Ok(())
    }

    fn put(&mut self, piece: &[f32]) -> Result<()> {
        let bytes = real_bytes(piece);
        self.sums.push(crc32fast::hash(&bytes));
        // The moments that a run begins with: of a billion parameters 8 GB of nothing.
        let put = if self.of.is_new() && bytes.iter().all(|byte| *byte == 0) {
            self.file.seek_relative(bytes.len() as i64)
        } else {
            self.file.write_all(&bytes)
        };
        put.map_err(|error| StoreError::io(self.of.path(), &error))
    }

    /// Writes what is left, after the last value.
    fn end(&mut self) -> Result<()> {
        self.flush()?;
        let end = 4 * (self.before + self.written) as u64;
        let length = self.file.metadata().map(|file| file.len());
        let grown = length.and_then(|length| if length < end { self.file.set_len(end) } else { Ok(()) });
        grown.map_err(|error| StoreError::io(self.of.path(), &error))
    }

    /// Writes what waits for the rest of a piece.
    fn flush(&mut self) -> Result<()> {
        let pending = std::mem::take(&mut self.pending);
        if !pending.is_empty() {
            self.put(&pending)?;
        }
        self.pending = pending;
        self.pending.clear();
        Ok(())
    }
}

/// Reads a vector from its first value to its last, and compares it with its checksums on the way.
pub struct VectorReader {
    /// Somebody has it, so that nothing else is written there.
    of: Arc<ScratchFile>,
    file: File,
    /// Values that were not read from the file yet.
    left: usize,
    sums: std::vec::IntoIter<u32>,
    /// A piece of it, and how much of that was given.
    piece: Vec<f32>,
    given: usize,
}

impl VectorReader {
    fn open(of: Arc<ScratchFile>, before: usize, count: usize, sums: Vec<u32>) -> Result<Self> {
        let opened = patiently(|| File::open(of.path())).and_then(|mut file| {
            file.seek(SeekFrom::Start(4 * before as u64))?;
            Ok(file)
        });
        let file = opened.map_err(|error| StoreError::io(of.path(), &error).advise(ADVICE))?;
        Ok(Self { of, file, left: count, sums: sums.into_iter(), piece: Vec::new(), given: 0 })
    }

    /// Puts the next `count` values behind those of `into`.
    ///
    /// # Errors
    /// [`crate::error::Kind::Corrupt`] when the disk has changed a bit, or there are no more values; what the system reports.
    pub fn read(&mut self, mut count: usize, into: &mut Vec<f32>) -> Result<()> {
        into.reserve(count);
        while count > 0 {
            if self.given == self.piece.len() {
                let read = self.next_piece();
                read.map_err(|error| StoreError::io(self.of.path(), &error).advise(ADVICE))?;
            }
            let some = &self.piece[self.given..];
            let some = &some[..count.min(some.len())];
            into.extend_from_slice(some);
            self.given += some.len();
            count -= some.len();
        }
        Ok(())
    }

    fn next_piece(&mut self) -> io::Result<()> {
        let length = self.left.min(PIECE);
        let sum = self.sums.next().ok_or_else(|| damaged("it has no more values"))?;
        let mut bytes = vec![0; 4 * length];
        self.file.read_exact(&mut bytes)?;
        if crc32fast::hash(&bytes) != sum {
            return Err(damaged("its values do not give their checksum"));
        }
        (self.piece, self.given) = (reals(&bytes), 0);
        self.left -= length;
        Ok(())
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
        let mut read: [Vec<f32>; 3] = Default::default();
        for (vector, values) in vectors.iter().zip(&mut read) {
            self.reader(*vector)?.read(self.shard.size.coefficients, values)?;
        }
        let [parameters, first, second] = read.map(Into::into);
        let (shards, exponents) = (vec![self.shard(id)], self.exponents.to_vec());
        Ok(State { shards, exponents, parameters, first, second })
    }

    /// Reads one of its vectors.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn reader(&self, vector: StateVector) -> Result<VectorReader> {
        let (file, before) = self.place(vector)?;
        let sums = self.sums.iter().zip(VECTORS).find(|(_, of)| *of == vector);
        let sums = sums.map(|(sums, _)| sums.clone()).unwrap_or_default();
        VectorReader::open(file.clone(), before, self.shard.size.coefficients, sums)
    }

    /// The file of a vector, and how many values stand before it there.
    fn place(&self, vector: StateVector) -> Result<(&Arc<ScratchFile>, usize)> {
        let moments = self.moments.as_ref();
        let (file, before) = match vector {
            StateVector::First => (moments, 0),
            StateVector::Second => (moments, self.shard.size.coefficients),
            StateVector::Parameters | StateVector::Exponents => (Some(&self.parameters), 0),
        };
        Ok((file.ok_or_else(|| lacks_moments(self.parameters.path()))?, before))
    }

    /// Reads the little-endian bytes of some values of one of its vectors, which are not checked.
    pub(crate) fn read_some(
        &self,
        vector: StateVector,
        values: Range<usize>,
        bytes: &mut [u8],
    ) -> Result<()> {
        let (file, before) = self.place(vector)?;
        let path = file.path();
        let opened = patiently(|| File::open(path));
        let read = opened.and_then(|mut file| read_at(&mut file, 4 * (before + values.start) as u64, bytes));
        read.map_err(|error| StoreError::io(path, &error).advise(ADVICE))
    }

    /// Writes the bytes of one of its vectors to `to`; they are not checked.
    pub(crate) fn copy(&self, vector: StateVector, to: &mut dyn Write) -> io::Result<()> {
        let (file, before) = self.place(vector).map_err(io::Error::other)?;
        let mut file = patiently(|| File::open(file.path()))?;
        file.seek(SeekFrom::Start(4 * before as u64))?;
        let bytes = 4 * self.shard.size.coefficients as u64;
        let copied = io::copy(&mut file.take(bytes), to)?;
        if copied == bytes { Ok(()) } else { Err(damaged("a row is cut short")) }
    }
}

fn lacks_moments(path: &Path) -> StoreError {
    StoreError::refused(path, "is a row without its moments", "ask for a newer state")
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
        assert_eq!(copied[..], real_bytes(&state.first)[..]);

        let second = file.clone();
        let alone = file.without_moments();
        drop(file);
        let count = || fs::read_dir(home.at(ROWS)).unwrap().count();
        assert_eq!(count(), 2);
        let path = second.parameters.path().to_owned();
        let whole = fs::read(&path).unwrap();
        for forged in [&whole[..whole.len() - 1], &[&[whole[0] ^ 1], &whole[1..]].concat()] {
            fs::write(&path, forged).unwrap();
            let error = second.load(ShardId(1)).unwrap_err();
            assert!(error.kind() != Kind::Missing && error.to_string().contains(".row"), "{error}");
        }
        fs::write(&path, whole).unwrap();
        // The moments' file waits for the next moments.
        drop(second);
        assert_eq!(count(), 2);
        assert_eq!(alone.load_parameters(ShardId(1)).unwrap().parameters, state.parameters);
        assert_eq!(alone.load(ShardId(1)).unwrap_err().kind(), Kind::Refused);
        drop(alone);
        assert_eq!(count(), 2);
        // Another row is written over it, with its own values.
        let other = State { parameters: vec![0.5; 100_000].into(), ..row(100_000) };
        assert_eq!((put(&other).unwrap().load(ShardId(1)).unwrap(), count()), (other, 2));
        // What is zero takes no room, and reads as zeros.
        let size = ShardSize { exponents: 2, coefficients: 3_000_000 };
        let shard = Shard { size, ..row(0).shards[0] };
        let zeros = || vec![0.0; size.coefficients];
        let young = State {
            shards: vec![shard],
            parameters: vec![0.25; size.coefficients].into(),
            first: zeros().into(),
            second: zeros().into(),
            ..row(0)
        };
        let young_file = put(&young).unwrap();
        assert_eq!(young_file.load(ShardId(1)).unwrap(), young);
        #[cfg(unix)]
        {
            use std::os::unix::fs::MetadataExt;
            let moments = fs::metadata(young_file.moments.as_ref().unwrap().path()).unwrap();
            assert!(moments.len() == 24_000_000 && moments.blocks() * 512 < 1 << 20, "{}", moments.blocks());
        }
        drop(young_file);
        // What a killed process left is gone with the next one.
        let others = count();
        std::mem::forget(put(&state).unwrap());
        assert_eq!(count(), others);
        home.row_files().unwrap();
        assert_eq!(count(), 0);
    }
}
