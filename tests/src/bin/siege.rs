//! Floods a run by turns with none: what a round, the steward's memory and its processor take beside the same run without.
//!
//! `cargo run --release -p e2e --bin siege [-- [--only NAME] [--turns N] [--quick]]`. A turn is a run of real processes on
//! loopback: three nodes, a verifier, and the attackers where the flood is a member's. It goes on for some rounds without the
//! flood, then for as many with it; the table has the median of the turns' ratios. Strangers flood from a process of their own, as
//! fast as [`e2e::floods`] says at most: the table has what they came to; members by the attacks of `muster drill`. What somebody does
//! for a flood has the least priority: strangers and attackers have machines of their own for that. All share this machine, and
//! a round is slower wherever both processors are busy, whatever they do: so they always are, by loops of the least priority. The
//! control, `sink`, says what sending alone costs, and a ratio is to be read beside it. Exits with 1 where a goal is missed. Every
//! process is this program again.

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use e2e::floods::{Flood, Target};
use e2e::onlooker::{Onlooker, failed_since};
use e2e::processes::{Process, Programs, Run};
use e2e::timed::{processor_seconds, resident};
use muster_core::ids::{MemberId, Round, unhex};
use muster_core::sign::Identity;
use tokio::runtime::Runtime;

/// First rounds of a run, in which buffers are made and members find each other.
const WARM: usize = 30;
/// Rounds between the beginning of a flood and the first that is measured.
const RISING: usize = 8;
/// How long a stretch of rounds may take.
const PATIENCE: Duration = Duration::from_secs(90);
/// How long a flood lasts at least: at its rate it could fill some hundred MiB by then.
const LEAST: Duration = Duration::from_secs(15);
/// Between two looks at a process.
const LOOK: Duration = Duration::from_millis(100);
/// Honest nodes of a run.
const NODES: usize = 3;
/// The most that a stranger's flood, and that of members, may cost, as a ratio of seconds a round.
const GOALS: (f64, f64) = (1.10, 1.5);
/// The most that the memory of steward and node may grow by in a flood, in MiB.
const MEMORY: f64 = 64.0;
/// A model of 115,000 parameters, whose rounds are short.
const SETTINGS: &str = r#"
name = "siege"
[model]
width = 64
layers = 2
heads = 4
key_value_heads = 2
hidden = 172
sequence = 32
[training]
rounds = 2000
leaves = 6
leaf_windows = 1
[audit]
share = 0.2
leaves = 1
coin_lead = 2
[admission]
start_verifiers = 1
"#;

/// Who floods, and how.
#[derive(Clone, Copy)]
enum Flooder {
    Strangers(Flood),
    /// So many members, each by this attack of the rehearsal.
    Members(&'static str, usize),
}

impl Flooder {
    fn name(self) -> String {
        match self {
            Self::Strangers(flood) => flood.name().to_owned(),
            Self::Members(attack, count) => format!("{attack}:{count}"),
        }
    }

    fn attackers(self) -> usize {
        if let Self::Members(_, count) = self { count } else { 0 }
    }

    fn goal(self) -> Option<f64> {
        match self {
            Self::Strangers(Flood::Sink) => None,
            Self::Strangers(_) => Some(GOALS.0),
            Self::Members(..) => Some(GOALS.1),
        }
    }

    fn all() -> Vec<Self> {
        let members = [("thrash", 1), ("stingy", 1), ("receipts", 2), ("thrash", 2)];
        let members = members.map(|(attack, count)| Self::Members(attack, count));
        Flood::ALL.map(Self::Strangers).into_iter().chain(members).collect()
    }
}

/// What is asked for.
struct Wanted {
    flooders: Vec<Flooder>,
    turns: usize,
    /// Rounds of a stretch.
    rounds: usize,
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.first().map(String::as_str) {
        Some("flood") => flood(&words[1..]),
        Some("busy") => busy(),
        Some("enroll" | "watch") => muster_verifier::run(std::env::args_os()).into(),
        Some(word) if !word.starts_with("--") => muster_node::cli::run(std::env::args_os()).into(),
        _ => match wanted(&words) {
            Ok(wanted) => besiege(&wanted),
            Err(why) => {
                say(&why);
                ExitCode::from(2)
            }
        },
    }
}

fn wanted(words: &[String]) -> Result<Wanted, String> {
    let mut wanted = Wanted { flooders: Flooder::all(), turns: 5, rounds: 60 };
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--quick" => (wanted.turns, wanted.rounds) = (1, 30),
            "--only" => {
                let name = words.next().ok_or("--only wants a name")?;
                wanted.flooders.retain(|flooder| flooder.name() == *name);
                if wanted.flooders.is_empty() {
                    let names: Vec<String> = Flooder::all().into_iter().map(Flooder::name).collect();
                    return Err(format!("no flood {name:?}; there are {}", names.join(", ")));
                }
            }
            "--turns" => {
                let turns = words.next().and_then(|turns| turns.parse().ok()).filter(|turns| *turns > 0);
                wanted.turns = turns.ok_or("--turns wants a number")?;
            }
            other => return Err(format!("{other:?}: there are --only NAME, --turns N and --quick")),
        }
    }
    Ok(wanted)
}

