//! Attack by rule by audits: final loss, rounds to the last ban, false bans.

use muster_core::ids::Round;
use muster_core::manifest::Rule;
use muster_node::attack::Attack;

use super::{banned, markdown, settled_loss};
use crate::parallel::in_parallel;
use crate::sim::{Plan, Report, Sim, cast};

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

struct Job {
    attack: Option<Attack>,
    rule: Rule,
    audited: bool,
}

impl Job {
    fn plan(&self) -> Plan {
        let cheats: Vec<Attack> = self.attack.into_iter().cycle().take(CHEATS).collect();
        let cheats = if self.attack.is_some() { cheats } else { Vec::new() };
        let plan = Plan::new(31, ROUNDS, cast(NODES, &cheats, FROM, 31));
        // A verifier that spares the cheats instead of none: the same manifest, and so the same initial state.
        Plan { rule: self.rule, verifiers: 1, friends: u16::from(!self.audited), ..plan }
    }
}

/// Two of seven nodes cheat; one verifier with π = 50 %, a = 1, m = 2, that audits the cheats or spares them.
pub fn table() -> String {
    let attacks = [None].into_iter().chain(ATTACKS.map(|name| name.parse().ok()));
    let jobs: Vec<Job> = attacks
        .flat_map(|attack| RULES.map(|(rule, _)| [false, true].map(|audited| Job { attack, rule, audited })))
        .flatten()
        .collect();
    let done = in_parallel(&jobs, |job| {
        let plan = job.plan();
        (Sim::new(plan.clone()).finish(), plan)
    });
    let rows = jobs.chunks(2 * RULES.len()).zip(done.chunks(2 * RULES.len())).map(|(jobs, done)| {
        let mut row = vec![jobs[0].attack.map_or("none".into(), |attack| format!("`{}`", attack.name))];
        row.extend(done.chunks(2).map(|pair| losses(&pair[0].0, &pair[1].0)));
        let (audited, plan) = &done[1];
        row.push(audited.what_was_left().map_or("–".into(), |(left, _)| format!("{:.0} %", 100.0 * left)));
        row.push(banned(plan, audited, FROM));
        row.push(done.iter().map(|(report, _)| report.false_bans()).sum::<usize>().to_string());
        row
    });
    let head: Vec<String> = ["attack".to_owned()]
        .into_iter()
        .chain(RULES.map(|(_, name)| name.to_owned()))
        .chain(["left by the clip", "rounds to the last ban", "false bans"].map(str::to_owned))
        .collect();
    let head: Vec<&str> = head.iter().map(String::as_str).collect();
    markdown(&head, rows)
}

fn losses(without: &Report, with: &Report) -> String {
    format!("{:.2} → {:.2}", settled_loss(without), settled_loss(with))
}
