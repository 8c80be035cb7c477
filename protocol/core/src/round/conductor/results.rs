//! What aggregators say of the parts of the open round, what contributors say of that, and what counts of both.

use std::collections::{BTreeMap, BTreeSet};

use crate::bug::OrBug;
use crate::error::Reject;
use crate::ids::{Block, Digest, MemberId, Part, Slot};
use crate::ledger::RoundView;
use crate::manifest::Manifest;
use crate::messages::round::{Checked, PartResult};
use crate::reduction::weights;
use crate::sign::{Signed, Verified};

/// A part, and an aggregator of it.
type Name = (Part, MemberId);

/// The results of the open round.
#[derive(Default)]
pub(super) struct Results {
    claimed: BTreeMap<Name, ClaimedResult>,
    /// Results whose values the steward has (ROUND-30).
    here: BTreeSet<(Part, Digest)>,
    /// What contributors say of the results.
    checks: BTreeMap<Slot, Check>,
    /// Parts of which these aggregators signed two results.
    contested: BTreeSet<Name>,
    /// Results that were reduced again and found right.
    upheld: BTreeSet<Name>,
    /// Results that are wrong, or cannot be reduced again.
    struck: BTreeSet<Name>,
    /// Since when contributors may check the results: no more of them are waited for.
    checking: Option<u64>,
    /// Until when parts that too few contributors have checked are reduced again (ROUND-31).
    doubted: Option<u64>,
}

/// What an aggregator says of a part.
struct ClaimedResult {
    signed: Signed<PartResult>,
    digest: Digest,
}

/// What one contributor has said of the results.
#[derive(Default)]
struct Check {
    parts: BTreeSet<Part>,
    objections: BTreeSet<Block>,
}

impl Results {
    /// Takes what an aggregator says of a part; whether this is new of it.
    ///
    /// # Errors
    /// [`Reject`] for a part that was struck: it would be reduced again, and found wrong again, for as long as its author
    /// likes.
    pub(super) fn claim(
        &mut self,
        result: &Verified<PartResult>,
        signed: Signed<PartResult>,
    ) -> Result<bool, Reject> {
        let name = (result.part, result.author());
        if self.struck.contains(&name) {
            return Err(Reject::Rule("a part that was struck is not taken from its aggregator again"));
        }
        let new = !self.claimed.contains_key(&name);
        if new {
            self.claimed.insert(name, ClaimedResult { signed, digest: result.digest });
        }
        Ok(new)
    }

    /// What an aggregator has said of a part, unless it was struck.
    pub(super) fn claimed(&self, part: Part, author: &MemberId) -> Option<&Signed<PartResult>> {
        self.claimed.get(&(part, *author)).map(|claimed| &claimed.signed)
    }

    /// Whether nothing more is to come of this aggregator's part.
    pub(super) fn is_settled(&self, part: Part, author: MemberId) -> bool {
        self.claimed.contains_key(&(part, author)) || self.struck.contains(&(part, author))
    }

    /// The result of a part that would be sealed now.
    pub(super) fn standing(&self, view: &RoundView, part: Part) -> Option<(Digest, &Signed<PartResult>)> {
        self.of_part(view, part).next().map(|(_, claimed)| (claimed.digest, &claimed.signed))
    }

    /// The second signature of a part that two aggregators have signed.
    pub(super) fn second(&self, view: &RoundView, part: Part) -> Option<&Signed<PartResult>> {
        let mut claimed = self.of_part(view, part).map(|(_, claimed)| claimed);
        let first = claimed.next()?;
        // Two that differ never get here: ROUND-25 has one of them struck before.
        claimed.find(|other| other.digest == first.digest).map(|other| &other.signed)
    }

    /// Adds what a contributor says. None of its words is taken back.
    ///
    /// # Errors
    /// [`Reject`] for no new part. Each part is work for the steward: nobody is heard more often than there are parts.
    pub(super) fn check(&mut self, slot: Slot, checked: &Checked) -> Result<(), Reject> {
        let check = self.checks.entry(slot).or_default();
        if checked.parts.iter().all(|part| check.parts.contains(part)) {
            return Err(Reject::Stale("these parts were checked before"));
        }
        check.parts.extend(checked.parts.iter());
        check.objections.extend(checked.objections.iter());
        Ok(())
    }

    /// Whether a contributor has checked a part.
    pub(super) fn has_checked(&self, slot: Slot, part: Part) -> bool {
        self.checks.get(&slot).is_some_and(|check| check.parts.contains(&part))
    }

