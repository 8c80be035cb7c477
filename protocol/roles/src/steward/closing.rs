//! How hosting ends: the Close of a run whose last audits are over, or a stop between two rounds.

use muster_core::audit::docket::Docket;
use muster_core::ids::{MemberId, Round};
use muster_core::ledger::Ledger;

/// How long a closed run is still served to those who are connected, members and observers.
const FAREWELL: u64 = 15_000;

/// How near the end is.
#[derive(Default)]
pub(super) struct Closing {
    /// When the time for the last audits was over.
    overdue: Option<u64>,
    /// Whether the Close is proposed.
    proposed: bool,
    closed_at: Option<u64>,
    /// Interrupted while this round was next.
    stop_after: Option<Round>,
}

impl Closing {
    /// Somebody wants the steward to stop while this round is next.
    pub(super) fn interrupt(&mut self, next: Round) {
        self.stop_after = Some(next);
    }

    /// The round that was next when somebody wanted the steward to stop.
    pub(super) fn stop_after(&self) -> Option<Round> {
        self.stop_after
    }

    /// Whether the Close has yet to be proposed.
    pub(super) fn is_to_be_proposed(&self) -> bool {
        !self.proposed
    }

    /// The Close is proposed.
    pub(super) fn propose(&mut self) {
        self.proposed = true;
    }

    /// Whether the time for the last audits has been `overdue` for as long as `final_audit`. Counted from the
    /// first turn that sees it: otherwise each turn would begin the wait anew.
    pub(super) fn is_out_of_patience(&mut self, now: u64, ledger: &Ledger, overdue: bool) -> bool {
        overdue && now >= *self.overdue.get_or_insert(now) + patience(ledger)
    }

    /// The run is closed.
    pub(super) fn closed(&mut self, now: u64) {
        self.closed_at = Some(now);
    }

    /// Whether a closed run was served for long enough.
    pub(super) fn has_said_farewell(&self, now: u64) -> bool {
        now >= self.closed_at.unwrap_or(0) + FAREWELL
    }

    /// When patience with the last audits ends.
    pub(super) fn timeout(&self, ledger: &Ledger) -> Option<u64> {
        self.overdue.map(|since| since + patience(ledger))
    }
}

fn patience(ledger: &Ledger) -> u64 {
    ledger.manifest().timers.final_audit.into()
}

/// Whether every contribution of the last rounds was judged that counted, or whose author was late
/// (AUDIT-27). A member that lets its audits wait at the end has reason to, and its work counted before.
pub(super) fn is_judged(ledger: &Ledger, docket: &Docket) -> bool {
    let last = ledger.rounds().filter(|view| ledger.in_final_audit(view.round()) && view.echoed());
    let mut counted = last.flat_map(|view| {
        let counted =
            view.commitments().filter(|(slot, _)| view.counted(*slot) || view.late().contains(*slot));
        counted.map(|(_, commitment)| (view.round(), commitment.author))
    });
    let judged = |(round, author): (Round, MemberId)| {
        docket.has_passed(ledger, round, &author) || ledger.is_banned(&author)
    };
    counted.all(judged)
}
