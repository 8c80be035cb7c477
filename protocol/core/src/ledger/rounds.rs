//! A round as the ledger has it, from its seats to its outcome.

use std::collections::BTreeSet;

use super::{Ledger, Stage};
use crate::assign::{self, PartPlan};
use crate::coins::{inspector, jury};
use crate::error::Reject;
use crate::ids::{Block, Digest, MemberId, Part, Round, Slot};
use crate::messages::evidence::Reduction;
use crate::messages::record::{Freeze, Inputs, Outcome, Reassign, Record, Seat, Seats};
use crate::messages::round::{Bitmap, Commit, Echo, PartResult};
use crate::sign::{Signed, Verified};
use crate::state::StateRoots;

/// A frozen commitment.
#[derive(Clone, Debug)]
pub struct Commitment {
    /// What was committed.
    pub commit: Commit,
    /// By whom.
    pub author: MemberId,
    /// m_eff: how many of its leaves count in the aggregate.
    pub weight: u32,
    /// Probability that a verifier audits it, in parts per million.
    pub audit_ppm: u32,
}

/// One round.
#[derive(Clone)]
pub struct RoundView {
    round: Round,
    steward: MemberId,
    head: Digest,
    state: StateRoots,
    seed: Digest,
    seats: Vec<Seat>,
    aggregators: Vec<Slot>,
    parts: Vec<PartPlan>,
    /// The other aggregators of the parts, in runs that have two.
    seconds: Vec<Option<Slot>>,
    frozen: Option<Frozen>,
    inputs: Vec<Bitmap>,
    /// The records that sealed them, by attempt.
    inputs_records: Vec<Signed<Record>>,
    reassigned: Vec<Option<Slot>>,
    /// Aggregators that had inputs and whose parts were reassigned.
    missed: Vec<MemberId>,
    second_inputs: bool,
    results: Option<Vec<Option<PartResult>>>,
    signed_results: Vec<Option<Signed<PartResult>>>,
    /// Results of the parts' other aggregators, which say the same.
    second_results: Vec<(Part, Signed<PartResult>)>,
    echoed: bool,
    /// Verifiers that the round was shared among.
    verifiers: usize,
    /// Those of them that are left.
    inspectors: Vec<MemberId>,
    /// Those of them that were left when the round was over.
    block_inspectors: Vec<MemberId>,
    /// Slots whose members were silent, or left, since the round began.
    unanswered: BTreeSet<Slot>,
    /// Head after the outcome.
    outcome: Option<Digest>,
    /// By slot, once the round is over.
    inspected: Vec<Option<MemberId>>,
    /// Slots, and the verifiers that were ever drawn to inspect them.
    drawn: BTreeSet<(Slot, MemberId)>,
    /// Who has vouched for whose contribution.
    credited: BTreeSet<(MemberId, MemberId)>,
}

#[derive(Clone)]
struct Frozen {
    record: Signed<Record>,
    digest: Digest,
    commits: Vec<Option<Commitment>>,
}

impl RoundView {
    pub(super) fn open(ledger: &Ledger, seats: &Seats, aggregators: &[Slot]) -> Self {
        let seed = assign::round_seed(ledger.run, ledger.next_round, &ledger.state.root());
        let parts = assign::parts(&ledger.layout, &seed, aggregators);
        // ASSIGN-9: the second aggregators of a run that has two.
        let seconds = match ledger.manifest.aggregation.replicas {
            2 => assign::seconds(&seed, aggregators, parts.len()),
            _ => vec![None; parts.len()],
        };
        Self {
            round: ledger.next_round,
            steward: ledger.manifest.steward,
            head: ledger.head,
            state: ledger.state,
            seed,
            seats: seats.to_vec(),
            aggregators: aggregators.to_vec(),
            reassigned: vec![None; parts.len()],
            missed: Vec::new(),
            seconds,
            parts,
            frozen: None,
            inputs: Vec::new(),
            inputs_records: Vec::new(),
            second_inputs: false,
            results: None,
            signed_results: Vec::new(),
            second_results: Vec::new(),
            echoed: false,
            verifiers: 0,
            inspectors: Vec::new(),
            block_inspectors: Vec::new(),
            unanswered: BTreeSet::new(),
            outcome: None,
            inspected: Vec::new(),
            drawn: BTreeSet::new(),
            credited: BTreeSet::new(),
        }
    }

