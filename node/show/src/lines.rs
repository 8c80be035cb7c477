//! Where log lines go: to standard error, or to the board while it has the terminal.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::Mutex;

use muster_core::lock::lock;

/// Lines that a board keeps, the newest ones.
const KEPT: usize = 400;

/// The lines of a board, while there is one.
static LINES: Mutex<Option<Kept>> = Mutex::new(None);

#[derive(Default)]
struct Kept {
    lines: VecDeque<String>,
    /// Lines before these.
    dropped: u64,
    /// Whether the last one goes on.
    open: bool,
}

/// Writes log lines where they belong.
#[derive(Clone, Copy, Debug, Default)]
pub struct LogWriter;

impl Write for LogWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut *lock(&LINES) {
            None => return io::stderr().write(bytes),
            Some(Kept { lines, dropped, open }) => {
                for line in String::from_utf8_lossy(bytes).split_inclusive('\n') {
                    let text = plain(line.trim_end_matches(['\r', '\n']));
                    match lines.back_mut().filter(|_| *open) {
                        Some(last) => last.push_str(&text),
                        None => lines.push_back(text),
                    }
                    *open = !line.ends_with('\n');
                    if lines.len() > KEPT {
                        lines.pop_front();
                        *dropped += 1;
                    }
                }
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

/// Keeps lines from now on.
pub(super) fn keep() {
    lock(&LINES).get_or_insert_default();
}

/// The newest lines that were kept, oldest first.
pub(super) fn newest(count: usize) -> Vec<String> {
    let kept = lock(&LINES);
    let lines = kept.iter().flat_map(|kept| &kept.lines);
    let mut newest: Vec<String> = lines.rev().take(count).cloned().collect();
    newest.reverse();
    newest
}

/// Writes what was kept to standard error, and keeps no more.
pub(super) fn release() {
    let mut kept = lock(&LINES);
    let Some(Kept { lines, dropped, .. }) = kept.take() else { return };
    let mut out = io::stderr().lock();
    // Whatever fails here, nobody sees it.
    if dropped > 0 {
        let _ = writeln!(out, "… {dropped} earlier lines are left out");
    }
    for line in lines {
        let _ = writeln!(out, "{line}");
    }
}

/// A line without what colours it, and without any other control character.
fn plain(line: &str) -> String {
    let mut text = String::with_capacity(line.len());
    let mut rest = line.chars();
    while let Some(character) = rest.next() {
        match character {
            // ESC [ … and a letter.
            '\u{1b}' => drop(rest.by_ref().find(char::is_ascii_alphabetic)),
            other if other.is_control() => text.push(' '),
            other => text.push(other),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_and_controls_are_left_out() {
        assert_eq!(plain("\u{1b}[2m12:00\u{1b}[0m \u{1b}[32m INFO\u{1b}[0m a\tb\u{7}"), "12:00  INFO a b ");
    }

    #[test]
    fn lines_are_kept_while_there_is_a_board() {
        keep();
        for number in 0..KEPT + 5 {
            writeln!(LogWriter, "line {number}\nand more").unwrap();
        }
        let newest = newest(2);
        assert_eq!(newest, [format!("line {}", KEPT + 4), "and more".to_owned()]);
        assert_eq!(self::newest(usize::MAX).len(), KEPT);
        release();
        assert!(self::newest(2).is_empty());
    }
}
