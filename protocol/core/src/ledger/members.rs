//! Records about members, and what they do in each room.

use std::collections::BTreeSet;

use super::roster::Entrant;
use super::{Ledger, Member, Turnout};
use crate::error::{Reject, require};
use crate::ids::{Digest, MemberId, Round};
use crate::messages::audit::AuditRequest;
use crate::messages::enrol::{CloseTree, Enrol, Leave, Return, Role};
use crate::messages::record::{Ban, Outcome, Record, Seat};
use crate::sign::{Signed, Verified};

impl Ledger {
    /// LEDGER-5: checks an enrolment against everything but the clock, which only the steward has.
    ///
    /// # Errors
    /// [`Reject`] naming what is wrong with it.
    pub fn check_enrol(&self, signed: &Signed<Enrol>) -> Result<Verified<Enrol>, Reject> {
        Ok(self.entrant(signed)?.enrolment())
    }

    pub(super) fn admit(&mut self, signed: &Signed<Enrol>, record: &Signed<Record>) -> Result<(), Reject> {
        let entrant = self.entrant(signed)?;
        self.roster.apply_admit(entrant, record, self.chain.height());
        Ok(())
    }

    fn entrant(&self, signed: &Signed<Enrol>) -> Result<Entrant, Reject> {
        self.roster.check_enrol(&self.chain, !self.rounds.is_empty(), signed)
    }

    /// Whether enough members are here for a round to begin.
    pub fn ready(&self) -> bool {
        [Role::Node, Role::Verifier].into_iter().all(|role| self.turnout(role).suffices())
    }

    /// How many members of a role are here, and how many the next round needs. A run begins with nodes that weigh.
    pub fn turnout(&self, role: Role) -> Turnout {
        let dealt = self.dealt(self.rows());
        let able = |member: &Member| member.row_in(self.rows(), &dealt).is_some();
        self.roster.turnout(role, self.rounds.is_empty(), able)
    }

    /// The seats of a round that would begin now (LEDGER-14): active nodes with weight in order of admission, in
    /// turn where they are more than the seats, the leaves shared equally, the first ones taking the remainder, each within its
    /// pace, and at least one leaf each. Then newcomers in turn, on a quarter of the seats at most but at least one, with as
    /// many leaves each on top.
    pub fn derived_seats(&self) -> Vec<Seat> {
        self.seats_without(&BTreeSet::new(), self.rows())
    }

    /// The seats that an outcome of the open round has to seal; its own `seats` are not read. None after the last
    /// round.
    pub fn seats_after(&self, outcome: &Outcome) -> Vec<Seat> {
        if self.ends_with(outcome.round) {
            return Vec::new();
        }
        // LEDGER-20: who fails at the outcome is away from it on, and has no seat in the round that it opens.
        let mut without = self.rounds.failed_at(outcome);
        // ROW-7: whoever moves has no seat before it holds its new row.
        without.extend(self.moved().map(|(member, _)| member));
        self.seats_without(&without, self.chain.next_rows())
    }

    /// The seats of a round on a state with so many rows.
    fn seats_without(&self, failed: &BTreeSet<MemberId>, rows: u16) -> Vec<Seat> {
        let dealt = self.dealt(rows);
        let row = |member: &Member| member.row_in(rows, &dealt);
        self.roster.seats(self.next_round(), failed, row, rows)
    }

    // LEDGER-11: by a request that is due, of a member that is active or away.
    pub(super) fn silence(&mut self, signed: &Signed<AuditRequest>) -> Result<(), Reject> {
        let request = self.check_request(signed)?;
        self.roster.check_silence(&request.target)?;
        // AUDIT-8: no second silence is sealed. By turns with Answered, which nobody else signs, one request would otherwise make a
        // ledger without end, on the disk of everybody who follows.
        let taken = self.is_taken_over(request.round, &request.target);
        require(!taken, "a member is silent about a contribution once")?;
        self.roster.apply_silence(&request, signed.digest(), &self.chain);
        self.rounds.apply_unanswered(&request.target);
        Ok(())
    }

    pub(super) fn answered(&mut self, request: &Digest) -> Result<(), Reject> {
        let owing = self.roster.check_answered(request)?;
        self.roster.apply_answered(&owing, &self.chain);
        Ok(())
    }

    pub(super) fn ban(&mut self, ban: &Ban) -> Result<(), Reject> {
        self.roster.check_ban(&self.chain, ban)?;
        self.rounds.check_jury(ban)?;
        self.roster.apply_ban(&ban.culprit, self.chain.height());
        self.rewinds.apply_ban(ban);
        // What a convicted verifier was to inspect goes to the others at once, and what it has passed is open again.
        self.retire(&ban.culprit);
        self.rounds.apply_open_again(&self.chain, &self.roster, &ban.culprit);
        let opened = self.rounds.opened_leaves(&self.chain, &self.roster, &ban.culprit);
        self.roster.apply_conviction(ban, &opened);
        Ok(())
    }

    /// The first round whose seats are not sealed yet.
    pub fn first_round_without(&self) -> Round {
        self.chain.first_round_without()
    }

    /// Checks a return, which also tells where a member has moved to.
    ///
    /// # Errors
    /// [`Reject`] for one that is not away, or an old statement.
    pub fn check_return(&self, signed: &Signed<Return>) -> Result<Verified<Return>, Reject> {
        self.roster.check_return(&self.chain, signed)
    }

    pub(super) fn welcome_back(&mut self, signed: &Signed<Return>) -> Result<(), Reject> {
        let back = self.check_return(signed)?;
        self.roster.apply_return(back, self.chain.height());
        Ok(())
    }

    /// Checks a leave.
    ///
    /// # Errors
    /// [`Reject`] for one that is no member any more, or an old statement.
    pub fn check_leave(&self, signed: &Signed<Leave>) -> Result<Verified<Leave>, Reject> {
        self.roster.check_leave(&self.chain, signed)
    }

    pub(super) fn leave(&mut self, signed: &Signed<Leave>) -> Result<(), Reject> {
        let leave = self.check_leave(signed)?;
        self.roster.apply_leave(&leave.author(), self.chain.height());
        // Its contributions are still to be audited, and nobody will answer for them.
        self.rounds.apply_unanswered(&leave.author());
        // Leaving is no way out of what a verifier owes: it falls to the others.
        self.retire(&leave.author());
        Ok(())
    }

    /// STAND-6: closing bans nobody, and takes nothing from who is there.
    pub(super) fn close_tree(&mut self, signed: &Signed<CloseTree>) -> Result<(), Reject> {
        let order = self.roster.check_close_tree(&self.chain, signed)?;
        self.roster.apply_close_tree(&order);
        Ok(())
    }
}
