//! Long simulations, and the tables of `spec/harm-tables.md`.
//!
//! - `simulate detection [--seed N] [--rounds N]`: how long cheats last beside the formulas; a million audits
//!   of leaves, and a million of segments;
//! - `simulate attack NAME … [--nodes N] [--rounds N] [--from N] [--seed N] [--rule NAME] [--verifiers N] [--share F]`:
//!   one run with these cheats, of a mixture where one of them is on experts;
//! - `simulate cases [--seeds N] [--first N]`: whether any audit is lost where everybody fails at random, the steward is
//!   killed now and then, and states go back (AUDIT-26);
//! - `simulate capture`: how often attackers are dealt half of a row's places, beside the hypergeometric tail;
//! - `simulate crowd [--nodes N] [--rows N] [--rounds N] [--seed N]`: one run of so many members on so many rows;
//! - `simulate waits report.json … [--write]`: how long the bans of drills took, and that of `spec/harm-tables.md`;
//! - `simulate table [NAME …] [--write]`: the tables of `spec/harm-tables.md`, or those named; `--write` puts them there.
//!
//! Each of them takes `--report DIR`: `report.html`, the numbers of its charts, and `report.json` go there.

#![allow(clippy::print_stderr)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use e2e::cases;
use e2e::harm::{self, detection};
use e2e::sim::{Experts, Longest, Plan, Player, Report, Sim, cast, mixture};
use e2e::told::{Ended, Told};
use muster_core::ids::Round;
use muster_core::limits;
use muster_core::manifest::fixture::local;
use muster_core::manifest::{Manifest, Rule};
use muster_core::messages::record::Body;
use muster_rehearse::attack::Attack;
use muster_view::plot::{Plot, Series};

type Failure = Box<dyn std::error::Error>;

const USAGE: &str = "simulate detection | attack NAME … | cases [--seeds N] [--first N] | capture | crowd | waits report.json … | table [NAME …] [--write]; each with --report DIR; see the head of tests/src/bin/simulate.rs";

fn main() -> ExitCode {
    match simulate(std::env::args().skip(1).collect()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(failure) => {
            eprintln!("{failure}");
            ExitCode::from(2)
        }
    }
}

/// Runs a command and writes its report, if one is wanted; whether every check held.
fn simulate(mut arguments: Vec<String>) -> Result<bool, Failure> {
    let (begun, mut told) = (Instant::now(), Told::default());
    let report: PathBuf = taken(&mut arguments, "--report", PathBuf::new())?;
    if report != Path::new("") {
        // Before hours of work, not after.
        fs::create_dir_all(&report).map_err(|error| format!("--report {}: {error}", report.display()))?;
    }
    let command = arguments.clone();
    let good = run(arguments, &mut told)?;
    let seconds = begun.elapsed().as_secs_f64();
    told.say(&format!("\n{seconds:.0} s"));
    if report != Path::new("") {
        told.write(&report, &Ended { command, good, seconds })?;
    }
    Ok(good)
}

/// Runs a command; whether every check held.
fn run(mut arguments: Vec<String>, told: &mut Told) -> Result<bool, Failure> {
    let command = if arguments.is_empty() { String::new() } else { arguments.remove(0) };
    match command.as_str() {
        "detection" => {
            let seed = taken(&mut arguments, "--seed", 1)?;
            let rounds = taken(&mut arguments, "--rounds", detection::ROUNDS)?;
            nothing_left(&arguments)?;
            let mut all = true;
            for chained in [false, true] {
                all &= detection::report(seed, rounds, chained, told);
            }
            Ok(all)
        }
        "attack" => attack(arguments, told),
        "cases" => {
            let seeds: u64 = taken(&mut arguments, "--seeds", 1000)?;
            let first: u64 = taken(&mut arguments, "--first", 1)?;
            nothing_left(&arguments)?;
            Ok(cases(first, seeds, told))
        }
        "capture" => {
            nothing_left(&arguments)?;
            let (text, good) = harm::capture::report();
            told.say(&format!("{text}\n{}", harm::capture::shop()));
            Ok(good)
        }
        "crowd" => crowd(arguments, told),
        "waits" => {
            let write = arguments.iter().position(|argument| argument == "--write");
            write.into_iter().for_each(|place| drop(arguments.remove(place)));
            let text = harm::waits::table(&arguments)?;
            told.say(&text);
            if write.is_some() {
                harm::write("waits", &text)?;
            }
            Ok(true)
        }
        "table" => {
            let write = arguments.iter().position(|argument| argument == "--write");
            write.into_iter().for_each(|place| drop(arguments.remove(place)));
            let wanted = |name: &str| arguments.is_empty() || arguments.iter().any(|wanted| wanted == name);
            for (name, make) in harm::TABLES.into_iter().filter(|(name, _)| wanted(name)) {
                let text = make();
                told.say(&format!("{name}\n\n{text}"));
                if write.is_some() {
                    harm::write(name, &text)?;
                }
            }
            Ok(true)
        }
        _ => Err(USAGE.into()),
    }
}

