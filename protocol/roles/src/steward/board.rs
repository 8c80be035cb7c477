//! The board: audits, and the results of the open round, as everybody sees them.

use std::collections::BTreeMap;

use muster_core::audit::docket::Docket;
use muster_core::error::Reject;
use muster_core::ids::{Digest, MemberId, Part, Round};
use muster_core::ledger::Ledger;
use muster_core::messages::record::{Body, Credit};
use muster_core::messages::round::PartResult;
use muster_core::messages::wire::Notice;
use muster_core::round::Conductor;
use muster_core::sign::Signed;

use super::exhibits::Exhibits;

/// What is on the board.
#[derive(Default)]
pub(super) struct Board {
    docket: Docket,
    /// Results of the round that are on the board, with their attempts.
    shown: BTreeMap<Part, (Digest, u8)>,
}

impl Board {
    /// The audits.
    pub(super) fn docket(&self) -> &Docket {
        &self.docket
    }

    /// Takes a step of an audit. Returns the record that the step calls for.
    ///
    /// # Errors
    /// [`Reject`] for a step that is out of turn, or not its author's.
    pub(super) fn post(&mut self, now: u64, ledger: &Ledger, step: &Notice) -> Result<Option<Body>, Reject> {
        self.docket.post(now, ledger, step)
    }

    /// Takes a step again that an earlier process took: it counts by who was entitled to it then.
    ///
    /// # Errors
    /// As [`Self::post`].
    pub(super) fn recall(
        &mut self,
        now: u64,
        ledger: &Ledger,
        step: &Notice,
    ) -> Result<Option<Body>, Reject> {
        self.docket.recall(now, ledger, step)
    }

    /// What verifiers have earned since the last call.
    pub(super) fn credits(&mut self) -> Vec<Credit> {
        self.docket.credits()
    }

    /// Silences and idle verifiers to seal now that clocks have run out.
    pub(super) fn overdue(&mut self, now: u64, ledger: &Ledger) -> Vec<Body> {
        let mut bodies = self.docket.silences(now, ledger);
        bodies.extend(self.docket.idles(now, ledger));
        bodies
    }

    /// This process did not run for a while, which no clock counts.
    pub(super) fn resume(&mut self, now: u64) {
        self.docket.resume(now);
    }

    /// Strikes a charge: neither the member nor the verifier could be convicted.
    pub(super) fn strike(&mut self, round: Round, target: &MemberId, verifier: &MemberId) {
        self.docket.dismiss(round, target, verifier);
    }

    /// Audits that go on because the steward now has a contribution which their verifiers lacked (TOL-12);
    /// with the records that end a silence.
    pub(super) fn obtained(&mut self, ledger: &Ledger, exhibits: &Exhibits) -> Vec<(Digest, Option<Body>)> {
        let wanted = self.docket.wanted().into_iter();
        let here = wanted.filter(|(round, member)| exhibits.can_show(*round, *member)).collect::<Vec<_>>();
        let obtained = here.iter().flat_map(|(round, member)| self.docket.obtained(ledger, *round, member));
        obtained.collect()
    }

    /// Results to show: what would be sealed of each part, where that is not what was shown before.
    pub(super) fn new_results(&mut self, conductor: &Conductor) -> Vec<Signed<PartResult>> {
        let current = conductor.ledger().current();
        let attempt = |part| current.and_then(|view| view.attempt(part)).unwrap_or_default();
        let standing =
            conductor.standing().map(|(part, digest, signed)| (part, (digest, attempt(part)), signed));
        let mut new = Vec::new();
        for (part, said, signed) in standing {
            // A result of the next attempt is another one, even with the same digest: contributors compare it
            // anew.
            if self.shown.insert(part, said) != Some(said) {
                new.push(signed.clone());
            }
        }
        new
    }

    /// The results that were shown are sealed, or struck.
    pub(super) fn forget_results(&mut self) {
        self.shown.clear();
    }
}
