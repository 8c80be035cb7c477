//! Accusations in turn, exhibits of convicts, and when the last audits are over.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use muster_core::audit::{Claim, Judgement, check_steps, claim};
use muster_core::error::Reject;
use muster_core::ids::{Digest, MemberId, Part, Round};
use muster_core::ledger::{Ledger, Stage, Standing};
use muster_core::manifest::Profile;
use muster_core::messages::audit::{Evidence, FalseVerdict, Finding, FindingKind, Reduction, Verdict};
use muster_core::messages::enrol::Role;
use muster_core::messages::record::{Ban, Body};
use muster_core::messages::wire::Notice;

use super::actor::{Actor, Message};
use super::court::{Accusation, Wanted, Wants};
use super::jury::{Found, Trial};
use super::retro::Retro;

/// Accusations that wait at most, and those of one accuser but the steward: nobody keeps the others from being heard.
const WAITING: usize = 256;
/// Those among them that any member may bring.
const ANYBODYS: usize = 64;
const WAITING_OF_ONE: usize = 4;
/// Milliseconds until what could not be decided is examined again, if somebody still accuses.
const AGAIN: u64 = 30_000;
/// Decided accusations remembered, so that they are not examined again.
const REMEMBERED: usize = 4096;
/// Tries to fetch a convict's contribution.
const TRIES: u32 = 20;
/// Milliseconds between two of them.
const PAUSE: u64 = 2_000;

/// What is accused, open, owed.
#[derive(Default)]
pub(super) struct Justice {
    waiting: VecDeque<Accusation>,
    examining: bool,
    /// Accusations that were examined, and when they may be once more: those that could not be decided.
    known: BTreeMap<Digest, Option<u64>>,
    /// Open audits: about which round, who is asked by whom.
    open: BTreeMap<Digest, (Round, MemberId, MemberId)>,
    /// Members that a verdict finds guilty and nobody has accused or acquitted yet.
    charged: BTreeSet<MemberId>,
    /// Cases that jurors think about, by evidence.
    pub(super) trials: BTreeMap<Digest, Trial>,
    exhibits: BTreeMap<(Round, MemberId), Exhibit>,
    /// Convicts' parts that are kept.
    parts: BTreeSet<(Round, Part)>,
    /// What follows from each conviction.
    pub(super) retros: BTreeMap<MemberId, Retro>,
    closing: bool,
}

/// A convict's counted contribution.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Exhibit {
    Fetching(u32),
    /// To be tried again.
    Failed(u32, u64),
    Kept,
    GivenUp,
}

impl Justice {
    /// After a restart: the past of these convicts is to be looked into again.
    pub(super) fn new(bans: Vec<Ban>) -> Self {
        let retros = bans.into_iter().map(|ban| (ban.culprit, Retro::Waiting(ban))).collect();
        Self { retros, ..Self::default() }
    }

    /// An audit began.
    pub(super) fn opened(&mut self, request: Digest, round: Round, target: MemberId, verifier: MemberId) {
        self.open.insert(request, (round, target, verifier));
    }

    /// An audit has its verdict.
    pub(super) fn closed(&mut self, request: &Digest, pass: bool) {
        if let Some((_, target, _)) = self.open.remove(request).filter(|_| !pass) {
            self.charged.insert(target);
        }
    }

    /// An accusation is to be examined, once; so many of its accuser wait at most.
    ///
    /// # Errors
    /// [`Reject`] when too many wait already.
    fn queue(&mut self, now: u64, accusation: Accusation, most: usize) -> Result<(), Reject> {
        let digest = accusation.digest;
        if self.known.get(&digest).is_some_and(|again| again.is_none_or(|at| now < at)) {
            return Ok(());
        }
        let count = |such: &dyn Fn(&Accusation) -> bool| self.waiting.iter().filter(|one| such(one)).count();
        let own = count(&|waiting| waiting.accuser == accusation.accuser);
        let anybodys =
            is_anybodys(&accusation.evidence) && count(&|waiting| is_anybodys(&waiting.evidence)) >= ANYBODYS;
        if own >= most || anybodys || self.waiting.len() >= WAITING {
            return Err(Reject::Rule("too many accusations wait; try again later"));
        }
        if self.known.len() >= REMEMBERED {
            self.known.clear();
        }
        self.known.insert(digest, None);
        self.waiting.push_back(accusation);
        Ok(())
    }

