//! Attack by rule by audits: final loss, rounds to the last ban, false bans.

use muster_core::ids::Round;
use muster_core::manifest::Rule;
use muster_node::attack::Attack;

use super::{Runs, SEEDS, banned, false_bans, left, markdown, mean, settled_loss, spread};
use crate::parallel::in_parallel;
use crate::sim::{Plan, Sim, cast};

const NODES: usize = 7;
const CHEATS: usize = 2;
const ROUNDS: u32 = 30;
const FROM: Round = Round(10);

const ATTACKS: [&str; 18] = [
    "flip", "sign", "scale", "random", "ipm-0.1", "ipm-0.6", "alie", "mimic", "lazy", "stale", "labels",
    "data", "half", "zero", "one-part", "one-leaf", "inflate", "nudge",
];

/// Rules that a manifest can name.
pub const RULES: [(Rule, &str); 3] =
    [(Rule::CenteredClip, "centred clip"), (Rule::Mean, "mean"), (Rule::Median, "median")];

/// Leaves of a contribution, and of those recomputed in an audit: as [`Plan::new`] has them.
const LEAVES: (u32, u32) = (2, 1);

struct Job {
    attack: Option<Attack>,
    rule: Rule,
    audited: bool,
    seed: u64,
}

impl Job {
    fn plan(&self) -> Plan {
        let cheats: Vec<Attack> = self.attack.into_iter().cycle().take(CHEATS).collect();
        let cheats = if self.attack.is_some() { cheats } else { Vec::new() };
        let plan = Plan::new(self.seed, ROUNDS, cast(NODES, &cheats, FROM, self.seed));
        // A verifier that spares the cheats instead of none: the same manifest, and so the same initial state.
        Plan { rule: self.rule, verifiers: 1, friends: u16::from(!self.audited), ..plan }
    }
}

/// Two of seven nodes cheat; one verifier with π = 50 %, a = 1, m = 2, that audits the cheats or spares them. Losses are
/// differences from the run without cheats that begins alike.
pub fn table() -> String {
    let attacks = [None].into_iter().chain(ATTACKS.map(|name| name.parse().ok()));
    let seeds = |attack, rule, audited| (31..31 + SEEDS).map(move |seed| Job { attack, rule, audited, seed });
    let jobs: Vec<Job> = attacks
        .flat_map(|attack| RULES.map(|(rule, _)| [false, true].map(|audited| (attack, rule, audited))))
        .flatten()
        .flat_map(|(attack, rule, audited)| seeds(attack, rule, audited))
        .collect();
    let done = in_parallel(&jobs, |job| {
        let plan = job.plan();
        (Sim::new(plan.clone()).finish(), plan)
    });
    let cells = SEEDS as usize;
    let row = 2 * RULES.len() * cells;
    let clean = &done[..row];
    let rows = jobs.chunks(row).zip(done.chunks(row)).map(|(jobs, done)| {
        let mut cell = vec![jobs[0].attack.map_or("none".into(), |attack| format!("`{}`", attack.name))];
        let pairs = done.chunks(2 * cells).zip(clean.chunks(2 * cells));
        cell.extend(pairs.map(|(runs, clean)| match jobs[0].attack {
            Some(_) => {
                [0, cells].map(|at| differences(&runs[at..at + cells], &clean[at..at + cells])).join(" → ")
            }
            None => super::about(runs[..cells].iter().map(|(report, _)| settled_loss(report))),
        }));
        cell.push(left(&done[cells..2 * cells]));
        cell.push(jobs[0].attack.map_or("–".into(), |attack| audits(attack, done)));
        cell.push(banned(&done[cells..2 * cells], FROM));
        cell.push(false_bans(done));
        cell
    });
    let head: Vec<String> = ["attack".to_owned()]
        .into_iter()
        .chain(RULES.map(|(_, name)| name.to_owned()))
        .chain(
            ["left by the clip", "audits until the ban", "rounds to the last ban", "false bans"]
                .map(str::to_owned),
        )
        .collect();
    let head: Vec<&str> = head.iter().map(String::as_str).collect();
    markdown(&head, rows)
}

/// What runs lose beside those without cheats.
fn differences(runs: &Runs, clean: &Runs) -> String {
    let loss = |(report, _): &(_, Plan)| settled_loss(report);
    let more: Vec<f64> = runs.iter().zip(clean).map(|(run, clean)| loss(run) - loss(clean)).collect();
    let (mean, half) = spread(&more);
    format!("{mean:+.2} ± {half:.2}")
}

/// Audits of bad contributions until the one that convicted, of all cheats under all rules, beside the formula's.
fn audits(attack: Attack, runs: &Runs) -> String {
    let Some(found) = attack.betrayal.wrong.found(LEAVES.0, LEAVES.1) else { return "–".into() };
    let counts: Vec<f64> = runs
        .iter()
        .filter(|(_, plan)| plan.friends == 0)
        .flat_map(|(report, _)| report.convictions.iter().filter(|conviction| conviction.deserved))
        .map(|ban| ban.audited.iter().filter(|round| (FROM..=ban.round).contains(round)).count() as f64)
        .collect();
    format!("{:.1}, {:.1}", 1.0 / found, mean(&counts))
}
