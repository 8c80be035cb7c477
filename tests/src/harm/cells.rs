//! Figures of runs, as the cells of a table show them.

use muster_core::ids::Round;

use crate::sim::{Plan, Report};

/// A table in Markdown.
pub fn markdown(head: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let head: Vec<String> = head.iter().map(|cell| (*cell).to_owned()).collect();
    let rule = format!("|{}\n", "---|".repeat(head.len()));
    rows.into_iter().fold(line(&head) + &rule, |text, row| text + &line(&row))
}

/// Runs of each cell that differ in their seed alone.
pub(super) const SEEDS: u64 = 3;

/// The reports of one cell's runs, with its plan.
pub(super) type Runs = [(Report, Plan)];

/// Rounds from the first offence to the last ban of a run, from the least to the most, and how many of the cheats are
/// out.
pub(super) fn banned<'a>(runs: impl IntoIterator<Item = &'a (Report, Plan)> + Clone, from: Round) -> String {
    let all: usize = runs.clone().into_iter().map(|(_, plan)| plan.cheats().count()).sum();
    let deserved = |report: &Report| -> Vec<u32> {
        let deserved = report.convictions.iter().filter(|conviction| conviction.deserved);
        deserved.map(|conviction| conviction.effective.0.saturating_sub(from.0)).collect()
    };
    let bans: Vec<Vec<u32>> = runs.into_iter().map(|(report, _)| deserved(report)).collect();
    let out: usize = bans.iter().map(Vec::len).sum();
    let last = || bans.iter().filter_map(|bans| bans.iter().max());
    let (Some(least), Some(most)) = (last().min(), last().max()) else { return "–".into() };
    let range = if least == most { most.to_string() } else { format!("{least}–{most}") };
    if out == all { range } else { format!("{range} ({out} of {all})") }
}

/// The mean of the last five losses: one round's is noisy.
pub(super) fn settled_loss(report: &Report) -> f64 {
    let last: Vec<f64> = report.losses.iter().rev().take(5).copied().collect();
    mean(&last)
}

/// The most that a run's loss lay above that of the run without cheats in the same round, once its cheats had counted.
pub(super) fn worst_beside(report: &Report, clean: &Report, from: Round) -> f64 {
    let rounds = report.losses.iter().zip(&clean.losses).skip(from.index());
    rounds.map(|(loss, clean)| loss - clean).fold(f64::NEG_INFINITY, f64::max)
}

pub(super) fn mean(values: &[f64]) -> f64 {
    values.iter().fold(0.0, |sum, value| sum + value) / values.len().max(1) as f64
}

/// A mean, and half of the range.
pub(super) fn spread(values: &[f64]) -> (f64, f64) {
    let (least, most) = values.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(least, most), value| {
        (least.min(*value), most.max(*value))
    });
    (mean(values), (most - least) / 2.0)
}

/// As `+0.04 ± 0.01`.
pub(super) fn beside(values: impl IntoIterator<Item = f64>) -> String {
    let (mean, half) = spread(&values.into_iter().collect::<Vec<f64>>());
    format!("{mean:+.2} ± {half:.2}")
}

/// As `2.71 ± 0.02`.
pub(super) fn about(values: impl IntoIterator<Item = f64>) -> String {
    let (mean, half) = spread(&values.into_iter().collect::<Vec<f64>>());
    format!("{mean:.2} ± {half:.2}")
}

pub(super) fn false_bans(runs: &Runs) -> String {
    runs.iter().map(|(report, _)| report.false_bans()).sum::<usize>().to_string()
}

/// The mean share that the rule left of bad contributions.
pub(super) fn left(runs: &Runs) -> String {
    let shares: Vec<f64> = runs.iter().filter_map(|(report, _)| Some(report.what_was_left()?.0)).collect();
    if shares.is_empty() { "–".into() } else { format!("{:.0} %", 100.0 * mean(&shares)) }
}
