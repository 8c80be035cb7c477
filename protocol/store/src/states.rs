//! States by round: `states/<round>.state`, `states/<round>.parameters`.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use borsh::{BorshDeserialize, BorshSerialize};
use muster_core::codec::{decode, encode};
use muster_core::ids::{Round, ShardId};
use muster_core::layout::ShardSize;
use muster_core::state::{Shard, ShardRoots, State, StateRoots, Vector};

use crate::error::{Result, StoreError};
use crate::files::{self, Care};
use crate::home::{Home, STATES};
use crate::regular;
use crate::rows::{RowFile, RowFiles, Rows};
use crate::vectors::{PIECE, VECTORS, damaged, read_reals, write_reals};

const FIRST_LINE: &[u8; 15] = b"muster state 2\n";
pub(crate) const ADVICE: &str = "delete it, it will be computed or fetched again";

/// What stands before the vectors of a state, behind the first line, a checksum and its length.
#[derive(BorshSerialize, BorshDeserialize)]
pub(crate) struct Header {
    pub(crate) round: Round,
    pub(crate) roots: StateRoots,
    /// The shards that it holds, and their sizes.
    pub(crate) shards: Vec<(ShardId, ShardSize)>,
    pub(crate) exponents: Vec<i16>,
    /// Values of each vector.
    pub(crate) values: u64,
}

impl Home {
    /// Keeps the state before a round, which has these roots: parameters, first and second moments as little-endian `f32`.
    ///
    /// # Errors
    /// [`crate::error::Kind::Refused`] when its vectors differ in length; [`crate::error::Kind::Full`]; what the
    /// system reports.
    pub fn save_state(&self, round: Round, state: &State, roots: &StateRoots) -> Result<()> {
        self.save_state_and_rows(round, state, &Rows::new(), roots)
    }

    /// The same of a state of which these rows are on the disk already, behind the shards that are in memory.
    ///
    /// # Errors
    /// As [`Self::save_state`].
    pub fn save_state_and_rows(
        &self,
        round: Round,
        state: &State,
        rows: &Rows,
        roots: &StateRoots,
    ) -> Result<()> {
        let path = self.state_path(round);
        let values = state.parameters.len();
        // `load` takes the lengths of all three from one number.
        if state.first.len() != values || state.second.len() != values {
            let cause = "a state needs as many moments as parameters";
            return Err(StoreError::refused(&path, cause, "nothing was written"));
        }
        let header = header(round, state, rows, roots);
        files::write(&path, Care::Durable, |file| {
            write_header(file, &header)?;
            let own = [&state.parameters, &state.first, &state.second];
            VECTORS.into_iter().zip(own).try_for_each(|(vector, values)| {
                write_reals(file, values)?;
                rows.values().try_for_each(|row| row.copy(vector, file))
            })
        })
    }

    /// Keeps what recomputing a contribution takes of the state before a round, which has these roots: exponents and these vectors.
    /// Nothing is synced; what a power failure damages is as good as absent.
    ///
    /// # Errors
    /// [`crate::error::Kind::Full`]; what the system reports.
    pub fn save_audit_state(
        &self,
        round: Round,
        state: &State,
        roots: &StateRoots,
        vectors: Vectors,
    ) -> Result<()> {
        let path = self.audit_state_path(round);
        let header = header(round, state, &Rows::new(), roots);
        files::write(&path, Care::Cheap, |file| {
            write_header(file, &header)?;
            let moments = [&state.first, &state.second];
            let moments = moments.into_iter().filter(|_| vectors == Vectors::All);
            [&state.parameters].into_iter().chain(moments).try_for_each(|values| write_reals(file, values))
        })
    }

    /// What [`Home::save_audit_state`] kept with these vectors, checked against the roots it was kept with; and these.
    ///
    /// # Errors
    /// As [`Home::load_state`].
    pub fn load_audit_state(&self, round: Round, vectors: Vectors) -> Result<(State, StateRoots)> {
        load(&self.audit_state_path(round), round, vectors, u64::MAX)
    }

    /// Rounds whose states are kept for audits, in order.
    ///
    /// # Errors
    /// What the system reports.
    pub fn audit_states(&self) -> Result<Vec<Round>> {
        rounds(&self.at(STATES), ".parameters")
    }

    /// Drops those that are not to be kept.
    ///
    /// # Errors
    /// What the system reports.
    pub fn prune_audit_states(&self, keep: &dyn Fn(Round) -> bool) -> Result<()> {
        let mut dropped = self.audit_states()?.into_iter().filter(|round| !keep(*round));
        dropped.try_for_each(|round| files::remove(&self.audit_state_path(round)))
    }

