//! Contributors check a round's results before they are applied; disputed results are reduced again.

use std::collections::BTreeSet;

use super::{Conductor, Output};
use crate::error::Reject;
use crate::ids::{Block, Digest, MemberId, Part, Slot};
use crate::ledger::{RoundView, Stage};
use crate::messages::round::{Checked, PartResult};
use crate::reduction::weights;
use crate::sign::Signed;

/// What one contributor has said of the results.
#[derive(Default)]
pub(super) struct ResultsCheck {
    pub(super) parts: BTreeSet<Part>,
    pub(super) objections: BTreeSet<Block>,
}

/// The wait for a member's word is put off for at most two to the power of this many rounds.
const MOST_DOUBLINGS: u32 = 16;

/// How often a member has let a round wait for its word in vain.
#[derive(Default)]
pub(super) struct Stall {
    times: u32,
    /// Rounds in which it has to give its word before one waits for it again.
    owed: u32,
}

impl Conductor {
    /// What a contributor says of the results. Its words add up; none is taken back.
    ///
    /// # Errors
    /// [`Reject`] for another round or attempt, for a member that no part counts, for parts and blocks that are not
    /// what they should be, and for no new part, so that nobody is heard more often than there are parts.
    pub fn checked(&mut self, now: u64, signed: &Signed<Checked>) -> Result<(), Reject> {
        let checked = signed.verify(self.ledger.run())?;
        let view = self.ledger.current().ok_or(Reject::Stale("no round is open"))?;
        let attempt = u8::from(view.reassigned().next().is_some());
        if checked.round != view.round()
            || checked.attempt != attempt
            || self.ledger.stage() != Stage::Reducing
        {
            return Err(Reject::Stale("the results checked are of another phase"));
        }
        // Only whoever counts has integers of its own to compare the result with.
        let slot = view.slot_of(&checked.author()).filter(|slot| is_counted(view, *slot));
        let slot = slot.ok_or(Reject::NotEntitled("check results: nothing of it counts"))?;
        let ascending = checked.parts.is_sorted_by(|one, next| one < next)
            && checked.objections.is_sorted_by(|one, next| one < next);
        // Whoever computes on another row cannot tell.
        let known = checked.parts.iter().all(|part| view.computes_on(slot, *part));
        let of_them = |block: &Block| {
            let plans = checked.parts.iter().filter_map(|part| view.parts().get(part.index()));
            plans.into_iter().any(|plan| plan.blocks.binary_search(block).is_ok())
        };
        if !ascending || !known || !checked.objections.iter().all(of_them) {
            return Err(Reject::Rule(
                "checked parts are those that its author computes on, objections of these parts, in order",
            ));
        }
        let first = !self.gathered.checked.contains_key(&slot);
        let word = self.gathered.checked.entry(slot).or_default();
        // Each of them is work for the steward: nobody is heard more often than there are parts.
        if checked.parts.iter().all(|part| word.parts.contains(part)) {
            return Err(Reject::Stale("these parts were checked before"));
        }
        word.parts.extend(checked.parts.iter());
        word.objections.extend(checked.objections.iter());
        if let Some(stall) = self.stalls.get_mut(&checked.author()).filter(|_| first) {
            stall.owed = stall.owed.saturating_sub(1);
        }
        self.tick(now);
        Ok(())
    }

    /// An aggregator of a part has signed two results: the one that is held is reduced again before it counts.
    pub fn contest(&mut self, part: Part, author: &MemberId) {
        if self.held_result(part, author).is_some() {
            self.gathered.contested.insert((part, *author));
        }
    }

    /// The result of [`Output::Inspect`], of this part and by this author, was reduced again. One whose digest differs,
    /// or whose inputs are unavailable, is struck: it counts as missing.
    pub fn inspected(&mut self, now: u64, part: Part, author: &MemberId, right: bool) {
        self.inspecting = false;
        let digest = self.gathered.results.get(&(part, *author)).map(|said| said.digest);
        if right {
            // Who says the same is right, too.
            let same = self
                .gathered
                .results
                .iter()
                .filter(|(name, said)| name.0 == part && Some(said.digest) == digest);
            self.gathered.upheld.extend(same.map(|(name, _)| *name));
        } else {
            self.strike(part, *author);
        }
        self.tick(now);
    }

    /// Members whose Checked no round waits for at present, because earlier waits were in vain (ROUND-21).
    pub fn stalling(&self) -> impl Iterator<Item = &MemberId> {
        self.stalls.iter().filter(|(_, stall)| stall.owed > 0).map(|(member, _)| member)
    }

    /// These members have let the round wait in vain.
    fn stalled(&mut self, members: Vec<MemberId>) {
        for member in members {
            let stall = self.stalls.entry(member).or_default();
            // Doubling: whoever speaks every second time would else hold up every second round.
            stall.owed = 1 << stall.times.min(MOST_DOUBLINGS);
            stall.times += 1;
        }
    }

