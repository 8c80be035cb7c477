//! Contributions that work waits for: nobody waits for them but that work.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use muster_core::ids::MemberId;
use muster_core::manifest::Profile;
use muster_core::messages::evidence::Evidence;

use super::audits::{Key, Subject, Work, WorkKind};

/// Contributions that are fetched at once, and fetched ones that wait for their work, at most.
const FETCHED: usize = 4;

/// The committed integers of a contribution; none where they are unavailable.
pub type Integers = Option<Arc<Vec<i32>>>;

/// What is to be fetched, being fetched, and there.
#[derive(Default)]
pub(super) struct Fetches {
    wanted: Vec<Arc<Subject>>,
    running: BTreeMap<Key, Arc<Subject>>,
    done: BTreeMap<Key, Integers>,
    /// Members whose integers were unavailable once: where all leaves stand for them, they are not asked for again.
    withheld: BTreeSet<MemberId>,
}

impl Fetches {
    /// These are wanted, in this order, and no others any more.
    pub(super) fn want(&mut self, subjects: Vec<Arc<Subject>>) {
        // A whole contribution is as large as the model: what no work waits for is not kept.
        self.done.retain(|key, _| subjects.iter().any(|subject| subject.key() == *key));
        self.wanted = subjects;
    }

    /// The next one to fetch.
    pub(super) fn begin(&mut self) -> Option<Arc<Subject>> {
        // Both count: fetched faster than computed, contributions would fill the memory.
        if self.done.len() >= FETCHED || self.running.len() >= FETCHED {
            return None;
        }
        let Self { running, done, withheld, .. } = &*self;
        let fresh = |subject: &&Arc<Subject>| {
            let key = subject.key();
            !running.contains_key(&key) && !done.contains_key(&key) && !withheld.contains(&subject.author)
        };
        let subject = self.wanted.iter().find(fresh)?.clone();
        self.running.insert(subject.key(), subject.clone());
        Some(subject)
    }

    /// Takes the integers of a contribution, or that they are unavailable.
    pub(super) fn end(&mut self, key: Key, q: Integers, profile: Profile) {
        let Some(subject) = self.running.remove(&key) else { return };
        // With a tolerance nothing stands for the integers, so that they are asked for each time (TOL-12).
        if q.is_none() && profile == Profile::Exact {
            self.withheld.insert(subject.author);
        }
        self.done.insert(key, q);
    }

    /// Whether nothing more comes.
    pub(super) fn is_done(&self, subject: &Subject) -> bool {
        self.done.contains_key(&subject.key()) || self.withheld.contains(&subject.author)
    }

    /// What was fetched, for its work.
    pub(super) fn take(&mut self, key: Key) -> Integers {
        self.done.remove(&key).flatten()
    }
}

/// Whether work needs the committed integers, and does not have them.
pub(super) fn wants(work: &Work, profile: Profile) -> bool {
    match &work.kind {
        WorkKind::Contribution | WorkKind::Opinion(_) => true,
        WorkKind::Recheck(evidence) => !matches!(**evidence, Evidence::Recomputation(_)),
        // Where leaves need not be equal, a total is compared by its integers.
        WorkKind::SecondOpinion(_, None) | WorkKind::Everything => profile != Profile::Exact,
        // Nor may a second path have others than the first one had.
        WorkKind::SecondOpinion(_, Some(_)) | WorkKind::SecondRecheck(..) | WorkKind::Leaves(..) => false,
    }
}

#[cfg(test)]
mod tests {
    use muster_core::ids::{Digest, Height, Round, RunId, Slot};
    use muster_core::messages::record::{Body, Record};
    use muster_core::messages::round::Commit;
    use muster_core::sign::Identity;

    use super::*;

    /// The contribution of a slot, by a member of this number.
    fn subject(slot: u16, author: u8) -> Arc<Subject> {
        let record =
            Record { height: Height(0), previous: Digest::default(), body: Body::Close(Digest::default()) };
        let commit = Commit {
            round: Round(0),
            head: Digest::default(),
            state: Digest::default(),
            slot: Slot(slot),
            seats: 9,
            route: None,
            leaves: 1,
            profile: Profile::Exact,
            loss: 0,
            root: Digest::default(),
        };
        Arc::new(Subject {
            record: Identity::from_secret(&[1; 32]).sign(RunId(Digest::default()), &record),
            freeze: Digest::default(),
            commit,
            author: MemberId([author; 32]),
            sources: Vec::new(),
        })
    }

    #[test]
    fn fetches_are_bounded_and_in_order() {
        let subjects: Vec<_> = (0..6).map(|slot| subject(slot, slot as u8)).collect();
        let mut fetches = Fetches::default();
        fetches.want(subjects.clone());
        let begun: Vec<Key> = std::iter::from_fn(|| fetches.begin()).map(|subject| subject.key()).collect();
        assert_eq!(begun, subjects[..FETCHED].iter().map(|subject| subject.key()).collect::<Vec<_>>());
        for key in begun {
            fetches.end(key, Some(Arc::new(vec![1])), Profile::Exact);
        }
        assert!(fetches.begin().is_none(), "as many wait for their work");
        assert!(fetches.take(subjects[0].key()).is_some());
        fetches.want(subjects[1..].to_vec());
        assert_eq!(fetches.begin().map(|subject| subject.key()), Some(subjects[4].key()));
    }

    #[test]
    fn who_kept_its_integers_back_is_not_asked_again_where_leaves_stand_for_them() {
        for profile in [Profile::Exact, Profile::F32] {
            let (first, second) = (subject(0, 7), subject(1, 7));
            let mut fetches = Fetches::default();
            fetches.want(vec![first.clone()]);
            fetches.begin().unwrap();
            fetches.end(first.key(), None, profile);
            assert!(fetches.is_done(&first) && fetches.take(first.key()).is_none());
            fetches.want(vec![second.clone()]);
            assert_eq!(fetches.begin().is_none(), profile == Profile::Exact);
            assert_eq!(fetches.is_done(&second), profile == Profile::Exact);
        }
    }
}
