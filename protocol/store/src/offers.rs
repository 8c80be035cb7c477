//! States that are kept for others to fetch, with their moments, as rows on the disk: those that the state has there already, and
//! copies of what it has in memory.

use std::ops::Range;
use std::path::PathBuf;

use muster_core::ids::{Round, ShardId};
use muster_core::layout::ShardSize;
use muster_core::messages::offer::StateVector;
use muster_core::state::{Shard, State, StateRoots};

use crate::error::{Result, StoreError};
use crate::home::ROWS;
use crate::rows::{RowFiles, Rows};
use crate::vectors::{PIECE, VECTORS};

/// What is known of a state before its values are read.
pub struct OfferHead {
    round: Round,
    roots: StateRoots,
    /// Shards in memory, with their exponents.
    in_memory: Vec<(Shard, Vec<i16>)>,
    rows: Rows,
}

impl OfferHead {
    /// Of the state before a round, which has these roots: of shards in memory and rows behind them.
    pub fn of(round: Round, state: &State, rows: &Rows, roots: &StateRoots) -> Self {
        let mut exponents = state.exponents.iter().copied();
        let own = |shard: &Shard| (*shard, exponents.by_ref().take(shard.size.exponents).collect());
        Self {
            round,
            roots: roots.clone(),
            in_memory: state.shards.iter().map(own).collect(),
            rows: rows.clone(),
        }
    }
}

/// Some values of a vector, counted over all shards in memory; none once the state has moved on.
pub type Values<'a> = &'a mut dyn FnMut(StateVector, Range<usize>) -> Option<Vec<f32>>;

/// A state that is kept for others. Its values are not checked: their proofs are. Its files stay for as long as this does.
pub struct OfferFile {
    round: Round,
    /// Of all shards of the run.
    roots: StateRoots,
    rows: Rows,
}

impl RowFiles {
    /// Keeps a state for others. The values in memory are asked for piece by piece, so that a state that somebody computes with
    /// need not be copied; none if not all were given. Nothing is synced: it outlives no process.
    ///
    /// # Errors
    /// [`crate::error::Kind::Full`]; [`crate::error::Kind::Refused`] if the roots lack one of its shards; what the system reports.
    pub fn keep(&self, head: OfferHead, values: Values<'_>) -> Result<Option<OfferFile>> {
        let OfferHead { round, roots, in_memory, mut rows } = head;
        let mut before = 0;
        for (shard, exponents) in in_memory {
            let (id, count) = (shard.id, shard.size.coefficients);
            let lacks =
                || StoreError::refused(&PathBuf::from(ROWS), "a shard has no roots", "nothing is kept");
            let known = *roots.shard(id).ok_or_else(lacks)?;
            let mut new = self.begin_known(shard.size, true)?;
            for vector in VECTORS {
                for first in (0..count).step_by(PIECE) {
                    let piece = before + first..before + (first + PIECE).min(count);
                    let Some(piece) = values(vector, piece) else { return Ok(None) };
                    new.write(vector, &piece)?;
                }
            }
            rows.insert(id, new.finish_as(shard, &exponents, known)?);
            before += count;
        }
        Ok(Some(OfferFile { round, roots, rows }))
    }
}

impl OfferFile {
    /// The round that the state is before.
    pub fn round(&self) -> Round {
        self.round
    }

    /// Its roots, of all shards of the run.
    pub fn roots(&self) -> &StateRoots {
        &self.roots
    }

    /// Bytes of all its values, exponents included.
    pub fn bytes(&self) -> u64 {
        let of =
            |size: ShardSize| 4 * VECTORS.len() as u64 * size.coefficients as u64 + 2 * size.exponents as u64;
        self.rows.iter().map(|(id, row)| of(row.shard(*id).size)).sum()
    }

    /// How large a shard is that it holds.
    pub fn size(&self, shard: ShardId) -> Option<ShardSize> {
        self.rows.get(&shard).map(|row| row.shard(shard).size)
    }

