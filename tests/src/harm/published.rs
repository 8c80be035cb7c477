//! The setting that BTARD published, in proportion: sixteen peers, seven of them attack from a round on.

use muster_core::ids::Round;
use muster_rehearse::attack::Attack;

use super::attacks::{Column, RULES};
use super::cells::{banned, false_bans, markdown, settled_loss, worst_beside};
use crate::parallel::in_parallel;
use crate::sim::{Plan, Report, Sim, cast};

const PEERS: usize = 16;
const CHEATS: usize = 7;
const ROUNDS: u32 = 80;
/// In millionths.
const PUBLISHED: u32 = 37_500;
const OFTEN: u32 = 500_000;
const FROM: Round = Round(20);

const HEAD: [&str; 9] = [
    "rule",
    "attack",
    "π",
    "before",
    "at the end",
    "worst, beside none",
    "at the end, beside none",
    "rounds to the last ban",
    "false bans",
];

#[derive(Clone, Copy)]
struct Job {
    column: Column,
    attack: Option<Attack>,
    /// π in millionths, as the manifest has it.
    share_ppm: u32,
    /// Whether somebody audits. Where nobody does, a verifier spares the cheats, so that the initial state is the same.
    audited: bool,
}

impl Job {
    fn plan(&self) -> Plan {
        let cheats = self.attack.map_or(Vec::new(), |attack| vec![attack; CHEATS]);
        let plan = Plan::new(41, ROUNDS, cast(PEERS, &cheats, FROM, 41));
        let (rule, change, _) = self.column;
        let (share_ppm, friends) = (self.share_ppm, u16::from(!self.audited));
        Plan { rule, change, verifiers: 1, friends, share_ppm, ..plan }
    }

    fn row(&self, run: &(Report, Plan), clean: &Report) -> Vec<String> {
        let (report, _) = run;
        let (.., rule) = self.column;
        let rate =
            if self.audited { format!("{} %", f64::from(self.share_ppm) / 1e4) } else { "none".into() };
        let beside = |more: f64| if self.attack.is_some() { format!("{more:+.2}") } else { "–".into() };
        vec![
            rule.into(),
            self.attack.map_or("none".into(), |attack| format!("`{}`", attack.name)),
            rate,
            format!("{:.2}", report.losses[FROM.index() - 1]),
            format!("{:.2}", settled_loss(report)),
            beside(worst_beside(report, clean, FROM)),
            beside(settled_loss(report) - settled_loss(clean)),
            banned([run], FROM),
            false_bans(std::slice::from_ref(run)),
        ]
    }
}

/// The rows of these jobs: each comes after the one without an attack that begins like it.
fn rows(jobs: &[Job]) -> Vec<Vec<String>> {
    let done = in_parallel(jobs, |job| {
        let plan = job.plan();
        (Sim::new(plan.clone()).finish(), plan)
    });
    let mut clean = 0;
    let row = |(number, job): (usize, &Job)| {
        if job.attack.is_none() {
            clean = number;
        }
        job.row(&done[number], &done[clean].0)
    };
    jobs.iter().enumerate().map(row).collect()
}

/// Loss before and at the end, what the attack adds to it at its worst and at the end, and rounds to the last ban.
pub fn table() -> String {
    markdown(&HEAD, rows(&jobs()))
}

/// Its first rows.
pub fn table_to(rows_of_it: usize) -> String {
    markdown(&HEAD, rows(&jobs()[..rows_of_it]))
}

fn jobs() -> Vec<Job> {
    let Ok(attack) = "flip".parse::<Attack>() else { return Vec::new() };
    let runs = [
        (None, PUBLISHED, true),
        (Some(attack), PUBLISHED, false),
        (Some(attack), PUBLISHED, true),
        (None, OFTEN, true),
        (Some(attack), OFTEN, true),
    ];
    RULES
        .into_iter()
        .flat_map(|column| {
            runs.map(|(attack, share_ppm, audited)| Job { column, attack, share_ppm, audited })
        })
        .collect()
}
