//! Records that take a round from one phase to the next, and what they do in each room.

use super::{Ledger, RoundView, Stage};
use crate::error::{Reject, require};
use crate::ids::{Digest, Round};
use crate::messages::record::{Freeze, Inputs, Late, Outcome, Reassign, Record, Seat};
use crate::sign::Signed;
use crate::state::StateRoots;

impl Ledger {
    /// The round that a record opens with these seats.
    pub(super) fn opening(&self, round: Round, seats: &[Seat], base: StateRoots) -> RoundView {
        self.rounds.opening(&self.chain, &self.roster, round, seats, base)
    }

    pub(super) fn late(&mut self, late: &Late) -> Result<(), Reject> {
        self.rounds.check_late(&self.chain, late, |member| self.may_be_late(member))?;
        self.rounds.apply_late(late);
        Ok(())
    }

    // LEDGER-7
    pub(super) fn freeze(
        &mut self,
        freeze: &Freeze,
        record: &Signed<Record>,
        head: Digest,
    ) -> Result<(), Reject> {
        let mut commits = self.rounds.check_freeze(&self.chain, &self.roster, freeze)?;
        let view = self.current().ok_or(Reject::Rule("a freeze follows an open round"))?;
        let rows = self.plan_rows(view, &mut commits.by_slot);
        // Fixed here, before anybody knows who inspects what: a verifier that is admitted later was not drawn.
        let inspectors = self.roster.verifiers_of(view.round());
        // Only now: everything above may still refuse the record, which then changes nothing.
        let seats = view.seats().to_vec();
        self.roster.apply_freeze(freeze.round, &seats, &commits.verified, self.chain.height());
        self.chain.apply_freeze();
        self.rounds.apply_freeze(record, head, commits, rows, inspectors);
        Ok(())
    }

    // LEDGER-8
    pub(super) fn inputs(&mut self, inputs: &Inputs, record: &Signed<Record>) -> Result<(), Reject> {
        self.rounds.check_inputs(&self.chain, inputs)?;
        self.chain.apply_inputs();
        let missed = self.rounds.apply_inputs(inputs, record);
        self.roster.apply_failures(&missed, inputs.round, self.chain.height());
        Ok(())
    }

    // LEDGER-9
    pub(super) fn reassign(&mut self, reassign: &Reassign) -> Result<(), Reject> {
        self.rounds.check_reassign(&self.chain, reassign)?;
        self.chain.apply_reassign();
        self.rounds.apply_reassign(reassign);
        Ok(())
    }

    // LEDGER-10
    pub(super) fn outcome(&mut self, outcome: &Outcome, head: Digest) -> Result<(), Reject> {
        let settled = self.rounds.check_outcome(&self.chain, &self.roster, outcome)?;
        let view = self.current().ok_or(Reject::Rule("an outcome ends a round"))?;
        // The root needs arithmetic and is checked by the replica (STATE-5); the step does not.
        let follows = self.follows(&outcome.state);
        require(follows, "an outcome applies one update to the trunk and to the rows that it names")?;
        // ROW-6: settled by the Freeze, so that nobody chooses what is applied.
        let steps = *outcome.steps == *view.row_steps();
        require(steps, "an outcome names the rows that take a step")?;
        // Derived before the outcome changes anything: everybody computes these from the ledger before it.
        let (dealt, moved) = (self.dealt(self.next_rows()), self.moved());
        let last = self.ends_with(outcome.round);
        let failed = self.rounds.failed_at(outcome);
        let seats = self.seats_after(outcome);
        require(*outcome.seats == *seats, "the seats follow from the ledger")?;
        let stage = match (last, seats.is_empty()) {
            (true, _) => Stage::Auditing,
            (false, true) => Stage::Gathering,
            (false, false) => Stage::Computing,
        };
        self.chain.apply_outcome(&outcome.state, outcome.round.next(), stage);
        // ROW-1: by a record that opens a round. Where nobody has a seat, the Begin that ends the gathering deals.
        if !seats.is_empty() {
            self.deal(&dealt);
        }
        if !last {
            self.move_to(moved);
        }
        self.rounds.apply_outcome(settled, head);
        self.wait_on(outcome.round);
        // After the seats are checked, so that these follow from the ledger before this record.
        for credit in &outcome.credits {
            self.rounds.apply_credit(credit);
            self.roster.apply_credit(credit);
        }
        self.roster.apply_next_round();
        // LEDGER-20: last, because a member may be forgiven only once the round says whether it counted. Forgiving comes
        // first: a good round is one in which the member counted, whatever it failed in besides.
        self.roster.apply_good_round(&self.rounds.counted());
        self.roster.apply_failures(&failed, outcome.round, self.chain.height());
        Ok(())
    }
}
