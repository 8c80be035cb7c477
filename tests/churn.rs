//! Members that are killed again and again, in a run with several rows of experts.
#![allow(clippy::print_stdout)] // what was measured

use std::fs;
use std::time::{Duration, Instant};

use e2e::processes::{Process, Run, copy_folder};
use e2e::programs;
use muster_core::ledger::Ledger;
use muster_core::messages::record::Body;
use muster_replica::archive::Archive;

const ROWS: u16 = 3;
const NODES: usize = 10;
const VERIFIERS: usize = 2;
const ROUNDS: u32 = 60;
/// Of a thousand: how often a member is killed in a round.
const KILLED: u64 = 100;
/// How long the whole run may take.
const PATIENCE: Duration = Duration::from_secs(1200);

fn settings() -> String {
    format!(
        "[model]\nfamily = \"mixture\"\nwidth = 16\nlayers = 1\nheads = 2\nkey_value_heads = 1\nhidden = 32\nsequence = 32\n\
         [experts]\ncolumns = 4\nactive = 2\nshared_hidden = 8\nrows = {ROWS}\nbranch = 0.1\nheld = 0\nlag = 4\n\
         [training]\nrounds = {ROUNDS}\nleaves = {}\nleaf_windows = 4\n[optimiser]\nwarmup = 5\n\
         [admission]\nstart_nodes = {NODES}\nstart_verifiers = {VERIFIERS}\n",
        2 * NODES
    )
}

/// Rounds that are over.
fn rounds(run: &Run) -> u64 {
    run.events("round").last().and_then(|event| event["round"].as_u64()).map_or(0, |round| round + 1)
}

/// Trains to the end, and kills each member with this probability, of a thousand, in each round. Whoever was killed is started
/// again when the round is over. The held-out loss, by the replay.
fn train(run: &Run, name: &str, killed: u64) -> f64 {
    let mut steward = run.host();
    let invitations = [run.invite("verifier", VERIFIERS as u32), run.invite("node", NODES as u32)];
    let node =
        |number: usize| run.join(&format!("{name}-node{number}"), &invitations[1], &["--threads", "1"]);
    let watcher = |number: usize| format!("{name}-verifier{number}");
    // Nodes, and the verifiers behind them.
    let mut members: Vec<Process> =
        (0..VERIFIERS).map(|number| run.watch(&watcher(number), &invitations[0])).collect();
    members.splice(0..0, (0..NODES).map(node));
    let (begun, mut seen, mut state, mut kills, mut lost) = (Instant::now(), 0, 1u64, 0, Vec::new());
    let mut drawn = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % 1000 < killed
    };
    let end = loop {
        if let Some(code) = steward.wait_at_most(Duration::from_millis(20)) {
            break code;
        }
        assert!(begun.elapsed() < PATIENCE, "the run does not end");
        let done = rounds(run);
        if done == seen {
            continue;
        }
        seen = done;
        for number in lost.drain(..) {
            members[number] =
                if number < NODES { node(number) } else { run.watch_again(&watcher(number - NODES)) };
        }
        // In the last round nobody would be there to start them again.
        let more = done + 1 < u64::from(ROUNDS);
        lost.extend((0..members.len()).filter(|_| drawn() && more));
        kills += lost.len();
        lost.iter().for_each(|number: &usize| members[*number].kill());
    };
    assert_eq!(end, 0, "{}", steward.log());
    for process in &mut members {
        assert_eq!(process.wait(), 0, "{}", process.log());
    }
    assert!(run.events("ban").is_empty());
    let (code, output) = run.replay();
    assert_eq!(code, 0, "{output}");
    println!("{kills} kills, {:.0} s: {output}", begun.elapsed().as_secs_f64());
    let loss = output.split("held-out ").nth(1).and_then(|rest| rest.split_whitespace().next());
    loss.expect("a loss").parse().expect("a number")
}

/// Of the seats of all rounds, the share that has committed.
fn committed(run: &Run) -> f64 {
    let archive = Archive::open(&run.path("run")).expect("an archive");
    let mut ledger = Ledger::new(archive.manifest.clone());
    let (mut seats, mut commits) = (0, 0);
    for signed in &archive.records {
        let record = ledger.apply(signed).expect("an honest ledger");
        if let Body::Freeze(freeze) = &record.body {
            seats += ledger.round(freeze.round).expect("the open round").seats().len();
            commits += freeze.commits.len();
        }
    }
    commits as f64 / seats as f64
}

#[test]
#[ignore = "takes some minutes: cargo test --release -p e2e --test churn -- --ignored --nocapture"]
fn a_tenth_of_all_members_killed_in_each_round_costs_a_tenth_of_the_work() {
    let run = Run::routed(programs!(), &settings(), None, ROWS);
    // The same run twice: another one would have other parameters and windows.
    let (folder, before, calm) = (run.path("run"), run.path("before"), run.path("calm"));
    copy_folder(&folder, &before);
    let undisturbed = train(&run, "calm", 0);
    fs::rename(&folder, calm).expect("a folder");
    fs::rename(before, &folder).expect("a folder");
    let disturbed = train(&run, "killed", KILLED);
    let share = committed(&run);
    println!(
        "held-out loss {disturbed:.3} beside {undisturbed:.3}; {:.1} % of the seats committed",
        100.0 * share
    );
    assert!(share >= 0.8, "{share}");
    assert!((disturbed - undisturbed).abs() <= 0.05, "{disturbed} beside {undisturbed}");
}
