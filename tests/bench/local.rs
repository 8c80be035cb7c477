//! What local updates cost over slow links, by the steps between two exchanges: 10⁷ parameters, four nodes and a steward, each
//! with an uplink and a downlink of 100 Mbit/s, 25 ms from each other (`tests/links.sh`).
//!
//! `cargo run --release -p e2e --bin bench-local [-- --steps 1,8,32,128] [--rounds 6] [--tokens 16] [--rate 100mbit]
//! [--delay 25ms] [--overlap] [--quick]`: a step is one window of so many tokens. With `--overlap` each run comes a second time,
//! with delayed updates, whose round is compared with the larger of compute and rest of the first. *Compute* is what the nodes' own stopwatches say of
//! gradients, steps and the grid, on average: all four compute at once, on this machine's processors. A table goes to the standard
//! output, what stages and phases of a round take to the standard error. Exits with 1 where a goal is missed, with 3
//! where the machine allows no such links. Every process is this program again, as `muster`.

use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, ExitCode};

use e2e::timed::{self, Timed};
use muster_replica::Phase;

const NODES: usize = 4;
/// How many times its compute a round of so many steps may take.
const LONGEST: (u32, f64) = (128, 1.15);
/// How many times the larger of compute and rest a round with delayed updates may take.
const OVERLAPPED: f64 = 1.1;
/// How far the bytes of a step may be from those of one step a round, divided by the steps.
const BYTES: f64 = 0.05;
/// Exit status of an argument that cannot be read.
const USAGE: u8 = 2;

/// What is asked for on the command line.
struct Asked {
    steps: Vec<u32>,
    rounds: u32,
    tokens: u32,
    overlap: bool,
    links: [String; 2],
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|word| !word.starts_with("--")) {
        return muster_node::cli::run(std::env::args_os()).into();
    }
    let Some(asked) = Asked::read(&arguments) else { return USAGE.into() };
    if timed::hosts().is_none() {
        return within_links(&arguments, &asked.links);
    }
    let mut missed = false;
    let mut first = None;
    header();
    for &steps in &asked.steps {
        let timed = |overlap| {
            let run = Timed::run(&settings(steps, &asked, overlap), NODES, 1);
            run.explain();
            let row = Row::of(steps, &run);
            row.print();
            row
        };
        let row = timed(false);
        missed |= row.judge(first.get_or_insert((steps, row.bytes)));
        if asked.overlap {
            missed |= timed(true).judge_overlap(&row);
        }
    }
    u8::from(missed).into()
}

impl Asked {
    fn read(arguments: &[String]) -> Option<Self> {
        let links = ["100mbit".into(), "25ms".into()];
        let mut asked = Self { steps: vec![1, 8, 32, 128], rounds: 6, tokens: 16, overlap: false, links };
        let mut words = arguments.iter();
        while let Some(word) = words.next() {
            match word.as_str() {
                "--overlap" => asked.overlap = true,
                "--quick" => asked.steps = vec![1, 8],
                "--steps" => {
                    asked.steps =
                        words.next()?.split(',').map(|steps| steps.parse().ok()).collect::<Option<_>>()?
                }
                "--rounds" => asked.rounds = words.next()?.parse().ok().filter(|rounds| *rounds >= 4)?,
                "--tokens" => asked.tokens = words.next()?.parse().ok()?,
                "--rate" => asked.links[0].clone_from(words.next()?),
                "--delay" => asked.links[1].clone_from(words.next()?),
                _ => return None,
            }
        }
        Some(asked)
    }
}

/// This program again, beside a host for the steward and one for each node.
fn within_links(arguments: &[String], [rate, delay]: &[String; 2]) -> ExitCode {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("links.sh");
    let program = std::env::current_exe().expect("this program");
    let hosts = (NODES + 1).to_string();
    let mut command = Command::new("sh");
    command
        .arg(script)
        .args(["--hosts", &hosts, "--rate", rate, "--delay", delay, "--"])
        .arg(program)
        .args(arguments);
    // In place of this process, so that whoever ends it ends the links.
    panic!("sh cannot be started: {}", command.exec())
}

/// 10⁷ parameters; the second moments are exchanged in every third round.
fn settings(steps: u32, Asked { rounds, tokens, .. }: &Asked, overlap: bool) -> String {
    let segment = (steps / 32).max(1);
    format!(
        "[model]\nwidth = 384\nlayers = 6\nheads = 6\nkey_value_heads = 3\nhidden = 1040\nsequence = {tokens}\n\
         [training]\nrounds = {rounds}\nleaf_windows = 1\noverlap = {overlap}\n[local]\nsteps = {steps}\nsegment = {segment}\n\
         [audit]\nshare = 0.0\nfinal_rounds = 0\n[admission]\nstart_nodes = {NODES}\nstart_verifiers = 0\n\
         [retention]\ncontributions = 4\nstates = 4\n[timers]\ncommit = 240.0\npart = 120.0\nresult = 120.0\n"
    )
}

/// What a number of steps costs.
struct Row {
    steps: u32,
    round: f64,
    compute: f64,
    bytes: f64,
}

#[allow(clippy::print_stdout)]
fn header() {
    println!(
        "steps   round s   compute s   round/compute   the rest s   MB sent a node and round   MB a step"
    );
}

impl Row {
    fn of(steps: u32, run: &Timed) -> Self {
        let compute = run.phase(Phase::Gradient) + run.phase(Phase::Grid);
        Self { steps, round: run.seconds(), compute, bytes: run.sent() / f64::from(steps) }
    }

    #[allow(clippy::print_stdout)]
    fn print(&self) {
        let Self { steps, round, compute, bytes } = self;
        println!(
            "{steps:5} {round:9.2} {compute:11.2} {:15.3} {:12.2} {:26.1} {:11.3}",
            round / compute,
            round - compute,
            bytes * f64::from(*steps) / 1e6,
            bytes / 1e6,
        );
    }

    /// Says whether a run with delayed updates meets its goal, beside the same run without; gives whether it misses it.
    #[allow(clippy::print_stdout)]
    fn judge_overlap(&self, without: &Self) -> bool {
        let larger = without.compute.max(without.round - without.compute);
        let times = self.round / larger;
        let met = times <= OVERLAPPED;
        println!(
            "verdict: {}: a round of {} steps with delayed updates: {times:.3} times the larger of compute and rest, {larger:.2} s \
             (goal: at most {OVERLAPPED}); {:.3} times the round without",
            if met { "met" } else { "MISSED" },
            self.steps,
            self.round / without.round,
        );
        !met
    }

    /// Says whether it meets its goals, beside the first number of steps and its bytes a step; gives whether it misses one.
    #[allow(clippy::print_stdout)]
    fn judge(&self, (first, bytes): &(u32, f64)) -> bool {
        let mut missed = false;
        let mut verdict = |met: bool, text: String| {
            println!("verdict: {}: {text}", if met { "met" } else { "MISSED" });
            missed |= !met;
        };
        let times = self.round / self.compute;
        if self.steps == LONGEST.0 {
            let text = format!(
                "a round of {} steps: {times:.3} times its compute (goal: at most {})",
                self.steps, LONGEST.1
            );
            verdict(times <= LONGEST.1, text);
        }
        if self.steps != *first {
            let fall = bytes / self.bytes;
            let share = fall * f64::from(*first) / f64::from(self.steps);
            let text = format!(
                "bytes a step fall {fall:.1} times from {first} to {} steps (goal: {} times, within {:.0} %)",
                self.steps,
                self.steps / first,
                100.0 * BYTES
            );
            verdict((share - 1.0).abs() <= BYTES, text);
        }
        missed
    }
}
