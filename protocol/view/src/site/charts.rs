//! The charts of a run, by name.

use super::Site;
use crate::plot::{Kind, Mark, MarkKind, Plot, Series};
use crate::story::{RoundLine, Story};

/// Rounds over which a jagged line is averaged.
const SMOOTH: usize = 8;
/// Members whose weight has a line of its own.
const LINES: usize = 7;

/// Names of all charts.
pub const CHARTS: [&str; 6] = ["loss", "speed", "phases", "bytes", "weight", "audits"];

impl Site {
    /// A chart by its name.
    pub(super) fn chart(&self, name: &str) -> Option<Plot> {
        let story = self.view().story();
        chart(&story, name)
    }
}

/// A chart of a run, by its name.
pub fn chart(story: &Story, name: &str) -> Option<Plot> {
    let mut plot = match name {
        "loss" => loss(story),
        "speed" => speed(story),
        "phases" => phases(story),
        "bytes" => bytes(story),
        "weight" => weight(story),
        "audits" => audits(story),
        _ => return None,
    };
    plot.mark(marks(story));
    Some(plot)
}

/// What happened in a run that explains its lines.
fn marks(story: &Story) -> Vec<Mark> {
    let mark = |round: u32, kind, text| Mark { at: f64::from(round), kind, text };
    let name = |place: usize| story.members.get(place).map_or("a member", |member| member.called());
    let called = |id: &str| story.member(id).map_or("a member", |member| member.called()).to_owned();
    let cheats = story.first_false().into_iter().map(|(place, round)| {
        mark(round, MarkKind::Cheat, format!("{}: the first work that was found to be false", name(place)))
    });
    let bans = story.bans.iter().map(|ban| {
        let text = format!("{} is banned: {} in round {}", called(&ban.member), ban.finding, ban.round);
        mark(ban.effective, MarkKind::Ban, text)
    });
    let restarts = story.restarts.iter().map(|(round, who)| {
        mark(*round, MarkKind::Restart, format!("{} is back", who.as_deref().unwrap_or("the steward")))
    });
    let rewinds = story
        .rewinds
        .iter()
        .map(|(round, to)| mark(*round, MarkKind::Rewind, format!("back to the state before round {to}")));
    let all = cheats.chain(bans).chain(restarts).chain(rewinds);
    // A program that starts with the run starts for the first time.
    all.filter(|mark| mark.kind != MarkKind::Restart || mark.at > 0.0).collect()
}

fn by_round(story: &Story, value: impl Fn(&RoundLine) -> Option<f64>) -> Vec<(f64, f64)> {
    story.rounds.iter().filter_map(|line| Some((f64::from(line.round), value(line)?))).collect()
}

fn named(name: &str, points: Vec<(f64, f64)>) -> Option<Series> {
    (!points.is_empty()).then(|| Series { name: name.into(), points })
}

fn loss(story: &Story) -> Plot {
    let training = named("training", by_round(story, |line| (line.leaves > 0).then_some(line.loss)));
    let held = story.held_out.iter().map(|(round, loss)| (f64::from(*round), *loss)).collect();
    let levels = story.baselines.map(|baselines| {
        vec![("unigram model".to_owned(), baselines.unigram), ("bigram model".to_owned(), baselines.bigram)]
    });
    Plot {
        title: "Loss".into(),
        notes: vec![
            "Members claim the training loss of their leaves; verifiers check it in each leaf that they recompute.".into(),
        ],
        x: "round".into(),
        y: "nats a token".into(),
        series: training.into_iter().chain(named("held out", held)).collect(),
        levels: levels.unwrap_or_default(),
        ..Plot::default()
    }
}

fn speed(story: &Story) -> Plot {
    let of = |line: &RoundLine| line.phases.seconds.map(|seconds| line.tokens as f64 / seconds.max(1e-3));
    Plot {
        title: "Tokens a second".into(),
        notes: Vec::new(),
        x: "round".into(),
        y: "tokens/s".into(),
        series: named("counted tokens", by_round(story, of)).into_iter().collect(),
        ..Plot::default()
    }
}

