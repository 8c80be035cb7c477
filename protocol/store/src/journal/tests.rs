use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};

use muster_core::ids::{Digest, RunId};
use muster_core::messages::record::Body;
use muster_core::sign::Identity;
use redb::StorageBackend;

use super::*;

fn record(height: u64) -> Signed<Record> {
    let body = Body::Close(Digest([height as u8; 32]));
    let record = Record { height: Height(height), previous: Digest([3; 32]), body };
    Identity::from_secret(&[7; 32]).sign(RunId(Digest([1; 32])), &record)
}

fn records(count: u64) -> Vec<Signed<Record>> {
    (0..count).map(record).collect()
}

#[test]
fn records_follow_each_other() {
    let directory = tempfile::tempdir().unwrap();
    let home = Home::open(directory.path()).unwrap();
    let journal = Journal::open(&home).unwrap();
    assert_eq!(journal.height().unwrap(), Height(0));
    assert_eq!(journal.append(Height(1), &record(1)).unwrap_err().kind(), Kind::Refused);
    journal.append(Height(0), &record(0)).unwrap();
    journal.append_all(Height(1), &records(5)[1..]).unwrap();
    for wrong in [0, 4, 6, u64::MAX] {
        let error = journal.append(Height(wrong), &record(wrong)).unwrap_err();
        assert_eq!(error.kind(), Kind::Refused);
        assert!(error.to_string().contains("the next record has height 5"), "{error}");
    }
    drop(journal);
    let journal = Journal::open(&home).unwrap();
    assert_eq!(journal.height().unwrap(), Height(5));
    assert_eq!(journal.records(Height(0), 100).unwrap(), records(5));
    assert_eq!(journal.records(Height(3), 1).unwrap(), [record(3)]);
    assert!(journal.records(Height(5), 9).unwrap().is_empty());
}

#[test]
fn a_vote_does_not_change() {
    let directory = tempfile::tempdir().unwrap();
    let home = Home::open(directory.path()).unwrap();
    let journal = Journal::open(&home).unwrap();
    assert_eq!(journal.vote("commit", Round(3)).unwrap(), None);
    assert_eq!(journal.put_vote("commit", Round(3), b"one").unwrap(), b"one");
    // COMMIT-2: one a round, and after a restart still the same. ROUND-2: of each kind.
    assert_eq!(journal.put_vote("commit", Round(3), b"two").unwrap(), b"one");
    assert_eq!(journal.put_vote("echo", Round(3), b"two").unwrap(), b"two");
    assert_eq!(journal.put_vote("commit", Round(4), b"").unwrap(), b"");
    drop(journal);
    let journal = Journal::open(&home).unwrap();
    assert_eq!(journal.put_vote("commit", Round(3), b"two").unwrap(), b"one");
    assert_eq!(journal.vote("commit", Round(4)).unwrap(), Some(Vec::new()));
}

#[test]
fn threads_agree_on_one_vote() {
    let directory = tempfile::tempdir().unwrap();
    let journal = Journal::open(&Home::open(directory.path()).unwrap()).unwrap();
    let say = |number: u8| journal.put_vote("commit", Round(0), &[number]).unwrap();
    let stands: Vec<Vec<u8>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|number| scope.spawn(move || say(number))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(stands.iter().all(|stand| *stand == stands[0]), "{stands:?}");
}

#[test]
fn notes_change() {
    let directory = tempfile::tempdir().unwrap();
    let journal = Journal::open(&Home::open(directory.path()).unwrap()).unwrap();
    assert_eq!(journal.note("manifest").unwrap(), None);
    journal.put_note("manifest", b"one").unwrap();
    journal.put_note("manifest", b"two").unwrap();
    assert_eq!(journal.note("manifest").unwrap(), Some(b"two".to_vec()));
}

#[test]
fn it_is_opened_once_and_keeps_the_home() {
    let directory = tempfile::tempdir().unwrap();
    let home = Home::open(directory.path()).unwrap();
    let journal = Journal::open(&home).unwrap();
    assert_eq!(Journal::open(&home).unwrap_err().kind(), Kind::Locked);
    drop(home);
    assert_eq!(Home::open(directory.path()).unwrap_err().kind(), Kind::Locked);
    drop(journal);
    Home::open(directory.path()).unwrap();
}

/// A home with 20 records and a vote; the bytes of its journal as a crash leaves them, and as it is closed.
fn filled() -> (tempfile::TempDir, Home, [Vec<u8>; 2]) {
    let directory = tempfile::tempdir().unwrap();
    let home = Home::open(directory.path()).unwrap();
    let journal = Journal::open(&home).unwrap();
    journal.append_all(Height(0), &records(20)).unwrap();
    let _ = journal.put_vote("commit", Round(3), b"one").unwrap();
    let crashed = fs::read(home.at(Journal::FILE)).unwrap();
    drop(journal);
    let closed = fs::read(home.at(Journal::FILE)).unwrap();
    (directory, home, [crashed, closed])
}

