//! A round as the ledger has it, in its phases: opened, frozen, exchanged, over.

use std::collections::BTreeSet;

use crate::assign::PartPlan;
use crate::coins::{inspector, jury};
use crate::ids::{Block, Digest, MemberId, Part, Round, Slot};
use crate::messages::evidence::Reduction;
use crate::messages::record::{Reassign, Record, Seat};
use crate::messages::round::{Bitmap, Commit, PartResult};
use crate::sign::Signed;
use crate::state::StateRoots;

/// A frozen commitment.
#[derive(Clone, Debug)]
pub struct WeightedCommit {
    /// What was committed.
    pub commit: Commit,
    /// By whom.
    pub author: MemberId,
    /// m_eff: how many of its leaves count in the aggregate.
    pub weight: u32,
    /// Probability that a verifier audits it, in parts per million.
    pub audit_ppm: u32,
}

/// One round. Each phase begins with a sealed record, and adds what that record settles.
#[derive(Clone)]
pub struct RoundView {
    opening: Opening,
    /// Since the Freeze.
    frozen: Option<Frozen>,
    /// Slots whose members were silent, or left, since the round began.
    unanswered: BTreeSet<Slot>,
}

/// What follows from the record that opened a round.
#[derive(Clone)]
pub(super) struct Opening {
    pub(super) round: Round,
    pub(super) steward: MemberId,
    pub(super) head: Digest,
    pub(super) state: StateRoots,
    pub(super) seed: Digest,
    pub(super) seats: Vec<Seat>,
    pub(super) aggregators: Vec<Slot>,
    pub(super) parts: Vec<PartPlan>,
    /// The other aggregators of the parts, in runs that have two.
    pub(super) seconds: Vec<Option<Slot>>,
}

/// What its Freeze settles.
#[derive(Clone)]
struct Frozen {
    record: Signed<Record>,
    digest: Digest,
    commits: Vec<Option<WeightedCommit>>,
    /// How many verifiers the round was shared among.
    verifiers: usize,
    /// Those of them that are left.
    inspectors: Vec<MemberId>,
    /// Since the Inputs; a round without parts has none.
    exchange: Option<SettledInputs>,
    /// Since the Outcome.
    over: Option<Over>,
}

/// What its Inputs settle.
#[derive(Clone)]
struct SettledInputs {
    /// By part.
    inputs: Vec<Bitmap>,
    /// The records that sealed them, by attempt.
    records: Vec<Signed<Record>>,
    /// Since a Reassign.
    moved: Option<Moved>,
}

/// What a Reassign settles.
#[derive(Clone)]
struct Moved {
    /// The new aggregators, by part.
    to: Vec<Option<Slot>>,
    /// Aggregators that had inputs and lost their parts.
    missed: Vec<MemberId>,
}

/// What its Outcome settles.
#[derive(Clone)]
struct Over {
    results: SealedResults,
    echoed: bool,
    /// The head after it.
    outcome: Digest,
    /// Inspectors that were left by then.
    block_inspectors: Vec<MemberId>,
    /// Who inspects which slot's contribution.
    inspected: Vec<Option<MemberId>>,
    /// Slots, and the verifiers that were ever drawn to inspect them.
    drawn: BTreeSet<(Slot, MemberId)>,
    /// Who has vouched for whose contribution.
    credited: BTreeSet<(MemberId, MemberId)>,
}

/// The sealed results of a round, by part.
#[derive(Clone)]
pub(super) struct SealedResults {
    /// What they say.
    pub(super) said: Vec<Option<PartResult>>,
    /// The same, as their aggregators signed them.
    pub(super) signed: Vec<Option<Signed<PartResult>>>,
    /// Those of the parts' other aggregators, which say the same.
    pub(super) seconds: Vec<(Part, Signed<PartResult>)>,
}

impl RoundView {
    pub(super) fn new(opening: Opening) -> Self {
        Self { opening, frozen: None, unanswered: BTreeSet::new() }
    }