fn phases(story: &Story) -> Plot {
    let phase = |name: &str, place: usize| {
        named(name, by_round(story, |line| line.phases.parts().map(|parts| parts[place])))
    };
    let all = [phase("compute", 0), phase("exchange", 1), phase("combine and apply", 2)];
    Plot {
        title: "Where the time goes".into(),
        notes: vec!["Seconds of each phase of a round, on each other, as this program saw them.".into()],
        x: "round".into(),
        y: "seconds".into(),
        series: all.into_iter().flatten().collect(),
        kind: Kind::Areas,
        ..Plot::default()
    }
}

fn bytes(story: &Story) -> Plot {
    let of = |line: &RoundLine| line.bytes.map(|bytes| bytes as f64);
    Plot {
        title: "Bytes between members".into(),
        notes: Vec::new(),
        x: "round".into(),
        y: "bytes a round".into(),
        series: named("contributions and results", by_round(story, of)).into_iter().collect(),
        ..Plot::default()
    }
}

/// Shares of the weight: of those who are banned first, then of those who did most.
fn weight(story: &Story) -> Plot {
    let mut order: Vec<usize> =
        (0..story.members.len()).filter(|place| story.members[*place].rounds > 0).collect();
    order.sort_by_key(|place| {
        let member = &story.members[*place];
        (member.standing != "banned", std::cmp::Reverse(member.leaves))
    });
    order.truncate(LINES);
    let lines = order.into_iter().map(|place| {
        let member = &story.members[place];
        let mark = if member.standing == "banned" { " (banned)" } else { "" };
        let share = |line: &RoundLine| {
            let all: u32 = line.counted.iter().map(|share| share.weight).sum();
            let own = line.counted.iter().find(|share| share.member as usize == place);
            Some(100.0 * f64::from(own.map_or(0, |own| own.weight)) / f64::from(all.max(1)))
        };
        // Names are not unique, and others' keys may be one.
        let key = member.short.get(..8).unwrap_or_default();
        let name = if member.name.is_empty() { key.to_owned() } else { format!("{} {key}", member.name) };
        Series { name: format!("{name}{mark}"), points: by_round(story, share) }
    });
    let series: Vec<Series> = lines.collect();
    let note = format!(
        "Share of a round's weight, of {} of {} nodes that counted: banned ones first, then those with most leaves.",
        series.len(),
        story.members.iter().filter(|member| member.rounds > 0).count()
    );
    Plot {
        title: "Weight".into(),
        notes: vec![note],
        x: "round".into(),
        y: "% of the weight".into(),
        series,
        ..Plot::default()
    }
}

fn audits(story: &Story) -> Plot {
    let mut rounds: std::collections::BTreeMap<u32, [f64; 2]> = std::collections::BTreeMap::new();
    for line in story.audits.lines() {
        use crate::story::AuditState::{Accused, Banned, Passed};
        let counts = rounds.entry(line.round).or_default();
        match line.state {
            Passed => counts[0] += 1.0,
            Accused | Banned => counts[1] += 1.0,
            _ => {}
        }
    }
    let of = |place: usize| {
        let mut sum = 0.0;
        let counts = rounds.iter().map(|(round, counts)| {
            sum += counts[place];
            (f64::from(*round), sum)
        });
        counts.collect::<Vec<_>>()
    };
    Plot {
        title: "Audits".into(),
        notes: Vec::new(),
        x: "round".into(),
        y: "audits so far".into(),
        series: [named("passed", of(0)), named("guilty", of(1))].into_iter().flatten().collect(),
        ..Plot::default()
    }
}

/// The mean of the last rounds' losses, and of those before them.
pub(super) fn recent_loss(story: &Story) -> Option<(f64, Option<f64>)> {
    let losses: Vec<f64> = story.rounds.iter().filter(|line| line.leaves > 0).map(|line| line.loss).collect();
    let mean = |losses: &[f64]| losses.iter().sum::<f64>() / losses.len() as f64;
    let last = losses.len().checked_sub(SMOOTH.min(losses.len())).filter(|_| !losses.is_empty())?;
    let before = last.checked_sub(SMOOTH).map(|from| mean(&losses[from..last]));
    Some((mean(&losses[last..]), before))
}
