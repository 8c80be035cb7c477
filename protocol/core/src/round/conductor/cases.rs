//! Open cases hold the next round back (AUDIT-26).

use super::Conductor;
use crate::ids::Round;

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

    /// Whether the next round waits for an open case.
    pub fn is_held(&self) -> bool {
        self.gathered.next.is_some() && self.holds_outcome()
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
