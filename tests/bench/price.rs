//! What security costs: the full protocol, 5 % of all leaves audited, beside the same run with a plain mean and no
//! audit, in turn; and what an audit and a verifier need, by the size of the model.
//!
//! `cargo run --release -p e2e --bin bench-price [-- PAIRS]`; with 0 pairs only the latter. Every process is this program again, as `muster` or, where
//! the first argument is `verifier`, as `muster-verifier`. All of them share this machine: a run's time for a round
//! includes what its verifier computes.

use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use serde_json::Value;

const NODES: usize = 4;
/// Share of all contributions that is audited.
const AUDITED: f64 = 0.2;
/// First rounds of a run, in which buffers are made and members find each other.
const WARM: usize = 2;

struct Case {
    name: &'static str,
    parameters: f64,
    settings: &'static str,
}

const CASES: [Case; 2] = [
    Case {
        name: "1 M parameters, 4 leaves of 1,024 tokens a node",
        parameters: 1.0e6,
        settings: "[model]\nwidth = 128\nlayers = 5\nheads = 4\nkey_value_heads = 4\nhidden = 344\nsequence = 256\n\
                   [training]\nrounds = 22\nleaves = 16\nleaf_windows = 4\n",
    },
    Case {
        name: "5 M parameters, 4 leaves of 1,024 tokens a node",
        parameters: 4.9e6,
        settings: "[model]\nwidth = 256\nlayers = 6\nheads = 4\nkey_value_heads = 4\nhidden = 688\nsequence = 256\n\
                   [training]\nrounds = 12\nleaves = 16\nleaf_windows = 4\n",
    },
];

const COMMON: &str = "[retention]\ncontributions = 4\nstates = 6\n[timers]\ncommit = 120.0\n";
/// A fifth of all contributions, one of four leaves each: 5 % of all leaves.
const FULL: &str = "[audit]\nshare = 0.2\nleaves = 1\nfinal_rounds = 0\n\
                    [admission]\nstart_nodes = 4\nstart_verifiers = 1\nnewcomer_share = 0.0\n";
const PLAIN: &str = "[aggregation]\nrule = \"mean\"\n[audit]\nshare = 0.0\nfinal_rounds = 0\n\
                     [admission]\nstart_nodes = 4\nstart_verifiers = 0\n";

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1).peekable();
    match arguments.peek().and_then(|word| word.to_str()) {
        Some("verifier") => return muster_verifier::run(arguments).into(),
        Some(word) if word.parse::<usize>().is_err() => {
            return muster_node::cli::run(std::env::args_os()).into();
        }
        _ => {}
    }
    let pairs = arguments.next().and_then(|word| word.to_str()?.parse().ok()).unwrap_or(3);
    let needs: Vec<Needs> = CASES.iter().map(|case| compare(case, pairs)).collect();
    show(&needs);
    ExitCode::SUCCESS
}

/// What a run tells.
struct Told {
    /// Seconds of the median round.
    round: f64,
    /// What its verifier wrote down.
    verifier: Option<Value>,
    /// Rounds and audits after the first ones, and the processor seconds of verifier and observer meanwhile.
    costs: (f64, f64, [f64; 2]),
}

/// Who follows besides the nodes.
#[derive(Clone, Copy, PartialEq)]
enum Beside {
    Nobody,
    Verifier,
    /// And an observer: it does what a verifier does, but for audits and drawn blocks.
    VerifierAndObserver,
}

/// What a verifier needs: seconds of one processor, and bytes received.
#[derive(Clone, Copy)]
struct Needs {
    parameters: f64,
    audits: f64,
    /// One audit, and the drawn blocks that come with as many contributions as have one audit among them.
    audit: (f64, f64),
    /// Following one round.
    following: (f64, f64),
}

