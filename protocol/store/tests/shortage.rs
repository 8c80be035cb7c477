//! A process that has no descriptor left: whatever it opens waits until a connection has given one up.
#![cfg(unix)]

use std::fs::File;
use std::sync::{Arc, Mutex, PoisonError};

use muster_store::home::Home;
use muster_store::patience::relieve_by;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors of this process: what the harness has open, and some to take.
const DESCRIPTORS: u64 = 64;

fn take_all() -> Vec<File> {
    std::iter::from_fn(|| File::open("/dev/null").ok()).collect()
}

#[test]
fn chan_13_homes_keys_and_datasets_wait_for_descriptors_too() {
    let directory = tempfile::tempdir().unwrap();
    let limit = Rlimit { current: Some(DESCRIPTORS), ..getrlimit(Resource::Nofile) };
    setrlimit(Resource::Nofile, limit).unwrap();
    // Connections of strangers.
    let taken = Arc::new(Mutex::new(Vec::new()));
    let given = taken.clone();
    relieve_by(Arc::new(move || given.lock().unwrap_or_else(PoisonError::into_inner).pop().is_some()));
    let refill = || *taken.lock().unwrap() = take_all();
    refill();
    assert!(File::open("/dev/null").is_err(), "there is none left");
    let home = Home::open(directory.path()).unwrap();
    refill();
    let me = home.identity().unwrap().id();
    refill();
    home.write_sealed("note", b"note").unwrap();
    refill();
    assert_eq!(home.read_sealed("note").unwrap(), b"note");
    drop(home);
    refill();
    assert_eq!(Home::open(directory.path()).unwrap().identity().unwrap().id(), me);
    taken.lock().unwrap().clear();
}
