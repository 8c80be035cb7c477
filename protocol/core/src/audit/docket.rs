//! The steward's docket: which audits are due and open, whose turn it is, and who has not done what it owes.
//!
//! A due audit is a *case*. It is closed by what the ledger seals, and by nothing else: a credit, a ban, or an idle
//! verifier (AUDIT-26). [`Docket::open_cases`] lists the others; no round that has one is forgotten.

mod case;

use std::collections::{BTreeMap, BTreeSet};

use case::{Case, Reached, Turn, Word};

use super::roster::{Counts, Roster, Step};
use super::steps::{Judged, Requested};
use super::{claim, probe};
use crate::coins::{draw, drawn_leaves};
use crate::error::Reject;
use crate::ids::{Digest, Height, MemberId, Round, Slot};
use crate::ledger::{Ledger, RoundView, Standing};
use crate::manifest::Profile;
use crate::messages::audit::{
    AuditRequest, Duty, Finding, FindingKind, Recheck, Recomputation, ResultsSeal, TableOpening, TableSeal,
    Verdict, Withheld,
};
use crate::messages::evidence::{Evidence, FalseRecomputation, FalseVerdict, Total, Transcript};
use crate::messages::record::{Body, Credit, Idle};
use crate::messages::wire::Notice;
use crate::sign::{Signed, Verified};

/// Open audits kept at most; the oldest settled ones go first.
const CASES: usize = 65_536;
/// Times that a verifier may say of one audit that it lacks the integers.
const WITHHELD: u8 = 3;

/// A due audit, or the coin that tells which are due, that nothing sealed has closed yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenCase {
    /// Of which round.
    pub round: Round,
    /// Whose contribution; none for a coin.
    pub target: Option<MemberId>,
    /// Whose case it is.
    pub verifier: MemberId,
    /// What it waits for.
    pub waits_for: WaitsFor,
}

/// What a verifier's finding against a member rests on.
#[derive(Clone, Copy, Debug)]
enum Charge {
    /// An audit, by the name of its request.
    Verdict(Digest),
    /// All leaves.
    Recomputation,
}

/// What an open case waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitsFor {
    /// The audited member: its table, or the opening of it.
    Member,
    /// The verifier: its coin, its next step, or all leaves recomputed.
    Verifier,
    /// The steward, which examines what the verifier has found.
    Judgement,
}

/// The audits that the steward has seen, in order of their steps.
#[derive(Default)]
pub struct Docket {
    cases: BTreeMap<Digest, Case>,
    /// Requests by verifier, round and target.
    asked: BTreeMap<(MemberId, Round, MemberId), Digest>,
    /// Contributions that have passed, and by whose verdict.
    passed: BTreeMap<(Round, MemberId), MemberId>,
    /// What verifiers say of contributions of which they have recomputed every leaf.
    recomputed: BTreeMap<(Round, MemberId, MemberId), (Signed<Recomputation>, Finding)>,
    /// Contributions that a verifier finds guilty, and the verifier, until that has led to a ban or to nothing.
    charged: BTreeMap<(Round, MemberId, MemberId), Charge>,
    /// Who has re-executed which verdict.
    rechecked: BTreeSet<(Round, Digest, MemberId)>,
    roster: Roster,
    /// When the turns of members began that have the word in some audit: one each, that begins anew with every step they take.
    turns: BTreeMap<MemberId, Turn>,
    /// Whether what is posted was taken before, by an earlier process.
    recalling: bool,
    /// Height of the ledger that the roster has taken in; none when it has to look again.
    seen: Option<Height>,
    credits: Vec<Credit>,
}

