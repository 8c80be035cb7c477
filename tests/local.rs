//! Runs of local updates, as real processes: members take steps of their own, and every one of them can be recomputed.

use e2e::oracle;
use e2e::processes::{Process, Run};
use e2e::programs;

/// A tiny model whose nodes take eight steps in segments of two.
fn settings(rounds: u32, nodes: usize, verifiers: usize, more: &str) -> String {
    format!(
        "[model]\nwidth = 16\nlayers = 1\nheads = 2\nkey_value_heads = 1\nhidden = 24\nsequence = 32\n\
         [training]\nrounds = {rounds}\nleaf_windows = 1\n[local]\nsteps = 8\nsegment = 2\n{more}\
         [optimiser]\nwarmup = 3\n[audit]\nshare = 0.5\nleaves = 1\nfinal_rounds = 2\n\
         [admission]\nstart_nodes = {nodes}\nstart_verifiers = {verifiers}\n[retention]\nstates = 16\n"
    )
}

fn names(kind: &str, count: usize) -> Vec<String> {
    (0..count).map(|number| format!("{kind}{number}")).collect()
}

#[test]
fn nodes_that_take_steps_of_their_own_train_as_one_process_would() {
    let run = Run::packed(programs!(), &settings(8, 3, 1, ""), None);
    let mut processes: Vec<Process> = vec![run.host()];
    let (nodes, verifiers) = (names("node", 3), names("verifier", 1));
    let invitation = run.invite("verifier", 1);
    processes.extend(verifiers.iter().map(|name| run.watch(name, &invitation)));
    let invitation = run.invite("node", 3);
    processes.extend(nodes.iter().map(|name| run.join(name, &invitation, &[])));
    for process in processes.iter_mut().rev() {
        assert_eq!(process.wait(), 0, "{}", process.log());
    }
    let members: Vec<&str> = nodes.iter().chain(&verifiers).map(String::as_str).collect();
    run.check_end(&members);
    assert_eq!(format!("{:#}", oracle::train(&run.path("run"))), run.root());
    run.replay();
}
