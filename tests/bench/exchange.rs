//! A round without its gradient: real processes whose leaves are one window of a few tokens. `exchange.py` runs this beside
//! hivemind and gloo.
//!
//! `bench-exchange NODES ROUNDS THREADS`: a table on the standard error, one line of JSON on the standard output. Under
//! `tests/links.sh` steward and nodes are on its hosts, in this order. Every process is this program again, as `muster`.

use std::process::ExitCode;

use e2e::timed::Timed;
use serde_json::json;

/// The stages of a round that the steward sees, and what is between the one before and it.
const STAGES: [(&str, &str); 4] = [
    ("freeze", "open to freeze: the step of the round before, leaf, grid, hashes, commitment"),
    ("inputs", "freeze to inputs: packed contributions to their aggregators"),
    ("results", "inputs to results: the rule; results fetched, compared and acknowledged"),
    ("outcome", "results to outcome: the steward's fetch, step and hashes"),
];
const PHASES: [&str; 7] = ["gradient", "grid", "hashing", "signing", "exchange", "aggregation", "optimiser"];

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

#[allow(clippy::print_stdout, clippy::print_stderr)]
fn report(run: &Timed) {
    let (wall, gradient) = (run.seconds(), run.phase("gradient"));
    let nodes = run.results.len() as f64;
    eprintln!(
        "  {nodes} nodes, d = {}, {} rounds of {wall:.3} s; by the steward's clock:",
        run.parameters,
        run.rounds.len()
    );
    let mut before = 0.0;
    for (stage, what) in STAGES {
        let until = if stage == "outcome" { wall } else { run.stage(stage) };
        eprintln!("    {:7.3} s  {what}", until - before);
        before = until;
    }
    eprintln!("  a node's phases, some at the same time as others:");
    for phase in PHASES {
        eprintln!("    {:7.3} s  {phase}", run.phase(phase));
    }
    let (steward, members) = run.processors;
    eprintln!(
        "  processors: {:.3} s a node, {steward:.3} s the steward, {:.2} at work on average; a node sends {:.2} MB, {:.2} times 4·d",
        members / nodes,
        (members + steward) / wall,
        run.sent() / 1e6,
        run.sent() / (4.0 * run.parameters as f64),
    );
    println!(
        "{}",
        json!({ "seconds": wall - gradient, "round": wall, "sent": run.sent(), "parameters": run.parameters })
    );
}
