//! `muster drill --sweep`: the same drill at several values of one setting, harm beside price.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use muster_organise::config::Settings;
use muster_organise::create::vacant;
use muster_organise::rates::percent;
use muster_replica::exit::{Exit, Failure, Outcome};
use muster_view::document::{Cell, Column, Document, Table};
use muster_view::plot::{Kind, Plot, Series};
use muster_view::report::Report;
use muster_view::words::counted;
use serde::Serialize;

use super::facts::{AttackFact, Facts};
use super::interrupt::Interrupt;
use super::odds::Odds;
use super::rehearsal::{DrillOptions, Rehearsal, settings};
use super::swept::Sweep;
use super::{caught, stage};

/// What a drill at one value came to.
#[derive(Clone, Debug, Serialize)]
struct SweepPoint {
    /// The value.
    value: String,
    /// The folder of its drill, in that of the sweep.
    folder: String,
    /// Attackers and liars that evidence can convict.
    attackers: usize,
    /// How many of them were banned.
    banned: usize,
    /// Honest members that were banned.
    honest_banned: usize,
    /// Bad contributions that an attacker made until it was convicted or the run ended, on average.
    bad_contributions: Option<f64>,
    /// The same, to be expected.
    bad_contributions_expected: Option<f64>,
    /// False contributions that counted and stayed, each by what the robust rule left of it; none where no replay reached
    /// the end.
    counted: Option<f64>,
    /// Loss on the held-out text at the end, in nats a token.
    held_out_loss: Option<f64>,
    /// Training loss of the last round, in nats a token.
    last_loss: Option<f64>,
    /// Share of all leaves that these settings recompute: once members are no newcomers, and before the final rounds, whose
    /// contributions are all audited.
    recomputed: f64,
    /// Audits that the verifiers did.
    audits: u64,
    /// Seconds of a round: the median.
    round_seconds: f64,
    /// What was not as it should be.
    fault: Option<String>,
}

/// What is written down of a sweep.
#[derive(Serialize)]
struct SweepReport<'a> {
    setting: String,
    points: &'a [SweepPoint],
}

impl SweepPoint {
    fn of(value: &str, folder: String, odds: &Odds, facts: &Facts) -> Self {
        let convictable = || {
            let tried = |attack: &AttackFact| attack.escape_probability.is_some();
            facts.members.iter().filter(move |member| member.attack.as_ref().is_some_and(tried))
        };
        let attacks = || convictable().filter_map(|member| member.attack.as_ref());
        let honest = facts.members.iter().filter(|member| member.honest);
        let stayed = facts.cheating.iter().filter(|cheat| !facts.taken_back(cheat.round));
        let mut seconds: Vec<f64> = facts.rounds.iter().map(|round| round.seconds).collect();
        seconds.sort_by(f64::total_cmp);
        Self {
            value: value.to_owned(),
            folder,
            attackers: convictable().count(),
            banned: convictable().filter(|member| facts.ban(member).is_some()).count(),
            honest_banned: honest.filter(|member| facts.ban(member).is_some()).count(),
            bad_contributions: mean(attacks().filter_map(|attack| attack.made).map(|made| made as f64)),
            bad_contributions_expected: mean(attacks().filter_map(|attack| attack.made_expected)),
            counted: facts.replay_stopped.is_none().then(|| stayed.map(|cheat| cheat.factor).sum()),
            held_out_loss: facts.held_out_loss,
            last_loss: facts.rounds.last().map(|round| round.loss),
            recomputed: odds.recomputed(),
            audits: facts.members.iter().filter_map(|member| Some(member.duty?.done)).sum(),
            round_seconds: seconds.get(seconds.len() / 2).copied().unwrap_or_default(),
            fault: caught::check(facts).err().map(|failure| failure.message),
        }
    }

    fn cells(&self) -> [String; 9] {
        let number = |value: Option<f64>, digits: usize| {
            value.map_or_else(|| "–".to_owned(), |value| format!("{value:.digits$}"))
        };
        let bad =
            format!("{} ({})", number(self.bad_contributions, 1), number(self.bad_contributions_expected, 1));
        [
            self.value.clone(),
            format!("{} of {}", self.banned, self.attackers),
            bad,
            number(self.counted, 2),
            number(self.held_out_loss, 3),
            number(self.last_loss, 3),
            percent(self.recomputed),
            self.audits.to_string(),
            format!("{:.2}", self.round_seconds),
        ]
    }
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values.fold((0.0, 0), |(sum, count), value| (sum + value, count + 1));
    (count > 0).then(|| sum / f64::from(count))
}

/// A failure of the drill at a value.
fn at(setting: &str, value: &str, failure: &Failure) -> Failure {
    Failure { exit: failure.exit, message: format!("{setting} = {value}: {}", failure.message) }
}