type Said = (Vec<Signed<Record>>, Option<Vec<u8>>);

/// What a reader gets out of a journal: all of it.
fn read_all(home: &Home) -> Result<Said> {
    let journal = Journal::open(home)?;
    Ok((journal.records(Height(0), 100)?, journal.vote("commit", Round(3))?))
}

#[test]
fn a_cut_journal_is_an_error_that_names_it() {
    let (_directory, home, snapshots) = filled();
    for bytes in snapshots {
        for sixteenth in 0..16 {
            fs::write(home.at(Journal::FILE), &bytes[..bytes.len() * sixteenth / 16]).unwrap();
            let error = read_all(&home).unwrap_err();
            assert_eq!(error.kind(), Kind::Corrupt, "{sixteenth}: {error}");
            assert!(error.to_string().contains("journal.redb: is damaged ("), "{error}");
        }
    }
    fs::write(home.at(Journal::FILE), b"garbage ".repeat(10_000)).unwrap();
    assert_eq!(read_all(&home).unwrap_err().kind(), Kind::Corrupt);
}

#[test]
fn a_crash_loses_nothing() {
    let (_directory, home, [crashed, _]) = filled();
    fs::write(home.at(Journal::FILE), crashed).unwrap();
    assert_eq!(read_all(&home).unwrap(), (records(20), Some(b"one".to_vec())));
}

#[test]
fn no_changed_byte_changes_what_was_said() {
    let (_directory, home, snapshots) = filled();
    let whole = (records(20), Some(b"one".to_vec()));
    for bytes in snapshots {
        let used: Vec<usize> = (0..bytes.len()).filter(|place| bytes[*place] != 0).collect();
        for place in used.iter().step_by((used.len() / 100).max(1)) {
            let mut forged = bytes.clone();
            forged[*place] ^= 0x55;
            fs::write(home.at(Journal::FILE), &forged).unwrap();
            match read_all(&home) {
                Ok(read) => assert_eq!(read, whole, "byte {place}"),
                Err(error) => assert_eq!(error.kind(), Kind::Corrupt, "byte {place}: {error}"),
            }
        }
    }
}

/// A disk that is full from some moment on.
#[derive(Debug, Clone, Default)]
struct Disk(Arc<(InMemoryBackend, AtomicBool)>);

impl Disk {
    fn room(&self) -> io::Result<()> {
        if self.0.1.load(Ordering::Relaxed) { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }
}

impl StorageBackend for Disk {
    fn len(&self) -> io::Result<u64> {
        self.0.0.len()
    }
    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.0.read(offset, out)
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.room()?;
        self.0.0.set_len(len)
    }
    fn sync_data(&self) -> io::Result<()> {
        self.room()
    }
    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.room()?;
        self.0.0.write(offset, data)
    }
}

#[test]
fn a_full_disk_loses_nothing() {
    let disk = Disk::default();
    let open = || {
        let database = builder().create_with_backend(disk.clone()).unwrap();
        prepare(&database).unwrap();
        Journal { database, path: Journal::FILE.into(), failed: Mutex::default(), _home: None }
    };
    let journal = open();
    journal.append_all(Height(0), &records(9)).unwrap();
    disk.0.1.store(true, Ordering::Relaxed);
    let error = journal.append(Height(9), &record(9)).unwrap_err();
    assert_eq!(error.kind(), Kind::Full, "{error}");
    // Whoever writes next is told the same: a write that was done without may have been the first.
    assert_eq!(journal.append(Height(9), &record(9)).unwrap_err().to_string(), error.to_string());
    drop(journal);
    disk.0.1.store(false, Ordering::Relaxed);
    let journal = open();
    assert_eq!(journal.records(Height(0), 100).unwrap(), records(9));
    journal.append(Height(9), &record(9)).unwrap();
}

#[test]
fn a_journal_is_copied_while_it_is_written() {
    let directory = tempfile::tempdir().unwrap();
    let home = Home::open(directory.path()).unwrap();
    let journal = Journal::open(&home).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for height in 0..60 {
                journal.append(Height(height), &record(height)).unwrap();
            }
            done.store(true, Ordering::Relaxed);
        });
        let mut before = 0;
        while !done.load(Ordering::Relaxed) {
            let copy = Journal::copy_of(directory.path()).unwrap();
            let height = copy.height().unwrap().0;
            assert!(height >= before);
            assert_eq!(copy.records(Height(0), 100).unwrap(), records(height));
            before = height;
        }
    });
    let copy = Journal::copy_of(directory.path()).unwrap();
    assert_eq!(copy.records(Height(0), 100).unwrap(), records(60));
    assert_eq!(Journal::copy_of(&directory.path().join("elsewhere")).unwrap_err().kind(), Kind::Missing);
}
