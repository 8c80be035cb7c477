//! Peer that delivers only the part that it reduces itself, and spoils that part, so that nobody can replay why it was banned.
//!
//! The part is struck and reduced by another one, so that what was not delivered counts nowhere; the ban rests on it all the
//! same.

use std::sync::OnceLock;

use muster_core::ids::{MemberId, Part, Round};
use muster_core::reduction::Reduced;
use muster_core::state::Arithmetic;
use muster_member::{AggregatorView, Assignment, NodeConduct, Summed};

use super::inflate::hundredfold;

#[derive(Default)]
pub(super) struct Spoil {
    /// Who keeps what it would otherwise keep of itself alone.
    steward: OnceLock<MemberId>,
}

impl NodeConduct for Spoil {
    fn contribute(&self, work: &Assignment, arithmetic: &mut dyn Arithmetic) -> Summed {
        self.steward.get_or_init(|| work.manifest.steward);
        work.sum(arithmetic)
    }

    fn deliver(&self, _: Round, parts: Vec<(Part, MemberId)>) -> Option<Vec<(Part, MemberId)>> {
        let own = |(_, keeper): &(Part, MemberId)| Some(keeper) == self.steward.get();
        Some(parts.into_iter().filter(own).collect())
    }

    fn reduce(&self, part: &AggregatorView<'_>) -> Vec<Reduced> {
        part.reduce(part.sealed).map(hundredfold).into_iter().collect()
    }
}
