//! The court: it takes accusations, has them examined one after the other, and convicts, charges before
//! jurors, or dismisses.
//!
//! The way of an accusation to a ban, in order:
//!
//! 1. [`Court::accuse`] takes the evidence that a member brings, [`Court::advance`] the findings on the
//!    board. Both wait in the [`Queue`].
//! 2. [`Court::advance`] orders the next examinations ([`Order::Hear`]).
//! 3. [`Court::heard`] takes the ruling. It orders the ban, or dismisses the accusation. Where one machine's
//!    finding bans nobody, it opens a trial ([`Order::Charge`]).
//! 4. [`Court::opinion`] takes what a juror says. [`Court::advance`] counts the opinions and orders the ban.
//! 5. [`Order::Ban`] becomes a record (`sealing.rs`).
//!
//! The court changes nothing but itself. It looks at the [`Facts`], and whoever owns it carries out its
//! orders.

mod grounds;
mod jury;
mod queue;

use std::collections::VecDeque;

use muster_core::audit::{Claim, Judgement, claim};
use muster_core::bug::OrBug;
use muster_core::error::Reject;
use muster_core::ids::{MemberId, Round};
use muster_core::ledger::Ledger;
use muster_core::messages::audit::{FindingKind, Jury, Opinion};
use muster_core::messages::evidence::{Evidence, Reduction};
use muster_core::messages::record::Ban;
use muster_core::messages::round::PartResult;
use muster_core::sign::Signed;

pub(super) use grounds::Facts;
use grounds::{Examination, examination, is_out, withholds};
use jury::{Conviction, Settled, Trials};
use queue::{Ground, Heard, PendingAccusation, Queue};

use super::accusation::{Allegation, Reply, fetches};
use super::hearing::{Matter, Ruling};
use super::interface::KeptContribution;

/// What the court has somebody else do, in this order.
pub(super) enum Order {
    /// Examine this accusation, and say [`Court::heard`].
    Hear(Box<Allegation>, Box<Matter>),
    /// AUDIT-24: the author of this contribution may be convicted; take what counted while its keepers still
    /// have it.
    Suspect(Round, MemberId),
    /// Keep the evidence of a conviction for good, and the integers of the contribution where they were at
    /// hand.
    KeepEvidence(Box<Evidence>, Option<KeptContribution>),
    /// Ask the jurors of this case for their opinions (DUTY-11).
    Charge(Box<Evidence>),
    /// Seal this ban.
    Ban(Ban),
    /// Tell people that an accusation came to nothing.
    Dismissed {
        /// The member that accused.
        accuser: MemberId,
        /// The member that was accused.
        culprit: MemberId,
        /// Why the accusation does not stand.
        why: String,
    },
    /// Strike a verifier's charge from the docket: neither the member nor the verifier could be convicted.
    Strike {
        /// The round of the contribution.
        round: Round,
        /// The author of the contribution.
        target: MemberId,
        /// The verifier that found it wrong.
        verifier: MemberId,
    },
}

/// What is accused, examined, and tried.
#[derive(Default)]
pub(super) struct Court {
    queue: Queue,
    trials: Trials,
    orders: VecDeque<Order>,
}

impl Court {
    /// Takes an accusation for examination, once.
    ///
    /// # Errors
    /// [`Reject`] for one that its author may not bring, that is about nothing, or one too many.
    pub(super) fn accuse(
        &mut self,
        facts: &Facts<'_>,
        accuser: MemberId,
        evidence: Evidence,
    ) -> Result<(), Reject> {
        let claim = match examination(facts, &accuser, &evidence)? {
            Examination::Due(claim) => claim,
            Examination::Needless => return Ok(()),
        };
        let fetches = fetches(facts.ledger, &evidence, &claim);
        let (round, subject, of_leaves) = (claim.round, claim.subject, evidence.is_of_leaves());
        let digest = evidence.digest();
        let reply = Reply::of(facts.ledger, &evidence);
        let accusation = Allegation { evidence, digest, accuser, claim, owed: false, tries: 0, reply };
        self.queue.accuse(accusation, fetches, accuser == facts.steward)?;
        if of_leaves {
            self.orders.push_back(Order::Suspect(round, subject));
        }
        Ok(())
    }

    /// Takes a verifier's finding for examination, once. It is never refused (DUTY-10).
    pub(super) fn owe_hearing(&mut self, facts: &Facts<'_>, accuser: MemberId, evidence: Evidence) {
        let claim = claim(facts.ledger.manifest(), &evidence).or_bug("what was found says whom it is about");
        let Some(claim) = claim else { return };
        let fetches = fetches(facts.ledger, &evidence, &claim);
        self.orders.push_back(Order::Suspect(claim.round, claim.subject));
        let digest = evidence.digest();
        let accusation = Allegation { evidence, digest, accuser, claim, owed: true, tries: 0, reply: None };
        self.queue.owe(&accusation, fetches);
    }