impl Docket {
    /// Takes the next step of an audit. Gives what is to be sealed because of it.
    ///
    /// # Errors
    /// [`Reject`] when the step is out of order, not by its party, or does not fit what was sealed.
    pub fn post(&mut self, now: u64, ledger: &Ledger, notice: &Notice) -> Result<Option<Body>, Reject> {
        match notice {
            Notice::Request(signed) => self.request(now, ledger, signed),
            Notice::Table(signed) => self.table(ledger, signed),
            Notice::Results(signed) => self.results(now, ledger, signed),
            Notice::Opening(signed) => self.opening(ledger, signed),
            Notice::Verdict(signed) => self.verdict(ledger, signed),
            Notice::Duty(signed) => self.duty(ledger, signed),
            Notice::Recheck(signed) => self.recheck(ledger, signed),
            Notice::Withheld(signed) => self.withheld(now, ledger, signed),
            Notice::Recomputation(signed) => self.recomputation(ledger, signed),
            _ => Err(Reject::Rule("the docket takes audits")),
        }
    }

    /// Takes a step again that was taken before, by an earlier process: by whoever was entitled to it then.
    ///
    /// # Errors
    /// [`Reject`] as by [`Docket::post`].
    pub fn recall(&mut self, now: u64, ledger: &Ledger, notice: &Notice) -> Result<Option<Body>, Reject> {
        self.recalling = true;
        let taken = self.post(now, ledger, notice);
        (self.recalling, self.seen) = (false, None);
        taken
    }

    /// Silences that are due: audited members whose turn has lasted longer than the run's patience, or as many rounds as
    /// AUDIT-8 gives them. One for each member, about the oldest contribution that it owes a word about, as no second one is
    /// sealed.
    pub fn silences(&mut self, now: u64, ledger: &Ledger) -> Vec<Body> {
        let mut oldest: BTreeMap<MemberId, &Case> = BTreeMap::new();
        // Whoever is gone, or silent already, has no turn; it begins anew when the member is back.
        let waiting = self.cases.values().filter(|case| {
            let AuditRequest { round, target, .. } = &**case.request();
            let taken = ledger.is_taken_over(*round, target);
            case.word() == Word::Member && !taken && owes_answer(ledger, case)
        });
        for case in waiting.filter(|case| is_present(ledger, &case.request().target)) {
            let known = oldest.entry(case.request().target).or_insert(case);
            if case.request().round < known.request().round {
                *known = case;
            }
        }
        self.turns.retain(|member, _| oldest.contains_key(member));
        let mut silences = Vec::new();
        for (member, case) in oldest {
            let turn = self.turns.entry(member).or_insert(Turn::at(now, ledger));
            if turn.is_over(now, ledger) {
                *turn = Turn::at(now, ledger);
                silences.push(Body::Silence(case.requested.signed().clone()));
            }
        }
        silences
    }

    /// Takes in what the ledger has by now, and gives the verifiers that are idle (DUTY-4).
    pub fn idles(&mut self, now: u64, ledger: &Ledger) -> Vec<Body> {
        self.look(ledger);
        let (asked, cases) = (&self.asked, &self.cases);
        let step = |round, verifier: &MemberId, target: &MemberId| {
            owed_step(asked, cases, ledger, (round, verifier, target))
        };
        let idle = self.roster.idle(now, ledger, &step);
        let mut bodies = Vec::new();
        for (verifier, round, much) in idle {
            let idle = Idle { verifier, round };
            if ledger.check_idle(&idle).is_ok() {
                self.roster.replaced(verifier, much);
                bodies.push(Body::Idle(idle));
            }
        }
        bodies
    }

    /// Takes in what the ledger and the coins have made due.
    fn look(&mut self, ledger: &Ledger) {
        if self.seen != Some(ledger.height()) {
            let passed = |round, member: &MemberId| has_passed(&self.passed, ledger, round, member);
            self.roster.update(ledger, &passed);
            self.seen = Some(ledger.height());
            self.forget(ledger);
        }
    }

    /// When [`Docket::silences`] or [`Docket::idles`] may next have something.
    pub fn timeout(&self, ledger: &Ledger) -> Option<u64> {
        let over = self.turns.values().map(|turn| turn.timeout(ledger)).min();
        over.into_iter().chain(self.roster.timeout()).min()
    }

