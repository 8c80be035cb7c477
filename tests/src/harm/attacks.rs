//! Attack by rule by audits: final loss, who is blamed for what and when, false bans.

use std::collections::BTreeSet;

use muster_core::codec::Real;
use muster_core::ids::Round;
use muster_core::manifest::fixture::local;
use muster_core::manifest::{Manifest, Rule};
use muster_rehearse::attack::{ATTACKS, Attack, Wrong};

use super::cells::{SEEDS, about, banned, beside, false_bans, left, markdown, mean, settled_loss};
use crate::parallel::in_parallel;
use crate::sim::{Plan, Report, Sim, cast, mixture};

const NODES: usize = 7;
const CHEATS: usize = 2;
const ROUNDS: u32 = 30;
const FROM: Round = Round(10);

/// Leaves of a contribution, and of those recomputed in an audit: as [`Plan::new`] has them.
const LEAVES: (u32, u32) = (2, 1);

/// A rule of a table, what a manifest says for it, and its name for people.
pub type Column = (Rule, fn(&mut Manifest), &'static str);

/// The rule that runs have, and the two ends that it stands between.
pub const RULES: [Column; 3] = [
    (Rule::CenteredClip, |_| (), "centred clip"),
    (Rule::Mean, |_| (), "mean"),
    (Rule::Median, |_| (), "median"),
];

/// The same, where the model is a mixture.
const OF_MIXTURES: [Column; 3] = [
    (Rule::CenteredClip, mixture, "centred clip"),
    (Rule::Mean, mixture, "mean"),
    (Rule::Median, mixture, "median"),
];

/// The same with local updates: as many segments as [`LEAVES`] says.
const OF_LOCAL: [Column; 3] = [
    (Rule::CenteredClip, locally, "centred clip"),
    (Rule::Mean, locally, "mean"),
    (Rule::Median, locally, "median"),
];

fn locally(manifest: &mut Manifest) {
    local(manifest, LEAVES.0);
}

/// What honest members' blocks are apart here, in grid units a leaf.
const RADIUS: f32 = 10_000.0;

/// The others that a manifest can name.
const OTHERS: [Column; 6] = [
    (Rule::TrimmedMean, two_of_seven, "trimmed mean"),
    (Rule::GeometricMedian, two_of_seven, "geometric median"),
    (Rule::Krum, two_of_seven, "Krum"),
    (Rule::MultiKrum, two_of_seven, "Multi-Krum"),
    (Rule::FixedRadiusClip, fixed_radius, "fixed-radius clip"),
    (Rule::Mean, mixed, "mixing, then mean"),
];

fn fixed_radius(manifest: &mut Manifest) {
    manifest.aggregation.radius = Real::new(RADIUS).expect("a finite constant");
}

fn two_of_seven(manifest: &mut Manifest) {
    manifest.aggregation.assumed_ppm = 290_000;
}

fn mixed(manifest: &mut Manifest) {
    two_of_seven(manifest);
    manifest.aggregation.mixing = true;
}

struct Job {
    attack: Option<Attack>,
    column: Column,
    audited: bool,
    seed: u64,
}

impl Job {
    fn plan(&self) -> Plan {
        let cheats: Vec<Attack> = self.attack.into_iter().cycle().take(CHEATS).collect();
        let cheats = if self.attack.is_some() { cheats } else { Vec::new() };
        let plan = Plan::new(self.seed, ROUNDS, cast(NODES, &cheats, FROM, self.seed));
        // A verifier that spares the cheats instead of none: the same manifest, and so the same initial state.
        let (rule, change, _) = self.column;
        Plan { rule, change, verifiers: 1, friends: u16::from(!self.audited), ..plan }
    }
}

/// The runs of one attack: for each column those without audits, then those with.
struct Row<'a> {
    attack: Option<Attack>,
    runs: &'a [(Report, Plan)],
    clean: &'a [(Report, Plan)],
}

const CELL: usize = SEEDS as usize;

