//! What the organiser does before and beside the run: pack the text, create the run, invite.

pub mod create;
pub mod export;
pub mod given;
pub mod invite;
pub mod pack;
pub mod tokenise;

use std::path::Path;

use muster_core::ids::unhex;
use muster_core::sign::Identity;

use crate::exit::{Failure, Outcome};

/// The canonical manifest in a run's folder.
pub const MANIFEST: &str = "manifest.bin";
/// The settings in a run's folder, for people.
pub const SETTINGS: &str = "run.toml";
/// The text in a run's folder.
pub const DATA: &str = "data";
/// Where the steward can be dialled, one address a line; written by `muster host`.
pub const ADDRESSES: &str = "address";
/// Name of the organiser's secret.
pub const ORGANISER: &str = "organiser";

/// A secret key of a home that another process may hold: keys are written once, so reading needs no lock.
///
/// # Errors
/// [`Failure`] when the file is missing or no key.
pub fn read_identity(home: &Path, name: &str) -> Outcome<Identity> {
    let path = home.join(format!("{name}.key"));
    let text = std::fs::read_to_string(&path).map_err(|error| {
        Failure::environment(format!(
            "{}: cannot be read ({error}); is this the right directory?",
            path.display()
        ))
    })?;
    let secret = unhex(text.trim());
    let secret = secret.ok_or_else(|| {
        Failure::environment(format!(
            "{}: is no key (64 hexadecimal digits); restore it from a copy",
            path.display()
        ))
    })?;
    Ok(Identity::from_secret(&secret))
}
