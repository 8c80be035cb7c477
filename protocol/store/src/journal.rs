//! What must never be said twice in two ways: the ledger, this member's votes, and its notes.

mod image;

use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use borsh::BorshDeserialize;
use muster_core::codec::{decode, encode};
use muster_core::ids::{Height, Round};
use muster_core::lock::lock;
use muster_core::messages::record::Record;
use muster_core::sign::Signed;
use redb::backends::InMemoryBackend;
use redb::{
    Builder, Database, ReadTransaction, ReadableDatabase, ReadableTable, TableDefinition, WriteTransaction,
};

use self::image::Image;
use crate::error::{Kind, Result, StoreError};
use crate::files::{self, seal, unseal};
use crate::home::Home;
use crate::regular;

const RECORDS: TableDefinition<u64, &[u8]> = TableDefinition::new("records");
const VOTES: TableDefinition<(&str, u32), &[u8]> = TableDefinition::new("votes");
const NOTES: TableDefinition<&str, &[u8]> = TableDefinition::new("notes");
/// Tries to copy a journal that another process writes to, and the pause between two.
const COPIES: u32 = 8;
/// Longest journal that is copied: the folder may be a stranger's. In memory are its pages that are not zero.
const COPY_BYTES: u64 = 8 << 30;
const COPY_PAUSE: Duration = Duration::from_millis(100);
const CACHE_BYTES: usize = 16 << 20;
const ADVICE: &str = "restore it from a copy, or start with a new directory and a new identity";

/// Outcome of one step within the database.
type RedbResult<T> = core::result::Result<T, redb::Error>;

/// The journal of a home. Each write is on the disk before it returns, or has not happened.
///
/// Values lie behind checksums of their own, so that no damage passes for something that was said.
#[derive(Debug)]
pub struct Journal {
    database: Database,
    path: PathBuf,
    /// The first write that failed: the database takes none after it, and says no more than that.
    failed: Mutex<Option<StoreError>>,
    _home: Option<Arc<File>>,
}

impl Journal {
    /// Its name in a home.
    pub const FILE: &str = "journal.redb";

    /// Opens the journal of a home; makes an empty one the first time. Recovers by itself from a crash.
    ///
    /// # Errors
    /// [`Kind::Locked`] when it is open already; [`Kind::Corrupt`] when it is damaged; what the system reports.
    pub fn open(home: &Home) -> Result<Self> {
        let path = home.at(Self::FILE);
        if !path.exists() {
            create(&path)?;
        }
        files::keep_from_others(&path);
        let image = Image::over(&path, regular::open(&path, u64::MAX)?)?;
        let database = guarded(&path, || open_whole(&path, image))?;
        Ok(Self { database, path, failed: Mutex::default(), _home: Some(home.hold()) })
    }

    /// A journal that lasts as long as this value, in memory: for simulations.
    ///
    /// # Errors
    /// What the database reports.
    pub fn in_memory() -> Result<Self> {
        let path = PathBuf::from("memory");
        let made = builder().create_with_backend(InMemoryBackend::new()).map_err(redb::Error::from);
        let made = made.and_then(|database| prepare(&database).map(|()| database));
        let database = made.map_err(|error| failed(&path, error))?;
        Ok(Self { database, path, failed: Mutex::default(), _home: None })
    }

