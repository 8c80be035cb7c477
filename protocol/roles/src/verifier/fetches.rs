//! Contributions that work waits for: nobody waits for them but that work.

use std::collections::BTreeMap;
use std::sync::Arc;

use muster_core::bug::OrBug;
use muster_core::contribution::PackedContribution;
use muster_core::ids::{MemberId, Part};
use muster_core::manifest::Profile;
use muster_core::messages::evidence::Evidence;

use super::audits::{Key, Subject, Work, WorkKind};
use crate::setback::Setback;

/// Contributions that are fetched or wait for their work, at most.
const FETCHED: usize = 4;
/// The same of a large model: beside one that nobody shows in time there is room for another one.
const FEWEST: usize = 2;
/// Bytes that more of them may take.
const BYTES: usize = 64 << 20;

/// The committed integers of a contribution; none where they are unavailable.
pub type Integers = Option<Arc<PackedContribution>>;

/// The committed integers of a contribution, or the parts that nobody has shown.
pub type Found = Result<Arc<PackedContribution>, Vec<Part>>;

/// What is to be fetched, being fetched, and there.
pub(super) struct Fetches {
    /// How many may be fetched or there.
    most: usize,
    wanted: Vec<Arc<Subject>>,
    running: BTreeMap<Key, Arc<Subject>>,
    done: BTreeMap<Key, Integers>,
    /// AUDIT-29: members that did not show what they have, or signed for: where all leaves stand for it, they are not asked
    /// again for some rounds.
    withheld: BTreeMap<MemberId, Setback>,
}

impl Fetches {
    /// Of contributions of so many integers.
    pub(super) fn of(integers: usize) -> Self {
        let most = (BYTES / (4 * integers).max(1)).clamp(FEWEST, FETCHED);
        let (wanted, running, done, withheld) = Default::default();
        Self { most, wanted, running, done, withheld }
    }

    /// These are wanted, in this order, and no others any more.
    pub(super) fn want(&mut self, subjects: Vec<Arc<Subject>>) {
        // A whole contribution is as large as the model: what no work waits for is not kept.
        self.done.retain(|key, _| subjects.iter().any(|subject| subject.key() == *key));
        self.wanted = subjects;
    }

    /// The next one to fetch.
    pub(super) fn begin(&mut self) -> Option<Arc<Subject>> {
        // Both count: fetched faster than computed, contributions would fill the memory.
        if self.done.len() + self.running.len() >= self.most {
            return None;
        }
        let fresh = |subject: &&Arc<Subject>| {
            let key = subject.key();
            !self.running.contains_key(&key) && !self.done.contains_key(&key) && !self.is_withheld(subject)
        };
        let subject = self.wanted.iter().find(fresh)?.clone();
        self.running.insert(subject.key(), subject.clone());
        Some(subject)
    }

    /// Takes the integers of a contribution, or that they are unavailable.
    pub(super) fn end(&mut self, key: Key, found: Found, profile: Profile) {
        let Some(subject) = self.running.remove(&key).or_bug("a contribution that is being fetched") else {
            return;
        };
        // With a tolerance nothing stands for the integers, so that they are asked for each time (TOL-12).
        if let Err(lacking) = &found
            && profile.leaves_stand_for_integers()
        {
            let sources = subject.sources.iter().filter(|source| lacking.contains(&source.part));
            for charged in sources.flat_map(|source| source.charged(&subject.author)) {
                let before = self.withheld.get(charged).copied();
                self.withheld.insert(*charged, Setback::after(before, key.0));
            }
            self.withheld.retain(|_, setback| !setback.is_over(key.0));
        }
        self.done.insert(key, found.ok());
    }

    /// Whether nothing more comes.
    pub(super) fn is_done(&self, subject: &Subject) -> bool {
        self.done.contains_key(&subject.key()) || self.is_withheld(subject)
    }

