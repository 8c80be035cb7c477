//! Journals with holes: a stranger ships gigabytes of nothing in a few bytes, and whoever opens them has not the memory.
#![cfg(target_os = "linux")]

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

use muster_core::ids::{Digest, Height, RunId};
use muster_core::messages::record::{Body, Record};
use muster_core::sign::{Identity, Signed};
use muster_store::error::Kind;
use muster_store::home::Home;
use muster_store::journal::Journal;
use rustix::process::{Resource, Rlimit, setrlimit};

const CHILD: &str = "MUSTER_STORE_HOLES";
const HOLE: u64 = 2 << 30;
/// Address space of the child, its program and threads included: less than the hole.
const SPACE: u64 = 1 << 30;
const RECORDS: u64 = 40;

fn record(height: u64) -> Signed<Record> {
    let body = Body::Close(Digest([height as u8; 32]));
    let record = Record { height: Height(height), previous: Digest([3; 32]), body };
    Identity::from_secret(&[7; 32]).sign(RunId(Digest([1; 32])), &record)
}

fn said() -> Vec<Signed<Record>> {
    (0..RECORDS).map(record).collect()
}

#[test]
fn child() {
    let Ok(directory) = std::env::var(CHILD) else { return };
    setrlimit(Resource::As, Rlimit { current: Some(SPACE), maximum: Some(SPACE) }).unwrap();
    let path = Path::new(&directory);
    // As `muster view`, `replay` and `muster-verifier check` read somebody else's folder.
    let nothing = Journal::copy_of(&path.join("nothing")).unwrap_err();
    assert_eq!(nothing.kind(), Kind::Corrupt);
    assert!(nothing.to_string().contains("nothing/journal.redb: is damaged ("), "{nothing}");
    let copy = Journal::copy_of(&path.join("home")).unwrap();
    assert!(copy.records(Height(0), usize::MAX).unwrap() == said());
    // As its member does, whose file system may have made the hole.
    let own = Journal::open(&Home::open(&path.join("home")).unwrap()).unwrap();
    assert!(own.records(Height(0), usize::MAX).unwrap() == said());
    own.append(Height(RECORDS), &record(RECORDS)).unwrap();
}

#[test]
fn a_journal_with_a_hole_takes_no_memory_for_it() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).join("journal.redb");
    let home = Home::open(&directory.path().join("home")).unwrap();
    Journal::open(&home).unwrap().append_all(Height(0), &said()).unwrap();
    drop(home);
    fs::create_dir(directory.path().join("nothing")).unwrap();
    for name in ["home", "nothing"] {
        let file = File::options().create(true).truncate(false).write(true).open(at(name)).unwrap();
        file.set_len(HOLE).unwrap();
    }
    let mut child = Command::new(std::env::current_exe().unwrap());
    let ended =
        child.args(["--exact", "child", "--nocapture"]).env(CHILD, directory.path()).output().unwrap();
    let said = [ended.stdout, ended.stderr].map(|said| String::from_utf8_lossy(&said).into_owned()).concat();
    assert!(ended.status.success(), "{said}");
}