impl Row<'_> {
    fn name(&self) -> String {
        self.attack.map_or("none".into(), |attack| format!("`{}`", attack.name))
    }

    /// What runs lose beside those without cheats, without audits → with; what those without cheats lose, in their row.
    fn losses(&self) -> impl Iterator<Item = String> {
        let loss = |(report, _): &(Report, Plan)| settled_loss(report);
        let more = move |runs: &[(Report, Plan)], clean: &[(Report, Plan)]| {
            beside(runs.iter().zip(clean).map(|(run, clean)| loss(run) - loss(clean)))
        };
        self.runs.chunks(2 * CELL).zip(self.clean.chunks(2 * CELL)).map(move |(runs, clean)| {
            match self.attack {
                Some(_) => [0, CELL].map(|at| more(&runs[at..at + CELL], &clean[at..at + CELL])).join(" → "),
                None => about(runs[..CELL].iter().map(loss)),
            }
        })
    }

    fn audited(&self) -> impl Iterator<Item = &(Report, Plan)> + Clone {
        self.runs.iter().filter(|(_, plan)| plan.friends == 0)
    }

    /// Rounds to the last ban under each rule in turn.
    fn rounds(&self) -> String {
        let by_rule = self.runs.chunks(2 * CELL).map(|runs| banned(&runs[CELL..], FROM));
        let by_rule: Vec<String> = by_rule.collect();
        if by_rule.iter().all(|rounds| rounds == &by_rule[0]) {
            return by_rule[0].clone();
        }
        by_rule.join("; ")
    }

    /// Audits of bad contributions until the one that convicted, of all cheats under all rules, beside the formula's; wrong
    /// blocks where drawn blocks decide, and what does where neither has to be drawn.
    fn audits(&self) -> String {
        let Some(betrayal) = self.attack.map(|attack| attack.betrayal) else { return "–".into() };
        let Some(found) = betrayal.wrong.found(LEAVES.0, LEAVES.1) else {
            return match betrayal.wrong {
                Wrong::Block => self.blocks(),
                Wrong::Words => "none: two signatures".into(),
                Wrong::Part => "none: struck before the seal".into(),
                _ => "none".into(),
            };
        };
        let bad = |round: &Round| *round >= FROM && betrayal.rhythm.bad(round.0 - FROM.0);
        let bans =
            self.audited().flat_map(|(report, _)| report.convictions.iter().filter(|ban| ban.deserved));
        let counts: Vec<f64> = bans
            .map(|ban| ban.audited.iter().filter(|round| **round <= ban.round && bad(round)).count() as f64)
            .collect();
        format!("{:.1}, {:.1}", 1.0 / found, mean(&counts))
    }

    /// Wrong blocks that were applied, up to the round of the offence, for each conviction, beside 1/blocks_ppm: those of
    /// cheats that were not found count, too.
    fn blocks(&self) -> String {
        let (mut wrong, mut convictions, mut share) = (0, 0, 0.0);
        for (report, plan) in self.audited() {
            let last = |node: usize| {
                let ban = report.convictions.iter().find(|ban| ban.node == node && ban.deserved);
                ban.map_or(Round(ROUNDS), |ban| ban.round)
            };
            let counted = report.wrong_parts.iter().filter(|part| part.round <= last(part.node));
            wrong += counted.map(|part| part.blocks).sum::<usize>();
            convictions += report.convictions.iter().filter(|ban| ban.deserved).count();
            share = plan.block_share();
        }
        format!("{:.1}, {:.1} blocks", 1.0 / share, wrong as f64 / convictions as f64)
    }

    fn findings(&self) -> String {
        if let Some(Wrong::Nothing(why)) = self.attack.map(|attack| attack.betrayal.wrong) {
            return format!("nothing: {why}");
        }
        let bans =
            self.audited().flat_map(|(report, _)| report.convictions.iter().filter(|ban| ban.deserved));
        let findings: BTreeSet<&str> = bans.map(|ban| ban.finding.words()).collect();
        if findings.is_empty() { "–".into() } else { findings.into_iter().collect::<Vec<_>>().join(", ") }
    }
}

