//! Several verifiers as real processes: they share the work, take over what is left undone, and convict liars.

use std::fs;

use e2e::processes::{Process, Run, wait_for};
use e2e::programs;
use e2e::settings::Settings;
use muster_core::ids::Round;
use muster_core::messages::record::Body;
use muster_replica::archive::Archive;
use serde_json::Value;

/// Impatient settings, in which every contribution is audited and every passing verdict rechecked.
fn run(rounds: u32, nodes: u32) -> Run {
    let settings = Settings { rounds, nodes, verifiers: 2, audit: (1.0, 2), ..Settings::default() };
    let settings = settings.to_string().replace("final_rounds = 2", "final_rounds = 2\nrecheck = 1.0");
    Run::packed(programs!(), &format!("{settings}\n[timers]\naudit = 4.0\ncommit = 5.0\n"), None)
}

fn good(process: &mut Process) {
    assert_eq!(process.wait(), 0, "{}", process.log());
}

/// What the steward counts of a verifier at the end.
fn duties(run: &Run) -> Vec<Value> {
    let close = run.events("close");
    let duties = close.last().expect("a closed run")["duties"].as_object().expect("an object").clone();
    duties.into_iter().map(|(_, counts)| counts).collect()
}

#[test]
fn a_killed_verifier_is_idle_and_the_other_one_goes_on() {
    let run = run(120, 2);
    let mut steward = run.host();
    let nodes = run.invite("node", 2);
    let mut first = run.join("first", &nodes, &[]);
    let mut second = run.join("second", &nodes, &[]);
    let verifiers = run.invite("verifier", 2);
    let mut stays = run.watch("stays", &verifiers);
    let mut goes = run.watch("goes", &verifiers);
    run.wait_round(5);
    goes.kill();
    wait_for("an idle verifier", || !run.events("idle").is_empty());
    let mut goes = run.watch("goes", &verifiers);
    [&mut first, &mut second, &mut stays, &mut goes, &mut steward].into_iter().for_each(good);
    run.check_end(&["first", "second"]);
    assert!(!run.events("is back").is_empty(), "{}", goes.log());
    let duties = duties(&run);
    assert_eq!(duties.len(), 2, "{duties:?}");
    assert!(duties.iter().all(|counts| counts["done"].as_u64() > Some(0)), "{duties:?}");
    assert!(duties.iter().any(|counts| counts["overdue"].as_u64() > Some(0)), "{duties:?}");
    assert!(duties.iter().any(|counts| counts["rechecks"].as_u64() > Some(0)), "{duties:?}");
}

/// Coins for 15,000 rounds take longer to make than the rounds that they have to spare.
#[test]
fn a_verifier_can_join_a_fast_and_long_run() {
    let run = Run::new(programs!(), &Settings { rounds: 15_000, coin_lead: 1, ..Settings::default() });
    let _steward = run.host();
    let nodes = run.invite("node", 2);
    let _nodes = ["first", "second"].map(|name| run.join(name, &nodes, &[]));
    run.wait_round(3);
    let invitation = run.invite("verifier", 1);
    let (code, output) = run.verifier(&["enroll", &invitation, "--data-dir", &run.at("verifier")]);
    assert_eq!(code, 0, "{output}");
    assert!(output.contains("audits begin with round"), "{output}");
    wait_for("its admission", || run.events("admit").len() == 3);
}

/// What was contributed while nobody audited would stay, and no archive of it would replay.
#[test]
fn round_33_rounds_wait_while_the_only_verifier_is_gone() {
    let settings = Settings { rounds: 60, nodes: 3, verifiers: 1, audit: (1.0, 2), ..Settings::default() };
    let run = Run::packed(programs!(), &format!("{settings}\n[timers]\naudit = 2.0\ncommit = 5.0\n"), None);
    let mut steward = run.host();
    let nodes = run.invite("node", 3);
    let mut first = run.join("first", &nodes, &[]);
    let mut second = run.join("second", &nodes, &[]);
    let verifiers = run.invite("verifier", 1);
    let mut watch = run.watch("verifier", &verifiers);
    let mut cheat = run.attack("cheat", "flip", 40, &nodes);
    run.wait_round(3);
    watch.kill();
    wait_for("a round that waits", || !run.events("waits").is_empty());
    first.wait_for_log("no verifier is active: the run waits for one");
    let spent = run.events("round").len();
    assert!(spent < 40, "rounds wait as soon as its absence is noticed: {spent}");
    assert!(steward.log().contains("no verifier is active: rounds wait for one"), "{}", steward.log());
    let mut watch = run.watch("verifier", &verifiers);
    [&mut first, &mut second, &mut watch, &mut steward].into_iter().for_each(good);
    assert_eq!(cheat.wait(), 1, "{}", cheat.log());
    let (code, output) = run.replay();
    assert_eq!(code, 0, "{output}");
}