/// A processor's worth of work, until it is killed.
fn busy() -> ExitCode {
    let mut word = 1u64;
    loop {
        word = std::hint::black_box(word.wrapping_mul(6_364_136_223_846_793_005).rotate_left(7));
    }
}

/// The process that floods, until it is killed.
fn flood(words: &[String]) -> ExitCode {
    let [name, target] = words else { return ExitCode::from(2) };
    let (Ok(flood), Some(target)) = (Flood::named(name), Target::from_words(target)) else {
        return ExitCode::from(2);
    };
    let Ok(runtime) = Runtime::new() else { return ExitCode::FAILURE };
    runtime.block_on(async {
        let (_tasks, uplink) = flood.begin(&target).await;
        for second in 1u64.. {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let moved = uplink.up.taken() + uplink.down.taken();
            // The last line is what the table shows.
            say(&format!(
                "{:.1} {}",
                moved as f64 / second as f64 / 1e6,
                uplink.connections.taken() / second
            ));
        }
    });
    ExitCode::SUCCESS
}

fn besiege(wanted: &Wanted) -> ExitCode {
    say(
        "flood          without    with     ratio  goal   memory  processor without, with  failed  rounds  strangers' MB/s, connections/s",
    );
    let mut good = true;
    for flooder in &wanted.flooders {
        let turns: Vec<Turn> = (0..wanted.turns).map(|_| Turn::play(*flooder, wanted.rounds)).collect();
        good &= tell(*flooder, &turns);
    }
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// One line of the table; whether its goals are met.
fn tell(flooder: Flooder, turns: &[Turn]) -> bool {
    let of = |what: fn(&Turn) -> f64| median(turns.iter().map(what).collect());
    let ratio = of(|turn| turn.with.seconds / turn.without.seconds);
    let memory = turns.iter().map(|turn| turn.growth).fold(0.0, f64::max);
    let failed: usize = turns.iter().map(|turn| turn.failed).sum();
    let ended = turns.iter().filter(|turn| turn.ended).count();
    let strangers = matches!(flooder, Flooder::Strangers(_));
    let goal = flooder.goal();
    let slow = goal.is_some_and(|goal| ratio > goal);
    let good = !slow && failed == 0 && ended == 0 && !(strangers && memory > MEMORY);
    let rounds: usize = turns.iter().map(|turn| turn.with.rounds).sum();
    say(&format!(
        "{:<12} {:>7.3} s {:>7.3} s {:>8.2} {:>6} {:>4.0} MiB {:>14.0} %, {:>3.0} % {:>9} {:>7} {:>11.1}, {:>3.0}{}{}",
        flooder.name(),
        of(|turn| turn.without.seconds),
        of(|turn| turn.with.seconds),
        ratio,
        goal.map_or("–".into(), |goal| format!("{goal:.2}")),
        memory,
        100.0 * of(|turn| turn.without.processor),
        100.0 * of(|turn| turn.with.processor),
        failed,
        rounds,
        of(|turn| turn.pressed.0),
        of(|turn| turn.pressed.1),
        if ended > 0 { "  THE STEWARD ENDED" } else { "" },
        if good { "" } else { "  missed" },
    ));
    good
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Rounds one after the other.
#[derive(Clone, Copy)]
struct Stretch {
    /// A round's.
    seconds: f64,
    /// Share of one processor that the steward had.
    processor: f64,
    rounds: usize,
}

/// A run without the flood, and then with it.
struct Turn {
    without: Stretch,
    with: Stretch,
    /// What the memory of the steward, or of the first node, grew by at most, in MiB.
    growth: f64,
    /// Honest members that failed once the flood had begun.
    failed: usize,
    /// Whether the steward has ended.
    ended: bool,
    /// Megabytes, and connections, a second of strangers.
    pressed: (f64, f64),
}

impl Turn {
    fn play(flooder: Flooder, rounds: usize) -> Self {
        let program = std::env::current_exe().expect("this program").to_string_lossy().into_owned();
        let program: &'static str = Box::leak(program.into_boxed_str());
        let all = NODES + flooder.attackers();
        let settings = format!("{SETTINGS}start_nodes = {all}\n");
        let run = Run::packed(Programs { muster: program, verifier: program }, &settings, None);
        let more: &[&str] = if flooder.attackers() > 0 { &["--per-address", "1024"] } else { &[] };
        let mut steward = run.host_with(&[&["--web", "127.0.0.1:0"], more].concat());
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let busy = |number| run.spawn(&format!("busy{number}"), "chrt", &["--idle", "0", program, "busy"]);
        let _busy: Vec<Process> = (0..processors).map(busy).collect();
        let from = WARM + rounds;
        let mut cast = Cast::join(&run, program, flooder, from);
        let reached = reach(&run, &mut steward, WARM);
        let (without, before) = cast.measure(&run, &mut steward, (rounds, Duration::ZERO));
        let onlooker = Onlooker::of(&run);
        let runtime = Runtime::new().expect("threads");
        let honest = cast.ids(&run);
        if let Flooder::Strangers(flood) = flooder {
            let target = runtime.block_on(onlooker.target(&steward, &honest[0]));
            // By what is left of the processors, however many threads it has: it has a machine of its own for that.
            let idle = ["--idle", "0", program, "flood", flood.name(), &target.to_words()];
            cast.others.push(run.spawn("flood", "chrt", &idle));
        }
        let begun = run.events("round").len().max(from);
        let reached = reached && reach(&run, &mut steward, begun + RISING);
        let (with, peak) = cast.measure(&run, &mut steward, (rounds, LEAST));
        let ended = !reached && steward.wait_at_most(LOOK).is_some();
        let pressed = cast.others.last().map(|flood| pressed(&flood.log())).unwrap_or_default();
        // Before the ledger is read: the onlooker is a stranger, too.
        cast.others.clear();
        let ended = ended || steward.wait_at_most(LOOK).is_some();
        let failed = if ended {
            honest.len()
        } else {
            failed_since(&runtime.block_on(onlooker.ledger()), &honest, Round(from as u32))
        };
        let growth = before.iter().zip(peak).map(|(before, peak)| peak.saturating_sub(*before)).max();
        let growth = growth.unwrap_or_default() as f64 / f64::from(1 << 20);
        Self { without, with, growth, failed, ended, pressed }
    }
}

/// The processes of a run beside its steward.
struct Cast {
    honest: Vec<Process>,
    /// Attackers, and whoever floods.
    others: Vec<Process>,
}

impl Cast {
    fn join(run: &Run, program: &'static str, flooder: Flooder, from: usize) -> Self {
        let nodes = run.invite("node", (NODES + flooder.attackers()) as u32);
        let mut honest: Vec<Process> =
            (0..NODES).map(|number| run.join(&format!("node{number}"), &nodes, &[])).collect();
        honest.push(run.watch("verifier", &run.invite("verifier", 1)));
        let mut others = Vec::new();
        if let Flooder::Members(attack, count) = flooder {
            let (from, coalition) = (from.to_string(), run.at("coalition"));
            for number in 0..count {
                let name = format!("attacker{number}");
                let home = run.at(&name);
                let role = ["demo-role", "attacker", attack, &from, &nodes, &home];
                others.push(run.spawn(&name, program, &[&role[..], &["--coalition", &coalition]].concat()));
            }
        }
        Self { honest, others }
    }

    /// The honest members, the first node first.
    fn ids(&self, run: &Run) -> Vec<MemberId> {
        let names = (0..NODES).map(|number| format!("node{number}")).chain(["verifier".into()]);
        names.map(|name| key_of(&run.path(&name)).expect("a member's key").id()).collect()
    }

    /// So many rounds at least, and so long, and how much memory the steward and the first node had at most.
    fn measure(&self, run: &Run, steward: &mut Process, least: (usize, Duration)) -> (Stretch, [u64; 2]) {
        let (rounds, least) = least;
        let watched = [steward.id(), self.honest[0].id()];
        let (first, began) = (run.events("round").len(), Instant::now());
        let (spent, mut peak) = (processor_seconds(watched[0]), [0; 2]);
        let events = loop {
            for (peak, process) in peak.iter_mut().zip(watched) {
                *peak = (*peak).max(resident(process));
            }
            let events = run.events("round");
            let late = began.elapsed() > PATIENCE || steward.wait_at_most(LOOK).is_some();
            if events.len() >= first + rounds && began.elapsed() >= least || late {
                break events;
            }
        };
        let wall = began.elapsed().as_secs_f64();
        let over = events.len() - first;
        let by_steward: f64 = events[first..].iter().filter_map(|round| round["seconds"].as_f64()).sum();
        // What has not come to its end counts as well.
        let seconds = if over < rounds { wall } else { by_steward } / over.max(1) as f64;
        let processor = (processor_seconds(watched[0]) - spent) / wall;
        (Stretch { seconds, processor, rounds: over }, peak)
    }
}

/// The last line of a process that floods.
fn pressed(log: &str) -> (f64, f64) {
    let last = log.lines().rev().find_map(|line| line.split_once(' '));
    let number = |text: &str| text.parse().unwrap_or_default();
    last.map(|(bytes, connections)| (number(bytes), number(connections))).unwrap_or_default()
}

/// Waits until so many rounds are over; whether they are.
fn reach(run: &Run, steward: &mut Process, rounds: usize) -> bool {
    let began = Instant::now();
    while run.events("round").len() < rounds {
        if began.elapsed() > PATIENCE || steward.wait_at_most(LOOK).is_some() {
            return false;
        }
    }
    true
}

/// The key of a directory, which its process holds open.
fn key_of(directory: &Path) -> Option<Identity> {
    let text = std::fs::read_to_string(directory.join("identity.key")).ok()?;
    Some(Identity::from_secret(&unhex(text.trim())?))
}

#[allow(clippy::print_stdout)]
fn say(text: &str) {
    println!("{text}");
}
