//! A round without its gradient: real processes whose leaves are one window of a few tokens. `exchange.py` runs this beside
//! hivemind and gloo.
//!
//! `bench-exchange NODES ROUNDS THREADS`: a table on the standard error, one line of JSON on the standard output. Under
//! `tests/links.sh` steward and nodes are on its hosts, in this order. Every process is this program again, as `muster`.

use std::process::ExitCode;

use e2e::timed::Timed;
use muster_replica::Phase;
use serde_json::json;

fn main() -> ExitCode {
    let arguments: Option<Vec<usize>> = std::env::args().skip(1).map(|word| word.parse().ok()).collect();
    let Some(arguments) = arguments else {
        return muster_node::cli::run(std::env::args_os()).into();
    };
    let [nodes, rounds, threads] = arguments[..] else {
        return muster_node::cli::run(std::env::args_os()).into();
    };
    report(&Timed::run(&settings(nodes, rounds), nodes, threads));
    ExitCode::SUCCESS
}

/// 10⁷ parameters, a leaf of 16 tokens.
fn settings(nodes: usize, rounds: usize) -> String {
    format!(
        "[model]\nwidth = 384\nlayers = 6\nheads = 6\nkey_value_heads = 3\nhidden = 1040\nsequence = 16\n\
         [training]\nrounds = {rounds}\nleaves = {nodes}\nleaf_windows = 1\n\
         [audit]\nshare = 0.0\nfinal_rounds = 0\n[admission]\nstart_nodes = {nodes}\nstart_verifiers = 0\n\
         [retention]\ncontributions = 4\nstates = 4\n[timers]\ncommit = 120.0\npart = 120.0\nresult = 120.0\n"
    )
}

#[allow(clippy::print_stdout)]
fn report(run: &Timed) {
    run.explain();
    let (wall, gradient) = (run.seconds(), run.phase(Phase::Gradient));
    println!(
        "{}",
        json!({ "seconds": wall - gradient, "round": wall, "sent": run.sent(), "parameters": run.parameters })
    );
}
