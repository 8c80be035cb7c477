//! What happens in a run, as whoever follows it learns of it.

use crate::ids::Round;
use crate::messages::record::Record;
use crate::messages::wire::Notice;
use crate::sign::Verified;
use crate::state::StateRoots;

/// Something that happened.
#[derive(Debug)]
pub enum Event {
    /// A record was sealed; the ledger has taken it.
    Sealed(Box<Verified<Record>>),
    /// A public notice.
    Notice(Box<Notice>),
    /// The state moved on and has the sealed root.
    Applied(Round, StateRoots),
}