/// Simulates seeds, a hundred at a time, and prints the totals.
fn cases(first: u64, seeds: u64, told: &mut Told) -> bool {
    let (mut all, mut good) = (cases::Tally::default(), true);
    for from in (first..first + seeds).step_by(100) {
        let tally = cases::tally(from..(from + 100).min(first + seeds));
        for (seed, fault) in &tally.faults {
            told.say(&format!("seed {seed}: {fault}"));
            good = false;
        }
        all.runs += tally.runs;
        all.silences += tally.silences;
        all.idles += tally.idles;
        all.bans += tally.bans;
        all.restarts += tally.restarts;
        all.node_restarts += tally.node_restarts;
        all.rewinds += tally.rewinds;
        all.ready += tally.ready;
        all.late_steps += tally.late_steps;
        if tally.longest.time > all.longest.time {
            all.worst = tally.worst;
        }
        all.longest = all.longest.or(tally.longest);
        eprint!("\r{} of {seeds} runs", all.runs);
    }
    eprintln!();
    let Longest { rounds, time } = all.longest;
    told.say(&format!(
        "{} runs, {} silences, {} idle verifiers, {} bans, {} restarts of the steward and {} of nodes, {} rewinds, {} rows taken up and {} \
         steps of rows that had waited: no case was lost; the longest were open for {rounds} rounds and for {:.1} s (seed {})",
        all.runs,
        all.silences,
        all.idles,
        all.bans,
        all.restarts,
        all.node_restarts,
        all.rewinds,
        all.ready,
        all.late_steps,
        time as f64 / 1e3,
        all.worst
    ));
    good
}

/// Runs many members on many rows, and prints what became of the rows.
fn crowd(mut arguments: Vec<String>, told: &mut Told) -> Result<bool, Failure> {
    let nodes: usize = taken(&mut arguments, "--nodes", 1000)?;
    let rows: u16 = taken(&mut arguments, "--rows", 64)?;
    let rounds: u32 = taken(&mut arguments, "--rounds", 8)?;
    let seed = taken(&mut arguments, "--seed", 1)?;
    nothing_left(&arguments)?;
    let plan = Plan::new(seed, rounds, vec![Player::honest(); nodes]);
    let change = |manifest: &mut Manifest| {
        (manifest.model.width, manifest.model.sequence) = (8, 8);
        manifest.admission.most_members = 4096;
    };
    let experts = Some(Experts::new(rows));
    let mut sim = Sim::new(Plan { verifiers: 4, leaves: 1, share_ppm: 20_000, change, experts, ..plan });
    sim.run(24 * 3_600_000);
    let (mut seated, mut trained) = (BTreeSet::new(), BTreeSet::new());
    for record in sim.records() {
        let Body::Outcome(outcome) = &record.body else { continue };
        if outcome.state.rows() > 1 {
            seated.extend(outcome.seats.iter().map(|seat| seat.member));
            trained.extend(outcome.seats.iter().map(|seat| seat.row));
        }
        let mut seats = BTreeMap::<u16, usize>::new();
        outcome.seats.iter().for_each(|seat| *seats.entry(seat.row.0).or_default() += 1);
        let (least, most) = (seats.values().min(), seats.values().max());
        told.say(&format!(
            "round {}: {} seats in {} rows, {} to {} in each; {} rows took a step",
            outcome.round.next(),
            outcome.seats.len(),
            seats.len(),
            least.unwrap_or(&0),
            most.unwrap_or(&0),
            outcome.steps.len(),
        ));
    }
    let (report, seconds) = (sim.report(), sim.now() as f64 / 1e3);
    told.say(&format!(
        "{} members had seats in {} rows; {} audits, {} silences, {} bans, {seconds:.0} virtual seconds",
        seated.len(),
        trained.len(),
        report.audits,
        report.silences,
        report.convictions.len()
    ));
    // Members take turns where they are more than the seats (LEDGER-14).
    let turns = (rounds as usize).saturating_sub(3) * limits::SEATS;
    let all = turns < nodes || seated.len() == nodes;
    Ok(all && trained.len() == usize::from(rows) && report.convictions.is_empty())
}

