//! One audit, as far as the board shows it, and whose turn it is.

use std::sync::Arc;

use crate::audit::roster::Step;
use crate::audit::steps::{Judged, Requested, ResultsSealed, TableOpened, TableSealed};
use crate::ids::Round;
use crate::ledger::Ledger;
use crate::limits;
use crate::messages::audit::AuditRequest;
use crate::sign::Verified;

/// How much shorter than the run's patience a turn may be that has lasted many rounds.
const HASTE: u64 = 10;

/// An audit that was asked for.
pub(super) struct Case {
    pub(super) requested: Arc<Requested>,
    pub(super) reached: Reached,
    /// Whether its verifier has recomputed every leaf instead.
    pub(super) recomputed: bool,
    /// Whether its verifier waits for the member's integers.
    pub(super) lacking: bool,
    /// How often it has said so.
    pub(super) complaints: u8,
    /// The round that was next when the member last got the word.
    asked_in: Round,
}

/// The last step that was taken.
pub(super) enum Reached {
    /// The request.
    Request,
    /// The table is sealed.
    Table(TableSealed),
    /// The results are sealed.
    Results(ResultsSealed),
    /// The table is open.
    Opening(TableOpened),
    /// There is a verdict.
    Verdict(Box<Judged>),
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

    /// It has lasted no time yet, however many rounds.
    pub(super) fn begin_again(&mut self, now: u64) {
        self.since = now;
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
    /// One that nobody has answered yet.
    pub(super) fn new(requested: Requested, next: Round) -> Self {
        let (requested, reached) = (Arc::new(requested), Reached::Request);
        Self { requested, reached, recomputed: false, lacking: false, complaints: 0, asked_in: next }
    }

    /// The member has the word again, while this round is next.
    pub(super) fn ask(&mut self, next: Round) {
        self.asked_in = next;
    }

    /// AUDIT-27: whether the member has had the word while so many rounds began.
    ///
    /// In this audit: a clock that began anew with each step in another one would let it answer the newest first, and keep
    /// the oldest open for as long as it likes.
    pub(super) fn is_late(&self, next: Round) -> bool {
        self.word() == Word::Member && next.0 >= self.asked_in.0.saturating_add(limits::LATE_ROUNDS)
    }

    pub(super) fn request(&self) -> &Verified<AuditRequest> {
        self.requested.request()
    }

    /// The verdict, with all that led to it.
    pub(super) fn judged(&self) -> Option<&Judged> {
        if let Reached::Verdict(judged) = &self.reached { Some(judged) } else { None }
    }

    pub(super) fn settled(&self) -> bool {
        self.recomputed || self.judged().is_some()
    }

    pub(super) fn word(&self) -> Word {
        match self.reached {
            _ if self.settled() => Word::Nobody,
            _ if self.lacking => Word::Member,
            Reached::Table(_) => Word::Verifier(Step::Results),
            Reached::Opening(_) => Word::Verifier(Step::Verdict),
            Reached::Request | Reached::Results(_) | Reached::Verdict(_) => Word::Member,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::fixture::chain::{Chain, manifest};

    /// A member that is slow on purpose would else take its audits out of the window in which they can be decided.
    #[test]
    fn audit_8_a_turn_is_over_ten_times_as_soon_once_half_of_the_window_has_gone_by() {
        let mut manifest = manifest(4);
        (manifest.training.rounds, manifest.retention.states) = (20, 8);
        let mut chain = Chain::begin_with(manifest);
        let turn = Turn::at(1000, &chain.ledger);
        let patience = u64::from(chain.ledger.manifest().timers.audit);
        for _ in 0..chain.ledger.audit_window() / 2 {
            assert_eq!(turn.timeout(&chain.ledger), 1000 + patience);
            chain.finish_round();
        }
        let over = 1000 + patience / 10;
        assert_eq!([over - 1, over].map(|now| turn.is_over(now, &chain.ledger)), [false, true]);
    }
}
