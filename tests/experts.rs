//! Runs with several rows of experts, as real processes: each node holds the trunk and one row.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use e2e::oracle;
use e2e::processes::{Process, Run};
use e2e::programs;
use muster_core::ids::{Round, ShardId};
use muster_core::layout::Layout;
use muster_core::ledger::Ledger;
use muster_core::messages::record::Body;
use muster_replica::archive::Archive;
use muster_store::reading;

/// Rows of every run of this file.
const ROWS: u16 = 5;

/// A model of which a node holds less than a quarter, in a run in which no update waits.
fn settings(rounds: u32, branch: f32, nodes: usize, verifiers: usize) -> String {
    waiting(rounds, branch, nodes, verifiers, "held = 0\nlag = 0\n")
}

/// The same, with what waits by default, or by these settings of its experts.
fn waiting(rounds: u32, branch: f32, nodes: usize, verifiers: usize, experts: &str) -> String {
    format!(
        "[model]\nfamily = \"mixture\"\nwidth = 16\nlayers = 1\nheads = 2\nkey_value_heads = 1\nhidden = 64\n\
         sequence = 32\n[experts]\ncolumns = 8\nactive = 2\nshared_hidden = 8\nrows = {ROWS}\nbranch = {branch}\n{experts}\
         [training]\nrounds = {rounds}\nleaves = {}\nleaf_windows = 1\n[optimiser]\nwarmup = 3\n\
         [audit]\nshare = 0.5\nleaves = 1\nfinal_rounds = 2\n\
         [admission]\nstart_nodes = {nodes}\nstart_verifiers = {verifiers}\n",
        2 * nodes
    )
}

fn names(kind: &str, count: usize) -> Vec<String> {
    (0..count).map(|number| format!("{kind}{number}")).collect()
}

/// Bytes of the newest state in a directory.
fn state_bytes(folder: &Path) -> u64 {
    let round = reading::states(folder).expect("a folder").pop().expect("a state");
    fs::metadata(folder.join(format!("states/{round}.state"))).expect("a file").len()
}

/// Trains to the end with members that all behave.
fn train(run: &Run, nodes: usize, verifiers: usize) -> (Vec<String>, Vec<String>) {
    let mut processes: Vec<Process> = vec![run.host()];
    let (node_names, verifier_names) = (names("node", nodes), names("verifier", verifiers));
    let invitation = run.invite("verifier", verifiers as u32);
    processes.extend(verifier_names.iter().map(|name| run.watch(name, &invitation)));
    let invitation = run.invite("node", nodes as u32);
    processes.extend(node_names.iter().map(|name| run.join(name, &invitation, &[])));
    for process in processes.iter_mut().rev() {
        assert_eq!(process.wait(), 0, "{}", process.log());
    }
    (node_names, verifier_names)
}

/// Members, verifiers, the replay, and one process that holds everything come to one root.
fn all_agree(run: &Run, nodes: &[String], verifiers: &[String]) {
    let members: Vec<&str> = nodes.iter().chain(verifiers).map(String::as_str).collect();
    run.check_end(&members);
    assert_eq!(format!("{:#}", oracle::train(&run.path("run"))), run.root());
    // The last state is there in the end, with its rows.
    let (_, output) = run.replay();
    assert!(!output.contains("held-out none"), "{output}");
    let left = fs::read_dir(run.path("state/muster/replay")).expect("the auditor's own place");
    let left: Vec<_> = left.map(|entry| entry.expect("an entry").file_name()).collect();
    assert_eq!(left, ["key"], "what a replay kept, beside its key");
}

#[test]
fn sixteen_nodes_train_five_rows_as_one_process_would() {
    let run = Run::routed(programs!(), &settings(8, 0.375, 16, 2), None, ROWS);
    let (nodes, verifiers) = train(&run, 16, 2);
    all_agree(&run, &nodes, &verifiers);
    let archive = Archive::open(&run.path("run")).expect("an archive");
    let mut ledger = Ledger::new(archive.manifest.clone());
    let mut held = Vec::new();
    for signed in &archive.records {
        let record = ledger.apply(signed).expect("an honest ledger");
        let Body::Outcome(outcome) = &record.body else { continue };
        // STATE-8: rows come to be with the third update.
        let rows = if outcome.state.step() < 3 { 1 } else { ROWS };
        assert_eq!(outcome.state.rows(), rows);
        let seats = outcome.seats.iter().map(|seat| seat.row.0);
        held.push(seats.collect::<BTreeSet<u16>>().len());
    }
    assert_eq!(held, [1, 1, 5, 5, 5, 5, 5, 0], "rows with a seat");
    let whole = archive.manifest.model.all_parameters();
    let layout = Layout::of_run(&archive.manifest);
    for name in &nodes {
        let folder = run.path(name);
        let round = reading::states(&folder).expect("a folder").pop().expect("a state");
        let (state, roots) = reading::state(&folder, &layout, round).expect("a state");
        let shards: Vec<ShardId> = state.held().collect();
        assert!(shards.len() == 2 && shards[0] == ShardId::TRUNK, "{shards:?}");
        assert_eq!(format!("{:#}", roots.root()), run.root());
        assert!(state_bytes(&folder) <= 12 * whole / 4, "{name} holds a quarter of the state at most");
    }
}

