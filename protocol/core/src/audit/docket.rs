//! The steward's docket: which audits are due and open, whose turn it is, and who has not done what it owes.
//!
//! A due audit is a *case*. It is closed by what the ledger seals, and by nothing else: a credit, a ban, or an idle
//! verifier (AUDIT-26). [`Docket::open_cases`] lists the others; no round that has one is forgotten.

mod case;
mod charges;
mod open_cases;
mod posting;

pub use open_cases::{OpenCase, WaitsFor};

use std::collections::{BTreeMap, BTreeSet};

use case::{Case, Turn, Word};
use charges::Charge;

use super::roster::{Counts, DutyRoster, Step};
use crate::coins::Coin;
use crate::error::Reject;
use crate::ids::{Digest, Height, MemberId, Round};
use crate::ledger::{Ledger, RoundView, Standing};
use crate::messages::audit::{AuditRequest, Finding, Recomputation};
use crate::messages::evidence::Transcript;
use crate::messages::record::{Body, Credit, Idle};
use crate::messages::wire::Notice;
use crate::sign::Signed;

/// The audits that the steward has seen, in order of their steps.
#[derive(Default)]
pub struct Docket {
    cases: BTreeMap<Digest, Case>,
    /// Requests by verifier, round and target.
    asked: BTreeMap<(MemberId, Round, MemberId), Digest>,
    /// Contributions that have passed, and by whose verdict.
    passed: BTreeMap<(Round, MemberId), MemberId>,
    /// Round and author of each verdict and recomputation that passes, by its name.
    passing: BTreeMap<Digest, (Round, MemberId)>,
    /// What verifiers say of contributions of which they have recomputed every leaf.
    recomputed: BTreeMap<(Round, MemberId, MemberId), (Signed<Recomputation>, Finding)>,
    /// Contributions that a verifier finds guilty, and the verifier, until that has led to a ban or to nothing.
    charged: BTreeMap<(Round, MemberId, MemberId), Charge>,
    /// Who has re-executed which verdict.
    rechecked: BTreeSet<(Round, Digest, MemberId)>,
    roster: DutyRoster,
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

    /// Members that are late (AUDIT-27): what they commit to counts nowhere until every audit that has waited for them so
    /// long has gone on. One that was silent is late until its leaves are recomputed, whatever it says meanwhile.
    pub fn late(&self, ledger: &Ledger) -> BTreeSet<MemberId> {
        let next = ledger.next_round();
        // With a tolerance nobody audits what is of a member that has left.
        let goes_on = |case: &Case| {
            let AuditRequest { round, target, .. } = &**case.request();
            let standing = ledger.member(target).map(|member| member.standing);
            standing != Some(Standing::Left) || ledger.is_taken_over(*round, target)
        };
        let late = |case: &&Case| case.is_late(next) && owes_answer(ledger, case) && goes_on(case);
        let late = self.cases.values().filter(late);
        late.map(|case| case.request().target).collect()
    }

    /// ROUND-38: every clock begins anew, because the steward did not run for a while. What was done meanwhile was heard by nobody,
    /// and whoever has the word, or owes something, has to find the way back first.
    pub fn resume(&mut self, now: u64) {
        self.turns.values_mut().for_each(|turn| turn.begin_again(now));
        self.roster.begin_again(now);
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

    /// The node coin of a round that a verifier has shown.
    pub fn shown_coin(&self, round: Round, verifier: &MemberId) -> Option<&Coin> {
        self.roster.coin(round, verifier)
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

    /// The steward has the integers of a contribution: gives the requests of those that waited for them,
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
        self.passing.retain(|_, (round, _)| *round >= oldest);
        self.recomputed.retain(|(round, ..), _| *round >= oldest);
        self.charged.retain(|(round, ..), _| *round >= oldest);
        self.rechecked.retain(|(round, ..)| *round >= oldest);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::fixture::chain::{Chain, node};
    use crate::manifest::Timers;

    /// A docket with a verifier that owes its coin, and a member that owes a table, and when the first of them has failed.
    fn waiting(chain: &Chain) -> (Docket, u64) {
        let mut docket = Docket::default();
        let request = chain.request(0, Round(0), node(1).id());
        docket.post(0, &chain.ledger, &Notice::Request(request)).unwrap();
        assert!(docket.silences(0, &chain.ledger).is_empty() && docket.idles(0, &chain.ledger).is_empty());
        let due = docket.timeout(&chain.ledger).unwrap();
        (docket, due)
    }

    /// A machine that slept while members answered: they need some seconds to find it again.
    #[test]
    fn round_38_nobody_is_silent_or_idle_for_the_time_in_which_nobody_was_heard() {
        let mut chain = Chain::begin();
        chain.finish_round();
        let ledger = &chain.ledger;
        let Timers { audit, commit, .. } = ledger.manifest().timers;
        let failed =
            |docket: &mut Docket, now| (docket.silences(now, ledger).len(), docket.idles(now, ledger).len());
        let (mut docket, due) = waiting(&chain);
        assert_eq!(due, u64::from(audit));
        assert_eq!(failed(&mut docket, due - 1), (0, 0));
        assert_eq!(failed(&mut docket, due), (1, 0));
        let (mut docket, late) = (waiting(&chain).0, u64::from(audit + commit));
        assert_eq!(failed(&mut docket, late).1, 1, "a coin is owed as well");
        let mut docket = waiting(&chain).0;
        docket.resume(due - 1);
        assert_eq!(failed(&mut docket, 2 * due - 2), (0, 0));
        assert_eq!(failed(&mut docket, 2 * due - 1), (1, 0));
        assert_eq!(failed(&mut docket, due - 2 + late).1, 0, "nor is the verifier idle before");
        assert_eq!(failed(&mut docket, due - 1 + late).1, 1);
    }
}
