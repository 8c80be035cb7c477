//! Guilty findings that the steward must examine (DUTY-10).

use super::Docket;
use crate::audit::claim;
use crate::ids::{Digest, MemberId, Round};
use crate::ledger::Ledger;
use crate::messages::evidence::{Evidence, FalseRecomputation, FalseVerdict, Total};

/// What a verifier's finding against a member rests on.
#[derive(Clone, Copy, Debug)]
pub(super) enum Charge {
    /// An audit, by the name of its request.
    Verdict(Digest),
    /// All leaves.
    Recomputation,
}

impl Docket {
    /// Whether a verifier that is not banned finds a contribution guilty, and nobody has decided yet. Where there is a
    /// tolerance, jurors that say nothing would hold up everybody: there no round waits for them.
    pub(super) fn is_charged(&self, ledger: &Ledger, round: Round, target: &MemberId) -> bool {
        let open = !ledger.is_banned(target) && self.chargers(ledger, round, target).next().is_some();
        open && !ledger.regime().needs_jury()
    }

    /// Verifiers that find a contribution guilty, and are not banned for it.
    pub(super) fn chargers<'a>(
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
            Some((*verifier, self.charge(ledger, *round, target, *charge)?))
        });
        charges.collect()
    }

    fn charge(&self, ledger: &Ledger, round: Round, target: &MemberId, charge: Charge) -> Option<Evidence> {
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
}
