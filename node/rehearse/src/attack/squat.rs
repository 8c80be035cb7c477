//! Peer that trains honestly, and serves false pieces of the state to whoever fetches trunk or row.
//!
//! The proof of a piece does not fit its values: the piece is not taken, and comes from another holder.

use muster_core::messages::offer::StateQuery;
use muster_member::NodeConduct;

pub(super) struct Squat;

impl NodeConduct for Squat {
    fn piece(&self, _: &StateQuery, mut bytes: Vec<u8>) -> Option<Vec<u8>> {
        // The least that there is to change.
        if let Some(first) = bytes.first_mut() {
            *first ^= 1;
        }
        Some(bytes)
    }
}
