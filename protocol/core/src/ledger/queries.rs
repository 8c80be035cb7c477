//! What the ledger says of its rooms to whoever holds it.

use super::{Ledger, Member, RoundView, RowHolder, Stage};
use crate::error::Reject;
use crate::ids::{MemberId, Round, ShardId};
use crate::messages::enrol::{CloseTree, Ready};
use crate::messages::record::Credit;
use crate::messages::round::{Commit, Echo, PartResult};
use crate::sign::{Signed, Verified};

impl Ledger {
    /// ROUND-29: the next round as it will be if nothing changes the seats until then, in a run with a delay whose round under way
    /// is frozen: what to compute while its values travel. Its head is not known yet.
    pub fn foreseen(&self) -> Option<RoundView> {
        let view = self.current().filter(|_| self.regime().foresees())?;
        let travels = matches!(self.stage(), Stage::Exchanging | Stage::Reducing);
        let goes_on = travels && !self.ends_with(view.round());
        goes_on.then(|| self.opening(view.round().next(), &self.derived_seats(), view.state().clone()))
    }

    /// COMMIT-3: checks a commitment for the round being computed, field by field.
    ///
    /// # Errors
    /// [`Reject`] naming what is wrong with it.
    pub fn check_commit(&self, signed: &Signed<Commit>) -> Result<Verified<Commit>, Reject> {
        self.rounds.check_commit(&self.chain, signed)
    }

    /// Members that are late in the open round and were not in the one before it.
    pub fn newly_late(&self) -> Vec<MemberId> {
        self.rounds.newly_late()
    }

    /// Checks a result for the round being reduced: by one of the part's aggregators, over the sealed inputs.
    ///
    /// # Errors
    /// [`Reject`] naming what is wrong with it.
    pub fn check_result(&self, signed: &Signed<PartResult>) -> Result<Verified<PartResult>, Reject> {
        self.rounds.check_result(&self.chain, signed)
    }

    /// Checks an echo of the current round's freeze.
    ///
    /// # Errors
    /// [`Reject`] naming what is wrong with it.
    pub fn check_echo(&self, signed: &Signed<Echo>) -> Result<Verified<Echo>, Reject> {
        self.rounds.check_echo(signed)
    }

    /// Whether the outcome of this round, the open one, is the run's last: with it as many updates are applied as there
    /// are rounds to train, or no further round may be opened.
    pub fn ends_with(&self, round: Round) -> bool {
        self.chain.ends_with(round)
    }

    /// Whether a member sits out failures. Between rounds, and after the last one, nobody does: no round waits then.
    pub fn is_barred(&self, barred: Round) -> bool {
        self.chain.is_barred(barred)
    }

    /// Whether a member is away and may not return yet.
    pub fn sits_out(&self, member: &Member) -> bool {
        self.roster.sits_out(&self.chain, member)
    }

    /// Whether a round's update of a shard was applied, as far as rounds are remembered.
    pub fn was_applied(&self, round: Round, shard: ShardId) -> bool {
        self.rounds.was_applied(round, shard)
    }

    /// Leaves of a member that verifiers recomputed and found right.
    pub fn credit(&self, member: &Member) -> u64 {
        self.roster.credit(member)
    }

    /// The leaves that count towards the end of its probation (STAND-2).
    pub fn vouched(&self, member: &Member) -> u64 {
        self.roster.vouched(member)
    }

    /// Whether a member's leaves count at all: it founded the run, or its probation is over.
    pub fn weighs(&self, member: &Member) -> bool {
        self.roster.weighs(member)
    }

    /// m_eff: how many of `leaves` of a member count.
    pub fn weight(&self, member: &Member, leaves: u32) -> u32 {
        self.roster.weight(member, leaves)
    }

    /// The probability that a verifier audits a member's round, in parts per million.
    pub fn audit_ppm(&self, member: &Member) -> u32 {
        self.roster.audit_ppm(member)
    }

    /// Whether a member may invite nobody any more: its own tree is closed, or that of an inviter above it (STAND-6).
    pub fn is_closed(&self, member: &Member) -> bool {
        self.roster.is_closed(member)
    }

    /// Checks a credit as far as the ledger tells (STAND-1): its verdict is on the board alone.
    ///
    /// # Errors
    /// [`Reject`] naming what is wrong with it.
    pub fn check_credit(&self, credit: &Credit) -> Result<(), Reject> {
        self.rounds.check_credit(&self.roster, credit)
    }

    /// Checks the organiser's order to close a member's tree.
    ///
    /// # Errors
    /// [`Reject`] naming what is wrong with it.
    pub fn check_close_tree(&self, signed: &Signed<CloseTree>) -> Result<Verified<CloseTree>, Reject> {
        self.roster.check_close_tree(&self.chain, signed)
    }

    /// Whether a verifier that is not banned has sealed credit for a contribution.
    pub fn is_credited(&self, round: Round, member: &MemberId) -> bool {
        let is_banned = |verifier: &MemberId| self.is_banned(verifier);
        self.round(round).is_some_and(|view| view.has_passed(member, is_banned))
    }

    /// Rows of the newest sealed state.
    pub fn rows(&self) -> u16 {
        self.chain.rows()
    }

    /// Whether rows were dealt to members.
    pub fn has_dealt_rows(&self) -> bool {
        self.rows.has_dealt()
    }

    /// The nodes that count as holders of their rows (ROW-2), in order of admission.
    pub fn holders(&self) -> Vec<RowHolder> {
        self.rows.holders(&self.chain, &self.roster, &self.rounds)
    }

    /// Checks what a node says of the row that was drawn for it (ROW-3).
    ///
    /// # Errors
    /// [`Reject`] for one that was drawn for no such row, has said so before, or names a state that nobody remembers.
    pub fn check_ready(&self, signed: &Signed<Ready>) -> Result<Verified<Ready>, Reject> {
        self.rows.check_ready(&self.chain, &self.roster, &self.rounds, signed)
    }

    /// Whether the update of some row of a round waits.
    pub fn waits(&self, round: Round) -> bool {
        self.rows.waits(round)
    }
}
