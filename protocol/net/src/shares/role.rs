//! What a peer is to whoever serves it.

/// Whether the ledger knows a peer; it decides on its share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// A member of the run, or its steward.
    Member,
    /// Anybody else: keys cost nothing. A banned member is one.
    Stranger,
}
