//! Contributors check a round's results before they are applied; disputed results are reduced again.

use super::mark::Mark;
use super::{Conductor, Output};
use crate::bug::OrBug;
use crate::error::Reject;
use crate::ids::{Block, MemberId, Part, Round, Slot};
use crate::ledger::{RoundView, Stage};
use crate::messages::round::{Checked, PartResult};
use crate::sign::Signed;

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
        self.results.check(slot, &checked)?;
        if let Some(mark) = self.marks.get_mut(&checked.author()) {
            mark.has_spoken = true;
        }
        self.tick(now);
        Ok(())
    }

    /// An aggregator of a part has signed two results: the one that is held is reduced again before it counts.
    pub fn contest(&mut self, part: Part, author: &MemberId) {
        self.results.contest(part, author);
    }

    /// The result of [`Output::Inspect`], of this part and by this author, was reduced again. One whose digest differs,
    /// or whose inputs are unavailable, is struck: it counts as missing.
    pub fn inspected(&mut self, now: u64, part: Part, author: &MemberId, right: bool) {
        self.inspecting = false;
        if let Some(view) = self.ledger.current().or_bug("a round of which a result was inspected") {
            self.results.inspected(view, part, author, right);
        }
        self.tick(now);
    }

    /// The values of a result that would be sealed are here, or they are unavailable (ROUND-30): then it counts as missing.
    pub fn obtained(&mut self, now: u64, result: &PartResult, are_here: bool) {
        // What is applied is what the Outcome lists.
        let open = !self.applying && self.gathered.next.is_none();
        let view = self.ledger.current().filter(|view| open && view.round() == result.round);
        if let Some(view) = view {
            let author = self.results.author_of(view, result).filter(|_| are_here);
            author.into_iter().for_each(|author| self.timing.came(result.part, author, now));
            self.results.obtained(view, result, are_here);
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

    /// The results of these parts that would be sealed do not count.
    pub(super) fn strike(&mut self, parts: Vec<Part>) {
        let Some(view) = self.ledger.current().or_bug("an open round") else { return };
        parts.into_iter().for_each(|part| self.results.strike_standing(view, part));
    }

    /// What follows from the results and from what contributors say of them.
    pub(super) fn reduce(&mut self) -> Option<Output> {
        loop {
            let output = self.reduced()?;
            if !matches!(output, Output::Apply(_)) {
                return Some(output);
            }
            let view = self.ledger.current()?;
            // ROUND-30: nobody is charged for a part whose values the steward itself lacks.
            if self.results.lack_values(view) {
                return None;
            }
            // ROUND-21: every result that will come is here: contributors have their say before anything is applied, for
            // so long. From here on, not from the seal: a slow aggregator must not eat the contributors' time.
            self.results.open_checks(self.now);
            if let Some(disputed) = self.results.disputed(view, self.ledger.manifest()) {
                return Some(Output::Inspect(disputed));
            }
            if self.awaits_words() {
                return None;
            }
            // ROUND-31: that nobody objects says something only as far as those who would are heard.
            let (view, manifest) = (self.ledger.current()?, self.ledger.manifest());
            let unapproved = self.results.unapproved(view, manifest);
            let Some(first) = unapproved.first() else { return Some(output) };
            let patience = self.patience().map_or(0, u64::from);
            let until = self.results.doubt(self.now.saturating_add(patience));
            if self.now < until {
                let standing = self.results.standing(view, *first);
                return standing.map(|(_, signed)| Output::Inspect(signed.clone()));
            }
            let unheard = unapproved.into_iter().filter(|part| !self.results.is_heard(view, manifest, *part));
            let unheard: Vec<Part> = unheard.collect();
            if unheard.is_empty() {
                return Some(output);
            }
            // All at once: each might otherwise take the time of a reduction.
            self.strike(unheard);
        }
    }

    /// Whether the round waits for somebody's Checked. Those for whom it has waited in vain are marked.
    fn awaits_words(&mut self) -> bool {
        let mut awaited = self.unheard(|view, _, member| !self.is_marked(member, view.round()));
        let overdue = self.poll_timeout().is_none_or(|deadline| self.now >= deadline);
        if awaited.is_empty() || overdue {
            // Marks hold while the others have most of the weight: no number of marks switches objections off.
            let minor = self.parts_unapproved();
            let needed = |view: &RoundView, slot: Slot| {
                let mut owed = minor.iter().filter(|part| view.computes_on(slot, **part));
                owed.any(|part| !self.results.has_checked(slot, *part))
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
        let has_checked = |slot: Slot| self.results.has_checked_all(view, slot);
        let open = view.commitments().filter(|(slot, _)| is_counted(view, *slot) && !has_checked(*slot));
        let awaited = open.map(|(slot, commitment)| (slot, commitment.author));
        let awaited = awaited.filter(|(slot, member)| self.is_live(member) && such(view, *slot, member));
        awaited.map(|(_, member)| member).collect()
    }

    fn parts_unapproved(&self) -> Vec<Part> {
        let view = self.ledger.current().or_bug("an open round");
        view.map_or_else(Vec::new, |view| self.results.unapproved(view, self.ledger.manifest()))
    }
}

/// Whether a slot's contribution is among some part's sealed inputs.
fn is_counted(view: &RoundView, slot: Slot) -> bool {
    view.inputs().iter().any(|inputs| inputs.contains(slot))
}
