//! What is accused, open and owed: what is examined next, what follows from it, and when the last audits are over.

use std::collections::BTreeMap;

use muster_core::audit::docket::Docket;
use muster_core::audit::{Claim, Judgement, check_reduction, check_steps, claim};
use muster_core::bug::OrBug;
use muster_core::error::Reject;
use muster_core::ids::{Digest, MemberId, Part, Round};
use muster_core::ledger::{Ledger, Stage, Standing};
use muster_core::messages::audit::FindingKind;
use muster_core::messages::enrol::Role;
use muster_core::messages::evidence::{Evidence, Reduction};
use muster_core::messages::record::{Ban, Body};
use muster_core::messages::round::PartResult;
use muster_core::messages::wire::Notice;
use muster_core::sign::Signed;

use super::accusation::{Allegation, fetches};
use super::exhibits::{OwedContribution, OwedPart};
use super::hearing::{Matter, Ruling};
use super::jury::{Conviction, Trial};
use super::past::{Consequences, PastRound};
use super::queue::{Ground, Heard, PendingAccusation, Queue, is_anybodys};
use super::{Bulletin, KeptContribution, Steward, StewardEffect};

/// What is accused and open.
#[derive(Default)]
pub(super) struct Justice {
    pub(super) queue: Queue,
    /// Cases that jurors think about, by evidence.
    pub(super) trials: BTreeMap<Digest, Trial>,
    /// When the time for the last audits was over.
    overdue: Option<u64>,
    closing: bool,
}

impl Justice {
    /// Drops cases about forgotten rounds, which nobody can examine.
    pub(super) fn forget(&mut self, ledger: &Ledger) {
        self.queue.forget(&|round| ledger.round(round).is_some());
    }

    /// When something that waits is to be looked at again.
    pub(super) fn timeout(&self, ledger: &Ledger, now: u64) -> impl Iterator<Item = u64> {
        let patience = u64::from(ledger.manifest().timers.final_audit);
        let end = self.overdue.map(|since| since + patience);
        self.queue.timeout(now).into_iter().chain(end)
    }

    /// Whether nothing is examined.
    fn at_rest(&self) -> bool {
        self.trials.is_empty() && self.queue.is_at_rest()
    }
}

impl Steward {
    /// Takes an accusation for examination, once.
    ///
    /// # Errors
    /// [`Reject`] for one that its author may not bring, that is about nothing, or one too many.
    pub(super) fn accuse(&mut self, accuser: MemberId, evidence: Evidence) -> Result<(), Reject> {
        let ledger = self.conductor.ledger();
        if !self.may_accuse(&accuser, &evidence) {
            return Err(Reject::NotEntitled("accuse: only verifiers do"));
        }
        // A dishonest steward would drop it, and an honest one is not convicted by anything.
        if matches!(evidence, Evidence::Misconduct(_)) {
            return Err(Reject::NotEntitled("accuse the steward before the steward: show it to the others"));
        }
        let claim = claim(ledger.manifest(), &evidence)?;
        check_evidence(ledger, &evidence, &claim)?;
        let standing = ledger.member(&claim.culprit).map(|member| member.standing);
        let digest = evidence.digest();
        // Nobody is banned twice, so nothing need be examined.
        if standing.is_none_or(|standing| standing == Standing::Banned) {
            return Ok(());
        }
        // AUDIT-25: what all leaves give is signed, so that false words cost their author; then it is examined anyway.
        if matches!(evidence, Evidence::Total(_))
            && ledger.manifest().profile.leaves_stand_for_integers()
            && accuser != self.identity.id()
        {
            let signed = self.board.docket().has_charged(&accuser, claim.round, &claim.culprit);
            let rule = Reject::Rule("what all leaves give is said as a signed recomputation");
            return if signed { Ok(()) } else { Err(rule) };
        }
        let own = accuser == self.identity.id();
        // DUTY-10: a verifier that signs its steps anew would otherwise have one audit examined again and again.
        if !own {
            require_posted(self.board.docket(), ledger, &evidence)?;
            require_drawn(self.board.docket(), ledger, &evidence, &accuser)?;
        }
        let fetches = fetches(ledger, &evidence, &claim);
        let (round, subject, of_leaves) = (claim.round, claim.subject, evidence.is_of_leaves());
        let accusation = Allegation { evidence, digest, accuser, claim, owed: false, tries: 0 };
        self.justice.queue.accuse(accusation, fetches, own)?;
        // AUDIT-24: what the author contributed is fetched while its keepers still have it.
        if of_leaves {
            self.exhibits.suspect(round, subject);
        }
        Ok(())
    }