    pub(super) fn frozen_as(&mut self, digest: Digest) {
        if let Some(frozen) = &mut self.frozen {
            frozen.digest = digest;
        }
    }

    /// The round is over, and with this head it is drawn who inspects what.
    pub(super) fn over_as(&mut self, digest: Digest) {
        self.outcome = Some(digest);
        self.block_inspectors.clone_from(&self.inspectors);
        self.share();
    }

    /// A verifier inspects nothing in this round any more: what it had goes to the others.
    pub(super) fn retire(&mut self, verifier: &MemberId) {
        self.inspectors.retain(|inspector| inspector != verifier);
        if self.inspected.contains(&Some(*verifier)) {
            self.share();
        }
    }

    fn share(&mut self) {
        let Some(outcome) = self.outcome else { return };
        let slots = (0..self.seats.len() as u16).map(Slot);
        self.inspected = slots.map(|slot| inspector(&outcome, slot, &self.inspectors)).collect();
        let drawn = self.inspected.iter().enumerate();
        self.drawn.extend(drawn.filter_map(|(slot, verifier)| Some((Slot(slot as u16), (*verifier)?))));
    }

    /// Its number.
    pub fn round(&self) -> Round {
        self.round
    }

    /// Head of the ledger that opened it.
    pub fn head(&self) -> Digest {
        self.head
    }

    /// The state that its leaves are computed on.
    pub fn state(&self) -> &StateRoots {
        &self.state
    }

    /// Its public seed.
    pub fn seed(&self) -> Digest {
        self.seed
    }

    /// Its seats in order of slots.
    pub fn seats(&self) -> &[Seat] {
        &self.seats
    }

    /// The slot of a member.
    pub fn slot_of(&self, member: &MemberId) -> Option<Slot> {
        self.seats.iter().position(|seat| seat.member == *member).map(|slot| Slot(slot as u16))
    }

    /// Who sits on a slot.
    pub fn member_at(&self, slot: Slot) -> Option<MemberId> {
        self.seats.get(slot.index()).map(|seat| seat.member)
    }

    /// Slots that can reduce.
    pub fn aggregators(&self) -> &[Slot] {
        &self.aggregators
    }

    /// Its parts.
    pub fn parts(&self) -> &[PartPlan] {
        &self.parts
    }

    /// Who reduces a part now, the first one, and by which attempt.
    pub fn aggregator(&self, part: Part) -> Option<(Slot, u8)> {
        let attempt = self.attempt(part)?;
        Some((self.aggregators_in(part, attempt).next()?, attempt))
    }

    /// By which attempt a part is reduced now; `None` where there is no such part.
    pub fn attempt(&self, part: Part) -> Option<u8> {
        Some(u8::from(self.reassigned.get(part.index())?.is_some()))
    }