    /// Little-endian bytes of some values of a shard's vector. Reads the disk, for all but exponents.
    ///
    /// # Errors
    /// [`crate::error::Kind::Refused`] for values that it does not hold; what the system reports.
    pub fn read(&self, shard: ShardId, vector: StateVector, values: Range<usize>) -> Result<Vec<u8>> {
        let absent = || StoreError::refused(&PathBuf::from(ROWS), "holds no such values", "ask for others");
        let row = self.rows.get(&shard).ok_or_else(absent)?;
        if values.start > values.end || values.end > vector.values(row.shard(shard).size) {
            return Err(absent());
        }
        if vector == StateVector::Exponents {
            let exponents = row.exponents().get(values).ok_or_else(absent)?;
            return Ok(exponents.iter().flat_map(|value| value.to_le_bytes()).collect());
        }
        let mut bytes = vec![0; 4 * values.len()];
        row.read_some(vector, values, &mut bytes)?;
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use muster_core::state::{Shard, real_bytes};

    use super::*;
    use crate::error::Kind;
    use crate::home::Home;

    fn state(values: usize) -> State {
        let reals = |scale: f32| (0..values).map(|place| place as f32 * scale - 3.0).collect();
        let shard = |id, coefficients| {
            let size = ShardSize { exponents: 2, coefficients };
            Shard { id: ShardId(id), step: 7, beta_powers: [0.5, 0.25], size }
        };
        State {
            shards: vec![shard(0, values / 3), shard(2, values - values / 3)],
            exponents: vec![-12, -9, 4, 300],
            parameters: reals(0.25),
            first: reals(0.5),
            second: reals(1.0),
        }
    }

    fn keep(files: &RowFiles, round: u32, state: &State, pieces: usize) -> Option<OfferFile> {
        let roots = std::iter::repeat_n(state.roots().shards[0], 3).collect();
        let head = OfferHead::of(Round(round), state, &Rows::new(), &roots);
        let mut left = pieces;
        let kept = files.keep(head, &mut |vector, values| {
            left = left.checked_sub(1)?;
            let [parameters, first, second] = [&state.parameters, &state.first, &state.second];
            let of = [parameters, first, second][VECTORS.iter().position(|own| *own == vector).unwrap()];
            Some(of[values].to_vec())
        });
        kept.unwrap()
    }

    #[test]
    fn values_of_each_shard_come_back() {
        let directory = tempfile::tempdir().unwrap();
        let home = Home::open(directory.path()).unwrap();
        let files = home.row_files().unwrap();
        let (kept, third) = (state(PIECE + 30), (PIECE + 30) / 3);
        let file = keep(&files, 6, &kept, 6).unwrap();
        assert_eq!((file.round(), file.bytes()), (Round(6), 12 * (PIECE as u64 + 30) + 8));
        let read = |shard, vector, values| file.read(ShardId(shard), vector, values).unwrap();
        assert_eq!(read(0, StateVector::Parameters, 0..third), real_bytes(&kept.parameters[..third])[..]);
        assert_eq!(read(2, StateVector::First, 5..9), real_bytes(&kept.first[third + 5..third + 9])[..]);
        assert!(read(2, StateVector::Second, 0..0).is_empty());
        assert_eq!(read(2, StateVector::Exponents, 0..2), [4, 0, 44, 1]);
        for (shard, vector, values) in [
            (1, StateVector::Parameters, 0..1),
            (0, StateVector::Second, third..third + 1),
            (0, StateVector::Exponents, 0..3),
        ] {
            assert_eq!(file.read(ShardId(shard), vector, values).unwrap_err().kind(), Kind::Refused);
        }
        // Another one takes other files for as long as this one is there.
        let other = State { parameters: vec![0.5; PIECE + 30].into(), ..state(PIECE + 30) };
        let other = keep(&files, 9, &other, 6).unwrap();
        let halves = real_bytes(&[0.5; 7]).into_owned();
        assert_eq!(other.read(ShardId(0), StateVector::Parameters, 0..7).unwrap(), halves);
        assert_eq!(read(0, StateVector::Parameters, 0..third), real_bytes(&kept.parameters[..third])[..]);
    }

    #[test]
    fn of_a_state_that_moves_on_nothing_is_kept() {
        let directory = tempfile::tempdir().unwrap();
        let home = Home::open(directory.path()).unwrap();
        let files = home.row_files().unwrap();
        let kept = state(PIECE + 30);
        assert!(keep(&files, 3, &kept, 2).is_none());
        assert_eq!(crate::files::names(&home.at(ROWS)).unwrap(), [""; 0]);
    }
}
