//! An invitation as a person gives it: the line itself, or a file that holds it.

use std::fmt;
use std::path::Path;

use muster_core::messages::enrol::Ticket;
use muster_store::regular;

use crate::exit::{Failure, Outcome};

/// What precedes the name of a file.
const IN_FILE: char = '@';
/// Most bytes that are read of such a file: several times the longest line.
const MOST: u64 = 1 << 14;

/// Whether this is meant as an invitation, and not as a path.
pub fn is_invitation(said: &str) -> bool {
    said.starts_with(IN_FILE) || said.to_ascii_lowercase().contains("muster1:")
}

/// The ticket that somebody was given: `muster1:…`, or `@FILE`.
///
/// A line on the command line is visible to every user of the machine while the program runs, and whoever knows it may use
/// it. A service has it in a file that nobody else reads.
///
/// # Errors
/// [`Failure`]: the file cannot be read, or the line is no ticket or was damaged.
pub fn invitation(said: &str) -> Outcome<Ticket> {
    let Some(path) = said.strip_prefix(IN_FILE) else { return Ok(Ticket::from_line(said)?) };
    let failed = |why: &dyn fmt::Display| {
        Failure::environment(format!("{path}: the invitation in it cannot be read ({why})"))
    };
    let bytes = regular::read(Path::new(path), MOST).map_err(|error| failed(&error.cause()))?;
    let line = String::from_utf8(regular::unmarked(bytes)).map_err(|_| failed(&"it is no text"))?;
    Ticket::from_line(&line).map_err(|misuse| Failure::usage(format!("{path}: {misuse}")))
}

#[cfg(test)]
mod tests {
    use muster_core::ids::{Digest, MemberId, RunId};
    use muster_core::messages::enrol::Addresses;

    use super::*;
    use crate::exit::Exit;

    #[test]
    fn a_line_is_read_where_it_is_and_from_a_file() {
        let (run, steward) = (RunId(Digest([1; 32])), MemberId([2; 32]));
        let ticket = Ticket { run, steward, addresses: Addresses::default(), pass: None };
        let line = ticket.to_line().to_string();
        assert_eq!(invitation(&line).as_ref(), Ok(&ticket));
        let path = std::env::temp_dir().join(format!("muster-invitation-{}", std::process::id()));
        let said = format!("@{}", path.display());
        assert_eq!(invitation(&said).map_err(|failure| failure.exit), Err(Exit::Environment));
        std::fs::write(&path, format!("{line}\n")).expect("a file");
        assert_eq!(invitation(&said).as_ref(), Ok(&ticket));
        for unit in [u16::to_le_bytes, u16::to_be_bytes] {
            let text = format!("\u{feff}{line}\r\n");
            std::fs::write(&path, text.encode_utf16().flat_map(unit).collect::<Vec<u8>>()).expect("a file");
            assert_eq!(invitation(&said).as_ref(), Ok(&ticket));
        }
        let long = format!("{line}{}", " ".repeat(MOST as usize));
        std::fs::write(&path, long).expect("a file");
        assert_eq!(invitation(&said).map_err(|failure| failure.exit), Err(Exit::Environment));
        std::fs::write(&path, "hello").expect("a file");
        let failure = invitation(&said).expect_err("no ticket");
        assert!(failure.exit == Exit::Usage && failure.message.contains(&path.display().to_string()));
        std::fs::remove_file(&path).expect("it is there");
    }

    #[test]
    fn a_path_is_told_apart() {
        for said in ["muster1:abc", "@/etc/muster/line", " \"muster1:abc\"", "<Muster1:abc>"] {
            assert!(is_invitation(said), "{said}");
        }
        assert!(!is_invitation("myrun/") && !is_invitation("run.toml"));
    }
}