    /// The shards that were kept of the state before a round, checked against the roots they were kept with; and these roots,
    /// of all its shards. Whether those are the sealed ones is for the caller to see.
    ///
    /// # Errors
    /// [`crate::error::Kind::Missing`]; [`crate::error::Kind::Corrupt`]; what the system reports.
    pub fn load_state(&self, round: Round) -> Result<(State, StateRoots)> {
        load_whole(&self.state_path(round), round, u64::MAX)
    }

    /// The same, where the shards that `away` says go to `files`, some values at a time: in memory stay the others, which must
    /// be the first ones.
    ///
    /// # Errors
    /// As [`Self::load_state`]; [`crate::error::Kind::Full`].
    pub fn load_state_and_rows(
        &self,
        round: Round,
        files: &RowFiles,
        away: &dyn Fn(ShardId) -> bool,
    ) -> Result<(State, Rows, StateRoots)> {
        let path = self.state_path(round);
        let io = |error: io::Error| StoreError::io(&path, &error).advise(ADVICE);
        let mut file = regular::open(&path, u64::MAX).map_err(|error| error.advise(ADVICE))?;
        let bytes = file.metadata().map_err(io)?.len();
        let (header, begin) = read_header(&mut file, bytes, Vectors::All).map_err(io)?;
        if header.round != round {
            return Err(StoreError::corrupt(&path, "it holds the state of another round", ADVICE));
        }
        let (mut memory, mut rows) = (State::default(), Rows::new());
        let mut before = ShardSize { exponents: 0, coefficients: 0 };
        for (id, size) in &header.shards {
            let wrong = || io(damaged("its values do not give its roots"));
            let roots = *header.roots.shard(*id).ok_or_else(wrong)?;
            let at = Place { header: &header, begin, id: *id, size: *size, before };
            if away(*id) {
                let row = move_shard(&mut file, &at, files).map_err(|error| match error {
                    Moved::Read(error) => io(error),
                    Moved::Written(error) => error,
                })?;
                rows.insert(*id, Some(row).filter(|row| *row.roots() == roots).ok_or_else(wrong)?);
            } else {
                let shard = read_shard(&mut file, &at).map_err(io)?;
                if shard.roots().shards.first() != Some(&roots) {
                    return Err(wrong());
                }
                memory = if memory.shards.is_empty() { shard } else { memory.and(&shard) };
            }
            before.exponents += size.exponents;
            before.coefficients += size.coefficients;
        }
        Ok((memory, rows, header.roots))
    }

    /// Rounds whose states are kept, in order.
    ///
    /// # Errors
    /// What the system reports.
    pub fn states(&self) -> Result<Vec<Round>> {
        rounds(&self.at(STATES), ".state")
    }

    /// Drops the states that are not to be kept.
    ///
    /// # Errors
    /// What the system reports.
    pub fn prune_states(&self, keep: &dyn Fn(Round) -> bool) -> Result<()> {
        let mut dropped = self.states()?.into_iter().filter(|round| !keep(*round));
        dropped.try_for_each(|round| files::remove(&self.state_path(round)))
    }

    fn state_path(&self, round: Round) -> PathBuf {
        self.at(STATES).join(state_file(round))
    }

    fn audit_state_path(&self, round: Round) -> PathBuf {
        self.at(STATES).join(format!("{round}.parameters"))
    }
}

/// Name of a state's file.
pub(crate) fn state_file(round: Round) -> String {
    format!("{round}.state")
}

/// Reads a state of at most `most` bytes, checked against the roots it was kept with, and these.
pub(crate) fn load_whole(path: &Path, round: Round, most: u64) -> Result<(State, StateRoots)> {
    load(path, round, Vectors::All, most)
}

/// The vectors of a state that a file holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vectors {
    /// Parameters alone.
    Parameters,
    /// Moments as well.
    All,
}

fn load(path: &Path, round: Round, vectors: Vectors, most: u64) -> Result<(State, StateRoots)> {
    let file = regular::open(path, most)?;
    let corrupt = |cause: &str| StoreError::corrupt(path, cause, ADVICE);
    let read = read_state(file, vectors);
    let (state, Header { round: of, roots, .. }) =
        read.map_err(|error| StoreError::io(path, &error).advise(ADVICE))?;
    // A file under another name passes every checksum of its own.
    if of != round {
        return Err(corrupt("it holds the state of another round"));
    }
    let found = roots.with(&state);
    let same = |(found, kept): (&ShardRoots, &ShardRoots)| match vectors {
        Vectors::All => found == kept,
        // The file has no moments, so that nothing can be said against their roots.
        Vectors::Parameters => ShardRoots { first: kept.first, second: kept.second, ..*found } == *kept,
    };
    if !found.shards.iter().zip(&roots.shards).all(same) {
        return Err(corrupt("its values do not give its roots"));
    }
    Ok((state, roots))
}

