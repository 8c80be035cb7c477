//! What a simulation says: on the standard output as it goes, at the end as a page and for programs.

use std::fs;
use std::io;
use std::path::Path;

use muster_view::document::{Cell, Column, Document, Table};
use muster_view::plot::Plot;
use muster_view::report::Report;
use serde_json::{Value, json};

/// What was said so far: paragraphs, and tables in Markdown.
#[derive(Default)]
pub struct Told {
    text: String,
    plots: Vec<(String, Plot)>,
}

/// How a simulation ended.
pub struct Ended {
    /// The words of the command.
    pub command: Vec<String>,
    /// Whether every check held.
    pub good: bool,
    /// How long it took.
    pub seconds: f64,
}

/// A part of what was said.
#[derive(Debug, PartialEq)]
enum Part {
    /// Lines that belong together.
    Paragraph(Vec<String>),
    /// A table: its head and its rows.
    Table(Vec<Vec<String>>),
}

impl Told {
    /// Says something, which ends with the line.
    #[allow(clippy::print_stdout)]
    pub fn say(&mut self, text: &str) {
        println!("{text}");
        self.text.push_str(text);
        self.text.push('\n');
    }

    /// Adds a chart, with the name of the file of its numbers.
    pub fn plot(&mut self, name: &str, plot: Plot) {
        self.plots.push((name.to_owned(), plot));
    }

    /// Writes `report.html`, the numbers of its charts, and `report.json` into a folder.
    ///
    /// # Errors
    /// [`io::Error`] naming the file.
    pub fn write(self, folder: &Path, ended: &Ended) -> io::Result<()> {
        let parts = parts(&self.text);
        fs::create_dir_all(folder).map_err(|error| named(folder, &error))?;
        let path = folder.join("report.json");
        let facts = format!("{:#}\n", facts(&parts, ended));
        fs::write(&path, facts).map_err(|error| named(&path, &error))?;
        let of = ended.command.join(" ");
        Report { of, document: document(parts, ended), before: 0, plots: self.plots }.write(folder)
    }
}

fn named(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: cannot be written ({error})", path.display()))
}

/// Paragraphs and tables of a text, in order.
fn parts(text: &str) -> Vec<Part> {
    let mut parts: Vec<Part> = Vec::new();
    let mut apart = true;
    for line in text.lines() {
        let cells = line.strip_prefix("| ").and_then(|line| line.strip_suffix(" |"));
        match (cells, parts.last_mut()) {
            // The line below the head.
            (None, Some(Part::Table(_))) if line.starts_with("|---") => continue,
            (Some(cells), Some(Part::Table(rows))) if !apart => rows.push(row(cells)),
            (Some(cells), _) => parts.push(Part::Table(vec![row(cells)])),
            (None, _) if line.is_empty() => {
                apart = true;
                continue;
            }
            (None, Some(Part::Paragraph(lines))) if !apart => lines.push(line.to_owned()),
            (None, _) => parts.push(Part::Paragraph(vec![line.to_owned()])),
        }
        apart = false;
    }
    parts
}

fn row(cells: &str) -> Vec<String> {
    cells.split(" | ").map(|cell| cell.replace("**", "")).collect()
}

fn facts(parts: &[Part], ended: &Ended) -> Value {
    let tables = parts.iter().filter_map(|part| match part {
        Part::Table(rows) => Some(json!({ "head": rows.first(), "rows": rows.get(1..) })),
        Part::Paragraph(_) => None,
    });
    let text = parts.iter().filter_map(|part| match part {
        Part::Paragraph(lines) => Some(lines.join("\n")),
        Part::Table(_) => None,
    });
    json!({
        "command": ended.command,
        "good": ended.good,
        "seconds": ended.seconds,
        "text": text.collect::<Vec<_>>(),
        "tables": tables.collect::<Vec<_>>(),
    })
}

fn document(parts: Vec<Part>, ended: &Ended) -> Document {
    let mut document = Document::titled("Simulation");
    if ended.good {
        document.lead.push("Every check held.".into());
    } else {
        document.alarm = Some("A check did not hold.".into());
    }
    document.fact("Command", Cell::of(format!("simulate {}", ended.command.join(" "))).looking("code"));
    document.fact("Seconds", Cell::of(format!("{:.0}", ended.seconds)));
    for (number, part) in parts.into_iter().enumerate() {
        match part {
            Part::Paragraph(lines) if lines.len() > 8 => document.code("", lines.join("\n")),
            Part::Paragraph(lines) => document.text("", lines),
            Part::Table(mut rows) => {
                let head = rows.remove(0);
                // A column of numbers begins with one in each row.
                let number_like = |cell: &String| {
                    cell.trim_start_matches(['-', '+', '<', '–']).starts_with(|c: char| c.is_ascii_digit())
                };
                let numbers = |column: usize| {
                    rows.iter()
                        .all(|row| row.get(column).is_some_and(|cell| cell == "–" || number_like(cell)))
                };
                let column = |(place, title): (usize, &String)| Column {
                    title: title.clone().into(),
                    numbers: numbers(place),
                };
                let table = Table {
                    id: format!("table-{number}").into(),
                    caption: head.join(", "),
                    head: head.iter().enumerate().map(column).collect(),
                    rows: rows.iter().map(|row| row.iter().map(Cell::of).collect()).collect(),
                    empty: "None.",
                    pager: None,
                };
                document.table("", table);
            }
        }
    }
    document
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harm::markdown;

    #[test]
    fn a_text_is_taken_apart_and_written() {
        let table = markdown(&["kind", "counted"], [vec!["**slow**".to_owned(), "3.5 ± 1".to_owned()]]);
        let mut told = Told::default();
        told.say(&format!("one\ntwo\n\n{table}"));
        told.say(&format!("{table}three"));
        let head: Vec<String> = ["kind", "counted"].map(str::to_owned).into();
        let rows = || Part::Table(vec![head.clone(), vec!["slow".into(), "3.5 ± 1".into()]]);
        let lines = |lines: &[&str]| Part::Paragraph(lines.iter().map(|line| (*line).to_owned()).collect());
        assert_eq!(parts(&told.text), [lines(&["one", "two"]), rows(), rows(), lines(&["three"])]);
        let directory = tempfile::tempdir().unwrap();
        let ended = Ended { command: vec!["detection".into()], good: true, seconds: 1.5 };
        told.write(directory.path(), &ended).unwrap();
        let page = fs::read_to_string(directory.path().join("report.html")).unwrap();
        assert!(page.contains("Every check held") && page.contains("3.5 ± 1"), "{page}");
        let facts = fs::read_to_string(directory.path().join("report.json")).unwrap();
        let facts: Value = serde_json::from_str(&facts).unwrap();
        assert_eq!(facts["tables"][0]["rows"][0][0], "slow");
        crate::schema::check("simulation", &facts);
    }
}
