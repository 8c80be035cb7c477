//! The outcome of a rehearsal as a page: `report.html`.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use muster_replica::archive::Archive;
use muster_replica::exit::{Failure, Outcome};
use muster_show::still;
use muster_view::document::{Cell, Column, Document, Table};
use muster_view::plot::{Kind, Mark, MarkKind, Plot, Series, shown};
use muster_view::report::Report;
use muster_view::site::charts::{CHARTS, chart};
use muster_view::{Source, View};

use super::cast::surroundings;
use super::facts::{AttackFact, Facts, MemberFact};
use super::rehearsal::Rehearsal;
use super::{account, caught};

/// Writes the page into the rehearsal's folder, beside `report.json`, and a picture of the board.
///
/// # Errors
/// [`Failure`] naming the file.
pub(super) fn write(facts: &Facts, archive: &Archive, folder: &Path, rehearsal: &Rehearsal) -> Outcome<()> {
    let source = Source::Whole(archive.records.clone());
    let view = View::start(archive.manifest.clone(), source, Some(archive.folder.clone()), None);
    view.compare(Arc::clone(&archive.dataset));
    view.read_whole().map_err(Failure::environment)?;
    let plots = {
        let story = view.story();
        CHARTS
            .iter()
            .filter_map(|name| Some(((*name).to_owned(), chart(&story, name)?)))
            .map(|(name, plot)| (name, compared(plot, facts)))
            .chain([("detections".to_owned(), detections(facts))])
            .collect()
    };
    let (of, document) = (archive.manifest.name.to_string(), document(facts, rehearsal.drill));
    let report = Report { of, document, before: 1, plots };
    report.write(folder).map_err(|error| Failure::environment(error.to_string()))?;
    let picture = still(&view, &surroundings(rehearsal), Duration::from_secs_f64(facts.run_seconds));
    let path = folder.join("board.svg");
    fs::write(&path, picture)
        .map_err(|error| Failure::environment(format!("{}: cannot be written ({error})", path.display())))
}

/// A chart with what only the rehearsal knows: when the attackers began, and the losses that it measured itself.
fn compared(mut plot: Plot, facts: &Facts) -> Plot {
    if plot.title == "Loss" {
        let (unigram, bigram) = (facts.baselines.unigram, facts.baselines.bigram);
        plot.levels = vec![("unigram model".into(), unigram), ("bigram model".into(), bigram)];
        let end = facts.rounds.last().map_or(0.0, |last| f64::from(last.round) + 1.0);
        let last = facts.held_out_loss.map(|loss| (end, loss));
        match plot.series.iter_mut().find(|series| series.name == "held out") {
            Some(series) => series
                .points
                .extend(last.filter(|(end, _)| series.points.last().is_none_or(|(x, _)| x < end))),
            None => {
                plot.series.extend(last.map(|last| Series { name: "held out".into(), points: vec![last] }))
            }
        }
    }
    let known = plot.marks.drain(..).filter(|mark| mark.kind != MarkKind::Cheat).collect::<Vec<_>>();
    let names: Vec<&str> = cheats(facts).map(|(member, _)| member.name.as_str()).collect();
    let began = (!names.is_empty()).then(|| Mark {
        at: facts.attacked_from.into(),
        kind: MarkKind::Cheat,
        text: format!("{} may cheat from here on", names.join(", ")),
    });
    plot.mark(known.into_iter().chain(began));
    plot
}

fn document(facts: &Facts, drill: bool) -> Document {
    let right = if drill { caught::check(facts) } else { account::check(facts, false) };
    let (banned, all) =
        (cheats(facts).filter(|(member, _)| facts.ban(member).is_some()).count(), cheats(facts).count());
    let honest = facts.members.iter().filter(|member| member.honest && facts.ban(member).is_some()).count();
    let mut document = Document::titled(match &right {
        Ok(()) if all == 0 => "Nobody cheated, and nobody was banned".to_owned(),
        Ok(()) => format!("{banned} of {all} attackers banned, and nobody else"),
        Err(_) => format!("{} not as it should be", if drill { "The drill is" } else { "The demo is" }),
    });
    match right {
        Ok(()) => {
            let said = if drill { caught::conclusion(facts) } else { account::conclusion(facts) };
            document.lead.push(said.trim().to_owned());
        }
        Err(failure) => document.alarm = Some(failure.message),
    }
    let found = |count: usize, good: bool| Cell::of(count).looking(if good { "good" } else { "bad" });
    document.fact(
        "Attackers banned",
        Cell { text: format!("{banned} of {all}"), ..found(banned, banned == all) },
    );
    document.fact("Honest members banned", found(honest, honest == 0));
    if let Some(loss) = facts.held_out_loss {
        document.fact("Held-out loss", Cell::of(format!("{loss:.3} nats a byte")));
    }
    let simple = format!("bigram {:.3}, unigram {:.3}", facts.baselines.bigram, facts.baselines.unigram);
    document.fact("Simple models on the same text", Cell::of(simple));
    document.fact(
        "Replay",
        match &facts.replay_stopped {
            None => Cell::of("agrees to the last bit").looking("good"),
            Some(what) => Cell::of(what).looking("waits"),
        },
    );
    document.fact(
        "Rounds",
        Cell::of(format!("{} in {} s", facts.rounds.len(), shown(facts.run_seconds.round()))),
    );
    document.fact("Attackers begin in round", Cell::of(facts.attacked_from));
    document.table("Attackers", attackers(facts));
    document.table("Members", members(facts));
    document.table("Bans", bans(facts));
    document.table("Names", names(facts));
    document
}