/// Rounds in the names of a directory, in order.
pub(crate) fn rounds(directory: &Path, ending: &str) -> Result<Vec<Round>> {
    let names = files::names(directory)?;
    let rounds = names.iter().filter_map(|name| name.strip_suffix(ending)?.parse().ok().map(Round));
    let mut rounds: Vec<Round> = rounds.collect();
    rounds.sort_unstable();
    Ok(rounds)
}

/// Of shards in memory and the rows behind them.
pub(crate) fn header(round: Round, state: &State, rows: &Rows, roots: &StateRoots) -> Header {
    let on_disk = rows.iter().map(|(id, row)| row.shard(*id));
    let shards: Vec<Shard> = state.shards.iter().copied().chain(on_disk).collect();
    let exponents = state.exponents.iter().chain(rows.values().flat_map(|row| row.exponents()));
    let of_rows: usize = rows.iter().map(|(id, row)| row.shard(*id).size.coefficients).sum();
    Header {
        round,
        roots: roots.clone(),
        shards: shards.iter().map(|shard| (shard.id, shard.size)).collect(),
        exponents: exponents.copied().collect(),
        values: (state.parameters.len() + of_rows) as u64,
    }
}

/// What a file begins with, before its vectors.
pub(crate) fn write_header(file: &mut dyn Write, header: &Header) -> io::Result<()> {
    let header = files::seal(STATES, &encode(header));
    file.write_all(FIRST_LINE)?;
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(&header)
}

/// Reads what a file of exactly this length begins with; and how many bytes that is.
pub(crate) fn read_header(file: &mut dyn Read, bytes: u64, vectors: Vectors) -> io::Result<(Header, u64)> {
    let mut first_line = [0; FIRST_LINE.len()];
    file.read_exact(&mut first_line)?;
    let mut length = [0; 8];
    file.read_exact(&mut length)?;
    let length = u64::from_le_bytes(length);
    let before = FIRST_LINE.len() as u64 + 8;
    // A length that a damaged file states is compared with the file before memory is taken for it.
    if first_line != *FIRST_LINE || length > bytes.saturating_sub(before) {
        return Err(damaged("it does not begin like a state"));
    }
    let mut header = vec![0; length as usize];
    file.read_exact(&mut header)?;
    let header = files::unseal(STATES, &header).and_then(|header| decode::<Header>(header).ok());
    let header = header.ok_or_else(|| damaged("the checksum of its header does not fit"))?;
    let moments = if vectors == Vectors::All { header.values } else { 0 };
    // As above, for the vectors: a state has gigabytes.
    let of_values = header.values.checked_add(2 * moments).and_then(|values| values.checked_mul(4));
    if of_values.and_then(|vectors| vectors.checked_add(before + length)) != Some(bytes) {
        return Err(damaged("it has another length"));
    }
    Ok((header, before + length))
}

/// Reads a state of exactly the file's length; the vectors are still to be checked.
fn read_state(file: File, vectors: Vectors) -> io::Result<(State, Header)> {
    let bytes = file.metadata()?.len();
    let mut file = BufReader::new(file);
    let header = read_header(&mut file, bytes, vectors)?.0;
    let moments = if vectors == Vectors::All { header.values } else { 0 };
    let held = header.shards.iter();
    let shard = |(id, size): &(ShardId, ShardSize)| Some(header.roots.shard(*id)?.shard(*id, *size));
    let shards = held.map(shard).collect::<Option<_>>();
    let shards = shards.ok_or_else(|| damaged("its header has a shard without roots"))?;
    let mut vector = |values: u64| read_reals(&mut file, values as usize).map(Vector::from);
    let state = State {
        shards,
        parameters: vector(header.values)?,
        first: vector(moments)?,
        second: vector(moments)?,
        exponents: header.exponents.clone(),
    };
    Ok((state, header))
}

/// Where a shard is in the file of a state.
struct Place<'a> {
    header: &'a Header,
    /// Bytes before the vectors.
    begin: u64,
    id: ShardId,
    size: ShardSize,
    /// Sizes of the shards before it.
    before: ShardSize,
}

