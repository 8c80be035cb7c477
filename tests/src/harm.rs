//! The tables of `spec/harm.md`: what cheats can do before they are out, by formula and as simulated.
//!
//! `cargo run --release -p e2e --bin simulate -- table --write` makes them, each with its own fixed seeds.

pub mod attacks;
pub mod coalitions;
pub mod detection;
pub mod published;

use std::fs;
use std::io;
use std::path::Path;

use muster_core::ids::Round;

use crate::sim::{Plan, Report};

/// Makes the text of a table.
type Maker = fn() -> String;

/// The tables in the order of the chapter, by the name of their place in it.
pub const TABLES: [(&str, Maker); 5] = [
    ("schedules", detection::schedules),
    ("collusion", detection::collusion),
    ("attacks", attacks::table),
    ("published", published::table),
    ("coalitions", coalitions::table),
];

/// Puts a table into `spec/harm.md`, between the comments that name its place.
///
/// # Errors
/// [`io::Error`] when the file cannot be read or written, or has no such place.
pub fn write(name: &str, text: &str) -> io::Result<()> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("spec").join("harm.md");
    let chapter = fs::read_to_string(&path)?;
    let (begin, end) = (format!("<!-- {name} -->\n"), format!("<!-- end of {name} -->"));
    let cut = chapter.split_once(&begin).and_then(|(before, rest)| {
        let (_, after) = rest.split_once(&end)?;
        Some(format!("{before}{begin}{text}{end}{after}"))
    });
    let missing = || io::Error::new(io::ErrorKind::InvalidData, format!("no place for {name}"));
    fs::write(&path, cut.ok_or_else(missing)?)
}

/// A table in Markdown.
fn markdown(head: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let head: Vec<String> = head.iter().map(|cell| (*cell).to_owned()).collect();
    let rule = format!("|{}\n", "---|".repeat(head.len()));
    rows.into_iter().fold(line(&head) + &rule, |text, row| text + &line(&row))
}

/// Rounds from the first offence to the last ban, and how many of the cheats are out.
fn banned(plan: &Plan, report: &Report, from: Round) -> String {
    let all = plan.cheats().count();
    let out = report.convictions.iter().filter(|conviction| conviction.deserved);
    let last = out.clone().map(|conviction| conviction.effective.0.saturating_sub(from.0)).max();
    match (out.count(), last) {
        (0, _) | (_, None) => "–".into(),
        (out, Some(last)) if out == all => last.to_string(),
        (out, Some(last)) => format!("{last} ({out} of {all})"),
    }
}

/// The mean of the last five losses: one round's is noisy.
fn settled_loss(report: &Report) -> f64 {
    let last: Vec<f64> = report.losses.iter().rev().take(5).copied().collect();
    last.iter().sum::<f64>() / last.len().max(1) as f64
}
