//! What ends a round, and what its members have of it: results, echoes, credits, failures and juries.

use std::collections::BTreeSet;

use super::Rounds;
use crate::bug::OrBug;
use crate::coins::{drawn_leaves, majority};
use crate::error::{Reject, require};
use crate::ids::{Digest, MemberId, Part, Round};
use crate::ledger::chain::{ChainTip, Stage};
use crate::ledger::roster::Roster;
use crate::ledger::view::{RoundView, SealedResults};
use crate::messages::record::{Ban, Credit, Outcome};
use crate::messages::round::{Bitmap, Echo, PartResult};
use crate::sign::{Signed, Verified};

/// What an outcome settles about its round, checked.
pub(in crate::ledger) struct SettledOutcome {
    results: SealedResults,
    echoed: bool,
}

impl Rounds {
    /// Checks a result for the round being reduced: by one of the part's aggregators, over the sealed inputs.
    pub(in crate::ledger) fn check_result(
        &self,
        chain: &ChainTip,
        signed: &Signed<PartResult>,
    ) -> Result<Verified<PartResult>, Reject> {
        let result = signed.verify(self.terms.run())?;
        let view = self.current().ok_or(Reject::Stale("no round is open"))?;
        if result.round != view.round() || chain.stage() != Stage::Reducing {
            return Err(Reject::Stale("the result is for another round"));
        }
        let attempt = view.attempt(result.part).ok_or(Reject::Rule("a result names a part"))?;
        if !view.aggregating(result.part).any(|member| member == result.author()) {
            return Err(Reject::NotEntitled("reduce this part"));
        }
        require(result.attempt == attempt, "a result names its attempt")?;
        // Without R_t a second Freeze and a colluding sender could make an honest result look wrong.
        require(view.freeze_digest() == Some(result.freeze), "a result names the freeze")?;
        let sealed = view.inputs().get(result.part.index());
        // An aggregator that could choose its inputs could leave out whom it likes.
        let sealed = sealed.is_some_and(|inputs| *inputs == result.inputs && !inputs.is_empty());
        require(sealed, "a result is over exactly the sealed inputs")?;
        Ok(result)
    }

    /// Checks an echo of the current round's freeze.
    pub(in crate::ledger) fn check_echo(&self, signed: &Signed<Echo>) -> Result<Verified<Echo>, Reject> {
        let echo = signed.verify(self.terms.run())?;
        let view = self.current().ok_or(Reject::Stale("no round is open"))?;
        if echo.round != view.round() || Some(echo.freeze) != view.freeze_digest() {
            return Err(Reject::Stale("the echo is of another freeze"));
        }
        // Others' echoes would only fill the record.
        if view.slot_of(&echo.author()).is_none() {
            return Err(Reject::NotEntitled("echo: it has no seat"));
        }
        Ok(echo)
    }

    /// Checks an outcome but for what follows from the rows and for its seats.
    pub(in crate::ledger) fn check_outcome(
        &self,
        chain: &ChainTip,
        roster: &Roster,
        outcome: &Outcome,
    ) -> Result<SettledOutcome, Reject> {
        let view = self.current().ok_or(Reject::Rule("an outcome ends a round"))?;
        let reduced =
            // Where nobody can reduce there are no parts, and no inputs to wait for.
            chain.stage() == Stage::Reducing || (chain.stage() == Stage::Exchanging && view.parts().is_empty());
        require(reduced, "an outcome follows sealed inputs")?;
        require(outcome.round == view.round(), "an outcome names its round")?;
        require(outcome.results.len() == view.parts().len(), "an outcome holds one result for each part")?;
        let mut results = Vec::new();
        for (part, signed) in outcome.results.iter().enumerate() {
            let result = signed.as_ref().map(|signed| self.check_result(chain, signed)).transpose()?;
            // The place says which part it is: one out of place would be applied to other blocks.
            let fits = result.as_ref().is_none_or(|result| result.part.index() == part);
            require(fits, "results are in order of parts")?;
            results.push(result.map(Verified::into_inner));
        }
        let seconds = self.check_seconds(chain, outcome)?;
        let echoed = self.check_echoes(view, outcome)?;
        let heard = view.unheard(|member| echoed.contains(member)).is_empty();
        self.check_credits(roster, &outcome.credits)?;
        let results = SealedResults { said: results, signed: outcome.results.to_vec(), seconds };
        // AUDIT-1: whoever counts has echoed; a round that counts nobody takes two thirds.
        Ok(SettledOutcome { results, echoed: view.counts_somebody() || heard })
    }