    /// The cases that nothing sealed has closed yet, in order of rounds (AUDIT-26). [`Docket::idles`] must have seen the
    /// ledger as it is.
    pub fn open_cases<'a>(&'a self, ledger: &'a Ledger) -> impl Iterator<Item = OpenCase> + 'a {
        let rounds = ledger.rounds().filter(|view| view.auditable());
        rounds.flat_map(move |view| {
            let coins = self.roster.unshown(view).map(move |verifier| OpenCase {
                round: view.round(),
                target: None,
                verifier,
                waits_for: WaitsFor::Verifier,
            });
            coins.chain(self.open_in(ledger, view))
        })
    }

    /// The oldest round with an open case.
    pub fn oldest_open(&self, ledger: &Ledger) -> Option<Round> {
        self.open_cases(ledger).map(|case| case.round).next()
    }

    fn open_in<'a>(&'a self, ledger: &'a Ledger, view: &'a RoundView) -> impl Iterator<Item = OpenCase> + 'a {
        view.commitments().filter_map(move |(slot, commitment)| {
            let (round, target) = (view.round(), commitment.author);
            let open = |verifier, waits_for| OpenCase { round, target: Some(target), verifier, waits_for };
            if ledger.is_banned(&target) {
                return None;
            }
            if self.is_charged(ledger, round, &target) {
                let verifier = self.chargers(ledger, round, &target).next()?;
                return Some(open(verifier, WaitsFor::Judgement));
            }
            let verifier = self.roster.owes(round, slot)?;
            if owed_step(&self.asked, &self.cases, ledger, (round, &verifier, &target)).is_some() {
                return Some(open(verifier, WaitsFor::Verifier));
            }
            is_present(ledger, &target).then(|| open(verifier, WaitsFor::Member))
        })
    }

    /// Whether a verifier that is not banned finds a contribution guilty, and nobody has decided yet. Where there is a
    /// tolerance, jurors that say nothing would hold up everybody: there no round waits for them.
    fn is_charged(&self, ledger: &Ledger, round: Round, target: &MemberId) -> bool {
        let open = !ledger.is_banned(target) && self.chargers(ledger, round, target).next().is_some();
        open && ledger.manifest().profile == Profile::Exact
    }

    /// Verifiers that find a contribution guilty, and are not banned for it.
    fn chargers<'a>(
        &'a self,
        ledger: &'a Ledger,
        round: Round,
        target: &MemberId,
    ) -> impl Iterator<Item = MemberId> + 'a {
        let all = (round, *target, MemberId([0; 32]))..=(round, *target, MemberId([255; 32]));
        let verifiers = self.charged.range(all).map(|((.., verifier), _)| *verifier);
        verifiers.filter(|verifier| !ledger.is_banned(verifier))
    }

    /// What verifiers find guilty and nobody has decided yet, in order of rounds: the evidence to examine (DUTY-10).
    pub fn charges(&self, ledger: &Ledger) -> Vec<(MemberId, Evidence)> {
        let banned = |member: &MemberId| ledger.is_banned(member);
        let open = self.charged.iter().filter(|((_, target, by), _)| !banned(target) && !banned(by));
        let charges = open.filter_map(|((round, target, verifier), charge)| {
            Some((*verifier, self.charge(ledger, (*round, target), *charge)?))
        });
        charges.collect()
    }

    fn charge(
        &self,
        ledger: &Ledger,
        (round, target): (Round, &MemberId),
        charge: Charge,
    ) -> Option<Evidence> {
        match charge {
            Charge::Verdict(request) => self.transcript(ledger, &request).map(Evidence::Audit),
            Charge::Recomputation => {
                let freeze = ledger.round(round)?.freeze()?.clone();
                Some(Evidence::Total(Total { freeze, culprit: *target }))
            }
        }
    }

    /// What to examine after a charge by a verifier that convicts nobody: the verifier itself (DUTY-10).
    pub fn after(&self, ledger: &Ledger, charge: &Evidence, verifier: &MemberId) -> Option<Evidence> {
        match charge {
            Evidence::Audit(transcript) => {
                let (admit, transcript) = (ledger.member(verifier)?.admitted.clone()?, transcript.clone());
                Some(Evidence::Verdict(FalseVerdict { admit, transcript }))
            }
            Evidence::Total(total) => {
                let round = claim(ledger.manifest(), charge).ok()?.round;
                let (recomputation, _) = self.recomputed.get(&(round, total.culprit, *verifier))?;
                let (freeze, recomputation) = (total.freeze.clone(), recomputation.clone());
                Some(Evidence::Recomputation(FalseRecomputation { freeze, recomputation }))
            }
            _ => None,
        }
    }

    /// Whether a verifier has signed that a contribution is wrong, and nobody has decided yet.
    pub fn has_charged(&self, verifier: &MemberId, round: Round, target: &MemberId) -> bool {
        self.charged.contains_key(&(round, *target, *verifier))
    }

    /// Neither the member nor this accuser could be convicted: what is missing is missing for good.
    pub fn dismiss(&mut self, round: Round, target: &MemberId, verifier: &MemberId) {
        self.charged.remove(&(round, *target, *verifier));
    }

    /// What each verifier was to do, and has done.
    pub fn counts(&self) -> &BTreeMap<MemberId, Counts> {
        self.roster.counts()
    }

    /// The audit of a request, once it has a verdict.
    pub fn transcript(&self, ledger: &Ledger, request: &Digest) -> Option<Transcript> {
        let case = self.cases.get(request)?;
        let freeze = ledger.round(case.request().round)?.freeze()?.clone();
        Some(case.judged()?.transcript(freeze))
    }

    /// Whether a verifier that was not banned has passed a contribution.
    pub fn has_passed(&self, ledger: &Ledger, round: Round, member: &MemberId) -> bool {
        has_passed(&self.passed, ledger, round, member)
    }

    /// Contributions whose integers a verifier waits for (TOL-12).
    pub fn wanted(&self) -> BTreeSet<(Round, MemberId)> {
        let wanted = self.cases.values().filter(|case| case.lacking);
        wanted.map(|case| (case.request().round, case.request().target)).collect()
    }

    /// The integers of a contribution are to be had of the steward: gives the requests of those that waited for them,
    /// and what is to be sealed because of it.
    pub fn obtained(
        &mut self,
        ledger: &Ledger,
        round: Round,
        member: &MemberId,
    ) -> Vec<(Digest, Option<Body>)> {
        let standing = ledger.member(member).map(|member| member.standing);
        let waits =
            |case: &Case| case.lacking && case.request().round == round && case.request().target == *member;
        self.turns.remove(member);
        let waiting = self.cases.iter_mut().filter(|(_, case)| waits(case));
        let back = |name| (standing == Some(Standing::Silent(name))).then_some(Body::Answered(name));
        let over = |(name, case): (&Digest, &mut Case)| {
            case.lacking = false;
            (*name, back(*name))
        };
        waiting.map(over).collect()
    }

    /// What the verdicts since the last call give their members credit for.
    pub fn credits(&mut self) -> Vec<Credit> {
        std::mem::take(&mut self.credits)
    }

    /// Drops what is about rounds that the ledger has forgotten, and audits of verifiers that may not go on with them:
    /// nobody owes these an answer (DUTY-6).
    fn forget(&mut self, ledger: &Ledger) {
        self.cases.retain(|_, case| {
            let request = case.request();
            let Some(view) = ledger.round(request.round) else { return false };
            let slot = view.slot_of(&request.target);
            let goes_on = |slot| ledger.may_inspect(view, slot, &request.author(), request.coin.is_none());
            case.settled() || slot.is_some_and(goes_on)
        });
        let Some(oldest) = ledger.rounds().next().map(RoundView::round) else { return };
        let cases = &self.cases;
        self.asked.retain(|(_, round, _), name| *round >= oldest && cases.contains_key(name));
        self.passed.retain(|(round, _), _| *round >= oldest);
        self.recomputed.retain(|(round, ..), _| *round >= oldest);
        self.charged.retain(|(round, ..), _| *round >= oldest);
        self.rechecked.retain(|(round, ..)| *round >= oldest);
    }

    fn duty(&mut self, ledger: &Ledger, signed: &Signed<Duty>) -> Result<Option<Body>, Reject> {
        let (verifier, coin) = ledger.check_duty(signed)?;
        require(self.roster.coin(coin.round(), &verifier).is_none(), "a coin is shown once")?;
        self.roster.shown(verifier, coin);
        self.seen = None;
        Ok(None)
    }

    fn recheck(&mut self, ledger: &Ledger, signed: &Signed<Recheck>) -> Result<Option<Body>, Reject> {
        let recheck = signed.verify(ledger.run())?;
        if !ledger.is_active_verifier(&recheck.author()) {
            return Err(Reject::NotEntitled("recheck: only verifiers do"));
        }
        let (round, author) =
            self.passing(&recheck.verdict).ok_or(Reject::Stale("no such verdict is known"))?;
        let view = ledger.round(round).ok_or(Reject::Stale("the audited round is not remembered"))?;
        if author == recheck.author() || !view.inspectors().contains(&recheck.author()) {
            return Err(Reject::NotEntitled("recheck: only another verifier of the round does"));
        }
        let fresh = self.rechecked.insert((round, recheck.verdict, recheck.author()));
        require(fresh, "a verifier rechecks a verdict once")?;
        self.roster.rechecked(recheck.author());
        Ok(None)
    }

    /// Round and author of a passing verdict or recomputation, by its digest.
    fn passing(&self, name: &Digest) -> Option<(Round, MemberId)> {
        let verdicts = self.cases.values().filter_map(|case| Some((case, case.judged()?)));
        let passing = |judged: &Judged| judged.verdict().finding == Finding::Pass;
        let mut named = verdicts.filter(|(_, judged)| passing(judged) && judged.signed().digest() == *name);
        let of_verdict = named.next().map(|(case, _)| (case.request().round, case.request().author()));
        of_verdict.or_else(|| {
            let mut said = self.recomputed.iter();
            let passing = |(signed, finding): &(Signed<Recomputation>, Finding)| {
                *finding == Finding::Pass && signed.digest() == *name
            };
            said.find(|(_, said)| passing(said)).map(|((round, _, verifier), _)| (*round, *verifier))
        })
    }

    fn request(
        &mut self,
        now: u64,
        ledger: &Ledger,
        signed: &Signed<AuditRequest>,
    ) -> Result<Option<Body>, Reject> {
        let request = match self.recalling {
            true => ledger.check_drawn_request(signed)?.0,
            false => ledger.check_request(signed)?,
        };
        let key = (request.author(), request.round, request.target);
        let said = self.recomputed.contains_key(&(request.round, request.target, request.author()));
        if said || self.asked.contains_key(&key) {
            return Err(Reject::Rule("a verifier audits a contribution once"));
        }
        require(
            self.recalling || !self.has_passed(ledger, request.round, &request.target),
            "a contribution that has passed is not audited again",
        )?;
        if self.cases.len() >= CASES {
            // What it finds guilty is still to be examined.
            let over = |case: &Case| {
                let AuditRequest { round, target, .. } = **case.request();
                case.settled() && !self.charged.contains_key(&(round, target, case.request().author()))
            };
            let oldest =
                self.cases.iter().filter(|(_, case)| over(case)).min_by_key(|(_, case)| case.request().round);
            let oldest = oldest.map(|(name, _)| *name).ok_or(Reject::Rule("too many audits are open"))?;
            self.cases.remove(&oldest);
        }
        let target = request.target;
        let requested = requested(ledger, signed, request)?;
        let name = requested.name();
        self.asked.insert(key, name);
        let case = Case::new(requested);
        self.begin_turn(now, ledger, target);
        self.cases.insert(name, case);
        Ok(None)
    }

    fn table(&mut self, ledger: &Ledger, signed: &Signed<TableSeal>) -> Result<Option<Body>, Reject> {
        let table = signed.verify(ledger.run())?;
        if let Some(back) = self.back_too_late(ledger, &table.request, &table.author()) {
            return Ok(Some(back));
        }
        let case = self.case(&table.request)?;
        let Reached::Request = &case.reached else { return Err(Reject::Rule("a table is sealed once")) };
        case.reached = Reached::Table(case.requested.seal(signed)?);
        self.turns.remove(&table.author());
        Ok(None)
    }

    /// AUDIT-8: whose leaves were recomputed meanwhile need not be compared with anything it says, but it is back.
    fn back_too_late(&self, ledger: &Ledger, request: &Digest, member: &MemberId) -> Option<Body> {
        let case =
            self.cases.get(request).filter(|case| case.recomputed && case.request().target == *member)?;
        let standing = ledger.member(&case.request().target).map(|member| member.standing);
        (standing == Some(Standing::Silent(*request))).then_some(Body::Answered(*request))
    }

    fn results(
        &mut self,
        now: u64,
        ledger: &Ledger,
        signed: &Signed<ResultsSeal>,
    ) -> Result<Option<Body>, Reject> {
        let case = self.case(&signed.verify(ledger.run())?.request)?;
        case.reached = match &case.reached {
            Reached::Request => return Err(Reject::Rule("results follow a sealed table")),
            Reached::Table(table) => Reached::Results(table.answer(signed)?),
            _ => return Err(Reject::Rule("results are sealed once")),
        };
        let target = case.request().target;
        self.begin_turn(now, ledger, target);
        Ok(None)
    }

    fn opening(&mut self, ledger: &Ledger, signed: &Signed<TableOpening>) -> Result<Option<Body>, Reject> {
        let opening = signed.verify(ledger.run())?;
        let name = opening.request;
        if let Some(back) = self.back_too_late(ledger, &name, &opening.author()) {
            return Ok(Some(back));
        }
        let case = self.case(&name)?;
        let results = match &case.reached {
            Reached::Results(results) => results,
            Reached::Opening(_) | Reached::Verdict(_) => {
                return Err(Reject::Rule("a table is opened once"));
            }
            _ => return Err(Reject::Rule("a table is opened after the results are sealed")),
        };
        let probe = probe(ledger.manifest(), case.requested.signed(), case.request());
        case.reached = Reached::Opening(results.open(signed, &probe)?.0);
        self.turns.remove(&opening.author());
        let owed = ledger.member(&opening.author()).map(|member| member.standing);
        Ok((owed == Some(Standing::Silent(name))).then_some(Body::Answered(name)))
    }

    /// From here on it is the member's turn to let somebody have its integers.
    fn withheld(
        &mut self,
        now: u64,
        ledger: &Ledger,
        signed: &Signed<Withheld>,
    ) -> Result<Option<Body>, Reject> {
        let withheld = signed.verify(ledger.run())?;
        let case = self.case(&withheld.request)?;
        require(withheld.author() == case.request().author(), "the verifier that asked says what it lacks")?;
        let open = matches!(case.reached, Reached::Opening(_));
        require(open, "integers are asked for once the table is open")?;
        require(ledger.manifest().profile != Profile::Exact, "in exact all leaves stand for the integers")?;
        let again = !case.lacking && case.complaints < WITHHELD;
        require(again, "a verifier says a few times at most what it lacks")?;
        case.lacking = true;
        case.complaints += 1;
        let target = case.request().target;
        self.begin_turn(now, ledger, target);
        Ok(None)
    }

    fn verdict(&mut self, ledger: &Ledger, signed: &Signed<Verdict>) -> Result<Option<Body>, Reject> {
        let case = self.case(&signed.verify(ledger.run())?.request)?;
        let Reached::Opening(opened) = &case.reached else {
            return Err(Reject::Rule("a verdict follows an opened table"));
        };
        let judged = opened.judge(signed)?;
        check_draw(ledger, &case.requested, &judged)?;
        let verdict = judged.verdict().clone();
        let about_the_member = match verdict.finding {
            Finding::Pass => true,
            Finding::Guilty(FindingKind::FalseAccusation | FindingKind::FalseAcquittal) => false,
            Finding::Guilty(_) => true,
        };
        require(about_the_member, "a verdict is about the audited member")?;
        let slot = case.requested.slot();
        (case.reached, case.lacking) = (Reached::Verdict(Box::new(judged)), false);
        let credit = Credit {
            verdict: signed.digest(),
            round: case.request().round,
            member: case.request().target,
            verifier: verdict.author(),
            leaves: u32::try_from(verdict.results.len()).unwrap_or(u32::MAX),
        };
        let charge = Charge::Verdict(verdict.request);
        self.found(credit, slot, (verdict.finding, charge));
        Ok(None)
    }

    /// A verifier that has recomputed every leaf says what they give: the audit is over, however far it had come.
    fn recomputation(
        &mut self,
        ledger: &Ledger,
        signed: &Signed<Recomputation>,
    ) -> Result<Option<Body>, Reject> {
        // AUDIT-25
        let (said, slot) = match self.recalling {
            true => ledger.check_drawn_recomputation(signed)?,
            false => ledger.check_recomputation(signed)?,
        };
        // What an earlier process took is complete first: until then it would seem due from whoever inspects it by now.
        if !self.recalling {
            self.look(ledger);
        }
        let (round, target, verifier) = (said.round, said.target, said.author());
        let view = ledger.round(round).ok_or(Reject::Stale("the audited round is not remembered"))?;
        // What it passed while it was its own to audit stays passed: whoever inspects it by now has seen that, and owes nothing.
        if said.finding == Finding::Pass && !self.recalling {
            let due = self.roster.owes(round, slot) == Some(verifier);
            require(due, "a verifier recomputes what is its own to audit, and has no verdict")?;
            // Who passes the others shows figures of its own, in a verdict.
            require(
                ledger.is_taken_over(round, &target),
                "a recomputation passes only whoever did not answer",
            )?;
        }
        let first = !self.recomputed.contains_key(&(round, target, verifier));
        require(first, "a verifier says once what all leaves give")?;
        let open = self.recalling || !self.has_passed(ledger, round, &target);
        require(open, "what has passed is not found wrong any more")?;
        if let Some(case) =
            self.asked.get(&(verifier, round, target)).and_then(|name| self.cases.get_mut(name))
        {
            (case.recomputed, case.lacking) = (true, false);
        }
        self.recomputed.insert((round, target, verifier), (signed.clone(), said.finding));
        let leaves = view.commitment(slot).map_or(0, |commitment| commitment.commit.leaves);
        let leaves = drawn_leaves(leaves, ledger.manifest().audit.leaves);
        let credit = Credit { verdict: signed.digest(), round, member: target, verifier, leaves };
        self.found(credit, slot, (said.finding, Charge::Recomputation));
        Ok(None)
    }

    /// A verifier has said what it finds; the credit is what a pass is worth.
    fn found(&mut self, credit: Credit, slot: Slot, (finding, charge): (Finding, Charge)) {
        let Credit { round, member, verifier, .. } = credit;
        if finding == Finding::Pass {
            self.passed.insert((round, member), verifier);
            self.credits.push(credit);
        } else {
            self.charged.insert((round, member, verifier), charge);
        }
        // Who inspects it by now owes it still, whatever one before it finds.
        if self.roster.inspects(round, slot).is_none_or(|inspector| inspector == verifier) {
            self.roster.judged(verifier, member, (round, slot));
        }
    }

    /// A member has the word, unless it has one already: its turns follow each other.
    fn begin_turn(&mut self, now: u64, ledger: &Ledger, member: MemberId) {
        self.turns.entry(member).or_insert(Turn::at(now, ledger));
    }

    fn case(&mut self, request: &Digest) -> Result<&mut Case, Reject> {
        let case = self.cases.get_mut(request).ok_or(Reject::Stale("no such audit is open"))?;
        if case.settled() { Err(Reject::Stale("the audit is over")) } else { Ok(case) }
    }
}

