//! Where a round's time goes.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A kind of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Forward and backward passes.
    Gradient,
    /// Gradients to integers, and their sums.
    Grid,
    /// Merkle trees of contributions and states.
    Hashing,
    /// Signatures made.
    Signing,
    /// Parts out and results in, from the first byte to the last, encryption and proofs included.
    Exchange,
    /// The robust rule.
    Aggregation,
    /// The update of the state.
    Optimiser,
}

impl Phase {
    /// All of them, in the order of a round.
    pub const ALL: [Self; 7] = [
        Self::Gradient,
        Self::Grid,
        Self::Hashing,
        Self::Signing,
        Self::Exchange,
        Self::Aggregation,
        Self::Optimiser,
    ];

    /// The word for people and reports.
    pub fn word(self) -> &'static str {
        match self {
            Self::Gradient => "gradient",
            Self::Grid => "grid",
            Self::Hashing => "hashing",
            Self::Signing => "signing",
            Self::Exchange => "exchange",
            Self::Aggregation => "aggregation",
            Self::Optimiser => "optimiser",
        }
    }
}

/// Sums of time by phase, from any thread.
#[derive(Default)]
pub struct Stopwatch([AtomicU64; Phase::ALL.len()]);

impl Stopwatch {
    /// Adds time to a phase.
    pub fn add(&self, phase: Phase, time: Duration) {
        let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.0[phase as usize].fetch_add(nanoseconds, Ordering::Relaxed);
    }

    /// Runs something and adds its time.
    pub fn time<T>(&self, phase: Phase, work: impl FnOnce() -> T) -> T {
        let begun = Instant::now();
        let done = work();
        self.add(phase, begun.elapsed());
        done
    }

    /// Seconds spent so far on a phase.
    pub fn seconds(&self, phase: Phase) -> f64 {
        self.0[phase as usize].load(Ordering::Relaxed) as f64 / 1e9
    }
}
