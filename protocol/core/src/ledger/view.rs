//! A round as the ledger has it, in its phases: opened, frozen, exchanged, over.

mod inspection;
mod parts;
mod rows;

use std::collections::{BTreeMap, BTreeSet};

pub use rows::FrozenRow;
pub(super) use rows::RowPlan;

use crate::assign::PartPlan;
use crate::bug;
use crate::bug::OrBug;
use crate::coins::inspector;
use crate::ids::{Digest, MemberId, Part, Round, Row, RowSet, ShareClass, Slot};
use crate::messages::record::{Reassign, Record, Seat};
use crate::messages::round::Route;
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
    /// Slots whose members are late (AUDIT-27).
    late: Bitmap,
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
    pub(super) base: StateRoots,
    pub(super) seed: Digest,
    pub(super) parts_seed: Digest,
    pub(super) seats: Vec<Seat>,
    pub(super) aggregators: Vec<Slot>,
    /// ROUND-39: whether none of them can be dialled.
    pub(super) stood_in: bool,
    /// The share class of each slot.
    pub(super) classes: Vec<ShareClass>,
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
    /// What becomes of its rows.
    rows: RowPlan,
    /// How many verifiers the round was shared among.
    verifiers: usize,
    /// Those of them that remain (DUTY-6).
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
    /// Whether shares have changed in this round (LEDGER-25).
    shared: bool,
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
    /// Inspectors that remained when the round ended.
    block_inspectors: Vec<MemberId>,
    /// Who inspects which slot's contribution.
    inspected: Vec<Option<MemberId>>,
    /// Slots, and the verifiers that were ever drawn to inspect them.
    drawn: BTreeSet<(Slot, MemberId)>,
    /// Who has vouched for whose contribution.
    credited: BTreeSet<(MemberId, MemberId)>,
    /// Slots that have another inspector than at first, or were opened again, and what could be audited then.
    reach: BTreeMap<Slot, Reach>,
}

