//! Coalitions of a share of the weight, with mixed attacks and verifiers in league with them.

use muster_core::ids::Round;
use muster_node::attack::Attack;

use super::{banned, markdown, settled_loss};
use crate::parallel::in_parallel;
use crate::sim::{Plan, Sim, cast};

const NODES: usize = 20;
const ROUNDS: u32 = 30;
const FROM: Round = Round(10);
const VERIFIERS: u16 = 4;
const MIX: [&str; 9] = ["flip", "alie", "ipm-0.6", "lazy", "sign", "stale", "one-leaf", "random", "half"];

/// Two, four, six and nine of twenty nodes; four verifiers, π = 40 %, a = 1, m = 2, none to all of them friends.
pub fn table() -> String {
    let jobs: Vec<(usize, u16)> =
        [2, 4, 6, 9].into_iter().flat_map(|cheats| [0, 2, 3, 4].map(|friends| (cheats, friends))).collect();
    let done = in_parallel(&jobs, |(cheats, friends)| {
        let mix: Vec<Attack> = MIX.iter().take(*cheats).filter_map(|name| name.parse().ok()).collect();
        let plan = Plan::new(51, ROUNDS, cast(NODES, &mix, FROM, 51));
        let plan = Plan { verifiers: VERIFIERS, friends: *friends, node_ppm: 400_000, ..plan };
        (Sim::new(plan.clone()).finish(), plan)
    });
    let rows = jobs.iter().zip(&done).map(|((cheats, friends), (report, plan))| {
        let (left, leaves) = report.what_was_left().unwrap_or_default();
        vec![
            format!("{} %", 100 * cheats / NODES),
            format!("{friends} of {VERIFIERS}"),
            format!("{:.2}", report.worst_loss(FROM)),
            format!("{:.2}", settled_loss(report)),
            leaves.to_string(),
            format!("{:.0} %", 100.0 * left),
            banned(plan, report, FROM),
            report.verifiers_banned.0.to_string(),
            report.false_bans().to_string(),
        ]
    });
    let head = [
        "coalition",
        "verifiers in league",
        "worst loss",
        "at the end",
        "bad leaves counted",
        "left by the clip",
        "rounds to the last ban",
        "verifiers banned",
        "false bans",
    ];
    markdown(&head, rows)
}
