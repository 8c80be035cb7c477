//! The parts of a round: who reduces and keeps each, what was sealed of it.

use super::{Opening, RoundView, SettledInputs};
use crate::assign::{PartPlan, open_shards, passed_over, weighs};
use crate::ids::{Block, MemberId, Part, Row, ShardId, ShareClass, Slot};
use crate::layout::Layout;
use crate::messages::evidence::Reduction;
use crate::messages::record::{Record, RowStep, shard_steps};
use crate::messages::round::{Bitmap, PartResult};
use crate::sign::Signed;
use crate::state::ShardStep;

impl RoundView {
    /// Slots that can reduce.
    pub fn aggregators(&self) -> &[Slot] {
        &self.opening.aggregators
    }

    /// ROUND-39: whether no aggregator could be dialled when the round opened, so that the steward takes in all parts and has all
    /// values.
    pub fn is_stood_in(&self) -> bool {
        self.opening.stood_in
    }

    /// The share class of each slot when the round opened; none where lines are not weighed.
    pub fn classes(&self) -> &[ShareClass] {
        &self.opening.classes
    }

    /// Whether share classes decide how many parts each aggregator has, and may change (ASSIGN-12).
    pub fn weighs_lines(&self) -> bool {
        !self.classes().is_empty() && weighs(self.aggregators().len())
    }

    /// Aggregators that have no part because others are faster (ASSIGN-12).
    pub fn passed_over(&self) -> Vec<Slot> {
        passed_over(self.aggregators(), self.classes(), self.parts())
    }

    /// Whether shares have changed in this round.
    pub fn has_shares(&self) -> bool {
        self.exchange().is_some_and(|exchange| exchange.shared)
    }

    /// Whether there is anything to be said of a slot's rate: it had to reduce a part that counts somebody, and has lost none.
    pub fn has_shown(&self, slot: Slot) -> bool {
        let counts = |part: &Part| self.inputs().get(part.index()).is_some_and(|inputs| !inputs.is_empty());
        let mut parts = (0..self.parts().len() as u16).map(Part).filter(counts);
        let lost = || self.member_at(slot).is_none_or(|member| self.missed().contains(&member));
        // ROUND-39: where the steward stands in, nobody shows anything.
        !self.is_stood_in() && !lost() && parts.any(|part| self.aggregators_in(part, 0).any(|at| at == slot))
    }

    /// Its parts.
    pub fn parts(&self) -> &[PartPlan] {
        &self.opening.parts
    }

    /// The part that a block belongs to.
    pub fn part_of(&self, block: Block) -> Option<Part> {
        let part = self.parts().iter().position(|plan| plan.blocks.contains(&block))?;
        Some(Part(part as u16))
    }

    /// Whether a slot computes on the coefficients of a part: those of the trunk, and of its own row.
    pub fn computes_on(&self, slot: Slot, part: Part) -> bool {
        let row = self.row_of(slot);
        self.parts().get(part.index()).is_some_and(|plan| plan.shard.row().is_none_or(|of| of == row))
    }

    /// The parts that a slot computes on, in order.
    pub fn parts_of(&self, slot: Slot) -> impl Iterator<Item = (Part, &PartPlan)> {
        let parts = self.parts().iter().enumerate().map(|(part, plan)| (Part(part as u16), plan));
        parts.filter(move |(part, _)| self.computes_on(slot, *part))
    }

    /// The shards that somebody computes on in this round.
    pub fn open_shards(&self, layout: &Layout) -> Vec<ShardId> {
        open_shards(layout, self.route(Slot(0)).as_ref())
    }

    /// The rows that take a step when the round is over; none before its Freeze.
    pub fn row_steps(&self) -> &[RowStep] {
        self.frozen.as_ref().map_or(&[], |frozen| &frozen.rows.steps)
    }

    /// The shards that take a step when the round is over.
    pub fn shard_steps(&self) -> Vec<ShardStep> {
        shard_steps(self.round(), self.row_steps())
    }

    /// Whether the round's update of a row waits until inspectors have passed it (ROW-5).
    pub fn is_held(&self, row: Row) -> bool {
        self.frozen.as_ref().is_some_and(|frozen| frozen.rows.held.contains(row))
    }

