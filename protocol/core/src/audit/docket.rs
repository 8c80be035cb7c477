//! The steward's docket: which audits are due and open, whose turn it is, and who has not done what it owes.

use std::collections::{BTreeMap, BTreeSet};

use super::roster::{Counts, Roster};
use super::{leaf_coin, probe};
use crate::coins::{CoinKind, draw};
use crate::error::Reject;
use crate::ids::{Digest, Height, MemberId, Round, Slot};
use crate::ledger::{Ledger, RoundView, Standing};
use crate::manifest::Profile;
use crate::messages::audit::{
    AuditRequest, Duty, Finding, FindingKind, Recheck, ResultsSeal, TableOpening, TableSeal, Transcript,
    Verdict, Withheld, results_seal, table_seal,
};
use crate::messages::record::{Body, Credit, Idle};
use crate::messages::wire::Notice;
use crate::sign::{Signed, Verified};

/// Open audits kept at most; the oldest settled ones go first.
const CASES: usize = 65_536;
/// Times that a verifier may say of one audit that it lacks the integers.
const WITHHELD: u8 = 3;

/// The audits that the steward has seen, in order of their steps.
#[derive(Default)]
pub struct Docket {
    cases: BTreeMap<Digest, Case>,
    /// Requests by verifier, round and target.
    asked: BTreeMap<(MemberId, Round, MemberId), Digest>,
    /// Contributions that have passed, and by whose verdict.
    passed: BTreeMap<(Round, MemberId), MemberId>,
    /// Who has re-executed which verdict.
    rechecked: BTreeSet<(Round, Digest, MemberId)>,
    roster: Roster,
    /// Height of the ledger that the roster has taken in; none when it has to look again.
    seen: Option<Height>,
    credits: Vec<Credit>,
}

struct Case {
    signed: Signed<AuditRequest>,
    request: Verified<AuditRequest>,
    table: Option<(Signed<TableSeal>, Digest)>,
    results: Option<(Signed<ResultsSeal>, Digest)>,
    opening: Option<Signed<TableOpening>>,
    verdict: Option<(Signed<Verdict>, Finding)>,
    /// When the audited member's turn began, if it is its turn.
    turn: Option<u64>,
    /// Whether its verifier waits for the member's integers.
    lacking: bool,
    /// How often it has said so.
    complaints: u8,
}

impl Case {
    fn settled(&self) -> bool {
        self.verdict.is_some()
    }