    /// Whether a contributor has checked each result of parts that it computes on.
    pub(super) fn has_checked_all(&self, view: &RoundView, slot: Slot) -> bool {
        let mut parts =
            self.claimed.keys().map(|(part, _)| *part).filter(|part| view.computes_on(slot, *part));
        parts.all(|part| self.has_checked(slot, part))
    }

    /// An aggregator has signed two results of a part: the one that is held is reduced again before it counts.
    pub(super) fn contest(&mut self, part: Part, author: &MemberId) {
        if self.claimed(part, author).is_some() {
            self.contested.insert((part, *author));
        }
    }

    /// A result was reduced again. A wrong one is struck.
    pub(super) fn inspected(&mut self, view: &RoundView, part: Part, author: &MemberId, right: bool) {
        if !right {
            return self.strike(view, part, *author);
        }
        let digest = self.claimed.get(&(part, *author)).map(|claimed| claimed.digest);
        // Who says the same is right, too.
        let same = self.claimed.iter().filter(|(name, other)| name.0 == part && Some(other.digest) == digest);
        self.upheld.extend(same.map(|(name, _)| *name));
    }

    /// The values of a result that would be sealed are here, or they are unavailable (ROUND-30): then it is struck.
    pub(super) fn obtained(&mut self, view: &RoundView, result: &PartResult, are_here: bool) {
        let name = (result.part, result.digest);
        if self.standing_digest(view, result.part) != Some(result.digest) {
            return;
        }
        if are_here {
            self.here.insert(name);
        } else if !self.here.contains(&name) {
            self.strike_standing(view, result.part);
        }
    }

    /// Who has said a result, if it would be sealed.
    pub(super) fn author_of(&self, view: &RoundView, result: &PartResult) -> Option<MemberId> {
        let standing = self.of_part(view, result.part).next();
        standing.filter(|(_, claimed)| claimed.digest == result.digest).map(|(author, _)| author)
    }

    /// Whether the values of a result that would be sealed are not here yet.
    pub(super) fn lack_values(&self, view: &RoundView) -> bool {
        let mut standing = parts(view).filter_map(|part| Some((part, self.standing_digest(view, part)?)));
        standing.any(|name| !self.here.contains(&name))
    }

    /// The result of a part that would be sealed cannot be applied, or not be believed.
    pub(super) fn strike_standing(&mut self, view: &RoundView, part: Part) {
        let author = self.of_part(view, part).next().map(|(author, _)| author);
        author.into_iter().for_each(|author| self.strike(view, part, author));
    }

    /// Has a result not count, and its part not taken from the same aggregator again.
    fn strike(&mut self, view: &RoundView, part: Part, author: MemberId) {
        let before = self.standing_digest(view, part);
        self.struck.insert((part, author));
        self.claimed.remove(&(part, author));
        let after = self.standing_digest(view, part);
        // Contributors were shown what stood: of what still stands they have said what they think.
        if after != before {
            self.checks.values_mut().for_each(|check| {
                check.parts.remove(&part);
            });
        }
        // What stands now may be new to the contributors: they have the whole time for it.
        if after.is_some() {
            self.checking = None;
        }
    }

    /// Contributors may check the results from now on, unless they may already.
    pub(super) fn open_checks(&mut self, now: u64) {
        self.checking.get_or_insert(now);
    }

    /// Since when contributors may check the results.
    pub(super) fn checking(&self) -> Option<u64> {
        self.checking
    }

    /// The time of the contributors begins anew, if it had begun.
    pub(super) fn resume(&mut self, now: u64) {
        self.checking = self.checking.map(|_| now);
    }

    /// Until when parts that too few contributors have checked are reduced again: the first such time that was given.
    pub(super) fn doubt(&mut self, until: u64) -> u64 {
        *self.doubted.get_or_insert(until)
    }

    /// A phase of the same round begins: what was found out about a result stands, and its author may say it again in the
    /// second attempt. Checks are given anew.
    pub(super) fn begin_phase(&mut self) {
        let Self { claimed, here, upheld, struck, contested, .. } = std::mem::take(self);
        *self = Self { claimed, here, upheld, struck, contested, ..Self::default() };
    }

