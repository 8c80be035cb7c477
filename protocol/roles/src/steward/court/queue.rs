//! Accusations that wait for the court: whose turn is next, that nobody keeps the others from being heard, and that nothing
//! is lost which the steward has to examine (DUTY-10).

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use muster_core::audit::Claim;
use muster_core::bug::OrBug;
use muster_core::error::Reject;
use muster_core::ids::{Digest, MemberId, Round};
use muster_core::messages::evidence::Evidence;

use crate::setback::Setback;
use crate::steward::accusation::Allegation;

/// Accusations that members have brought and that wait at most.
const WAITING: usize = 256;
/// Those among them that any member may bring.
const ANYBODYS: usize = 64;
/// Those of one accuser against one culprit: one cheat that is found every time takes nobody else's place.
const WAITING_OF_PAIR: usize = 4;
/// Cases that are examined at once, and those among them that may fetch something first.
const AT_ONCE: usize = 8;
const FETCHING: usize = 4;
/// Those of one accuser that may fetch something.
const FETCHING_OF_ONE: usize = 2;
/// Milliseconds until what could not be decided is examined again; twice as long each time, up to the second figure.
const AGAIN: u64 = 2_000;
const AT_LAST: u64 = 32_000;
/// Accusations remembered, so that they are not examined twice.
const REMEMBERED: usize = 4096;

/// What an accusation rests on.
#[derive(Clone)]
pub(super) enum Ground {
    /// What somebody has brought.
    Evidence(Box<Evidence>),
    /// What a verifier has found, as the board shows it.
    Owed(Box<Evidence>),
}

/// What is examined once: evidence that somebody brings, or the finding of a verifier, which is another one of each.
type ExaminationKey = (Digest, Option<MemberId>);

/// An accusation that waits or is examined.
#[derive(Clone)]
pub(super) struct PendingAccusation {
    pub(super) ground: Ground,
    /// Name of the evidence.
    pub(super) digest: Digest,
    pub(super) accuser: MemberId,
    pub(super) claim: Claim,
    /// How often it was examined and could not be decided.
    pub(super) tries: u32,
    /// When it may be examined.
    due: u64,
    /// Whether it is about leaves or an answer, and so about a round that must be remembered.
    of_state: bool,
    /// Whether any member may bring such.
    anybodys: bool,
    /// Whether a contribution or inputs may have to be fetched.
    fetches: bool,
    /// Whether the steward computes for it on a member's word alone, which no signature of the accuser backs (AUDIT-28).
    unbacked: bool,
}

impl PendingAccusation {
    fn new(ground: Ground, accusation: &Allegation, fetches: bool, own: bool) -> Self {
        let Allegation { evidence, digest, accuser, claim, .. } = accusation;
        Self {
            ground,
            digest: *digest,
            accuser: *accuser,
            claim: *claim,
            tries: 0,
            due: 0,
            of_state: evidence.is_of_leaves() || matches!(evidence, Evidence::Answer(_)),
            anybodys: is_anybodys(evidence),
            fetches,
            unbacked: !own && matches!(evidence, Evidence::Answer(_) | Evidence::Aggregation(_)),
        }
    }

    fn name(&self) -> ExaminationKey {
        (self.digest, (!self.is_brought()).then_some(self.accuser))
    }

    /// Whether a member brought it, so that it takes one of the places.
    fn is_brought(&self) -> bool {
        matches!(self.ground, Ground::Evidence(_))
    }
}

/// How an examination ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Heard {
    /// Somebody is guilty of what was said.
    Founded,
    /// Nobody is, or the accuser itself.
    Unfounded,
    /// Something was missing.
    Undecided,
}

/// What waits for the court, and what is before it.
#[derive(Default)]
pub(super) struct Queue {
    /// In order of arrival.
    waiting: VecDeque<PendingAccusation>,
    /// What is examined, by culprit: one case each, so that a cheat that is found in every round is one case and no jam.
    hearing: BTreeMap<MemberId, PendingAccusation>,
    /// Names of what waits or was examined.
    known: BTreeSet<ExaminationKey>,
    /// Members whose integers were unavailable: nothing of theirs is fetched again for some rounds.
    withheld: BTreeMap<MemberId, Setback>,
    /// Accusers whose unbacked accusations came to nothing: they bring none for some rounds.
    unfounded: BTreeMap<MemberId, Setback>,
    /// The round that is next.
    round: Round,
    /// How often an accuser's word came to nothing, or not to an end: others are heard before it.
    vain: BTreeMap<MemberId, u32>,
}