impl Needs {
    fn of(parameters: f64, told: &Told) -> Self {
        let result = told.verifier.as_ref().unwrap_or(&Value::Null);
        let number = |path: &str| result.pointer(path).and_then(Value::as_f64).unwrap_or(f64::NAN);
        let (rounds, audits, [verifier, observer]) = told.costs;
        let beyond = number("/bytes/audits") + number("/bytes/blocks");
        Self {
            parameters,
            audits: number("/audits"),
            audit: ((verifier - observer) / audits, beyond / number("/audits")),
            following: (observer / rounds, (number("/bytes_received") - beyond) / number("/rounds")),
        }
    }

    /// What a round of so many nodes takes.
    fn round(&self, nodes: f64) -> (f64, f64) {
        let of = |audit: f64, following: f64| following + nodes * AUDITED * audit;
        (of(self.audit.0, self.following.0), of(self.audit.1, self.following.1))
    }
}

#[allow(clippy::print_stdout)]
fn show(needs: &[Needs]) {
    println!(
        "\nwhat a verifier needs, in seconds of one processor and bytes received; of the contributions a fifth is audited, \
         one leaf of four, and a twentieth of the blocks combined again\n\n\
         | parameters | an audit | following, a round | 10 nodes, a round | 100 nodes, a round | audits measured |\n\
         |---|---|---|---|---|---|"
    );
    let cell = |(seconds, bytes): (f64, f64)| format!("{seconds:.2} s, {:.1} MB", bytes / 1e6);
    for need in needs {
        println!(
            "| {:.1} M | {} | {} | {} | {} | {} |",
            need.parameters / 1e6,
            cell(need.audit),
            cell(need.following),
            cell(need.round(10.0)),
            cell(need.round(100.0)),
            need.audits,
        );
    }
}

#[allow(clippy::print_stdout)]
fn compare(case: &Case, pairs: usize) -> Needs {
    let mut full = Vec::new();
    let mut ratios = Vec::new();
    for _ in 0..pairs {
        let (with, without) = (run(case, FULL, Beside::Verifier), run(case, PLAIN, Beside::Nobody));
        ratios.push(with.round / without.round);
        full.push(with);
    }
    ratios.sort_by(f64::total_cmp);
    if let (Some(least), Some(most)) = (ratios.first(), ratios.last()) {
        println!(
            "{}: a round takes {:.3} times that of the same run with a plain mean and no audit (goal: at most 1.08); \
             {least:.3} to {most:.3} in {pairs} pairs",
            case.name,
            ratios[pairs / 2]
        );
        let seconds: Vec<String> = full.iter().map(|told| format!("{:.3}", told.round)).collect();
        println!("  median round: {} s", seconds.join(", "));
        let audits = full.iter().filter_map(|told| told.verifier.as_ref()?["audits"].as_u64()).sum::<u64>();
        println!("  {audits} audits in all");
    }
    Needs::of(case.parameters, &run(case, FULL, Beside::VerifierAndObserver))
}

/// Events of the steward's log of one kind.
fn events(log: &str, kind: &str) -> Vec<Value> {
    let events = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    events.filter(|event| event["event"] == kind).collect()
}

/// Seconds that a process has kept processors busy, also when it has ended and was not waited for.
fn processor_seconds(child: &Child) -> Option<f64> {
    // Fields 14 and 15, in hundredths; the name in parentheses is field 2.
    let text = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).ok()?;
    let (_, fields) = text.rsplit_once(')')?;
    let ticks = fields.split_whitespace().skip(11).take(2);
    Some(ticks.filter_map(|field| field.parse::<f64>().ok()).sum::<f64>() / 100.0)
}

