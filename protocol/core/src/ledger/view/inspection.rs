//! Who inspects a round, and whether it was echoed so that it can be audited.

use std::collections::BTreeMap;

use super::{Reach, RoundView, WeightedCommit};
use crate::coins::{Coin, block_inspector, jury, selects_block};
use crate::ids::{Block, MemberId, Part, Slot};

impl RoundView {
    /// Whether coins may be shown: the outcome holds the echoes of AUDIT-1.
    pub fn echoed(&self) -> bool {
        self.over().is_some_and(|over| over.echoed)
    }

    /// Whether it is over and was echoed: audits of it may begin.
    pub fn auditable(&self) -> bool {
        self.echoed()
    }

    /// Members whose echo of the freeze is missing, if the others carry less than two thirds of the weight, or of the
    /// committed leaves where nobody has weight; otherwise nobody (AUDIT-1).
    pub fn unheard(&self, has_echoed: impl Fn(&MemberId) -> bool) -> Vec<MemberId> {
        let weighs = self.weighs();
        // Where nobody has weight, leaves stand for it: otherwise no such round could ever be audited.
        let counts = |c: &WeightedCommit| u64::from(if weighs { c.weight } else { c.commit.leaves });
        let (mut all, mut heard, mut unheard) = (0, 0, Vec::new());
        for (_, commitment) in self.commitments().filter(|(_, commitment)| counts(commitment) > 0) {
            all += counts(commitment);
            if has_echoed(&commitment.author) {
                heard += counts(commitment);
            } else {
                unheard.push(commitment.author);
            }
        }
        // Multiplied, not divided: two thirds are exact for every number of leaves.
        if 3 * heard >= 2 * all { Vec::new() } else { unheard }
    }

    /// Who inspects the contribution of a slot; nobody before the round is over, or when no verifier is left.
    pub fn inspector(&self, slot: Slot) -> Option<MemberId> {
        self.over()?.inspected.get(slot.index()).copied().flatten()
    }

    /// The jurors of a case against a member over its conduct in this round (DUTY-11); nobody before the round is over.
    pub fn jury(&self, culprit: &MemberId, accuser: &MemberId) -> Vec<MemberId> {
        let outcome = self.outcome_digest();
        outcome.map_or_else(Vec::new, |outcome| jury(&outcome, culprit, accuser, self.inspectors()))
    }

    /// Verifiers that inspect this round: those at its freeze, in order of admission, without those that are gone.
    pub fn inspectors(&self) -> &[MemberId] {
        self.frozen.as_ref().map_or(&[], |frozen| &frozen.inspectors)
    }

    /// Verifiers that share the blocks of this round: those that were left when it was over (AUDIT-20).
    pub fn block_inspectors(&self) -> &[MemberId] {
        self.over().map_or(&[], |over| &over.block_inspectors)
    }

    /// The blocks of the round that a verifier's node coin draws, by part, at the rate `audit.blocks_ppm` (AUDIT-20); none before
    /// the round is over.
    pub fn drawn_blocks(&self, verifier: &MemberId, coin: &Coin, ppm: u32) -> BTreeMap<Part, Vec<Block>> {
        let mut drawn = BTreeMap::new();
        let (Some(freeze), Some(outcome)) = (self.freeze_digest(), self.outcome_digest()) else {
            return drawn;
        };
        // AUDIT-20: those of the Outcome, whoever has gone since.
        let inspectors = self.block_inspectors();
        let Some(index) = inspectors.iter().position(|inspector| inspector == verifier) else { return drawn };
        for (part, plan) in self.parts().iter().enumerate() {
            let own = |block: &&Block| {
                block_inspector(&outcome, **block, inspectors.len()) == index
                    && selects_block(coin, &freeze, **block, ppm)
            };
            let blocks: Vec<Block> = plan.blocks.iter().filter(own).copied().collect();
            if !blocks.is_empty() {
                drawn.insert(Part(part as u16), blocks);
            }
        }
        drawn
    }

    /// How many verifiers shared the round at its freeze.
    pub fn verifiers(&self) -> usize {
        self.frozen.as_ref().map_or(0, |frozen| frozen.verifiers)
    }

    /// Whether the member of a slot was silent, or left, since the round began.
    pub(crate) fn is_unanswered(&self, slot: Slot) -> bool {
        self.unanswered.contains(&slot)
    }

    /// Verifiers, and the members for whose contributions they were given credit.
    pub(crate) fn credited(&self) -> impl Iterator<Item = &(MemberId, MemberId)> {
        self.over().into_iter().flat_map(|over| &over.credited)
    }

    /// Whether a verifier was given credit for the contribution of a member.
    pub(crate) fn is_credited(&self, verifier: &MemberId, member: &MemberId) -> bool {
        self.over().is_some_and(|over| over.credited.contains(&(*verifier, *member)))
    }

    /// Whether a verifier that is not banned was given credit for the contribution of a member.
    pub(crate) fn has_passed(&self, member: &MemberId, is_banned: impl Fn(&MemberId) -> bool) -> bool {
        self.credited().any(|(verifier, of)| of == member && !is_banned(verifier))
    }

    /// Whether the contribution of a slot has passed, and all who vouched for it were banned since (DUTY-3).
    pub(crate) fn is_open_again(&self, slot: Slot, is_banned: impl Fn(&MemberId) -> bool) -> bool {
        let Some(commitment) = self.commitment(slot) else { return false };
        let mut of_it = self.credited().filter(|(_, member)| *member == commitment.author).peekable();
        // Never passed is something else than passed by liars: only the latter is audited without a coin.
        of_it.peek().is_some() && of_it.all(|(verifier, _)| is_banned(verifier))
    }

    /// What could be audited of the contribution of a slot when it came to its inspector, or was opened again.
    pub(crate) fn reach(&self, slot: Slot) -> Reach {
        // Its first inspector has it since the round was over.
        self.over().and_then(|over| over.reach.get(&slot).copied()).unwrap_or(Reach::Anything)
    }

    /// Whether a verifier is or was drawn to inspect the contribution of a slot.
    pub(crate) fn was_drawn(&self, slot: Slot, verifier: &MemberId) -> bool {
        self.over().is_some_and(|over| over.drawn.contains(&(slot, *verifier)))
    }
}