    /// Verifiers that are not expelled, and this steward; whoever has messages that contradict each other.
    fn may_accuse(&self, accuser: &MemberId, evidence: &Evidence) -> bool {
        let member = self.ledger().member(accuser).filter(|member| member.role == Role::Verifier);
        let stands =
            member.is_some_and(|member| matches!(member.standing, Standing::Active | Standing::Away));
        stands || *accuser == self.identity.id() || is_anybodys(evidence)
    }

    /// Goes on with whatever is owed: the next examination, exhibits, the end of the run.
    pub(super) fn pursue(&mut self) {
        self.justice.queue.reach(self.conductor.ledger().next_round());
        // Charges first, the end last: the run does not close over a finding that is on the board already.
        self.take_charges();
        self.examine_next();
        self.settle_trials();
        self.fetch_exhibits();
        self.show_obtained();
        self.write_exhibits();
        self.pursue_past();
        self.close_when_settled();
    }

    /// DUTY-10: what verifiers find guilty is examined, whether or not they accuse.
    fn take_charges(&mut self) {
        for (verifier, evidence) in self.board.docket().charges(self.conductor.ledger()) {
            self.owe_hearing(verifier, evidence);
        }
    }

    /// Begins to examine whatever there is room for.
    fn examine_next(&mut self) {
        while let Some(next) = self.next_case() {
            let PendingAccusation { ground, digest, accuser, claim, tries, .. } = next;
            let owed = matches!(ground, Ground::Owed(_));
            let (Ground::Evidence(evidence) | Ground::Owed(evidence)) = ground;
            self.examine(Allegation { evidence: *evidence, digest, accuser, claim, owed, tries });
        }
    }

    fn next_case(&mut self) -> Option<PendingAccusation> {
        let ledger = self.conductor.ledger();
        self.justice.queue.next(self.now, &|member| ledger.is_banned(member))
    }

    fn examine(&mut self, accusation: Allegation) {
        let matter = self.matter(&accusation);
        self.effects.push_back(StewardEffect::Hear(Box::new(accusation), Box::new(matter)));
    }

    /// What is to be examined of an accusation.
    pub(super) fn matter(&self, accusation: &Allegation) -> Matter {
        let ledger = self.ledger();
        let verifier = accusation.evidence.transcript().map(|transcript| transcript.verdict.claimed_signer());
        Matter {
            evidence: accusation.evidence.clone(),
            run: ledger.run(),
            exact: ledger.manifest().profile.leaves_stand_for_integers(),
            admit: verifier.and_then(|verifier| ledger.member(&verifier)?.admitted.clone()),
            withheld: self.justice.queue.has_withheld(&accusation.claim.subject, accusation.claim.round),
            expelled: ledger.is_banned(&accusation.claim.subject),
        }
    }

    /// An examination is over.
    pub(super) fn judged(&mut self, accusation: &Allegation, ruling: Ruling) {
        let Claim { culprit, subject, round } = accusation.claim;
        if ruling.withheld && withholds(self.ledger(), round, &subject) {
            self.justice.queue.withholds(subject, round);
        }
        let how = match &ruling.judgement {
            // Tested first: the member may be convicted while the charge against its verifier stays open.
            _ if ruling.open => Heard::Undecided,
            Judgement::Guilty { culprit, .. } if *culprit != accusation.accuser => Heard::Founded,
            _ => Heard::Unfounded,
        };
        self.justice.queue.heard(self.now, &culprit, how);
        self.decided(accusation, ruling);
    }

