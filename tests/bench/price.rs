//! What security costs: the full protocol, 5 % of all leaves audited, beside the same run with a plain mean and no
//! audit; and what an audit and a verifier need, by the size of the model.
//!
//! `cargo run --release -p e2e --bin bench-price [-- SECONDS [experts | local]]`: so long each of the two runs has the
//! processors, 150 s where nothing is said; with 0 only the latter is shown. With `experts` it compares rows of experts alone,
//! in which few contribute, so that every contribution is audited and no update is applied before it was passed; with `local`
//! local updates alone. Every process is this program again, as `muster` or, where the first argument is `verifier`, as
//! `muster-verifier`. Both runs are there all the time and take turns of a second: while one
//! goes on, the other is stopped, for the speed of a machine that others use too drifts by more than what is measured
//! here. All processes of a run share this machine: its time for a round includes what its verifier computes.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

/// Share of all contributions that is audited.
const AUDITED: f64 = 0.2;
/// First rounds of a run, in which buffers are made and members find each other.
const WARM: usize = 2;

struct Case {
    name: &'static str,
    parameters: f64,
    model: &'static str,
    nodes: usize,
    /// Rows of experts; 1 where there are none.
    rows: u16,
    /// Leaves of a node in a round.
    leaves: usize,
    /// Of these, how many an audit draws.
    drawn: usize,
    /// Settings of the run with audits, and of the one without.
    settings: [&'static str; 2],
    /// How many times the latter's time a round of the former may take.
    goal: f64,
    /// Rounds of a run that goes to its end.
    rounds: usize,
}

const SMALL: &str = "width = 128\nlayers = 5\nheads = 4\nkey_value_heads = 4\nhidden = 344\nsequence = 256\n";
const CASES: [Case; 3] = [
    Case {
        name: "1 M parameters, 4 leaves of 1,024 tokens a node",
        parameters: 1.0e6,
        model: SMALL,
        nodes: 4,
        rows: 1,
        leaves: 4,
        drawn: 1,
        settings: [FULL, PLAIN],
        goal: 1.08,
        rounds: 22,
    },
    Case {
        name: "1 M parameters, 16 leaves of 1,024 tokens a node",
        parameters: 1.0e6,
        model: SMALL,
        nodes: 4,
        rows: 1,
        leaves: 16,
        drawn: 4,
        settings: [FULL, PLAIN],
        goal: 1.08,
        rounds: 8,
    },
    Case {
        name: "5 M parameters, 4 leaves of 1,024 tokens a node",
        parameters: 4.9e6,
        model: "width = 256\nlayers = 6\nheads = 4\nkey_value_heads = 4\nhidden = 688\nsequence = 256\n",
        nodes: 4,
        rows: 1,
        leaves: 4,
        drawn: 1,
        settings: [FULL, PLAIN],
        goal: 1.08,
        rounds: 12,
    },
];

/// Ten nodes on five rows: two contributions a row, so that all of them are audited, and updates wait.
const EXPERTS: Case = Case {
    name: "five rows of experts, 8 leaves of 1,024 tokens a node",
    parameters: 1.0e6,
    model: "family = \"mixture\"\nwidth = 128\nlayers = 2\nheads = 4\nkey_value_heads = 4\nhidden = 112\nsequence = 256\n",
    nodes: 10,
    rows: 5,
    leaves: 8,
    drawn: 1,
    settings: [EXPERTS_FULL, EXPERTS_PLAIN],
    goal: 1.20,
    rounds: 0,
};

/// 4 segments of 4 steps. An audit recomputes 2.5 segments on average (LOCAL-8), of 8 % of the contributions: 5 % of all steps.
const LOCAL: Case = Case {
    name: "1 M parameters, local updates, 16 steps of 1,024 tokens a node",
    parameters: 1.0e6,
    model: SMALL,
    nodes: 4,
    rows: 1,
    leaves: 4,
    drawn: 1,
    settings: [LOCAL_FULL, LOCAL_PLAIN],
    goal: 1.05,
    rounds: 0,
};

const COMMON: &str = "[timers]\ncommit = 120.0\n";
/// A fifth of all contributions, a quarter of the leaves each: 5 % of all leaves.
const FULL: &str = "[retention]\ncontributions = 4\nstates = 6\n[admission]\nstart_nodes = 4\nstart_verifiers = 1\nnewcomer_share = 0.0\n\
                    [audit]\nshare = 0.2\nfinal_rounds = 0\n";
const PLAIN: &str = "[retention]\ncontributions = 4\nstates = 6\n[aggregation]\nrule = \"mean\"\n[admission]\nstart_nodes = 4\nstart_verifiers = 0\n\
                     [audit]\nshare = 0.0\nfinal_rounds = 0\n";

const EXPERTS_FULL: &str = "[experts]\ncolumns = 8\nactive = 2\nshared_hidden = 64\nrows = 5\nbranch = 0.0\nfew = 5\nlag = 8\n\
                            [retention]\ncontributions = 8\nstates = 6\n\
                            [admission]\nstart_nodes = 10\nstart_verifiers = 1\nnewcomer_share = 0.0\n\
                            [audit]\nshare = 0.2\nfinal_rounds = 0\n";
const EXPERTS_PLAIN: &str = "[experts]\ncolumns = 8\nactive = 2\nshared_hidden = 64\nrows = 5\nbranch = 0.0\nfew = 0\nheld = 0\nlag = 0\n\
                             [retention]\ncontributions = 8\nstates = 6\n[aggregation]\nrule = \"mean\"\n\
                             [admission]\nstart_nodes = 10\nstart_verifiers = 0\n\
                             [audit]\nshare = 0.0\nfinal_rounds = 0\n";

const LOCAL_FULL: &str = "[local]\nsteps = 16\nsegment = 4\n\
                          [retention]\ncontributions = 4\nstates = 6\n[admission]\nstart_nodes = 4\nstart_verifiers = 1\nnewcomer_share = 0.0\n\
                          [audit]\nshare = 0.08\nfinal_rounds = 0\n";
const LOCAL_PLAIN: &str = "[local]\nsteps = 16\nsegment = 4\n\
                           [retention]\ncontributions = 4\nstates = 6\n[aggregation]\nrule = \"mean\"\n\
                           [admission]\nstart_nodes = 4\nstart_verifiers = 0\n\
                           [audit]\nshare = 0.0\nfinal_rounds = 0\n";

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1).peekable();
    match arguments.peek().and_then(|word| word.to_str()) {
        Some("verifier") => return muster_verifier::run(arguments).into(),
        Some(word) if word.parse::<usize>().is_err() => {
            return muster_node::cli::run(std::env::args_os()).into();
        }
        _ => {}
    }
    let seconds = arguments.next().and_then(|word| word.to_str()?.parse().ok()).unwrap_or(150);
    let each = Duration::from_secs(seconds);
    let alone = match arguments.next().as_ref().and_then(|word| word.to_str()) {
        Some("experts") => Some(&EXPERTS),
        Some("local") => Some(&LOCAL),
        _ => None,
    };
    if let Some(case) = alone {
        compare(case, each);
        return ExitCode::SUCCESS;
    }
    if seconds > 0 {
        CASES.iter().chain([&LOCAL]).for_each(|case| compare(case, each));
    }
    let needs = |case: &Case| {
        let running = Running::begin(case, case.rounds, FULL, Beside::VerifierAndObserver);
        Needs::of(case, &running.finish())
    };
    show(&CASES.each_ref().map(needs));
    ExitCode::SUCCESS
}

