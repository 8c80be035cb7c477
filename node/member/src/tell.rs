//! Requests to the steward that must not get lost while it cannot be reached.

use std::time::Duration;

use muster_core::messages::wire::{Request, Response};
use muster_replica::{Contact, PeerError, Peers};

use super::keepers::Keepers;

/// Between two tries.
const PAUSE: Duration = Duration::from_millis(300);
/// Tries before it is given up: with the pauses about five minutes, as long as following goes on.
const TRIES: u32 = 1000;

/// The way to the steward, and to the other members.
pub(super) struct Uplink {
    /// Every member that takes connections, and the steward.
    pub(super) peers: Peers,
    /// The steward among them.
    pub(super) steward: Contact,
    /// How those took what was brought to them that keep parts.
    pub(super) keepers: Keepers,
}

/// Sends the steward a request until it answers, so that a steward that was restarted misses nothing. `None` if it
/// refuses, which is final, or cannot be reached for [`TRIES`] tries.
pub(super) async fn tell(uplink: &Uplink, request: &Request) -> Option<Response> {
    for _ in 0..TRIES {
        match uplink.peers.ask(&uplink.steward, request).await {
            Ok(answer) => return Some(answer),
            // CHAN-9: a closed channel is no answer, and a Refused is a final one.
            Err(PeerError::Net(error)) => tracing::debug!("telling the steward again: {error}"),
            // A round's work is lost, and it may be that of two machines (COMMIT-8).
            Err(PeerError::Refused(why)) if matches!(request, Request::Commit(_)) => {
                tracing::warn!("the steward did not take this member's commitment: {why}");
                return None;
            }
            Err(error) => {
                tracing::debug!("the steward did not take it: {error}");
                return None;
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
    None
}