    /// Bans, or says why not.
    pub(super) fn decided(&mut self, accusation: &Allegation, ruling: Ruling) {
        let subject = accusation.claim.subject;
        let Ruling { evidence, judgement, q, .. } = ruling;
        let (culprit, round, finding, detail) = match judgement {
            Judgement::Guilty { culprit, round, finding, detail } => (culprit, round, finding, detail),
            Judgement::NotGuilty(why) | Judgement::Undecided(why) | Judgement::Malformed(why) => {
                return self.dismissed(accusation, why);
            }
        };
        if self.ledger().member(&culprit).is_none_or(|member| member.standing == Standing::Banned) {
            return;
        }
        // Q proves more than leaves alone, and nobody may have it any more when the run is replayed.
        let exhibit = q.map(|q| KeptContribution { round, member: subject, q });
        self.effects.push_back(StewardEffect::KeepEvidence(Box::new(evidence.clone()), exhibit));
        // Nobody is convicted by its own word: where the accuser is, the steward has found it.
        let accuser = if accusation.accuser == culprit { self.identity.id() } else { accusation.accuser };
        let case =
            Conviction { culprit, subject, round, finding, evidence: evidence.digest(), accuser, detail };
        self.convict_or_charge(case, &evidence);
        // AUDIT-23: agreeing on a lie must be no safer than telling it alone.
        self.examine_second(&evidence);
        // DUTY-10: whom a false verdict let pass is examined itself.
        if finding == FindingKind::FalseAcquittal {
            let of_member = evidence.against_the_acquitted(self.ledger().run());
            of_member.into_iter().for_each(|evidence| self.owe_hearing(accuser, evidence));
        }
    }

    /// An accusation came to nothing so far; of one that could not be decided that is said once.
    fn dismissed(&mut self, accusation: &Allegation, why: String) {
        if accusation.tries == 0 {
            let (accuser, culprit) = (accusation.accuser, accusation.claim.culprit);
            self.tell(Bulletin::Dismissed { accuser, culprit, why });
        }
        // What others bring about the same contribution ends no charge.
        if accusation.owed {
            self.end_charge(accusation);
        }
    }

    /// A charge convicts nobody so far: its author is examined, once.
    fn end_charge(&mut self, accusation: &Allegation) {
        let Allegation { evidence, claim, accuser, .. } = accusation;
        let of_leaves = evidence.transcript().is_none();
        let next =
            self.board.docket().after(self.conductor.ledger(), evidence, accuser).filter(|_| of_leaves);
        match next {
            Some(next) => self.owe_hearing(self.identity.id(), next),
            None if matches!(evidence, Evidence::Recomputation(_)) => {
                // A Recomputation is judged against its author, so culprit and accuser have changed places.
                self.board.strike(claim.round, &claim.subject, &claim.culprit);
            }
            // The hearing of a transcript looked at its verifier, too.
            None => self.board.strike(claim.round, &claim.subject, accuser),
        }
    }

    /// Owes what a verifier has found a hearing.
    pub(super) fn owe_hearing(&mut self, accuser: MemberId, evidence: Evidence) {
        let ledger = self.conductor.ledger();
        let Some(claim) = claim(ledger.manifest(), &evidence).or_bug("what was found says whom it is about")
        else {
            return;
        };
        let fetches = fetches(ledger, &evidence, &claim);
        self.exhibits.suspect(claim.round, claim.subject);
        let digest = evidence.digest();
        let accusation = Allegation { evidence, digest, accuser, claim, owed: true, tries: 0 };
        self.justice.queue.owe(&accusation, fetches);
    }

    /// AUDIT-23: where two have signed a wrong part, the conviction of one has the other examined by the same records.
    pub(super) fn examine_second(&mut self, evidence: &Evidence) {
        for evidence in self.of_other_signers(evidence).into_iter().flatten() {
            let _ = self.accuse(self.identity.id(), evidence);
        }
    }

    /// The same evidence about the others that have signed the same part; none where it is about no part, or its round is
    /// forgotten, so that nobody can be examined for it.
    fn of_other_signers(&self, evidence: &Evidence) -> Option<Vec<Evidence>> {
        let Evidence::Aggregation(part) = evidence else { return None };
        let result = part.result.verify(self.ledger().run()).or_bug("a result that was judged")?;
        let signed = self.ledger().round(result.round)?.signed_results_of(result.part);
        let others = signed.filter(|other| other.claimed_signer() != result.author());
        let evidence = |other: &Signed<PartResult>| Reduction { result: other.clone(), ..part.clone() };
        Some(others.map(|other| Evidence::Aggregation(evidence(other))).collect())
    }

