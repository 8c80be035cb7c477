//! Contributions that work waits for: nobody waits for them but that work.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use muster_core::ids::MemberId;
use muster_core::manifest::Profile;
use muster_core::messages::evidence::Evidence;

use super::audits::{Key, Subject, Work, WorkKind};

/// Contributions that are fetched at once, and fetched ones that wait for their work, at most.
const FETCHED: usize = 4;

/// The committed integers of a contribution, or that they are not to be had.
pub type Integers = Option<Arc<Vec<i32>>>;

/// What is to be fetched, being fetched, and there.
#[derive(Default)]
pub(super) struct Fetches {
    wanted: Vec<Arc<Subject>>,
    running: BTreeMap<Key, Arc<Subject>>,
    done: BTreeMap<Key, Integers>,
    /// Members whose integers could not be had once: where all leaves stand for them, they are not asked for again.
    withheld: BTreeSet<MemberId>,
}

impl Fetches {
    /// These are wanted, in this order, and no others any more.
    pub(super) fn want(&mut self, subjects: Vec<Arc<Subject>>) {
        self.done.retain(|key, _| subjects.iter().any(|subject| subject.key() == *key));
        self.wanted = subjects;
    }

    /// The next one to fetch.
    pub(super) fn begin(&mut self) -> Option<Arc<Subject>> {
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

    /// One was fetched, or is not to be had.
    pub(super) fn end(&mut self, key: Key, q: Integers, profile: Profile) {
        let Some(subject) = self.running.remove(&key) else { return };
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
