//! What a member may take of the disk: refused before anything is fetched, and before it is written.
#![allow(clippy::unwrap_used)] // the helpers, too, are tests

use std::fs;
use std::path::PathBuf;

use muster_core::ids::MemberId;
use muster_core::manifest::fixture::tiny;
use muster_replica::{Allowance, disk, parse_gibibytes};

/// A folder of this process, removed in the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("muster-allowance-{name}-{}", std::process::id()));
        fs::create_dir(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn limit_3_a_run_that_takes_more_than_is_allowed_or_free_is_refused_with_what_to_do() {
    let folder = Folder::new("run");
    let mut manifest = tiny(MemberId([1; 32]), MemberId([2; 32]), 100, 2);
    let need = disk::contributing(&manifest);
    Allowance::new(&folder.0, None).check_run(&need).unwrap();
    Allowance::new(&folder.0, Some(need.bytes())).check_run(&need).unwrap();
    let why = Allowance::new(&folder.0, Some(need.bytes() - 1)).check_run(&need).unwrap_err().to_string();
    assert!(
        why.contains("--max-disk allows 0.0") && why.contains("allow more, or join another run"),
        "{why}"
    );
    // More than any disk has.
    (manifest.retention.states, manifest.training.rounds) = (u32::MAX, 1 << 24);
    manifest.model.layers = 4096;
    for need in [disk::contributing(&manifest), disk::following(&manifest), disk::hosting(&manifest, 0)] {
        let why = Allowance::new(folder.0.join("new"), None).check_run(&need).unwrap_err().to_string();
        assert!(
            why.contains("/new: this run takes about ") && why.contains("GiB by retention.states"),
            "{why}"
        );
        assert!(why.contains("are free there; make room") && why.contains("--data-dir"), "{why}");
    }
}

#[test]
fn limit_3_what_is_in_the_folder_counts_and_what_comes_next() {
    let folder = Folder::new("growth");
    fs::write(folder.0.join("journal.redb"), vec![1; 400_000]).unwrap();
    let allowance = |most| Allowance::new(&folder.0, Some(most));
    assert_eq!(Allowance::new(&folder.0, None).check(u64::MAX).unwrap(), u64::MAX);
    let left = allowance(1 << 20).check(0).unwrap();
    assert!((500_000..648_577).contains(&left), "{left}");
    assert_eq!(allowance(1 << 20).check(left).unwrap(), 0);
    let why = allowance(1 << 20).check(left + 1).unwrap_err().to_string();
    assert!(why.contains("holds 0.0004 GiB") && why.contains("the same command goes on"), "{why}");
    // The journal may grow by half of itself.
    let less = allowance(1 << 20).check_round(0).unwrap();
    assert!((200_000..210_000).contains(&(left - less)), "{left} {less}");
}

#[test]
fn a_size_is_read_in_gibibytes() {
    assert_eq!(parse_gibibytes("0.5"), Ok(1 << 29));
    assert_eq!(parse_gibibytes("1e300"), Ok(u64::MAX));
    for wrong in ["", "0", "-1", "nan", "inf", "ten"] {
        assert!(parse_gibibytes(wrong).is_err(), "{wrong}");
    }
}