    /// What is missing today may be there tomorrow, and the same words accuse whoever says them.
    fn undecided(&mut self, now: u64, digest: Digest) {
        self.known.insert(digest, Some(now + AGAIN));
    }

    /// A verifier is gone or idle: nobody waits for its audits any more.
    pub(super) fn dismiss(&mut self, verifier: &MemberId) {
        self.open.retain(|_, (_, _, asker)| asker != verifier);
    }

    /// A round has ended: audits of those that are remembered no more end with nothing.
    pub(super) fn forget(&mut self, ledger: &Ledger) {
        self.open.retain(|_, (round, ..)| ledger.round(*round).is_some());
    }

    /// Nothing is held against a member any more, or it is banned already.
    pub(super) fn acquit(&mut self, member: &MemberId) {
        self.charged.remove(member);
    }

    /// What was fetched of a member before its ban is no exhibit yet.
    pub(super) fn banned(&mut self, member: &MemberId) {
        self.acquit(member);
        self.exhibits.retain(|(_, author), _| author != member);
    }

    /// The state went back for this evidence; what was measured before is of another past.
    pub(super) fn went_back(&mut self, evidence: &Digest) {
        for retro in self.retros.values_mut() {
            if matches!(retro, Retro::Beyond(ban, _) if ban.evidence == *evidence) {
                *retro = Retro::Over;
            }
        }
    }

    /// Whether everything of a convict that could be fetched is there.
    pub(super) fn has_exhibits(&self, member: &MemberId) -> bool {
        let mut own = self.exhibits.iter().filter(|((_, author), _)| author == member);
        own.all(|(_, exhibit)| matches!(exhibit, Exhibit::Kept | Exhibit::GivenUp))
    }

    /// Whether nothing is examined or fetched, and no present member owes an answer or is charged.
    fn at_rest(&self, ledger: &Ledger) -> bool {
        let present =
            |member: &MemberId| ledger.member(member).is_some_and(|m| m.standing == Standing::Active);
        let owed = self.open.values().any(|(_, target, verifier)| present(target) && present(verifier));
        let fetching = |exhibit: &Exhibit| matches!(exhibit, Exhibit::Fetching(_) | Exhibit::Failed(..));
        let past = self.retros.values().any(Retro::is_open) || !self.trials.is_empty();
        let busy = past || self.examining || !self.waiting.is_empty() || self.exhibits.values().any(fetching);
        // Who is banned may be found guilty once more.
        let banned =
            |member: &MemberId| ledger.member(member).is_some_and(|m| m.standing == Standing::Banned);
        !busy && !owed && self.charged.iter().all(banned)
    }
}

impl Actor {
    /// Takes an accusation for examination, once.
    ///
    /// # Errors
    /// [`Reject`] for one that its author may not bring, that is about nothing, or one too many.
    pub(super) fn accuse(&mut self, accuser: MemberId, evidence: Evidence) -> Result<(), Reject> {
        let (now, ledger) = (self.now(), self.conductor.ledger());
        if !self.may_accuse(&accuser, &evidence) {
            return Err(Reject::NotEntitled("accuse: only verifiers do"));
        }
        if matches!(evidence, Evidence::Misconduct(_)) {
            return Err(Reject::NotEntitled("accuse the steward before the steward: show it to the others"));
        }
        let claim = claim(ledger.manifest(), &evidence)?;
        check_evidence(ledger, &evidence, &claim)?;
        let standing = ledger.member(&claim.culprit).map(|member| member.standing);
        let digest = evidence.digest();
        if standing.is_none_or(|standing| standing == Standing::Banned) {
            return Ok(());
        }
        let most = if accuser == self.identity.id() { WAITING } else { WAITING_OF_ONE };
        self.justice.queue(now, Accusation { evidence, digest, accuser, claim }, most)
    }

