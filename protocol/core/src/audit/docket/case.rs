//! One audit, as far as the board shows it, and whose turn it is.

use crate::ids::{Digest, Round};
use crate::ledger::Ledger;
use crate::messages::audit::{AuditRequest, Finding, ResultsSeal, TableOpening, TableSeal, Verdict};
use crate::sign::{Signed, Verified};

use crate::audit::roster::Step;

/// How much shorter than the run's patience a turn may be that has lasted many rounds.
const HASTE: u64 = 10;

/// An audit that was asked for.
pub(super) struct Case {
    pub(super) signed: Signed<AuditRequest>,
    pub(super) request: Verified<AuditRequest>,
    pub(super) table: Option<(Signed<TableSeal>, Digest)>,
    pub(super) results: Option<(Signed<ResultsSeal>, Digest)>,
    pub(super) opening: Option<Signed<TableOpening>>,
    pub(super) verdict: Option<(Signed<Verdict>, Finding)>,
    /// Whether its verifier has recomputed every leaf instead.
    pub(super) recomputed: bool,
    /// Whether its verifier waits for the member's integers.
    pub(super) lacking: bool,
    /// How often it has said so.
    pub(super) complaints: u8,
}

/// Who has to speak next in an audit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Word {
    /// The audited member.
    Member,
    /// The verifier, and what it owes.
    Verifier(Step),
    /// Nobody: it is over.
    Nobody,
}

impl Word {
    /// What the verifier owes, if it has the word.
    pub(super) fn step(self) -> Option<Step> {
        if let Self::Verifier(step) = self { Some(step) } else { None }
    }
}

/// When the turn of a member began that has the word in some audit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turn {
    since: u64,
    round: Round,
}

impl Turn {
    pub(super) fn at(now: u64, ledger: &Ledger) -> Self {
        Self { since: now, round: ledger.next_round() }
    }

    /// AUDIT-8: it has lasted `audit` milliseconds, or a tenth of them and half of the window.
    pub(super) fn is_over(self, now: u64, ledger: &Ledger) -> bool {
        now >= self.timeout(ledger)
    }

    /// When it is over, unless more rounds go by.
    pub(super) fn timeout(self, ledger: &Ledger) -> u64 {
        let patience = u64::from(ledger.manifest().timers.audit);
        let rounds = (ledger.audit_window() / 2).max(1);
        let many = ledger.next_round().0 >= self.round.0.saturating_add(rounds);
        self.since.saturating_add(if many { patience / HASTE } else { patience })
    }
}

impl Case {
    pub(super) fn settled(&self) -> bool {
        self.verdict.is_some() || self.recomputed
    }

    pub(super) fn word(&self) -> Word {
        match (&self.table, &self.results, &self.opening) {
            _ if self.settled() => Word::Nobody,
            _ if self.lacking => Word::Member,
            (Some(_), None, _) => Word::Verifier(Step::Results),
            (_, _, Some(_)) => Word::Verifier(Step::Verdict),
            _ => Word::Member,
        }
    }
}
