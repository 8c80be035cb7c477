//! Standard output: what people asked for.

use std::io::Write;

/// A line for the person who asked; a reader that went away is no error.
pub fn say(line: &str) {
    let _ = writeln!(std::io::stdout().lock(), "{line}");
}
