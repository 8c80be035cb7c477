//! Trials: evidence is re-executed, parts that contributors object to are reduced again, bans follow.

use muster_core::audit::{Judgement, claim};
use muster_core::ids::{MemberId, Round};
use muster_core::messages::audit::{Evidence, FindingKind, Jury, Reduction, Total};
use muster_core::messages::record::{Ban, Body};
use muster_core::messages::round::PartResult;
use muster_core::sign::Signed;
use muster_replica::{Brought, Contributions};

use super::Sim;
use super::clock::Event;
use super::steward::banned;

impl Sim {
    /// Has a verifier accuse everyone of a total mismatch in a round; how many that are.
    ///
    /// # Panics
    /// When the round is not frozen, or forgotten.
    pub fn slander(&mut self, watcher: usize, round: Round) -> usize {
        let accuser = self.watchers[watcher].identity.id();
        let view = self.conductor.ledger().round(round).expect("a round that is remembered");
        let freeze = view.freeze().expect("a frozen round").clone();
        let accused: Vec<MemberId> = view.commitments().map(|(_, commitment)| commitment.author).collect();
        for culprit in &accused {
            let total = Evidence::Total(Total { freeze: freeze.clone(), culprit: *culprit });
            self.accused += 1;
            self.clock.after(5, 40, Event::Accuse(accuser, Box::new(total)));
        }
        accused.len()
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
            return;
        };
        if banned(self.ledger(), culprit) {
            return;
        }
        let (culprit, round, finding) = (*culprit, *round, *finding);
        let effective = self.ledger().first_round_without();
        self.examine_second(evidence);
        // DUTY-10: a convicted acquittal has the member examined by the same transcript.
        if let (Evidence::Verdict(verdict), FindingKind::FalseAcquittal) = (evidence, finding) {
            let transcript = Box::new(Evidence::Audit(verdict.transcript.clone()));
            self.accused += 1;
            self.clock.after(5, 40, Event::Accuse(accuser, transcript));
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

    /// AUDIT-23: where two have signed a wrong part, the conviction of one has the other examined.
    fn examine_second(&mut self, evidence: &Evidence) {
        let Evidence::Aggregation(part) = evidence else { return };
        let Ok(result) = part.result.verify(self.run) else { return };
        let view = self.conductor.ledger().round(result.round).into_iter();
        let signed = view.flat_map(|view| view.signed_results_of(result.part));
        let others = signed.filter(|other| other.claimed_signer() != result.author());
        for other in others {
            let evidence = Evidence::Aggregation(Reduction { result: other.clone(), ..part.clone() });
            self.accused += 1;
            self.clock.after(5, 40, Event::Accuse(self.steward.id(), Box::new(evidence)));
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
                    self.to_be_had(&key).map(|q| (key, Vec::clone(q))).into_iter().collect();
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

    /// A whole contribution, unless its author lets nobody have what it has not delivered.
    pub(super) fn to_be_had(&self, (round, member): &(Round, MemberId)) -> Option<&Vec<i32>> {
        let author = self.nodes.iter().find(|node| node.identity.id() == *member);
        let serves = author.is_none_or(|node| node.player.conduct.serves(*round));
        self.contributions.get(&(*round, *member)).filter(|_| serves).map(|q| &**q)
    }
}