impl Place<'_> {
    /// The shard itself, and its exponents.
    fn shard(&self) -> io::Result<(Shard, &[i16])> {
        let Self { header, id, size, before, .. } = self;
        let roots = header.roots.shard(*id);
        let shard = roots.ok_or_else(|| damaged("its header has a shard without roots"))?.shard(*id, *size);
        let exponents = header.exponents.get(before.exponents..before.exponents + size.exponents);
        Ok((shard, exponents.ok_or_else(|| damaged("its header lacks exponents"))?))
    }

    /// Moves to one of its vectors.
    fn seek(&self, file: &mut File, vector: u64) -> io::Result<()> {
        let values = vector * self.header.values + self.before.coefficients as u64;
        file.seek(SeekFrom::Start(self.begin + 4 * values)).map(drop)
    }
}

/// Reads one shard of a state; the vectors are still to be checked.
fn read_shard(file: &mut File, at: &Place<'_>) -> io::Result<State> {
    let (shard, exponents) = at.shard()?;
    let mut vector = |place: u64| {
        at.seek(file, place)?;
        read_reals(&mut BufReader::new(&mut *file), shard.size.coefficients).map(Vector::from)
    };
    let [parameters, first, second] = [vector(0)?, vector(1)?, vector(2)?];
    Ok(State { shards: vec![shard], exponents: exponents.to_vec(), parameters, first, second })
}

/// What failed while a shard was moved.
enum Moved {
    Read(io::Error),
    Written(StoreError),
}

impl From<io::Error> for Moved {
    fn from(error: io::Error) -> Self {
        Self::Read(error)
    }
}

impl From<StoreError> for Moved {
    fn from(error: StoreError) -> Self {
        Self::Written(error)
    }
}

