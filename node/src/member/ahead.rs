//! What was computed for a round before it began.

use std::sync::Mutex;
use std::sync::atomic::Ordering;

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
    /// What is being computed.
    under_way: Option<Assignment>,
    done: Option<(Assignment, Summed)>,
    /// Sums that were of use.
    used: u64,
}

impl Ahead {
    /// A round has begun, with these leaves: others that are under way are of no use, and end with the one that is being computed.
    pub(super) fn begin(&self, work: &Assignment) {
        let mut held = lock(&self.0);
        held.begun = held.begun.max(Some(work.round));
        if let Some(other) = held.under_way.as_ref().filter(|other| !same(other, work)) {
            other.stop.store(true, Ordering::Relaxed);
        }
    }

    /// Whether it is worth computing these leaves; they are under way then.
    pub(super) fn start(&self, work: &Assignment) -> bool {
        let mut held = lock(&self.0);
        let wanted = held.begun < Some(work.round);
        held.under_way = wanted.then(|| work.clone());
        wanted
    }

    /// Keeps a sum, in place of any earlier one.
    pub(super) fn put(&self, work: Assignment, summed: Summed) {
        let mut held = lock(&self.0);
        (held.under_way, held.done) = (None, Some((work, summed)));
    }

    /// The sum of just these leaves; what is there for another round, or for other seats than there are, is dropped.
    pub(super) fn take(&self, work: &Assignment) -> Option<Summed> {
        let mut held = lock(&self.0);
        let (done, summed) = held.done.take()?;
        let same = same(&done, work);
        held.used += u64::from(same);
        same.then_some(summed)
    }

    /// In how many rounds a sum was there before they began.
    pub(super) fn used(&self) -> u64 {
        lock(&self.0).used
    }
}

/// Whether these are the same leaves of the same round.
fn same(one: &Assignment, other: &Assignment) -> bool {
    // Seed and root: of a round that was taken back another one has the state.
    (one.round, one.seed, one.root, one.slot) == (other.round, other.seed, other.root, other.slot)
        && one.route == other.route
        && one.quota == other.quota
        && one.seating == other.seating
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rehearse::attack::tests::work;

    fn stopped(work: &Assignment) -> bool {
        work.stop.load(Ordering::Relaxed)
    }

    #[test]
    fn round_29_a_round_that_begins_stops_other_leaves_and_takes_its_own() {
        let (ahead, foreseen) = (Ahead::default(), work(4));
        // A block that was reassigned, or a state that was taken back.
        let others = [
            Assignment { quota: foreseen.quota + 1, stop: Default::default(), ..foreseen.clone() },
            Assignment { root: foreseen.seed, stop: Default::default(), ..foreseen.clone() },
        ];
        assert!(ahead.start(&foreseen));
        ahead.begin(&foreseen);
        assert!(!stopped(&foreseen), "these leaves are the round's own");
        for other in &others {
            assert!(!ahead.start(other), "a round that has begun is not foreseen");
            ahead.put(foreseen.clone(), Summed::default());
            assert!(ahead.take(other).is_none());
            assert!(ahead.take(&foreseen).is_none(), "it was dropped");
        }
        ahead.put(foreseen.clone(), Summed::default());
        assert!(ahead.take(&foreseen).is_some() && ahead.used() == 1);

        let next = Assignment { round: Round(5), stop: Default::default(), ..foreseen.clone() };
        let other = Assignment { quota: 1, stop: Default::default(), ..next.clone() };
        assert!(ahead.start(&next));
        ahead.begin(&other);
        assert!(stopped(&next) && !stopped(&other), "leaves of other seats are of no use");
    }
}
