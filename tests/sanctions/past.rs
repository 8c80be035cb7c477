//! Real processes: what a convict did earlier is found, and the state goes back for it.

use std::collections::BTreeSet;

use e2e::kept::Kept;
use e2e::processes::{Process, Run, wait_for};
use e2e::programs;
use e2e::settings::Settings;
use muster_core::ledger::Ledger;
use muster_replica::archive::{Archive, Plan, Replay};

#[test]
fn a_convict_s_past_is_taken_back_and_everybody_follows() {
    let (run, output) = taken_back("flip", (1.0, 2), 0.3);
    let root = run.root();
    // LEDGER-19: updates count, not rounds: what was taken back is trained again.
    let archive = Archive::open(&run.path("run")).expect("an archive");
    let mut ledger = Ledger::new(archive.manifest.clone());
    archive.records.iter().for_each(|record| drop(ledger.apply(record).expect("a good record")));
    assert_eq!(ledger.state().step(), 60);
    assert!(ledger.next_round().0 > 60);

    let told = run.events("retro");
    let found = told[0]["rounds"].as_array().expect("rounds").iter();
    let found: BTreeSet<u64> =
        found.filter(|round| round["found"] == "false").filter_map(|round| round["round"].as_u64()).collect();
    let words = |line: &str| line.strip_prefix("round ")?.split(':').next()?.parse::<u64>().ok();
    let replayed: BTreeSet<u64> =
        output.lines().filter(|line| line.contains("a false contribution")).filter_map(words).collect();
    assert_eq!(found, replayed, "the audit of the past finds what the replay finds");
    resumed(&archive, &root);
    sampled(&run, &root);
}

/// ROLLBACK-1: one drawn block convicts an aggregator, and every part that it signed before is combined again.
#[test]
fn a_convict_s_wrong_parts_are_found_and_taken_back() {
    let (run, _) = taken_back("nudge", (0.0, 1), 1.0);
    let (ban, retro) = (&run.events("ban")[0], &run.events("retro")[0]);
    assert_eq!((&ban["finding"], &ban["member"]), (&"aggregation mismatch".into(), &retro["member"]));
    let rounds = retro["rounds"].as_array().expect("rounds");
    let mut bad = Vec::new();
    for told in rounds {
        let round = told["round"].as_u64().expect("a number");
        assert!(told["found"].is_null() || told["found"] == "right", "its leaves are honest: {told}");
        for part in told["parts"].as_array().expect("parts") {
            assert_eq!(part["found"], if round < 2 { "right" } else { "false" }, "{told}");
        }
        if round >= 2 && !told["parts"].as_array().expect("parts").is_empty() {
            bad.push(round);
        }
    }
    assert!(bad.len() > 1, "more than the one that was drawn: {retro}");
    assert!(run.events("rewind")[0]["to"].as_u64() <= bad.last().copied());
}

/// Three honest nodes, one of which nobody can dial, a cheat from round 2 on, and a verifier that audits everything; the state
/// goes back at the least harm, by a few rounds at most.
fn audited(attack: &str) -> (Run, Vec<Process>, Process) {
    let settings = Settings {
        rounds: 60,
        nodes: 4,
        verifiers: 1,
        audit: (1.0, 2),
        rollback: 0.01,
        ..Settings::default()
    };
    let settings = settings.to_string().replace("[rollback]", "[rollback]\nmost_rounds = 8\nspacing = 20");
    let run = Run::packed(programs!(), &settings, None);
    let mut honest = vec![run.host()];
    let nodes = run.invite("node", 4);
    honest.push(run.join("first", &nodes, &[]));
    honest.push(run.join("second", &nodes, &[]));
    honest.push(run.join_undialled("hidden", &nodes));
    let cheat = run.attack("cheat", attack, 2, &nodes);
    honest.push(run.watch("verifier", &run.invite("verifier", 1)));
    (run, honest, cheat)
}

fn all_end_well(run: &Run, honest: Vec<Process>) {
    honest.into_iter().rev().for_each(|mut process| assert_eq!(process.wait(), 0, "{}", process.log()));
    assert_eq!(run.events("ban").len(), 1);
    let root = run.root();
    for member in ["first", "second", "hidden"] {
        assert_eq!(run.result(member)["final_state_root"], root.as_str(), "{member}");
    }
}

/// The parts that the convict reduced lack the inputs of the one that nobody can dial, since it alone has them.
#[test]
fn rollback_5_a_convict_that_stops_and_an_author_that_nobody_can_dial_prevent_no_rewind() {
    let (run, honest, cheat) = audited("flip");
    let guilty = || run.events("verdict").iter().any(|verdict| !verdict["finding"].is_null());
    wait_for("a finding", || guilty() || !run.events("ban").is_empty());
    cheat.suspend();
    all_end_well(&run, honest);
    assert_eq!(run.events("rewind").len(), 1, "{:?}", run.events("retro"));
    let (code, output) = run.replay();
    assert_eq!(code, 0, "{output}");
}

