//! What a command says on standard output.

use std::io::{ErrorKind, Write};

use muster_replica::exit::{Failure, Outcome};

/// A line for the person who asked.
pub(super) fn say(line: &str) -> Outcome<()> {
    show(&format!("{line}\n")).map(drop)
}

/// Text as it comes; whether somebody still reads. A reader that went away is no error, a full disk is.
pub(super) fn show(text: &str) -> Outcome<bool> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Failure::environment(format!("standard output cannot be written: {error}"))),
    }
}