    /// Its Freeze is sealed, with this head after it.
    pub(super) fn freeze_with(
        &mut self,
        record: &Signed<Record>,
        digest: Digest,
        commits: Vec<Option<WeightedCommit>>,
        inspectors: Vec<MemberId>,
    ) {
        self.frozen = Some(Frozen {
            record: record.clone(),
            digest,
            commits,
            verifiers: inspectors.len(),
            inspectors,
            exchange: None,
            over: None,
        });
    }

    /// The inputs of these parts are sealed: of all of them, or of those that were reassigned.
    pub(super) fn add_inputs<'a>(
        &mut self,
        record: &Signed<Record>,
        inputs: impl Iterator<Item = (Part, &'a Bitmap)>,
    ) {
        let parts = self.opening.parts.len();
        let Some(frozen) = &mut self.frozen else { return };
        let fresh =
            || SettledInputs { inputs: vec![Bitmap::default(); parts], records: Vec::new(), moved: None };
        let exchange = frozen.exchange.get_or_insert_with(fresh);
        exchange.records.push(record.clone());
        for (part, bitmap) in inputs {
            if let Some(sealed) = exchange.inputs.get_mut(part.index()) {
                *sealed = *bitmap;
            }
        }
    }

    /// Parts go to other aggregators.
    pub(super) fn reassign(&mut self, reassign: &Reassign) {
        let had_inputs =
            |part: &Part| self.inputs().get(part.index()).is_some_and(|inputs| !inputs.is_empty());
        let lost = reassign.parts.iter().map(|moved| moved.part).filter(had_inputs);
        let missed: Vec<MemberId> = lost.flat_map(|part| self.reducers(part, 0)).collect();
        let mut to = vec![None; self.opening.parts.len()];
        for moved in &reassign.parts {
            if let Some(aggregator) = to.get_mut(moved.part.index()) {
                *aggregator = Some(moved.aggregator);
            }
        }
        if let Some(exchange) = self.frozen.as_mut().and_then(|frozen| frozen.exchange.as_mut()) {
            exchange.moved = Some(Moved { to, missed });
        }
    }

    /// The round is over, and with the head after its Outcome it is drawn who inspects what.
    pub(super) fn end(&mut self, results: SealedResults, echoed: bool, outcome: Digest) {
        let Some(frozen) = &mut self.frozen else { return };
        let block_inspectors = frozen.inspectors.clone();
        let (inspected, drawn, credited) = (Vec::new(), BTreeSet::new(), BTreeSet::new());
        frozen.over = Some(Over { results, echoed, outcome, block_inspectors, inspected, drawn, credited });
        self.share();
    }

    /// A verifier inspects nothing in this round any more: what it had goes to the others.
    pub(super) fn retire(&mut self, verifier: &MemberId) {
        let Some(frozen) = &mut self.frozen else { return };
        frozen.inspectors.retain(|inspector| inspector != verifier);
        if frozen.over.as_ref().is_some_and(|over| over.inspected.contains(&Some(*verifier))) {
            self.share();
        }
    }

    fn share(&mut self) {
        let slots = (0..self.opening.seats.len() as u16).map(Slot);
        let Some(Frozen { inspectors, over: Some(over), .. }) = &mut self.frozen else { return };
        over.inspected = slots.map(|slot| inspector(&over.outcome, slot, inspectors)).collect();
        let drawn = over.inspected.iter().enumerate();
        over.drawn.extend(drawn.filter_map(|(slot, verifier)| Some((Slot(slot as u16), (*verifier)?))));
    }

    fn exchange(&self) -> Option<&SettledInputs> {
        self.frozen.as_ref()?.exchange.as_ref()
    }

    fn moved(&self) -> Option<&Moved> {
        self.exchange()?.moved.as_ref()
    }

    fn over(&self) -> Option<&Over> {
        self.frozen.as_ref()?.over.as_ref()
    }

    /// Its number.
    pub fn round(&self) -> Round {
        self.opening.round
    }

    /// Head of the ledger that opened it.
    pub fn head(&self) -> Digest {
        self.opening.head
    }

    /// The state that its leaves are computed on.
    pub fn state(&self) -> &StateRoots {
        &self.opening.state
    }