/// What a run tells that went to its end.
struct Told {
    /// What its verifier wrote down.
    verifier: Option<Value>,
    /// Rounds and audits after the first ones, and the processor seconds of verifier and observer meanwhile.
    costs: (f64, f64, [f64; 2]),
}

/// Rounds that an audit of a verifier that keeps up is behind at most.
const RECENT: u64 = 2;
/// More rounds than there is time for, and as many as verifiers have coins for.
const UNENDING: usize = 16_000;
/// How long a run goes on at a time, and how often it is looked whether a round is over.
const TURN: Duration = Duration::from_secs(1);
const LOOK: Duration = Duration::from_millis(5);
/// Of how many parts of the time a ratio is shown.
const PARTS: usize = 5;

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
    leaves: usize,
    audits: f64,
    /// One audit, and the drawn blocks that come with as many contributions as have one audit among them.
    audit: (f64, f64),
    /// Following one round.
    following: (f64, f64),
}

impl Needs {
    fn of(case: &Case, told: &Told) -> Self {
        let result = told.verifier.as_ref().unwrap_or(&Value::Null);
        let number = |path: &str| result.pointer(path).and_then(Value::as_f64).unwrap_or(f64::NAN);
        let (rounds, audits, [verifier, observer]) = told.costs;
        let beyond = number("/bytes/audits") + number("/bytes/blocks");
        Self {
            parameters: case.parameters,
            leaves: case.drawn,
            audits: number("/audits"),
            audit: ((verifier - observer) / audits, beyond / number("/audits")),
            following: (observer / rounds, (number("/bytes_received") - beyond) / number("/rounds")),
        }
    }

    /// What a round of `nodes` nodes takes.
    fn round(&self, nodes: f64) -> (f64, f64) {
        let of = |audit: f64, following: f64| following + nodes * AUDITED * audit;
        (of(self.audit.0, self.following.0), of(self.audit.1, self.following.1))
    }
}