    /// The open round is over, with this head after it.
    pub(in crate::ledger) fn apply_outcome(&mut self, settled: SettledOutcome, head: Digest) {
        if let Some(view) = self.newest() {
            view.end(settled.results, settled.echoed, head);
        }
    }

    /// Checks the results of the parts' other aggregators, and gives them with their parts.
    fn check_seconds(
        &self,
        chain: &ChainTip,
        outcome: &Outcome,
    ) -> Result<Vec<(Part, Signed<PartResult>)>, Reject> {
        let mut seconds: Vec<(Part, Signed<PartResult>)> = Vec::new();
        for signed in &outcome.seconds {
            let second = self.check_result(chain, signed)?;
            // Both signatures are sealed: otherwise the second of two liars would go free.
            let first = outcome.results.get(second.part.index()).and_then(Option::as_ref);
            let first = first
                .ok_or(Reject::Rule("a second result is beside a first one"))?
                .verify(self.terms.run())?;
            require(
                first.author() != second.author() && *first == *second,
                "a second result is by the other aggregator and says the same",
            )?;
            let last = seconds.last().map(|(part, _)| *part);
            // One each: a part has two aggregators at most.
            require(last < Some(second.part), "second results are in order of parts, one each")?;
            seconds.push((second.part, signed.clone()));
        }
        Ok(seconds)
    }

    /// Checks the echoes, and gives their authors.
    fn check_echoes(&self, view: &RoundView, outcome: &Outcome) -> Result<Vec<MemberId>, Reject> {
        let mut authors = Vec::new();
        for signed in &outcome.echoes {
            authors.push(self.check_echo(signed)?.author());
        }
        require(
            authors.is_sorted_by(|a, b| view.slot_of(a) < view.slot_of(b)),
            "echoes are in order of slots, one each",
        )?;
        // LEDGER-10: a round that counts somebody can be audited, whoever keeps silent.
        let has_echoed = |slot| view.member_at(slot).is_some_and(|member| authors.contains(&member));
        let mut counted = view.inputs().iter().flat_map(Bitmap::slots);
        require(counted.all(has_echoed), "an outcome holds the echo of every slot that its inputs count")?;
        Ok(authors)
    }

    /// Checks a credit as far as the ledger tells (STAND-1): its verdict is on the board alone.
    pub(in crate::ledger) fn check_credit(&self, roster: &Roster, credit: &Credit) -> Result<(), Reject> {
        require(roster.may_vouch(&credit.verifier), "a verifier vouches")?;
        let view = self.round(credit.round).ok_or(Reject::Stale("the credited round is not remembered"))?;
        // Before that no coin may be shown, so that no verdict can exist.
        let audited = view.results().is_some() && view.echoed();
        require(audited, "a round is audited when it is over and was echoed")?;
        let slot = view.slot_of(&credit.member);
        let commitment = slot.and_then(|slot| view.commitment(slot));
        let commitment = commitment.ok_or(Reject::Rule("only a frozen contribution is credited"))?;
        // STAND-1: by the one that was drawn to inspect it, even if it inspects nothing any more.
        let inspected = slot.is_some_and(|slot| view.was_drawn(slot, &credit.verifier));
        require(inspected, "the inspector of a contribution vouches for it")?;
        // The number is not the steward's to choose: more would end a probation sooner.
        let drawn = drawn_leaves(commitment.commit.leaves, self.terms.manifest().audit.leaves);
        require(credit.leaves == drawn, "a credit is for the leaves that were drawn")?;
        // Otherwise one verdict, sealed again and again, would end any probation.
        let taken = view.is_credited(&credit.verifier, &credit.member);
        require(!taken, "a verifier vouches once for a contribution")
    }

    /// Checks the credits of an outcome.
    pub(in crate::ledger) fn check_credits(&self, roster: &Roster, credits: &[Credit]) -> Result<(), Reject> {
        let mut seen: BTreeSet<(Round, MemberId, MemberId)> = BTreeSet::new();
        for credit in credits {
            self.check_credit(roster, credit)?;
            // STAND-1: a verdict is credited once.
            let first = seen.insert((credit.round, credit.verifier, credit.member));
            require(first, "a verifier vouches once for a contribution")?;
        }
        Ok(())
    }

