//! A text of which members hold only a part: they fetch what they need when they need it.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use e2e::processes::Run;
use e2e::programs;
use e2e::settings::Settings;

/// Bytes of a text that is longer than what is fetched at first.
const LONG: usize = 72 << 20;
/// What a member may take of the disk, in GiB: about half of the text.
const ROOM: &str = "0.045";

/// Bytes that a file takes on the disk.
fn taken(path: &Path) -> u64 {
    fs::metadata(path).expect("a file").blocks() * 512
}

#[test]
fn data_10_members_train_and_audit_on_a_text_that_their_disks_do_not_hold() {
    let settings = Settings { rounds: 20, verifiers: 1, audit: (1.0, 2), ..Settings::default() };
    let run = Run::new(programs!(), &settings);
    let text: Vec<u8> = (0..LONG as u64).map(|place| b'a' + (place * place / 977 % 26) as u8).collect();
    fs::write(run.path("long.txt"), text).expect("a file");
    fs::remove_dir_all(run.path("run")).expect("a folder");
    let [long, corpus, config, folder] = ["long.txt", "long", "run.toml", "run"].map(|name| run.at(name));
    run.good(&["data", "pack", "--text", &long, "--out", &corpus]);
    run.good(&["run", "new", "--config", &config, "--data", &corpus, "--out", &folder]);

    let mut steward = run.host();
    let (nodes, verifiers) = (run.invite("node", 2), run.invite("verifier", 1));
    let little = ["--max-disk", ROOM];
    let mut first = run.join("first", &nodes, &little);
    let mut second = run.join("second", &nodes, &little);
    let mut watcher = run.watch_with("watcher", &verifiers, &little);
    run.wait_round(5);
    // What came is there after a kill.
    second.kill();
    assert!(run.path("second/data/train.bin.held").exists());
    let mut second = run.join("second", &nodes, &little);
    for process in [&mut first, &mut second, &mut watcher, &mut steward] {
        assert_eq!(process.wait(), 0, "{}", process.log());
    }
    run.check_end(&["first", "second", "watcher"]);
    for member in ["first", "second"] {
        let file = run.path(&format!("{member}/data/train.bin"));
        let (kept, whole) = (taken(&file), fs::metadata(&file).expect("a file").len());
        assert!(kept > 1 << 20 && kept < whole * 3 / 4, "{member} has {kept} of {whole}");
    }
}
