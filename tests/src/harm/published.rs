//! The setting that BTARD published, in proportion: sixteen peers, seven of them attack from a round on.

use muster_core::ids::Round;
use muster_node::attack::Attack;

use super::attacks::{Column, RULES};
use super::{banned, false_bans, markdown, settled_loss};
use crate::parallel::in_parallel;
use crate::sim::{Plan, Sim, cast};

const PEERS: usize = 16;
const CHEATS: usize = 7;
const ROUNDS: u32 = 80;
/// In millionths.
const PUBLISHED: u32 = 37_500;
const FROM: Round = Round(20);

struct Job {
    attack: Attack,
    column: Column,
    /// π in millionths; 0: nobody audits.
    node_ppm: u32,
}

impl Job {
    fn plan(&self) -> Plan {
        let plan = Plan::new(41, ROUNDS, cast(PEERS, &[self.attack; CHEATS], FROM, 41));
        // Nobody audits: a verifier that spares the cheats, so that the initial state is that of the published rate.
        let (node_ppm, friends) = if self.node_ppm == 0 { (PUBLISHED, 1) } else { (self.node_ppm, 0) };
        let (rule, change, _) = self.column;
        Plan { rule, change, verifiers: 1, friends, node_ppm, ..plan }
    }
}

/// Loss before, at its worst and at the end, and rounds to the last ban.
pub fn table() -> String {
    let Ok(attack) = "flip".parse::<Attack>() else { return String::new() };
    let jobs: Vec<Job> = RULES
        .into_iter()
        .flat_map(|column| [0, PUBLISHED, 500_000].map(|node_ppm| Job { attack, column, node_ppm }))
        .collect();
    let done = in_parallel(&jobs, |job| {
        let plan = job.plan();
        (Sim::new(plan.clone()).finish(), plan)
    });
    let rows = jobs.iter().zip(done.chunks(1)).map(|(job, runs)| {
        let (report, _) = &runs[0];
        let (.., rule) = job.column;
        let rate =
            if job.node_ppm == 0 { "none".into() } else { format!("{} %", f64::from(job.node_ppm) / 1e4) };
        vec![
            rule.into(),
            rate,
            format!("{:.2}", report.losses[FROM.index() - 1]),
            format!("{:.2}", report.worst_loss(FROM)),
            format!("{:.2}", settled_loss(report)),
            banned(runs, FROM),
            false_bans(runs),
        ]
    });
    let head = ["rule", "π", "before", "worst", "at the end", "rounds to the last ban", "false bans"];
    markdown(&head, rows)
}