/// A pass counts for nothing once its verifier was banned (DUTY-3).
fn has_passed(
    passed: &BTreeMap<(Round, MemberId), MemberId>,
    ledger: &Ledger,
    round: Round,
    member: &MemberId,
) -> bool {
    let said = passed.get(&(round, *member)).is_some_and(|verifier| !ledger.is_banned(verifier));
    // A steward that was restarted has the ledger's word for it.
    said || ledger.is_credited(round, member)
}

/// The first step of an audit of what is frozen.
fn requested(
    ledger: &Ledger,
    signed: &Signed<AuditRequest>,
    request: Verified<AuditRequest>,
) -> Result<Requested, Reject> {
    let view = ledger.round(request.round).ok_or(Reject::Stale("the audited round is not remembered"))?;
    let commitment = view.slot_of(&request.target).and_then(|slot| view.commitment(slot));
    let (commitment, freeze) =
        commitment.zip(view.freeze_digest()).ok_or(Reject::Rule("only a frozen contribution is audited"))?;
    Requested::new(ledger.run(), signed, request, &commitment.commit, &freeze)
}

/// The leaves of a verdict are those that the registered coin draws from the sealed table.
fn check_draw(ledger: &Ledger, requested: &Requested, judged: &Judged) -> Result<(), Reject> {
    let verdict = judged.verdict();
    let terms = ledger.member(&verdict.author()).and_then(|member| member.coins.as_ref());
    let coin = verdict.coin.verify(terms.ok_or(Reject::NotEntitled("audit: it has no coins"))?)?;
    let most = ledger.manifest().audit.leaves;
    let drawn = draw(&coin, &requested.request().freeze, &judged.table_seal(), requested.leaves(), most);
    let shown: Vec<u32> = verdict.results.iter().map(|result| result.position).collect();
    require(shown == drawn, "a verdict is about the leaves that its coin draws")
}

