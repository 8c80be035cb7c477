//! Contributors check a round's results before they are applied; disputed results are reduced again.

use std::collections::{BTreeMap, BTreeSet};

use super::mark::Mark;
use super::{Conductor, Output};
use crate::bug::OrBug;
use crate::error::Reject;
use crate::ids::{Block, Digest, MemberId, Part, Round, Slot};
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
        let word = self.gathered.checked.entry(slot).or_default();
        // Each of them is work for the steward: nobody is heard more often than there are parts.
        if checked.parts.iter().all(|part| word.parts.contains(part)) {
            return Err(Reject::Stale("these parts were checked before"));
        }
        word.parts.extend(checked.parts.iter());
        word.objections.extend(checked.objections.iter());
        if let Some(mark) = self.marks.get_mut(&checked.author()) {
            mark.has_spoken = true;
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

    /// The values of a result that would be sealed are here, or they are unavailable (ROUND-30): then it counts as missing.
    pub fn obtained(&mut self, now: u64, result: &PartResult, are_here: bool) {
        let stands = self.ledger.current().is_some_and(|view| view.round() == result.round)
            && self.standing_of(result.part) == Some(result.digest);
        // What is applied is what the Outcome lists.
        if stands && !self.applying && self.gathered.next.is_none() {
            let name = (result.part, result.digest);
            if are_here {
                self.gathered.here.insert(name);
            } else if !self.gathered.here.contains(&name) {
                self.strike_standing(result.part);
            }
        }
        self.tick(now);
    }

    /// Members whose Checked no round waits for at present, because earlier waits were in vain (ROUND-21).
    pub fn stalling(&self) -> impl Iterator<Item = &MemberId> {
        let round = self.ledger.next_round();
        self.marks.iter().filter(move |(_, mark)| mark.holds(round)).map(|(member, _)| member)
    }

    /// These members have let the round wait in vain.
    fn mark(&mut self, members: Vec<MemberId>) {
        let Some(view) = self.ledger.current().or_bug("an open round") else { return };
        let round = view.round();
        self.marks.retain(|_, mark| mark.left(round) > 0);
        // Once a round, however often it waits there.
        let fresh = |member: &MemberId| self.marks.get(member).is_none_or(|mark| mark.round != round);
        let members: Vec<MemberId> = members.into_iter().filter(fresh).collect();
        for member in members {
            let mark = Mark::new(round, self.marks.get(&member));
            self.marks.insert(member, mark);
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
        if self.standing_of(part).is_some() {
            self.gathered.checking = None;
        }
    }

    /// The digest that would be sealed of a part now.
    fn standing_of(&self, part: Part) -> Option<Digest> {
        let view = self.ledger.current()?;
        self.said(view, part).next().map(|(_, said)| said.digest)
    }

    /// What follows from the results and from what contributors say of them.
    pub(super) fn reduce(&mut self) -> Option<Output> {
        loop {
            let output = self.reduced()?;
            if !matches!(output, Output::Apply(_)) {
                return Some(output);
            }
            // ROUND-30: nobody is charged for a part whose values the steward itself lacks.
            if self.lacks_values() {
                return None;
            }
            // ROUND-21: every result that will come is here: contributors have their say before anything is applied, for
            // so long. From here on, not from the seal: a slow aggregator must not eat the contributors' time.
            let now = self.now;
            self.gathered.checking.get_or_insert(now);
            if let Some(disputed) = self.disputed() {
                return Some(Output::Inspect(disputed));
            }
            if self.awaits_words() {
                return None;
            }
            // ROUND-31: that nobody objects says something only as far as those who would are heard.
            let unapproved = self.parts_unapproved();
            let Some(first) = unapproved.first() else { return Some(output) };
            let patience = self.patience().map_or(0, u64::from);
            let until = *self.gathered.doubted.get_or_insert(now.saturating_add(patience));
            if now < until {
                let said = self.ledger.current().and_then(|view| self.said(view, *first).next());
                return said.map(|(_, said)| Output::Inspect(said.signed.clone()));
            }
            let view = self.ledger.current()?;
            let unheard = unapproved.into_iter().filter(|part| !self.is_approved(view, *part, false));
            let unheard: Vec<Part> = unheard.collect();
            if unheard.is_empty() {
                return Some(output);
            }
            // All at once: each might otherwise take the time of a reduction.
            unheard.into_iter().for_each(|part| self.strike_standing(part));
        }
    }

    /// Whether the values of a result that would be sealed are not here yet.
    fn lacks_values(&self) -> bool {
        self.standing().any(|(part, digest, _)| !self.gathered.here.contains(&(part, digest)))
    }

    /// Whether the round waits for somebody's Checked. Those for whom it has waited in vain are marked.
    fn awaits_words(&mut self) -> bool {
        let mut awaited = self.unheard(|view, _, member| !self.is_marked(member, view.round()));
        let overdue = self.poll_timeout().is_none_or(|deadline| self.now >= deadline);
        if awaited.is_empty() || overdue {
            // Marks hold while the others have most of the weight: no number of marks switches objections off.
            let minor = self.parts_unapproved();
            let needed = |view: &RoundView, slot: Slot| {
                minor.iter().any(|part| view.computes_on(slot, *part) && !self.has_checked(slot, *part))
            };
            awaited.extend(
                self.unheard(|view, slot, member| self.is_marked(member, view.round()) && needed(view, slot)),
            );
        }
        if !overdue {
            return !awaited.is_empty();
        }
        // Otherwise one silent member would cost every round a timer.
        self.mark(awaited);
        false
    }

    fn is_marked(&self, member: &MemberId, round: Round) -> bool {
        self.marks.get(member).is_some_and(|mark| mark.holds(round))
    }

    /// Contributors with an open channel that have not yet checked every result, of those that `such` names.
    fn unheard(&self, such: impl Fn(&RoundView, Slot, &MemberId) -> bool) -> Vec<MemberId> {
        let Some(view) = self.ledger.current().or_bug("an open round") else { return Vec::new() };
        let has_checked = |slot: Slot| {
            let mut parts = self.gathered.results.keys().filter(|(part, _)| view.computes_on(slot, *part));
            parts.all(|(part, _)| self.has_checked(slot, *part))
        };
        let open = view.commitments().filter(|(slot, _)| is_counted(view, *slot) && !has_checked(*slot));
        let awaited = open.map(|(slot, commitment)| (slot, commitment.author));
        let awaited = awaited.filter(|(slot, member)| self.is_live(member) && such(view, *slot, member));
        awaited.map(|(_, member)| member).collect()
    }

    /// ROUND-31: parts whose result was not reduced again, and that contributors with half of the weight or more have not
    /// checked, or object to.
    fn parts_unapproved(&self) -> Vec<Part> {
        let Some(view) = self.ledger.current().or_bug("an open round") else { return Vec::new() };
        let is_unapproved = |part: &Part| {
            let author = self.said(view, *part).next().map(|(author, _)| author);
            let open = author.is_some_and(|author| !self.gathered.upheld.contains(&(*part, author)));
            open && !self.is_approved(view, *part, true)
        };
        (0..view.parts().len() as u16).map(Part).filter(is_unapproved).collect()
    }

    /// Whether contributors with more than half of a part's weight have checked it and, block by block, do not object to it.
    /// Whether it is right they can tell only as far as AGG-20 does, so that objections may be left out.
    fn is_approved(&self, view: &RoundView, part: Part, objections: bool) -> bool {
        let Some(weights) = self.weights_in(view, part) else { return false };
        let heard = weights.iter().filter(|(slot, _)| self.has_checked(*slot, part));
        let heard: u64 = heard.map(|(_, weight)| weight).sum();
        let against = if objections { self.most_objections(view, part, &weights) } else { 0 };
        2 * heard.saturating_sub(against) > weights.iter().map(|(_, weight)| weight).sum()
    }

    /// The weight against the block of a part to which most object.
    fn most_objections(&self, view: &RoundView, part: Part, weights: &[(Slot, u64)]) -> u64 {
        let Some(plan) = view.parts().get(part.index()) else { return 0 };
        let words =
            weights.iter().filter_map(|(slot, weight)| Some((self.gathered.checked.get(slot)?, weight)));
        let mut against: BTreeMap<Block, u64> = BTreeMap::new();
        for (word, weight) in words {
            let of_part = word.objections.iter().filter(|block| plan.blocks.binary_search(block).is_ok());
            of_part.for_each(|block| *against.entry(*block).or_default() += weight);
        }
        against.into_values().max().unwrap_or_default()
    }

    fn has_checked(&self, slot: Slot, part: Part) -> bool {
        self.gathered.checked.get(&slot).is_some_and(|word| word.parts.contains(&part))
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
        let Some(weights) = self.weights_in(view, part) else { return false };
        // More than half: a minority that objects to everything must not cost a reduction.
        2 * self.most_objections(view, part, &weights) > weights.iter().map(|(_, weight)| weight).sum()
    }

    /// Who counts in a part, each with its weight (AGG-1).
    fn weights_in(&self, view: &RoundView, part: Part) -> Option<Vec<(Slot, u64)>> {
        let inputs = view.inputs().get(part.index()).or_bug("sealed inputs of a part that has a result")?;
        let slots: Vec<Slot> = inputs.slots().collect();
        let commitments: Option<Vec<_>> = slots.iter().map(|slot| view.commitment(*slot)).collect();
        let commitments = commitments.or_bug("a frozen contribution of each slot that counts")?;
        Some(slots.into_iter().zip(weights(self.ledger.manifest(), &commitments)).collect())
    }
}

/// Whether a slot's contribution is among some part's sealed inputs.
fn is_counted(view: &RoundView, slot: Slot) -> bool {
    view.inputs().iter().any(|inputs| inputs.contains(slot))
}