    /// Goes on: takes the new charges of the docket, orders the next examinations, and settles trials.
    pub(super) fn advance(&mut self, facts: &Facts<'_>) {
        self.queue.reach(facts.ledger.next_round());
        // DUTY-10: a verifier's finding is examined, whether or not the verifier accuses.
        for (verifier, evidence) in facts.docket.charges(facts.ledger) {
            self.owe_hearing(facts, verifier, evidence);
        }
        while let Some(next) = self.queue.next(facts.now, &|member| facts.ledger.is_banned(member)) {
            self.examine(facts.ledger, next);
        }
        self.settle_trials(facts.ledger);
    }

    /// Takes the ruling of an examination.
    pub(super) fn heard(&mut self, facts: &Facts<'_>, accusation: &Allegation, ruling: Ruling) {
        let Claim { culprit, subject, round } = accusation.claim;
        if ruling.withheld && withholds(facts.ledger, round, &subject) {
            self.queue.withholds(subject, round);
        }
        let how = match &ruling.judgement {
            // Tested first: the member may be convicted while the charge against its verifier stays open.
            _ if ruling.open => Heard::Undecided,
            Judgement::Guilty { culprit, .. } if *culprit != accusation.accuser => Heard::Founded,
            _ => Heard::Unfounded,
        };
        self.queue.heard(facts.now, &culprit, how);
        self.rule(facts, accusation, ruling);
    }

    /// Convicts by a ruling, or dismisses the accusation. The ruling need not come from the queue.
    pub(super) fn rule(&mut self, facts: &Facts<'_>, accusation: &Allegation, ruling: Ruling) {
        let subject = accusation.claim.subject;
        let Ruling { evidence, judgement, q, .. } = ruling;
        let (culprit, round, finding, detail) = match judgement {
            Judgement::Guilty { culprit, round, finding, detail } => (culprit, round, finding, detail),
            Judgement::NotGuilty(why) | Judgement::Undecided(why) | Judgement::Malformed(why) => {
                return self.dismiss(facts, accusation, why);
            }
        };
        if is_out(facts.ledger, &culprit) {
            return;
        }
        // Q proves more than the leaves alone, and nobody may have it any more when the run is replayed.
        let exhibit = q.map(|q| KeptContribution { round, member: subject, q });
        self.orders.push_back(Order::KeepEvidence(Box::new(evidence.clone()), exhibit));
        // Nobody is convicted by its own word: where the accuser is the culprit, the steward accuses.
        let accuser = if accusation.accuser == culprit { facts.steward } else { accusation.accuser };
        let found =
            Conviction { culprit, subject, round, finding, evidence: evidence.digest(), accuser, detail };
        self.convict_or_charge(facts.ledger, found, &evidence);
        self.examine_second(facts, &evidence);
        if finding == FindingKind::FalseAcquittal {
            self.examine_acquitted(facts, accuser, &evidence);
        }
    }

    /// Takes the opinion of a juror. The next [`Self::advance`] counts it.
    ///
    /// # Errors
    /// [`Reject`] where no such case is open, or its author may not judge it, or has judged it before.
    pub(super) fn opinion(&mut self, ledger: &Ledger, signed: &Signed<Opinion>) -> Result<(), Reject> {
        self.trials.opinion(ledger, signed)
    }

    /// AUDIT-23: two members may have signed the same wrong part. The conviction of one has the other
    /// examined by the same records, so that agreeing on a lie is no safer than telling it alone.
    pub(super) fn examine_second(&mut self, facts: &Facts<'_>, evidence: &Evidence) {
        for evidence in of_other_signers(facts.ledger, evidence).into_iter().flatten() {
            // A refused accusation cannot be examined, or enough of the same wait already.
            let _ = self.accuse(facts, facts.steward, evidence);
        }
    }

    /// DUTY-10: the member that a false verdict let pass is examined itself.
    pub(super) fn examine_acquitted(&mut self, facts: &Facts<'_>, accuser: MemberId, evidence: &Evidence) {
        if let Some(of_member) = evidence.against_the_acquitted(facts.ledger.run()) {
            self.owe_hearing(facts, accuser, of_member);
        }
    }

    /// The next order.
    pub(super) fn poll_order(&mut self) -> Option<Order> {
        self.orders.pop_front()
    }

    /// What an examination of this accusation needs to know.
    pub(super) fn matter(&self, ledger: &Ledger, accusation: &Allegation) -> Matter {
        let verifier = accusation.evidence.transcript().map(|transcript| transcript.verdict.claimed_signer());
        Matter {
            evidence: accusation.evidence.clone(),
            run: ledger.run(),
            exact: ledger.manifest().profile.leaves_stand_for_integers(),
            admit: verifier.and_then(|verifier| ledger.member(&verifier)?.admitted.clone()),
            withheld: self.queue.has_withheld(&accusation.claim.subject, accusation.claim.round),
            expelled: ledger.is_banned(&accusation.claim.subject),
        }
    }

    /// Drops accusations about forgotten rounds, which nobody can examine.
    pub(super) fn forget(&mut self, ledger: &Ledger) {
        self.queue.forget(&|round| ledger.round(round).is_some());
    }