    /// The slots that have to reduce a part in an attempt: one, or before a reassignment two in runs with replicas.
    pub fn aggregators_in(&self, part: Part, attempt: u8) -> impl Iterator<Item = Slot> + '_ {
        let plan = self.parts.get(part.index()).filter(|_| attempt == 0).map(|plan| plan.aggregator);
        let second = self.seconds.get(part.index()).filter(|_| attempt == 0).copied().flatten();
        let moved = self.reassigned.get(part.index()).filter(|_| attempt == 1).copied().flatten();
        [plan, second, moved].into_iter().flatten()
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
        let keeper = |member| if member == *sender { self.steward } else { member };
        Some((self.reducers(part, attempt).map(keeper).collect(), attempt))
    }

    /// Whether receipts by these keepers let a sender's part count: whatever its aggregators do then, who has to reduce
    /// it has it, or can have it of the steward.
    pub fn is_kept(&self, part: Part, sender: &MemberId, by: &[MemberId]) -> bool {
        // ROUND-5: those of all its keepers, or the steward's.
        let all = |(keepers, _): (Vec<MemberId>, u8)| keepers.iter().all(|keeper| by.contains(keeper));
        by.contains(&self.steward) || self.keepers(part, sender).is_some_and(all)
    }

    /// The part that a block belongs to.
    pub fn part_of(&self, block: Block) -> Option<Part> {
        let part = self.parts().iter().position(|plan| plan.blocks.contains(&block))?;
        Some(Part(part as u16))
    }

    /// Whether this keeper takes a sender's part in. The steward takes any: those that an aggregator refuses.
    pub fn takes_in(&self, part: Part, sender: &MemberId, keeper: &MemberId) -> bool {
        let is_one = |(keepers, _): (Vec<MemberId>, u8)| keepers.contains(keeper) || *keeper == self.steward;
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
        self.outcome
    }

    /// The frozen commitment of a slot.
    pub fn commitment(&self, slot: Slot) -> Option<&Commitment> {
        self.frozen.as_ref()?.commits.get(slot.index())?.as_ref()
    }

    /// Frozen commitments with their slots, in order.
    pub fn commitments(&self) -> impl Iterator<Item = (Slot, &Commitment)> {
        let commits = self.frozen.iter().flat_map(|frozen| frozen.commits.iter().enumerate());
        commits.filter_map(|(slot, commit)| Some((Slot(slot as u16), commit.as_ref()?)))
    }

    /// Sealed inputs of each part; empty before they are sealed.
    pub fn inputs(&self) -> &[Bitmap] {
        &self.inputs
    }

    /// The record that sealed the inputs of an attempt, and the place that a part has in it.
    pub fn inputs_record(&self, part: Part, attempt: u8) -> Option<(&Signed<Record>, usize)> {
        let place = match attempt {
            0 => part.index(),
            _ => self.reassigned().position(|moved| moved == part)?,
        };
        Some((self.inputs_records.get(usize::from(attempt))?, place))
    }

    /// The evidence that a result of this round would be, if it is wrong; none before its inputs are sealed.
    pub fn reduction(&self, result: &PartResult, signed: &Signed<PartResult>) -> Option<Reduction> {
        let inputs = self.inputs_record(result.part, result.attempt)?.0.clone();
        Some(Reduction { freeze: self.freeze()?.clone(), inputs, result: signed.clone() })
    }

    /// Parts that were reassigned, in order.
    pub fn reassigned(&self) -> impl Iterator<Item = Part> + '_ {
        let parts = self.reassigned.iter().enumerate().filter(|(_, slot)| slot.is_some());
        parts.map(|(part, _)| Part(part as u16))
    }

    /// Whether the inputs of the attempt under way are sealed.
    pub fn inputs_sealed(&self) -> bool {
        !self.inputs.is_empty() && (self.second_inputs || self.reassigned().next().is_none())
            || (self.parts.is_empty() && self.frozen.is_some())
    }

    /// Aggregators that had inputs and whose parts were reassigned.
    pub(super) fn missed(&self) -> &[MemberId] {
        &self.missed
    }

    /// Sealed results, once the round is over.
    pub fn results(&self) -> Option<&[Option<PartResult>]> {
        self.results.as_deref()
    }

    /// The sealed result of a part as its aggregator signed it, once the round is over.
    pub fn signed_result(&self, part: Part) -> Option<&Signed<PartResult>> {
        self.signed_results.get(part.index())?.as_ref()
    }

    /// The sealed results of a part, once the round is over: that of one aggregator, and where the other one said the
    /// same in time, that too.
    pub fn signed_results_of(&self, part: Part) -> impl Iterator<Item = &Signed<PartResult>> {
        let second = self.second_results.iter().filter(move |(place, _)| *place == part);
        self.signed_result(part).into_iter().chain(second.map(|(_, signed)| signed))
    }

    /// Whether a slot's contribution counted in some part.
    pub fn counted(&self, slot: Slot) -> bool {
        let results = self.results.iter().flatten().zip(&self.inputs);
        results.into_iter().any(|(result, inputs)| result.is_some() && inputs.contains(slot))
    }

    /// Whether the round is over and spent for nothing: contributions with weight were frozen, and none of them counted.
    pub fn is_barren(&self) -> bool {
        let idle = self.commitments().all(|(slot, _)| !self.counted(slot));
        self.results.is_some() && self.weighs() && idle
    }

    /// Whether coins may be shown: the outcome holds the echoes of AUDIT-1.
    pub fn echoed(&self) -> bool {
        self.echoed
    }

    /// Whether it is over and was echoed: audits of it may begin.
    pub fn auditable(&self) -> bool {
        self.results.is_some() && self.echoed
    }

    /// Who inspects the contribution of a slot; nobody before the round is over, or when no verifier is left.
    pub fn inspector(&self, slot: Slot) -> Option<MemberId> {
        self.inspected.get(slot.index()).copied().flatten()
    }

    /// The jurors of a case against a member over its conduct in this round (DUTY-11); nobody before the round is over.
    pub fn jury(&self, culprit: &MemberId, accuser: &MemberId) -> Vec<MemberId> {
        let outcome = self.outcome.as_ref();
        outcome.map_or_else(Vec::new, |outcome| jury(outcome, culprit, accuser, &self.inspectors))
    }

    /// Verifiers that inspect this round: those at its freeze, in order of admission, without those that are gone.
    pub fn inspectors(&self) -> &[MemberId] {
        &self.inspectors
    }

    /// Verifiers that share the blocks of this round: those that were left when it was over (AUDIT-20).
    pub fn block_inspectors(&self) -> &[MemberId] {
        &self.block_inspectors
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
        self.verifiers
    }

    /// Verifiers, and the members for whose contributions they were given credit.
    pub(super) fn credited(&self) -> &BTreeSet<(MemberId, MemberId)> {
        &self.credited
    }

    /// Whether a verifier is or was drawn to inspect the contribution of a slot.
    pub(super) fn was_drawn(&self, slot: Slot, verifier: &MemberId) -> bool {
        self.drawn.contains(&(slot, *verifier))
    }

    pub(super) fn credit(&mut self, verifier: MemberId, member: MemberId) {
        self.credited.insert((verifier, member));
    }

    /// Whether the sealed inputs of some part count anybody.
    fn counts_somebody(&self) -> bool {
        self.inputs.iter().any(|inputs| !inputs.is_empty())
    }

    /// Whether any frozen contribution counts.
    pub fn weighs(&self) -> bool {
        self.commitments().any(|(_, commitment)| commitment.weight > 0)
    }

    /// Whose echo of the freeze is missing, where those that are there carry less than two thirds of the weight, or of the
    /// committed leaves where nobody has any; else nobody.
    pub fn unheard(&self, has_echoed: impl Fn(&MemberId) -> bool) -> Vec<MemberId> {
        let weighs = self.weighs();
        let counts = |c: &Commitment| u64::from(if weighs { c.weight } else { c.commit.leaves });
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

impl Ledger {
    /// COMMIT-3: checks a commitment for the round being computed, field by field.
    ///
    /// # Errors
    /// [`Reject`] naming what is wrong with it.
    pub fn check_commit(&self, signed: &Signed<Commit>) -> Result<Verified<Commit>, Reject> {
        let commit = signed.verify(self.run)?;
        let view = self.current().ok_or(Reject::Stale("no round is open"))?;
        if commit.round != view.round || self.stage != Stage::Computing {
            return Err(Reject::Stale("the commitment is for another round"));
        }
        let seat = view.seats.get(commit.slot.index());
        let seat = seat.filter(|seat| seat.member == commit.author());
        let seat = seat.ok_or(Reject::NotEntitled("commit for this slot"))?;
        self.require(
            commit.head == view.head && commit.state == view.state.root(),
            "a commitment names the round's head and state",
        )?;
        self.require(usize::from(commit.seats) == view.seats.len(), "a commitment names the round's seats")?;
        self.require((1..=seat.quota).contains(&commit.leaves), "a commitment sums 1 to quota leaves")?;
        self.require(commit.profile == self.manifest.profile, "a commitment names the run's profile")?;
        Ok(commit)
    }

    /// STAND-3: weight and rate of audits are fixed when a contribution is frozen.
    fn commitment(&self, commit: &Verified<Commit>) -> Commitment {
        let author = commit.author();
        let member = self.member(&author);
        Commitment {
            commit: (**commit).clone(),
            author,
            weight: member.map_or(0, |member| self.weight(member, commit.leaves)),
            audit_ppm: member.map_or(0, |member| self.audit_ppm(member)),
        }
    }

    // LEDGER-7
    pub(super) fn freeze(&mut self, freeze: &Freeze, record: &Signed<Record>) -> Result<(), Reject> {
        self.require(self.stage == Stage::Computing, "a freeze follows an open round")?;
        let view = self.current().ok_or(Reject::Rule("a freeze follows an open round"))?;
        self.require(
            freeze.round == view.round && freeze.state == view.state.root(),
            "a freeze names its round and state",
        )?;
        self.require(!freeze.commits.is_empty(), "a freeze holds at least one commitment")?;
        let mut commits = vec![None; view.seats.len()];
        let mut verified = Vec::new();
        let mut last = None;
        for signed in &freeze.commits {
            let commit = self.check_commit(signed)?;
            self.require(last < Some(commit.slot), "commitments are in order of slots, one each")?;
            last = Some(commit.slot);
            if let Some(place) = commits.get_mut(commit.slot.index()) {
                *place = Some(self.commitment(&commit));
            }
            verified.push(commit);
        }
        let seats = view.seats.clone();
        let inspectors = self.verifiers_of(view.round);
        self.pace(freeze.round, &seats, &verified);
        self.stage = Stage::Exchanging;
        let frozen = Frozen { record: record.clone(), digest: Digest::default(), commits };
        if let Some(view) = self.rounds.back_mut() {
            view.frozen = Some(frozen);
            view.verifiers = inspectors.len();
            view.inspectors = inspectors;
        }
        Ok(())
    }

    // LEDGER-8
    pub(super) fn inputs(&mut self, inputs: &Inputs, record: &Signed<Record>) -> Result<(), Reject> {
        self.require(self.stage == Stage::Exchanging, "inputs are sealed once for each attempt")?;
        let view = self.current().ok_or(Reject::Rule("inputs follow a freeze"))?;
        self.require(inputs.round == view.round, "inputs name their round")?;
        let parts: Vec<Part> = match inputs.attempt {
            0 => (0..view.parts.len() as u16).map(Part).collect(),
            _ => view.reassigned().collect(),
        };
        let second = !view.inputs.is_empty();
        self.require(inputs.attempt == u8::from(second), "inputs name their attempt")?;
        self.require(
            inputs.parts.len() == parts.len(),
            "inputs hold one bitmap for each part of the attempt",
        )?;
        let counted = inputs.parts.iter().flat_map(Bitmap::slots);
        let counts = |slot| view.commitment(slot).is_some_and(|commitment| commitment.weight > 0);
        self.require(counted.into_iter().all(counts), "only frozen contributions with weight are counted")?;
        self.stage = Stage::Reducing;
        if !second {
            self.miss_uncounted(&inputs.parts);
        }
        let Some(view) = self.rounds.back_mut() else { return Ok(()) };
        view.second_inputs = second;
        view.inputs_records.push(record.clone());
        if !second {
            view.inputs = vec![Bitmap::default(); parts.len()];
        }
        for (part, bitmap) in parts.iter().zip(&inputs.parts) {
            if let Some(place) = view.inputs.get_mut(part.index()) {
                *place = *bitmap;
            }
        }
        Ok(())
    }

    // LEDGER-9
    pub(super) fn reassign(&mut self, reassign: &Reassign) -> Result<(), Reject> {
        self.require(self.stage == Stage::Reducing, "parts are reassigned after their inputs were sealed")?;
        let view = self.current().ok_or(Reject::Rule("parts are reassigned in a round"))?;
        self.require(reassign.round == view.round, "a reassignment names its round")?;
        self.require(view.reassigned().next().is_none(), "parts are reassigned once")?;
        self.require(!reassign.parts.is_empty(), "a reassignment holds a part")?;
        let mut last = None;
        for moved in &reassign.parts {
            self.require(last < Some(moved.part), "reassigned parts are in order, one each")?;
            last = Some(moved.part);
            self.require(moved.part.index() < view.parts.len(), "a reassigned part exists")?;
            let had = view.aggregators_in(moved.part, 0).any(|slot| slot == moved.aggregator);
            let able = view.aggregators.contains(&moved.aggregator) && !had;
            self.require(able, "a part goes to another aggregator")?;
        }
        let had_inputs = |part: Part| view.inputs.get(part.index()).is_some_and(|inputs| !inputs.is_empty());
        let moved = reassign.parts.iter().map(|moved| moved.part).filter(|part| had_inputs(*part));
        let missed: Vec<MemberId> = moved.flat_map(|part| view.reducers(part, 0)).collect();
        self.stage = Stage::Exchanging;
        let Some(view) = self.rounds.back_mut() else { return Ok(()) };
        view.missed = missed;
        for moved in &reassign.parts {
            if let Some(place) = view.reassigned.get_mut(moved.part.index()) {
                *place = Some(moved.aggregator);
            }
        }
        Ok(())
    }

    /// Checks a result for the round being reduced: by one of the part's aggregators, over the sealed inputs.
    ///
    /// # Errors
    /// [`Reject`] naming what is wrong with it.
    pub fn check_result(&self, signed: &Signed<PartResult>) -> Result<Verified<PartResult>, Reject> {
        let result = signed.verify(self.run)?;
        let view = self.current().ok_or(Reject::Stale("no round is open"))?;
        if result.round != view.round || self.stage != Stage::Reducing {
            return Err(Reject::Stale("the result is for another round"));
        }
        let attempt = view.attempt(result.part).ok_or(Reject::Rule("a result names a part"))?;
        if !view.aggregating(result.part).any(|member| member == result.author()) {
            return Err(Reject::NotEntitled("reduce this part"));
        }
        self.require(result.attempt == attempt, "a result names its attempt")?;
        self.require(view.freeze_digest() == Some(result.freeze), "a result names the freeze")?;
        let sealed = view.inputs.get(result.part.index());
        let sealed = sealed.is_some_and(|inputs| *inputs == result.inputs && !inputs.is_empty());
        self.require(sealed, "a result is over exactly the sealed inputs")?;
        Ok(result)
    }

    /// Checks an echo of the current round's freeze.
    ///
    /// # Errors
    /// [`Reject`] naming what is wrong with it.
    pub fn check_echo(&self, signed: &Signed<Echo>) -> Result<Verified<Echo>, Reject> {
        let echo = signed.verify(self.run)?;
        let view = self.current().ok_or(Reject::Stale("no round is open"))?;
        if echo.round != view.round || Some(echo.freeze) != view.freeze_digest() {
            return Err(Reject::Stale("the echo is of another freeze"));
        }
        if view.slot_of(&echo.author()).is_none() {
            return Err(Reject::NotEntitled("echo: it has no seat"));
        }
        Ok(echo)
    }

    pub(super) fn outcome(&mut self, outcome: &Outcome) -> Result<(), Reject> {
        let view = self.current().ok_or(Reject::Rule("an outcome ends a round"))?;
        let reduced =
            self.stage == Stage::Reducing || (self.stage == Stage::Exchanging && view.parts.is_empty());
        self.require(reduced, "an outcome follows sealed inputs")?;
        self.require(outcome.round == view.round, "an outcome names its round")?;
        self.require(outcome.results.len() == view.parts.len(), "an outcome holds one result for each part")?;
        let mut results = Vec::new();
        for (part, signed) in outcome.results.iter().enumerate() {
            let result = signed.as_ref().map(|signed| self.check_result(signed)).transpose()?;
            let fits = result.as_ref().is_none_or(|result| result.part.index() == part);
            self.require(fits, "results are in order of parts")?;
            results.push(result.map(Verified::into_inner));
        }
        let seconds = self.check_seconds(outcome)?;
        let echoed = self.check_echoes(view, outcome)?;
        let heard = view.unheard(|member| echoed.contains(member)).is_empty();
        self.check_credits(&outcome.credits)?;
        let step = self.state.step.saturating_add(1);
        self.require(outcome.state.step == step, "an outcome applies one update")?;
        let next_round = view.round.next();
        let last = self.ends_with(view.round);
        let failed = self.failed_at(outcome);
        let seats = self.seats_after(outcome);
        self.require(*outcome.seats == *seats, "the seats follow from the ledger")?;
        self.state = outcome.state;
        self.next_round = next_round;
        self.stage = match (last, seats.is_empty()) {
            (true, _) => Stage::Auditing,
            (false, true) => Stage::Gathering,
            (false, false) => Stage::Computing,
        };
        if let Some(view) = self.rounds.back_mut() {
            view.results = Some(results);
            view.signed_results = outcome.results.to_vec();
            view.second_results = seconds;
            // AUDIT-1: whoever counts has echoed; a round that counts nobody takes two thirds.
            view.echoed = view.counts_somebody() || heard;
        }
        self.add_credits(&outcome.credits);
        self.strangers = 0;
        self.judge_round(&failed);
        Ok(())
    }

    /// Checks the results of the parts' other aggregators, and gives them with their parts.
    fn check_seconds(&self, outcome: &Outcome) -> Result<Vec<(Part, Signed<PartResult>)>, Reject> {
        let mut seconds: Vec<(Part, Signed<PartResult>)> = Vec::new();
        for signed in &outcome.seconds {
            let second = self.check_result(signed)?;
            let first = outcome.results.get(second.part.index()).and_then(Option::as_ref);
            let first =
                first.ok_or(Reject::Rule("a second result is beside a first one"))?.verify(self.run)?;
            self.require(
                first.author() != second.author() && *first == *second,
                "a second result is by the other aggregator and says the same",
            )?;
            let last = seconds.last().map(|(part, _)| *part);
            self.require(last < Some(second.part), "second results are in order of parts, one each")?;
            seconds.push((second.part, signed.clone()));
        }
        Ok(seconds)
    }

    /// Checks the echoes, and gives their authors.
    fn check_echoes(&self, view: &RoundView, outcome: &Outcome) -> Result<Vec<MemberId>, Reject> {
        let mut authors = Vec::new();
        for signed in &outcome.echoes {
            authors.push(self.check_echo(signed)?.author());
        }
        self.require(
            authors.is_sorted_by(|a, b| view.slot_of(a) < view.slot_of(b)),
            "echoes are in order of slots, one each",
        )?;
        // LEDGER-10: a round that counts somebody can be audited, whoever keeps silent.
        let has_echoed = |slot| view.member_at(slot).is_some_and(|member| authors.contains(&member));
        let mut counted = view.inputs.iter().flat_map(Bitmap::slots);
        self.require(
            counted.all(has_echoed),
            "an outcome holds the echo of every slot that its inputs count",
        )?;
        Ok(authors)
    }

    /// Whether the outcome of this round, the open one, is the run's last: with it as many updates are applied as there
    /// are rounds to train, or no further round may be opened.
    pub fn ends_with(&self, round: Round) -> bool {
        let applied = self.state.step.saturating_add(1);
        applied >= self.manifest.training.rounds || round.next().0 >= self.manifest.most_rounds()
    }
}