/// What could still be audited of a contribution when it last came to another inspector, or was opened again (DUTY-3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// Its author need not answer any more.
    Nothing,
    /// What a coin selects: its author had to answer, and its state may have been gone.
    Drawn,
    /// Anything: everybody kept its state.
    Anything,
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
        Self { opening, late: Bitmap::default(), frozen: None, unanswered: BTreeSet::new() }
    }

    /// The members of these slots are late.
    pub(super) fn late_with(&mut self, slots: Bitmap) {
        self.late = slots;
    }

    /// Its Freeze is sealed, with this head after it.
    pub(super) fn freeze_with(
        &mut self,
        record: &Signed<Record>,
        digest: Digest,
        commits: Vec<Option<WeightedCommit>>,
        rows: RowPlan,
        inspectors: Vec<MemberId>,
    ) {
        self.frozen = Some(Frozen {
            record: record.clone(),
            digest,
            commits,
            rows,
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
        let Some(frozen) = self.frozen.as_mut().or_bug("a freeze before the inputs") else { return };
        let fresh = || SettledInputs {
            inputs: vec![Bitmap::default(); parts],
            records: Vec::new(),
            moved: None,
            shared: false,
        };
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
        // LEDGER-20: only an aggregator that had something to reduce has failed.
        let lost = reassign.parts.iter().map(|moved| moved.part).filter(had_inputs);
        let missed: Vec<MemberId> = lost.flat_map(|part| self.reducers(part, 0)).collect();
        let mut to = vec![None; self.opening.parts.len()];
        for moved in &reassign.parts {
            if let Some(aggregator) = to.get_mut(moved.part.index()) {
                *aggregator = Some(moved.aggregator);
            }
        }
        let exchange = self.frozen.as_mut().and_then(|frozen| frozen.exchange.as_mut());
        if let Some(exchange) = exchange.or_bug("inputs before a part goes to another aggregator") {
            exchange.moved = Some(Moved { to, missed });
        }
    }

    /// Shares have changed.
    pub(super) fn share_anew(&mut self) {
        let exchange = self.frozen.as_mut().and_then(|frozen| frozen.exchange.as_mut());
        exchange
            .or_bug("inputs before shares change")
            .into_iter()
            .for_each(|exchange| exchange.shared = true);
    }

    /// The round is over, and with the head after its Outcome it is drawn who inspects what.
    pub(super) fn end(&mut self, results: SealedResults, echoed: bool, outcome: Digest) {
        let Some(frozen) = self.frozen.as_mut().or_bug("a freeze before the outcome") else { return };
        // Kept as they are now: who inspects which block must not change while it is inspected (AUDIT-20).
        let block_inspectors = frozen.inspectors.clone();
        frozen.over = Some(Over {
            results,
            echoed,
            outcome,
            block_inspectors,
            inspected: Vec::new(),
            drawn: BTreeSet::new(),
            credited: BTreeSet::new(),
            reach: BTreeMap::new(),
        });
        self.share();
    }

    /// A verifier inspects nothing in this round any more: what it had goes to the others, who can audit this much of it.
    pub(super) fn retire(&mut self, verifier: &MemberId, reach: Reach) {
        // A round that is computed yet is shared among whoever is there at its Freeze.
        let Some(frozen) = &mut self.frozen else { return };
        frozen.inspectors.retain(|inspector| inspector != verifier);
        // Nothing is drawn yet: the Outcome shares it among those that remain.
        let Some(over) = &mut frozen.over else { return };
        let its_own =
            over.inspected.iter().enumerate().filter(|(_, inspector)| **inspector == Some(*verifier));
        let its_own: Vec<Slot> = its_own.map(|(slot, _)| Slot(slot as u16)).collect();
        // Another draw gives the others what they had: only what this one had moves.
        if !its_own.is_empty() {
            over.reach.extend(its_own.into_iter().map(|slot| (slot, reach)));
            self.share();
        }
    }

    /// All who have vouched for the contribution of a slot were banned: this much of it can be audited.
    pub(super) fn open_again(&mut self, slot: Slot, reach: Reach) {
        if let Some(over) = self.over_mut() {
            over.reach.insert(slot, reach);
        }
    }

    fn share(&mut self) {
        let slots = (0..self.opening.seats.len() as u16).map(Slot);
        let Some(Frozen { inspectors, over: Some(over), .. }) = &mut self.frozen else {
            bug!("an outcome before contributions are shared");
            return;
        };
        // One inspector each: with a coin of every verifier the rate would be V·π, and the work would be done
        // twice.
        over.inspected = slots.map(|slot| inspector(&over.outcome, slot, inspectors)).collect();
        let drawn = over.inspected.iter().enumerate();
        // Never removed: whoever was drawn once may have signed a verdict, which is heard and credited later.
        over.drawn.extend(drawn.filter_map(|(slot, verifier)| Some((Slot(slot as u16), (*verifier)?))));
    }

    /// A member is silent, or leaves.
    pub(super) fn unanswered(&mut self, member: &MemberId) {
        self.unanswered.extend(self.slot_of(member));
    }

    pub(super) fn credit(&mut self, verifier: MemberId, member: MemberId) {
        if let Some(over) = self.over_mut() {
            over.credited.insert((verifier, member));
        }
    }

    /// What the Outcome of a round has settled that was audited, so that it is over.
    #[track_caller]
    fn over_mut(&mut self) -> Option<&mut Over> {
        self.frozen.as_mut().and_then(|frozen| frozen.over.as_mut()).or_bug("the outcome of an audited round")
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

    /// The state before it, which its results change.
    pub fn state(&self) -> &StateRoots {
        &self.opening.state
    }

    /// The state that its leaves are computed on (ROUND-28).
    pub fn base(&self) -> &StateRoots {
        &self.opening.base
    }

    /// Whether its leaves are computed on an older state than the one before it.
    pub fn is_behind(&self) -> bool {
        self.opening.base != self.opening.state
    }

    /// The public seed of its leaves.
    pub fn seed(&self) -> Digest {
        self.opening.seed
    }

    /// The public seed by which its parts have aggregators.
    pub fn parts_seed(&self) -> Digest {
        self.opening.parts_seed
    }

    /// Its seats in order of slots.
    pub fn seats(&self) -> &[Seat] {
        &self.opening.seats
    }

    /// The row that a slot computes on; 0 where there is one.
    pub fn row_of(&self, slot: Slot) -> Row {
        self.opening.seats.get(slot.index()).map(|seat| seat.row).unwrap_or_default()
    }

    /// Rows with a seat. Nobody computes on the others.
    pub fn open_rows(&self) -> RowSet {
        self.opening.seats.iter().map(|seat| seat.row).collect()
    }

    /// Which windows a slot reads (ASSIGN-10); none where the state has one row, so that all read alike.
    pub fn route(&self, slot: Slot) -> Option<Route> {
        Route::of(self.state().rows(), self.row_of(slot), self.open_rows())
    }

    /// Whether a slot has leaves to compute: not that of a supporter (LEDGER-24).
    pub fn trains(&self, slot: Slot) -> bool {
        self.opening.seats.get(slot.index()).is_some_and(|seat| seat.quota > 0)
    }

    /// The slot of a member.
    pub fn slot_of(&self, member: &MemberId) -> Option<Slot> {
        self.opening.seats.iter().position(|seat| seat.member == *member).map(|slot| Slot(slot as u16))
    }

    /// Who sits on a slot.
    pub fn member_at(&self, slot: Slot) -> Option<MemberId> {
        self.opening.seats.get(slot.index()).map(|seat| seat.member)
    }

    /// Slots whose members are late: what they commit to counts nowhere (AUDIT-27).
    pub fn late(&self) -> &Bitmap {
        &self.late
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

    /// Whether a slot's contribution counted in some part.
    pub fn counted(&self, slot: Slot) -> bool {
        let mut results = self.results().into_iter().flatten().zip(self.inputs());
        results.any(|(result, inputs)| result.is_some() && inputs.contains(slot))
    }

    /// Whether the round is over, and none of the contributions to it counted: it has changed the state by nothing that
    /// anybody has computed.
    pub fn is_barren(&self) -> bool {
        self.over().is_some() && self.commitments().all(|(slot, _)| !self.counted(slot))
    }

    /// Whether any frozen contribution counts.
    pub fn weighs(&self) -> bool {
        self.commitments().any(|(_, commitment)| commitment.weight > 0)
    }
}
