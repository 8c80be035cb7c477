//! Members that cheat, each with one way to do it. They join like everyone else and differ only in their labour.

mod flip;
mod inflate;
mod lazy;
mod nudge;

use std::sync::Arc;

use clap::ValueEnum;
use muster_core::ids::Round;

use crate::join::Labour;

/// A way to cheat.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Attack {
    /// Commits ten times the opposite of its sum.
    Flip,
    /// Commits leaves that it did not compute.
    Lazy,
    /// Multiplies the parts that it reduces by a hundred.
    Inflate,
    /// Turns the sign of one block of the parts that it reduces.
    Nudge,
}

impl Attack {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Flip => "flip",
            Self::Lazy => "lazy",
            Self::Inflate => "inflate",
            Self::Nudge => "nudge",
        }
    }

    /// The labour of a member that is honest before this round.
    pub fn labour(self, from: Round) -> Arc<dyn Labour> {
        match self {
            Self::Flip => Arc::new(flip::Flip { from }),
            Self::Lazy => Arc::new(lazy::Lazy::new(from)),
            Self::Inflate => Arc::new(inflate::Inflate { from }),
            Self::Nudge => Arc::new(nudge::Nudge { from }),
        }
    }
}

#[cfg(test)]
mod tests;
