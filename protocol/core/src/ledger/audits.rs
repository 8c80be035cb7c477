//! Audits as the ledger has them: who inspects what, which requests are due, and verifiers that do not do their duty.

use super::view::Reach;
use super::{Ledger, RoundView};
use crate::coins::{Coin, selects};
use crate::error::{Reject, require};
use crate::ids::{MemberId, Round, Slot};
use crate::limits;
use crate::messages::audit::{AuditRequest, Duty, Finding, FindingKind, Recomputation};
use crate::messages::record::Idle;
use crate::sign::{Signed, Verified};

impl Ledger {
    /// Checks that an audit request is due: by the contribution's inspector, with a coin that selects the target or
    /// where none is needed.
    ///
    /// # Errors
    /// [`Reject`] naming what is wrong with it.
    pub fn check_request(&self, signed: &Signed<AuditRequest>) -> Result<Verified<AuditRequest>, Reject> {
        let (request, slot) = self.check_drawn_request(signed)?;
        let view = self.rounds.auditable(request.round)?;
        // AUDIT-1: by the inspector of the contribution (DUTY-1).
        if !self.may_inspect(view, slot, &request.author(), request.coin.is_none()) {
            return Err(Reject::NotEntitled(
                "audit this contribution: another verifier inspects it, or nobody",
            ));
        }
        // DUTY-3: later its author need not have it any more.
        let answerable = self.is_answerable(request.round);
        require(answerable, "what was contributed so long ago nobody has to answer for")?;
        Ok(request)
    }

    /// Checks a request that may have been due once: its verifier was drawn, whether or not it may still ask. Returns
    /// the audited slot, too.
    ///
    /// # Errors
    /// [`Reject`] naming what is wrong with it.
    pub fn check_drawn_request(
        &self,
        signed: &Signed<AuditRequest>,
    ) -> Result<(Verified<AuditRequest>, Slot), Reject> {
        let request = signed.verify(self.run())?;
        let view = self.rounds.auditable(request.round)?;
        // A coin that was shown under another R_t would select others.
        require(view.freeze_digest() == Some(request.freeze), "a request names the freeze")?;
        let frozen = view.slot_of(&request.target).and_then(|slot| Some((slot, view.commitment(slot)?)));
        let (slot, commitment) = frozen.ok_or(Reject::Rule("only a frozen contribution is audited"))?;
        // Else any verifier could make members work, and coins would be spent on whomever it likes.
        if !self.was_inspector(view, slot, &request.author()) {
            return Err(Reject::NotEntitled("audit this contribution: it was never drawn for it"));
        }
        match &request.coin {
            Some(opening) => {
                let coin = self.roster.node_coin(opening, &request.author(), request.round)?;
                require(
                    selects(&coin, &request.freeze, &request.target, commitment.audit_ppm),
                    "the coin does not select this member",
                )?;
            }
            None => require(
                self.needs_no_coin(view, slot),
                "only the last rounds, and what a banned verifier has passed, are audited without a coin",
            )?,
        }
        Ok((request, slot))
    }

    /// Whether a verifier may ask about the contribution of a slot. Where nobody is left that was drawn, what is
    /// audited without a coin is any active verifier's.
    pub fn may_inspect(&self, view: &RoundView, slot: Slot, verifier: &MemberId, coinless: bool) -> bool {
        match view.inspector(slot) {
            Some(inspector) => inspector == *verifier,
            None => coinless && view.inspectors().is_empty() && self.is_active_verifier(verifier),
        }
    }

    /// Whether a verifier's word on the contribution of a slot is its duty's: it was drawn, or none needs to be.
    pub fn was_inspector(&self, view: &RoundView, slot: Slot, verifier: &MemberId) -> bool {
        self.roster.is_verifier(verifier)
            && (view.was_drawn(slot, verifier) || self.needs_no_coin(view, slot))
    }

