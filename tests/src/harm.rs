//! The tables of `spec/harm-tables.md`: what cheats can do before they are out, by formula and as simulated.
//!
//! `cargo run --release -p e2e --bin simulate -- table --write` makes them, each with its own fixed seeds.

pub mod attacks;
pub mod capture;
mod cells;
pub mod coalitions;
pub mod detection;
pub mod published;
pub mod waits;

use std::fs;
use std::io;
use std::path::Path;

pub use cells::markdown;

/// Makes the text of a table.
type Maker = fn() -> String;

/// The tables in the order of the page, by the name of their place in it.
pub const TABLES: [(&str, Maker); 11] = [
    ("schedules", detection::schedules),
    ("collusion", detection::collusion),
    ("latency", detection::latency),
    ("attacks", attacks::table),
    ("experts", attacks::on_experts),
    ("local", attacks::on_local_updates),
    ("rules", attacks::others),
    ("published", published::table),
    ("coalitions", coalitions::table),
    ("capture", capture::table),
    ("shop", capture::shop),
];

/// Puts a table into `spec/harm-tables.md`, between the comments that name its place.
///
/// # Errors
/// [`io::Error`] when the file cannot be read or written, or has no such place.
pub fn write(name: &str, text: &str) -> io::Result<()> {
    write_into("harm-tables.md", name, text)
}

/// Puts a text into a chapter of the spec, between the comments that name its place.
///
/// # Errors
/// [`io::Error`] when the file cannot be read or written, or has no such place.
pub fn write_into(chapter: &str, name: &str, text: &str) -> io::Result<()> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("spec").join(chapter);
    let chapter = fs::read_to_string(&path)?;
    let (begin, end) = (format!("<!-- {name} -->\n"), format!("<!-- end of {name} -->"));
    let cut = chapter.split_once(&begin).and_then(|(before, rest)| {
        let (_, after) = rest.split_once(&end)?;
        Some(format!("{before}{begin}{text}{end}{after}"))
    });
    let missing = || io::Error::new(io::ErrorKind::InvalidData, format!("no place for {name}"));
    fs::write(&path, cut.ok_or_else(missing)?)
}