    /// Verifiers that are not expelled, and this steward; whoever has messages that contradict each other.
    fn may_accuse(&self, accuser: &MemberId, evidence: &Evidence) -> bool {
        let member = self.ledger().member(accuser).filter(|member| member.role == Role::Verifier);
        let stands =
            member.is_some_and(|member| matches!(member.standing, Standing::Active | Standing::Away));
        stands || *accuser == self.identity.id() || is_anybodys(evidence)
    }

    /// Goes on with whatever is owed: the next examination, exhibits, the end of the run.
    pub(super) fn pursue(&mut self, now: u64) {
        self.examine_next();
        self.settle_trials();
        self.exhibit_wanted(now);
        self.show_obtained();
        self.exhibit_parts();
        self.pursue_past();
        self.close_when_settled();
    }

    fn examine_next(&mut self) {
        if self.justice.examining {
            return;
        }
        let Some(accusation) = self.justice.waiting.pop_front() else { return };
        self.justice.examining = true;
        let wants = Wants::of(self.ledger(), &accusation.evidence, &accusation.claim);
        let (court, sender) = (self.court.clone(), self.sender.clone());
        tokio::spawn(async move {
            let (judgement, q) = court.examine(accusation.evidence.clone(), wants).await;
            let _ = sender.send(Message::Examined(Box::new(accusation), judgement, q)).await;
        });
    }

    /// An examination is over.
    pub(super) fn judged(&mut self, accusation: &Accusation, judgement: Judgement, q: Option<Vec<i32>>) {
        self.justice.examining = false;
        self.decided(accusation, judgement, q);
    }

    /// Bans, or says why not.
    pub(super) fn decided(&mut self, accusation: &Accusation, judgement: Judgement, q: Option<Vec<i32>>) {
        let (accuser, culprit, subject) =
            (accusation.accuser, accusation.claim.culprit, accusation.claim.subject);
        if matches!(judgement, Judgement::Undecided(_)) {
            self.justice.undecided(self.now(), accusation.digest);
        }
        let Judgement::Guilty { culprit, round, finding, detail } = judgement else {
            let why = match judgement {
                Judgement::NotGuilty(why) | Judgement::Undecided(why) | Judgement::Malformed(why) => why,
                Judgement::Guilty { .. } => return,
            };
            self.justice.acquit(&culprit);
            self.report.dismissed(accuser, culprit, &why);
            return self.doubt(&accusation.evidence);
        };
        if self.ledger().member(&culprit).is_none_or(|member| member.standing == Standing::Banned) {
            return;
        }
        let home = &self.court.home;
        let exhibit = q.map_or(Ok(()), |q| home.save_exhibit(round, &subject, &q));
        let saved = exhibit.and_then(|()| home.save_evidence(&accusation.evidence));
        if let Err(error) = saved {
            self.state.failed = Some(error.into());
            return;
        }
        let case = Found { culprit, round, finding, evidence: accusation.digest, accuser, detail };
        self.convict_or_charge(case, &accusation.evidence);
        self.examine_second(&accusation.evidence);
        match (&accusation.evidence, finding) {
            // Whom a false verdict accused is cleared; whom it let pass is examined itself.
            (Evidence::Verdict(_), FindingKind::FalseAccusation) => self.justice.acquit(&subject),
            (Evidence::Verdict(verdict), FindingKind::FalseAcquittal) => {
                let _ = self.accuse(accuser, Evidence::Audit(verdict.transcript.clone()));
            }
            _ => {}
        }
    }

    /// A guilty verdict is examined at once, whether or not its author accuses (DUTY-10).
    pub(super) fn examine_verdict(&mut self, verdict: &Verdict, verifier: MemberId) {
        let transcript = self.docket.transcript(self.conductor.ledger(), &verdict.request);
        if let (Finding::Guilty(_), Some(transcript)) = (verdict.finding, transcript) {
            let _ = self.accuse(verifier, Evidence::Audit(transcript));
        }
    }

