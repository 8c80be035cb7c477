//! What there is to compute, in which order.

use muster_core::ids::Digest;

use super::Audits;
use super::work::Work;

impl Audits {
    /// The next thing to compute, as [`Audits::works`] orders it.
    pub fn next_work(&self, have: &dyn Fn(&Digest) -> bool) -> Option<Work> {
        self.works(have).next()
    }

    /// What there is to compute: what it owes, the oldest contribution first, as that is what its clock is about (DUTY-4); then
    /// cases as a juror; then contributions that it has a suspicion of; then verdicts of others. One of these that presses
    /// comes after each work of its own. `have` says whether a state is at hand.
    pub fn works<'a>(&'a self, have: &'a dyn Fn(&Digest) -> bool) -> impl Iterator<Item = Work> + 'a {
        let charges = std::iter::once_with(|| self.charges.next_work(have)).flatten();
        let others = || std::iter::once_with(|| self.others.next_work(have)).flatten();
        // Unless a round waits for work of its own.
        // A round that waits holds up everybody, a recheck nobody (AUDIT-26).
        let held = move || {
            let mut own = self.own_works(have, true);
            own.next().is_some_and(|work| self.others.holds(work.subject.commit.round))
        };
        let presses = move |work: &Work| self.others.presses(work.subject.commit.round) && !held();
        // In turn with its own: a verifier with much to audit would otherwise never come to rechecks, and lies would
        // stay unnoticed.
        let pressing = others().filter(move |work| self.alternates && presses(work));
        // What it owes has a clock; a juror has none, but a ban waits for it; a mere suspicion waits longest.
        let own = self.own_works(have, true).chain(charges).chain(self.own_works(have, false));
        pressing.chain(own).chain(others())
    }

    /// Steps of audits of its own: those that it owes, or what it looks at beyond them.
    fn own_works<'a>(
        &'a self,
        have: &'a dyn Fn(&Digest) -> bool,
        owed: bool,
    ) -> impl Iterator<Item = Work> + 'a {
        // Ordered by round and slot, as the clock of DUTY-4 is.
        let cases = self.cases.values().filter(|case| have(&case.subject.commit.state));
        let exact = self.manifest.profile.leaves_stand_for_integers();
        cases.filter_map(move |case| {
            let kind = case.work(owed, exact)?;
            Some(Work { subject: case.subject.clone(), kind })
        })
    }
}
