//! The leaves of a contribution, from when they are computed until no audit needs them: in memory where they are small, else
//! packed in a file.
//!
//! The file has no name: the system frees it with its last handle, however the process ends. A restart computes leaves again.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::path::Path;
use std::sync::{Arc, Mutex};

use muster_compute::{Workers, row};
use muster_core::aggregate::Runner;
use muster_core::lock::lock;
use muster_core::messages::audit::{Rows, TableRow};
use muster_core::packing::{pack, unpack};
use muster_core::sketch::Probe;

/// Integers that are packed at a time.
const PIECE: usize = 1 << 18;

/// The grid integers of a leaf, and its fixed-point loss.
pub type LeafSum = (Vec<i32>, i64);

/// Vectors to be used again: the pages of a fresh one cost more time than its sums.
#[derive(Clone, Default)]
pub struct Spares(Arc<Mutex<Vec<Vec<i32>>>>);

impl Spares {
    /// Most bytes kept, unless vectors are so large that it would be fewer than [`Self::LEAST`].
    const BYTES: usize = 256 << 20;
    /// Bytes kept from one contribution to the next.
    const IDLE: usize = 32 << 20;
    /// Vectors kept, however large: as many leaves are on their way at once where a device computes them. New ones from the
    /// system cost as much as a fast device's leaf.
    const LEAST: usize = 3;

    /// A vector of `length` numbers with arbitrary content.
    pub fn any(&self, length: usize) -> Vec<i32> {
        let mut vector = self.take();
        vector.resize(length, 0);
        vector
    }

    /// A copy of these values.
    pub fn copy(&self, values: &[i32]) -> Vec<i32> {
        let mut copy = self.take();
        copy.clear();
        copy.extend_from_slice(values);
        copy
    }

    /// Takes a vector back.
    pub fn put(&self, vector: Vec<i32>) {
        let mut spares = lock(&self.0);
        if (spares.len() + 1) * vector.len() * 4 <= Self::BYTES || spares.len() < Self::LEAST {
            spares.push(vector);
        }
    }

    /// Between contributions: vectors beyond `IDLE` go. What takes their place until the next leaf is as large.
    pub fn rest(&self) {
        let mut spares = lock(&self.0);
        let mut room = Self::IDLE;
        spares.retain(|vector| {
            let left = room.checked_sub(size_of_val(&**vector));
            room = left.unwrap_or(room);
            left.is_some()
        });
    }

    /// A vector of any length, with arbitrary content.
    pub fn take(&self) -> Vec<i32> {
        lock(&self.0).pop().unwrap_or_default()
    }
}

/// The rows of these leaves, computed on `threads` threads.
pub fn rows_of(probe: &Probe, leaves: &[LeafSum], threads: usize) -> Option<Rows> {
    let rows = leaves.iter().map(|(q, loss)| row(threads, probe, q, *loss));
    Rows::new(rows.collect()).ok()
}

/// Leaves that were kept, in order.
pub enum Leaves {
    /// As they were computed.
    Memory(Vec<LeafSum>),
    /// Packed.
    Packed(PackedLeaves),
    /// There is one leaf, which is the sum itself.
    Sum,
}

impl Leaves {
    /// A row of each; `sum` gives that of the sum.
    ///
    /// # Errors
    /// What the system reports of the file.
    pub fn rows(
        &self,
        probe: &Probe,
        sum: impl FnOnce() -> TableRow,
        threads: usize,
    ) -> io::Result<Option<Rows>> {
        match self {
            Self::Memory(leaves) => Ok(rows_of(probe, leaves, threads)),
            Self::Sum => Ok(Rows::new(vec![sum()]).ok()),
            Self::Packed(packed) => {
                let mut rows = Vec::new();
                packed.each(threads, &mut |leaf, loss| rows.push(row(threads, probe, leaf, loss)))?;
                Ok(Rows::new(rows).ok())
            }
        }
    }

    /// Bytes of memory that they take.
    pub fn memory(&self) -> usize {
        match self {
            Self::Memory(leaves) => leaves.iter().map(|(leaf, _)| leaf.len() * size_of::<i32>()).sum(),
            Self::Packed(_) | Self::Sum => 0,
        }
    }

    /// Gives their vectors back.
    pub fn spare(self, spares: &Spares) {
        if let Self::Memory(leaves) = self {
            leaves.into_iter().for_each(|(leaf, _)| spares.put(leaf));
        }
    }
}

/// Leaves in a file, packed as contributions are (COMMIT-6): about two bytes an integer.
pub struct PackedLeaves {
    file: Mutex<File>,
    /// The loss of each, and the bytes of each of its pieces.
    leaves: Vec<(i64, Vec<usize>)>,
    /// Integers of each.
    length: usize,
}

impl PackedLeaves {
    /// None yet, in a file within this folder.
    ///
    /// # Errors
    /// What the system reports.
    pub fn within(folder: &Path) -> io::Result<Self> {
        Ok(Self { file: Mutex::new(tempfile::tempfile_in(folder)?), leaves: Vec::new(), length: 0 })
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.leaves.len()
    }