    /// AUDIT-23: where two have signed a wrong part, the conviction of one has the other examined by the same records.
    pub(super) fn examine_second(&mut self, evidence: &Evidence) {
        let Evidence::Aggregation(part) = evidence else { return };
        let Ok(result) = part.result.verify(self.ledger().run()) else { return };
        let Some(view) = self.ledger().round(result.round) else { return };
        let others =
            view.signed_results_of(result.part).filter(|other| other.claimed_signer() != result.author());
        let others: Vec<Evidence> = others
            .map(|other| Evidence::Aggregation(Reduction { result: other.clone(), ..part.clone() }))
            .collect();
        for evidence in others {
            let _ = self.accuse(self.identity.id(), evidence);
        }
    }

    /// What a verifier found guilty is not, by the transcript: perhaps the verdict is false.
    fn doubt(&mut self, evidence: &Evidence) {
        let Evidence::Audit(transcript) = evidence else { return };
        let admitted = self.ledger().member(&transcript.verdict.claimed_signer());
        let Some(admit) = admitted.and_then(|member| member.admitted.clone()) else { return };
        let verdict = FalseVerdict { admit, transcript: transcript.clone() };
        let _ = self.accuse(self.identity.id(), Evidence::Verdict(verdict));
    }

    /// Fetches every counted contribution of a convict in the rounds that are remembered, because replay needs them, and
    /// those that a verifier could not have (TOL-12).
    fn exhibit_wanted(&mut self, now: u64) {
        let ledger = self.conductor.ledger();
        let banned =
            |member: &MemberId| ledger.member(member).is_some_and(|m| m.standing == Standing::Banned);
        let counted = ledger.rounds().flat_map(|view| {
            let counted = view.commitments().filter(|(slot, _)| view.counted(*slot));
            counted.map(|(_, commitment)| (view.round(), commitment.author))
        });
        let counted = counted.filter(|(_, author)| banned(author));
        let owed: BTreeSet<(Round, MemberId)> = counted.chain(self.docket.wanted()).collect();
        for (round, member) in owed {
            let tries = match self.justice.exhibits.get(&(round, member)) {
                None => 0,
                Some(Exhibit::Failed(tries, after)) if now >= *after => *tries,
                Some(_) => continue,
            };
            let Some(wanted) = Wanted::of(self.ledger(), round, member) else { continue };
            self.justice.exhibits.insert((round, member), Exhibit::Fetching(tries + 1));
            let (court, sender) = (self.court.clone(), self.sender.clone());
            let convicted = banned(&member);
            tokio::spawn(async move {
                let kept = if convicted { court.exhibit(&wanted).await } else { court.obtain(&wanted).await };
                let _ = sender.send(Message::Exhibited(round, member, kept)).await;
            });
        }
    }

    /// Tells the verifiers that waited for a contribution that it is to be had here.
    fn show_obtained(&mut self) {
        for (round, member) in self.docket.wanted() {
            if self.justice.exhibits.get(&(round, member)) != Some(&Exhibit::Kept) {
                continue;
            }
            for (request, back) in self.docket.obtained(self.conductor.ledger(), round, &member) {
                self.board.post(Notice::Obtained(request));
                back.into_iter().for_each(|body| self.conductor.propose(body));
            }
        }
    }

    /// Keeps the values of every counted part of a convict in the rounds that are remembered: they may be wrong, and
    /// replay cannot reduce what is wrong.
    fn exhibit_parts(&mut self) {
        let ledger = self.conductor.ledger();
        let banned =
            |member: &MemberId| ledger.member(member).is_some_and(|m| m.standing == Standing::Banned);
        let mut owed = Vec::new();
        for view in ledger.rounds() {
            for (place, result) in view.results().into_iter().flatten().enumerate() {
                let part = Part(place as u16);
                let convicted = result.is_some() && view.signers(part).any(|signer| banned(&signer));
                let plan = view.parts().get(place).filter(|_| convicted);
                owed.extend(plan.map(|plan| (view.round(), part, plan.blocks.clone())));
            }
        }
        for (round, part, blocks) in owed {
            if !self.justice.parts.insert((round, part)) {
                continue;
            }
            let court = self.court.clone();
            tokio::task::spawn_blocking(move || {
                if let Err(error) = court.exhibit_part(round, part, &blocks) {
                    tracing::error!("part {part} of round {round} could not be kept for replay: {error}");
                }
            });
        }
    }

