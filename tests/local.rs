//! Runs whose members wait less for each other, as real processes: they take steps of their own, or compute while values travel.
//! All of it can be recomputed.

use std::collections::BTreeSet;
use std::fs;

use e2e::oracle;
use e2e::processes::{Process, Run};
use e2e::programs;

/// A tiny model whose nodes take eight steps in segments of two.
fn settings(rounds: u32, nodes: usize, verifiers: usize, more: &str) -> String {
    format!(
        "[model]\nwidth = 16\nlayers = 1\nheads = 2\nkey_value_heads = 1\nhidden = 24\nsequence = 32\n{}",
        training(rounds, nodes, verifiers, more)
    )
}

/// The same of a mixture with rows of experts.
fn of_rows(rounds: u32, nodes: usize, verifiers: usize, experts: &str) -> String {
    format!(
        "[model]\nfamily = \"mixture\"\nwidth = 16\nlayers = 1\nheads = 2\nkey_value_heads = 1\nhidden = 24\nsequence = 32\n\
         [experts]\ncolumns = 4\nactive = 2\nshared_hidden = 8\nrows = 2\nbranch = 0.2\n{experts}{}",
        training(rounds, nodes, verifiers, "")
    )
}

fn training(rounds: u32, nodes: usize, verifiers: usize, more: &str) -> String {
    format!(
        "[training]\nrounds = {rounds}\nleaf_windows = 1\n[local]\nsteps = 8\nsegment = 2\n[optimiser]\nwarmup = 3\n\
         [audit]\nshare = 0.5\nleaves = 1\nfinal_rounds = 2\n\
         [admission]\nstart_nodes = {nodes}\nstart_verifiers = {verifiers}\n[retention]\nstates = 16\n{more}"
    )
}

fn names(kind: &str, count: usize) -> Vec<String> {
    (0..count).map(|number| format!("{kind}{number}")).collect()
}

/// Trains to the end with members that all behave; they, the replay and one process that holds everything agree.
fn all_agree(run: &Run, nodes: usize, verifiers: usize) {
    let mut processes: Vec<Process> = vec![run.host()];
    let (nodes, verifiers) = (names("node", nodes), names("verifier", verifiers));
    let invitation = run.invite("verifier", verifiers.len() as u32);
    processes.extend(verifiers.iter().map(|name| run.watch(name, &invitation)));
    let invitation = run.invite("node", nodes.len() as u32);
    // One of them on two threads, whose bits are the same.
    let threads = |name: &str| if name == "node0" { "2" } else { "1" };
    processes.extend(nodes.iter().map(|name| run.join(name, &invitation, &["--threads", threads(name)])));
    for process in processes.iter_mut().rev() {
        assert_eq!(process.wait(), 0, "{}", process.log());
    }
    let members: Vec<&str> = nodes.iter().chain(&verifiers).map(String::as_str).collect();
    run.check_end(&members);
    assert_eq!(format!("{:#}", oracle::train(&run.path("run"))), run.root());
}

#[test]
fn nodes_that_take_steps_of_their_own_train_as_one_process_would() {
    all_agree(&Run::packed(programs!(), &settings(8, 3, 1, ""), None), 3, 1);
}

/// The same run with updates that come a round late.
fn overlapped(settings: &str) -> String {
    settings.replace("leaf_windows = 1\n", "leaf_windows = 1\noverlap = true\n")
}

/// A run that exchanges gradients.
fn of_gradients(settings: &str) -> String {
    settings.replace("[local]\nsteps = 8\nsegment = 2\n", "leaves = 6\n")
}

#[test]
fn round_28_updates_that_come_late_are_those_that_one_process_makes() {
    let settings = overlapped(&settings(10, 3, 1, ""));
    for settings in [of_gradients(&settings), settings] {
        let run = Run::packed(programs!(), &settings, None);
        all_agree(&run, 3, 1);
        // ROUND-29: with nobody who comes or goes all rounds but the first are foreseen.
        for name in names("node", 3) {
            assert_eq!(run.result(&name)["rounds_ahead"], 9, "{name}");
        }
    }
}

#[test]
fn trunk_and_row_are_one_local_state() {
    all_agree(&Run::routed(programs!(), &of_rows(10, 6, 1, "held = 0\nlag = 0\n"), None, 2), 6, 1);
}

