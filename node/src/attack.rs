//! Members that cheat, one file for each way to do it. They join like everyone else, see what every member sees, and
//! differ in their [`Conduct`] only. Everything that they do follows from the round and what is public.
//!
//! To add one: a file with a first line `Peer that …`, and a row in [`ATTACKS`].

mod flip;
mod lazy;
mod timed;

use std::str::FromStr;
use std::sync::Arc;

use muster_core::error::Misuse;
use muster_core::ids::Round;

use self::timed::Timed;
use crate::join::Conduct;

/// A way to cheat.
#[derive(Clone, Copy, Debug)]
pub struct Attack {
    /// What `--attack` calls it.
    pub name: &'static str,
    /// The file that does it.
    source: &'static str,
    /// Rounds that it watches, honest, before it begins.
    prepares: u32,
    make: fn(&Plan) -> Arc<dyn Conduct>,
}

/// When and with whom.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The first round in which it cheats.
    pub from: Round,
}

impl Plan {
    /// Alone, from this round on.
    pub fn from(from: Round) -> Self {
        Self { from }
    }
}

/// All ways to cheat, in the order in which help lists them.
pub const ATTACKS: &[Attack] = &[
    Attack {
        name: "flip",
        source: include_str!("attack/flip.rs"),
        prepares: 0,
        make: |_| Arc::new(flip::Flip),
    },
    Attack {
        name: "lazy",
        source: include_str!("attack/lazy.rs"),
        prepares: 1,
        make: |_| Arc::<lazy::Lazy>::default(),
    },
];

impl Attack {
    /// What it does, in one line.
    pub fn about(&self) -> &'static str {
        let first = self.source.lines().next().unwrap_or_default();
        first.trim_start_matches("//! ").trim_end_matches('.')
    }

    /// The conduct of a member that is honest until its plan begins.
    pub fn conduct(&self, plan: Plan) -> Arc<dyn Conduct> {
        let from = Round(plan.from.0.saturating_sub(self.prepares));
        Arc::new(Timed { from, attack: (self.make)(&plan) })
    }
}

impl PartialEq for Attack {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Attack {}

impl FromStr for Attack {
    type Err = Misuse;

    fn from_str(name: &str) -> Result<Self, Misuse> {
        let found = ATTACKS.iter().find(|attack| attack.name == name).copied();
        found.ok_or_else(|| {
            let names: Vec<_> = ATTACKS.iter().map(|attack| attack.name).collect();
            Misuse(format!("no attack {name:?}; there are {}", names.join(", ")))
        })
    }
}

#[cfg(test)]
mod tests;
