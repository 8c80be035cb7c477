//! What was computed for a round before it began.

use std::sync::Mutex;

use muster_core::ids::Round;
use muster_core::lock::lock;

use super::compute::{Assignment, Summed};

/// The sum of the leaves of a round that was foreseen (ROUND-29). It holds as many bytes as a contribution and its leaves.
#[derive(Default)]
pub(super) struct Ahead(Mutex<Held>);

#[derive(Default)]
struct Held {
    /// The newest round that has begun.
    begun: Option<Round>,
    done: Option<(Assignment, Summed)>,
    /// Sums that were of use.
    used: u64,
}

impl Ahead {
    /// A round has begun: it is not foreseen any more.
    pub(super) fn begin(&self, round: Round) {
        let mut held = lock(&self.0);
        held.begun = held.begun.max(Some(round));
    }

    /// Whether it is worth computing for a round.
    pub(super) fn is_wanted(&self, round: Round) -> bool {
        lock(&self.0).begun < Some(round)
    }

    /// Keeps a sum, in place of any earlier one.
    pub(super) fn put(&self, work: Assignment, summed: Summed) {
        lock(&self.0).done = Some((work, summed));
    }

    /// The sum of just these leaves; what is there for another round, or for other seats than there are, is dropped.
    pub(super) fn take(&self, work: &Assignment) -> Option<Summed> {
        let mut held = lock(&self.0);
        let (done, summed) = held.done.take()?;
        // Seed and root: of a round that was taken back another one has the state.
        let same = (done.round, done.seed, done.root, done.slot)
            == (work.round, work.seed, work.root, work.slot)
            && done.route == work.route
            && done.quota == work.quota
            && done.seating == work.seating;
        held.used += u64::from(same);
        same.then_some(summed)
    }

    /// In how many rounds a sum was there before they began.
    pub(super) fn used(&self) -> u64 {
        lock(&self.0).used
    }
}
