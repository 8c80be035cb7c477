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
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    use muster_core::assign::round_seed;
    use muster_core::ids::{MemberId, Slot};
    use muster_core::manifest::fixture::tiny;
    use muster_replica::Replica;
    use muster_store::dataset::{self, Dataset, SourceText};
    use muster_store::error::StoreError;

    use super::*;
    use crate::leaves::Spares;

    /// Leaves of a round on the first state of a run.
    fn work(round: u32) -> Assignment {
        let directory = tempfile::tempdir().unwrap();
        let text = || {
            let bytes = "to muster is to gather, and to inspect. ".repeat(40).into_bytes();
            vec![Ok::<_, StoreError>(SourceText { name: "text".into(), bytes })]
        };
        let data = dataset::pack(text(), text(), directory.path(), &mut |_| ()).unwrap();
        let dataset = Arc::new(Dataset::open(directory.path(), &data).unwrap());
        let nobody = MemberId([0; 32]);
        let mut manifest = tiny(nobody, nobody, 10, 2);
        manifest.data = data;
        let manifest = Arc::new(manifest);
        let (root, state) = Replica::genesis(manifest.clone(), dataset.clone(), 1, None).unwrap().snapshot();
        let round = Round(round);
        let seed = round_seed(manifest.run(), round, &root);
        Assignment {
            manifest,
            dataset,
            round,
            seed,
            root,
            state,
            slot: Slot(0),
            seats: 2,
            route: None,
            quota: 3,
            seating: Vec::new(),
            parts: Vec::new(),
            deadline: Instant::now() + Duration::from_secs(600),
            stop: Arc::default(),
            spares: Spares::default(),
            scratch: None,
        }
    }

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
