//! Standing: who invited a member, how much of its work verifiers have recomputed, and what follows: its weight, how
//! often it is inspected, and whether it may invite others.

use std::collections::{BTreeMap, BTreeSet};

use super::{Closed, Ledger, Member, Standing};
use crate::bug::OrBug;
use crate::coins::drawn_leaves;
use crate::error::{Reject, require};
use crate::ids::{MemberId, Round};
use crate::manifest::{Listed, Mode};
use crate::messages::audit::FindingKind;
use crate::messages::enrol::{CloseTree, Enrol, Presented, Role};
use crate::messages::record::Credit;
use crate::sign::{Signed, Verified};
use crate::standing::{AfterConviction, audit_ppm, vouched, weight};

/// The rate of audits with certainty, in parts per million.
const ALWAYS: u32 = 1_000_000;

/// A newcomer's role, and who invited it.
pub(super) struct Newcomer {
    pub(super) role: Role,
    pub(super) founder: bool,
    pub(super) inviter: Option<MemberId>,
    pub(super) depth: u8,
    /// The organiser has neither invited nor listed it.
    pub(super) stranger: bool,
}

impl Newcomer {
    fn known(role: Role, founder: bool) -> Self {
        Self { role, founder, inviter: None, depth: 0, stranger: false }
    }
}

impl Ledger {
    /// Leaves of a member that verifiers recomputed and found right.
    pub fn credit(&self, member: &Member) -> u64 {
        self.vouchers(member).map(u64::from).sum()
    }

    /// The leaves that count towards the end of its probation (STAND-2).
    pub fn vouched(&self, member: &Member) -> u64 {
        vouched(&self.manifest().admission, self.vouchers(member))
    }

    /// Whether a member's leaves count at all: it founded the run, or its probation is over.
    pub fn weighs(&self, member: &Member) -> bool {
        self.weight(member, 1) > 0
    }

    /// m_eff: how many of `leaves` of a member count.
    pub fn weight(&self, member: &Member, leaves: u32) -> u32 {
        if member.founder {
            return leaves;
        }
        weight(&self.manifest().admission, self.vouchers(member), leaves)
    }

    /// The probability that a verifier audits a member's round, in parts per million.
    pub fn audit_ppm(&self, member: &Member) -> u32 {
        // STAND-11: what honest members earned through a convict is examined again, and not taken from them.
        if member.doubt > 0 {
            return ALWAYS;
        }
        audit_ppm(&self.manifest().admission, self.manifest().audit.share_ppm, self.credit(member))
    }