    /// A copy in memory of the journal in a folder, which another process may be writing to meanwhile.
    ///
    /// # Errors
    /// [`Kind::Missing`]; [`Kind::Corrupt`] when it is damaged, or changes faster than it is read; what the system reports.
    pub fn copy_of(folder: &Path) -> Result<Self> {
        let path = folder.join(Self::FILE);
        let mut tries = 1..COPIES;
        loop {
            let image = Image::copy(&path, COPY_BYTES)?;
            let copied = guarded(&path, || whole(image.clone()));
            if copied.is_err() {
                image.clear();
            }
            match copied {
                Ok(database) => {
                    // It was found whole, so that closing it cannot panic.
                    let database = ManuallyDrop::into_inner(database);
                    return Ok(Self { database, path, failed: Mutex::default(), _home: None });
                }
                // A page of it may have been written while it was read.
                Err(error) if error.kind() == Kind::Corrupt && tries.next().is_some() => {
                    std::thread::sleep(COPY_PAUSE);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Height of the next record: how many there are.
    ///
    /// # Errors
    /// What the system reports.
    pub fn height(&self) -> Result<Height> {
        self.read(|reading| next_height(&reading.open_table(RECORDS)?))
    }

    /// Adds the next record.
    ///
    /// # Errors
    /// As [`Self::append_all`].
    pub fn append(&self, height: Height, record: &Signed<Record>) -> Result<()> {
        self.append_all(height, core::slice::from_ref(record))
    }

    /// Adds the records from `first` on, all or none.
    ///
    /// # Errors
    /// [`Kind::Refused`] unless `first` is the next height; [`Kind::Full`]; what the system reports.
    pub fn append_all(&self, first: Height, records: &[Signed<Record>]) -> Result<()> {
        let heights = (0..).map(|index| first.0.saturating_add(index));
        let sealed = heights
            .zip(records)
            .map(|(height, record)| (height, seal(&record_name(height), &encode(record))));
        let sealed: Vec<(u64, Vec<u8>)> = sealed.collect();
        let next = self.write(|writing| {
            let mut table = writing.open_table(RECORDS)?;
            // Within the transaction, so that two writers cannot both find the height free.
            let next = next_height(&table)?;
            if next == first {
                for (height, record) in &sealed {
                    table.insert(height, record.as_slice())?;
                }
            }
            Ok(next)
        })?;
        // A gap or a second record of one height would be a fork of what this member has seen.
        if next != first {
            let cause = format!("the next record has height {next}, not {first}");
            return Err(StoreError::refused(&self.path, cause, "the ledger was left as it is"));
        }
        Ok(())
    }

    /// At most `most` records from a height on, as they were appended.
    ///
    /// # Errors
    /// [`Kind::Corrupt`] when one is damaged; what the system reports.
    pub fn records(&self, from: Height, most: usize) -> Result<Vec<Signed<Record>>> {
        self.records_within(from, most, usize::MAX)
    }

    /// The same, of no more than so many bytes, and one record at least: nothing is read that does not fit an answer.
    ///
    /// # Errors
    /// As [`Self::records`].
    pub fn records_within(&self, from: Height, most: usize, bytes: usize) -> Result<Vec<Signed<Record>>> {
        let sealed = self.read(|reading| {
            let table = reading.open_table(RECORDS)?;
            let (mut sealed, mut room) = (Vec::new(), bytes);
            for entry in table.range(from.0..)?.take(most) {
                let (height, record) = entry?;
                let record = record.value();
                if record.len() > room && !sealed.is_empty() {
                    break;
                }
                room = room.saturating_sub(record.len());
                sealed.push((height.value(), record.to_vec()));
            }
            Ok(sealed)
        })?;
        sealed.iter().map(|(height, record)| self.decoded(&record_name(*height), record)).collect()
    }

    /// What this member said of this kind in this round.
    ///
    /// # Errors
    /// [`Kind::Corrupt`] when it is damaged; what the system reports.
    pub fn vote(&self, kind: &str, round: Round) -> Result<Option<Vec<u8>>> {
        let sealed = self.read(|reading| {
            let table = reading.open_table(VOTES)?;
            let vote = table.get((kind, round.0))?;
            Ok(vote.map(|vote| vote.value().to_vec()))
        })?;
        sealed.map(|sealed| self.unsealed(&vote_name(kind, round), &sealed)).transpose()
    }

    /// Makes `bytes` what this member says, unless it has spoken already; returns what stands, which is what may
    /// be said aloud.
    ///
    /// # Errors
    /// As [`Self::vote`]; [`Kind::Full`].
    #[must_use = "what stands may be what was said before"]
    pub fn put_vote(&self, kind: &str, round: Round, bytes: &[u8]) -> Result<Vec<u8>> {
        if let Some(said) = self.vote(kind, round)? {
            return Ok(said);
        }
        let name = vote_name(kind, round);
        // The checksum covers the name: no vote passes for one of another kind or round.
        let sealed = seal(&name, bytes);
        let stands = self.write(|writing| {
            let mut table = writing.open_table(VOTES)?;
            // Another thread may have spoken since.
            if let Some(said) = table.get((kind, round.0))? {
                return Ok(said.value().to_vec());
            }
            table.insert((kind, round.0), sealed.as_slice())?;
            Ok(sealed.clone())
        })?;
        self.unsealed(&name, &stands)
    }

    /// A note.
    ///
    /// # Errors
    /// [`Kind::Corrupt`] when it is damaged; what the system reports.
    pub fn note(&self, key: &str) -> Result<Option<Vec<u8>>> {
        let sealed = self.read(|reading| {
            let table = reading.open_table(NOTES)?;
            let note = table.get(key)?;
            Ok(note.map(|note| note.value().to_vec()))
        })?;
        sealed.map(|sealed| self.unsealed(&note_name(key), &sealed)).transpose()
    }

    /// Writes a note over the one before.
    ///
    /// # Errors
    /// [`Kind::Full`]; what the system reports.
    pub fn put_note(&self, key: &str, bytes: &[u8]) -> Result<()> {
        let sealed = seal(&note_name(key), bytes);
        self.write(|writing| {
            writing.open_table(NOTES)?.insert(key, sealed.as_slice())?;
            Ok(())
        })
    }

    fn read<T>(&self, work: impl FnOnce(&ReadTransaction) -> RedbResult<T>) -> Result<T> {
        let reading = self.database.begin_read().map_err(redb::Error::from);
        reading.and_then(|reading| work(&reading)).map_err(|error| self.failure(error))
    }

    fn write<T>(&self, work: impl FnOnce(&WriteTransaction) -> RedbResult<T>) -> Result<T> {
        write(&self.database, work).map_err(|error| self.failure(error))
    }

    /// In words; of a write after one that failed, why that one did.
    fn failure(&self, error: redb::Error) -> StoreError {
        let mut first = lock(&self.failed);
        match (&*first, &error) {
            (Some(first), redb::Error::PreviousIo) => first.clone(),
            _ => {
                let is_io = matches!(error, redb::Error::Io(_));
                let error = failed(&self.path, error);
                if is_io {
                    first.get_or_insert_with(|| error.clone());
                }
                error
            }
        }
    }

    fn unsealed(&self, name: &str, sealed: &[u8]) -> Result<Vec<u8>> {
        let bytes = unseal(name, sealed).map(<[u8]>::to_vec);
        bytes.ok_or_else(|| {
            StoreError::corrupt(&self.path, format!("the checksum of {name} does not fit"), ADVICE)
        })
    }

    fn decoded<T: BorshDeserialize>(&self, name: &str, sealed: &[u8]) -> Result<T> {
        let bytes = self.unsealed(name, sealed)?;
        decode(&bytes).map_err(|reject| StoreError::corrupt(&self.path, format!("{name}: {reject}"), ADVICE))
    }
}

fn record_name(height: u64) -> String {
    format!("record {height}")
}

fn vote_name(kind: &str, round: Round) -> String {
    format!("vote {round} {kind}")
}

fn note_name(key: &str) -> String {
    format!("note {key}")
}

fn next_height(records: &impl ReadableTable<u64, &'static [u8]>) -> RedbResult<Height> {
    Ok(Height(records.last()?.map_or(0, |(height, _)| height.value().saturating_add(1))))
}

fn builder() -> Builder {
    let mut builder = Builder::new();
    builder.set_cache_size(CACHE_BYTES);
    builder
}

/// Opens a journal after a check of all its checksums, which writes to nothing but the image: where the database finds damage it
/// goes back to the commit before, and what was said last would be forgotten.
fn open_whole(path: &Path, image: Image) -> RedbResult<Database> {
    drop(ManuallyDrop::into_inner(whole(image)?));
    let database = builder().open(path)?;
    let reading = database.begin_read()?;
    reading.open_table(RECORDS)?;
    reading.open_table(VOTES)?;
    reading.open_table(NOTES)?;
    drop(reading);
    Ok(database)
}

/// The journal of an image, if it is whole; one that is damaged is left behind, because closing it would panic.
fn whole(image: Image) -> RedbResult<ManuallyDrop<Database>> {
    let mut database = ManuallyDrop::new(builder().create_with_backend(image)?);
    if !database.check_integrity()? {
        return Err(redb::Error::Corrupted("a checksum does not fit".into()));
    }
    Ok(database)
}

/// Makes the empty journal aside, so that one under its name is always whole.
fn create(path: &Path) -> Result<()> {
    // A crash while tables are made leaves a file that is swept, not a journal that is damaged.
    let aside = files::aside(path);
    let made = builder().create(&aside).map_err(redb::Error::from).and_then(|database| prepare(&database));
    if let Err(error) = made {
        let _ = files::remove(&aside);
        return Err(failed(path, error));
    }
    files::keep_from_others(&aside);
    std::fs::rename(&aside, path).map_err(|error| StoreError::io(path, &error))?;
    files::sync_directory(files::parent(path))
}

fn prepare(database: &Database) -> RedbResult<()> {
    write(database, |writing| {
        writing.open_table(RECORDS)?;
        writing.open_table(VOTES)?;
        writing.open_table(NOTES)?;
        Ok(())
    })
}

fn write<T>(database: &Database, work: impl FnOnce(&WriteTransaction) -> RedbResult<T>) -> RedbResult<T> {
    let mut writing = database.begin_write()?;
    // Strangers choose much of what is written, and one phase trusts a checksum that they could aim at.
    writing.set_two_phase_commit(true);
    let done = work(&writing)?;
    writing.commit()?;
    Ok(done)
}

/// Reads what may be damaged: the database panics on some of it.
fn guarded<T>(path: &Path, work: impl FnOnce() -> RedbResult<T>) -> Result<T> {
    let unreadable = |_| Err(redb::Error::Corrupted("no database can be read from it".into()));
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(unreadable).map_err(|error| failed(path, error))
}

fn failed(path: &Path, error: redb::Error) -> StoreError {
    use redb::Error;
    match error {
        Error::Io(error)
            if matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput) =>
        {
            StoreError::corrupt(path, error.to_string(), ADVICE)
        }
        Error::Io(error) => StoreError::io(path, &error),
        Error::DatabaseAlreadyOpen => {
            StoreError::new(Kind::Locked, path, "another process is using this file", "stop it first")
        }
        Error::PreviousIo => {
            StoreError::new(Kind::Io, path, "an earlier write failed", "remove its cause and start again")
        }
        other => StoreError::corrupt(path, other.to_string(), ADVICE),
    }
}

#[cfg(test)]
mod tests;