impl Queue {
    /// Takes an accusation that somebody brings, once. `own` ones of the steward find a place whatever members bring.
    ///
    /// # Errors
    /// [`Reject`] when too many wait already: of the accuser against this culprit, or of those that anybody may bring, or in
    /// all, while nobody has more waiting than the accuser; and for one whose last ones came to nothing.
    pub(super) fn accuse(&mut self, accusation: Allegation, fetches: bool, own: bool) -> Result<(), Reject> {
        let owed = (accusation.digest, Some(accusation.accuser));
        // Evidence that waits as a verifier's finding needs no second hearing for the same accuser.
        if self.is_known(&(accusation.digest, None)) || self.is_known(&owed) {
            return Ok(());
        }
        let ground = Ground::Evidence(Box::new(accusation.evidence.clone()));
        let waiting = PendingAccusation::new(ground, &accusation, fetches, own);
        // AUDIT-28: refused and not kept, so that it takes no place of others meanwhile.
        if waiting.unbacked && self.is_barred(&accusation.accuser) {
            return Err(BARRED);
        }
        let count = |such: &dyn Fn(&PendingAccusation) -> bool| {
            // What was examined once holds no place: a case that cannot be decided yet would shut its accuser out.
            self.waiting.iter().filter(|one| one.is_brought() && one.tries == 0 && such(one)).count()
        };
        let pair =
            count(&|one| (one.accuser, one.claim.culprit) == (accusation.accuser, accusation.claim.culprit));
        if pair >= WAITING_OF_PAIR {
            return Err(FULL);
        }
        let anybodys = waiting.anybodys && count(&|one| one.anybodys) >= ANYBODYS;
        if !own && anybodys {
            self.make_room(&accusation.accuser, |one| one.anybodys && one.tries == 0)?;
        }
        if !own && self.brought() >= WAITING {
            self.make_room(&accusation.accuser, |_| true)?;
        }
        self.put(waiting);
        Ok(())
    }

    /// Takes what a verifier has found, once (DUTY-10). There is always room: the docket bounds how much it is.
    pub(super) fn owe(&mut self, accusation: &Allegation, fetches: bool) {
        let name = (accusation.digest, Some(accusation.accuser));
        if !self.is_known(&name) {
            let ground = Ground::Owed(Box::new(accusation.evidence.clone()));
            self.put(PendingAccusation::new(ground, accusation, fetches, false));
        }
    }

    /// The next case, which is before the court from now on; `banned` says who is out already. First come those whose
    /// accusers said nothing in vain so far, then what needs no fetch, then what came first.
    pub(super) fn next(&mut self, now: u64, banned: &dyn Fn(&MemberId) -> bool) -> Option<PendingAccusation> {
        // Evidence stands whoever brought it; a finding falls with the verifier that is banned.
        let over =
            |one: &PendingAccusation| banned(&one.claim.culprit) || !one.is_brought() && banned(&one.accuser);
        self.waiting.retain(|one| !over(one));
        if self.hearing.len() >= AT_ONCE {
            return None;
        }
        let fetches =
            |one: &PendingAccusation| one.fetches && !self.has_withheld(&one.claim.subject, one.claim.round);
        let fetching = |such: &dyn Fn(&PendingAccusation) -> bool| {
            self.hearing.values().filter(|one| fetches(one) && such(one)).count()
        };
        let room = |one: &PendingAccusation| {
            fetching(&|_| true) < FETCHING
                && fetching(&|other| other.accuser == one.accuser) < FETCHING_OF_ONE
        };
        // Those who were right so far come first, so that a slanderer waits for the others and not they for it.
        let rank = |one: &PendingAccusation| {
            let vain = self.vain.get(&one.accuser).copied().unwrap_or_default();
            (vain, fetches(one), one.tries)
        };
        // AUDIT-28: one such case of an accuser at a time.
        let may = |one: &PendingAccusation| {
            let before = |other: &PendingAccusation| other.unbacked && other.accuser == one.accuser;
            !one.unbacked || !self.hearing.values().any(before)
        };
        let ready = self.waiting.iter().enumerate().filter(|(_, one)| may(one)).filter(|(_, one)| {
            // One case of each culprit at a time: the first one may settle the others.
            one.due <= now && !self.hearing.contains_key(&one.claim.culprit) && (!fetches(one) || room(one))
        });
        let (index, _) = ready.min_by_key(|(index, one)| (rank(one), *index))?;
        let next = self.waiting.remove(index)?;
        self.hearing.insert(next.claim.culprit, next.clone());
        Some(next)
    }

    /// A case was examined. What could not be decided is examined again by itself.
    pub(super) fn heard(&mut self, now: u64, culprit: &MemberId, how: Heard) {
        let Some(mut case) = self.hearing.remove(culprit).or_bug("a case before the court") else { return };
        match how {
            Heard::Founded => {}
            Heard::Unfounded => {
                *self.vain.entry(case.accuser).or_default() += 1;
                if case.unbacked {
                    self.bar(case.accuser);
                }
            }
            Heard::Undecided => {
                // An accuser that leaves its cases open counts like one that is wrong: each costs the court as much.
                *self.vain.entry(case.accuser).or_default() +=
                    u32::from(case.is_brought() && case.tries == 0);
                let pair = |one: &&PendingAccusation| {
                    one.tries > 0
                        && one.is_brought()
                        && (one.accuser, one.claim.culprit) == (case.accuser, *culprit)
                };
                if case.is_brought() && self.waiting.iter().filter(pair).count() >= WAITING_OF_PAIR {
                    // Whoever says it again is heard again.
                    self.known.remove(&case.name());
                    return;
                }
                // The exponent has a bound of its own: a shift by `tries` alone would overflow.
                case.due = now + (AGAIN << case.tries.min(8)).min(AT_LAST);
                case.tries += 1;
                self.waiting.push_back(case);
            }
        }
    }

