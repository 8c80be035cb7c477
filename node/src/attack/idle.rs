//! Peer that takes parts in and never says what came of them, so that rounds wait for it.
//!
//! Another one reduces the part, and it has failed in that round.

use muster_core::reduction::Reduced;

use crate::join::{Conduct, Inputs};

pub(super) struct Idle;

impl Conduct for Idle {
    fn reduce(&self, _: &Inputs<'_>) -> Vec<Reduced> {
        Vec::new()
    }
}