    /// LEDGER-20: the seats that fail at this outcome of the open round: aggregators whose part had inputs and whose
    /// signature is missing and, in a round without weight, members whose missing echo keeps it from being audited.
    pub(in crate::ledger) fn failed_at(&self, outcome: &Outcome) -> BTreeSet<MemberId> {
        let Some(view) = self.current() else { return BTreeSet::new() };
        let echoed: BTreeSet<MemberId> = outcome.echoes.iter().map(Signed::claimed_signer).collect();
        // With weight, who has not echoed counts nowhere, and has failed by that.
        let unheard = if view.weighs() { Vec::new() } else { view.unheard(|member| echoed.contains(member)) };
        // By signatures in the outcome, not by what the steward says: it could let a friend off or fail a
        // victim.
        let signers = self.signers(outcome);
        let silent = silent_aggregators(view, |part, member| signers.contains(&(part, member)));
        view.missed().iter().copied().chain(unheard).chain(silent).collect()
    }

    /// Who has signed the results that an outcome holds.
    fn signers(&self, outcome: &Outcome) -> BTreeSet<(Part, MemberId)> {
        let first = outcome.results.iter().enumerate();
        let first =
            first.filter_map(|(part, signed)| Some((Part(part as u16), signed.as_ref()?.claimed_signer())));
        let second = outcome.seconds.iter().filter_map(|signed| signed.verify(self.terms.run()).ok());
        first.chain(second.map(|second| (second.part, second.author()))).collect()
    }

    /// Who has counted in the last round, which is over, with so many leaves; supporters whose results its outcome holds; and the
    /// verifiers that are still there, which have done their duty so far.
    pub(in crate::ledger) fn counted(&self, outcome: &Outcome) -> Vec<(MemberId, u32)> {
        let Some(view) = self.current().or_bug("a round that is over") else { return Vec::new() };
        let counted = view.commitments().filter(|(slot, _)| view.counted(*slot));
        let counted = counted.map(|(_, commitment)| (commitment.author, commitment.commit.leaves));
        let signers: BTreeSet<MemberId> =
            self.signers(outcome).into_iter().map(|(_, signer)| signer).collect();
        let supporters = view.seats().iter().filter(|seat| seat.quota == 0 && signers.contains(&seat.member));
        let others = supporters.map(|seat| seat.member).chain(view.inspectors().iter().copied());
        counted.chain(others.map(|member| (member, 0))).collect()
    }

    // LEDGER-22: where there is a tolerance, what re-execution decides takes drawn jurors; elsewhere there is no jury.
    pub(in crate::ledger) fn check_jury(&self, ban: &Ban) -> Result<(), Reject> {
        if !self.terms.regime().needs_jury() || !ban.finding.needs_jury() {
            return require(ban.jury.is_empty(), "what is decided for good needs no jury");
        }
        let view =
            self.round(ban.round).ok_or(Reject::Stale("the round of the offence is not remembered"))?;
        require(view.results().is_some(), "jurors are drawn once the round of the offence is over")?;
        // Drawn from the head after that round, which neither party chose.
        let drawn = view.jury(&ban.culprit, &ban.accuser);
        let mut said = BTreeSet::new();
        for signed in &ban.jury {
            let opinion = signed.verify(self.terms.run())?;
            let fits =
                opinion.guilty && opinion.evidence == ban.evidence && drawn.contains(&opinion.author());
            require(fits, "a jury's word is that of a drawn juror, on this evidence, and guilty")?;
            // Otherwise one juror could make up the majority alone.
            require(said.insert(opinion.author()), "a juror has one word")?;
        }
        require(said.len() >= majority(drawn.len()), "five of seven drawn jurors find a member guilty")
    }
}

/// Aggregators of the last attempt whose part counts somebody, and whose signature is not sealed.
fn silent_aggregators(
    view: &RoundView,
    signed: impl Fn(Part, MemberId) -> bool,
) -> impl Iterator<Item = MemberId> {
    let parts = view.inputs().iter().enumerate().filter(|(_, inputs)| !inputs.is_empty());
    let parts = parts.map(|(part, _)| Part(part as u16));
    let owed = parts.flat_map(|part| view.aggregating(part).map(move |member| (part, member)));
    owed.filter(move |(part, member)| !signed(*part, *member)).map(|(_, member)| member)
}