    /// Whether the contribution of a slot is audited whatever a coin says: in the final audit, and again where it has
    /// passed and all who vouched for it were banned since (DUTY-3).
    pub fn needs_no_coin(&self, view: &RoundView, slot: Slot) -> bool {
        self.in_final_audit(view.round()) || view.is_open_again(slot, |id| self.is_banned(id))
    }

    /// Whether an audit of the contribution of a slot is due from its inspector as long as nobody has passed it: by the
    /// inspector's coin if that selects its author, or whatever the coin says.
    ///
    /// DUTY-3: what is too old to be due was so when it came to its inspector, or was opened again. Whoever looks later
    /// finds the same.
    pub fn is_due(&self, view: &RoundView, slot: Slot, selected: bool) -> bool {
        let again = view.is_open_again(slot, |id| self.is_banned(id));
        let in_reach = match view.reach(slot) {
            Reach::Nothing => false,
            Reach::Drawn => selected,
            Reach::Anything => selected || again,
        };
        in_reach || self.in_final_audit(view.round())
    }

    /// The window A of AUDIT-26: how many rounds before the next one everybody keeps the state of, so that each audit
    /// of them can be done and judged.
    pub fn audit_window(&self) -> u32 {
        self.chain.audit_window()
    }

    /// Whether everybody keeps the state that a round began with (DUTY-3).
    pub fn keeps_state(&self, round: Round) -> bool {
        self.chain.keeps_state(round)
    }

    /// Whether contributors still have to answer about this round (AUDIT-1): one round further back while no round is
    /// open, that is after the last one or after a Rewind.
    pub fn is_answerable(&self, round: Round) -> bool {
        self.chain.is_answerable(round)
    }

    /// AUDIT-27: whether an audit may have waited for this member for as long as makes it late: a contribution of its that
    /// it has to answer for is old enough, and nobody has passed it. Which audits there are the board alone shows.
    pub fn may_be_late(&self, member: &MemberId) -> bool {
        let waits = |view: &RoundView| {
            let frozen = view.slot_of(member).is_some_and(|slot| view.commitment(slot).is_some());
            // Asked about once its round was over, it is late after so many further rounds.
            let old = view.round().0.saturating_add(limits::LATE_ROUNDS) < self.next_round().0;
            let open = view.auditable() && self.is_answerable(view.round());
            frozen && old && open && !self.is_credited(view.round(), member)
        };
        self.rounds.iter().any(waits)
    }

    /// AUDIT-8: whether the inspector of a contribution recomputes all leaves of it, where they stand for the
    /// committed integers: its author was silent, or has left, since the round began. Whether it is back changes
    /// nothing, as its turn would begin again and again.
    pub fn is_taken_over(&self, round: Round, member: &MemberId) -> bool {
        let slot = self.round(round).and_then(|view| Some((view, view.slot_of(member)?)));
        !self.regime().keeps_integers() && slot.is_some_and(|(view, slot)| view.is_unanswered(slot))
    }

    /// Whether the round after the next one may not begin before every case of this round is closed (AUDIT-26).
    pub fn is_last_call(&self, round: Round) -> bool {
        self.chain.is_last_call(round)
    }

    /// Whether a member was banned.
    pub fn is_banned(&self, member: &MemberId) -> bool {
        self.roster.is_banned(member)
    }

    /// Whether this is a verifier that takes part.
    pub fn is_active_verifier(&self, member: &MemberId) -> bool {
        self.roster.is_active_verifier(member)
    }

    /// Whether the run waits for verifiers, and none of them takes part.
    pub fn is_unwatched(&self) -> bool {
        self.roster.is_unwatched()
    }

    /// Checks a shown node coin: of a round that is over and echoed, by one of its verifiers (DUTY-2).
    ///
    /// # Errors
    /// [`Reject`] naming what is wrong with it.
    pub fn check_duty(&self, signed: &Signed<Duty>) -> Result<(MemberId, Coin), Reject> {
        let duty = signed.verify(self.run())?;
        let view = self.rounds.auditable(duty.round)?;
        require(view.freeze_digest() == Some(duty.freeze), "a duty names the freeze")?;
        if !view.inspectors().contains(&duty.author()) {
            return Err(Reject::NotEntitled("show a coin: it does not inspect this round"));
        }
        Ok((duty.author(), self.roster.node_coin(&duty.coin, &duty.author(), duty.round)?))
    }