/// The drills, none of them begun: a wrong value is found before hours of work.
fn rehearsals(sweep: &Sweep, options: &DrillOptions) -> Outcome<Vec<(String, Rehearsal)>> {
    let (name, template) = settings(options.config.as_deref())?;
    Settings::parse(Path::new(&name), &template)?;
    let setting = sweep.setting();
    let fixed = [
        ("training.rounds", options.rounds.is_some(), "--rounds"),
        ("admission.start_nodes", options.nodes.is_some(), "--nodes"),
        ("admission.start_verifiers", options.verifiers.is_some(), "--verifiers"),
    ];
    if let Some((_, _, option)) = fixed.iter().find(|(swept, given, _)| *swept == setting && *given) {
        let what = format!("--sweep {setting} and {option} set the same; leave {option} out");
        return Err(Failure::usage(what));
    }
    let rehearsal = |value: &String| {
        let folder = options.out.as_ref().map(|out| out.join(sweep.folder(value)));
        let options = DrillOptions { out: folder, ..options.clone() };
        let settings = sweep.settings(&name, &template, value)?;
        let named = format!("{name} with {setting} = {value}");
        let rehearsal = Rehearsal::of_settings(&options, &named, settings)?;
        stage::check(&rehearsal).map_err(|failure| at(&setting, value, &failure))?;
        Ok((value.clone(), rehearsal))
    };
    sweep.values().iter().map(rehearsal).collect()
}

/// Plays a drill for each value, and writes what they came to.
///
/// # Errors
/// [`Failure`]: of a wrong value before anything is played; negative where a drill did not end as it should.
pub(super) fn run(
    sweep: &Sweep,
    out: &Path,
    options: &DrillOptions,
    drawn: bool,
    say: &mut dyn FnMut(&str),
) -> Outcome<Exit> {
    vacant(out)?;
    let interrupt = Interrupt::listen()?;
    let rehearsals = rehearsals(sweep, options)?;
    let (setting, mut points) = (sweep.setting(), Vec::new());
    let mut ended = Ok(());
    for (value, rehearsal) in &rehearsals {
        say(&format!("{setting} = {value}: {}\n", counted(rehearsal.rounds, "round")));
        match stage::play(rehearsal, &interrupt, drawn) {
            Ok(facts) => points.push(SweepPoint::of(value, sweep.folder(value), &rehearsal.odds()?, &facts)),
            Err(failure) => {
                ended = Err(at(&setting, value, &failure));
                break;
            }
        }
        // After each of them: whoever ends a sweep early keeps what it has.
        write(out, &setting, &points)?;
    }
    if !points.is_empty() {
        say(&text(&setting, &points));
        say(&format!("\nplots and numbers: {}\n", out.join("report.html").display()));
    }
    ended?;
    let faults = points.iter().filter_map(|point| {
        let fault = point.fault.as_ref()?;
        Some(format!("{setting} = {}: {fault}", point.value))
    });
    let faults: Vec<String> = faults.collect();
    if faults.is_empty() {
        return Ok(Exit::Good);
    }
    Err(Failure { exit: Exit::Negative, message: faults.join("\n") })
}

const HEAD: [&str; 9] = [
    "value",
    "banned",
    "#bad contributions (exp)",
    "#counted",
    "#held-out loss",
    "#last loss",
    "#recomputed",
    "#audits",
    "#s a round",
];

/// A table for people.
fn text(setting: &str, points: &[SweepPoint]) -> String {
    let heads = HEAD.map(|head| head.trim_start_matches('#'));
    let rows: Vec<[String; 9]> = points.iter().map(SweepPoint::cells).collect();
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([heads[column].chars().count()]).max().unwrap_or_default()
    };
    let mut text = format!("\n{setting}\n");
    for row in std::iter::once(heads.map(str::to_owned)).chain(rows.iter().cloned()) {
        let cells: Vec<String> =
            row.iter().enumerate().map(|(column, cell)| format!("{cell:>0$}", width(column))).collect();
        // Writing to a string does not fail.
        let _ = writeln!(text, "{}", cells.join("  "));
    }
    text
}

fn write(out: &Path, setting: &str, points: &[SweepPoint]) -> Outcome<()> {
    let failed = |why: String| Failure::environment(format!("{}: cannot be written ({why})", out.display()));
    let report = SweepReport { setting: setting.to_owned(), points };
    let json = serde_json::to_string_pretty(&report).map_err(|error| failed(error.to_string()))?;
    fs::create_dir_all(out).map_err(|error| failed(error.to_string()))?;
    fs::write(out.join("report.json"), json + "\n").map_err(|error| failed(error.to_string()))?;
    let report = Report {
        before: 0,
        of: format!("sweep of {setting}"),
        document: document(setting, points),
        plots: plots(setting, points),
    };
    report.write(out).map_err(|error| failed(error.to_string()))
}