    /// A convict's contribution was fetched, or not.
    pub(super) fn exhibited(&mut self, round: Round, member: MemberId, kept: Result<(), String>) {
        let again = self.now() + PAUSE;
        let Some(exhibit) = self.justice.exhibits.get_mut(&(round, member)) else { return };
        let tries = if let Exhibit::Fetching(tries) = exhibit { *tries } else { 0 };
        *exhibit = match kept {
            Ok(()) => Exhibit::Kept,
            Err(why) if tries >= TRIES => {
                let exact = self.conductor.ledger().manifest().profile == Profile::Exact;
                let so = if exact { ", the archive will not replay" } else { "" };
                self.report
                    .line(&format!("the contribution of {member} to round {round} is lost{so}: {why}"));
                Exhibit::GivenUp
            }
            Err(_) => Exhibit::Failed(tries, again),
        };
    }

    fn close_when_settled(&mut self) {
        if self.ledger().stage() != Stage::Auditing || self.justice.closing {
            return;
        }
        if self.settled() || self.conductor.overdue() {
            self.justice.closing = true;
            let root = self.ledger().state().root();
            self.conductor.propose(Body::Close(root));
        }
    }

    /// Whether every counted contribution of the last rounds was judged, as far as anybody is there to judge.
    fn settled(&self) -> bool {
        let ledger = self.conductor.ledger();
        let convicted =
            |member: &MemberId| ledger.member(member).is_some_and(|m| m.standing == Standing::Banned);
        let judged =
            ledger.rounds().filter(|view| ledger.in_final_audit(view.round()) && view.echoed()).all(|view| {
                let mut counted = view.commitments().filter(|(slot, _)| view.counted(*slot));
                counted.all(|(_, c)| {
                    self.docket.has_passed(ledger, view.round(), &c.author) || convicted(&c.author)
                })
            });
        let rests = self.justice.at_rest(ledger);
        if self.verified() { judged && rests } else { rests || self.justice.open.is_empty() }
    }
}

/// Whether messages alone decide it, so that any member may bring it.
fn is_anybodys(evidence: &Evidence) -> bool {
    matches!(evidence, Evidence::Equivocation(_) | Evidence::Results(_))
}