    /// Adds a leaf, as long as the others.
    ///
    /// # Errors
    /// What the system reports. There is no use for the leaves then.
    pub fn add(&mut self, threads: usize, leaf: &[i32], loss: i64) -> io::Result<()> {
        let (workers, mut lengths) = (Workers::new(threads), Vec::new());
        let mut file = lock(&self.file);
        let pieces: Vec<&[i32]> = leaf.chunks(PIECE).collect();
        for batch in pieces.chunks(threads.max(1)) {
            for packed in workers.each(batch.len(), |index| batch.get(index).map(|piece| pack(piece))) {
                let packed = packed.unwrap_or_default();
                file.write_all(&packed)?;
                lengths.push(packed.len());
            }
        }
        drop(file);
        self.length = leaf.len();
        self.leaves.push((loss, lengths));
        Ok(())
    }

    /// Gives each leaf, with its loss.
    ///
    /// # Errors
    /// What the system reports; [`io::ErrorKind::InvalidData`] where the file has changed.
    pub fn each(&self, threads: usize, take: &mut dyn FnMut(&[i32], i64)) -> io::Result<()> {
        let mut file = lock(&self.file);
        file.rewind()?;
        let (workers, mut leaf) = (Workers::new(threads), Vec::with_capacity(self.length));
        for (loss, lengths) in &self.leaves {
            leaf.clear();
            for batch in lengths.chunks(threads.max(1)) {
                let mut packed = Vec::with_capacity(batch.len());
                for length in batch {
                    let mut bytes = vec![0; *length];
                    file.read_exact(&mut bytes)?;
                    let count = PIECE.min(self.length - leaf.len() - packed.len() * PIECE);
                    packed.push((bytes, count));
                }
                let unpacked = workers.each(packed.len(), |index| {
                    let (bytes, count) = packed.get(index)?;
                    let mut integers = Vec::with_capacity(*count);
                    unpack(bytes, *count, &mut integers).ok().map(|()| integers)
                });
                for integers in unpacked {
                    leaf.extend(integers.ok_or(io::ErrorKind::InvalidData)?);
                }
            }
            take(&leaf, *loss);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaf(seed: i32, length: usize) -> Vec<i32> {
        (0..length as i32).map(|place| place.wrapping_mul(seed * 7919) >> 20).collect()
    }

    #[test]
    fn packed_leaves_have_the_rows_of_those_in_memory() {
        let folder = tempfile::tempdir().unwrap();
        let probe = Probe::exact(&muster_core::ids::Digest([3; 32]));
        for length in [1, PIECE, 3 * PIECE + 77] {
            let leaves: Vec<LeafSum> = (1..4).map(|seed| (leaf(seed, length), i64::from(seed))).collect();
            for threads in [1, 2] {
                let mut packed = PackedLeaves::within(folder.path()).unwrap();
                leaves.iter().for_each(|(leaf, loss)| packed.add(threads, leaf, *loss).unwrap());
                assert_eq!(packed.count(), 3);
                let sum = || probe.row(&[], 0);
                let of = |leaves: &Leaves| leaves.rows(&probe, sum, threads).unwrap().unwrap();
                let packed = Leaves::Packed(packed);
                // Twice: several audits may ask.
                assert_eq!(of(&packed), of(&Leaves::Memory(leaves.clone())));
                assert_eq!(of(&packed), of(&Leaves::Memory(leaves.clone())));
                assert_eq!(packed.memory(), 0);
            }
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "no file has a name");
    }

    #[test]
    fn a_file_that_has_changed_gives_no_rows() {
        let folder = tempfile::tempdir().unwrap();
        let mut packed = PackedLeaves::within(folder.path()).unwrap();
        packed.add(1, &leaf(5, 1000), 9).unwrap();
        let change = |change: &dyn Fn(&mut File) -> io::Result<()>| change(&mut lock(&packed.file)).unwrap();
        change(&|file| file.rewind().and_then(|()| file.write_all(&[255; 8])));
        assert!(packed.each(1, &mut |_, _| ()).is_err());
        change(&|file| file.set_len(8));
        assert!(packed.each(1, &mut |_, _| ()).is_err());
    }

    #[test]
    fn large_vectors_are_not_kept_from_one_contribution_to_the_next() {
        let spares = Spares::default();
        let small = Spares::IDLE / size_of::<i32>() / 2;
        [small, small + 1, small, 7].into_iter().for_each(|length| spares.put(vec![0; length]));
        spares.rest();
        let kept: Vec<usize> = (0..4).map(|_| spares.take().len()).collect();
        assert_eq!(kept, [small, small, 0, 0]);
        spares.put(vec![0; 2 * small + 1]);
        spares.rest();
        assert_eq!(spares.take().len(), 0);
    }

    #[test]
    fn one_leaf_is_the_sum() {
        let probe = Probe::exact(&muster_core::ids::Digest([4; 32]));
        let (q, loss) = (leaf(3, 500), 12);
        let rows = |leaves: Leaves| leaves.rows(&probe, || probe.row(&q, loss), 1).unwrap();
        assert_eq!(rows(Leaves::Sum), rows(Leaves::Memory(vec![(q.clone(), loss)])));
    }
}