    /// The result of a part that would be sealed cannot be applied.
    pub(super) fn strike_standing(&mut self, part: Part) {
        let view = self.ledger.current();
        let author = view.and_then(|view| self.said(view, part).next()).map(|(author, _)| author);
        author.into_iter().for_each(|author| self.strike(part, author));
    }

    /// Has a result not count, and its part not taken from the same aggregator again.
    fn strike(&mut self, part: Part, author: MemberId) {
        let before = self.standing_of(part);
        self.gathered.struck.insert((part, author));
        self.gathered.results.remove(&(part, author));
        // Contributors were shown what stood: of what still stands they have said what they think.
        if self.standing_of(part) != before {
            self.gathered.checked.values_mut().for_each(|word| {
                word.parts.remove(&part);
            });
        }
        // What stands now may be new to the contributors: they have the whole time for it.
        self.gathered.checking = None;
    }

    /// The digest that would be sealed of a part now.
    fn standing_of(&self, part: Part) -> Option<Digest> {
        let view = self.ledger.current()?;
        self.said(view, part).next().map(|(_, said)| said.digest)
    }

    /// What follows from the results and from what contributors say of them.
    pub(super) fn reduce(&mut self) -> Option<Output> {
        let output = self.reduced()?;
        // ROUND-21: every result that will come is there: contributors have their say before anything is applied, for
        // so long.
        if let Output::Apply(_) = output {
            let now = self.now;
            // From here on, not from the seal: a slow aggregator must not eat the contributors' time.
            self.gathered.checking.get_or_insert(now);
            if let Some(disputed) = self.disputed() {
                return Some(Output::Inspect(disputed));
            }
            let waited_for = self.unheard();
            if !waited_for.is_empty() {
                if self.poll_timeout().is_some_and(|deadline| self.now < deadline) {
                    return None;
                }
                // Otherwise one silent member would cost every round a timer.
                self.stalled(waited_for);
            }
        }
        Some(output)
    }

    /// Contributors with an open channel that have not yet checked every result.
    fn unheard(&self) -> Vec<MemberId> {
        let Some(view) = self.ledger.current() else { return Vec::new() };
        let has_checked = |slot: &Slot| {
            let word = self.gathered.checked.get(slot);
            let mut parts = self.gathered.results.keys().filter(|(part, _)| view.computes_on(*slot, *part));
            parts.all(|(part, _)| word.is_some_and(|word| word.parts.contains(part)))
        };
        let commitments =
            view.commitments().filter(|(slot, _)| is_counted(view, *slot) && !has_checked(slot));
        let waited = commitments.map(|(_, commitment)| commitment.author);
        let stalls = |member: &MemberId| self.stalls.get(member).is_some_and(|stall| stall.owed > 0);
        waited.filter(|member| self.is_live(member) && !stalls(member)).collect()
    }

    /// ROUND-22: the first result that has to be reduced again: contributors with more than half of the weight object
    /// to one of its blocks, its author signed another one too, or the part's other aggregator says otherwise.
    fn disputed(&self) -> Option<Signed<PartResult>> {
        let view = self.ledger.current()?;
        let objections = self.gathered.checked.values().any(|word| !word.objections.is_empty());
        let results = &self.gathered.results;
        let open = |name: &(Part, MemberId)| !self.gathered.upheld.contains(name);
        let disputed = |name: &(Part, MemberId), digest: &Digest| {
            // ROUND-25: two that differ are one right one at most, and nobody's word decides which.
            let differs =
                |author| results.get(&(name.0, author)).is_some_and(|other| other.digest != *digest);
            self.gathered.contested.contains(name)
                || view.aggregating(name.0).any(differs)
                || objections && self.is_contested(view, name.0)
        };
        // ROUND-22: a right one stands, whoever objects again.
        let mut results = results.iter().filter(|(name, _)| open(name));
        results.find(|(name, said)| disputed(name, &said.digest)).map(|(_, said)| said.signed.clone())
    }

    fn is_contested(&self, view: &RoundView, part: Part) -> bool {
        let (Some(plan), Some(inputs)) = (view.parts().get(part.index()), view.inputs().get(part.index()))
        else {
            return false;
        };
        let slots: Vec<Slot> = inputs.slots().collect();
        let commitments: Option<Vec<_>> = slots.iter().map(|slot| view.commitment(*slot)).collect();
        let Some(commitments) = commitments else { return false };
        let weights = weights(self.ledger.manifest(), &commitments);
        let total: u64 = weights.iter().sum();
        let objects = |slot: &Slot, block: &Block| {
            self.gathered.checked.get(slot).is_some_and(|word| word.objections.contains(block))
        };
        plan.blocks.iter().any(|block| {
            let against = slots.iter().zip(&weights).filter(|(slot, _)| objects(slot, block));
            // More than half: a minority that objects to everything must not cost a reduction.
            2 * against.map(|(_, weight)| weight).sum::<u64>() > total
        })
    }
}

/// Whether a slot's contribution is among some part's sealed inputs.
fn is_counted(view: &RoundView, slot: Slot) -> bool {
    view.inputs().iter().any(|inputs| inputs.contains(slot))
}