    /// After a restart: who passed by a false verdict may not have been examined yet (DUTY-10).
    pub(super) fn examine_acquitted(&mut self, bans: &[(Ban, Option<Evidence>)]) {
        for (ban, evidence) in bans {
            let run = self.ledger().run();
            let of_member = evidence.as_ref().and_then(|evidence| evidence.against_the_acquitted(run));
            of_member.into_iter().for_each(|evidence| self.owe_hearing(ban.accuser, evidence));
        }
    }

    fn fetch_exhibits(&mut self) {
        let ledger = self.conductor.ledger();
        let owed = self.exhibits.fetch(self.now, ledger, self.board.docket());
        self.effects.extend(owed.into_iter().map(StewardEffect::Exhibit));
    }

    /// Tells the verifiers that waited for a contribution that the steward has it now.
    fn show_obtained(&mut self) {
        for (request, back) in self.board.obtained(self.conductor.ledger(), &self.exhibits) {
            self.effects.push_back(StewardEffect::Post(Notice::Obtained(request)));
            back.into_iter().for_each(|body| self.conductor.propose(body));
        }
    }

    fn write_exhibits(&mut self) {
        let parts = self.exhibits.write(self.now, self.conductor.ledger());
        if !parts.is_empty() {
            self.effects.push_back(StewardEffect::KeepParts { parts, at_once: false });
        }
    }

    /// A contribution was fetched, or why not.
    pub(super) fn exhibited(&mut self, owed: OwedContribution, kept: Result<(), String>) {
        let lost = self.exhibits.fetched(self.now, owed, kept.is_ok());
        if let (true, Err(why)) = (lost, kept) {
            self.tell(Bulletin::Lost(owed.round, owed.member, why));
        }
    }

    /// These parts were to be kept by value, and the lost ones among them could not be.
    pub(super) fn parts_kept(&mut self, owed: Vec<OwedPart>, lost: Vec<OwedPart>) {
        self.exhibits.written(self.now, owed, lost);
    }

    /// A round has ended.
    pub(super) fn forget_exhibits(&mut self) {
        for (round, member) in self.exhibits.forget(self.conductor.ledger()) {
            self.tell(Bulletin::Lost(round, member, "its round is forgotten".into()));
        }
        let (ledger, docket) = (self.conductor.ledger(), self.board.docket());
        let dropped = self.exhibits.drop_needless(ledger, docket);
        let parts = self.exhibits.write_ahead(ledger, docket);
        if !dropped.is_empty() {
            self.effects.push_back(StewardEffect::DropParts(dropped));
        }
        if !parts.is_empty() {
            self.effects.push_back(StewardEffect::KeepParts { parts, at_once: false });
        }
    }

    fn pursue_past(&mut self) {
        let Consequences { measure, out_of_reach, rewind } =
            self.past.pursue(self.conductor.ledger(), self.now, &self.exhibits);
        self.effects.extend(measure.into_iter().map(StewardEffect::Measure));
        for culprit in out_of_reach {
            self.tell(Bulletin::OutOfReach(culprit));
        }
        if let Some(rewind) = rewind {
            self.conductor.propose(Body::Rewind(rewind));
        }
    }

    /// The past of a convict was measured.
    pub(super) fn measured(&mut self, culprit: MemberId, past: Vec<PastRound>) {
        past.iter().flat_map(|past| &past.wrong).for_each(|evidence| self.examine_second(evidence));
        self.past.measured(self.conductor.ledger(), culprit, &past);
        if !past.is_empty() {
            self.tell(Bulletin::Past(culprit, past));
        }
    }

