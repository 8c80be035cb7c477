//! Accusations: the evidence, its claim, and whether the examination fetches something.

use muster_core::audit::Claim;
use muster_core::ids::{Digest, MemberId};
use muster_core::ledger::Ledger;
use muster_core::messages::audit::{Finding, FindingKind};
use muster_core::messages::evidence::{Equivocation, Evidence, TwoResults};
use muster_core::messages::record::Body;
use muster_core::messages::round::{Commit, PartResult};
use muster_core::sign::Signed;

/// Evidence on its way to a judgement.
#[derive(Clone)]
pub struct Allegation {
    /// The evidence.
    pub evidence: Evidence,
    /// The digest of the evidence.
    pub digest: Digest,
    /// The member that accuses.
    pub accuser: MemberId,
    /// The member that is accused, and the contribution or part that the evidence is about.
    pub claim: Claim,
    /// Whether the evidence is a verifier's finding, which the steward has to examine (DUTY-10).
    pub owed: bool,
    /// How often it was examined and could not be decided.
    pub tries: u32,
    /// What was answered, if the evidence is an answer to a call.
    pub reply: Option<Reply>,
}

/// An answer to a call, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    /// Digest of the signed question.
    ask: Digest,
    /// Digest of the logits.
    logits: Digest,
}

impl Reply {
    /// What was answered, by evidence of kind *Answer* whose signatures are right.
    pub(super) fn of(ledger: &Ledger, evidence: &Evidence) -> Option<Self> {
        let Evidence::Answer(call) = evidence else { return None };
        let answer = call.answer.verify(ledger.run()).ok()?;
        Some(Self { ask: answer.ask, logits: answer.logits })
    }

    /// Whether both answer one question differently, so that one of them is false.
    pub(super) fn contradicts(self, other: Self) -> bool {
        self.ask == other.ask && self.logits != other.logits
    }
}

/// Evidence of two different commitments of one member in one round, if `second` differs from the held or
/// frozen one.
pub(super) fn equivocation(
    ledger: &Ledger,
    held: Option<&Signed<Commit>>,
    second: &Signed<Commit>,
) -> Option<Evidence> {
    let run = ledger.run();
    let said = second.verify(run).ok()?;
    // A late second commitment contradicts the frozen one, though the conductor holds no commitment any more.
    let frozen = ledger.round(said.round).and_then(|view| view.freeze()?.verify(run).ok());
    let frozen = frozen.and_then(|record| match &record.body {
        Body::Freeze(freeze) => {
            freeze.commits.iter().find(|commit| commit.claimed_signer() == said.author()).cloned()
        }
        _ => None,
    });
    let first = held.filter(|held| held.claimed_signer() == said.author()).cloned().or(frozen)?;
    let before = first.verify(run).ok().filter(|before| before.round == said.round)?;
    (*before != *said).then(|| Evidence::Equivocation(Equivocation { first, second: second.clone() }))
}

/// Whether two honest machines with one key can have signed both commitments: one machine had time for fewer
/// leaves, or, with a tolerance, their sums of the same leaves differ.
pub(super) fn is_of_two_machines(ledger: &Ledger, evidence: &Evidence) -> bool {
    let Evidence::Equivocation(pair) = evidence else { return false };
    let leaves = |signed: &Signed<Commit>| signed.verify(ledger.run()).ok().map(|commit| commit.leaves);
    !ledger.manifest().profile.has_defined_bits() || leaves(&pair.first) != leaves(&pair.second)
}

/// Evidence of two different results for one part, if `second` differs from the held or sealed one over the
/// same inputs.
pub(super) fn two_results(
    ledger: &Ledger,
    held: Option<&Signed<PartResult>>,
    second: &Signed<PartResult>,
) -> Option<Evidence> {
    let said = second.verify(ledger.run()).ok()?;
    let sealed = ledger.round(said.round).into_iter().flat_map(|view| view.signed_results_of(said.part));
    // AUDIT-22: over other inputs, or in another attempt, the rule may give another digest.
    let about =
        |result: &PartResult| (result.round, result.part, result.attempt, result.freeze, result.inputs);
    let contradicts = |first: &&Signed<PartResult>| {
        first.verify(ledger.run()).is_ok_and(|first| {
            first.author() == said.author() && about(&first) == about(&said) && first.digest != said.digest
        })
    };
    let first = held.into_iter().chain(sealed).find(contradicts)?.clone();
    Some(Evidence::Results(TwoResults { first, second: second.clone() }))
}

/// Whether the examination of evidence may have to fetch something. In `exact` findings about leaves, drawn
/// ones or all of them, are decided without the integers, and so are most acquittals.
pub(super) fn fetches(ledger: &Ledger, evidence: &Evidence, claim: &Claim) -> bool {
    let exact = ledger.manifest().profile.leaves_stand_for_integers();
    let view = ledger.round(claim.round);
    let frozen = view
        .is_some_and(|view| view.slot_of(&claim.subject).is_some_and(|slot| view.commitment(slot).is_some()));
    let by_leaves =
        |finding| matches!(finding, Finding::Guilty(FindingKind::LeafMismatch | FindingKind::TotalMismatch));
    match evidence {
        Evidence::Audit(transcript) if exact => {
            let verdict = transcript.verdict.verify(ledger.run());
            !verdict.is_ok_and(|verdict| by_leaves(verdict.finding))
        }
        Evidence::Verdict(_) if exact => false,
        // TOL-6: where leaves need not be equal, a total is compared by its integers.
        Evidence::Total(_) if exact => false,
        Evidence::Audit(_) | Evidence::Verdict(_) | Evidence::Total(_) => frozen,
        Evidence::Aggregation(_) => view.is_some(),
        Evidence::Equivocation(_)
        | Evidence::Results(_)
        | Evidence::Recomputation(_)
        | Evidence::Misconduct(_)
        // The call names its state, and brings its own text.
        | Evidence::Answer(_) => false,
    }
}
