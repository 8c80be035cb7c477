//! How much of a member's work verifiers have recomputed, and what follows: its weight, and how often it is inspected.

use std::collections::BTreeMap;

use super::Roster;
use crate::bug::OrBug;
use crate::ids::MemberId;
use crate::ledger::member::{Member, Standing};
use crate::messages::audit::FindingKind;
use crate::messages::enrol::Role;
use crate::messages::record::Credit;
use crate::standing::{AfterConviction, audit_ppm, vouched, weight};

/// The rate of audits with certainty, in parts per million.
const ALWAYS: u32 = 1_000_000;

impl Roster {
    /// Leaves of a member that verifiers recomputed and found right.
    pub(in crate::ledger) fn credit(&self, member: &Member) -> u64 {
        self.vouchers(member).map(u64::from).sum()
    }

    /// The leaves that count towards the end of its probation (STAND-2).
    pub(in crate::ledger) fn vouched(&self, member: &Member) -> u64 {
        vouched(&self.terms.manifest().admission, self.vouchers(member))
    }

    /// Whether a member's leaves count at all: it founded the run, or its probation is over.
    pub(in crate::ledger) fn weighs(&self, member: &Member) -> bool {
        self.weight(member, 1) > 0
    }

    /// m_eff: how many of `leaves` of a member count.
    pub(in crate::ledger) fn weight(&self, member: &Member, leaves: u32) -> u32 {
        if member.founder {
            return leaves;
        }
        weight(&self.terms.manifest().admission, self.vouchers(member), leaves)
    }

    /// The probability that a verifier audits a member's round, in parts per million.
    pub(in crate::ledger) fn audit_ppm(&self, member: &Member) -> u32 {
        // STAND-11: what honest members earned through a convict is examined again, and not taken from them.
        if member.doubt > 0 {
            return ALWAYS;
        }
        audit_ppm(
            &self.terms.manifest().admission,
            self.terms.manifest().audit.share_ppm,
            self.credit(member),
        )
    }

    fn vouchers<'a>(&self, member: &'a Member) -> impl Iterator<Item = u32> + Clone + 'a {
        member.credits.values().copied()
    }

    /// Whether a verifier may vouch (STAND-1).
    pub(in crate::ledger) fn may_vouch(&self, verifier: &MemberId) -> bool {
        let verifier = self.member(verifier);
        verifier.is_some_and(|v| v.role == Role::Verifier && v.standing != Standing::Banned)
    }

    /// Adds a credit that was checked.
    pub(in crate::ledger) fn apply_credit(&mut self, credit: &Credit) {
        let member = self.member_mut(&credit.member).or_bug("the member of a credit that was checked");
        let Some(member) = member else { return };
        let leaves = member.credits.entry(credit.verifier).or_insert(0);
        *leaves = leaves.saturating_add(credit.leaves);
        member.doubt = member.doubt.saturating_sub(credit.leaves);
        let verifier = self.member_mut(&credit.verifier).or_bug("the verifier of a credit that was checked");
        verifier.into_iter().for_each(|verifier| verifier.service.passed += 1);
    }

    /// A verifier was convicted: its credit for what is open again is void until somebody else has passed it (STAND-1), and
    /// members that had credit of it are in doubt (STAND-11). `opened` are the drawn leaves of what is open again.
    pub(super) fn void_credit(
        &mut self,
        convict: &MemberId,
        finding: FindingKind,
        opened: &BTreeMap<MemberId, u32>,
    ) {
        let accused = finding == FindingKind::FalseAccusation;
        let admission = &self.terms.manifest().admission;
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
}