/// Moves one shard of a state to a file of its own, whose roots are still to be compared.
fn move_shard(file: &mut File, at: &Place<'_>, files: &RowFiles) -> std::result::Result<RowFile, Moved> {
    let (shard, exponents) = at.shard()?;
    let mut new = files.begin(shard.size, true)?;
    for (place, vector) in (0..).zip(VECTORS) {
        at.seek(file, place)?;
        let mut left = shard.size.coefficients;
        while left > 0 {
            let values = read_reals(file, left.min(PIECE))?;
            new.write(vector, &values)?;
            left -= values.len();
        }
    }
    Ok(new.finish(shard, exponents)?)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::error::Kind;

    fn state(values: usize) -> State {
        let reals = |scale: f32| (0..values).map(|place| place as f32 * scale - 3.0).collect();
        let size = |coefficients| ShardSize { exponents: 1, coefficients };
        let shard = |id, step, size| Shard { id: ShardId(id), step, beta_powers: [0.478_296_9, 0.993], size };
        State {
            shards: vec![shard(0, 7, size(values / 3)), shard(1, 6, size(values - values / 3))],
            exponents: vec![-12, -9],
            parameters: reals(0.25),
            first: reals(0.5),
            second: reals(1.0),
        }
    }

    fn home() -> (tempfile::TempDir, Home) {
        let directory = tempfile::tempdir().unwrap();
        let home = Home::open(directory.path()).unwrap();
        (directory, home)
    }

    fn save(home: &Home, round: u32, state: &State) -> Result<()> {
        home.save_state(Round(round), state, &state.roots())
    }

    #[test]
    fn states_come_back_whole() {
        let (_directory, home) = home();
        assert!(home.states().unwrap().is_empty());
        for (round, values) in [(3, 0), (10, 5), (2, PIECE + 3), (11, 1)] {
            save(&home, round, &state(values)).unwrap();
            assert_eq!(home.load_state(Round(round)).unwrap(), (state(values), state(values).roots()));
        }
        assert_eq!(home.states().unwrap(), [2, 3, 10, 11].map(Round));
        home.prune_states(&|round| round.0 >= 10).unwrap();
        assert_eq!(home.states().unwrap(), [10, 11].map(Round));
        assert_eq!(home.load_state(Round(2)).unwrap_err().kind(), Kind::Missing);
        let lopsided = State { first: Vector::default(), ..state(4) };
        assert_eq!(save(&home, 2, &lopsided).unwrap_err().kind(), Kind::Refused);
    }

    #[test]
    fn rows_come_back_one_by_one() {
        let (_directory, home) = home();
        let whole = state(3_000);
        let mut rows = Rows::new();
        let files = home.row_files().unwrap();
        for (id, roots) in [1, 2].map(ShardId).into_iter().zip(&whole.roots().shards[1..]) {
            rows.insert(id, files.put(whole.shard(ShardId(1)).unwrap(), *roots).unwrap());
            rows.insert(ShardId(2), rows[&ShardId(1)].clone());
        }
        let [trunk, row] = whole.roots().shards[..] else { panic!("two shards") };
        let roots = StateRoots::from([trunk, row, row]);
        home.save_state_and_rows(Round(8), &whole.select([ShardId::TRUNK]), &rows, &roots).unwrap();
        let all = home.load_state(Round(8)).unwrap();
        assert_eq!(all, (whole.branched([0, 1].map(muster_core::ids::Row)), roots.clone()));
        let (memory, again, its) =
            home.load_state_and_rows(Round(8), &files, &|id| id.row().is_some()).unwrap();
        assert_eq!((memory, &its), (all.0.select([ShardId::TRUNK]), &roots));
        for id in [1, 2].map(ShardId) {
            assert_eq!(again[&id].load(id).unwrap(), all.0.select([id]));
        }
        let path = home.at("states/8.state");
        let mut forged = fs::read(&path).unwrap();
        *forged.last_mut().unwrap() ^= 1;
        fs::write(&path, forged).unwrap();
        assert_eq!(
            home.load_state_and_rows(Round(8), &files, &|id| id.row().is_some()).unwrap_err().kind(),
            Kind::Corrupt
        );
    }

    #[test]
    fn parameters_alone_are_no_state_to_go_on_from() {
        let (_directory, home) = home();
        let (whole, roots) = (state(9), state(9).roots());
        home.save_audit_state(Round(5), &whole, &roots, Vectors::All).unwrap();
        assert_eq!(home.load_audit_state(Round(5), Vectors::All).unwrap(), (whole.clone(), roots.clone()));
        assert!(home.load_audit_state(Round(5), Vectors::Parameters).is_err());
        home.save_audit_state(Round(4), &whole, &roots, Vectors::Parameters).unwrap();
        let alone = State { first: Vector::default(), second: Vector::default(), ..whole };
        assert_eq!(home.load_audit_state(Round(4), Vectors::Parameters).unwrap(), (alone, roots));
        assert_eq!(home.load_state(Round(4)).unwrap_err().kind(), Kind::Missing);
        fs::copy(home.at("states/4.parameters"), home.at("states/4.state")).unwrap();
        assert_eq!(home.load_state(Round(4)).unwrap_err().kind(), Kind::Corrupt);
        let mut forged = fs::read(home.at("states/4.parameters")).unwrap();
        *forged.last_mut().unwrap() ^= 1;
        fs::write(home.at("states/4.parameters"), forged).unwrap();
        assert_eq!(home.load_audit_state(Round(4), Vectors::Parameters).unwrap_err().kind(), Kind::Corrupt);
        home.prune_audit_states(&|_| false).unwrap();
        assert_eq!((home.audit_states().unwrap(), home.states().unwrap()), (vec![], vec![Round(4)]));
    }

    #[test]
    fn a_damaged_state_is_refused_by_name() {
        let (_directory, home) = home();
        save(&home, 5, &state(9)).unwrap();
        let path = home.at("states/5.state");
        let whole = fs::read(&path).unwrap();
        let refused = |bytes: &[u8], what: &str| {
            fs::write(&path, bytes).unwrap();
            let error = home.load_state(Round(5)).unwrap_err();
            assert_eq!(error.kind(), Kind::Corrupt, "{what}: {error}");
            assert!(
                error.to_string().contains("5.state: is damaged (") && error.to_string().ends_with(ADVICE),
                "{error}"
            );
        };
        for length in 0..whole.len() {
            refused(&whole[..length], &format!("cut to {length}"));
        }
        for place in 0..whole.len() {
            let mut forged = whole.clone();
            forged[place] ^= 1;
            refused(&forged, &format!("byte {place}"));
        }
        refused(&[whole.as_slice(), b"x"].concat(), "longer");
        refused(&b"garbage".repeat(50), "garbage");
        fs::write(home.at("states/6.state"), &whole).unwrap();
        assert_eq!(home.load_state(Round(6)).unwrap_err().kind(), Kind::Corrupt);
    }

    #[test]
    fn what_a_crash_leaves_is_no_state() {
        let (_directory, home) = home();
        save(&home, 1, &state(3)).unwrap();
        fs::write(home.at("states/2.state.9.tmp"), b"half").unwrap();
        assert_eq!(home.states().unwrap(), [Round(1)]);
        let path = home.path().to_owned();
        drop(home);
        let home = Home::open(&path).unwrap();
        assert_eq!(files::names(&home.at(STATES)).unwrap(), ["1.state"]);
    }
}