#[allow(clippy::print_stdout)]
fn show(needs: &[Needs]) {
    println!(
        "\nwhat a verifier needs, in seconds of one processor and bytes received; of the contributions a fifth is audited, \
         a quarter of the leaves each, and a twentieth of the blocks combined again\n\n\
         | parameters | leaves an audit | an audit | following, a round | 10 nodes, a round | 100 nodes, a round | audits measured |\n\
         |---|---|---|---|---|---|---|"
    );
    let cell = |(seconds, bytes): (f64, f64)| format!("{seconds:.2} s, {:.1} MB", bytes / 1e6);
    for need in needs {
        println!(
            "| {:.1} M | {} | {} | {} | {} | {} | {} |",
            need.parameters / 1e6,
            need.leaves,
            cell(need.audit),
            cell(need.following),
            cell(need.round(10.0)),
            cell(need.round(100.0)),
            need.audits,
        );
    }
}

#[allow(clippy::print_stdout)]
fn compare(case: &Case, each: Duration) {
    let [mut full, mut plain] = [(case.settings[0], Beside::Verifier), (case.settings[1], Beside::Nobody)]
        .map(|(settings, beside)| {
            let run = Running::begin(case, UNENDING, settings, beside);
            run.wait_for(WARM);
            if beside != Beside::Nobody {
                run.wait_for_audits();
            }
            run.signal("STOP");
            let before = run.busy();
            Timed { run, active: Duration::ZERO, sealed: Vec::new(), before }
        });
    while full.active < each || full.sealed.len().min(plain.sealed.len()) < 2 * PARTS {
        full.turn();
        plain.turn();
    }
    let [with, without] = [&full, &plain].map(Timed::seconds);
    let parts = with.chunks(with.len().div_ceil(PARTS)).zip(without.chunks(without.len().div_ceil(PARTS)));
    let mut ratios: Vec<f64> = parts.map(|(with, without)| mean(with) / mean(without)).collect();
    ratios.sort_by(f64::total_cmp);
    println!(
        "{}: a round takes {:.3} times that of the same run with a plain mean and no audit (goal: at most {}); {:.3} to \
         {:.3} in parts of {PARTS}",
        case.name,
        mean(&with) / mean(&without),
        case.goal,
        ratios[0],
        ratios[ratios.len() - 1],
    );
    println!(
        "  {:.3} s and {:.3} s, {} and {} rounds",
        mean(&with),
        mean(&without),
        with.len(),
        without.len()
    );
    for (name, timed) in [("with", &full), ("without", &plain)] {
        let [steward, nodes, verifier] = timed.busy();
        println!(
            "  processor seconds a round {name}: steward {steward:.3}, nodes {nodes:.3}, verifier {verifier:.3}; {:.0} % of \
             the processors' time is idle",
            100.0 * (1.0 - timed.share())
        );
    }
    let duty = full
        .run
        .events("round")
        .pop()
        .and_then(|round| round["duties"].as_object()?.values().next().cloned());
    let [due, done, rounds] =
        ["due", "done", "rounds"].map(|of| duty.as_ref().and_then(|duty| duty[of].as_u64()).unwrap_or(0));
    println!("  {done} audits of {due} that were due, in {rounds} rounds of {} contributions", case.nodes);
}

fn mean(of: &[f64]) -> f64 {
    of.iter().sum::<f64>() / of.len() as f64
}

/// A run that goes on by turns.
struct Timed {
    run: Running,
    /// How long it has had the processors.
    active: Duration,
    /// When, by this clock, rounds were over, and how many were.
    sealed: Vec<(f64, usize)>,
    /// Processor seconds of each role before.
    before: [f64; 3],
}

impl Timed {
    fn turn(&mut self) {
        self.run.signal("CONT");
        let begun = Instant::now();
        while begun.elapsed() < TURN {
            std::thread::sleep(LOOK);
            let rounds = self.run.rounds();
            if self.sealed.last().is_none_or(|(_, before)| rounds > *before) {
                self.sealed.push(((self.active + begun.elapsed()).as_secs_f64(), rounds));
            }
        }
        self.run.signal("STOP");
        self.active += begun.elapsed();
    }

    /// Processor seconds a round: of the steward, the nodes, the verifier.
    fn busy(&self) -> [f64; 3] {
        let rounds = self.sealed.last().map_or(0, |(_, last)| last - self.sealed[0].1).max(1) as f64;
        let now = self.run.busy();
        std::array::from_fn(|role| (now[role] - self.before[role]) / rounds)
    }

    /// Share of the processors' time that these processes were busy.
    fn share(&self) -> f64 {
        let now = self.run.busy();
        let busy: f64 = now.iter().zip(&self.before).map(|(now, before)| now - before).sum();
        let processors = std::thread::available_parallelism().map_or(1, usize::from) as f64;
        busy / self.active.as_secs_f64() / processors
    }