fn document(setting: &str, points: &[SweepPoint]) -> Document {
    let mut document = Document::titled(format!("Sweep of {setting}"));
    document.lead.push(format!(
        "The same drill at {} values: what cheating did, and what finding it cost.",
        points.len()
    ));
    let faults: Vec<&str> = points.iter().filter_map(|point| point.fault.as_deref()).collect();
    document.alarm = (!faults.is_empty()).then(|| faults.join("; "));
    let row = |point: &SweepPoint| {
        let mut cells: Vec<Cell> = point.cells().into_iter().map(Cell::of).collect();
        cells[0] = Cell::of(&point.value).to(format!("{}/report.html", point.folder));
        cells[1].look = if point.banned == point.attackers { "good" } else { "waits" };
        cells
    };
    document.table(
        "Values",
        Table {
            id: "values".into(),
            caption: "Harm and price at each value, with what the formula expects in brackets".into(),
            head: Column::all(&HEAD),
            rows: points.iter().map(row).collect(),
            empty: "None.",
            pager: None,
        },
    );
    document
}

/// Harm and price by the value; where values are no numbers, by their place.
fn plots(setting: &str, points: &[SweepPoint]) -> Vec<(String, Plot)> {
    let numbers: Option<Vec<f64>> = points.iter().map(|point| point.value.parse().ok()).collect();
    let places = || (1..=points.len()).map(|place| place as f64).collect();
    let notes = numbers.is_none().then(|| {
        let names =
            points.iter().enumerate().map(|(place, point)| format!("{} is {}", place + 1, point.value));
        format!("{}.", names.collect::<Vec<_>>().join(", "))
    });
    let xs: Vec<f64> = numbers.unwrap_or_else(places);
    let kind = if notes.is_some() { Kind::Points } else { Kind::Lines };
    let series = |name: &str, of: &dyn Fn(&SweepPoint) -> Option<f64>| {
        let mut points: Vec<(f64, f64)> =
            xs.iter().zip(points).filter_map(|(x, point)| Some((*x, of(point)?))).collect();
        points.sort_by(|one, two| one.0.total_cmp(&two.0));
        Series { name: name.into(), points }
    };
    let plot = |title: &str, y: &str, more: &str, series: Vec<Series>| Plot {
        title: title.into(),
        notes: [more.to_owned()].into_iter().chain(notes.clone()).collect(),
        x: setting.into(),
        y: y.into(),
        series,
        kind,
        ..Plot::default()
    };
    let harm = plot(
        "Harm",
        "contributions",
        "Bad contributions of an attacker until it is convicted or the run ends, on average; and how many of all attackers \
         counted, each by what the robust rule left of it.",
        vec![
            series("until convicted", &|point| point.bad_contributions),
            series("the formula", &|point| point.bad_contributions_expected),
            series("counted", &|point| point.counted),
        ],
    );
    let loss = plot(
        "Loss",
        "nats a token",
        "At the end of the run.",
        vec![
            series("held out", &|point| point.held_out_loss),
            series("training, last round", &|point| point.last_loss),
        ],
    );
    let price = plot(
        "Price",
        "% of all leaves",
        "The share of all leaves that these settings recompute, once members are no newcomers and before the final rounds, whose \
         contributions are all audited.",
        vec![series("recomputed", &|point| Some(100.0 * point.recomputed))],
    );
    let time = plot(
        "Time",
        "seconds",
        "The median round, on this machine, with every member and verifier on it.",
        vec![series("a round", &|point| Some(point.round_seconds))],
    );
    let named = |name: &str, plot| (name.to_owned(), plot);
    vec![named("harm", harm), named("loss", loss), named("price", price), named("time", time)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(value: &str) -> SweepPoint {
        SweepPoint {
            value: value.into(),
            folder: format!("share-{value}"),
            attackers: 2,
            banned: 1,
            honest_banned: 0,
            bad_contributions: Some(7.5),
            bad_contributions_expected: Some(8.0),
            counted: Some(3.25),
            held_out_loss: Some(2.5),
            last_loss: Some(2.25),
            recomputed: 0.0125,
            audits: 40,
            round_seconds: 0.5,
            fault: None,
        }
    }

    #[test]
    fn the_report_has_plots_and_a_table() {
        let directory = tempfile::tempdir().unwrap();
        let points = [point("0.05"), point("0.2")];
        write(directory.path(), "audit.share", &points).unwrap();
        let page = fs::read_to_string(directory.path().join("report.html")).unwrap();
        for words in ["Harm", "Price", "share-0.05/report.html", "7.5 (8.0)", "1 of 2", "1.2 %"] {
            assert!(page.contains(words), "{words}: {page}");
        }
        let csv = fs::read_to_string(directory.path().join("data/harm.csv")).unwrap();
        assert_eq!(csv, "audit.share,until convicted,the formula,counted\n0.05,7.5,8,3.25\n0.2,7.5,8,3.25\n");
        assert!(text("audit.share", &points).contains("1 of 2"));
        let words = plots("aggregation.rule", &[point("mean"), point("median")]);
        assert_eq!(words[0].1.notes[1], "1 is mean, 2 is median.");
    }
}
