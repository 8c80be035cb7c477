//! States that are kept for others to fetch, with their moments: `states/<round>.offer`, made as `<round>.state` is; or the files that
//! the state has on the disk already.

use std::fs::File;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Mutex;

use muster_core::ids::{Round, ShardId};
use muster_core::layout::ShardSize;
use muster_core::lock::lock;
use muster_core::messages::offer::StateVector;
use muster_core::state::{State, StateRoots};

use crate::error::{Result, StoreError};
use crate::files::{self, Care};
use crate::home::{Home, ROWS, STATES};
use crate::patience::patiently;
use crate::rows::Rows;
use crate::states::{ADVICE, Header, Vectors, header, read_header, rounds, write_header};
use crate::vectors::{PIECE, VECTORS, damaged, read_at};

const ENDING: &str = ".offer";

/// What a file says of its state before it comes to the vectors, and the rows of it that are on the disk already.
pub struct OfferHead {
    header: Header,
    rows: Rows,
    /// Values of each vector that are in memory.
    in_memory: usize,
}

impl OfferHead {
    /// Of the state before a round, which has these roots: of shards in memory and rows behind them.
    pub fn of(round: Round, state: &State, rows: &Rows, roots: &StateRoots) -> Self {
        let (header, in_memory) = (header(round, state, rows, roots), state.parameters.len());
        Self { header, rows: rows.clone(), in_memory }
    }
}

/// Little-endian bytes of some values of a vector, counted over all shards in memory; none once the state has moved on.
pub type Values<'a> = &'a mut dyn FnMut(StateVector, Range<usize>) -> Option<Vec<u8>>;

impl Home {
    /// Keeps a state for others. Its values are asked for piece by piece, so that a state that somebody computes with need
    /// not be copied; whether all were given. Nothing is synced: what a power failure damages is as good as absent.
    ///
    /// # Errors
    /// [`crate::error::Kind::Full`]; what the system reports.
    pub fn save_offer(&self, head: &OfferHead, values: Values<'_>) -> Result<bool> {
        let OfferHead { header, rows, in_memory: all } = head;
        let mut moved = false;
        let written = files::write(&self.offer_path(header.round), Care::Cheap, |file| {
            write_header(file, header)?;
            for vector in VECTORS {
                for first in (0..*all).step_by(PIECE) {
                    let Some(piece) = values(vector, first..(first + PIECE).min(*all)) else {
                        moved = true;
                        return Err(damaged("the state has moved on"));
                    };
                    file.write_all(&piece)?;
                }
                rows.values().try_for_each(|row| row.copy(vector, file))?;
            }
            Ok(())
        });
        if moved { Ok(false) } else { written.map(|()| true) }
    }

    /// Opens a state that is kept for others.
    ///
    /// # Errors
    /// [`crate::error::Kind::Missing`]; [`crate::error::Kind::Corrupt`]; what the system reports.
    pub fn open_offer(&self, round: Round) -> Result<OfferFile> {
        let path = self.offer_path(round);
        let opened = patiently(|| File::open(&path)).and_then(|mut file| {
            let bytes = file.metadata()?.len();
            let (header, before) = read_header(&mut file, bytes, Vectors::All)?;
            Ok((file, header, before))
        });
        let (file, header, before) = opened.map_err(|error| StoreError::io(&path, &error).advise(ADVICE))?;
        if header.round != round {
            return Err(StoreError::corrupt(&path, "it holds the state of another round", ADVICE));
        }
        Ok(OfferFile { header, source: Source::File { path, file: Mutex::new(file), before } })
    }

    /// Drops the states that are not to be kept for others any more. Whoever has one open can still read it.
    ///
    /// # Errors
    /// What the system reports.
    pub fn prune_offers(&self, keep: &dyn Fn(Round) -> bool) -> Result<()> {
        let mut dropped = rounds(&self.at(STATES), ENDING)?.into_iter().filter(|round| !keep(*round));
        dropped.try_for_each(|round| files::remove(&self.offer_path(round)))
    }

    fn offer_path(&self, round: Round) -> PathBuf {
        self.at(STATES).join(format!("{round}{ENDING}"))
    }
}

/// A state that is kept for others. Its values are not checked: their proofs are.
pub struct OfferFile {
    header: Header,
    source: Source,
}

/// Where its values are.
enum Source {
    /// In a file of their own, behind so many bytes.
    File { path: PathBuf, file: Mutex<File>, before: u64 },
    /// Where the state has them, all of whose shards are on the disk. They stay there for as long as this does.
    Rows(Rows),
}

impl OfferFile {
    /// A state of which all is on the disk already, as what is kept for others: nothing is copied. None of any other.
    pub fn of_rows(head: OfferHead) -> Option<Self> {
        let OfferHead { header, rows, in_memory } = head;
        (in_memory == 0).then_some(Self { header, source: Source::Rows(rows) })
    }