    /// AUDIT-26: the run ends when no case is open.
    fn close_when_settled(&mut self) {
        let ledger = self.conductor.ledger();
        let open = ledger.stage() != Stage::Auditing || self.board.docket().oldest_open(ledger).is_some();
        // What is proposed may be a ban, and something follows from that.
        if open || self.justice.closing || self.conductor.proposes() {
            return;
        }
        let exact = ledger.manifest().profile.is_replayable();
        let (now, patience) = (self.now, u64::from(ledger.manifest().timers.final_audit));
        let overdue = self.conductor.overdue();
        // Counted from the first turn that sees it: otherwise each turn would begin the wait anew.
        let since = overdue.then(|| *self.justice.overdue.get_or_insert(now));
        // Others may always have something more to say, and jurors nothing at all: these have as long again.
        let over = if since.is_some_and(|since| now >= since + patience) {
            !(self.justice.queue.owes_hearings() || exact && self.exhibits.are_open(exact))
        } else {
            let rest = self.justice.at_rest() && !self.past.is_open() && !self.exhibits.are_open(exact);
            rest && (overdue || self.is_judged())
        };
        if over {
            self.justice.closing = true;
            let root = self.ledger().state().root();
            self.conductor.propose(Body::Close(root));
        }
    }

    /// Whether every contribution of the last rounds was judged that counted, or whose author was late (AUDIT-27), as far as
    /// anybody is there to judge. Who lets its audits wait at the end has reason to, and counted before.
    fn is_judged(&self) -> bool {
        let ledger = self.conductor.ledger();
        let last = ledger.rounds().filter(|view| ledger.in_final_audit(view.round()) && view.echoed());
        let mut counted = last.flat_map(|view| {
            let counted =
                view.commitments().filter(|(slot, _)| view.counted(*slot) || view.late().contains(*slot));
            counted.map(|(_, commitment)| (view.round(), commitment.author))
        });
        let judged = |(round, author): (Round, MemberId)| {
            self.board.docket().has_passed(ledger, round, &author) || ledger.is_banned(&author)
        };
        // Without a verifier nobody can judge: waiting would only use up `final_audit`.
        !self.has_verifier() || counted.all(judged)
    }
}

/// A transcript is that of the board, and its verifier came by the sealed admission: the same words signed anew, or beside
/// another record, are no new evidence.
fn require_posted(docket: &Docket, ledger: &Ledger, evidence: &Evidence) -> Result<(), Reject> {
    // What rests on no audit was never posted.
    let Some(transcript) = evidence.transcript() else { return Ok(()) };
    let posted = docket.transcript(ledger, &transcript.request.digest());
    let mut fits = posted.as_ref() == Some(transcript);
    if let Evidence::Verdict(verdict) = evidence {
        let verifier = ledger.member(&transcript.verdict.claimed_signer());
        // DUTY-9: the admission gives the coins that the verdict is judged by.
        fits &= verifier.is_some_and(|verifier| verifier.admitted.as_ref() == Some(&verdict.admit));
    }
    if fits { Ok(()) } else { Err(Reject::Stale("the audit is not the one on the board")) }
}

/// AUDIT-28: a part is reduced again on a verifier's word only where its own coin, on the board, draws a block of it: nobody
/// chooses what the steward computes.
fn require_drawn(
    docket: &Docket,
    ledger: &Ledger,
    evidence: &Evidence,
    accuser: &MemberId,
) -> Result<(), Reject> {
    // Only blocks of parts are drawn.
    let Evidence::Aggregation(part) = evidence else { return Ok(()) };
    let result = part.result.verify(ledger.run())?;
    // Without the round nothing is examined either.
    let Some(view) = ledger.round(result.round) else { return Ok(()) };
    let shown = Reject::Stale("a drawn block is looked at by a coin that was shown");
    let coin = docket.shown_coin(result.round, accuser).ok_or(shown)?;
    let drawn = view.drawn_blocks(accuser, coin, ledger.manifest().audit.blocks_ppm);
    if drawn.contains_key(&result.part) {
        return Ok(());
    }
    Err(Reject::NotEntitled("accuse this aggregator: no block of the part was drawn"))
}

/// AUDIT-29: whether it is a member's own fault that its integers are unavailable: somebody can dial it, or nobody else has
/// signed for some of them.
fn withholds(ledger: &Ledger, round: Round, member: &MemberId) -> bool {
    let can_be_dialled = ledger.member(member).is_some_and(|member| !member.addresses.is_empty());
    let Some(view) = ledger.round(round) else { return can_be_dialled };
    let Some(slot) = view.slot_of(member) else { return can_be_dialled };
    let signed = |part: Part| view.inputs().get(part.index()).is_some_and(|inputs| inputs.contains(slot));
    can_be_dialled || !view.parts_of(slot).all(|(part, _)| signed(part))
}

