//! Trials: evidence is re-executed, parts that contributors object to are reduced again, bans follow.

use muster_core::audit::{Judgement, claim};
use muster_core::ids::{MemberId, Round};
use muster_core::messages::audit::{Finding, FindingKind, Jury, Recomputation};
use muster_core::messages::evidence::{Evidence, Reduction};
use muster_core::messages::record::{Ban, Body};
use muster_core::messages::round::PartResult;
use muster_core::messages::wire::Notice;
use muster_core::sign::Signed;
use muster_replica::{Brought, Contributions};

use super::Sim;
use super::clock::Event;
use super::steward::banned;

impl Sim {
    /// Has a verifier say of everything that it is to audit in a round that it is wrong; how much that is.
    ///
    /// # Panics
    /// When the round is not frozen, or forgotten.
    pub fn slander(&mut self, watcher: usize, round: Round) -> usize {
        let view = self.conductor.ledger().round(round).expect("a round that is remembered");
        let freeze = view.freeze_digest().expect("a frozen round");
        let accused: Vec<MemberId> = view.commitments().map(|(_, commitment)| commitment.author).collect();
        let finding = Finding::Guilty(FindingKind::TotalMismatch);
        for target in &accused {
            let words = Recomputation { round, freeze, target: *target, finding };
            let signed = self.watchers[watcher].identity.sign(self.run, &words);
            self.clock.after(5, 40, Event::Notice(Box::new(Notice::Recomputation(signed))));
        }
        accused.len()
    }

    /// DUTY-10: what verifiers find guilty is examined, whether or not they accuse.
    pub(super) fn examine_charges(&mut self) {
        for (verifier, evidence) in self.docket.charges(self.conductor.ledger()) {
            self.accuse(verifier, evidence);
        }
    }

    /// Evidence reaches the steward, which examines it once.
    pub(super) fn accuse(&mut self, accuser: MemberId, evidence: Evidence) {
        if self.examined.insert((evidence.digest(), accuser)) {
            self.accused += 1;
            self.clock.after(5, 40, Event::Accuse(accuser, Box::new(evidence)));
        }
    }

    /// Re-executes evidence, and bans if it proves something.
    pub(super) fn judge(&mut self, accuser: MemberId, evidence: &Evidence) {
        self.accused -= 1;
        let brought = self.brought(evidence);
        let judgement = self.replica.re_execute(evidence, brought);
        self.decide(accuser, evidence, &judgement);
    }

    /// A part was reduced again: it counts if it is right, and else it is struck.
    pub(super) fn inspect(&mut self, signed: Signed<PartResult>) {
        let result = signed.verify(self.run).expect("checked by the conductor").into_inner();
        let judgement = self.suspicion(&signed).map(|evidence| {
            let brought = self.brought(&evidence);
            (self.replica.re_execute(&evidence, brought), evidence)
        });
        let right = matches!(judgement, Some((Judgement::NotGuilty(_), _)));
        if let Some((judgement @ Judgement::Guilty { .. }, evidence)) = &judgement {
            self.decide(self.steward.id(), evidence, judgement);
        }
        let author = signed.claimed_signer();
        self.conductor.inspected(self.clock.now(), (result.part, &author), right);
        self.report.inspections.push((result, right));
    }

    /// The evidence that a part would be, if it is wrong.
    fn suspicion(&self, signed: &Signed<PartResult>) -> Option<Evidence> {
        let result = signed.verify(self.run).ok()?;
        Some(Evidence::Aggregation(self.ledger().round(result.round)?.reduction(&result, signed)?))
    }

    fn decide(&mut self, accuser: MemberId, evidence: &Evidence, judgement: &Judgement) {
        let Judgement::Guilty { culprit, round, finding, .. } = judgement else {
            self.report.dismissed += 1;
            match self.docket.after(self.conductor.ledger(), evidence, &accuser) {
                Some(next) => self.accuse(self.steward.id(), next),
                None => self.drop_charge(evidence),
            }
            return;
        };
        if banned(self.ledger(), culprit) {
            return;
        }
        let (culprit, round, finding) = (*culprit, *round, *finding);
        let effective = self.ledger().first_round_without();
        self.examine_second(evidence);
        // DUTY-10: a convicted acquittal has the member examined by the same transcript, or by all its leaves.
        if finding == FindingKind::FalseAcquittal {
            let of_member = evidence.against_the_acquitted(self.run);
            of_member.into_iter().for_each(|evidence| self.accuse(accuser, evidence));
        }
        let evidence = evidence.digest();
        self.conductor.propose(Body::Ban(Ban {
            culprit,
            effective,
            round,
            finding,
            evidence,
            accuser,
            jury: Jury::default(),
        }));
    }

    /// Nobody could be convicted of what a verifier found.
    fn drop_charge(&mut self, evidence: &Evidence) {
        if let (Ok(claim), Evidence::Verdict(_) | Evidence::Recomputation(_)) =
            (claim(&self.manifest, evidence), evidence)
        {
            self.docket.dismiss(claim.round, &claim.subject, &claim.culprit);
        }
    }

    /// AUDIT-23: where two have signed a wrong part, the conviction of one has the other examined.
    fn examine_second(&mut self, evidence: &Evidence) {
        let Evidence::Aggregation(part) = evidence else { return };
        let Ok(result) = part.result.verify(self.run) else { return };
        let view = self.conductor.ledger().round(result.round).into_iter();
        let signed = view.flat_map(|view| view.signed_results_of(result.part));
        let others = signed.filter(|other| other.claimed_signer() != result.author());
        let others: Vec<_> = others.cloned().collect();
        for result in others {
            let evidence = Evidence::Aggregation(Reduction { result, ..part.clone() });
            self.accuse(self.steward.id(), evidence);
        }
    }

    /// The contributions that evidence is about.
    fn brought(&self, evidence: &Evidence) -> Brought {
        let mut brought = Brought::default();
        let Ok(claim) = claim(&self.manifest, evidence) else { return brought };
        match evidence {
            Evidence::Audit(_) | Evidence::Verdict(_) => {
                let key = (claim.round, claim.subject);
                brought.contributions =
                    self.to_be_had(&key, true).map(|q| (key, Vec::clone(q))).into_iter().collect();
            }
            Evidence::Aggregation(_) => {
                brought.contributions = self.counted(claim.round);
                brought.round = self.ledger().round(claim.round).cloned();
            }
            _ => {}
        }
        brought
    }

    fn counted(&self, round: Round) -> Contributions {
        let of_round = (round, MemberId([0; 32]))..=(round, MemberId([255; 32]));
        self.contributions.range(of_round).map(|(key, q)| (*key, Vec::clone(q))).collect()
    }

    /// A whole contribution, unless its author does not let members, or the steward, have what it has not delivered.
    pub(super) fn to_be_had(&self, (round, member): &(Round, MemberId), steward: bool) -> Option<&Vec<i32>> {
        let author = self.nodes.iter().find(|node| node.identity.id() == *member);
        let serves = author.is_none_or(|node| node.player.conduct.serves(*round, steward));
        self.contributions.get(&(*round, *member)).filter(|_| serves).map(|q| &**q)
    }
}
