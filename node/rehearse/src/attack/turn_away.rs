//! Peer that takes in nobody's parts and signs no receipt, so that the others seem to have delivered nothing.
//!
//! They bring to the steward what it turned away (ROUND-24), and it gets the inputs from there.

use muster_core::ids::{MemberId, Round};
use muster_member::NodeConduct;

pub(super) struct TurnAway;

impl NodeConduct for TurnAway {
    fn takes_in(&self, _: Round, _: &MemberId) -> bool {
        false
    }
}