    /// ROUND-22: the first result that has to be reduced again: contributors with more than half of the weight object
    /// to one of its blocks, its author signed another one too, or the part's other aggregator says otherwise.
    pub(super) fn disputed(&self, view: &RoundView, manifest: &Manifest) -> Option<Signed<PartResult>> {
        let objections = self.checks.values().any(|check| !check.objections.is_empty());
        let disputed = |name: &Name, digest: &Digest| {
            // ROUND-25: two that differ are one right one at most, and nobody's word decides which.
            let differs =
                |author| self.claimed.get(&(name.0, author)).is_some_and(|other| other.digest != *digest);
            self.contested.contains(name)
                || view.aggregating(name.0).any(differs)
                || objections && self.is_objected_to(view, manifest, name.0)
        };
        // ROUND-22: a right one stands, whoever objects again.
        let mut open = self.claimed.iter().filter(|(name, _)| !self.upheld.contains(name));
        open.find(|(name, claimed)| disputed(name, &claimed.digest))
            .map(|(_, claimed)| claimed.signed.clone())
    }

    /// ROUND-31: parts whose result was not reduced again, and that contributors with half of the weight or more have not
    /// checked, or object to.
    pub(super) fn unapproved(&self, view: &RoundView, manifest: &Manifest) -> Vec<Part> {
        let is_unapproved = |part: &Part| {
            let author = self.of_part(view, *part).next().map(|(author, _)| author);
            let open = author.is_some_and(|author| !self.upheld.contains(&(*part, author)));
            open && !self.is_approved(view, manifest, *part, true)
        };
        parts(view).filter(is_unapproved).collect()
    }

    /// Whether contributors with more than half of a part's weight have checked it, whatever they object to.
    pub(super) fn is_heard(&self, view: &RoundView, manifest: &Manifest, part: Part) -> bool {
        self.is_approved(view, manifest, part, false)
    }

    /// Whether contributors with more than half of a part's weight have checked it and, block by block, do not object to it.
    /// Whether it is right they can tell only as far as AGG-20 does, so that objections may be left out.
    fn is_approved(&self, view: &RoundView, manifest: &Manifest, part: Part, objections: bool) -> bool {
        let Some(weights) = weights_in(view, manifest, part) else { return false };
        let heard = weights.iter().filter(|(slot, _)| self.has_checked(*slot, part));
        let heard: u64 = heard.map(|(_, weight)| weight).sum();
        let against = if objections { self.most_objections(view, part, &weights) } else { 0 };
        2 * heard.saturating_sub(against) > weights.iter().map(|(_, weight)| weight).sum()
    }

    fn is_objected_to(&self, view: &RoundView, manifest: &Manifest, part: Part) -> bool {
        let Some(weights) = weights_in(view, manifest, part) else { return false };
        // More than half: a minority that objects to everything must not cost a reduction.
        2 * self.most_objections(view, part, &weights) > weights.iter().map(|(_, weight)| weight).sum()
    }

    /// The weight against the block of a part to which most object.
    fn most_objections(&self, view: &RoundView, part: Part, weights: &[(Slot, u64)]) -> u64 {
        let Some(plan) = view.parts().get(part.index()) else { return 0 };
        let checks = weights.iter().filter_map(|(slot, weight)| Some((self.checks.get(slot)?, weight)));
        let mut against: BTreeMap<Block, u64> = BTreeMap::new();
        for (check, weight) in checks {
            let of_part = check.objections.iter().filter(|block| plan.blocks.binary_search(block).is_ok());
            of_part.for_each(|block| *against.entry(*block).or_default() += weight);
        }
        against.into_values().max().unwrap_or_default()
    }

    /// What the aggregators of a part have said, in their order.
    fn of_part(&self, view: &RoundView, part: Part) -> impl Iterator<Item = (MemberId, &ClaimedResult)> {
        view.aggregating(part).filter_map(move |author| Some((author, self.claimed.get(&(part, author))?)))
    }

    fn standing_digest(&self, view: &RoundView, part: Part) -> Option<Digest> {
        self.standing(view, part).map(|(digest, _)| digest)
    }
}

/// The parts of a round.
pub(super) fn parts(view: &RoundView) -> impl Iterator<Item = Part> + use<> {
    (0..view.parts().len() as u16).map(Part)
}

/// Who counts in a part, each with its weight (AGG-1).
fn weights_in(view: &RoundView, manifest: &Manifest, part: Part) -> Option<Vec<(Slot, u64)>> {
    let inputs = view.inputs().get(part.index()).or_bug("sealed inputs of a part that has a result")?;
    let slots: Vec<Slot> = inputs.slots().collect();
    let commitments: Option<Vec<_>> = slots.iter().map(|slot| view.commitment(*slot)).collect();
    let commitments = commitments.or_bug("a frozen contribution of each slot that counts")?;
    Some(slots.into_iter().zip(weights(manifest, &commitments)).collect())
}