#[test]
fn rows_of_two_apply_what_inspectors_have_passed() {
    let run = Run::routed(programs!(), &waiting(24, 0.05, 8, 2, ""), None, ROWS);
    let (nodes, verifiers) = train(&run, 8, 2);
    all_agree(&run, &nodes, &verifiers);
    let archive = Archive::open(&run.path("run")).expect("an archive");
    let mut ledger = Ledger::new(archive.manifest.clone());
    let (mut applied, mut passed) = (0, BTreeSet::new());
    for signed in &archive.records {
        let record = ledger.apply(signed).expect("an honest ledger");
        let Body::Outcome(outcome) = &record.body else { continue };
        for step in outcome.steps.iter().filter(|_| outcome.round > Round(0)) {
            // With eight nodes no row has more than two, so that all of them are held.
            assert!(step.round < outcome.round, "{step:?} of round {}", outcome.round);
            let view = ledger.round(step.round).expect("a round of the last ones");
            assert!(
                view.authors_in(step.row).all(|author| passed.contains(&(step.round, author))),
                "{step:?}"
            );
            applied += 1;
        }
        passed.extend(outcome.credits.iter().map(|credit| (credit.round, credit.member)));
    }
    assert!(applied > 0, "some updates were applied");
}

#[test]
fn rows_that_are_drawn_separately_begin_with_the_run() {
    let run = Run::routed(programs!(), &settings(5, 0.0, 5, 1), None, ROWS);
    let (nodes, verifiers) = train(&run, 5, 1);
    all_agree(&run, &nodes, &verifiers);
}

#[test]
fn a_node_that_comes_late_fetches_the_row_that_is_drawn_for_it() {
    let run = Run::routed(programs!(), &settings(40, 0.05, 6, 1), None, ROWS);
    let mut steward = run.host();
    let mut watch = run.watch("verifier", &run.invite("verifier", 1));
    let invitation = run.invite("node", 7);
    let early = names("node", 6);
    let mut processes: Vec<Process> = early.iter().map(|name| run.join(name, &invitation, &[])).collect();
    run.wait_round(4);
    let mut late = run.join("late", &invitation, &[]);
    late.wait_for_log("to be fetched for it: trunk and row, ");
    for process in processes.iter_mut().chain([&mut late, &mut watch, &mut steward]) {
        assert_eq!(process.wait(), 0, "{}", process.log());
    }
    assert!(run.result("late")["leaves_counted"].as_u64() > Some(0), "{}", late.log());
    // Said before it is fetched, and once.
    let log = late.log();
    let fetches: Vec<&str> = log.split("your row of experts is row ").collect();
    assert!(fetches.len() == 2 && fetches[1].contains("fetching the state before round "), "{log}");
    let mut members: Vec<&str> = early.iter().map(String::as_str).collect();
    members.extend(["late", "verifier"]);
    run.check_end(&members);
}

