//! The outcome of a rehearsal as a page: `report.html`.

use std::path::Path;
use std::sync::Arc;

use muster_replica::archive::Archive;
use muster_replica::exit::{Failure, Outcome};
use muster_view::document::{Cell, Column, Document, Table};
use muster_view::plot::{Kind, Plot, Series, shown};
use muster_view::report::Report;
use muster_view::site::charts::{CHARTS, chart};
use muster_view::{Source, View};

use super::facts::{AttackFact, Facts, MemberFact};
use super::{account, caught};

/// Writes the page into the rehearsal's folder, beside `report.json`.
///
/// # Errors
/// [`Failure`] naming the file.
pub(super) fn write(facts: &Facts, archive: &Archive, folder: &Path, drill: bool) -> Outcome<()> {
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
    let report = Report { of: archive.manifest.name.to_string(), document: document(facts, drill), plots };
    report.write(folder).map_err(|error| Failure::environment(error.to_string()))
}

/// The chart of losses with the simple models, which were made of this text for the report.
fn compared(mut plot: Plot, facts: &Facts) -> Plot {
    if plot.title == "Loss" {
        let (unigram, bigram) = (facts.baselines.unigram, facts.baselines.bigram);
        plot.levels = vec![("unigram model".into(), unigram), ("bigram model".into(), bigram)];
    }
    plot
}

fn document(facts: &Facts, drill: bool) -> Document {
    let mut document = Document::titled(if drill { "Drill" } else { "Demo" });
    let right = if drill { caught::check(facts) } else { account::check(facts, false) };
    match right {
        Ok(()) => {
            let said = if drill { caught::conclusion(facts) } else { account::conclusion(facts) };
            document.lead.push(said.trim().to_owned());
        }
        Err(failure) => document.alarm = Some(failure.message),
    }
    document.fact("Run", Cell::of(&facts.run).looking("code"));
    document.fact("Rounds", Cell::of(facts.rounds.len()));
    document.fact("Seconds of the run", Cell::of(shown(facts.run_seconds.round())));
    if let Some(loss) = facts.held_out_loss {
        document.fact("Held-out loss", Cell::of(format!("{loss:.3} nats a byte")));
    }
    let simple = format!("bigram {:.3}, unigram {:.3}", facts.baselines.bigram, facts.baselines.unigram);
    document.fact("Simple models on the same text", Cell::of(simple));
    document.fact("Attackers begin in round", Cell::of(facts.attacked_from));
    document.fact("Final state", Cell::of(&facts.final_state_root).looking("code"));
    let replay = facts.replay_stopped.clone().unwrap_or_else(|| "agrees to the last bit".into());
    document.fact("Replay", Cell::of(replay));
    document.table("Attackers", attackers(facts));
    document.table("Members", members(facts));
    document.table("Bans", bans(facts));
    document
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
