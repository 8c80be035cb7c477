//! Audits of other verifiers, as the board shows them, and those of their passing verdicts that this verifier's coin
//! has it re-execute.

use std::collections::BTreeMap;
use std::sync::Arc;

use muster_core::audit::Judgement;
use muster_core::bug;
use muster_core::bug::OrBug;
use muster_core::coins::rechecks;
use muster_core::contribution::PackedContribution;
use muster_core::ids::{Digest, MemberId, Round, Slot};
use muster_core::ledger::{Ledger, RoundView};
use muster_core::messages::audit::{
    AuditRequest, Finding, Recheck, Recomputation, ResultsSeal, TableOpening, TableSeal, Verdict,
};
use muster_core::messages::evidence::{Evidence, FalseRecomputation, FalseVerdict, Transcript};
use muster_core::messages::wire::Notice;
use muster_core::sign::{Signed, Verified};
use tracing::{info, warn};

use super::{Audits, Done, Key, Stop, Subject, Work, WorkKind};

/// Requests of one audit that are known by name: an honest verifier makes one, and another one where the first became void.
const REQUESTS: usize = 4;

/// Round, slot and verifier of an audit.
type Name = (Round, Slot, MemberId);

/// What others do: one audit for each contribution and verifier.
#[derive(Default)]
pub(super) struct Others {
    audits: BTreeMap<Name, Other>,
    names: BTreeMap<Digest, Name>,
    /// Rechecks of rounds before this one press: half of the time that there is for them has gone by.
    pressing: Round,
    /// The newest round that may hold the next one back.
    held: Round,
}

/// Another verifier's audit.
struct Other {
    target: MemberId,
    /// None where it has only said what all leaves give.
    request: Option<Signed<AuditRequest>>,
    /// How many requests have its name.
    requests: usize,
    table: Option<Signed<TableSeal>>,
    results: Option<Signed<ResultsSeal>>,
    opening: Option<Signed<TableOpening>>,
    passed: bool,
    job: Option<Job>,
}

/// A verdict to be re-executed.
struct Job {
    subject: Arc<Subject>,
    verdict: Digest,
    evidence: Box<Evidence>,
    suspicion: Option<Suspicion>,
}

/// Whom the first path finds guilty: the verdict's author, or the member that it passed; and by which integers.
struct Suspicion {
    suspect: MemberId,
    q: Option<Arc<PackedContribution>>,
}

impl Other {
    fn of(target: MemberId) -> Self {
        let (request, table, results, opening) = (None, None, None, None);
        Self { target, request, requests: 0, table, results, opening, passed: false, job: None }
    }

    /// The re-execution of this verdict; none where a step was not shown before it, or `me` has no say in the round.
    fn job_of(
        &self,
        ledger: &Ledger,
        (round, slot, verifier): Name,
        verdict: &Signed<Verdict>,
        me: &MemberId,
    ) -> Option<Job> {
        // DUTY-8: the word of a verifier that does not remain in the round is not taken.
        let view = ledger.round(round).filter(|view| view.inspectors().contains(me))?;
        let transcript = Transcript {
            freeze: view.freeze()?.clone(),
            request: self.request.clone()?,
            table: self.table.clone()?,
            results: self.results.clone()?,
            opening: self.opening.clone()?,
            verdict: verdict.clone(),
        };
        let admit = ledger.member(&verifier)?.admitted.clone()?;
        let evidence = Box::new(Evidence::Verdict(FalseVerdict { admit, transcript }));
        let subject = Arc::new(Subject::of(ledger, view, slot)?);
        Some(Job { subject, verdict: verdict.digest(), evidence, suspicion: None })
    }
}

impl Others {
    /// Whether another verifier has passed a contribution; the word of one that was banned counts for nothing.
    pub(super) fn passed(&self, ledger: &Ledger, (round, slot): Key) -> bool {
        let first = (round, slot, MemberId([0; 32]));
        let mut of_it = self.audits.range(first..=(round, slot, MemberId([255; 32])));
        of_it.any(|((.., verifier), other)| other.passed && !ledger.is_banned(verifier))
    }