    fn vouchers<'a>(&self, member: &'a Member) -> impl Iterator<Item = u32> + Clone + 'a {
        member.credits.values().copied()
    }

    /// A verifier was convicted: its credit for what is open again is void until somebody else has passed it (STAND-1), and
    /// members that had credit of it are in doubt (STAND-11).
    pub(super) fn doubt_credit(&mut self, convict: &MemberId, finding: FindingKind) {
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
        let accused = finding == FindingKind::FalseAccusation;
        let terms = std::sync::Arc::clone(&self.terms);
        let admission = &terms.manifest().admission;
        for member in &mut self.members {
            // The others have nothing of the convict.
            let Some(credit) = member.credits.get_mut(convict) else { continue };
            let opened = opened.get(&member.id).copied().unwrap_or(0);
            let after = AfterConviction::of(admission, accused, *credit, opened, member.doubt);
            *credit = after.credit;
            // A founder has its weight from the organiser.
            member.doubt = if member.founder { 0 } else { after.doubt };
        }
    }

    /// Checks a credit as far as the ledger tells (STAND-1): its verdict is on the board alone.
    ///
    /// # Errors
    /// [`Reject`] naming what is wrong with it.
    pub fn check_credit(&self, credit: &Credit) -> Result<(), Reject> {
        let verifier = self.member(&credit.verifier);
        let entitled = verifier.is_some_and(|v| v.role == Role::Verifier && v.standing != Standing::Banned);
        require(entitled, "a verifier vouches")?;
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
            let member = self.member_mut(&credit.member).or_bug("the member of a credit that was checked");
            let Some(member) = member else { continue };
            let leaves = member.credits.entry(credit.verifier).or_insert(0);
            *leaves = leaves.saturating_add(credit.leaves);
            member.doubt = member.doubt.saturating_sub(credit.leaves);
        }
    }

    /// The role and standing that the author of an enrolment may have.
    ///
    /// # Errors
    /// [`Reject`] naming the rule that keeps it out.
    pub(super) fn entry(&self, author: &MemberId, enrol: &Enrol) -> Result<Newcomer, Reject> {
        let entry = match (&enrol.invitation, &self.manifest().admission.mode) {
            (Some(presented), _) => self.invited(presented, author)?,
            // STAND-7: the mode says who needs no invitation.
            (None, Mode::Listed(listed)) => self.listed(listed, author)?,
            (None, Mode::Open) => Newcomer { stranger: true, ..Newcomer::known(Role::Node, false) },
            (None, Mode::Invited) => {
                return Err(Reject::NotEntitled("enrol: this run asks for an invitation"));
            }
        };
        self.require_room(&entry)?;
        Ok(entry)
    }

    fn listed(&self, listed: &Listed, author: &MemberId) -> Result<Newcomer, Reject> {
        if listed.founders.contains(author) {
            return Ok(Newcomer::known(Role::Node, true));
        }
        if listed.nodes.contains(author) {
            return Ok(Newcomer::known(Role::Node, false));
        }
        let verifier = listed.verifiers.contains(author);
        let verifier = verifier.then(|| Newcomer::known(Role::Verifier, false));
        verifier.ok_or(Reject::NotEntitled("enrol: the manifest does not list it, and it has no invitation"))
    }

    fn invited(&self, presented: &Presented, newcomer: &MemberId) -> Result<Newcomer, Reject> {
        let invitation = presented.invitation.verify(self.run())?;
        let possession = presented.possession.verify(self.run())?;
        // STAND-9: everyone reads invitations in the ledger, and only those invited hold the secret.
        if possession.author() != invitation.key || possession.newcomer != *newcomer {
            return Err(Reject::NotEntitled("enrol: the invitation's key has not signed for this newcomer"));
        }
        // Counted by the ledger, since everybody must come to the same number.
        let used = self.invitation_uses(&presented.invitation.digest());
        require(used < invitation.uses, "the invitation is used up")?;
        let author = invitation.author();
        if author == self.manifest().organiser {
            return Ok(Newcomer::known(invitation.role, invitation.founder));
        }
        let inviter = self.member(&author);
        let inviter = inviter.ok_or(Reject::NotEntitled("invite: only the organiser and members do"))?;
        // STAND-5: who would bring in verifiers could end any probation itself.
        let plain = invitation.role == Role::Node && !invitation.founder;
        require(plain, "a member invites nodes, neither founders nor verifiers")?;
        let good = matches!(inviter.standing, Standing::Active | Standing::Away);
        let able = good && inviter.role == Role::Node && self.weighs(inviter);
        require(able, "only a node past its probation invites, while it takes part")?;
        // STAND-6: an inviter answers for those below it.
        let closed =
            "those who answer for this invitation brought in a convict, or the organiser closed their tree";
        require(!self.is_closed(inviter), closed)?;
        let admission = &self.manifest().admission;
        // Together with the depth it bounds how many keys one founder can bring in, for whom it answers.
        let quota = inviter.invited < admission.member_invites;
        require(quota, "this member has brought in as many as it may (admission.member_invites)")?;
        require(inviter.depth < admission.depth, "the chain of invitations is too long (admission.depth)")?;
        let known = Newcomer::known(Role::Node, false);
        Ok(Newcomer { inviter: Some(author), depth: inviter.depth + 1, stranger: true, ..known })
    }

    /// Whether a member may invite nobody any more: its own tree is closed, or that of an inviter above it (STAND-6).
    pub fn is_closed(&self, member: &Member) -> bool {
        let mut above = Some(member);
        while let Some(member) = above {
            if member.closed.is_some() {
                return true;
            }
            // Who invites was there before: the chain ends.
            above = member.inviter.as_ref().and_then(|inviter| self.member(inviter));
        }
        false
    }

    /// STAND-8: strangers come in turn, and those without weight never take more than half of all places.
    fn require_room(&self, entry: &Newcomer) -> Result<(), Reject> {
        if !entry.stranger {
            return Ok(());
        }
        let admission = &self.manifest().admission;
        require(
            self.strangers < admission.per_round,
            "enough newcomers came in this round (admission.per_round); try again in the next one",
        )?;
        // Those that have gone count as well: their places are used up for good.
        let unproved = self.members.iter().filter(|m| m.stranger && !self.weighs(m)).count();
        let room = 2 * unproved < usize::from(admission.most_members);
        require(room, "too many newcomers have earned no weight yet; try again later")
    }

    /// Closes the trees of a convict and of its inviter.
    pub(super) fn close_trees(&mut self, convict: &MemberId) {
        // STAND-6: whoever brought in a convict brings in nobody else.
        let inviter = self.member(convict).and_then(|member| member.inviter);
        for id in [Some(*convict), inviter].into_iter().flatten() {
            if let Some(member) = self.member_mut(&id) {
                member.closed = Some(Closed::Convicted);
            }
        }
    }

    /// Checks the organiser's order to close a member's tree.
    ///
    /// # Errors
    /// [`Reject`] naming what is wrong with it.
    pub fn check_close_tree(&self, signed: &Signed<CloseTree>) -> Result<Verified<CloseTree>, Reject> {
        let order = signed.verify(self.run())?;
        // LEDGER-21: signed by the organiser; the named is a member that is not closed.
        if order.author() != self.manifest().organiser {
            return Err(Reject::NotEntitled("close a tree: only the organiser does"));
        }
        let member = self.member(&order.member).ok_or(Reject::Rule("only a member's tree is closed"))?;
        require(!self.is_closed(member), "nobody comes by this member any more: its tree is closed already")?;
        // An order that changes nothing would only stay on everybody's disk.
        require(self.takes_members(), "nobody comes to this run any more")?;
        Ok(order)
    }

    /// STAND-6: closing bans nobody, and takes nothing from who is there.
    pub(super) fn close_tree(&mut self, signed: &Signed<CloseTree>) -> Result<(), Reject> {
        // A suspicion is no evidence: closing stops only what can be refused without any, more keys.
        let order = self.check_close_tree(signed)?;
        if let Some(member) = self.member_mut(&order.member) {
            member.closed = Some(Closed::Ordered);
        }
        Ok(())
    }
}
