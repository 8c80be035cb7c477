//! What is gossiped, and who judges it.

use std::net::IpAddr;

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
    /// Of no use here, but nobody's fault: dropped, and charged to the peer that brought it.
    Ignore,
    /// Nobody who checks would have passed it on: dropped, and held against the peer that brought it.
    Reject,
}

/// Judges gossiped messages, and knows the members. It is called by the swarm's own thread; what it waits for holds up
/// gossip, and nothing else.
pub trait Sieve: Send + Sync + 'static {
    /// Called once on the swarm's thread, before anything else is asked there.
    fn begin(&self) {}

    /// Judges a message of at most [`muster_core::limits::GOSSIP_BYTES`]; the same one comes again only after a minute.
    fn judge(&self, topic: Topic, message: &[u8]) -> Validity;

    /// Whether somebody is a member: the table keeps its whereabouts, and it has a share of its own. Asked for each piece that
    /// is read.
    fn knows(&self, member: &MemberId) -> bool;

    /// Whether the ledger says that a member can be dialled at this address, on any port.
    fn is_host(&self, address: &IpAddr) -> bool;
}