    /// Rounds whose states are still needed.
    pub(super) fn rounds(&self) -> impl Iterator<Item = Round> {
        self.audits.iter().filter(|(_, other)| other.job.is_some()).map(|(name, _)| name.0)
    }

    /// The oldest verdict to be re-executed.
    pub(super) fn next_work(&self, have: &dyn Fn(&Digest) -> bool) -> Option<Work> {
        let mut jobs = self.audits.values().filter_map(|other| other.job.as_ref());
        let job = jobs.find(|job| have(&job.subject.commit.state))?;
        let kind = match &job.suspicion {
            None => WorkKind::Recheck(job.evidence.clone()),
            Some(suspicion) => WorkKind::SecondRecheck(job.evidence.clone(), suspicion.q.clone()),
        };
        Some(Work { subject: job.subject.clone(), kind })
    }

    /// Whether a recheck of a verdict on this round should not be put off any more.
    pub(super) fn presses(&self, round: Round) -> bool {
        round < self.pressing
    }

    /// Whether the next round may wait for what is due in this one.
    pub(super) fn holds(&self, round: Round) -> bool {
        round <= self.held
    }

    pub(super) fn forget(&mut self, oldest: Round, ledger: &Ledger) {
        let held = ledger.rounds().map(RoundView::round).filter(|round| ledger.is_last_call(*round)).max();
        self.held = held.unwrap_or_default();
        self.pressing = Round(ledger.next_round().0.saturating_sub(ledger.audit_window() / 2));
        self.audits.retain(|(round, ..), _| *round >= oldest);
        self.names.retain(|_, (round, ..)| *round >= oldest);
    }

    /// Somebody asks. CHAN-26: a verifier may sign one request in any number of ways, and a steward may show them all.
    fn asked(&mut self, name: Name, target: MemberId, signed: &Signed<AuditRequest>) {
        let other = self.audits.entry(name).or_insert_with(|| Other::of(target));
        other.request.get_or_insert_with(|| signed.clone());
        let request = signed.digest();
        if other.requests < REQUESTS && !self.names.contains_key(&request) {
            other.requests += 1;
            self.names.insert(request, name);
        }
    }

    fn by_request(&mut self, request: &Digest) -> Option<(Name, &mut Other)> {
        let name = *self.names.get(request)?;
        Some((name, self.audits.get_mut(&name)?))
    }
}

impl Audits {
    /// Takes in a step of somebody else's audit. What does not fit shows when it is re-executed.
    pub(super) fn overhear(&mut self, ledger: &Ledger, notice: &Notice) {
        match notice {
            Notice::Request(signed) => {
                if let Some((name, target)) = self.begun(ledger, signed) {
                    self.others.asked(name, target, signed);
                }
            }
            Notice::Table(signed) => {
                let request = signed.verify(self.run).map(|table| table.request).unwrap_or_default();
                if let Some((_, other)) = self.others.by_request(&request)
                    && signed.claimed_signer() == other.target
                {
                    // The first one counts, as on the docket: a later table of the same member belongs to no verdict.
                    other.table.get_or_insert_with(|| signed.clone());
                }
            }
            Notice::Results(signed) => {
                let request = signed.verify(self.run).map(|results| results.request).unwrap_or_default();
                if let Some(((.., verifier), other)) = self.others.by_request(&request)
                    && signed.claimed_signer() == verifier
                {
                    other.results.get_or_insert_with(|| signed.clone());
                }
            }
            Notice::Opening(signed) => {
                let request = signed.verify(self.run).map(|opening| opening.request).unwrap_or_default();
                if let Some((_, other)) = self.others.by_request(&request)
                    && signed.claimed_signer() == other.target
                {
                    other.opening.get_or_insert_with(|| signed.clone());
                }
            }
            Notice::Verdict(signed) => {
                if let Ok(verdict) = signed.verify(self.run) {
                    self.overhear_verdict(ledger, signed, &verdict);
                }
            }
            Notice::Recomputation(signed) => {
                // Its verifier may have been replaced since: what it passed stays passed.
                if let Ok((said, slot)) = ledger.check_drawn_recomputation(signed) {
                    self.overhear_recomputation(ledger, signed, &said, slot);
                }
            }
            Notice::Recheck(signed) if signed.claimed_signer() == self.identity.id() => {
                if let Ok(recheck) = signed.verify(self.run) {
                    let jobs = self.others.audits.values_mut().map(|other| &mut other.job);
                    let done = |job: &&mut Option<Job>| {
                        job.as_ref().is_some_and(|job| job.verdict == recheck.verdict)
                    };
                    jobs.filter(done).for_each(|job| *job = None);
                }
            }
            _ => {}
        }
    }

