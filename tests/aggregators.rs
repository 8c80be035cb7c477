//! Aggregators that lie, as real processes: found before the seal or after it, expelled, nobody else is, and the
//! archive replays.

use std::fs;

use e2e::processes::Run;
use e2e::programs;
use e2e::settings::Settings;
use muster_core::ledger::Ledger;
use muster_core::messages::record::Body;
use muster_core::messages::round::Bitmap;
use muster_replica::archive::Archive;

fn settings() -> Settings {
    // Contributions are not audited: what is found is found in parts.
    Settings {
        rounds: 12,
        nodes: 4,
        audit: (0.0, 1),
        coin_lead: 1,
        contributions: 16,
        blocks: 1.0,
        ..Settings::default()
    }
}

/// Runs three honest nodes and an attacker; gives the one ban.
fn banned(run: &Run, attack: &str, verifier: bool) -> serde_json::Value {
    let mut steward = run.host();
    let watch = verifier.then(|| run.watch("verifier", &run.invite("verifier", 1)));
    let nodes = run.invite("node", 4);
    let names = ["first", "second", "third"];
    let mut honest: Vec<_> = names.iter().map(|name| run.join(name, &nodes, &[])).collect();
    let mut cheat = run.attack("cheat", attack, 2, &nodes);
    assert_eq!(cheat.wait(), 1, "{}", cheat.log());
    for node in &mut honest {
        assert_eq!(node.wait(), 0, "{}", node.log());
    }
    if let Some(mut watch) = watch {
        assert_eq!(watch.wait(), 0, "{}", watch.log());
    }
    assert_eq!(steward.wait(), 0, "{}", steward.log());
    let root = run.root();
    for name in names {
        assert_eq!(run.result(name)["final_state_root"], root.as_str());
    }
    let bans = run.events("ban");
    assert_eq!(bans.len(), 1, "{bans:?}");
    assert_eq!(bans[0]["finding"], "aggregation mismatch");
    // It reduces falsely from round 2 on. The next round may be over when the first is looked at, and be judged before it.
    assert!(matches!(bans[0]["round"].as_u64(), Some(2 | 3)), "{bans:?}");
    let (code, output) = run.replay();
    assert_eq!(code, 0, "{output}");
    for evidence in fs::read_dir(run.path("run/evidence")).expect("evidence") {
        let path = evidence.expect("an entry").path();
        let (code, output) = run.verifier(&["check", &path.to_string_lossy()]);
        assert_eq!(code, 0, "{output}");
        assert!(output.contains("guilty"), "{output}");
    }
    bans[0].clone()
}

#[test]
fn parts_that_an_aggregator_turns_away_count_all_the_same() {
    let run = Run::new(programs!(), &settings());
    let mut steward = run.host();
    let nodes = run.invite("node", 4);
    let names = ["first", "second", "third"];
    let mut honest: Vec<_> = names.iter().map(|name| run.join(name, &nodes, &[])).collect();
    let mut cheat = run.attack("cheat", "turn-away", 2, &nodes);
    for process in honest.iter_mut().chain([&mut cheat, &mut steward]) {
        assert_eq!(process.wait(), 0, "{}", process.log());
    }
    let id = run.good(&["id", "--data-dir", &run.at("cheat")]);
    let turned_away = format!("was not delivered to {}: ", &id[..16]);
    assert!(honest.iter().all(|node| node.log().contains(&turned_away)), "{}", honest[0].log());
    // Everybody counts in every part of every round, and nobody is blamed, waited for or replaced.
    let archive = Archive::open(&run.path("run")).expect("an archive");
    let mut ledger = Ledger::new(archive.manifest.clone());
    for signed in &archive.records {
        let record = ledger.apply(signed).expect("an honest ledger");
        assert!(!matches!(record.body, Body::Reassign(_) | Body::Ban(_)), "{:?}", record.body);
        let Body::Outcome(outcome) = &record.body else { continue };
        let view = ledger.round(outcome.round).expect("a round just ended");
        assert_eq!(view.parts().len(), 4);
        let all = |inputs: &Bitmap| inputs.slots().count() == 4;
        assert!(
            view.inputs().iter().all(all) && outcome.results.iter().all(Option::is_some),
            "{}",
            outcome.round
        );
    }
    assert!(ledger.members().iter().all(|member| member.failures == 0));
    run.check_end(&["first", "second", "third", "cheat"]);
}

