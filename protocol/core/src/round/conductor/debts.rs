//! What the steward owes: a phase does not end while its own slowness keeps a member from its duty.

use std::collections::BTreeSet;

use super::Conductor;
use crate::ledger::Stage;

/// Answers that members wait for, and how long they have waited in the present phase.
#[derive(Default)]
pub(super) struct Debts {
    open: BTreeSet<u64>,
    /// Since when something is owed without a break.
    since: u64,
    /// Milliseconds of the phase in which something was owed, up to the last payment.
    owed: u64,
}

impl Debts {
    /// A phase begins: what is owed still counts from here on.
    pub(super) fn begin(&mut self, now: u64) {
        (self.since, self.owed) = (now, 0);
    }

    /// Whether something is owed.
    pub(super) fn any(&self) -> bool {
        !self.open.is_empty()
    }

    fn total(&self, now: u64) -> u64 {
        let under_way = if self.open.is_empty() { 0 } else { now.saturating_sub(self.since) };
        self.owed.saturating_add(under_way)
    }
}

impl Conductor {
    /// From now on the steward owes a member an answer without which that cannot do what the phase waits for.
    pub fn owes(&mut self, now: u64, debt: u64) {
        self.tick(now);
        if self.debts.open.is_empty() {
            self.debts.since = self.now;
        }
        self.debts.open.insert(debt);
    }

    /// The answer is given.
    pub fn paid(&mut self, now: u64, debt: u64) {
        self.now = self.now.max(now);
        let total = self.debts.total(self.now);
        if self.debts.open.remove(&debt) {
            (self.debts.owed, self.debts.since) = (total, self.now);
        }
        self.advance();
    }

    /// ROUND-36: when a wait of this length that began then is over: later by as long as the steward owed something, and
    /// by once its length at most.
    pub(super) fn end_of(&self, began: u64, patience: u64) -> u64 {
        let waits = matches!(self.ledger.stage(), Stage::Exchanging | Stage::Reducing);
        let owed = if waits { self.debts.total(self.now).min(patience) } else { 0 };
        began.saturating_add(patience).saturating_add(owed)
    }

    /// The same, as long as nothing else happens: with a debt the end moves on with the time.
    pub(super) fn latest_end(&self, began: u64, patience: u64) -> u64 {
        match self.debts.open.is_empty() {
            true => self.end_of(began, patience),
            false => began.saturating_add(patience.saturating_mul(2)),
        }
    }
}
