//! Coalitions of a share of the weight, with mixed attacks and verifiers in league with them.

use muster_core::ids::Round;
use muster_rehearse::attack::Attack;

use super::cells::{SEEDS, about, banned, beside, false_bans, left, markdown, settled_loss, worst_beside};
use crate::parallel::in_parallel;
use crate::sim::{Plan, Sim, cast};

const NODES: usize = 20;
const ROUNDS: u32 = 30;
const FROM: Round = Round(10);
const VERIFIERS: u16 = 4;
const MIX: [&str; 9] = ["flip", "alie", "ipm-0.6", "lazy", "sign", "stale", "one-leaf", "random", "half"];

/// None, two, four, six and nine of twenty nodes; four verifiers, π = 40 %, a = 1, m = 2, none to all of them friends.
pub fn table() -> String {
    let rows = [2, 4, 6, 9].into_iter().flat_map(|cheats| [0, 2, 3, 4].map(|friends| (cheats, friends)));
    let jobs: Vec<(usize, u16, u64)> = [(0, 0)]
        .into_iter()
        .chain(rows)
        .flat_map(|(cheats, friends)| (51..51 + SEEDS).map(move |seed| (cheats, friends, seed)))
        .collect();
    let done = in_parallel(&jobs, |(cheats, friends, seed)| {
        let mix: Vec<Attack> = MIX.iter().take(*cheats).filter_map(|name| name.parse().ok()).collect();
        let plan = Plan::new(*seed, ROUNDS, cast(NODES, &mix, FROM, *seed));
        let plan = Plan { verifiers: VERIFIERS, friends: *friends, share_ppm: 400_000, ..plan };
        (Sim::new(plan.clone()).finish(), plan)
    });
    let (cells, clean) = (done.chunks(SEEDS as usize), &done[..SEEDS as usize]);
    let rows = jobs.chunks(SEEDS as usize).zip(cells).map(|(jobs, runs)| {
        let (cheats, friends, _) = jobs[0];
        let leaves = runs.iter().filter_map(|(report, _)| Some(report.what_was_left()?.1 as f64));
        let leaves: Vec<f64> = leaves.collect();
        let pairs = || runs.iter().zip(clean).map(|((report, _), (clean, _))| (report, clean));
        vec![
            format!("{} %", 100 * cheats / NODES),
            format!("{friends} of {VERIFIERS}"),
            about(runs.iter().map(|(report, _)| settled_loss(report))),
            beside(pairs().map(|(report, clean)| worst_beside(report, clean, FROM))),
            beside(pairs().map(|(report, clean)| settled_loss(report) - settled_loss(clean))),
            format!("{:.0}", super::cells::mean(&leaves)),
            left(runs),
            banned(runs, FROM),
            runs.iter().map(|(report, _)| report.verifiers_banned.0).sum::<usize>().to_string(),
            false_bans(runs),
        ]
    });
    let head = [
        "coalition",
        "verifiers in league",
        "at the end",
        "worst, beside none",
        "at the end, beside none",
        "bad leaves counted",
        "left by the clip",
        "rounds to the last ban",
        "verifiers banned",
        "false bans",
    ];
    markdown(&head, rows)
}
