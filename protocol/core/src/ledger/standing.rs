//! Standing: who invited a member, how much of its work verifiers have recomputed, and what follows: its weight, how
//! often it is inspected, and whether it may invite others.

use std::collections::{BTreeMap, BTreeSet};

use super::{Ledger, Member};
use crate::bug::OrBug;
use crate::coins::drawn_leaves;
use crate::error::{Reject, require};
use crate::ids::{MemberId, Round};
use crate::messages::enrol::CloseTree;
use crate::messages::record::Credit;
use crate::sign::{Signed, Verified};

impl Ledger {
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

    /// Drawn leaves of the contributions that a convict has passed and that are open again, by member.
    pub(super) fn opened_leaves(&self, convict: &MemberId) -> BTreeMap<MemberId, u32> {
        let mut opened: BTreeMap<MemberId, u32> = BTreeMap::new();
        // What nobody keeps the state of is not examined again: void credit for it would be lost for good.
        for view in self.rounds.iter().filter(|view| self.keeps_state(view.round())) {
            let of_convict = view.credited().filter(|(verifier, _)| verifier == convict);
            for (_, member) in of_convict {
                // What another verifier has passed as well stays passed.
                let Some(slot) = view.slot_of(member).filter(|slot| self.is_open_again(view, *slot)) else {
                    continue;
                };
                let leaves = view.commitment(slot).map_or(0, |commitment| commitment.commit.leaves);
                let drawn = drawn_leaves(leaves, self.manifest().audit.leaves);
                let void = opened.entry(*member).or_insert(0);
                *void = void.saturating_add(drawn);
            }
        }
        opened
    }

    /// Checks a credit as far as the ledger tells (STAND-1): its verdict is on the board alone.
    ///
    /// # Errors
    /// [`Reject`] naming what is wrong with it.
    pub fn check_credit(&self, credit: &Credit) -> Result<(), Reject> {
        require(self.roster.may_vouch(&credit.verifier), "a verifier vouches")?;
        let view = self.round(credit.round).ok_or(Reject::Stale("the credited round is not remembered"))?;
        // Before that no coin may be shown, so that no verdict can exist.
        let audited = view.results().is_some() && view.echoed();
        require(audited, "a round is audited when it is over and was echoed")?;
        let slot = view.slot_of(&credit.member);
        let commitment = slot.and_then(|slot| view.commitment(slot));
        let commitment = commitment.ok_or(Reject::Rule("only a frozen contribution is credited"))?;
        // STAND-1: by the one that was drawn to inspect it, even if it inspects nothing any more.
        let inspected = slot.is_some_and(|slot| view.was_drawn(slot, &credit.verifier));
        require(inspected, "the inspector of a contribution vouches for it")?;
        // The number is not the steward's to choose: more would end a probation sooner.
        let drawn = drawn_leaves(commitment.commit.leaves, self.manifest().audit.leaves);
        require(credit.leaves == drawn, "a credit is for the leaves that were drawn")?;
        // Otherwise one verdict, sealed again and again, would end any probation.
        let taken = view.is_credited(&credit.verifier, &credit.member);
        require(!taken, "a verifier vouches once for a contribution")
    }

    /// Checks the credits of an outcome.
    pub(super) fn check_credits(&self, credits: &[Credit]) -> Result<(), Reject> {
        let mut seen: BTreeSet<(Round, MemberId, MemberId)> = BTreeSet::new();
        for credit in credits {
            self.check_credit(credit)?;
            // STAND-1: a verdict is credited once.
            let first = seen.insert((credit.round, credit.verifier, credit.member));
            require(first, "a verifier vouches once for a contribution")?;
        }
        Ok(())
    }

    /// Adds credits that were checked.
    pub(super) fn add_credits(&mut self, credits: &[Credit]) {
        for credit in credits {
            let view = self.rounds.iter_mut().find(|view| view.round() == credit.round);
            let view = view.or_bug("the round of a credit that was checked");
            view.into_iter().for_each(|view| view.credit(credit.verifier, credit.member));
            self.roster.apply_credit(credit);
        }
    }

    /// Whether a member may invite nobody any more: its own tree is closed, or that of an inviter above it (STAND-6).
    pub fn is_closed(&self, member: &Member) -> bool {
        self.roster.is_closed(member)
    }

    /// Checks the organiser's order to close a member's tree.
    ///
    /// # Errors
    /// [`Reject`] naming what is wrong with it.
    pub fn check_close_tree(&self, signed: &Signed<CloseTree>) -> Result<Verified<CloseTree>, Reject> {
        self.roster.check_close_tree(&self.chain, signed)
    }

    /// STAND-6: closing bans nobody, and takes nothing from who is there.
    pub(super) fn close_tree(&mut self, signed: &Signed<CloseTree>) -> Result<(), Reject> {
        let order = self.roster.check_close_tree(&self.chain, signed)?;
        self.roster.apply_close_tree(&order);
        Ok(())
    }
}
