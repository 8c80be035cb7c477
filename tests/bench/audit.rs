//! What audits cost the audited: processor seconds that nodes take for a round when every contribution is audited, beside the
//! same run when none is.
//!
//! `cargo run --release -p e2e --bin bench-audit [-- TURNS [NAME]]`: two nodes and a verifier, three turns where nothing is said,
//! each of one run with audits and one without; the table has the median of the ratios. Processor seconds, since all processes
//! share this machine: the verifier's own work makes rounds longer, and is shown beside. Exits with 1 where a goal is missed.
//! Every process is this program again.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use e2e::processes::{Process, Programs, Run};
use e2e::timed::processor_seconds;

/// First rounds of a run, in which buffers are made and members find each other.
const WARM: usize = 2;
/// How long a run may take.
const PATIENCE: Duration = Duration::from_secs(900);
/// Nodes' processor seconds with audits, beside those without, at most.
const GOAL: f64 = 1.10;
const NODES: usize = 2;

struct Case {
    name: &'static str,
    what: &'static str,
    settings: &'static str,
    /// Rounds that are measured.
    rounds: usize,
}

const CASES: [Case; 3] = [
    Case {
        name: "small",
        what: "1 M parameters, 4 leaves of 256 tokens a node",
        settings: "width = 128\nlayers = 5\nheads = 4\nkey_value_heads = 4\nhidden = 344\nsequence = 256\n[training]\nleaves = 8\n",
        rounds: 12,
    },
    Case {
        name: "leaves",
        what: "10 M parameters, 8 leaves of 256 tokens a node",
        settings: "width = 384\nlayers = 6\nheads = 6\nkey_value_heads = 6\nhidden = 1024\nsequence = 256\n[training]\nleaves = 16\n",
        rounds: 4,
    },
    Case {
        name: "large",
        what: "71 M parameters, 1 leaf of 256 tokens a node",
        settings: "width = 768\nlayers = 10\nheads = 8\nkey_value_heads = 8\nhidden = 2064\nsequence = 256\n[training]\nleaves = 2\n",
        rounds: 4,
    },
];

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.first().map(String::as_str) {
        Some("enroll" | "watch") => return muster_verifier::run(std::env::args_os()).into(),
        Some(word) if word.parse::<usize>().is_err() => {
            return muster_node::cli::run(std::env::args_os()).into();
        }
        _ => {}
    }
    let turns = words.first().and_then(|turns| turns.parse().ok()).unwrap_or(3usize).max(1);
    say(
        "processor seconds of a node a round: none audited, all audited, ratio (median), goal; of the verifier when all are",
    );
    let mut good = true;
    for case in CASES.iter().filter(|case| words.get(1).is_none_or(|name| name == case.name)) {
        let played: Vec<(Cost, Cost)> = (0..turns).map(|_| (play(case, 0.0), play(case, 1.0))).collect();
        let ratio = median(played.iter().map(|(none, all)| all.node / none.node).collect());
        let of = |cost: fn(&(Cost, Cost)) -> f64| median(played.iter().map(cost).collect());
        good &= ratio <= GOAL;
        say(&format!(
            "{}: {:.3}, {:.3}, {ratio:.3}, {GOAL:.2}{}; {:.3}",
            case.what,
            of(|(none, _)| none.node),
            of(|(_, all)| all.node),
            if ratio <= GOAL { "" } else { " missed" },
            of(|(_, all)| all.verifier),
        ));
    }
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Processor seconds of a round.
struct Cost {
    node: f64,
    verifier: f64,
}

fn play(case: &Case, share: f64) -> Cost {
    let program = std::env::current_exe().expect("this program").to_string_lossy().into_owned();
    let program: &'static str = Box::leak(program.into_boxed_str());
    let rounds = WARM + case.rounds;
    let settings = format!(
        "name = \"audits\"\n[model]\n{}leaf_windows = 1\nrounds = {}\n[audit]\nshare = {share:.1}\nleaves = 1\nfinal_rounds = 0\n\
         [admission]\nstart_nodes = {NODES}\nstart_verifiers = 1\nnewcomer_share = {share:.1}\n[retention]\ncontributions = 2\nstates = 2\n[timers]\ncommit = 120.0\n",
        case.settings,
        // The end of a run has work of its own.
        rounds + 2,
    );
    let run = Run::packed(Programs { muster: program, verifier: program }, &settings, None);
    let mut steward = run.host_with(&[]);
    let nodes = run.invite("node", NODES as u32);
    let nodes: Vec<Process> =
        (0..NODES).map(|number| run.join(&format!("node{number}"), &nodes, &[])).collect();
    let verifier = run.watch("verifier", &run.invite("verifier", 1));
    let spent = || {
        let of = |process: &Process| processor_seconds(process.id());
        (nodes.iter().map(of).sum::<f64>() / NODES as f64, of(&verifier))
    };
    reach(&run, &mut steward, WARM);
    let before = spent();
    reach(&run, &mut steward, rounds);
    let after = spent();
    let each = |spent: f64| spent / case.rounds as f64;
    Cost { node: each(after.0 - before.0), verifier: each(after.1 - before.1) }
}

/// Waits until so many rounds are over.
fn reach(run: &Run, steward: &mut Process, rounds: usize) {
    let began = Instant::now();
    while run.events("round").len() < rounds {
        assert!(began.elapsed() < PATIENCE, "a run of {PATIENCE:?} does not end:\n{}", steward.log());
        assert!(
            steward.wait_at_most(Duration::from_millis(50)).is_none(),
            "the steward ended:\n{}",
            steward.log()
        );
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[allow(clippy::print_stdout)]
fn say(text: &str) {
    println!("{text}");
}
