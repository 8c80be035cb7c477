//! What becomes of the rows of a round.

use crate::ids::{Round, RowSet};
use crate::messages::record::RowStep;

/// What a Freeze settles about the rows of its round.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RowPlan {
    /// Rows whose update waits for inspectors.
    pub held: RowSet,
    /// The rows that take a step when the round is over.
    pub steps: Vec<RowStep>,
}

/// A row of a round at its Freeze.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrozenRow {
    /// Whether it has a seat.
    pub seated: bool,
    /// How many contributions with weight are frozen in it.
    pub weighted: u16,
    /// The oldest round of which a ripe update waits (ROW-5).
    pub ripe: Option<Round>,
}

impl FrozenRow {
    /// Whether all its contributions are audited: fewer than `few` of them have weight (STAND-10).
    pub fn is_thin(&self, few: u16) -> bool {
        self.seated && self.weighted < few
    }

    /// Whether its update waits until they have passed: `held` of them at most have weight.
    pub fn is_held(&self, held: u16) -> bool {
        // 0 holds nothing: not even a row of newcomers, whose update is empty.
        self.seated && held > 0 && self.weighted <= held
    }

    /// ROW-6: the round whose results it takes a step by when this round is over. It takes one step at most: by the round's
    /// own if it has a seat and is not held, else by its oldest update that is ripe.
    pub fn step(&self, round: Round, held: u16) -> Option<Round> {
        let own = (self.seated && !self.is_held(held)).then_some(round);
        own.or(self.ripe)
    }
}