    /// The step that the verifier has to do next, if it has the word: 2 its results, 3 its verdict.
    fn step(&self) -> Option<u8> {
        match (&self.table, &self.results, &self.opening) {
            _ if self.settled() || self.lacking => None,
            (Some(_), None, _) => Some(2),
            (_, _, Some(_)) => Some(3),
            _ => None,
        }
    }
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
            _ => Err(Reject::Rule("the docket takes audits")),
        }
    }

    /// Silences that are due: audited members whose turn has lasted longer than the run's patience. One for each member,
    /// as no second one is sealed (AUDIT-8): what else it owes is looked at when as long has passed again.
    pub fn silences(&mut self, now: u64, ledger: &Ledger) -> Vec<Body> {
        let patience = u64::from(ledger.manifest().timers.audit);
        let (mut silent, mut silences) = (BTreeSet::new(), Vec::new());
        for case in self.cases.values_mut() {
            if case.turn.is_some_and(|turn| now >= turn.saturating_add(patience)) {
                let standing = ledger.member(&case.request.target).map(|member| member.standing);
                let present = matches!(standing, Some(Standing::Active | Standing::Away));
                let first = present && silent.insert(case.request.target);
                case.turn = (present && !first).then_some(now);
                silences.extend(first.then(|| Body::Silence(case.signed.clone())));
            }
        }
        silences
    }

    /// Takes in what the ledger has by now, and gives the verifiers that are idle (DUTY-4): that have owed the same
    /// coin, or the same step of a due audit, for as long as the run's patience, or until the round was forgotten.
    pub fn idles(&mut self, now: u64, ledger: &Ledger) -> Vec<Body> {
        let (asked, cases) = (&self.asked, &self.cases);
        let step = |round: Round, verifier: &MemberId, target: &MemberId| {
            let case = asked.get(&(*verifier, round, *target)).and_then(|name| cases.get(name));
            case.map_or(Some(1), Case::step)
        };
        let fresh = self.seen != Some(ledger.height());
        if fresh {
            let passed = |round, member: &MemberId| has_passed(&self.passed, ledger, round, member);
            self.roster.update(ledger, &passed, &step);
        }
        let patience = u64::from(ledger.manifest().timers.audit);
        let idle = self.roster.idle(now, patience, ledger, &step);
        if fresh {
            self.seen = Some(ledger.height());
            self.forget(ledger);
        }
        // DUTY-5: without another one to take over, the audits would only be lost.
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

    /// When [`Docket::silences`] or [`Docket::idles`] may next have something.
    pub fn timeout(&self, ledger: &Ledger) -> Option<u64> {
        let patience = u64::from(ledger.manifest().timers.audit);
        let turn =
            self.cases.values().filter_map(|case| case.turn).min().map(|turn| turn.saturating_add(patience));
        turn.into_iter().chain(self.roster.timeout(patience)).min()
    }

    /// What each verifier was to do, and has done.
    pub fn counts(&self) -> &BTreeMap<MemberId, Counts> {
        self.roster.counts()
    }

    /// The audit of a request, once it has a verdict.
    pub fn transcript(&self, ledger: &Ledger, request: &Digest) -> Option<Transcript> {
        let case = self.cases.get(request)?;
        Some(Transcript {
            freeze: ledger.round(case.request.round)?.freeze()?.clone(),
            request: case.signed.clone(),
            table: case.table.as_ref()?.0.clone(),
            results: case.results.as_ref()?.0.clone(),
            opening: case.opening.clone()?,
            verdict: case.verdict.as_ref()?.0.clone(),
        })
    }

    /// Whether a verifier that was not banned has passed a contribution.
    pub fn has_passed(&self, ledger: &Ledger, round: Round, member: &MemberId) -> bool {
        has_passed(&self.passed, ledger, round, member)
    }

    /// Contributions whose integers a verifier waits for (TOL-12).
    pub fn wanted(&self) -> BTreeSet<(Round, MemberId)> {
        let wanted = self.cases.values().filter(|case| case.lacking);
        wanted.map(|case| (case.request.round, case.request.target)).collect()
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
            |case: &Case| case.lacking && case.request.round == round && case.request.target == *member;
        let waiting = self.cases.iter_mut().filter(|(_, case)| waits(case));
        let back = |name| (standing == Some(Standing::Silent(name))).then_some(Body::Answered(name));
        let over = |(name, case): (&Digest, &mut Case)| {
            (case.lacking, case.turn) = (false, None);
            (*name, back(*name))
        };
        waiting.map(over).collect()
    }

    /// What the verdicts since the last call give their members credit for.
    pub fn credits(&mut self) -> Vec<Credit> {
        std::mem::take(&mut self.credits)
    }

    /// Audits without a verdict.
    pub fn open(&self) -> usize {
        self.cases.values().filter(|case| !case.settled()).count()
    }

    /// Drops what is about rounds that the ledger has forgotten, and audits of verifiers that may not go on with them:
    /// nobody owes these an answer (DUTY-6).
    fn forget(&mut self, ledger: &Ledger) {
        self.cases.retain(|_, case| {
            let request = &case.request;
            let Some(view) = ledger.round(request.round) else { return false };
            let slot = view.slot_of(&request.target);
            let goes_on = |slot| ledger.may_inspect(view, slot, &request.author(), request.coin.is_none());
            case.settled() || slot.is_some_and(goes_on)
        });
        let Some(oldest) = ledger.rounds().next().map(RoundView::round) else { return };
        let cases = &self.cases;
        self.asked.retain(|(_, round, _), name| *round >= oldest && cases.contains_key(name));
        self.passed.retain(|(round, _), _| *round >= oldest);
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
        let mut cases = self.cases.values();
        let about = |case: &&Case| {
            case.verdict.as_ref().is_some_and(|(verdict, finding)| {
                *finding == Finding::Pass && verdict.digest() == recheck.verdict
            })
        };
        let case = cases.find(about).ok_or(Reject::Stale("no such verdict is known"))?;
        let round = case.request.round;
        let view = ledger.round(round).ok_or(Reject::Stale("the audited round is not remembered"))?;
        if case.request.author() == recheck.author() || !view.inspectors().contains(&recheck.author()) {
            return Err(Reject::NotEntitled("recheck: only another verifier of the round does"));
        }
        let fresh = self.rechecked.insert((round, recheck.verdict, recheck.author()));
        require(fresh, "a verifier rechecks a verdict once")?;
        self.roster.rechecked(recheck.author());
        Ok(None)
    }

    fn request(
        &mut self,
        now: u64,
        ledger: &Ledger,
        signed: &Signed<AuditRequest>,
    ) -> Result<Option<Body>, Reject> {
        let request = ledger.check_request(signed)?;
        let key = (request.author(), request.round, request.target);
        if self.asked.contains_key(&key) {
            return Err(Reject::Rule("a verifier audits a contribution once"));
        }
        require(
            !self.has_passed(ledger, request.round, &request.target),
            "a contribution that has passed is not audited again",
        )?;
        if self.cases.len() >= CASES {
            let oldest = self
                .cases
                .iter()
                .filter(|(_, case)| case.settled())
                .min_by_key(|(_, case)| case.request.round);
            let oldest = oldest.map(|(name, _)| *name).ok_or(Reject::Rule("too many audits are open"))?;
            self.cases.remove(&oldest);
        }
        let name = signed.digest();
        self.asked.insert(key, name);
        let case = Case {
            signed: signed.clone(),
            request,
            table: None,
            results: None,
            opening: None,
            verdict: None,
            turn: Some(now),
            lacking: false,
            complaints: 0,
        };
        self.cases.insert(name, case);
        Ok(None)
    }

    fn table(&mut self, ledger: &Ledger, signed: &Signed<TableSeal>) -> Result<Option<Body>, Reject> {
        let table = signed.verify(ledger.run())?;
        let case = self.case(&table.request)?;
        require(table.author() == case.request.target, "the audited member seals its table")?;
        require(case.table.is_none(), "a table is sealed once")?;
        require(
            table.freeze == case.request.freeze && table.round == case.request.round,
            "the table is of the asked round",
        )?;
        let view = ledger.round(table.round).ok_or(Reject::Stale("the audited round is not remembered"))?;
        let slot = view.slot_of(&table.author()).and_then(|slot| view.commitment(slot));
        require(slot.is_some_and(|c| c.commit.root == table.root), "the table is of the frozen commitment")?;
        case.table = Some((signed.clone(), table.seal));
        case.turn = None;
        Ok(None)
    }

    fn results(
        &mut self,
        now: u64,
        ledger: &Ledger,
        signed: &Signed<ResultsSeal>,
    ) -> Result<Option<Body>, Reject> {
        let results = signed.verify(ledger.run())?;
        let case = self.case(&results.request)?;
        require(results.author() == case.request.author(), "the verifier seals its results")?;
        let (table, _) = case.table.as_ref().ok_or(Reject::Rule("results follow a sealed table"))?;
        require(results.table == table.digest(), "the results name the sealed table")?;
        require(case.results.is_none(), "results are sealed once")?;
        case.results = Some((signed.clone(), results.seal));
        case.turn = Some(now);
        Ok(None)
    }

    fn opening(&mut self, ledger: &Ledger, signed: &Signed<TableOpening>) -> Result<Option<Body>, Reject> {
        let opening = signed.verify(ledger.run())?;
        let name = opening.request;
        let case = self.case(&name)?;
        require(opening.author() == case.request.target, "the audited member opens its table")?;
        let (results, _) =
            case.results.as_ref().ok_or(Reject::Rule("a table is opened after the results are sealed"))?;
        require(opening.results == results.digest(), "the opening names the sealed results")?;
        require(case.opening.is_none(), "a table is opened once")?;
        let (_, seal) = case.table.as_ref().ok_or(Reject::Rule("an opened table was sealed"))?;
        require(table_seal(&opening.salt, &opening.rows) == *seal, "the opening fits its seal")?;
        let leaves = leaves_of(ledger, &case.request)?;
        require(opening.rows.len() == leaves as usize, "the table has a row for each leaf")?;
        let probe = probe(ledger.manifest(), &case.signed, &case.request);
        let fits = opening.rows.iter().all(|row| probe.fits(&row.sketch));
        require(fits, "the table's sketches are those of the profile")?;
        case.opening = Some(signed.clone());
        case.turn = None;
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
        require(withheld.author() == case.request.author(), "the verifier that asked says what it lacks")?;
        require(case.opening.is_some(), "integers are asked for once the table is open")?;
        require(ledger.manifest().profile != Profile::Exact, "in exact all leaves stand for the integers")?;
        let again = !case.lacking && case.complaints < WITHHELD;
        require(again, "a verifier says a few times at most what it lacks")?;
        (case.lacking, case.turn) = (true, Some(now));
        case.complaints += 1;
        Ok(None)
    }

    fn verdict(&mut self, ledger: &Ledger, signed: &Signed<Verdict>) -> Result<Option<Body>, Reject> {
        let verdict = signed.verify(ledger.run())?;
        let case = self.case(&verdict.request)?;
        require(verdict.author() == case.request.author(), "the verifier that asked gives the verdict")?;
        let opening = case.opening.as_ref().ok_or(Reject::Rule("a verdict follows an opened table"))?;
        require(verdict.opening == opening.digest(), "the verdict names the opening")?;
        let (_, sealed) = case.results.as_ref().ok_or(Reject::Rule("a verdict's results were sealed"))?;
        require(results_seal(&verdict.salt, &verdict.results) == *sealed, "the results fit their seal")?;
        let slot = check_draw(ledger, case, &verdict)?;
        let about_the_member = match verdict.finding {
            Finding::Pass => true,
            Finding::Guilty(FindingKind::FalseAccusation | FindingKind::FalseAcquittal) => false,
            Finding::Guilty(_) => true,
        };
        require(about_the_member, "a verdict is about the audited member")?;
        case.verdict = Some((signed.clone(), verdict.finding));
        (case.lacking, case.turn) = (false, None);
        let (round, target) = (case.request.round, case.request.target);
        if verdict.finding == Finding::Pass {
            let credit = Credit {
                verdict: signed.digest(),
                round,
                member: target,
                verifier: verdict.author(),
                leaves: u32::try_from(verdict.results.len()).unwrap_or(u32::MAX),
            };
            self.passed.insert((round, target), verdict.author());
            self.credits.push(credit);
        }
        self.roster.judged(verdict.author(), target, (round, slot));
        Ok(None)
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
    passed.get(&(round, *member)).is_some_and(|verifier| !ledger.is_banned(verifier))
}

fn leaves_of(ledger: &Ledger, request: &AuditRequest) -> Result<u32, Reject> {
    let view = ledger.round(request.round).ok_or(Reject::Stale("the audited round is not remembered"))?;
    let commitment = view.slot_of(&request.target).and_then(|slot| view.commitment(slot));
    commitment.map(|c| c.commit.leaves).ok_or(Reject::Rule("only a frozen contribution is audited"))
}

/// The leaves of a verdict are those that the registered coin draws from the sealed table.
fn check_draw(ledger: &Ledger, case: &Case, verdict: &Verified<Verdict>) -> Result<Slot, Reject> {
    let terms = ledger.member(&verdict.author()).and_then(|member| member.coins.as_ref());
    let coin = verdict.coin.verify(terms.ok_or(Reject::NotEntitled("audit: it has no coins"))?)?;
    let view =
        ledger.round(case.request.round).ok_or(Reject::Stale("the audited round is not remembered"))?;
    let slot = view.slot_of(&case.request.target).ok_or(Reject::Rule("an audited member had a seat"))?;
    let own =
        coin.kind() == CoinKind::Leaf && coin.round() == case.request.round && coin.k() == leaf_coin(slot);
    require(own, "a verdict shows the leaf coin of the audited slot")?;
    let (_, seal) = case.table.as_ref().ok_or(Reject::Rule("a table was sealed"))?;
    let leaves = leaves_of(ledger, &case.request)?;
    let drawn = draw(&coin, &case.request.freeze, seal, leaves, ledger.manifest().audit.leaves);
    let shown: Vec<u32> = verdict.results.iter().map(|result| result.position).collect();
    require(shown == drawn, "a verdict is about the leaves that its coin draws")?;
    Ok(slot)
}

fn require(holds: bool, rule: &'static str) -> Result<(), Reject> {
    if holds { Ok(()) } else { Err(Reject::Rule(rule)) }
}
