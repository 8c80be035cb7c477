//! Texts as they come from wherever they are.

use muster_replica::exit::Outcome;

/// One of this many texts, or bytes of a single file, is held out when nothing is said about it.
pub(super) const HELD_OUT_PART: usize = 20;

/// Texts that are read at once.
pub(super) struct Passage {
    /// What people call them.
    pub(super) name: String,
    /// They, in order; each ends where the next begins.
    pub(super) texts: Vec<String>,
}

/// Passages in order.
pub(super) type Passages = Box<dyn Iterator<Item = Outcome<Passage>>>;

/// What to pack.
pub(super) struct Sources {
    /// To train on.
    pub(super) train: Passages,
    /// To measure on.
    pub(super) held_out: Passages,
    /// Bytes of all of them, nearly.
    pub(super) bytes: u64,
}
