//! What is gossiped, and who judges it.

use muster_core::ids::MemberId;

/// What a message is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Topic {
    /// What the steward sealed.
    Records,
    /// What members committed to.
    Commits,
}

/// What is done with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Validity {
    /// True: passed on to others.
    Accept,
    /// Of no use here, but nobody's fault: dropped.
    Ignore,
    /// Nobody who checks would have passed it on: dropped, and held against the peer that brought it.
    Reject,
}

/// Judges gossiped messages. It is called by the swarm's own task and must not wait.
pub trait Sieve: Send + 'static {
    /// Judges a message of at most [`muster_core::limits::GOSSIP_BYTES`]; the same one comes again only after minutes.
    fn judge(&mut self, topic: Topic, message: &[u8]) -> Validity;

    /// Whether the table keeps this member's whereabouts.
    fn knows(&self, member: &MemberId) -> bool;
}
