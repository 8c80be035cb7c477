//! What the organiser does before and beside the run: pack the text, create the run, invite.

pub mod ask;
pub mod checkpoint;
pub mod config;
pub mod create;
pub mod credit;
pub mod ending;
pub mod estimate;
pub mod export;
pub mod generate;
pub mod gguf;
pub mod given;
mod hugging_face;
pub mod invite;
pub mod look;
pub mod members;
pub mod pack;
pub mod plan;
mod pointer;
pub mod prospect;
mod python;
pub mod ranking;
pub mod rates;
pub mod size;
pub mod tokenise;

use std::path::{Path, PathBuf};

use muster_core::messages::enrol::Ticket;
use muster_core::sign::Identity;
use muster_replica::exit::{Failure, Outcome};
use muster_store::error::Kind;
use muster_store::secrets;

/// The canonical manifest in a run's folder.
pub const MANIFEST: &str = "manifest.bin";
/// The settings in a run's folder, for people.
pub const SETTINGS: &str = "run.toml";
/// The text in a run's folder.
pub const DATA: &str = "data";
/// Where the steward can be dialled, one address a line; written by `muster host`.
pub const ADDRESSES: &str = "address";
/// Where a member keeps the line it joined by.
const TICKET: &str = "ticket";
/// Name of the organiser's secret.
pub const ORGANISER: &str = "organiser";

/// A secret key of a home that another process may hold: keys are written once, so reading needs no lock.
///
/// # Errors
/// [`Failure`] when the file is missing, no key, or one that others can read.
pub fn read_identity(home: &Path, name: &str) -> Outcome<Identity> {
    let path = home.join(format!("{name}.key"));
    match secrets::key(&path) {
        Ok(secret) => Ok(Identity::from_secret(&secret)),
        Err(error) if error.kind() == Kind::Missing => Err(Failure::environment(format!(
            "{}: does not exist; is this the right directory?",
            path.display()
        ))),
        Err(error) => Err(error.into()),
    }
}

/// The ticket that a directory joined by, if it ever did.
///
/// # Errors
/// [`Failure`] when the file is damaged.
pub fn ticket(data_dir: &Path) -> Outcome<Option<Ticket>> {
    let path = data_dir.join(TICKET);
    let Ok(line) = secrets::text(&path) else { return Ok(None) };
    let ticket = Ticket::from_line(&line);
    ticket.map(Some).map_err(|misuse| Failure::environment(format!("{}: {misuse}", path.display())))
}

/// Where the organiser's key of a run is: in the run's folder, unless somebody keeps it elsewhere.
pub fn organiser_key(folder: &Path, elsewhere: Option<&Path>) -> PathBuf {
    elsewhere.map_or_else(|| folder.join(format!("{ORGANISER}.key")), Path::to_owned)
}