/// Waits for the end of verifier and observer: rounds and audits after the first ones, and the processor seconds that
/// each took meanwhile.
fn watch(children: &mut [Child], log: &Path) -> (f64, f64, [f64; 2]) {
    let seconds = |children: &[Child]| -> [f64; 2] {
        [0, 1].map(|place| children.get(place).and_then(processor_seconds).unwrap_or(0.0))
    };
    let counts = || {
        let log = std::fs::read_to_string(log).unwrap_or_default();
        (events(&log, "round").len(), events(&log, "audit").len())
    };
    while counts().0 < WARM {
        std::thread::sleep(Duration::from_millis(50));
    }
    let (begun, before) = (counts(), seconds(children));
    while events(&std::fs::read_to_string(log).unwrap_or_default(), "close").is_empty() {
        std::thread::sleep(Duration::from_millis(200));
    }
    let (ended, after) = (counts(), seconds(children));
    for child in children {
        assert!(child.wait().expect("a child").success(), "a verifier or an observer failed");
    }
    let took = [0, 1].map(|place| after[place] - before[place]);
    ((ended.0 - begun.0) as f64, (ended.1 - begun.1) as f64, took)
}

fn program(arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

fn good(arguments: &[&str]) {
    assert!(program(arguments).status().expect("a program").success(), "{arguments:?}");
}

fn line(arguments: &[&str]) -> String {
    let output = program(arguments).stdout(Stdio::piped()).output().expect("a program");
    String::from_utf8(output.stdout).expect("text").trim().to_owned()
}

fn run(case: &Case, settings: &str, beside: Beside) -> Told {
    let home = tempfile::tempdir().expect("a temporary directory");
    let at = |name: &str| home.path().join(name).to_string_lossy().into_owned();
    let text: String = (0..400_000u64).map(|n| format!("{} ", n.wrapping_mul(0x9e37_79b9) >> 20)).collect();
    std::fs::write(at("text"), text).expect("a file");
    std::fs::write(at("run.toml"), format!("{}{COMMON}{settings}", case.settings)).expect("a file");
    good(&["data", "pack", "--text", &at("text"), "--out", &at("corpus")]);
    good(&["run", "new", "--config", &at("run.toml"), "--data", &at("corpus"), "--out", &at("run")]);
    let mut host = program(&["host", &at("run"), "--listen", "127.0.0.1:0"]).spawn().expect("a program");
    while !Path::new(&at("run/address")).exists() {
        std::thread::sleep(Duration::from_millis(20));
    }
    let mut watching = Vec::new();
    if beside != Beside::Nobody {
        let invitation = line(&["invite", &at("run"), "--role", "verifier"]);
        let directory = at("verifier");
        good(&["verifier", "enroll", &invitation, "--data-dir", &directory]);
        watching.push(program(&["verifier", "watch", &directory]).spawn().expect("a program"));
        if beside == Beside::VerifierAndObserver {
            let observer = ["verifier", "observe", &invitation, "--data-dir", &at("observer")];
            watching.push(program(&observer).spawn().expect("a program"));
        }
    }
    let invitation = line(&["invite", &at("run"), "--role", "node", "--uses", "4"]);
    let join = |node: usize| {
        let directory = at(&format!("node{node}"));
        program(&["join", &invitation, "--data-dir", &directory, "--listen", "127.0.0.1:0"]).spawn()
    };
    let mut members: Vec<Child> = (0..NODES).map(|node| join(node).expect("a program")).collect();
    let costs = watch(&mut watching, Path::new(&at("run/log.jsonl")));
    let verifier = std::fs::read_to_string(at("verifier/result.json")).ok();
    let verifier = verifier.map(|result| serde_json::from_str(&result).expect("JSON"));
    let succeed = |child: &mut Child| assert!(child.wait().expect("a child").success(), "a member failed");
    members.iter_mut().for_each(succeed);
    succeed(&mut host);
    let log = std::fs::read_to_string(at("run/log.jsonl")).expect("a log");
    let rounds = events(&log, "round");
    let mut seconds: Vec<f64> =
        rounds.iter().filter_map(|event| event["seconds"].as_f64()).skip(WARM).collect();
    seconds.sort_by(f64::total_cmp);
    Told { round: seconds[seconds.len() / 2], verifier, costs }
}