/// False losses with true leaves: the aggregates are what honest work would have given, although a convict's share is in them.
#[test]
fn rollback_2_a_lie_that_moved_nothing_takes_nothing_back() {
    let (run, honest, mut cheat) = audited("loss");
    assert_eq!(cheat.wait(), 1, "{}", cheat.log());
    all_end_well(&run, honest);
    let retro = &run.events("retro")[0];
    let bad = retro["rounds"].as_array().expect("rounds").iter().filter(|told| told["found"] == "false");
    // Where it is convicted late, the states of its first false rounds are gone, and no harm is measured of these (ROLLBACK-2).
    let harms: Vec<_> = bad.map(|told| told["harm"].as_f64()).skip_while(Option::is_none).collect();
    assert!(!harms.is_empty(), "its losses are false: {retro}");
    assert!(harms.iter().all(|harm| *harm == Some(0.0)), "{retro}");
    assert!(run.events("rewind").is_empty(), "{retro}");
}

/// A run in which an attacker is found late, by a verifier that comes late; the state goes back for it.
fn taken_back(attack: &str, audit: (f64, u32), blocks: f64) -> (Run, String) {
    let settings = Settings {
        // Long enough for the verifier to come in time, however slowly it starts, and what counted before is kept.
        rounds: 60,
        contributions: 60,
        nodes: 3,
        audit,
        blocks,
        coin_lead: 6,
        rollback: 0.01,
        ..Settings::default()
    };
    let settings = settings.to_string().replace("states = 16", "states = 60");
    let run = Run::packed(programs!(), &settings, None);
    let mut steward = run.host_with(&["--keep-aggregates"]);
    let nodes = run.invite("node", 3);
    let mut first = run.join("first", &nodes, &[]);
    let mut second = run.join("second", &nodes, &[]);
    let mut cheat = run.attack("cheat", attack, 2, &nodes);
    run.wait_round(2);
    let mut watch = run.watch("verifier", &run.invite("verifier", 1));
    assert_eq!(cheat.wait(), 1, "{}", cheat.log());
    assert_eq!(first.wait(), 0, "{}", first.log());
    assert_eq!(second.wait(), 0, "{}", second.log());
    assert_eq!(watch.wait(), 0, "{}", watch.log());
    assert_eq!(steward.wait(), 0, "{}", steward.log());
    assert_eq!(run.events("ban").len(), 1);
    let rewinds = run.events("rewind");
    assert_eq!(rewinds.len(), 1, "{rewinds:?}");
    let root = run.root();
    for member in ["first", "second", "verifier"] {
        // STATE-6: each went back to the sealed state, by its own copy or a fetched one, with step and moments.
        assert_eq!(run.result(member)["final_state_root"], root.as_str(), "{member}");
    }
    let (code, output) = run.replay();
    assert_eq!(code, 0, "{output}");
    assert!(output.contains(&root), "{output}");
    (run, output)
}

/// A replay that stops after any round goes on from what it kept, and finds the same.
fn resumed(archive: &Archive, root: &str) {
    let plan = Plan { threads: 2, path: None, sample: None };
    let mut whole = Replay::begin(archive, &plan).expect("arithmetic");
    while let Some(round) = whole.round(&|| ()).expect("a good archive") {
        if round.0 % 5 != 3 {
            continue;
        }
        let (progress, kept) = (whole.progress().0, Kept::of(&whole));
        let mut later = Replay::begin(archive, &plan).expect("arithmetic");
        later.skip(&progress, &kept).expect("what was kept");
        while later.round(&|| ()).expect("a good archive").is_some() {}
        let found = later.finish();
        assert_eq!(format!("{:#}", found.root), root, "resumed after round {round}");
        // A state that is not the sealed one is not gone on from.
        let mut forged = Replay::begin(archive, &plan).expect("arithmetic");
        let mut changed = kept;
        changed.states.values_mut().for_each(|held| held.state.parameters[0] += 1.0);
        forged.skip(&progress, &changed).expect_err("another state");
    }
}

/// A share is drawn, everything else followed; without aggregates it says what it lacks.
fn sampled(run: &Run, root: &str) {
    let (folder, work) = (run.at("run"), run.at("work"));
    let (code, output) = run.verifier(&["replay", &folder, "--fraction", "0.3", "--work", &work]);
    assert_eq!(code, 0, "{output}");
    assert!(output.contains("contributions were drawn") && output.contains(root), "{output}");
    std::fs::write(run.path("work/progress"), b"junk").expect("a file");
    let (code, output) = run.verifier(&["replay", &folder, "--fraction", "0", "--work", &work]);
    assert_eq!(code, 0, "{output}");
    assert!(output.contains("is not used") && output.contains(" 0 of "), "{output}");
    std::fs::remove_dir_all(run.path("run/updates")).expect("aggregates");
    let (code, output) = run.verifier(&["replay", &folder, "--fraction", "0.3", "--work", &work]);
    assert_eq!(code, 1, "{output}");
    assert!(output.contains("--keep-aggregates"), "{output}");
}
