//! Peer that signs receipts for what others bring it as an aggregator, and then shows it to nobody.
//!
//! Its own work is honest, and so is what it reduces. Whoever cannot be dialled is to look as if it withheld its contribution.

use muster_core::ids::Round;
use muster_member::NodeConduct;

pub(super) struct Stingy;

impl NodeConduct for Stingy {
    fn shows(&self, _: Round) -> bool {
        false
    }
}
