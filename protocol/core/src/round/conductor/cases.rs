//! Open cases hold the next round back (AUDIT-26).

use std::collections::BTreeSet;

use super::Conductor;
use crate::ids::{MemberId, Round, Slot};
use crate::ledger::{Member, RoundView, Stage, Standing};
use crate::messages::round::{Bitmap, Commit};
use crate::sign::Signed;

/// What the docket says of its open cases.
#[derive(Clone, Copy)]
pub(super) struct OldestCase(Option<Round>);

impl Conductor {
    /// Takes note of the round of the oldest open case, by the ledger as it is now; none where every case is closed.
    /// Call it at the start and after each record: until then no round is opened.
    pub fn cases(&mut self, now: u64, oldest: Option<Round>) {
        self.cases = Some(OldestCase(oldest));
        self.tick(now);
    }

    /// Takes note of the members that are late (AUDIT-27), for the next Freeze.
    pub fn late(&mut self, members: BTreeSet<MemberId>) {
        self.late = members;
    }

    /// The slots of those that have committed and are late.
    pub(super) fn late_slots(&self) -> Bitmap {
        let mut late = Bitmap::default();
        let slots = self.gathered.commits.iter().filter(|(_, commit)| {
            let author = commit.claimed_signer();
            self.late.contains(&author) && self.ledger.may_be_late(&author)
        });
        slots.for_each(|(slot, _)| late.insert(*slot));
        late
    }

    /// AUDIT-27: whether all that would count is of members that are late. A round without them would apply nothing. Only
    /// while one of them is there: then a clock ends what it, or its verifier, lets others wait for (AUDIT-8, DUTY-4).
    pub(super) fn waits_for_answers(&self, late: &Bitmap) -> bool {
        let author = |commit: &Signed<Commit>| self.ledger.member(&commit.claimed_signer());
        let weighs = |commit: &_| author(commit).is_some_and(|member| self.ledger.weighs(member));
        let present = |member: &Member| matches!(member.standing, Standing::Active | Standing::Away);
        let counts = |(slot, commit): (&Slot, &_)| weighs(commit) && !late.contains(*slot);
        let awaited = |(slot, commit): (&Slot, &Signed<Commit>)| {
            weighs(commit) && late.contains(*slot) && author(commit).is_some_and(present)
        };
        let commits = || self.gathered.commits.iter();
        commits().any(awaited) && !commits().any(counts)
    }

    /// Whether the next round waits for an open case.
    pub fn is_held(&self) -> bool {
        let complete = |view: &RoundView| view.late().is_empty() && self.freeze_is_due(view);
        let computed = self.ledger.stage() == Stage::Computing && self.ledger.current().is_some_and(complete);
        let answers = computed && self.waits_for_answers(&self.late_slots());
        self.gathered.next.is_some() && self.holds_outcome() || answers
    }

    // AUDIT-26: no round is opened with which one that has an open case would leave the window.
    pub(super) fn holds_outcome(&self) -> bool {
        // Otherwise a member that answers nothing would only have to wait until its round is forgotten; what
        // holds a round has clocks of its own.
        let last = self.ledger.current().is_some_and(|view| self.ledger.ends_with(view.round()));
        // After the last round nothing leaves the window: there the Close waits for the cases.
        !last && self.waits_for_cases(|round| self.ledger.is_last_call(round))
    }

    pub(super) fn holds_begin(&self) -> bool {
        self.waits_for_cases(|round| !self.ledger.keeps_state(round))
    }

    fn waits_for_cases(&self, is_due: impl Fn(Round) -> bool) -> bool {
        // Unknown holds as well: a case may have come up with the newest record.
        self.cases.is_none_or(|OldestCase(oldest)| oldest.is_some_and(is_due))
    }
}