/// Simulates attacks, and no attack before them, under the rules of some columns; a row of cells for each.
fn rows(attacks: &[Attack], columns: &[Column], cells: impl Fn(&Row<'_>) -> Vec<String>) -> Vec<Vec<String>> {
    let attacks: Vec<Option<Attack>> = [None].into_iter().chain(attacks.iter().copied().map(Some)).collect();
    let kinds = |attack| {
        columns.iter().flat_map(move |column| [false, true].map(|audited| (attack, *column, audited)))
    };
    let seeds =
        |(attack, column, audited)| (31..31 + SEEDS).map(move |seed| Job { attack, column, audited, seed });
    let jobs: Vec<Job> = attacks.iter().flat_map(|attack| kinds(*attack)).flat_map(seeds).collect();
    let done = in_parallel(&jobs, |job| {
        let plan = job.plan();
        (Sim::new(plan.clone()).finish(), plan)
    });
    let row = 2 * columns.len() * CELL;
    let rows = attacks.iter().zip(done.chunks(row));
    rows.map(|(attack, runs)| cells(&Row { attack: *attack, runs, clean: &done[..row] })).collect()
}

/// Two of seven nodes cheat; one verifier with π = 50 %, a = 1, m = 2, that audits the cheats or spares them. Losses are
/// differences from the run without cheats that begins alike.
pub fn table() -> String {
    measured(
        &those(|attack| !attack.wants_experts() && !attack.wants_calls() && !attack.wants_local()),
        &RULES,
    )
}

/// The same on a mixture, by attacks on its experts.
pub fn on_experts() -> String {
    measured(&those(|attack| attack.wants_experts() && !attack.wants_rows()), &OF_MIXTURES)
}

/// The same with local updates, by attacks on them and by those of the others that lie about leaves most differently.
pub fn on_local_updates() -> String {
    const OTHERS: [&str; 7] = ["flip", "sign", "lazy", "stale", "half", "mimic", "loss"];
    measured(&those(|attack| attack.wants_local() || OTHERS.contains(&attack.name)), &OF_LOCAL)
}

fn those(wanted: impl Fn(&Attack) -> bool) -> Vec<Attack> {
    ATTACKS.iter().copied().filter(wanted).collect()
}

fn measured(attacks: &[Attack], columns: &[Column; 3]) -> String {
    let rows = rows(attacks, columns, |row| {
        let clip = &row.runs[CELL..2 * CELL];
        let losses = [row.name()].into_iter().chain(row.losses());
        let about = [left(clip), row.findings(), row.audits(), row.rounds(), false_bans(row.runs)];
        losses.chain(about).collect()
    });
    let heads = columns.map(|(.., name)| name);
    let about = ["left by the clip", "found", "audits until the ban", "rounds to the last ban", "false bans"];
    let head: Vec<&str> = ["attack"].into_iter().chain(heads).chain(about).collect();
    markdown(&head, rows)
}

/// Attacks on what a rule sees, under the rules that a manifest can name besides.
pub fn others() -> String {
    const SHOWN: [&str; 14] = [
        "flip", "sign", "scale", "random", "ipm-0.1", "ipm-0.6", "alie", "mimic", "lazy", "labels", "zero",
        "one-part", "one-leaf", "inflate",
    ];
    let rows = rows(&those(|attack| SHOWN.contains(&attack.name)), &OTHERS, |row| {
        let losses = [row.name()].into_iter().chain(row.losses());
        losses.chain([row.rounds(), false_bans(row.runs)]).collect()
    });
    let heads = OTHERS.map(|(.., name)| name);
    let head: Vec<&str> =
        ["attack"].into_iter().chain(heads).chain(["rounds to the last ban", "false bans"]).collect();
    markdown(&head, rows)
}