    /// The audit that another verifier begins with this request, and whom it asks; a stranger's request begins none.
    fn begun(&self, ledger: &Ledger, signed: &Signed<AuditRequest>) -> Option<(Name, MemberId)> {
        let request = signed.verify(self.run).ok()?;
        let slot = ledger.round(request.round)?.slot_of(&request.target)?;
        // Whoever has no coins cannot audit: its requests would only take room here.
        let inspects = |member: &MemberId| ledger.member(member).is_some_and(|m| m.admitted.is_some());
        let author = request.author();
        let another = author != self.identity.id() && inspects(&author);
        another.then_some(((request.round, slot, author), request.target))
    }

    fn overhear_verdict(&mut self, ledger: &Ledger, signed: &Signed<Verdict>, verdict: &Verified<Verdict>) {
        let others = ledger.round(verdict.coin.round).map_or(0, |view| view.verifiers().saturating_sub(1));
        let (drawn, me) = (self.draws(verdict.coin.round, &signed.digest(), others), self.identity.id());
        // This verifier's own, or one whose request was none.
        let Some((name, other)) = self.others.by_request(&verdict.request) else { return };
        let (round, _, verifier) = name;
        // A guilty verdict is heard by the steward in any case (DUTY-10); only a pass is drawn for a recheck.
        if verdict.finding != Finding::Pass || verdict.author() != verifier || other.passed {
            return;
        }
        other.passed = true;
        if !drawn {
            // Nobody needs its steps here; with a tolerance they are long.
            (other.table, other.results, other.opening) = (None, None, None);
            return;
        }
        if verdict.coin.round == round {
            other.job = other.job_of(ledger, name, signed, &me);
        }
    }

    /// Another verifier has recomputed every leaf of a contribution; what it passes is re-executed like a verdict.
    fn overhear_recomputation(
        &mut self,
        ledger: &Ledger,
        signed: &Signed<Recomputation>,
        said: &Verified<Recomputation>,
        slot: Slot,
    ) {
        let me = self.identity.id();
        if said.author() == me || said.finding != Finding::Pass {
            return;
        }
        let Some(view) = ledger.round(said.round).or_bug("the round of a word that was checked") else {
            return;
        };
        let drawn = self.draws(said.round, &signed.digest(), view.verifiers().saturating_sub(1));
        let name = (said.round, slot, said.author());
        let other = self.others.audits.entry(name).or_insert_with(|| Other::of(said.target));
        if std::mem::replace(&mut other.passed, true) || !drawn || !view.inspectors().contains(&me) {
            return;
        }
        let found = view.freeze().cloned().zip(Subject::of(ledger, view, slot));
        let Some((freeze, subject)) = found.or_bug("the frozen contribution that was recomputed") else {
            return;
        };
        let evidence = FalseRecomputation { freeze, recomputation: signed.clone() };
        let evidence = Box::new(Evidence::Recomputation(evidence));
        let job = Job { subject: Arc::new(subject), verdict: signed.digest(), evidence, suspicion: None };
        other.job = Some(job);
    }

    /// DUTY-7: the coin is one that nobody sees as long as verdicts on this round are taken.
    fn draws(&self, round: Round, verdict: &Digest, others: usize) -> bool {
        // A secret coin, not a public hash: the board is in no ledger, and the last to commit steers R_t.
        let later = recheck_round(round, self.manifest.retention.contributions);
        let coin = self.coins.node(later);
        others > 0
            && coin.is_some_and(|coin| rechecks(&coin, verdict, self.manifest.audit.recheck_ppm, others))
    }

