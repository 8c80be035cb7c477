//! The run that a command is about, as people name it: an invitation, a folder, settings.

use std::path::{Path, PathBuf};

use muster_core::messages::enrol::Ticket;
use muster_member::bench::Workload;
use muster_organise::members::agreed;
use muster_replica::exit::Outcome;
use muster_replica::{invitation as read_invitation, is_invitation};

use super::runtime::block_on;

/// The ticket, where an invitation is said in the place of a path.
pub(super) fn invited(run: &Path) -> Outcome<Option<Ticket>> {
    run.to_str().filter(|said| is_invitation(said)).map(read_invitation).transpose()
}

/// What is measured or planned.
pub(super) fn workload(run: Option<PathBuf>) -> Outcome<Workload> {
    Ok(match run {
        None => Workload::Default,
        Some(path) => match invited(&path)? {
            Some(ticket) => Workload::Agreed(Box::new(block_on(agreed(&ticket))??)),
            None => Workload::At(path),
        },
    })
}