/// What the run and its outcome are called: for those who compare.
fn names(facts: &Facts) -> Table {
    let row = |name: &str, value: &String| vec![Cell::of(name), Cell::of(value).looking("code")];
    Table {
        id: "names".into(),
        caption: "Hashes of the run and of its last state".into(),
        head: Column::all(&["Name", "Hash"]),
        rows: vec![row("Run", &facts.run), row("Final state", &facts.final_state_root)],
        empty: "",
        pager: None,
    }
}

fn cheats(facts: &Facts) -> impl Iterator<Item = (&MemberFact, &AttackFact)> {
    facts.members.iter().filter_map(|member| Some((member, member.attack.as_ref()?)))
}

/// What attackers did before their ban, beside what the formula expects.
fn attackers(facts: &Facts) -> Table {
    let beside = |found: Option<usize>, expected: Option<f64>| {
        let found = found.map_or_else(|| "–".to_owned(), |found| found.to_string());
        Cell::of(expected.map_or_else(|| found.clone(), |expected| format!("{found} ({expected:.1})")))
    };
    let row = |(member, attack): (&MemberFact, &AttackFact)| {
        let counted = facts.cheating.iter().filter(|cheat| cheat.id == member.id);
        let left: Vec<f64> = counted.map(|cheat| cheat.factor).collect();
        let mean = left.iter().sum::<f64>() / left.len().max(1) as f64;
        let ban = facts.ban(member);
        vec![
            Cell::of(&member.name),
            Cell::of(&attack.promise),
            match ban {
                Some(ban) => {
                    Cell::of(format!("from round {}: {}", ban.effective, ban.finding)).looking("good")
                }
                None => Cell::of("no").looking(if attack.convictable { "bad" } else { "waits" }),
            },
            beside(attack.contributions, attack.contributions_expected),
            beside(Some(attack.audits), attack.audits_expected),
            Cell::of(left.len()),
            if left.is_empty() { Cell::of("–") } else { Cell::of(format!("{:.0} %", 100.0 * mean)) },
        ]
    };
    Table {
        id: "attackers".into(),
        caption: "Attackers, with what the formula expects in brackets".into(),
        head: Column::all(&[
            "Attacker",
            "Expected",
            "Banned",
            "#Bad contributions (expected)",
            "#Audits of them (expected)",
            "#Counted",
            "#The rule left",
        ]),
        rows: cheats(facts).map(row).collect(),
        empty: "Nobody cheated.",
        pager: None,
    }
}

fn members(facts: &Facts) -> Table {
    let all: u64 = facts.members.iter().map(|member| member.leaves_counted).sum();
    let row = |member: &MemberFact| {
        let share = 100.0 * member.leaves_counted as f64 / all.max(1) as f64;
        let same = member.final_state_root.as_ref() == Some(&facts.final_state_root);
        let ended = match (&member.final_state_root, facts.ban(member)) {
            (_, Some(ban)) => Cell::of(format!("banned from round {} on", ban.effective)).looking("bad"),
            (Some(_), None) if same => Cell::of("with the final state").looking("good"),
            (Some(_), None) => Cell::of("with another state").looking("bad"),
            (None, None) => Cell::of("without a state").looking("waits"),
        };
        vec![
            Cell::of(&member.name),
            Cell::of(if member.honest { member.role } else { "attacker" }),
            Cell::of(member.leaves_counted),
            Cell::of(format!("{share:.1} %")),
            ended,
            Cell::of(member.id.get(..16).unwrap_or_default()).looking("code"),
        ]
    };
    Table {
        id: "members".into(),
        caption: "The steward and the members".into(),
        head: Column::all(&["Member", "As", "#Leaves", "#Share", "Ended", "Key"]),
        rows: facts.members.iter().map(row).collect(),
        empty: "",
        pager: None,
    }
}

fn bans(facts: &Facts) -> Table {
    let row = |ban: &super::facts::BanFact| {
        vec![
            Cell::of(facts.name(&ban.id)),
            Cell::of(ban.finding),
            Cell::of(ban.round),
            Cell::of(ban.effective),
            Cell::of(facts.name(&ban.verifier)),
            Cell::of(format!("muster-verifier check run/evidence/{}.evidence", ban.evidence)).looking("code"),
        ]
    };
    Table {
        id: "bans".into(),
        caption: "Bans, with the command that re-executes each".into(),
        head: Column::all(&[
            "Member",
            "Found",
            "#Offence in round",
            "#Out from round",
            "Found by",
            "Check it",
        ]),
        rows: facts.bans.iter().map(row).collect(),
        empty: "Nobody was banned.",
        pager: None,
    }
}

/// Bad contributions until conviction, beside the formula.
fn detections(facts: &Facts) -> Plot {
    let points = |value: fn(&AttackFact) -> Option<f64>| {
        let all = cheats(facts).enumerate();
        all.filter_map(|(place, (_, attack))| Some((place as f64 + 1.0, value(attack)?))).collect::<Vec<_>>()
    };
    let found = points(|attack| attack.contributions.map(|count| count as f64));
    let expected = points(|attack| attack.contributions_expected);
    let names: Vec<String> = cheats(facts)
        .enumerate()
        .map(|(place, (member, _))| format!("{} is {}", place + 1, member.name))
        .collect();
    let series = [("found", found), ("expected by the formula", expected)]
        .map(|(name, points)| Series { name: name.into(), points });
    Plot {
        title: "Bad contributions up to the one that convicts".into(),
        notes: vec![format!(
            "{}. One run is one draw: its numbers scatter around what is expected.",
            names.join(", ")
        )],
        x: "attacker".into(),
        y: "contributions".into(),
        series: if names.is_empty() { Vec::new() } else { series.into() },
        kind: Kind::Points,
        ..Plot::default()
    }
}