/// Refuses what need not be examined, before anything is fetched or recomputed because of it: what is said of a round that
/// is still to come, for which nobody can be banned yet; leaves of a round that is not over, of which nobody can be a juror yet; an audit whose steps do not fit, or that was nobody's to make.
fn check_evidence(ledger: &Ledger, evidence: &Evidence, claim: &Claim) -> Result<(), Reject> {
    check_steps(ledger.manifest(), evidence)?;
    if claim.round >= ledger.first_round_without() {
        return Err(Reject::Stale("nobody is judged for a round that is still to come"));
    }
    let Some(view) = ledger.round(claim.round).filter(|_| evidence.is_of_leaves()) else { return Ok(()) };
    if view.results().is_none() {
        return Err(Reject::Stale("leaves are judged once their round is over"));
    }
    let Some(transcript) = evidence.transcript() else { return Ok(()) };
    let (slot, verifier) = (view.slot_of(&claim.subject), transcript.verdict.claimed_signer());
    if !slot.is_some_and(|slot| ledger.was_inspector(view, slot, &verifier)) {
        return Err(Reject::NotEntitled("judge this contribution: it was not drawn"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use muster_core::codec::List;
    use muster_core::ids::{RunId, Slot};
    use muster_core::messages::audit::{Equivocation, Total};
    use muster_core::messages::enrol::{Addresses, Enrol, Invitation};
    use muster_core::messages::round::Commit;
    use muster_core::sign::Identity;

    use super::*;
    use crate::organise::invite::{organiser, read_manifest};
    use crate::organise::read_identity;
    use crate::steward::tests::new_run;

    const OTHER: u8 = 11;
    const CHEAT: u8 = 12;

    fn member(number: u8) -> Identity {
        Identity::from_secret(&[number; 32])
    }

    /// A ledger in its first round, and who seals what comes next.
    fn begun() -> (Ledger, Identity) {
        let place = tempfile::tempdir().unwrap();
        let folder = new_run(place.path());
        let manifest = read_manifest(&folder).unwrap();
        let organiser = organiser(&folder, &manifest).unwrap();
        let steward = read_identity(&folder, "identity").unwrap();
        let mut ledger = Ledger::new(Arc::new(manifest));
        let state = *ledger.state();
        seal(&mut ledger, &steward, Body::Open(state));
        for number in [OTHER, CHEAT] {
            let (role, nonce) = (Role::Node, [number; 16]);
            let invitation = Invitation { role, uses: 1, expires: u64::MAX, nonce, founder: false };
            let invitation = Some(organiser.sign(ledger.run(), &invitation));
            let enrol = Enrol { invitation, addresses: Addresses::default(), coins: None };
            let enrol = member(number).sign(ledger.run(), &enrol);
            seal(&mut ledger, &steward, Body::Admit(enrol));
        }
        let seats = List::new(ledger.derived_seats()).unwrap();
        seal(&mut ledger, &steward, Body::Begin(seats));
        (ledger, steward)
    }

    fn seal(ledger: &mut Ledger, steward: &Identity, body: Body) {
        let record = steward.sign(ledger.run(), &ledger.record(body));
        ledger.apply(&record).unwrap();
    }

    fn accusation(accuser: u8, evidence: u8) -> Accusation {
        let (culprit, other) = (member(CHEAT), member(OTHER));
        let commit = |root| {
            let commit = Commit {
                round: Round(0),
                head: Digest::default(),
                state: Digest::default(),
                slot: Slot(0),
                seats: 2,
                leaves: 1,
                profile: Profile::Exact,
                loss: 0,
                root: Digest([root; 32]),
            };
            other.sign(RunId(Digest::default()), &commit)
        };
        let evidence = Evidence::Equivocation(Equivocation { first: commit(0), second: commit(evidence) });
        let claim = Claim { culprit: culprit.id(), subject: culprit.id(), round: Round(0) };
        Accusation { digest: evidence.digest(), evidence, accuser: member(accuser).id(), claim }
    }

    #[test]
    fn no_leaf_is_judged_while_its_round_is_open() {
        let (ledger, steward) = begun();
        let freeze = steward.sign(ledger.run(), &ledger.record(Body::Close(Digest::default())));
        let culprit = member(CHEAT).id();
        let claim = Claim { culprit, subject: culprit, round: Round(0) };
        let total = Evidence::Total(Total { freeze, culprit });
        assert!(matches!(check_evidence(&ledger, &total, &claim), Err(Reject::Stale(_))));
        // What messages decide does not wait.
        assert!(check_evidence(&ledger, &accusation(OTHER, 1).evidence, &claim).is_ok());
    }

    #[test]
    fn what_was_fetched_before_a_ban_is_fetched_once_more_as_an_exhibit() {
        let mut justice = Justice::default();
        let [cheat, other] = [CHEAT, OTHER].map(|number| member(number).id());
        justice.exhibits.insert((Round(0), cheat), Exhibit::Kept);
        justice.exhibits.insert((Round(0), other), Exhibit::Kept);
        justice.banned(&cheat);
        assert!(justice.exhibits.keys().eq([&(Round(0), other)]));
    }

    #[test]
    fn what_could_not_be_decided_is_examined_again_for_whoever_says_it() {
        let mut justice = Justice::default();
        justice.queue(0, accusation(1, 1), WAITING_OF_ONE).unwrap();
        let first = justice.waiting.pop_front().unwrap();
        justice.queue(5, accusation(2, 1), WAITING_OF_ONE).unwrap();
        assert!(justice.waiting.is_empty(), "it is examined already");
        justice.undecided(10, first.digest);
        justice.queue(11, accusation(2, 1), WAITING_OF_ONE).unwrap();
        assert!(justice.waiting.is_empty(), "not at once");
        justice.queue(10 + AGAIN, accusation(2, 1), WAITING_OF_ONE).unwrap();
        assert_eq!(justice.waiting.len(), 1);
    }

    #[test]
    fn one_accuser_does_not_keep_the_others_from_being_heard() {
        let mut justice = Justice::default();
        let taken = (0..100)
            .filter(|number| justice.queue(0, accusation(1, *number), WAITING_OF_ONE).is_ok())
            .count();
        assert_eq!(taken, WAITING_OF_ONE);
        assert!(justice.queue(0, accusation(2, 200), WAITING_OF_ONE).is_ok());
    }

    #[test]
    fn an_audit_that_nobody_ended_does_not_hold_up_the_end() {
        let (ledger, _) = begun();
        let [other, cheat] = [OTHER, CHEAT].map(|number| member(number).id());
        let mut justice = Justice::default();
        justice.opened(Digest([1; 32]), Round(0), cheat, other);
        justice.forget(&ledger);
        assert!(!justice.at_rest(&ledger), "its round is remembered");
        justice.opened(Digest([1; 32]), Round(9), cheat, other);
        justice.forget(&ledger);
        assert!(justice.at_rest(&ledger));
    }

    #[test]
    fn what_anybody_may_bring_leaves_room_for_what_verifiers_find() {
        let mut justice = Justice::default();
        let taken = (0..=u8::MAX).filter(|accuser| {
            let mut some = accusation(*accuser, 1);
            some.digest = Digest([*accuser; 32]);
            justice.queue(0, some, WAITING_OF_ONE).is_ok()
        });
        assert_eq!(taken.count(), ANYBODYS);
        let (ledger, steward) = begun();
        let freeze = steward.sign(ledger.run(), &ledger.record(Body::Close(Digest::default())));
        let total = Evidence::Total(Total { freeze, culprit: member(CHEAT).id() });
        let found = Accusation { digest: total.digest(), evidence: total, ..accusation(OTHER, 1) };
        assert!(justice.queue(0, found, WAITING_OF_ONE).is_ok());
    }

    #[test]
    fn a_second_verdict_on_somebody_banned_does_not_hold_up_the_end() {
        let (mut ledger, steward) = begun();
        let [other, cheat] = [OTHER, CHEAT].map(|number| member(number).id());
        let mut justice = Justice::default();
        let verdict = |justice: &mut Justice, number: u8, on: MemberId| {
            justice.opened(Digest([number; 32]), Round(0), on, MemberId([99; 32]));
            justice.closed(&Digest([number; 32]), false);
        };
        verdict(&mut justice, 1, cheat);
        assert!(!justice.at_rest(&ledger), "found guilty, and nobody has looked at it yet");
        let effective = ledger.first_round_without();
        let (finding, evidence, accuser) = (FindingKind::LeafMismatch, Digest([1; 32]), steward.id());
        let ban = Ban {
            culprit: cheat,
            effective,
            round: Round(0),
            finding,
            evidence,
            accuser,
            jury: muster_core::codec::List::default(),
        };
        seal(&mut ledger, &steward, Body::Ban(ban));
        justice.acquit(&cheat);
        assert!(justice.at_rest(&ledger));
        // Another audit of it was under way, and ends as it must.
        verdict(&mut justice, 2, cheat);
        assert!(justice.at_rest(&ledger));
        verdict(&mut justice, 3, other);
        assert!(!justice.at_rest(&ledger), "who is present and found guilty is waited for");
        justice.acquit(&other);
        assert!(justice.at_rest(&ledger));
    }
}