    /// Whether every contribution of a round is audited.
    pub fn in_final_audit(&self, round: Round) -> bool {
        self.chain.in_final_audit(round)
    }

    /// Checks that a verifier may be sealed as idle (DUTY-5): it is active, and inspects the named round.
    ///
    /// # Errors
    /// [`Reject`] naming what is wrong with it.
    pub fn check_idle(&self, idle: &Idle) -> Result<(), Reject> {
        let view = self.rounds.auditable(idle.round)?;
        // The only verifier, too: otherwise rounds would wait for it without end.
        require(view.inspectors().contains(&idle.verifier), "an idle verifier had a duty in the round")?;
        require(self.is_active_verifier(&idle.verifier), "only an active verifier can be idle")
    }

    /// Checks what a verifier says of a contribution of which it has recomputed every leaf (AUDIT-25).
    ///
    /// # Errors
    /// [`Reject`] naming what is wrong with it.
    pub fn check_recomputation(
        &self,
        signed: &Signed<Recomputation>,
    ) -> Result<(Verified<Recomputation>, Slot), Reject> {
        let (said, slot) = self.check_drawn_recomputation(signed)?;
        let view = self.rounds.auditable(said.round)?;
        // What is wrong is heard of whoever was drawn, however late.
        let found_wrong = matches!(said.finding, Finding::Guilty(_));
        if found_wrong || self.may_inspect(view, slot, &said.author(), self.needs_no_coin(view, slot)) {
            return Ok((said, slot));
        }
        Err(Reject::NotEntitled("pass this contribution: another verifier inspects it, or nobody"))
    }

    /// The same of one that may have been due once: its verifier was drawn, whether or not it inspects the contribution still.
    ///
    /// # Errors
    /// [`Reject`] naming what is wrong with it.
    pub fn check_drawn_recomputation(
        &self,
        signed: &Signed<Recomputation>,
    ) -> Result<(Verified<Recomputation>, Slot), Reject> {
        let said = signed.verify(self.run())?;
        require(
            !self.regime().keeps_integers(),
            "where there is a tolerance, recomputed leaves do not stand for the committed integers",
        )?;
        let view = self.rounds.auditable(said.round)?;
        require(view.freeze_digest() == Some(said.freeze), "a recomputation names the freeze")?;
        let frozen = view.slot_of(&said.target).filter(|slot| view.commitment(*slot).is_some());
        let slot = frozen.ok_or(Reject::Rule("only a frozen contribution is recomputed"))?;
        if !self.was_inspector(view, slot, &said.author()) || self.is_banned(&said.author()) {
            return Err(Reject::NotEntitled("say this of the contribution: it was never drawn for it"));
        }
        // No other finding follows from leaves alone: each of them is about a table that was never shown.
        let fits = matches!(said.finding, Finding::Pass | Finding::Guilty(FindingKind::TotalMismatch));
        require(fits, "all leaves give the committed total, or they do not")?;
        Ok((said, slot))
    }

    /// An idle verifier is away until it returns, and has failed (LEDGER-20): rounds may have waited for it.
    pub(super) fn idle(&mut self, idle: &Idle) -> Result<(), Reject> {
        self.check_idle(idle)?;
        self.roster.apply_idle(&idle.verifier, &self.chain);
        self.retire(&idle.verifier);
        Ok(())
    }

    /// DUTY-6: what a verifier inspected goes to the others, and nobody owes it an answer any more: a member that was
    /// silent to it is away.
    pub(super) fn retire(&mut self, verifier: &MemberId) {
        self.rounds.apply_retirement(&self.chain, verifier);
        self.roster.apply_retirement(verifier, self.chain.height());
    }
}
