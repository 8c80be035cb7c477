//! Keeps a node within the disk space that it may use.

use muster_core::error::Misuse;
use muster_core::manifest::Manifest;
use muster_replica::{Allowance, Follower, disk, memory};

use crate::{JoinError, JoinOptions};

fn allowance(options: &JoinOptions) -> Allowance {
    Allowance::new(&options.data_dir, options.bounds.disk)
}

/// Refuses a run that takes more disk than is allowed, or than is free.
pub(super) fn check_run(options: &JoinOptions, manifest: &Manifest) -> Result<(), JoinError> {
    allowance(options).check_run(&disk::contributing(manifest)).map_err(environment)?;
    let Some(most) = options.bounds.disk else { return Ok(()) };
    let (alone, ledger) = (disk::contributing_alone(manifest).bytes(), disk::longest_ledger(manifest));
    if alone > most {
        tracing::info!(
            "if few members can be dialled, those keep the others' blocks, up to {} here; of that no more is taken than \
             --max-disk leaves",
            memory::shown(alone)
        );
    }
    if ledger > most {
        tracing::info!(
            "with a member in every place the ledger takes up to {}; before this member would take more than --max-disk allows, \
             it stops",
            memory::shown(ledger)
        );
    }
    check_round(options, manifest).map(drop)
}

/// Bytes of the training text that are kept: what the rest of the run leaves of what is allowed and free.
pub(super) fn room_for_text(options: &JoinOptions, manifest: &Manifest) -> u64 {
    allowance(options).room(&disk::contributing(manifest))
}

/// Refuses a round after which the member's own files might use more disk than allowed. Gives the bytes that are left for
/// blocks of others.
pub(super) fn check_round(options: &JoinOptions, manifest: &Manifest) -> Result<u64, JoinError> {
    allowance(options).check_round(disk::growth_of_node(manifest)).map_err(environment)
}

/// Has a follower write no records beyond what is allowed. What else a round takes was left by [`check_round`].
pub(super) fn keep_within(options: &JoinOptions, follower: &mut Follower) {
    follower.keep_within(allowance(options), 0);
}

fn environment(Misuse(why): Misuse) -> JoinError {
    JoinError::Environment(why)
}