    /// The round that the state is before.
    pub fn round(&self) -> Round {
        self.header.round
    }

    /// Its roots, of all shards of the run.
    pub fn roots(&self) -> &StateRoots {
        &self.header.roots
    }

    /// Bytes of all its values, exponents included.
    pub fn bytes(&self) -> u64 {
        let exponents = 2 * self.header.exponents.len() as u64;
        self.header.values.saturating_mul(4 * VECTORS.len() as u64).saturating_add(exponents)
    }

    /// How large a shard is that it holds.
    pub fn size(&self, shard: ShardId) -> Option<ShardSize> {
        self.header.shards.iter().find(|(held, _)| *held == shard).map(|(_, size)| *size)
    }

    /// Little-endian bytes of some values of a shard's vector. Reads the disk, for all but exponents.
    ///
    /// # Errors
    /// [`crate::error::Kind::Refused`] for values that it does not hold; what the system reports.
    pub fn read(&self, shard: ShardId, vector: StateVector, values: Range<usize>) -> Result<Vec<u8>> {
        let absent = || StoreError::refused(&self.path(), "holds no such values", "ask for others");
        let mut held = self.header.shards.iter();
        let mut before = ShardSize { exponents: 0, coefficients: 0 };
        let size = loop {
            let (id, size) = held.next().ok_or_else(absent)?;
            if *id == shard {
                break size;
            }
            before.exponents += size.exponents;
            before.coefficients += size.coefficients;
        };
        if values.start > values.end || values.end > vector.values(*size) {
            return Err(absent());
        }
        let Some(place) = VECTORS.iter().position(|held| *held == vector) else {
            let exponents =
                self.header.exponents.get(before.exponents + values.start..before.exponents + values.end);
            return Ok(exponents.ok_or_else(absent)?.iter().flat_map(|value| value.to_le_bytes()).collect());
        };
        let mut bytes = vec![0; 4 * values.len()];
        match &self.source {
            Source::Rows(rows) => {
                let row = rows.get(&shard).ok_or_else(absent)?;
                row.read_some(vector, values, &mut bytes)?;
            }
            Source::File { path, file, before: head } => {
                let first = place as u64 * self.header.values + (before.coefficients + values.start) as u64;
                let read = read_at(&mut lock(file), head + 4 * first, &mut bytes);
                read.map_err(|error| StoreError::io(path, &error))?;
            }
        }
        Ok(bytes)
    }

    /// The file to name where something is wrong.
    fn path(&self) -> PathBuf {
        match &self.source {
            Source::File { path, .. } => path.clone(),
            Source::Rows(_) => PathBuf::from(ROWS),
        }
    }
}

#[cfg(test)]
mod tests {
    use muster_core::state::{Shard, real_bytes};

    use super::*;
    use crate::error::Kind;

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

    fn save(home: &Home, round: u32, state: &State, pieces: usize) -> Result<bool> {
        let roots = std::iter::repeat_n(state.roots().shards[0], 3).collect();
        let mut left = pieces;
        home.save_offer(&OfferHead::of(Round(round), state, &Rows::new(), &roots), &mut |vector, values| {
            left = left.checked_sub(1)?;
            let [parameters, first, second] = [&state.parameters, &state.first, &state.second];
            let of = [parameters, first, second][VECTORS.iter().position(|own| *own == vector).unwrap()];
            Some(real_bytes(&of[values]).into_owned())
        })
    }

    #[test]
    fn values_of_each_shard_come_back() {
        let directory = tempfile::tempdir().unwrap();
        let home = Home::open(directory.path()).unwrap();
        let (kept, third) = (state(PIECE + 30), (PIECE + 30) / 3);
        assert!(save(&home, 6, &kept, 6).unwrap());
        let file = home.open_offer(Round(6)).unwrap();
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
        // Dropped, it is still there for who reads it.
        home.prune_offers(&|round| round > Round(6)).unwrap();
        assert_eq!(home.open_offer(Round(6)).err().unwrap().kind(), Kind::Missing);
        assert_eq!(read(0, StateVector::First, 0..1), real_bytes(&kept.first[..1])[..]);
    }

    #[test]
    fn of_a_state_that_moves_on_nothing_is_kept() {
        let directory = tempfile::tempdir().unwrap();
        let home = Home::open(directory.path()).unwrap();
        assert!(!save(&home, 3, &state(PIECE + 30), 5).unwrap());
        assert_eq!(home.open_offer(Round(3)).err().unwrap().kind(), Kind::Missing);
        assert!(home.states().unwrap().is_empty());
        assert_eq!(files::names(&home.at(STATES)).unwrap(), [""; 0]);
    }
}
