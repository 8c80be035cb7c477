//! The board as a picture: for those who were not there.

use std::fmt::Write;
use std::time::Duration;

use muster_view::View;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Cell;
use ratatui::style::{Color, Modifier};

use crate::picture::{Picture, Surroundings};

/// Columns and rows of the terminal.
const SIZE: (u16, u16) = (112, 30);
/// Pixels of a column and of a row.
const CELL: (u32, u32) = (8, 17);
/// Pixels around it.
const MARGIN: u32 = 14;
const PAPER: &str = "#14181c";
const INK: &str = "#dfe4e9";

/// The board of a run as SVG, as a terminal with colours shows it after so long.
pub fn still(view: &View, seen: &Surroundings, elapsed: Duration) -> String {
    let Ok(mut terminal) = Terminal::new(TestBackend::new(SIZE.0, SIZE.1));
    let picture = Picture { view, seen, colour: true, stopping: false, elapsed };
    let Ok(_) = terminal.draw(|frame| picture.draw(frame, &view.story()));
    svg(terminal.backend().buffer().content())
}

fn svg(cells: &[Cell]) -> String {
    let [width, height] =
        [(SIZE.0, CELL.0), (SIZE.1, CELL.1)].map(|(count, size)| u32::from(count) * size + 2 * MARGIN);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"ui-monospace, 'DejaVu Sans Mono', \
         Menlo, Consolas, monospace\" font-size=\"13\">\n<rect width=\"{width}\" height=\"{height}\" rx=\"8\" \
         fill=\"{PAPER}\"/>\n"
    );
    for (row, cells) in cells.chunks(usize::from(SIZE.0)).enumerate() {
        let mut column = 0;
        for run in cells.chunk_by(|a, b| look(a) == look(b)) {
            span(&mut svg, run, column, row);
            column += run.len();
        }
    }
    svg + "</svg>\n"
}

/// Colour, background, whether bold, whether faint.
fn look(cell: &Cell) -> (&'static str, Option<&'static str>, bool, bool) {
    let (mut front, mut behind) = (colour(cell.fg), colour(cell.bg));
    if cell.modifier.contains(Modifier::REVERSED) {
        (front, behind) = (Some(behind.unwrap_or(PAPER)), Some(front.unwrap_or(INK)));
    }
    let has = |modifier| cell.modifier.contains(modifier);
    (front.unwrap_or(INK), behind, has(Modifier::BOLD), has(Modifier::DIM))
}

fn colour(colour: Color) -> Option<&'static str> {
    match colour {
        Color::Cyan => Some("#56b6e9"),
        Color::Yellow => Some("#edbd62"),
        Color::Red => Some("#ff8f87"),
        Color::Green => Some("#7fd39a"),
        _ => None,
    }
}

/// Cells of one look.
fn span(svg: &mut String, cells: &[Cell], column: usize, row: usize) {
    let (front, behind, bold, faint) = look(&cells[0]);
    let text: String = cells.iter().map(Cell::symbol).collect();
    let x = MARGIN + column as u32 * CELL.0;
    let y = MARGIN + row as u32 * CELL.1;
    // Writing into a string does not fail.
    if let Some(behind) = behind {
        let width = cells.len() as u32 * CELL.0;
        let _ = writeln!(
            svg,
            "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{}\" fill=\"{behind}\"/>",
            CELL.1
        );
    }
    let bold = if bold { " font-weight=\"bold\"" } else { "" };
    let faint = if faint { " opacity=\"0.65\"" } else { "" };
    for (place, words) in words(&text) {
        let escaped = words.replace('&', "&amp;").replace('<', "&lt;");
        // Fonts differ: the length is that of a terminal's columns.
        let length = words.chars().count() as u32 * CELL.0;
        let _ = writeln!(
            svg,
            "<text x=\"{}\" y=\"{}\" textLength=\"{length}\" lengthAdjust=\"spacingAndGlyphs\" fill=\"{front}\"{bold}{faint}>\
             {escaped}</text>",
            x + place as u32 * CELL.0,
            y + 13
        );
    }
}

/// The words of a text, each with its column: what several spaces separate stands by itself, since SVG takes them for one.
fn words(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let (mut rest, mut column) = (text, 0);
    loop {
        let begin = rest.trim_start();
        column += rest.len() - begin.len();
        if begin.is_empty() {
            return found;
        }
        let words = &begin[..begin.find("  ").unwrap_or(begin.len())];
        found.push((column, words.trim_end()));
        column += words.chars().count();
        rest = &begin[words.len()..];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_and_words_are_those_of_the_terminal() {
        let mut cells = vec![Cell::default(); usize::from(SIZE.0)];
        for (cell, symbol) in cells[3..].iter_mut().zip(["a", "<", "&", " ", " ", "–", " ", "b"]) {
            cell.set_symbol(symbol).fg = Color::Red;
        }
        let svg = svg(&cells);
        assert!(svg.contains("fill=\"#ff8f87\">a&lt;&amp;</text>"), "{svg}");
        assert!(svg.contains(&format!("x=\"{}\"", MARGIN + 3 * CELL.0)), "{svg}");
        assert!(
            svg.contains(&format!("x=\"{}\"", MARGIN + 8 * CELL.0)) && svg.contains(">– b</text>"),
            "{svg}"
        );
        assert_eq!(svg.matches("<text").count(), 2, "nothing is written where nothing is");
    }
}