/// Whether the ledger would take the silence of the audited member: of an old round, or to a verifier that was replaced, nobody
/// owes an answer any more.
fn owes_answer(ledger: &Ledger, case: &Case) -> bool {
    let AuditRequest { round, target, coin, .. } = &**case.request();
    let slot = ledger.round(*round).and_then(|view| Some((view, view.slot_of(target)?)));
    let inspects = |(view, slot)| ledger.may_inspect(view, slot, &case.request().author(), coin.is_none());
    ledger.is_answerable(*round) && slot.is_some_and(inspects)
}

/// Whether a member is there to answer: it is silent about nothing, and has not gone.
fn is_present(ledger: &Ledger, member: &MemberId) -> bool {
    let standing = ledger.member(member).map(|member| member.standing);
    matches!(standing, Some(Standing::Active | Standing::Away))
}

/// The step of a due audit that its verifier owes now; none while the member has the word, or when nothing more is to be
/// said.
fn owed_step(
    asked: &BTreeMap<(MemberId, Round, MemberId), Digest>,
    cases: &BTreeMap<Digest, Case>,
    ledger: &Ledger,
    (round, verifier, target): (Round, &MemberId, &MemberId),
) -> Option<Step> {
    let case = asked.get(&(*verifier, round, *target)).and_then(|name| cases.get(name));
    let word = case.map_or(Word::Verifier(Step::Request), Case::word);
    let standing = ledger.member(target).map(|member| member.standing);
    match (word, standing) {
        (_, None | Some(Standing::Banned)) | (Word::Nobody, _) => None,
        (Word::Verifier(Step::Verdict), _) => Some(Step::Verdict),
        _ if ledger.is_taken_over(round, target) => Some(Step::Recomputation),
        (_, Some(Standing::Left)) => None,
        (word, _) => word.step(),
    }
}

fn require(holds: bool, rule: &'static str) -> Result<(), Reject> {
    if holds { Ok(()) } else { Err(Reject::Rule(rule)) }
}