    /// Notes that the integers of a member in this round are unavailable: its other cases are decided without them for some
    /// rounds.
    pub(super) fn withholds(&mut self, member: MemberId, round: Round) {
        let before = self.withheld.get(&member).copied();
        self.withheld.insert(member, Setback::after(before, round));
    }

    /// Whether the integers of a member were unavailable in this round or shortly before.
    pub(super) fn has_withheld(&self, member: &MemberId, round: Round) -> bool {
        self.withheld.get(member).is_some_and(|setback| setback.holds(round))
    }

    /// An unbacked accusation of this accuser came to nothing: the others that it has brought are dropped, since the run's end
    /// would wait for them.
    fn bar(&mut self, accuser: MemberId) {
        let before = self.unfounded.get(&accuser).copied();
        self.unfounded.insert(accuser, Setback::after(before, self.round));
        let (known, waiting) = (&mut self.known, &mut self.waiting);
        waiting.retain(|one| {
            let dropped = one.unbacked && one.accuser == accuser;
            if dropped {
                known.remove(&one.name());
            }
            !dropped
        });
    }

    /// Whether an accuser's last unbacked accusations came to nothing.
    fn is_barred(&self, accuser: &MemberId) -> bool {
        self.unfounded.get(accuser).is_some_and(|setback| setback.holds(self.round))
    }

    /// Rounds have gone on; this one is next.
    pub(super) fn reach(&mut self, round: Round) {
        self.round = round;
        self.withheld.retain(|_, setback| !setback.is_over(round));
        self.unfounded.retain(|_, setback| !setback.is_over(round));
    }

    /// When what could not be decided is next examined again.
    pub(super) fn timeout(&self, now: u64) -> Option<u64> {
        self.waiting.iter().map(|one| one.due).filter(|due| *due > now).min()
    }

    /// Drops cases about leaves and answers of forgotten rounds: nobody can examine them.
    pub(super) fn forget(&mut self, remembered: &dyn Fn(Round) -> bool) {
        self.waiting.retain(|one| !one.of_state || remembered(one.claim.round));
    }

    /// Whether nothing is examined or waits that was not examined yet.
    pub(super) fn is_at_rest(&self) -> bool {
        self.hearing.is_empty() && self.waiting.iter().all(|one| one.tries > 0)
    }

    /// Whether a finding of a verifier was never examined.
    pub(super) fn owes_hearings(&self) -> bool {
        let new = |one: &PendingAccusation| !one.is_brought() && one.tries == 0;
        self.hearing.values().chain(&self.waiting).any(new)
    }

    fn is_known(&self, name: &ExaminationKey) -> bool {
        self.known.contains(name)
            || self.waiting.iter().chain(self.hearing.values()).any(|one| one.name() == *name)
    }

    fn brought(&self) -> usize {
        self.waiting.iter().filter(|one| one.is_brought()).count()
    }

    fn put(&mut self, waiting: PendingAccusation) {
        // Forgetting costs a second examination at worst, remembering everything costs memory without a bound.
        if self.known.len() >= REMEMBERED {
            self.known.clear();
        }
        self.known.insert(waiting.name());
        self.waiting.push_back(waiting);
    }

    /// Takes a place from whoever has most of such accusations, if that is more than the accuser has: many words are no louder
    /// than one.
    fn make_room(&mut self, accuser: &MemberId, such: fn(&PendingAccusation) -> bool) -> Result<(), Reject> {
        let mut counts: BTreeMap<MemberId, usize> = BTreeMap::new();
        for one in self.waiting.iter().filter(|one| one.is_brought() && such(one)) {
            *counts.entry(one.accuser).or_default() += 1;
        }
        let own = counts.get(accuser).copied().unwrap_or_default();
        // Only from one that has two more: otherwise two accusers would take one place from each other without end.
        let most = counts.into_iter().max_by_key(|(_, count)| *count).filter(|(_, count)| *count > own + 1);
        let (loudest, _) = most.ok_or(FULL)?;
        // Its newest: what has waited longest is heard first.
        let last =
            self.waiting.iter().rposition(|one| one.is_brought() && such(one) && one.accuser == loudest);
        let dropped = last.and_then(|index| self.waiting.remove(index)).ok_or(FULL)?;
        self.known.remove(&dropped.name());
        Ok(())
    }
}

/// What an accuser is told for whom there is no place.
const FULL: Reject = Reject::Rule("too many accusations wait; try again later");

/// What an accuser is told whose last accusations came to nothing.
const BARRED: Reject = Reject::Rule("your last accusations came to nothing; try again some rounds later");

/// Whether any member may bring it: messages alone decide it, or one forward pass does (CALL-7).
pub(super) fn is_anybodys(evidence: &Evidence) -> bool {
    matches!(evidence, Evidence::Equivocation(_) | Evidence::Results(_) | Evidence::Answer(_))
}

#[cfg(test)]
mod tests;
