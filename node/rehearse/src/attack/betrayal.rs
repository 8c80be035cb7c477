//! What gives an attack away, and how soon.

pub use muster_organise::rates::Wrong;

/// What an attack does that somebody could find, and how often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Betrayal {
    /// What is wrong with a bad contribution.
    pub wrong: Wrong,
    /// How often one is bad.
    pub rhythm: Rhythm,
}

/// How often a contribution is bad, from the attack's first round on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rhythm {
    /// In every round.
    Always,
    /// Once in this many rounds.
    Every(u32),
    /// In one round; then the member leaves, or has no seat for a while.
    Once,
}

impl Rhythm {
    /// Whether a round is bad, counted from the attack's first one.
    pub fn bad(self, since: u32) -> bool {
        match self {
            Self::Always => true,
            Self::Every(rounds) => since.is_multiple_of(rounds.max(1)),
            Self::Once => since == 0,
        }
    }
}