    /// When an undecided accusation is examined again.
    pub(super) fn timeout(&self, now: u64) -> Option<u64> {
        self.queue.timeout(now)
    }

    /// Whether no accusation is examined or tried, and none waits for its first examination.
    pub(super) fn is_at_rest(&self) -> bool {
        self.queue.is_at_rest() && self.trials.is_empty()
    }

    /// Whether a verifier's finding was never examined to the end.
    pub(super) fn owes_hearings(&self) -> bool {
        self.queue.owes_hearings()
    }

    fn examine(&mut self, ledger: &Ledger, next: PendingAccusation) {
        let PendingAccusation { ground, digest, accuser, claim, tries, reply, .. } = next;
        let owed = matches!(ground, Ground::Owed(_));
        let (Ground::Evidence(evidence) | Ground::Owed(evidence)) = ground;
        let accusation = Allegation { evidence: *evidence, digest, accuser, claim, owed, tries, reply };
        let matter = self.matter(ledger, &accusation);
        self.orders.push_back(Order::Hear(Box::new(accusation), Box::new(matter)));
    }

    /// DUTY-11: messages and equalities convict at once; about the rest the jurors are asked.
    fn convict_or_charge(&mut self, ledger: &Ledger, found: Conviction, evidence: &Evidence) {
        if !ledger.manifest().profile.needs_jury() || !found.finding.needs_jury() {
            return self.convict(ledger, &found, Jury::default());
        }
        tracing::info!("{} is charged before the jurors of the case: {}", found.culprit, found.detail);
        // TOL-9: with a tolerance one machine's finding bans nobody.
        self.trials.open(found);
        self.orders.push_back(Order::Charge(Box::new(evidence.clone())));
    }

    fn convict(&mut self, ledger: &Ledger, found: &Conviction, jury: Jury) {
        let Conviction { culprit, round, finding, evidence, accuser, .. } = *found;
        tracing::info!("{culprit} is convicted: {}", found.detail);
        let effective = ledger.first_round_without();
        self.orders.push_back(Order::Ban(Ban {
            culprit,
            effective,
            round,
            finding,
            evidence,
            accuser,
            jury,
        }));
    }

    /// Carries out what the jurors have decided.
    fn settle_trials(&mut self, ledger: &Ledger) {
        for settled in self.trials.settle(ledger) {
            match settled {
                Settled::Convicted(found, jury) => self.convict(ledger, &found, jury),
                Settled::Dismissed(found, why) => {
                    let Conviction { accuser, culprit, round, subject, .. } = found;
                    self.orders.push_back(Order::Strike { round, target: subject, verifier: accuser });
                    self.orders.push_back(Order::Dismissed { accuser, culprit, why });
                }
            }
        }
    }

    /// An accusation came to nothing so far. An undecided accusation is reported only once.
    fn dismiss(&mut self, facts: &Facts<'_>, accusation: &Allegation, why: String) {
        if accusation.tries == 0 {
            let (accuser, culprit) = (accusation.accuser, accusation.claim.culprit);
            self.orders.push_back(Order::Dismissed { accuser, culprit, why });
        }
        // Only a hearing of the charge itself ends the charge.
        if accusation.owed {
            self.end_charge(facts, accusation);
        }
    }

    /// A charge convicts nobody so far: its author is examined, once.
    fn end_charge(&mut self, facts: &Facts<'_>, accusation: &Allegation) {
        let Allegation { evidence, claim, accuser, .. } = accusation;
        let (round, target) = (claim.round, claim.subject);
        let strike = |verifier| Order::Strike { round, target, verifier };
        let of_leaves = evidence.transcript().is_none();
        let next = facts.docket.after(facts.ledger, evidence, accuser).filter(|_| of_leaves);
        match next {
            Some(next) => self.owe_hearing(facts, facts.steward, next),
            // A Recomputation is judged against its author, so that culprit and accuser have changed places.
            None if matches!(evidence, Evidence::Recomputation(_)) => {
                self.orders.push_back(strike(claim.culprit));
            }
            // The hearing of a transcript has examined its verifier, too.
            None => self.orders.push_back(strike(*accuser)),
        }
    }
}

/// The same evidence against the other signers of the same part. None where the evidence is about no part, or
/// the round is forgotten, so that nobody can be examined for it.
fn of_other_signers(ledger: &Ledger, evidence: &Evidence) -> Option<Vec<Evidence>> {
    let Evidence::Aggregation(part) = evidence else { return None };
    let result = part.result.verify(ledger.run()).or_bug("a result that was judged")?;
    let signed = ledger.round(result.round)?.signed_results_of(result.part);
    let others = signed.filter(|other| other.claimed_signer() != result.author());
    let evidence = |other: &Signed<PartResult>| Reduction { result: other.clone(), ..part.clone() };
    Some(others.map(|other| Evidence::Aggregation(evidence(other))).collect())
}

#[cfg(test)]
mod tests;