    /// A verdict was re-executed, on the first path or the second one.
    pub(super) fn rechecked(&mut self, work: &Work, done: Done) -> Result<(), Stop> {
        let (evidence, doubted) = match &work.kind {
            WorkKind::Recheck(evidence) => (evidence, false),
            WorkKind::SecondRecheck(evidence, _) => (evidence, true),
            kind => {
                bug!("the re-execution of a verdict; found: {kind:?}");
                return Ok(());
            }
        };
        let mut jobs = self.others.audits.values_mut().map(|other| &mut other.job);
        let of_work = |job: &&mut Option<Job>| job.as_ref().is_some_and(|job| job.evidence == *evidence);
        let taken = jobs.find(of_work).and_then(|place| Some((place.take()?, place)));
        // Its round was forgotten meanwhile, or the board shows what an earlier process has said of it.
        let Some((mut job, place)) = taken else { return Ok(()) };
        let (round, target) = (work.subject.commit.round, work.subject.author);
        match (done, doubted) {
            (Done::Suspicion(suspect, q), false) => {
                job.suspicion = Some(Suspicion { suspect, q });
                *place = Some(job);
            }
            // Each path would blame another one: nobody is accused on the word of one.
            (Done::Opinion(Judgement::Guilty { culprit, .. }), true)
                if job.suspicion.as_ref().is_none_or(|suspicion| suspicion.suspect != culprit) =>
            {
                info!("round {round}: two code paths find different ones guilty of the verdict on {target}");
            }
            (Done::Opinion(Judgement::Guilty { culprit, finding, detail, .. }), true) => {
                warn!("round {round}: {culprit} is guilty, {}: {detail}", finding.words());
                self.tally.guilty += 1;
                let evidence = match *job.evidence {
                    // The verdict stands, the table that it passed does not.
                    Evidence::Verdict(FalseVerdict { transcript, .. }) if culprit == target => {
                        Box::new(Evidence::Audit(transcript))
                    }
                    evidence => Box::new(evidence),
                };
                self.accuse_of(culprit, evidence);
            }
            (Done::Opinion(Judgement::NotGuilty(_)), false) => {
                self.duty.rechecks += 1;
                let recheck = self.identity.sign(self.run, &Recheck { verdict: job.verdict });
                self.say(round, Notice::Recheck(recheck));
            }
            // TOL-8: figures between what two honest machines compute are nobody's fault.
            (Done::Opinion(Judgement::NotGuilty(why)), true)
                if self.manifest.profile.may_split_opinions() =>
            {
                info!("round {round}: the verdict on {target} is too near to the limit to contest: {why}");
            }
            (Done::Opinion(Judgement::NotGuilty(why)), true) => {
                return Err(Stop::Faulty(format!(
                    "round {round}: one code path finds the verdict on {target} false, another one does not ({why}): this \
                     machine computes wrongly, and nobody is accused"
                )));
            }
            (other, _) => info!("round {round}: the verdict on {target} could not be re-executed: {other:?}"),
        }
        Ok(())
    }
}

/// The round whose node coin draws rechecks of verdicts on this one: it is shown after this one is forgotten.
pub fn recheck_round(round: Round, contributions: u32) -> Round {
    Round(round.0.saturating_add(contributions.max(1)).saturating_add(1))
}

#[cfg(test)]
mod tests {
    use muster_core::ids::RunId;
    use muster_core::sign::Identity;

    use super::*;

    #[test]
    fn chan_26_one_audit_has_few_requests_whatever_its_verifier_signs() {
        let (run, verifier) = (RunId(Digest::default()), Identity::from_secret(&[1; 32]));
        let (target, mut others) = (MemberId([2; 32]), Others::default());
        let request = |number: u8| {
            let freeze = Digest([number; 32]);
            verifier.sign(run, &AuditRequest { round: Round(3), freeze, target, coin: None })
        };
        for slot in [0, 1] {
            for number in (0..100).chain(0..100) {
                let number = number + 100 * slot;
                others.asked((Round(3), Slot(slot.into()), verifier.id()), target, &request(number));
            }
        }
        assert_eq!(others.names.len(), 2 * REQUESTS);
        assert!(others.by_request(&request(0).digest()).is_some(), "the first one stays");
    }
}
