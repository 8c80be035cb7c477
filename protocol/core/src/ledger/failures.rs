//! Members that let a round wait in vain: they lose their seats, and the next time for longer.

use super::{Ledger, RoundView, Stage, Standing};
use crate::ids::{MemberId, Part, Round, Slot};
use crate::limits;
use crate::messages::round::Bitmap;

impl Ledger {
    /// LEDGER-20: a seat that has failed.
    ///
    /// Who is away or silent has failed already: a round holds one failure against a member.
    pub(super) fn fail(&mut self, id: &MemberId, round: Round) {
        if self.member(id).is_some_and(|member| member.standing == Standing::Active) {
            self.count_failure(id, round);
        }
    }

    /// LEDGER-20: who is silent about a round that is forgotten is away. Nobody could take its answer any more, and one
    /// that computes other bits than before (TOL-7) never had one.
    pub(super) fn write_off(&mut self, oldest: Round) {
        for member in self.settle(|debt| debt.round < oldest) {
            self.stand(&member, Standing::Away);
        }
    }

    /// LEDGER-20: who has failed is away, and may have a seat again after 2^(n − 1) rounds, n its failures.
    pub(super) fn count_failure(&mut self, id: &MemberId, round: Round) {
        self.stand(id, Standing::Away);
        self.note_failure(id, round);
    }

    /// LEDGER-20: the same of one that stands otherwise.
    pub(super) fn note_failure(&mut self, id: &MemberId, round: Round) {
        let Some(member) = self.member_mut(id) else { return };
        member.failures = member.failures.saturating_add(1).min(limits::FAILURES);
        member.good_rounds = 0;
        let pause = 1u32 << (u32::from(member.failures) - 1).min(31);
        member.barred = Round(round.0.saturating_add(pause));
    }

    /// Whether a member sits out failures. Between rounds, and after the last one, nobody does: no round waits then.
    pub fn is_barred(&self, barred: Round) -> bool {
        !matches!(self.stage, Stage::Gathering | Stage::Auditing) && self.first_round_without() < barred
    }

    /// Seats with weight that have committed and are in no part, while others are in some. Any of them that is there
    /// could have had itself counted by the steward (ROUND-24), whatever aggregators say.
    pub(super) fn miss_uncounted(&mut self, parts: &[Bitmap]) {
        let Some(view) = self.rounds.back() else { return };
        if parts.iter().all(Bitmap::is_empty) {
            return;
        }
        let counted = |slot: Slot| parts.iter().any(|inputs| inputs.contains(slot));
        let missed = view.commitments().filter(|(slot, c)| c.weight > 0 && !counted(*slot));
        let missed: Vec<MemberId> = missed.map(|(_, commitment)| commitment.author).collect();
        let round = view.round();
        missed.iter().for_each(|member| self.fail(member, round));
    }

    /// Once a round is over: aggregators whose parts had inputs and whose word is not sealed have failed; rounds in
    /// which a member counted make its failures be forgotten.
    pub(super) fn judge_round(&mut self) {
        let Some(view) = self.rounds.back() else { return };
        let failed: Vec<MemberId> = view.missed().iter().copied().chain(silent_aggregators(view)).collect();
        let counted = view.commitments().filter(|(slot, _)| view.counted(*slot));
        // A verifier that is still there has done its duty so far.
        let counted =
            counted.map(|(_, commitment)| commitment.author).chain(view.inspectors().iter().copied());
        let counted: Vec<MemberId> = counted.collect();
        let round = view.round();
        for member in &counted {
            let Some(member) = self.member_mut(member).filter(|member| member.failures > 0) else { continue };
            member.good_rounds += 1;
            if member.good_rounds >= limits::FORGIVING {
                member.failures -= 1;
                member.good_rounds = 0;
            }
        }
        failed.iter().for_each(|member| self.fail(member, round));
    }
}

/// Who had to reduce a part that counts somebody, in the last attempt, and has not signed what was sealed.
fn silent_aggregators(view: &RoundView) -> impl Iterator<Item = MemberId> + '_ {
    let parts = view.inputs().iter().enumerate().filter(|(_, inputs)| !inputs.is_empty());
    let parts = parts.map(|(part, _)| Part(part as u16));
    parts.flat_map(move |part| {
        let signed = move |member: &MemberId| view.signers(part).any(|signer| signer == *member);
        view.aggregating(part).filter(move |member| !signed(member))
    })
}
