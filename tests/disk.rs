//! Full disks under real processes: one sentence and exit code 3, and with room again the same directory goes on to the
//! same state.

use std::fs::{self, File};
use std::io::Write;
use std::process::{Command, Stdio};

use e2e::processes::{Cramped, Process, Run, copy_folder, wait_for};
use e2e::programs;
use e2e::settings::Settings;

fn settings() -> Settings {
    Settings { rounds: 50, ..Settings::default() }
}

/// What a person sees: which file, why, what to do. Exactly one such sentence, at the end.
fn told(process: &mut Process, place: &str) {
    assert_eq!(process.wait(), 3, "{}", process.log());
    let log = process.log();
    assert!(!log.contains("panicked"), "{log}");
    let last = log.lines().last().expect("a sentence");
    assert!(last.starts_with("muster: ") && last.contains(place), "{last}");
    let full = last.contains("the disk is full; make room and start again, nothing is damaged");
    let limited = last.contains("may not grow any more") && last.contains("nothing is damaged");
    // LIMIT-3: before anything is fetched.
    let early = last.contains("are free there; make room") && last.contains("nothing is damaged");
    assert!(full || limited || early, "{last}");
    assert_eq!(log.matches("nothing is damaged").count(), 1, "{log}");
}

/// A node has `kibibytes` on a file system of its own, or for each of its files; is that more than the run takes, something else
/// fills it later.
fn a_node_without_room(mount: bool, kibibytes: u32, fills: bool) {
    let run = Run::new(programs!(), &settings());
    let mut steward = run.host();
    let nodes = run.invite("node", 2);
    let mut first = run.join("first", &nodes, &[]);
    let mut cramped = Cramped::new(run.path("cramped"), kibibytes, mount);
    if fills && !cramped.is_mounted() {
        return;
    }
    let mut second = run.join_cramped("second", &nodes, &cramped);
    if fills {
        wait_for("both nodes", || run.events("admit").len() == 2);
        let mut other = File::create(run.path("cramped/other")).expect("a file");
        while other.write_all(&[1; 1 << 12]).is_ok() {}
    }
    told(&mut second, &run.at("cramped/home"));
    // Making room takes its time: the steward has noticed, and the run still has rounds to go.
    first.suspend();
    let member = run.events("admit").len() == 2;
    wait_for("the absence", || !member || run.events("is not connected any more").len() == 1);
    cramped.widen();
    let mut second = run.join_cramped("second", &nodes, &cramped);
    first.resume();
    assert_eq!(second.wait(), 0, "{}", second.log());
    assert_eq!(first.wait(), 0, "{}", first.log());
    assert_eq!(steward.wait(), 0);
    run.check_end(&["first", "cramped/home"]);
}

#[test]
fn limit_3_a_node_on_a_small_disk_is_told_before_it_fetches_anything() {
    a_node_without_room(true, 400, false);
}

#[test]
fn a_node_on_a_full_disk_says_so_and_goes_on_with_room() {
    a_node_without_room(true, 16 << 10, true);
}

#[test]
fn a_node_whose_files_may_not_grow_says_so_and_goes_on_when_they_may() {
    a_node_without_room(false, 200, false);
}

#[test]
fn a_node_that_has_no_room_for_the_text_is_told_before_it_is_a_member() {
    let run = Run::new(programs!(), &settings());
    let _steward = run.host();
    let nodes = run.invite("node", 1);
    let cramped = Cramped::new(run.path("cramped"), 24, true);
    let mut node = run.join_cramped("node", &nodes, &cramped);
    told(&mut node, &run.at("cramped/home"));
    assert!(run.events("admit").is_empty());
}

#[test]
fn what_cannot_be_written_down_is_no_success_but_a_reader_may_go_away() {
    let run = Run::new(programs!(), &settings());
    let invite = |out: Stdio| {
        let words = ["invite", &run.at("run"), "--role", "node", "--address", "127.0.0.1:1"];
        let mut invite = Command::new(programs!().muster);
        invite.args(words).stdout(out).stderr(Stdio::piped()).output().expect("a program")
    };
    let full = File::options().write(true).open("/dev/full").expect("a file without room");
    let told = invite(full.into());
    assert_eq!(told.status.code(), Some(3));
    let words = String::from_utf8_lossy(&told.stderr).into_owned();
    assert!(words.starts_with("muster: standard output cannot be written: "), "{words}");
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let left = invite(writer.into());
    assert_eq!((left.status.code(), left.stderr.as_slice()), (Some(0), b"".as_slice()));
}

#[test]
fn a_steward_on_a_full_disk_says_so_and_goes_on_with_room() {
    let run = Run::new(programs!(), &settings());
    let whole = run.path("whole");
    copy_folder(&run.path("run"), &whole);
    std::fs::remove_dir_all(run.path("run")).expect("a folder");
    let mut cramped = Cramped::new(run.path("run"), 900, true);
    copy_folder(&whole, &run.path("run"));
    let mut steward = run.host_cramped(&cramped);
    wait_for("the steward to listen", || run.path("run/address").exists());
    let nodes = run.invite("node", 2);
    let mut first = run.join("first", &nodes, &[]);
    let mut second = run.join("second", &nodes, &[]);
    told(&mut steward, &run.at("run"));
    // It hosts all the same: everybody waits for it.
    assert_eq!(steward.log().contains("make room in time"), cramped.is_mounted(), "{}", steward.log());
    cramped.widen();
    let mut steward = run.host_cramped(&cramped);
    assert_eq!(first.wait(), 0, "{}", first.log());
    assert_eq!(second.wait(), 0, "{}", second.log());
    assert_eq!(steward.wait(), 0, "{}", steward.log());
    run.check_end(&["first", "second"]);
}

#[test]
fn limit_3_what_a_run_takes_of_the_disk_is_told_before_it_is_hosted() {
    let run = Run::new(programs!(), &settings());
    let long = Settings { rounds: 16_000, ..Settings::default() };
    let long = long.to_string().replace("\nstates = 16\n", "\nstates = 15000\n");
    fs::write(run.path("long.toml"), long).expect("a file");
    let (config, corpus, out) = (run.at("long.toml"), run.at("corpus"), run.at("long"));
    let told = run.good(&["run", "new", "--config", &config, "--data", &corpus, "--out", &out]);
    assert!(
        told.contains("of disk, a verifier or an observer ") && told.contains("by retention.states"),
        "{told}"
    );
    assert!(told.contains("ledger of 2 nodes; if all 256 places are taken, it takes up to "), "{told}");
    let (_, told) = run.muster(&["doctor", &out]);
    assert!(
        told.contains("the steward of this run takes about ") && told.contains("by retention.states"),
        "{told}"
    );
}