#[test]
fn audit_2_a_killed_node_answers_for_the_rounds_before() {
    let settings = Settings { rounds: 30, verifiers: 1, audit: (1.0, 2), ..Settings::default() };
    let run = Run::packed(programs!(), &format!("{settings}\n[timers]\naudit = 30.0\ncommit = 5.0\n"), None);
    let mut steward = run.host();
    let nodes = run.invite("node", 2);
    let mut first = run.join("first", &nodes, &[]);
    let mut second = run.join("second", &nodes, &[]);
    let mut watch = run.watch("verifier", &run.invite("verifier", 1));
    run.wait_round(4);
    // Nobody asks before the node is back, so that it is asked about rounds of which it has the files alone.
    watch.suspend();
    run.wait_round(9);
    first.kill();
    let rounds = |log: String| log.matches("leaves counted").count();
    let before = rounds(first.log());
    let mut first = run.join("first", &nodes, &[]);
    // It says again what it has of earlier rounds. Those to come may wait for the verifier already.
    wait_for("a node that is back", || rounds(first.log()) > before);
    watch.resume();
    [&mut first, &mut second, &mut watch, &mut steward].into_iter().for_each(good);
    run.check_end(&["first", "second"]);
    let archive = Archive::open(&run.path("run")).expect("an archive");
    let id = archive.manifest.run();
    let mut silences = archive.records.iter().filter_map(|signed| {
        match signed.verify(id).expect("an honest record").into_inner().body {
            Body::Silence(request) => Some(request.verify(id).expect("a signed request").round),
            _ => None,
        }
    });
    // Of the round that it was interrupted in it may have lost the table.
    assert!(silences.all(|round| round >= Round(9)), "{}", first.log());
}

#[test]
fn a_verifier_that_sleeps_is_idle_until_it_wakes() {
    let run = run(120, 2);
    let mut steward = run.host();
    let nodes = run.invite("node", 2);
    let mut first = run.join("first", &nodes, &[]);
    let mut second = run.join("second", &nodes, &[]);
    let verifiers = run.invite("verifier", 2);
    let mut watches = run.watch("watches", &verifiers);
    let mut sleeps = run.watch("sleeps", &verifiers);
    run.wait_round(5);
    // Its connections stay open, as those of one that pretends to work.
    sleeps.suspend();
    // DUTY-5: it is away, and no round counts it before it is back.
    wait_for("an idle verifier", || !run.events("idle").is_empty());
    sleeps.resume();
    [&mut first, &mut second, &mut watches, &mut sleeps, &mut steward].into_iter().for_each(good);
    run.check_end(&["first", "second"]);
    assert!(!run.events("is back").is_empty(), "{}", sleeps.log());
}

/// Ends a run in which a verifier lied: it was banned for this, and nobody honest was.
fn caught(run: &Run, liar: &mut Process, findings: &[&str]) {
    assert_eq!(liar.wait(), 1, "{}", liar.log());
    let bans = run.events("ban");
    let mut found: Vec<&str> = bans.iter().filter_map(|ban| ban["finding"].as_str()).collect();
    found.sort_unstable();
    assert_eq!(found, findings, "{bans:?}");
    let (code, output) = run.replay();
    assert_eq!(code, 0, "{output}");
    for evidence in fs::read_dir(run.path("run/evidence")).expect("evidence") {
        let path = evidence.expect("an entry").path();
        let (code, output) = run.verifier(&["check", &path.to_string_lossy()]);
        assert!(code == 0 && output.contains("guilty"), "{output}");
    }
}

#[test]
fn a_verifier_that_accuses_the_innocent_is_banned() {
    let run = run(40, 2);
    let mut steward = run.host();
    let nodes = run.invite("node", 2);
    let mut first = run.join("first", &nodes, &[]);
    let mut second = run.join("second", &nodes, &[]);
    let verifiers = run.invite("verifier", 2);
    let mut honest = run.watch("honest", &verifiers);
    let mut liar = run.lie("liar", "accuse", &verifiers);
    let mut observer = run.observe("observer", &verifiers);
    [&mut first, &mut second, &mut honest, &mut observer, &mut steward].into_iter().for_each(good);
    // DUTY-9: its verdict convicts it, and the honest verifier's verdicts on the same members convict nobody.
    caught(&run, &mut liar, &["false accusation"]);
    shown(&run, &["honest", "observer", "liar"]);
    let log = liar.log();
    assert!(
        log.contains("banned for a false accusation in round") && log.contains("muster-verifier check"),
        "{log}"
    );
}

/// These have the evidence of the one ban, as the steward has it.
fn shown(run: &Run, members: &[&str]) {
    let evidence = run.events("ban")[0]["evidence"].as_str().expect("a digest").to_owned();
    let of = |member: &str| fs::read(run.path(&format!("{member}/evidence/{evidence}.evidence")));
    let held = of("run").expect("the steward's");
    for member in members {
        assert_eq!(of(member).ok().as_ref(), Some(&held), "{member}");
    }
}

#[test]
fn a_verifier_that_acquits_a_cheat_is_banned_with_it() {
    // Who inspects the cheat first is drawn: an honest inspector may end the matter before the liar is asked.
    let caught_both = (0..12).any(|_| acquitted());
    assert!(caught_both, "in twelve runs the liar never inspected the cheat");
}

/// Whether the liar was there in time to acquit the cheat; in any case the right ones are banned.
fn acquitted() -> bool {
    let run = run(60, 3);
    let mut steward = run.host();
    let nodes = run.invite("node", 3);
    let mut first = run.join("first", &nodes, &[]);
    let mut second = run.join("second", &nodes, &[]);
    let mut cheat = run.attack("cheat", "flip", 2, &nodes);
    let verifiers = run.invite("verifier", 2);
    let mut honest = run.watch("honest", &verifiers);
    let mut liar = run.lie("liar", "acquit", &verifiers);
    assert_eq!(cheat.wait(), 1, "{}", cheat.log());
    [&mut first, &mut second, &mut honest, &mut steward].into_iter().for_each(good);
    let bans = run.events("ban");
    if bans.len() == 1 {
        assert_eq!(bans[0]["finding"], "sum mismatch");
        good(&mut liar);
        return false;
    }
    // Where it is examined because it was let pass, all its leaves are recomputed (DUTY-10).
    let by_sum = bans.iter().any(|ban| ban["finding"] == "sum mismatch");
    caught(&run, &mut liar, &["false acquittal", if by_sum { "sum mismatch" } else { "total mismatch" }]);
    true
}