/// What it signed for is missed in audits of whoever cannot be dialled, and nowhere else: these audits recompute all leaves.
#[test]
fn audit_29_what_a_stingy_keeper_costs_is_paid_in_leaves_and_by_no_member() {
    let run = Run::new(programs!(), &Settings { audit: (1.0, 1), blocks: 0.0, ..settings() });
    let mut steward = run.host();
    let mut watch = run.watch("verifier", &run.invite("verifier", 1));
    let nodes = run.invite("node", 4);
    let mut members = [
        run.join("first", &nodes, &[]),
        run.join("second", &nodes, &[]),
        run.join_undialled("undialled", &nodes),
        run.attack("cheat", "stingy", 0, &nodes),
    ];
    for process in members.iter_mut().chain([&mut watch, &mut steward]) {
        assert_eq!(process.wait(), 0, "{}", process.log());
    }
    let id = |name: &str| run.good(&["id", "--data-dir", &run.at(name)]);
    let log = watch.log();
    let missed: Vec<&str> = log.lines().filter(|line| line.contains("its leaves are recomputed")).collect();
    assert!(!missed.is_empty(), "{log}");
    let of_it = format!("the contribution of {}", &id("undialled")[..16]);
    assert!(missed.iter().all(|line| line.contains(&of_it)), "{missed:?}");
    let archive = Archive::open(&run.path("run")).expect("an archive");
    let mut ledger = Ledger::new(archive.manifest.clone());
    for signed in &archive.records {
        let record = ledger.apply(signed).expect("an honest ledger");
        let blamed =
            matches!(record.body, Body::Reassign(_) | Body::Ban(_) | Body::Silence(_) | Body::Idle(_));
        assert!(!blamed, "{:?}", record.body);
    }
    assert!(ledger.members().iter().all(|member| member.failures == 0));
    run.check_end(&["first", "second", "undialled", "cheat"]);
}

#[test]
fn a_gross_part_is_never_sealed() {
    let run = Run::new(programs!(), &settings());
    let ban = banned(&run, "inflate", false);
    // The steward found it, before the round was over: what counted in it is right.
    assert_eq!((&ban["round"], &ban["effective"]), (&2.into(), &3.into()));
    assert!(
        !run.path("run/exhibits")
            .read_dir()
            .expect("exhibits")
            .any(|entry| { entry.expect("an entry").file_name().to_string_lossy().starts_with("2.part-") })
    );
}

/// AUDIT-24: the replay judges the ban again, by inputs that count nowhere and that no leaves give.
#[test]
fn what_counted_in_a_struck_part_alone_is_kept_beside_the_evidence() {
    let run = Run::new(programs!(), &settings());
    let ban = banned(&run, "spoil", false);
    assert_eq!((&ban["effective"], &ban["finding"]), (&3.into(), &"aggregation mismatch".into()));
}

#[test]
fn of_two_aggregators_the_one_that_lies_is_caught_by_the_other() {
    // Nobody objects to one block whose sign is turned, and no verifier is there to draw it.
    let run = Run::new(programs!(), &Settings { replicas: 2, ..settings() });
    let ban = banned(&run, "nudge", false);
    assert_eq!(ban["effective"], 3);
    let exhibits = fs::read_dir(run.path("run/exhibits")).expect("exhibits");
    let names = exhibits.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned());
    assert!(!names.into_iter().any(|name| name.starts_with("2.part-")), "what counted is right");
}

#[test]
fn a_wrong_block_is_drawn_and_convicts() {
    let run = Run::new(programs!(), &Settings { verifiers: 1, ..settings() });
    let ban = banned(&run, "nudge", true);
    assert_ne!(ban["accuser"], ban["member"]);
    // Several pieces of evidence may have been judged before one of them was sealed.
    assert!(run.check_bundles("run") >= 1, "with the ledger and the part's inputs");
    // The wrong part counted; its values are kept, and replay needs them.
    let kept = |name: &str| name.contains(".part-");
    let exhibits: Vec<_> = fs::read_dir(run.path("run/exhibits"))
        .expect("exhibits")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| kept(&path.to_string_lossy()))
        .collect();
    assert!(!exhibits.is_empty());
    for exhibit in exhibits {
        fs::remove_file(exhibit).expect("a file");
    }
    let (code, output) = run.replay();
    assert_ne!(code, 0);
    assert!(output.contains("the values are missing"), "{output}");
}