    /// The authors of the contributions that count in some part of a row with a result.
    pub fn authors_in(&self, row: Row) -> impl Iterator<Item = MemberId> + '_ {
        let results = self.results().into_iter().flatten().zip(self.inputs()).zip(self.parts());
        let of_row = results.filter(move |(_, plan)| plan.shard == ShardId::of(row));
        let inputs: Vec<Bitmap> =
            of_row.filter_map(|((result, inputs), _)| result.is_some().then_some(*inputs)).collect();
        let slots = self.seats().iter().enumerate().map(|(slot, seat)| (Slot(slot as u16), seat.member));
        slots
            .filter(move |(slot, _)| inputs.iter().any(|inputs| inputs.contains(*slot)))
            .map(|(_, member)| member)
    }

    /// Who signed the sealed results of a row's parts.
    pub fn signers_in(&self, row: Row) -> impl Iterator<Item = MemberId> + '_ {
        let parts = (0..).map(Part).zip(self.parts()).filter(move |(_, plan)| plan.shard == ShardId::of(row));
        parts.flat_map(|(part, _)| self.signers(part))
    }

    /// Who reduces a part now, the first one, and by which attempt.
    pub fn aggregator(&self, part: Part) -> Option<(Slot, u8)> {
        let attempt = self.attempt(part)?;
        Some((self.aggregators_in(part, attempt).next()?, attempt))
    }

    /// By which attempt a part is reduced now; `None` where there is no such part.
    pub fn attempt(&self, part: Part) -> Option<u8> {
        self.opening.parts.get(part.index())?;
        Some(u8::from(self.moved_to(part).is_some()))
    }

    /// The slots that have to reduce a part in an attempt: one, or before a reassignment two in runs with replicas.
    pub fn aggregators_in(&self, part: Part, attempt: u8) -> impl Iterator<Item = Slot> + '_ {
        let Opening { parts, seconds, .. } = &self.opening;
        let plan = parts.get(part.index()).filter(|_| attempt == 0).map(|plan| plan.aggregator);
        let second = seconds.get(part.index()).filter(|_| attempt == 0).copied().flatten();
        // One aggregator only: the second attempt is there to end the round, and drawn blocks and objections
        // still check it.
        let moved = self.moved_to(part).filter(|_| attempt == 1);
        [plan, second, moved].into_iter().flatten()
    }

    /// The slot that a part was reassigned to.
    fn moved_to(&self, part: Part) -> Option<Slot> {
        self.moved()?.to.get(part.index()).copied().flatten()
    }

    /// Who has to reduce a part now.
    pub fn aggregating(&self, part: Part) -> impl Iterator<Item = MemberId> + '_ {
        self.attempt(part).into_iter().flat_map(move |attempt| self.reducers(part, attempt))
    }

    /// Who had to reduce a part in this attempt; nobody where there was no such attempt.
    pub fn reducers(&self, part: Part, attempt: u8) -> impl Iterator<Item = MemberId> + '_ {
        self.aggregators_in(part, attempt).filter_map(|slot| self.member_at(slot))
    }

    /// Who signed the sealed result of a part.
    pub fn signers(&self, part: Part) -> impl Iterator<Item = MemberId> + '_ {
        self.signed_results_of(part).map(Signed::claimed_signer)
    }

    /// ROUND-15: to whom a sender brings its part, and by which attempt: its aggregators, and the steward in place of
    /// one that is the sender itself, so that nothing which counts is in its author's hands alone. Where nobody can be dialled, the
    /// steward (ROUND-39).
    pub fn keepers(&self, part: Part, sender: &MemberId) -> Option<(Vec<MemberId>, u8)> {
        let attempt = self.attempt(part)?;
        if self.opening.stood_in {
            // ROUND-39: once, also in place of two.
            return Some((vec![self.opening.steward], attempt));
        }
        let keeper = |member| if member == *sender { self.opening.steward } else { member };
        Some((self.reducers(part, attempt).map(keeper).collect(), attempt))
    }

    /// Whether receipts by these keepers let a sender's part count: whatever its aggregators do then, who has to reduce
    /// it has it, or can have it of the steward.
    pub fn is_kept(&self, part: Part, sender: &MemberId, by: &[MemberId]) -> bool {
        // ROUND-5: those of all its keepers, or the steward's.
        let all = |(keepers, _): (Vec<MemberId>, u8)| keepers.iter().all(|keeper| by.contains(keeper));
        // The steward keeps its blocks for everybody; an aggregator only for what it reduces itself.
        by.contains(&self.opening.steward) || self.keepers(part, sender).is_some_and(all)
    }

    /// Whether this keeper takes a sender's part in. The steward takes any: those that an aggregator refuses.
    pub fn takes_in(&self, part: Part, sender: &MemberId, keeper: &MemberId) -> bool {
        // So that no aggregator can keep a sender out by refusing it (ROUND-24).
        let is_one =
            |(keepers, _): (Vec<MemberId>, u8)| keepers.contains(keeper) || *keeper == self.opening.steward;
        let computes = self.slot_of(sender).is_some_and(|slot| self.computes_on(slot, part));
        computes && self.keepers(part, sender).is_some_and(is_one)
    }

    /// Sealed inputs of each part; empty before they are sealed.
    pub fn inputs(&self) -> &[Bitmap] {
        self.exchange().map_or(&[], |exchange| &exchange.inputs)
    }

    /// The record that sealed the inputs of an attempt, and the index that a part has in it.
    pub fn inputs_record(&self, part: Part, attempt: u8) -> Option<(&Signed<Record>, usize)> {
        let index = match attempt {
            0 => part.index(),
            _ => self.reassigned().position(|moved| moved == part)?,
        };
        Some((self.exchange()?.records.get(usize::from(attempt))?, index))
    }

    /// Whether the inputs of the attempt under way are sealed.
    pub fn inputs_sealed(&self) -> bool {
        let Some(frozen) = &self.frozen else { return false };
        // After a Reassign what was sealed before says nothing about the parts that have moved.
        let attempts = |exchange: &SettledInputs| if exchange.moved.is_some() { 2 } else { 1 };
        let sealed = |exchange: &SettledInputs| exchange.records.len() >= attempts(exchange);
        self.opening.parts.is_empty() || frozen.exchange.as_ref().is_some_and(sealed)
    }

    /// Parts that were reassigned, in order.
    pub fn reassigned(&self) -> impl Iterator<Item = Part> + '_ {
        let to = self.moved().into_iter().flat_map(|moved| moved.to.iter().enumerate());
        to.filter(|(_, slot)| slot.is_some()).map(|(part, _)| Part(part as u16))
    }

    /// Aggregators that had inputs and whose parts were reassigned.
    pub(crate) fn missed(&self) -> &[MemberId] {
        self.moved().map_or(&[], |moved| &moved.missed)
    }

    /// Sealed results, once the round is over.
    pub fn results(&self) -> Option<&[Option<PartResult>]> {
        self.over().map(|over| over.results.said.as_slice())
    }

    /// The sealed result of a part as its aggregator signed it, once the round is over.
    pub fn signed_result(&self, part: Part) -> Option<&Signed<PartResult>> {
        self.over()?.results.signed.get(part.index())?.as_ref()
    }

    /// The sealed results of a part, once the round is over: that of one aggregator, and where the other one said the
    /// same in time, that too.
    pub fn signed_results_of(&self, part: Part) -> impl Iterator<Item = &Signed<PartResult>> {
        let seconds = self.over().into_iter().flat_map(|over| &over.results.seconds);
        let second = seconds.filter(move |(of, _)| *of == part);
        self.signed_result(part).into_iter().chain(second.map(|(_, signed)| signed))
    }

    /// The evidence that a result of this round would be, if it is wrong; none before its inputs are sealed.
    pub fn reduction(&self, result: &PartResult, signed: &Signed<PartResult>) -> Option<Reduction> {
        let inputs = self.inputs_record(result.part, result.attempt)?.0.clone();
        Some(Reduction { freeze: self.freeze()?.clone(), inputs, result: signed.clone() })
    }

    /// Whether the sealed inputs of some part count anybody.
    pub(crate) fn counts_somebody(&self) -> bool {
        self.inputs().iter().any(|inputs| !inputs.is_empty())
    }
}