fn attack(mut arguments: Vec<String>, told: &mut Told) -> Result<bool, Failure> {
    let nodes: usize = taken(&mut arguments, "--nodes", 8)?;
    let seed = taken(&mut arguments, "--seed", 1)?;
    let rounds = taken(&mut arguments, "--rounds", 60)?;
    let from = Round(taken(&mut arguments, "--from", 20)?);
    let rule = match taken(&mut arguments, "--rule", String::from("centered-clip"))?.as_str() {
        "centered-clip" => Rule::CenteredClip,
        "mean" => Rule::Mean,
        "median" => Rule::Median,
        other => return Err(format!("no rule {other:?}").into()),
    };
    let verifiers = taken(&mut arguments, "--verifiers", 1)?;
    let share: f64 = taken(&mut arguments, "--share", 0.5)?;
    let attacks: Vec<Attack> = arguments.iter().map(|name| name.parse()).collect::<Result<_, _>>()?;
    if attacks.len() >= nodes {
        return Err("more cheats than nodes".into());
    }
    let plan = Plan::new(seed, rounds, cast(nodes, &attacks, from, seed));
    let share_ppm = (share * 1e6) as u32;
    // An attack finds what it lies about: experts, or local updates.
    let change: fn(&mut Manifest) = match &attacks[..] {
        some if some.iter().any(Attack::wants_experts) => mixture,
        some if some.iter().any(Attack::wants_local) => |manifest| local(manifest, 2),
        _ => plan.change,
    };
    let report = Sim::new(Plan { rule, verifiers, share_ppm, change, ..plan }).finish();
    tell(&report, seed, told);
    Ok(report.false_bans() == 0)
}

/// Says how a run ended.
fn tell(report: &Report, seed: u64, told: &mut Told) {
    let losses = report.losses.iter().enumerate().map(|(round, loss)| (round as f64, *loss)).collect();
    let rounds = report.losses.iter().enumerate();
    let lines: Vec<String> =
        rounds.map(|(round, loss)| format!("round {round}: held-out loss {loss:.3}")).collect();
    told.say(&format!("seed {seed}\n{}", lines.join("\n")));
    told.plot("loss", plot("Loss on the held-out text", "nats a token", [("held out".to_owned(), losses)]));
    for left in &report.left {
        told.say(&format!(
            "round {}: node {} counts with {} bad leaves, the rule leaves {:.0} %",
            left.round,
            left.node,
            left.leaves,
            100.0 * left.factor
        ));
    }
    let cheats: BTreeSet<usize> = report.left.iter().map(|left| left.node).collect();
    let of = |node: usize| {
        let left = report.left.iter().filter(move |left| left.node == node);
        (format!("node {node}"), left.map(|left| (f64::from(left.round.0), 100.0 * left.factor)).collect())
    };
    let title = "What the robust rule left of false contributions";
    told.plot("left", plot(title, "%", cheats.into_iter().map(of)));
    for ban in &report.convictions {
        let deserved = if ban.deserved { "" } else { ", FALSELY" };
        told.say(&format!(
            "node {} is banned from round {} on for a {} in round {}, after {} audits{deserved}",
            ban.node,
            ban.effective,
            ban.finding.words(),
            ban.round,
            ban.audited.len()
        ));
    }
    told.say(&format!(
        "{} audits, {} passed, {} silences, {} accusations dismissed",
        report.audits, report.verdicts, report.silences, report.dismissed
    ));
    told.say(&format!("final state {:#}\ntrace       {:#}", report.root, report.trace));
}

/// A chart by round.
fn plot(title: &str, y: &str, lines: impl IntoIterator<Item = (String, Vec<(f64, f64)>)>) -> Plot {
    let series = lines.into_iter().map(|(name, points)| Series { name, points }).collect();
    Plot { title: title.into(), x: "round".into(), y: y.into(), series, ..Plot::default() }
}

/// Takes `--name value` out of the arguments.
fn taken<T: std::str::FromStr>(arguments: &mut Vec<String>, name: &str, default: T) -> Result<T, Failure> {
    let Some(place) = arguments.iter().position(|argument| argument == name) else { return Ok(default) };
    arguments.remove(place);
    if place >= arguments.len() {
        return Err(format!("{name} needs a value").into());
    }
    let value = arguments.remove(place);
    value.parse().map_err(|_| format!("{name} {value}: not understood").into())
}

fn nothing_left(arguments: &[String]) -> Result<(), Failure> {
    if arguments.is_empty() { Ok(()) } else { Err(format!("{arguments:?}: not understood; {USAGE}").into()) }
}