    /// Whether all who are charged with some part of a contribution have shown nothing in its round, or shortly before.
    fn is_withheld(&self, subject: &Subject) -> bool {
        let round = subject.commit.round;
        let holds = |member: &MemberId| self.withheld.get(member).is_some_and(|setback| setback.holds(round));
        subject.sources.iter().any(|source| source.charged(&subject.author).iter().all(holds))
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
        WorkKind::SecondOpinion(_, None) | WorkKind::Everything => !profile.leaves_stand_for_integers(),
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

    use super::super::audits::Source;
    use super::*;

    const AUTHOR: u8 = 7;
    const KEEPER: u8 = 8;

    fn member(number: u8) -> MemberId {
        MemberId([number; 32])
    }

    /// The contribution of a slot to a round, by a member of this number, of one part that these may hold.
    fn subject(round: u32, slot: u16, author: u8, holders: &[u8], signed: bool) -> Arc<Subject> {
        let record =
            Record { height: Height(0), previous: Digest::default(), body: Body::Close(Digest::default()) };
        let commit = Commit {
            round: Round(round),
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
        let holders = holders.iter().copied().map(member).collect();
        Arc::new(Subject {
            record: Identity::from_secret(&[1; 32]).sign(RunId(Digest::default()), &record),
            freeze: Digest::default(),
            commit,
            author: member(author),
            sources: vec![Source { part: Part(0), blocks: Vec::new(), holders, signed }],
        })
    }

    /// Has a contribution fetched in vain; whether anybody was asked.
    fn in_vain(fetches: &mut Fetches, subject: &Arc<Subject>, profile: Profile) -> bool {
        fetches.want(vec![subject.clone()]);
        let asked = fetches.begin().is_some();
        if asked {
            fetches.end(subject.key(), Err(vec![Part(0)]), profile);
        }
        assert!(fetches.is_done(subject) && fetches.take(subject.key()).is_none());
        asked
    }

    #[test]
    fn fetches_are_bounded_and_in_order() {
        let subjects: Vec<_> =
            (0..6).map(|slot| subject(0, slot, slot as u8, &[slot as u8], false)).collect();
        let mut fetches = Fetches::of(1);
        fetches.want(subjects.clone());
        let begun: Vec<Key> = std::iter::from_fn(|| fetches.begin()).map(|subject| subject.key()).collect();
        assert_eq!(begun, subjects[..FETCHED].iter().map(|subject| subject.key()).collect::<Vec<_>>());
        for key in begun {
            fetches.end(key, Ok(Arc::new(PackedContribution::of([]))), Profile::Exact);
        }
        assert!(fetches.begin().is_none(), "as many wait for their work");
        assert!(fetches.take(subjects[0].key()).is_some());
        fetches.want(subjects[1..].to_vec());
        assert_eq!(fetches.begin().map(|subject| subject.key()), Some(subjects[4].key()));
    }

    #[test]
    fn fewer_are_fetched_at_once_where_they_are_large() {
        let subjects: Vec<_> =
            (0..6).map(|slot| subject(0, slot, slot as u8, &[slot as u8], false)).collect();
        for (integers, most) in [(0, FETCHED), (BYTES / 4 / 3, 3), (BYTES, FEWEST)] {
            let mut fetches = Fetches::of(integers);
            fetches.want(subjects.clone());
            assert_eq!(std::iter::from_fn(|| fetches.begin()).count(), most);
            // What has come takes as much as what is on its way.
            fetches.end(subjects[0].key(), Ok(Arc::new(PackedContribution::of([]))), Profile::Exact);
            assert!(fetches.begin().is_none());
            fetches.take(subjects[0].key());
            fetches.want(subjects[1..].to_vec());
            assert!(fetches.begin().is_some());
        }
    }

    #[test]
    fn audit_29_who_keeps_its_integers_back_is_asked_ever_more_rarely_where_leaves_stand_for_them() {
        for profile in [Profile::Exact, Profile::F32] {
            let mut fetches = Fetches::of(1);
            let asked = (0..16).filter(|round| {
                in_vain(&mut fetches, &subject(*round, 0, AUTHOR, &[AUTHOR], false), profile)
            });
            let asked: Vec<u32> = asked.collect();
            let all: Vec<u32> = (0..16).collect();
            assert_eq!(asked, if profile == Profile::Exact { vec![0, 1, 3, 7, 15] } else { all });
        }
    }

    /// A keeper that signs receipts and serves nobody, of members that nobody can dial: the fault is the keeper's.
    #[test]
    fn audit_29_a_missing_block_is_charged_to_whoever_signed_for_it() {
        let mut fetches = Fetches::of(1);
        for round in 0..4 {
            in_vain(&mut fetches, &subject(round, 0, AUTHOR, &[KEEPER], true), Profile::Exact);
        }
        assert!(fetches.withheld.contains_key(&member(KEEPER)));
        assert!(!fetches.withheld.contains_key(&member(AUTHOR)), "its integers are with the keeper");
        let elsewhere = subject(4, 0, AUTHOR, &[9], true);
        assert!(in_vain(&mut fetches, &elsewhere, Profile::Exact), "another keeper has them in this round");
        let both = subject(5, 1, 6, &[KEEPER, 6], true);
        assert!(!fetches.is_done(&both), "an author that can be dialled is asked beside its keeper");
    }
}
