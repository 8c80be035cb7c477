//! Keeps a member within the disk space that it may use.

use std::fs;
use std::path::Path;

use muster_core::limits::{OFFERS, SEATS};
use muster_core::manifest::Manifest;
use muster_replica::memory;
use muster_store::patience::patiently;

use crate::{JoinError, JoinOptions};

/// The file that grows for as long as the run lasts, by at most half of itself at a time.
const JOURNAL: &str = "journal.redb";

/// Refuses a run that takes more disk than allowed.
pub(super) fn check_run(options: &JoinOptions, manifest: &Manifest) -> Result<(), JoinError> {
    let Some(most) = options.max_disk else { return Ok(()) };
    let (need, seats) = (expected(manifest), at_most(manifest));
    if need > most {
        return Err(JoinError::Environment(format!(
            "this run takes about {} GiB of disk, --max-disk allows {}; allow more, or join another run",
            gibibytes(need),
            gibibytes(most)
        )));
    }
    if seats > most {
        tracing::info!(
            "if few members can be dialled, those keep the others' blocks, up to {} GiB here; of that no more is taken than \
             --max-disk leaves",
            gibibytes(seats)
        );
    }
    check_round(options, manifest).map(drop)
}

/// Bytes that a member of a run takes, about: where all members can be dialled, and share the parts of a round.
pub(crate) fn expected(manifest: &Manifest) -> u64 {
    kept(manifest, u64::from(manifest.aggregation.replicas))
}

/// Bytes that it takes where it alone can be dialled: all parts of every other seat.
fn at_most(manifest: &Manifest) -> u64 {
    kept(manifest, SEATS as u64)
}

/// Bytes of a member that keeps so many contributions of others from each round.
fn kept(manifest: &Manifest, others: u64) -> u64 {
    let rounds = u64::from(manifest.retention.contributions).saturating_add(2);
    let round = contribution_bytes(manifest).saturating_mul(others.saturating_add(1));
    let files = manifest.data.all_bytes();
    files
        .saturating_add(rounds.saturating_mul(round))
        .saturating_add(state_bytes(manifest).saturating_mul(1 + OFFERED))
        .saturating_add(past_bytes(manifest))
}

/// Refuses a round after which the member's own files might use more disk than allowed. Gives the bytes that are left for
/// blocks of others.
pub(super) fn check_round(options: &JoinOptions, manifest: &Manifest) -> Result<u64, JoinError> {
    let Some(most) = options.max_disk else { return Ok(u64::MAX) };
    let folder = &options.data_dir;
    let journal = fs::metadata(folder.join(JOURNAL)).map_or(0, |journal| taken(&journal));
    let used = used(folder);
    // The last state, and one that is written for others.
    let growth = [journal / 2, contribution_bytes(manifest), state_bytes(manifest), state_bytes(manifest)];
    if let Some(left) = most.checked_sub(growth.into_iter().fold(used, u64::saturating_add)) {
        return Ok(left);
    }
    Err(JoinError::Environment(format!(
        "{}: holds {} GiB, and another round may take more than the {} of --max-disk; allow more, and the same command \
         goes on",
        folder.display(),
        gibibytes(used),
        gibibytes(most)
    )))
}

/// States on disk for others at most: those that are kept, and the next one, which is written aside (STATE-10).
const OFFERED: u64 = OFFERS as u64 + 1;

/// A contribution: the member's own one, or all parts of another one.
fn contribution_bytes(manifest: &Manifest) -> u64 {
    manifest.model.parameters().saturating_mul(4)
}

/// A state with its moments: one is left behind by a membership.
fn state_bytes(manifest: &Manifest) -> u64 {
    manifest.model.parameters().saturating_mul(4 * 3)
}

/// Earlier states, where they are too large for the memory; with their moments where the run may go back to them.
fn past_bytes(manifest: &Manifest) -> u64 {
    let vectors = if manifest.keeps_moments() { 3 } else { 1 };
    let bytes = memory::past(manifest, manifest.model.parameters().saturating_mul(4 * vectors));
    if bytes > memory::PAST_BYTES { bytes } else { 0 }
}

/// Bytes that a folder with all in it takes on the disk. What is removed meanwhile does not count.
pub(crate) fn used(folder: &Path) -> u64 {
    let own = fs::metadata(folder).map_or(0, |about| taken(&about));
    // A folder that is not looked into would count as empty.
    let Ok(entries) = patiently(|| fs::read_dir(folder)) else { return own };
    let size = |entry: fs::DirEntry| match entry.metadata() {
        Ok(about) if about.is_dir() => used(&entry.path()),
        about => about.map_or(0, |about| taken(&about)),
    };
    entries.flatten().map(size).fold(own, u64::saturating_add)
}

/// Bytes that a file takes on the disk. Files have holes, the journal above all, so that its length says too much.
fn taken(about: &fs::Metadata) -> u64 {
    #[cfg(unix)]
    return std::os::unix::fs::MetadataExt::blocks(about).saturating_mul(512);
    #[cfg(not(unix))]
    about.len()
}

fn gibibytes(bytes: u64) -> f64 {
    (bytes as f64 / f64::from(1 << 30) * 1e4).ceil() / 1e4
}