    /// Of each round; of the first ones nothing is said.
    fn seconds(&self) -> Vec<f64> {
        let rounds = self.sealed.windows(2).skip(1);
        rounds.map(|of| (of[1].0 - of[0].0) / (of[1].1 - of[0].1) as f64).collect()
    }
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

/// Processes of a run.
struct Running {
    home: TempDir,
    host: Child,
    watching: Vec<Child>,
    members: Vec<Child>,
}

impl Running {
    fn begin(case: &Case, rounds: usize, settings: &str, beside: Beside) -> Self {
        let home = tempfile::tempdir().expect("a temporary directory");
        let at = |name: &str| home.path().join(name).to_string_lossy().into_owned();
        let text: String =
            (0..400_000u64).map(|n| format!("{} ", n.wrapping_mul(0x9e37_79b9) >> 20)).collect();
        std::fs::write(at("text"), text).expect("a file");
        let (model, leaves, drawn) = (case.model, case.nodes * case.leaves, case.drawn);
        let run = format!(
            "[model]\n{model}[training]\nrounds = {rounds}\nleaves = {leaves}\nleaf_windows = 4\n{COMMON}{settings}\
             leaves = {drawn}\n"
        );
        std::fs::write(at("run.toml"), run).expect("a file");
        let (text, corpus, rows) = (at("text"), at("corpus"), case.rows.to_string());
        let routed: &[&str] = if case.rows > 1 { &["--rows", &rows] } else { &[] };
        good(&[&["data", "pack", "--text", &text, "--out", &corpus], routed].concat());
        good(&["run", "new", "--config", &at("run.toml"), "--data", &at("corpus"), "--out", &at("run")]);
        let host = program(&["host", &at("run"), "--exit-when-done", "--listen", "127.0.0.1:0"])
            .spawn()
            .expect("a program");
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
        let invitation = line(&["invite", &at("run"), "--role", "node", "--uses", &case.nodes.to_string()]);
        let join = |node: usize| {
            let directory = at(&format!("node{node}"));
            program(&["join", &invitation, "--data-dir", &directory, "--listen", "127.0.0.1:0"]).spawn()
        };
        let members = (0..case.nodes).map(|node| join(node).expect("a program")).collect();
        Self { home, host, watching, members }
    }

    fn log(&self) -> PathBuf {
        self.home.path().join("run/log.jsonl")
    }

    fn events(&self, kind: &str) -> Vec<Value> {
        events(&std::fs::read_to_string(self.log()).unwrap_or_default(), kind)
    }

    /// Rounds that are over; looks for no more than a word, so that waiting costs the processors nothing.
    fn rounds(&self) -> usize {
        std::fs::read_to_string(self.log()).unwrap_or_default().matches(r#""event":"round""#).count()
    }

    /// Waits until the verifier has begun: first it makes the coins of all rounds that there could be, once.
    fn wait_for_audits(&self) {
        let recent = || {
            let audit = self.events("audit").pop()?;
            Some(audit["round"].as_u64()? + RECENT >= self.rounds() as u64)
        };
        while recent() != Some(true) {
            std::thread::sleep(10 * LOOK);
        }
    }

    fn wait_for(&self, rounds: usize) {
        while self.rounds() < rounds {
            std::thread::sleep(LOOK);
        }
    }

    /// Processor seconds until now: of the steward, the nodes, the verifier.
    fn busy(&self) -> [f64; 3] {
        let of = |children: &[Child]| children.iter().filter_map(processor_seconds).sum();
        [of(std::slice::from_ref(&self.host)), of(&self.members), of(&self.watching)]
    }

    fn signal(&self, name: &str) {
        let all = self.watching.iter().chain(&self.members).chain([&self.host]);
        let numbers: Vec<String> = all.map(|child| child.id().to_string()).collect();
        let kill = format!("kill -{name} {}", numbers.join(" "));
        let sent = Command::new("sh").args(["-c", &kill]).status().expect("a shell");
        assert!(sent.success(), "a process has ended: {:?}", self.events("round").last());
    }

    fn finish(mut self) -> Told {
        let log = self.log();
        let costs = watch(&mut self.watching, &log);
        let verifier = std::fs::read_to_string(self.home.path().join("verifier/result.json")).ok();
        let verifier = verifier.map(|result| serde_json::from_str(&result).expect("JSON"));
        for child in self.members.iter_mut().chain([&mut self.host]) {
            assert!(child.wait().expect("a child").success(), "a member failed");
        }
        Told { verifier, costs }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        for child in self.watching.iter_mut().chain(&mut self.members).chain([&mut self.host]) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
