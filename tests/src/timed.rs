//! A run of real processes that is timed, all on loopback or each on a host of `tests/links.sh`.

use std::fs;
use std::time::{Duration, Instant};

use muster_core::codec::decode;
use muster_core::manifest::Manifest;
use muster_replica::Phase;
use serde_json::Value;

use crate::processes::{Process, Programs, Run};

/// First rounds of a run, in which buffers are made and members find each other.
pub const WARM: usize = 2;
/// Longest wait for the next round.
const PATIENCE: Duration = Duration::from_secs(200);
/// Pause between two looks at the log.
const LOOK: Duration = Duration::from_millis(10);
/// Ticks a second of the processor times in /proc.
const TICKS: f64 = 100.0;

/// A place to run a process.
#[derive(Clone)]
pub struct Host {
    /// Its network namespace.
    pub namespace: String,
    /// Its address there.
    pub address: String,
}

/// The hosts that `tests/links.sh` made, if this process runs under it.
pub fn hosts() -> Option<Vec<Host>> {
    let listed = std::env::var("LINKS_HOSTS").ok()?;
    let host = |line: &str| {
        let (namespace, address) = line.split_once(' ')?;
        Some(Host { namespace: namespace.to_owned(), address: address.to_owned() })
    };
    listed.lines().map(host).collect()
}

/// The stages of a round that the steward sees, and what lies between the one before and it.
const STAGES: [(&str, &str); 4] = [
    ("freeze", "open to freeze: the step of the round before, leaf, grid, hashes, commitment"),
    ("inputs", "freeze to inputs: packed contributions to their aggregators"),
    ("results", "inputs to results: the rule; results fetched, compared and acknowledged"),
    ("outcome", "results to outcome: the steward's fetch, step and hashes"),
];

/// What a run told. Rounds before [`WARM`], and the last one, are left out of times and bytes of rounds.
pub struct Timed {
    /// The steward's events of the rounds that count.
    pub rounds: Vec<Value>,
    /// Each node's `result.json`, of the whole run.
    pub results: Vec<Value>,
    /// Of the model.
    pub parameters: u64,
    /// Seconds of processors that a round took of the steward, and of all nodes together.
    pub processors: (f64, f64),
    /// All rounds of the run.
    pub all: usize,
}

impl Timed {
    /// A run of these settings to its end, in which this program is `muster`; each node computes on so many threads.
    pub fn run(settings: &str, nodes: usize, threads: usize) -> Self {
        let program = std::env::current_exe().expect("this program").to_string_lossy().into_owned();
        let program: &'static str = Box::leak(program.into_boxed_str());
        let run = Run::timed(Programs { muster: program, verifier: program }, settings);
        let hosts = hosts();
        let start = |place: usize, name: &str, arguments: &[&str]| match hosts.as_ref() {
            None => run.spawn(name, program, &[arguments, &["--listen", "127.0.0.1:0"]].concat()),
            Some(hosts) => {
                let host = hosts.get(place).expect("as many hosts as processes");
                let listen = format!("{}:0", host.address);
                run.spawn_in(&host.namespace, name, program, &[arguments, &["--listen", &listen]].concat())
            }
        };
        let mut steward = start(0, "steward", &["host", &run.at("run"), "--exit-when-done", "--no-gossip"]);
        crate::processes::wait_for("the steward to listen", || run.path("run/address").exists());
        let (invitation, threads) = (run.invite("node", nodes as u32), threads.to_string());
        let names: Vec<String> = (0..nodes).map(|node| format!("node{node}")).collect();
        let mut members: Vec<Process> = (1..)
            .zip(&names)
            .map(|(place, name)| {
                let home = run.at(name);
                let more = ["--data-dir", &home, "--threads", &threads, "--no-gossip"];
                start(place, name, &[&["join", &invitation][..], &more].concat())
            })
            .collect();
        let manifest: Manifest =
            decode(&fs::read(run.path("run/manifest.bin")).expect("a manifest")).expect("canonical");
        let all = manifest.training.rounds as usize;
        let spent = |members: &[Process]| {
            (processor_seconds(steward.id()), members.iter().map(|node| processor_seconds(node.id())).sum())
        };
        reach(&run, WARM);
        let before: (f64, f64) = spent(&members);
        reach(&run, all - 1);
        let after: (f64, f64) = spent(&members);
        for process in members.iter_mut().chain([&mut steward]) {
            assert_eq!(process.wait(), 0, "{}", process.log());
        }
        let rounds: Vec<Value> = run.events("round").drain(WARM..all - 1).collect();
        let each = |before: f64, after: f64| (after - before) / rounds.len() as f64;
        Self {
            processors: (each(before.0, after.0), each(before.1, after.1)),
            rounds,
            results: names.iter().map(|name| run.result(name)).collect(),
            parameters: manifest.model.parameters(),
            all,
        }
    }

