//! Members that cheat, each with one way to do it. They join like everyone else and differ only in their labour.

mod flip;
mod lazy;
mod lie;

use std::sync::Arc;

use clap::ValueEnum;
use muster_core::ids::Round;

use crate::join::Labour;

pub use lie::Lie;

/// A way to cheat.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Attack {
    /// Commits ten times the opposite of its sum.
    Flip,
    /// Commits leaves that it did not compute.
    Lazy,
}

impl Attack {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Flip => "flip",
            Self::Lazy => "lazy",
        }
    }

    /// The labour of a member that is honest before this round.
    pub fn labour(self, from: Round) -> Arc<dyn Labour> {
        match self {
            Self::Flip => Arc::new(flip::Flip { from }),
            Self::Lazy => Arc::new(lazy::Lazy::new(from)),
        }
    }
}

#[cfg(test)]
mod tests;
