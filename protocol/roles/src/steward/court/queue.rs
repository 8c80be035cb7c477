//! The queue of the court: the order of examinations, and the places of each accuser.
//!
//! No accuser keeps the others from being heard, and no finding that the steward has to examine is lost
//! (DUTY-10).

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use muster_core::audit::Claim;
use muster_core::bug::OrBug;
use muster_core::error::Reject;
use muster_core::ids::{Digest, MemberId, Round};
use muster_core::messages::evidence::Evidence;

use crate::setback::Setback;
use crate::steward::accusation::{Allegation, Reply};

/// Accusations of members that wait at most.
const WAITING: usize = 256;
/// Accusations among them that any member may bring.
const ANYBODYS: usize = 64;
/// Accusations of one accuser against one culprit: a cheat that is found every time takes nobody else's
/// place.
const WAITING_OF_PAIR: usize = 4;
/// Cases that are examined at once.
const AT_ONCE: usize = 8;
/// Cases among them that may fetch something.
const FETCHING: usize = 4;
/// Cases of one accuser that may fetch something.
const FETCHING_OF_ONE: usize = 2;
/// Milliseconds until an undecided case is examined again. The pause doubles each time.
const AGAIN: u64 = 2_000;
/// The longest such pause.
const AT_LAST: u64 = 32_000;
/// Accusations that are remembered, so that they are not examined twice.
const REMEMBERED: usize = 4096;

/// The ground of an accusation.
#[derive(Clone)]
pub(super) enum Ground {
    /// Evidence that a member has brought.
    Evidence(Box<Evidence>),
    /// A verifier's finding on the board, which the steward owes a hearing.
    Owed(Box<Evidence>),
}

/// Deduplication key of an examination: the evidence, plus the verifier if it is a finding on the board.
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
    /// When the case may be examined.
    due: u64,
    /// Whether the evidence is about leaves or an answer, so that its round must be remembered.
    of_state: bool,
    /// Whether any member may bring such evidence.
    anybodys: bool,
    /// Whether the examination may have to fetch a contribution or inputs.
    fetches: bool,
    /// Whether the steward computes on the accuser's bare word, which none of its signatures backs
    /// (AUDIT-28).
    unbacked: bool,
    /// What was answered, if the evidence is an answer to a call.
    pub(super) reply: Option<Reply>,
}

impl PendingAccusation {
    fn new(ground: Ground, accusation: &Allegation, fetches: bool, own: bool) -> Self {
        let Allegation { evidence, digest, accuser, claim, reply, .. } = accusation;
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
            reply: *reply,
        }
    }

    fn name(&self) -> ExaminationKey {
        (self.digest, (!self.is_brought()).then_some(self.accuser))
    }

    /// Whether a member brought the evidence, so that the case takes one of the places.
    fn is_brought(&self) -> bool {
        matches!(self.ground, Ground::Evidence(_))
    }
}

/// How an examination ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Heard {
    /// The accusation is right: somebody other than the accuser is guilty.
    Founded,
    /// Nobody is guilty, or the accuser is.
    Unfounded,
    /// Something that the decision needs was unavailable.
    Undecided,
}

/// An answer to a call that was examined.
struct ExaminedReply {
    reply: Reply,
    /// Whether it was false.
    founded: bool,
    /// The accuser's setback before it.
    before: Option<Setback>,
}

/// Accusations that wait, and cases that are being examined.
#[derive(Default)]
pub(super) struct Queue {
    /// In order of arrival.
    waiting: VecDeque<PendingAccusation>,
    /// Cases that are being examined, by culprit: one of each, so that a cheat that is found in every round
    /// is no jam.
    hearing: BTreeMap<MemberId, PendingAccusation>,
    /// Keys of accusations that wait or were examined.
    known: BTreeSet<ExaminationKey>,
    /// Members whose integers were unavailable. For some rounds their integers are not fetched again.
    withheld: BTreeMap<MemberId, Setback>,
    /// Accusers whose unbacked accusations came to nothing. For some rounds they may bring no other.
    unfounded: BTreeMap<MemberId, Setback>,
    /// The last answer of each accuser that was examined: another one to the same call may follow.
    replies: BTreeMap<MemberId, ExaminedReply>,
    /// The round that is next.
    round: Round,
    /// How many accusations of each accuser were unfounded or undecided: the others are heard before it.
    vain: BTreeMap<MemberId, u32>,
}

