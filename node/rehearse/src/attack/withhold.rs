//! Peer that commits and never delivers, to hold the others up and learn who audits it.
//!
//! Its work is honest. It does not count, and nobody can prove that it was not lost on the way: it costs the peer its
//! own contributions. One that says nothing at all makes a round wait for T_part, as often
//! as LEDGER-20 lets it back.

use muster_core::ids::{MemberId, Part, Round};
use muster_member::NodeConduct;

pub(super) struct Withhold {
    /// Whether it says that it delivered nothing.
    pub(super) says_so: bool,
}

impl NodeConduct for Withhold {
    fn deliver(&self, _: Round, _: Vec<(Part, MemberId)>) -> Option<Vec<(Part, MemberId)>> {
        self.says_so.then(Vec::new)
    }
}
