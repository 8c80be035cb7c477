//! Cheats as real processes: caught, expelled, and the archive still replays; a changed archive does not.

use std::fs;
use std::path::PathBuf;

use e2e::processes::{Run, copy_folder, evidence_in};
use e2e::programs;
use e2e::settings::Settings;
use muster_core::codec::encode;
use muster_core::ids::Round;
use muster_core::ledger::Ledger;
use muster_core::messages::evidence::{Evidence, Total};
use muster_core::messages::record::Body;
use muster_replica::archive::Archive;

fn settings() -> Settings {
    Settings { rounds: 40, nodes: 3, audit: (1.0, 2), coin_lead: 6, contributions: 32, ..Settings::default() }
}

#[test]
fn cheats_that_counted_are_banned_and_the_archive_replays_to_the_bit() {
    let run = Run::new(programs!(), &settings());
    let mut steward = run.host();
    let nodes = run.invite("node", 3);
    let mut first = run.join("first", &nodes, &[]);
    let mut second = run.join("second", &nodes, &[]);
    let mut cheat = run.attack("cheat", "flip", 2, &nodes);
    // The verifier comes when the cheating has begun, and its coins count coin_lead rounds later.
    run.wait_round(2);
    let mut watch = run.watch("verifier", &run.invite("verifier", 1));
    assert_eq!(cheat.wait(), 1, "{}", cheat.log());
    assert_eq!(first.wait(), 0, "{}", first.log());
    assert_eq!(second.wait(), 0);
    assert_eq!(watch.wait(), 0, "{}", watch.log());
    assert_eq!(steward.wait(), 0);
    let bans = run.events("ban");
    assert_eq!(bans.len(), 1, "{bans:?}");
    let root = run.root();
    assert_eq!(run.result("first")["final_state_root"], root.as_str());
    assert_eq!(run.result("second")["final_state_root"], root.as_str());

    let (code, output) = run.replay();
    assert_eq!(code, 0, "{output}");
    let exhibits = fs::read_dir(run.path("run/exhibits")).expect("exhibits").count();
    assert!(exhibits >= 3, "the cheat counted in {exhibits} rounds");
    assert!(run.check_bundles("run") >= 1);
    for path in evidence_in(&run.path("run")) {
        let (code, output) = run.verifier(&["check", &path.to_string_lossy()]);
        assert_eq!(code, 0, "{output}");
        assert!(output.contains("guilty"), "{output}");
    }
    words_of_check(&run);
    damage(&run);
}

/// What is not guilty, not to be decided, or no evidence has its own words and exit code.
fn words_of_check(run: &Run) {
    let archive = Archive::open(&run.path("run")).expect("an archive");
    let id = |name: &str| run.good(&["id", "--data-dir", &run.at(name)]).trim().to_owned();
    let mut ledger = Ledger::new(archive.manifest.clone());
    let freeze = archive.records.iter().find(|signed| {
        let record = ledger.apply(signed).expect("an honest ledger");
        matches!(&record.body, Body::Freeze(freeze) if freeze.round == Round(1))
    });
    let honest =
        ledger.members().iter().map(|member| member.id).find(|member| format!("{member:#}") == id("first"));
    let total = Total { freeze: freeze.expect("a round").clone(), culprit: honest.expect("a member") };
    let copy = run.path("words");
    copy_folder(&run.path("run"), &copy);
    let file = copy.join("evidence/claim.bin");
    let check = |bytes: &[u8], code: i32, word: &str| {
        fs::write(&file, bytes).expect("a file");
        let (said, output) = run.verifier(&["check", &file.to_string_lossy()]);
        assert!(said == code && output.contains(word) && !output.contains("panicked"), "{said}: {output}");
    };
    let bytes = encode(&Evidence::Total(total));
    check(&bytes, 1, "not guilty: ");
    check(&bytes[..bytes.len() - 1], 5, "malformed, no evidence of anything: ");
    check(b"he did it", 5, "malformed, no evidence of anything: ");
    fs::remove_file(copy.join("data/train.bin")).expect("the text");
    check(&bytes, 3, "the text is not here");
}

#[test]
fn a_small_rehearsal_ends_as_it_should() {
    let run = Run::new(programs!(), &settings());
    let out = run.path("rehearsal");
    let arguments = ["demo", "--nodes", "2", "--attack", "lazy", "--rounds", "14", "--attack-from", "5"];
    let (code, output) =
        run.muster(&[&arguments[..], &["--no-learning-check", "--out", &out.to_string_lossy()]].concat());
    assert_eq!(code, 0, "{output}");
    let report = fs::read_to_string(out.join("report.json")).expect("a report");
    let report: serde_json::Value = serde_json::from_str(&report).expect("JSON");
    assert_eq!(report["rounds"].as_array().map(Vec::len), Some(14));
    assert_eq!(report["bans"].as_array().map(Vec::len), Some(1), "{report}");
    let root = &report["final_state_root"];
    let members = report["members"].as_array().expect("members");
    let honest: Vec<_> = members.iter().filter(|member| member["honest"] == true).collect();
    assert!(honest.len() >= 3 && honest.iter().all(|member| member["final_state_root"] == *root), "{report}");
}

/// One changed bit, in each kind of file and all over the ledger, and the replay refuses.
fn damage(run: &Run) {
    let copy = run.path("copy");
    copy_folder(&run.path("run"), &copy);
    let refused = |file: &std::path::Path, place: usize| {
        let good = fs::read(file).expect("a file");
        let mut bad = good.clone();
        bad[place] ^= 1 << (place % 8);
        fs::write(file, &bad).expect("a file");
        let (code, output) = run.verifier(&["replay", &copy.to_string_lossy()]);
        assert_ne!(code, 0, "{} byte {place}: {output}", file.display());
        assert!(!output.contains("panicked"), "{output}");
        fs::write(file, good).expect("a file");
    };
    let ledger = copy.join("ledger.bin");
    let bytes = fs::read(&ledger).expect("a ledger");
    // A place in the body of each record, then everywhere.
    let mut at = 0;
    let mut record = 0;
    while at + 4 <= bytes.len() {
        let length = u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four")) as usize;
        if record % 9 == 0 {
            refused(&ledger, at + 4 + length - 1);
        }
        record += 1;
        at += 4 + length;
    }
    for share in 1..8 {
        refused(&ledger, bytes.len() * share / 8);
    }
    let train = copy.join("data/train.bin");
    refused(&train, 12_345);
    refused(&copy.join("manifest.bin"), 40);
    // The last round's exhibit is needed; the first ones, from before the cheating, can be computed again.
    let entries = fs::read_dir(copy.join("exhibits")).expect("a folder");
    let exhibits = entries.map(|entry| entry.expect("an entry").path());
    let round =
        |path: &PathBuf| -> Option<u32> { path.file_name()?.to_str()?.split('.').next()?.parse().ok() };
    let last = exhibits.max_by_key(round).expect("an entry");
    for needed in [last, evidence_in(&copy)[0].clone()] {
        let length = fs::metadata(&needed).expect("a file").len() as usize;
        refused(&needed, length / 2);
    }
    let (code, output) = run.verifier(&["replay", &copy.to_string_lossy()]);
    assert_eq!(code, 0, "the copy is whole again: {output}");
}