impl Queue {
    /// Takes an accusation that a member brings, once. The steward's `own` accusations find a place whatever
    /// members bring.
    ///
    /// # Errors
    /// [`Reject`]
    ///
    /// - when too many accusations of this accuser against this culprit wait;
    /// - when too many that anybody may bring wait, or too many in all, and no other accuser can make room;
    /// - when the accuser's last unbacked accusations came to nothing.
    pub(super) fn accuse(&mut self, accusation: Allegation, fetches: bool, own: bool) -> Result<(), Reject> {
        let owed = (accusation.digest, Some(accusation.accuser));
        // The accuser's own finding on the board, by the same evidence, needs no second hearing.
        if self.is_known(&(accusation.digest, None)) || self.is_known(&owed) {
            return Ok(());
        }
        let ground = Ground::Evidence(Box::new(accusation.evidence.clone()));
        let waiting = PendingAccusation::new(ground, &accusation, fetches, own);
        // AUDIT-28: refused and not kept, so that it takes nobody else's place meanwhile.
        if waiting.unbacked && self.is_barred(&accusation.accuser) && !self.answers_what_failed(&waiting) {
            return Err(BARRED);
        }
        let count = |such: &dyn Fn(&PendingAccusation) -> bool| {
            // A case that was examined once holds no place: an undecided case would shut its accuser out.
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

    /// Takes a verifier's finding, once (DUTY-10). There is always room: the docket bounds the number of
    /// findings.
    pub(super) fn owe(&mut self, accusation: &Allegation, fetches: bool) {
        let name = (accusation.digest, Some(accusation.accuser));
        if !self.is_known(&name) {
            let ground = Ground::Owed(Box::new(accusation.evidence.clone()));
            self.put(PendingAccusation::new(ground, accusation, fetches, false));
        }
    }

    /// Begins the next examination, if there is room for one. `banned` says who is banned already.
    ///
    /// Cases go first whose accusers were wrong least often, then those that fetch nothing, then those that
    /// were examined least often, then the oldest.
    pub(super) fn next(&mut self, now: u64, banned: &dyn Fn(&MemberId) -> bool) -> Option<PendingAccusation> {
        // Evidence stands whoever brought it. A finding falls with its verifier's ban.
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
        // Accusers that were right so far go first: the slanderer waits for the others and not they for it.
        let rank = |one: &PendingAccusation| {
            let vain = self.vain.get(&one.accuser).copied().unwrap_or_default();
            (vain, fetches(one), one.tries)
        };
        // AUDIT-28: one unbacked case of each accuser at a time.
        let may = |one: &PendingAccusation| {
            let before = |other: &PendingAccusation| other.unbacked && other.accuser == one.accuser;
            !one.unbacked || !self.hearing.values().any(before)
        };
        let ready = self.waiting.iter().enumerate().filter(|(_, one)| may(one)).filter(|(_, one)| {
            // One case against each culprit at a time: the first one may settle the others.
            one.due <= now && !self.hearing.contains_key(&one.claim.culprit) && (!fetches(one) || room(one))
        });
        let (index, _) = ready.min_by_key(|(index, one)| (rank(one), *index))?;
        let next = self.waiting.remove(index)?;
        self.hearing.insert(next.claim.culprit, next.clone());
        Some(next)
    }

    /// An examination has ended. An undecided case is examined again by itself.
    pub(super) fn heard(&mut self, now: u64, culprit: &MemberId, how: Heard) {
        let Some(mut case) = self.hearing.remove(culprit).or_bug("a case before the court") else { return };
        match how {
            Heard::Founded => self.note_false_reply(&case),
            // The accuser brought two answers to one call, and the other one was false.
            Heard::Unfounded if self.was_the_true_one(&case) => {}
            Heard::Unfounded => {
                *self.vain.entry(case.accuser).or_default() += 1;
                if case.unbacked {
                    self.bar(&case);
                }
            }
            Heard::Undecided => {
                // An undecided case counts against its accuser like an unfounded one: it costs the court as
                // much.
                *self.vain.entry(case.accuser).or_default() +=
                    u32::from(case.is_brought() && case.tries == 0);
                let pair = |one: &&PendingAccusation| {
                    one.tries > 0
                        && one.is_brought()
                        && (one.accuser, one.claim.culprit) == (case.accuser, *culprit)
                };
                if case.is_brought() && self.waiting.iter().filter(pair).count() >= WAITING_OF_PAIR {
                    // Dropped, and forgotten: a member that brings the evidence again is heard again.
                    self.known.remove(&case.name());
                    return;
                }
                // The shift has a bound of its own: a shift by `tries` alone would overflow.
                case.due = now + (AGAIN << case.tries.min(8)).min(AT_LAST);
                case.tries += 1;
                self.waiting.push_back(case);
            }
        }
    }

    /// Notes that a member's integers of this round are unavailable. For some rounds its other cases are
    /// decided without them.
    pub(super) fn withholds(&mut self, member: MemberId, round: Round) {
        let before = self.withheld.get(&member).copied();
        self.withheld.insert(member, Setback::after(before, round));
    }

    /// Whether a member's integers were unavailable in this round or shortly before.
    pub(super) fn has_withheld(&self, member: &MemberId, round: Round) -> bool {
        self.withheld.get(member).is_some_and(|setback| setback.holds(round))
    }

    /// Bars an accuser whose unbacked accusation came to nothing. Its other unbacked accusations are dropped:
    /// the end of the run would wait for them. What contradicts a true answer is false, and stays.
    fn bar(&mut self, case: &PendingAccusation) {
        let accuser = case.accuser;
        let before = self.unfounded.get(&accuser).copied();
        self.unfounded.insert(accuser, Setback::after(before, self.round));
        // Of two answers to one call both came to nothing: no third one is excepted.
        let last = self.answers_what_failed(case);
        self.replies.remove(&accuser);
        if let Some(reply) = case.reply.filter(|_| !last) {
            self.replies.insert(accuser, ExaminedReply { reply, founded: false, before });
        }
        let (known, waiting) = (&mut self.known, &mut self.waiting);
        waiting.retain(|one| {
            let rival = !last && one.reply.zip(case.reply).is_some_and(|(one, other)| one.contradicts(other));
            let dropped = one.unbacked && one.accuser == accuser && !rival;
            if dropped {
                known.remove(&one.name());
            }
            !dropped
        });
    }

    /// Whether the accuser's last examined answer was to the same call, and another one: one of the two is
    /// false (CALL-10).
    fn contradicted(&self, case: &PendingAccusation) -> Option<&ExaminedReply> {
        let last = self.replies.get(&case.accuser)?;
        case.reply.filter(|reply| reply.contradicts(last.reply)).map(|_| last)
    }

    /// AUDIT-28: whether this answer must be false, since the accuser's last one to the same call was true.
    fn answers_what_failed(&self, case: &PendingAccusation) -> bool {
        self.contradicted(case).is_some_and(|last| !last.founded)
    }

    /// AUDIT-28: whether this answer was brought beside a false one to the same call, which excuses one
    /// true answer.
    fn was_the_true_one(&mut self, case: &PendingAccusation) -> bool {
        let excused = self.contradicted(case).is_some_and(|last| last.founded);
        if excused {
            self.replies.remove(&case.accuser);
        }
        excused
    }

    /// Notes that an answer was false. The true one that was brought beside it did not come to nothing.
    fn note_false_reply(&mut self, case: &PendingAccusation) {
        // Other evidence has nothing beside it.
        let Some(reply) = case.reply else { return };
        let accuser = case.accuser;
        if !self.answers_what_failed(case) {
            self.replies.insert(accuser, ExaminedReply { reply, founded: true, before: None });
            return;
        }
        let before = self.replies.remove(&accuser).and_then(|last| last.before);
        match before {
            Some(before) => self.unfounded.insert(accuser, before),
            None => self.unfounded.remove(&accuser),
        };
        self.vain.entry(accuser).and_modify(|vain| *vain = vain.saturating_sub(1));
    }

    /// Whether an accuser may bring no unbacked accusation in this round.
    fn is_barred(&self, accuser: &MemberId) -> bool {
        self.unfounded.get(accuser).is_some_and(|setback| setback.holds(self.round))
    }

    /// This round is next now.
    pub(super) fn reach(&mut self, round: Round) {
        self.round = round;
        self.withheld.retain(|_, setback| !setback.is_over(round));
        self.unfounded.retain(|_, setback| !setback.is_over(round));
    }

    /// When an undecided case is next examined again.
    pub(super) fn timeout(&self, now: u64) -> Option<u64> {
        self.waiting.iter().map(|one| one.due).filter(|due| *due > now).min()
    }

    /// Drops cases about leaves and answers of forgotten rounds, which nobody can examine.
    pub(super) fn forget(&mut self, remembered: &dyn Fn(Round) -> bool) {
        self.waiting.retain(|one| !one.of_state || remembered(one.claim.round));
    }

    /// Whether no case is being examined, and none waits for its first examination.
    pub(super) fn is_at_rest(&self) -> bool {
        self.hearing.is_empty() && self.waiting.iter().all(|one| one.tries > 0)
    }

    /// Whether a verifier's finding waits for its first examination, or is in it.
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
        // Forgetting costs a second examination at worst. Remembering everything costs memory without a
        // bound.
        if self.known.len() >= REMEMBERED {
            self.known.clear();
        }
        self.known.insert(waiting.name());
        self.waiting.push_back(waiting);
    }

    /// Evicts the newest accusation of the accuser that has the most waiting, so that nobody crowds others
    /// out. Only accusations that `such` accepts count and go.
    ///
    /// # Errors
    /// [`Reject`] where nobody has clearly more of them waiting than this accuser.
    fn make_room(&mut self, accuser: &MemberId, such: fn(&PendingAccusation) -> bool) -> Result<(), Reject> {
        let mut counts: BTreeMap<MemberId, usize> = BTreeMap::new();
        for one in self.waiting.iter().filter(|one| one.is_brought() && such(one)) {
            *counts.entry(one.accuser).or_default() += 1;
        }
        let own = counts.get(accuser).copied().unwrap_or_default();
        // The loudest has at least two more: otherwise two accusers would take one place from each other
        // without end.
        let most = counts.into_iter().max_by_key(|(_, count)| *count).filter(|(_, count)| *count > own + 1);
        let (loudest, _) = most.ok_or(FULL)?;
        // The newest goes: the accusation that has waited longest is heard first.
        let last =
            self.waiting.iter().rposition(|one| one.is_brought() && such(one) && one.accuser == loudest);
        let dropped = last.and_then(|index| self.waiting.remove(index)).ok_or(FULL)?;
        self.known.remove(&dropped.name());
        Ok(())
    }
}

/// Reply when the queue is full.
const FULL: Reject = Reject::Rule("too many accusations wait; try again later");

/// Reply to an accuser that is barred for some rounds.
const BARRED: Reject = Reject::Rule("your last accusations came to nothing; try again some rounds later");

/// Whether any member may bring this evidence: messages alone decide it, or one forward pass does (CALL-7).
pub(super) fn is_anybodys(evidence: &Evidence) -> bool {
    matches!(evidence, Evidence::Equivocation(_) | Evidence::Results(_) | Evidence::Answer(_))
}

#[cfg(test)]
mod tests;
