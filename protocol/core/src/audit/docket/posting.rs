//! Takes the steps of audits as they are posted, each after the one before it and by whoever has to say it.

use super::Docket;
use super::case::{Case, Reached, Turn};
use super::charges::Charge;
use crate::audit::probe;
use crate::audit::steps::{Judged, Requested};
use crate::coins::{draw, drawn_leaves};
use crate::error::{Reject, require};
use crate::ids::{Digest, MemberId, Slot};
use crate::ledger::{Ledger, Standing};
use crate::messages::audit::{
    AuditRequest, Duty, Finding, FindingKind, Recheck, Recomputation, ResultsSeal, TableOpening, TableSeal,
    Verdict, Withheld,
};
use crate::messages::record::{Body, Credit};
use crate::sign::{Signed, Verified};

/// Open audits kept at most; the oldest settled ones go first.
const CASES: usize = 65_536;
/// Times that a verifier may say of one audit that it lacks the integers.
const WITHHELD: u8 = 3;

impl Docket {
    pub(super) fn duty(&mut self, ledger: &Ledger, signed: &Signed<Duty>) -> Result<Option<Body>, Reject> {
        let (verifier, coin) = ledger.check_duty(signed)?;
        require(self.roster.coin(coin.round(), &verifier).is_none(), "a coin is shown once")?;
        self.roster.shown(verifier, coin);
        self.seen = None;
        Ok(None)
    }

    pub(super) fn recheck(
        &mut self,
        ledger: &Ledger,
        signed: &Signed<Recheck>,
    ) -> Result<Option<Body>, Reject> {
        let recheck = signed.verify(ledger.run())?;
        if !ledger.is_active_verifier(&recheck.author()) {
            return Err(Reject::NotEntitled("recheck: only verifiers do"));
        }
        // By name: whoever asks about what nobody has said must not have every verdict hashed.
        let passing = self.passing.get(&recheck.verdict).copied();
        let (round, author) = passing.ok_or(Reject::Stale("no such verdict is known"))?;
        let view = ledger.round(round).ok_or(Reject::Stale("the audited round is not remembered"))?;
        if author == recheck.author() || !view.inspectors().contains(&recheck.author()) {
            return Err(Reject::NotEntitled("recheck: only another verifier of the round does"));
        }
        let fresh = self.rechecked.insert((round, recheck.verdict, recheck.author()));
        require(fresh, "a verifier rechecks a verdict once")?;
        self.roster.rechecked(recheck.author());
        Ok(None)
    }

    pub(super) fn request(
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
        let case = Case::new(requested, ledger.next_round());
        self.begin_turn(now, ledger, target);
        self.cases.insert(name, case);
        Ok(None)
    }

    pub(super) fn table(
        &mut self,
        ledger: &Ledger,
        signed: &Signed<TableSeal>,
    ) -> Result<Option<Body>, Reject> {
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

    pub(super) fn results(
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
        case.ask(ledger.next_round());
        let target = case.request().target;
        self.begin_turn(now, ledger, target);
        Ok(None)
    }

    pub(super) fn opening(
        &mut self,
        ledger: &Ledger,
        signed: &Signed<TableOpening>,
    ) -> Result<Option<Body>, Reject> {
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
    pub(super) fn withheld(
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
        require(ledger.regime().keeps_integers(), "in exact all leaves stand for the integers")?;
        let again = !case.lacking && case.complaints < WITHHELD;
        require(again, "a verifier says a few times at most what it lacks")?;
        case.lacking = true;
        case.ask(ledger.next_round());
        case.complaints += 1;
        let target = case.request().target;
        self.begin_turn(now, ledger, target);
        Ok(None)
    }

    pub(super) fn verdict(
        &mut self,
        ledger: &Ledger,
        signed: &Signed<Verdict>,
    ) -> Result<Option<Body>, Reject> {
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
    pub(super) fn recomputation(
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
        // What it passed while it was its own to audit stays passed: whoever inspects it by now has seen that, and owes
        // nothing.
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
            self.passing.insert(credit.verdict, (round, verifier));
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
    pub(super) fn begin_turn(&mut self, now: u64, ledger: &Ledger, member: MemberId) {
        self.turns.entry(member).or_insert(Turn::at(now, ledger));
    }

    fn case(&mut self, request: &Digest) -> Result<&mut Case, Reject> {
        let case = self.cases.get_mut(request).ok_or(Reject::Stale("no such audit is open"))?;
        if case.settled() { Err(Reject::Stale("the audit is over")) } else { Ok(case) }
    }
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
