//! Members that let a round wait in vain: they lose their seats, each time for longer (LEDGER-20).

use std::collections::BTreeSet;

use super::{Ledger, Member, RoundView};
use crate::bug::OrBug;
use crate::ids::{MemberId, Part, Round, Slot};
use crate::messages::record::Outcome;
use crate::messages::round::Bitmap;
use crate::sign::Signed;

impl Ledger {
    /// Whether a member sits out failures. Between rounds, and after the last one, nobody does: no round waits then.
    pub fn is_barred(&self, barred: Round) -> bool {
        self.chain.is_barred(barred)
    }

    /// Whether a member is away and may not return yet.
    pub fn sits_out(&self, member: &Member) -> bool {
        self.roster.sits_out(&self.chain, member)
    }

    /// Seats with weight that have committed and are in no part, while others are in some. Any of them that is there
    /// could have had itself counted by the steward (ROUND-24), whatever aggregators say.
    pub(super) fn miss_uncounted(&mut self, parts: &[Bitmap]) {
        let Some(view) = self.rounds.back().or_bug("a round whose inputs are sealed") else { return };
        // Where nobody counts, it was not the members that failed.
        if parts.iter().all(Bitmap::is_empty) {
            return;
        }
        let counted = |slot: Slot| parts.iter().any(|inputs| inputs.contains(slot));
        // Missing from some parts is no failure: two or three aggregators may refuse a victim.
        let missed = view.commitments().filter(|(slot, c)| c.weight > 0 && !counted(*slot));
        let missed: Vec<MemberId> = missed.map(|(_, commitment)| commitment.author).collect();
        let round = view.round();
        self.roster.apply_failures(&missed, round, self.chain.height());
    }

    /// LEDGER-20: the seats that fail at this outcome of the open round: aggregators whose part had inputs and whose
    /// signature is missing and, in a round without weight, members whose missing echo keeps it from being audited.
    pub(super) fn failed_at(&self, outcome: &Outcome) -> BTreeSet<MemberId> {
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
        let second = outcome.seconds.iter().filter_map(|signed| signed.verify(self.run()).ok());
        first.chain(second.map(|second| (second.part, second.author()))).collect()
    }

    /// Ends a round for its members: those that counted come closer to forgiveness, and those that failed at the
    /// outcome have one failure more.
    pub(super) fn judge_round(&mut self, failed: &BTreeSet<MemberId>) {
        let Some(view) = self.rounds.back().or_bug("a round that is over") else { return };
        let counted = view.commitments().filter(|(slot, _)| view.counted(*slot));
        // A verifier that is still there has done its duty so far.
        let counted =
            counted.map(|(_, commitment)| commitment.author).chain(view.inspectors().iter().copied());
        let counted: Vec<MemberId> = counted.collect();
        let round = view.round();
        // LEDGER-20: forgiving comes first. A good round is one in which the member counted, whatever it failed in
        // besides.
        self.roster.apply_good_round(&counted);
        self.roster.apply_failures(failed, round, self.chain.height());
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