#[test]
fn updates_of_rows_of_few_wait_as_without_local_updates() {
    all_agree(&Run::routed(programs!(), &of_rows(24, 4, 2, "lag = 16\n"), None, 2), 4, 2);
}

/// ROUND-1: whoever is back has fetched the newest state, and no leaves of the round under way can be computed on that.
#[test]
fn a_run_whose_updates_come_late_goes_on_after_everybody_was_killed() {
    let run = Run::packed(programs!(), &overlapped(&settings(16, 2, 1, "")), None);
    let mut processes = vec![run.host()];
    let invitation = run.invite("node", 2);
    let nodes = || names("node", 2).into_iter().map(|name| run.join(&name, &invitation, &[]));
    processes.push(run.watch("verifier", &run.invite("verifier", 1)));
    processes.extend(nodes());
    for round in [4, 9] {
        run.wait_round(round);
        processes.iter_mut().for_each(Process::kill);
        processes = vec![run.host(), run.watch_again("verifier")];
        processes.extend(nodes());
    }
    for process in processes.iter_mut().rev() {
        assert_eq!(process.wait(), 0, "{}", process.log());
    }
    run.check_end(&["node0", "node1", "verifier"]);
    assert_eq!(format!("{:#}", oracle::train(&run.path("run"))), run.root());
}

/// Cheats that lie about steps, beside honest nodes of which one is killed again and again; a late node comes, too.
#[test]
fn cheats_are_banned_while_members_are_killed_and_a_node_comes_late() {
    cheats_are_banned(&settings(60, 6, 1, "[rollback]\nlimit = 0.5\n"), ["teleport", "poison-moments"]);
}

#[test]
fn cheats_are_banned_where_updates_come_late() {
    let settings = overlapped(&of_gradients(&settings(60, 6, 1, "[rollback]\nlimit = 0.5\n")));
    cheats_are_banned(&settings, ["stale", "flip"]);
}

fn cheats_are_banned(settings: &str, attacks: [&str; 2]) {
    let run = Run::packed(programs!(), settings, None);
    let mut steward = run.host();
    let mut watcher = run.watch("verifier", &run.invite("verifier", 1));
    let invitation = run.invite("node", 7);
    let mut honest: Vec<Process> =
        names("node", 4).iter().map(|name| run.join(name, &invitation, &[])).collect();
    let mut cheats: Vec<Process> =
        attacks.iter().map(|name| run.attack(name, name, 5, &invitation)).collect();
    for round in [6, 7, 9, 12] {
        run.wait_round(round);
        honest[0].kill();
        honest[0] = run.join("node0", &invitation, &[]);
    }
    let mut late = run.join("late", &invitation, &[]);
    // A steward that is away while somebody joins tells nobody whether it comes back.
    late.wait_for_log("admitted as");
    run.wait_round(16);
    steward.kill();
    steward = run.host();
    run.wait_round(20);
    // What it was asked to audit before, it computes again from what it has kept.
    watcher.kill();
    watcher = run.watch_again("verifier");
    for process in honest.iter_mut().chain([&mut late, &mut watcher, &mut steward]) {
        assert_eq!(process.wait(), 0, "{}", process.log());
    }
    cheats.iter_mut().for_each(|cheat| assert_ne!(cheat.wait(), 0, "{}", cheat.log()));
    let bans = run.events("ban");
    let id = |name: &&str| run.good(&["id", "--data-dir", &run.at(name)]).trim().to_owned();
    let cheats: BTreeSet<String> = attacks.iter().map(id).collect();
    let banned = bans.iter().map(|ban| ban["member"].as_str().expect("text").to_owned());
    let banned: BTreeSet<String> = banned.collect();
    assert_eq!(banned, cheats, "both cheats and nobody else: {bans:?}");
    for name in names("node", 4).iter().map(String::as_str).chain(["late", "verifier"]) {
        assert_eq!(run.result(name)["final_state_root"], *run.root(), "{name}");
    }
    let (code, output) = run.replay();
    assert_eq!(code, 0, "{output}");
    for evidence in fs::read_dir(run.path("run/evidence")).expect("evidence") {
        let (code, output) = run.verifier(&["check", &evidence.expect("an entry").path().to_string_lossy()]);
        assert!(code == 0 && output.contains("guilty"), "{output}");
    }
}