    /// Its public seed.
    pub fn seed(&self) -> Digest {
        self.opening.seed
    }

    /// Its seats in order of slots.
    pub fn seats(&self) -> &[Seat] {
        &self.opening.seats
    }

    /// The slot of a member.
    pub fn slot_of(&self, member: &MemberId) -> Option<Slot> {
        self.opening.seats.iter().position(|seat| seat.member == *member).map(|slot| Slot(slot as u16))
    }

    /// Who sits on a slot.
    pub fn member_at(&self, slot: Slot) -> Option<MemberId> {
        self.opening.seats.get(slot.index()).map(|seat| seat.member)
    }

    /// Slots that can reduce.
    pub fn aggregators(&self) -> &[Slot] {
        &self.opening.aggregators
    }

    /// Its parts.
    pub fn parts(&self) -> &[PartPlan] {
        &self.opening.parts
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

    /// ROUND-15: to whom a sender brings its part, and by which attempt: its aggregators, and the steward in place of one that is
    /// the sender itself, so that nothing which counts is in its author's hands alone.
    pub fn keepers(&self, part: Part, sender: &MemberId) -> Option<(Vec<MemberId>, u8)> {
        let attempt = self.attempt(part)?;
        let keeper = |member| if member == *sender { self.opening.steward } else { member };
        Some((self.reducers(part, attempt).map(keeper).collect(), attempt))
    }

    /// Whether receipts by these keepers let a sender's part count: whatever its aggregators do then, who has to reduce
    /// it has it, or can have it of the steward.
    pub fn is_kept(&self, part: Part, sender: &MemberId, by: &[MemberId]) -> bool {
        // ROUND-5: those of all its keepers, or the steward's.
        let all = |(keepers, _): (Vec<MemberId>, u8)| keepers.iter().all(|keeper| by.contains(keeper));
        by.contains(&self.opening.steward) || self.keepers(part, sender).is_some_and(all)
    }

    /// The part that a block belongs to.
    pub fn part_of(&self, block: Block) -> Option<Part> {
        let part = self.parts().iter().position(|plan| plan.blocks.contains(&block))?;
        Some(Part(part as u16))
    }

    /// Whether this keeper takes a sender's part in. The steward takes any: those that an aggregator refuses.
    pub fn takes_in(&self, part: Part, sender: &MemberId, keeper: &MemberId) -> bool {
        let is_one =
            |(keepers, _): (Vec<MemberId>, u8)| keepers.contains(keeper) || *keeper == self.opening.steward;
        self.keepers(part, sender).is_some_and(is_one)
    }

    /// The freeze record, once sealed.
    pub fn freeze(&self) -> Option<&Signed<Record>> {
        self.frozen.as_ref().map(|frozen| &frozen.record)
    }

    /// R_t, once frozen.
    pub fn freeze_digest(&self) -> Option<Digest> {
        self.frozen.as_ref().map(|frozen| frozen.digest)
    }

    /// O_t, once the round is over.
    pub fn outcome_digest(&self) -> Option<Digest> {
        self.over().map(|over| over.outcome)
    }

    /// The frozen commitment of a slot.
    pub fn commitment(&self, slot: Slot) -> Option<&WeightedCommit> {
        self.frozen.as_ref()?.commits.get(slot.index())?.as_ref()
    }

    /// Frozen commitments with their slots, in order.
    pub fn commitments(&self) -> impl Iterator<Item = (Slot, &WeightedCommit)> {
        let commits = self.frozen.iter().flat_map(|frozen| frozen.commits.iter().enumerate());
        commits.filter_map(|(slot, commit)| Some((Slot(slot as u16), commit.as_ref()?)))
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

    /// The evidence that a result of this round would be, if it is wrong; none before its inputs are sealed.
    pub fn reduction(&self, result: &PartResult, signed: &Signed<PartResult>) -> Option<Reduction> {
        let inputs = self.inputs_record(result.part, result.attempt)?.0.clone();
        Some(Reduction { freeze: self.freeze()?.clone(), inputs, result: signed.clone() })
    }

    /// Parts that were reassigned, in order.
    pub fn reassigned(&self) -> impl Iterator<Item = Part> + '_ {
        let to = self.moved().into_iter().flat_map(|moved| moved.to.iter().enumerate());
        to.filter(|(_, slot)| slot.is_some()).map(|(part, _)| Part(part as u16))
    }

    /// Whether the inputs of the attempt under way are sealed.
    pub fn inputs_sealed(&self) -> bool {
        let Some(frozen) = &self.frozen else { return false };
        let attempts = |exchange: &SettledInputs| if exchange.moved.is_some() { 2 } else { 1 };
        let sealed = |exchange: &SettledInputs| exchange.records.len() >= attempts(exchange);
        self.opening.parts.is_empty() || frozen.exchange.as_ref().is_some_and(sealed)
    }

    /// Aggregators that had inputs and whose parts were reassigned.
    pub(super) fn missed(&self) -> &[MemberId] {
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

    /// Whether a slot's contribution counted in some part.
    pub fn counted(&self, slot: Slot) -> bool {
        let mut results = self.results().into_iter().flatten().zip(self.inputs());
        results.any(|(result, inputs)| result.is_some() && inputs.contains(slot))
    }

    /// Whether the round is over and spent for nothing: contributions with weight were frozen, and none of them counted.
    pub fn is_barren(&self) -> bool {
        let idle = self.commitments().all(|(slot, _)| !self.counted(slot));
        self.over().is_some() && self.weighs() && idle
    }

    /// Whether coins may be shown: the outcome holds the echoes of AUDIT-1.
    pub fn echoed(&self) -> bool {
        self.over().is_some_and(|over| over.echoed)
    }

    /// Whether it is over and was echoed: audits of it may begin.
    pub fn auditable(&self) -> bool {
        self.echoed()
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

    /// A member is silent, or leaves.
    pub(super) fn unanswered(&mut self, member: &MemberId) {
        self.unanswered.extend(self.slot_of(member));
    }

    /// Whether the member of a slot was silent, or left, since the round began.
    pub(super) fn is_unanswered(&self, slot: Slot) -> bool {
        self.unanswered.contains(&slot)
    }

    /// How many verifiers shared the round at its freeze.
    pub fn verifiers(&self) -> usize {
        self.frozen.as_ref().map_or(0, |frozen| frozen.verifiers)
    }

    /// Verifiers, and the members for whose contributions they were given credit.
    pub(super) fn credited(&self) -> impl Iterator<Item = &(MemberId, MemberId)> {
        self.over().into_iter().flat_map(|over| &over.credited)
    }

    /// Whether a verifier was given credit for the contribution of a member.
    pub(super) fn is_credited(&self, verifier: &MemberId, member: &MemberId) -> bool {
        self.over().is_some_and(|over| over.credited.contains(&(*verifier, *member)))
    }

    /// Whether a verifier is or was drawn to inspect the contribution of a slot.
    pub(super) fn was_drawn(&self, slot: Slot, verifier: &MemberId) -> bool {
        self.over().is_some_and(|over| over.drawn.contains(&(slot, *verifier)))
    }

    pub(super) fn credit(&mut self, verifier: MemberId, member: MemberId) {
        if let Some(over) = self.frozen.as_mut().and_then(|frozen| frozen.over.as_mut()) {
            over.credited.insert((verifier, member));
        }
    }

    /// Whether the sealed inputs of some part count anybody.
    pub(super) fn counts_somebody(&self) -> bool {
        self.inputs().iter().any(|inputs| !inputs.is_empty())
    }

    /// Whether any frozen contribution counts.
    pub fn weighs(&self) -> bool {
        self.commitments().any(|(_, commitment)| commitment.weight > 0)
    }

    /// Whose echo of the freeze is missing, where those that are there carry less than two thirds of the weight, or of the
    /// committed leaves where nobody has any; else nobody.
    pub fn unheard(&self, has_echoed: impl Fn(&MemberId) -> bool) -> Vec<MemberId> {
        let weighs = self.weighs();
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
        if 3 * heard >= 2 * all { Vec::new() } else { unheard }
    }
}