/// STATE-11: trunk and row come from those who hold them, piece by piece. Two of four holders serve false pieces: nothing of
/// it is used, nobody is blamed, and others send the same pieces. The trunk of this model has four pieces, and each piece is
/// asked of another holder first: whatever rows are drawn, the first late node asks the liars, and those who are honest.
#[test]
fn a_late_node_gets_its_row_from_holders_of_which_half_lie() {
    let text = settings(60, 0.0, 4, 1).replace(&format!("rows = {ROWS}"), "rows = 2");
    let run = Run::routed(programs!(), &text, None, 2);
    let mut steward = run.host();
    let mut watch = run.watch("verifier", &run.invite("verifier", 1));
    let invitation = run.invite("node", 7);
    let (honest, liars) = (names("node", 2), names("squatter", 2));
    let mut nodes: Vec<Process> = honest.iter().map(|name| run.join(name, &invitation, &[])).collect();
    nodes.extend(liars.iter().map(|name| run.attack(name, "squat", 0, &invitation)));
    // A liar, or who is honest, may no longer keep the state that one of them asks for, and is left out for that.
    let mut late: Vec<Process> = (0..3)
        .map(|number| {
            run.wait_round(4 + 12 * number);
            run.join(&format!("late-{number}"), &invitation, &[])
        })
        .collect();
    for process in nodes.iter_mut().chain(&mut late).chain([&mut watch, &mut steward]) {
        assert_eq!(process.wait(), 0, "{}", process.log());
    }
    let found = |log: &String| log.contains("is left out of this fetch: it sent a false piece of the state");
    let logs: Vec<String> = late.iter().map(Process::log).collect();
    assert!(logs.iter().any(found), "{logs:?}");
    // The last time each needs them all: trunk and row.
    let holders = logs.iter().filter_map(|log| {
        let fetched = log.lines().rfind(|line| line.contains(" of trunk and row "))?;
        fetched.split(" from ").nth(1)?.split(' ').next()?.parse::<u32>().ok()
    });
    assert!(holders.max() >= Some(2), "{logs:?}");
    assert!(run.result("late-0")["leaves_counted"].as_u64() > Some(0), "{}", logs[0]);
    // Members, the replay, and whoever holds everything come to one root, and nobody is banned.
    run.check_end(&["node0", "node1", "squatter0", "squatter1", "late-0", "late-1", "late-2", "verifier"]);
}

/// The row that a node was told to be its own, the newest word of it.
fn row_of(node: &Process) -> Option<u16> {
    let log = node.log();
    let word = log.rsplit("your row of experts is row ").next().filter(|rest| rest.len() < log.len())?;
    word.split_whitespace().next()?.parse().ok()
}

/// Two of ten nodes are all holders of a row: nobody computes on it once they are gone, and another node takes it up.
#[test]
fn a_row_whose_holders_are_killed_is_closed_and_another_node_takes_it_up() {
    let lines = "few = 2\nheld = 0\nlag = 0\n";
    let settings = waiting(90, 0.0, 10, 1, lines) + "[retention]\ncontributions = 4\n";
    let run = Run::routed(programs!(), &settings, None, ROWS);
    let mut steward = run.host();
    let mut watch = run.watch("verifier", &run.invite("verifier", 1));
    let invitation = run.invite("node", 10);
    let all = names("node", 10);
    let mut nodes: Vec<Process> = all.iter().map(|name| run.join(name, &invitation, &[])).collect();
    run.wait_round(3);
    let lost = row_of(&nodes[0]).expect("a row");
    let (mut gone, mut stay): (Vec<_>, Vec<_>) =
        nodes.drain(..).zip(&all).partition(|(node, _)| row_of(node) == Some(lost));
    assert_eq!(gone.len(), 2);
    gone.iter_mut().for_each(|(node, _)| node.kill());
    for (process, _) in &mut stay {
        assert_eq!(process.wait(), 0, "{}", process.log());
    }
    for process in [&mut watch, &mut steward] {
        assert_eq!(process.wait(), 0, "{}", process.log());
    }
    let members: Vec<&str> = stay.iter().map(|(_, name)| name.as_str()).chain(["verifier"]).collect();
    run.check_end(&members);
    // A node moved, fetched the row with its proofs, and is counted there. A node that has not fetched it after four rounds is no
    // holder (ROW-2), and a second one moves: that may happen on a busy machine.
    let moved: Vec<&str> =
        stay.iter().filter(|(node, _)| row_of(node) == Some(lost)).map(|(_, name)| name.as_str()).collect();
    assert!(!moved.is_empty());
    let archive = Archive::open(&run.path("run")).expect("an archive");
    let mut ledger = Ledger::new(archive.manifest.clone());
    let mut open = Vec::new();
    for signed in &archive.records {
        let record = ledger.apply(signed).expect("an honest ledger");
        if let Body::Outcome(outcome) = &record.body {
            open.push(outcome.steps.iter().any(|step| step.row.0 == lost));
            assert!(
                outcome.steps.len() >= usize::from(ROWS) - 1 - usize::from(outcome.round.0 > 3),
                "others go on"
            );
        }
    }
    let closed = open.iter().filter(|open| !**open).count();
    assert!(closed >= 1 && open[0] && open[open.len() - 1], "open, closed, and open again: {open:?}");
    assert!(run.events("ban").is_empty());
}
