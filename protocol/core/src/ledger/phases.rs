//! Records that take a round from one phase to the next, and what they do in each room.

use std::collections::BTreeMap;

use super::{Holding, Ledger, RoundView, Stage};
use crate::bug::OrBug;
use crate::error::{Reject, require};
use crate::ids::{Digest, MemberId, Round, Row};
use crate::messages::enrol::Ready;
use crate::messages::record::{Freeze, Inputs, Late, Outcome, Reassign, Record, Seat, Shares};
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
        let rows = self.rows.plan(view, &mut commits.by_slot, &self.roster, &self.rounds);
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

    // LEDGER-25
    pub(super) fn shares(&mut self, shares: &Shares) -> Result<(), Reject> {
        let new = self.rounds.check_shares(&self.chain, &self.roster, shares)?;
        self.rounds.apply_shares();
        self.roster.apply_shares(&new);
        Ok(())
    }

    // LEDGER-10
    pub(super) fn outcome(&mut self, outcome: &Outcome, head: Digest) -> Result<(), Reject> {
        let settled = self.rounds.check_outcome(&self.chain, &self.roster, outcome)?;
        let view = self.current().ok_or(Reject::Rule("an outcome ends a round"))?;
        self.rows.check_outcome(&self.chain, view, outcome)?;
        // Derived before the outcome changes anything: everybody computes these from the ledger before it.
        let (dealt, moved) = (self.dealt(self.chain.next_rows()), self.moved());
        let last = self.ends_with(outcome.round);
        let failed = self.rounds.failed_at(outcome);
        let seats = self.seats_after(outcome);
        let shares = self.rounds.shares_after(&self.roster, &failed);
        require(*outcome.seats == *seats, "the seats follow from the ledger")?;
        let stage = match (last, seats.is_empty()) {
            (true, _) => Stage::Auditing,
            (false, true) => Stage::Gathering,
            (false, false) => Stage::Computing,
        };
        self.chain.apply_outcome(&outcome.state, outcome.round.next(), stage);
        // ROW-1: by a record that opens a round. Where nobody has a seat, the Begin that ends the gathering deals.
        if !seats.is_empty() {
            self.deal(dealt);
        }
        if !last {
            // It fetches its new row, and has no seat until it has said that it holds it.
            self.hold(moved, false);
        }
        self.rounds.apply_outcome(settled, head);
        let over = self.rounds.round(outcome.round).or_bug("the round that is over");
        over.into_iter().for_each(|view| self.rows.apply_outcome(view));
        // After the seats are checked, so that these follow from the ledger before this record.
        for credit in &outcome.credits {
            self.rounds.apply_credit(credit);
            self.roster.apply_credit(credit);
        }
        self.roster.apply_next_round();
        // LEDGER-20: last, because a member may be forgiven only once the round says whether it counted. Forgiving comes
        // first: a good round is one in which the member counted, whatever it failed in besides.
        self.roster.apply_good_round(&self.rounds.counted(outcome));
        self.roster.apply_failures(&failed, outcome.round, self.chain.height());
        self.roster.apply_shares(&shares);
        Ok(())
    }

    /// ROW-7: who moves to which row with the Outcome of the open round.
    pub(super) fn moved(&self) -> Option<(MemberId, Row)> {
        self.rows.moved(&self.chain, &self.roster, &self.rounds)
    }

    /// Whom a record deals which row when it opens the first round on a state with so many rows.
    pub(super) fn dealt(&self, rows: u16) -> BTreeMap<MemberId, Row> {
        self.rows.dealt(&self.chain, &self.roster, rows)
    }

    /// Notes what was dealt: those members hold all rows, and keep their own.
    pub(super) fn deal(&mut self, dealt: BTreeMap<MemberId, Row>) {
        self.rows.apply_deal(&dealt);
        self.hold(dealt, true);
    }

    /// Notes who holds which row from the next round on.
    pub(super) fn hold(&mut self, drawn: impl IntoIterator<Item = (MemberId, Row)>, ready: bool) {
        let since = self.chain.next_round();
        for (id, row) in drawn {
            self.roster.apply_holding(&id, Holding { row, ready, since });
        }
    }

    // LEDGER-23: the member holds its row from the next record on.
    pub(super) fn ready_with(&mut self, signed: &Signed<Ready>) -> Result<(), Reject> {
        let ready = self.check_ready(signed)?;
        self.roster.apply_ready(&ready.author());
        Ok(())
    }
}