/// Refuses what need not be examined, before anything is fetched or recomputed because of it:
///
/// - evidence about a round to come, for which nobody can be banned yet;
/// - leaves of a round that is not over, which has no jurors yet;
/// - an audit whose steps do not fit, or that was not its author's to make;
/// - an answer by a state that was not sealed before the named round, or whose round is forgotten.
fn check_evidence(ledger: &Ledger, evidence: &Evidence, claim: &Claim) -> Result<(), Reject> {
    check_steps(ledger.manifest(), evidence)?;
    if claim.round >= ledger.first_round_without() {
        return Err(Reject::Stale("nobody is judged for a round that is still to come"));
    }
    if let Evidence::Answer(call) = evidence {
        let ask = call.ask.verify(ledger.run())?;
        // CALL-7: a state that this ledger has not is one that nobody can compute on, now or later.
        let sealed = ledger.is_state_before(ask.round, &ask.root);
        return if sealed { Ok(()) } else { Err(Reject::Stale("this is not the state before that round")) };
    }
    if let (Evidence::Aggregation(part), Some(view)) = (evidence, ledger.round(claim.round)) {
        return check_reduction(ledger.manifest(), part, view);
    }
    // What messages decide needs no round, and of leaves nothing is judged once theirs is forgotten.
    let Some(view) = ledger.round(claim.round).filter(|_| evidence.is_of_leaves()) else { return Ok(()) };
    if view.results().is_none() {
        return Err(Reject::Stale("leaves are judged once their round is over"));
    }
    // All leaves are for anybody to recompute.
    let Some(transcript) = evidence.transcript() else { return Ok(()) };
    // AUDIT-12: otherwise whoever has coins could audit, and accuse, a member of its choice.
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
    use muster_core::manifest::Profile;
    use muster_core::manifest::fixture::tiny;
    use muster_core::messages::enrol::{Addresses, Enrol, Invitation, InvitationSecret};
    use muster_core::messages::evidence::{Equivocation, Total};
    use muster_core::messages::round::Commit;
    use muster_core::sign::Identity;

    use super::*;
    const OTHER: u8 = 11;
    const CHEAT: u8 = 12;

    fn member(number: u8) -> Identity {
        Identity::from_secret(&[number; 32])
    }

    /// A ledger in its first round, and who seals what comes next.
    fn begun() -> (Ledger, Identity) {
        let (organiser, steward) = (member(1), member(2));
        let manifest = tiny(organiser.id(), steward.id(), 4, 2);
        let mut ledger = Ledger::new(Arc::new(manifest));
        let state = ledger.state().clone();
        seal(&mut ledger, &steward, Body::Open(state));
        for number in [OTHER, CHEAT] {
            let (role, secret) = (Role::Node, InvitationSecret::new([number; 32]));
            let invitation =
                Invitation { role, uses: 1, expires: u64::MAX, key: secret.key(), founder: false };
            let invitation = organiser.sign(ledger.run(), &invitation);
            let invitation = Some(secret.present(ledger.run(), invitation, member(number).id()));
            let enrol =
                Enrol { invitation, addresses: Addresses::default(), coins: None, name: Default::default() };
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

    fn accusation(accuser: u8, evidence: u8) -> Allegation {
        let (culprit, other) = (member(CHEAT), member(OTHER));
        let commit = |root| {
            let commit = Commit {
                round: Round(0),
                head: Digest::default(),
                state: Digest::default(),
                slot: Slot(0),
                seats: 2,
                route: None,
                leaves: 1,
                profile: Profile::Exact,
                loss: 0,
                root: Digest([root; 32]),
            };
            other.sign(RunId(Digest::default()), &commit)
        };
        let evidence = Evidence::Equivocation(Equivocation { first: commit(0), second: commit(evidence) });
        let claim = Claim { culprit: culprit.id(), subject: culprit.id(), round: Round(0) };
        let (digest, accuser) = (evidence.digest(), member(accuser).id());
        Allegation { digest, evidence, accuser, claim, owed: false, tries: 0 }
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
}