    /// Mean seconds of a round.
    pub fn seconds(&self) -> f64 {
        self.mean(|round| &round["seconds"])
    }

    /// Says on the standard error where a round's time went.
    #[allow(clippy::print_stderr)]
    pub fn explain(&self) {
        let (nodes, wall) = (self.results.len() as f64, self.seconds());
        let (d, rounds) = (self.parameters, self.rounds.len());
        eprintln!("  {nodes} nodes, d = {d}, {rounds} rounds of {wall:.3} s; by the steward's clock:");
        let mut before = 0.0;
        for (stage, what) in STAGES {
            let until = if stage == "outcome" { wall } else { self.mean(|round| &round["stages"][stage]) };
            eprintln!("    {:7.3} s  {what}", until - before);
            before = until;
        }
        eprintln!("  a node's phases, of which some overlap:");
        for phase in Phase::ALL {
            eprintln!("    {:7.3} s  {}", self.phase(phase), phase.word());
        }
        let (steward, members) = self.processors;
        eprintln!(
            "  processors: {:.3} s a node, {steward:.3} s the steward, {:.2} at work on average",
            members / nodes,
            (members + steward) / wall
        );
        let sent = self.sent();
        eprintln!("  a node sends {:.2} MB, {:.2} times 4·d", sent / 1e6, sent / (4.0 * d as f64));
    }

    /// Mean seconds of a round that a node spent on a phase, over all rounds.
    pub fn phase(&self, phase: Phase) -> f64 {
        self.of_nodes(|result| &result["seconds"][phase.word()])
    }

    /// Mean bytes of a round that a node sent, over all rounds.
    pub fn sent(&self) -> f64 {
        self.of_nodes(|result| &result["bytes_sent"])
    }

    fn mean(&self, what: impl Fn(&Value) -> &Value) -> f64 {
        let sum: f64 = self.rounds.iter().map(|round| what(round).as_f64().expect("a number")).sum();
        sum / self.rounds.len() as f64
    }

    fn of_nodes(&self, what: impl Fn(&Value) -> &Value) -> f64 {
        let sum: f64 = self.results.iter().map(|result| what(result).as_f64().expect("a number")).sum();
        sum / (self.results.len() * self.all) as f64
    }
}

/// Waits until so many rounds are over.
fn reach(run: &Run, rounds: usize) {
    let mut newest = (0, Instant::now());
    loop {
        let over = run.events("round").len();
        if over >= rounds {
            return;
        }
        if over > newest.0 {
            newest = (over, Instant::now());
        }
        assert!(newest.1.elapsed() < PATIENCE, "round {over} does not end");
        std::thread::sleep(LOOK);
    }
}

/// What processors have given to a process so far.
pub fn processor_seconds(process: u32) -> f64 {
    let text = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    let fields = text.rsplit(") ").next().unwrap_or_default().split(' ').skip(11).take(2);
    fields.filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / TICKS
}

/// Bytes of memory that a process has now; 0 once it has ended.
pub fn resident(process: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kibibytes = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kibibytes.unwrap_or_default() << 10
}
