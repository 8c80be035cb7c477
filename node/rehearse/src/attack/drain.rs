//! Peer that leaves for good as soon as rows of experts have come to be, with all who agreed on it.
//!
//! A row whose holders have gone is closed until newcomers hold it; the others go on.

use muster_core::ids::Round;
use muster_member::NodeConduct;

pub(super) struct Drain {
    pub(super) from: Round,
}

impl NodeConduct for Drain {
    fn stays(&self, round: Round) -> bool {
        round < self.from
    }
}
