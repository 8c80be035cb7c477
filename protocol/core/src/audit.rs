//! What evidence proves: one function that anyone can run, [`judge`].

mod answer;
pub mod docket;
mod frozen;
mod judgement;
mod misconduct;
mod recomputation;
mod reduction;
mod root;
pub mod roster;
mod seal;
pub mod steps;
mod transcript;
mod verdict;

pub use frozen::{FrozenCommit, frozen_commit};
pub use judgement::{Judgement, Witness};
pub use recomputation::{Recomputing, Sum, committed_total, leaf_state, recompute_sum};
pub use reduction::check_reduction;
pub use root::source;
pub use steps::leaf_coin;
pub use transcript::probe;

use crate::error::Reject;
use crate::ids::{MemberId, Round};
use crate::manifest::Manifest;
use crate::messages::audit::FindingKind;
use crate::messages::evidence::{Equivocation, Evidence, Misconduct, Reduction};
use crate::state::Arithmetic;
use transcript::{check_transcript, judge_audit, judge_total};

/// Whom evidence accuses, and of what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The accused.
    pub culprit: MemberId,
    /// Whose contribution is looked at: the culprit's own, or the one that it judged.
    pub subject: MemberId,
    /// Round of that contribution.
    pub round: Round,
}

/// What evidence claims, by its signatures alone. Against the steward that is no contribution of a round: round 0,
/// but for a wrong root that of the step.
///
/// # Errors
/// [`Reject`] for what is no evidence of anything.
pub fn claim(manifest: &Manifest, evidence: &Evidence) -> Result<Claim, Reject> {
    let run = manifest.run();
    let (culprit, subject, freeze) = match evidence {
        Evidence::Equivocation(pair) => {
            let first = pair.first.verify(run)?;
            return Ok(Claim { culprit: first.author(), subject: first.author(), round: first.round });
        }
        Evidence::Audit(transcript) => {
            let target = transcript.request.verify(run)?.target;
            (target, target, &transcript.freeze)
        }
        Evidence::Total(total) => (total.culprit, total.culprit, &total.freeze),
        Evidence::Aggregation(part) => {
            let result = part.result.verify(run)?;
            return Ok(Claim { culprit: result.author(), subject: result.author(), round: result.round });
        }
        Evidence::Results(pair) => {
            let first = pair.first.verify(run)?;
            return Ok(Claim { culprit: first.author(), subject: first.author(), round: first.round });
        }
        Evidence::Answer(call) => {
            let (culprit, round) = answer::accused(manifest, call)?;
            return Ok(Claim { culprit, subject: culprit, round });
        }
        Evidence::Misconduct(misconduct) => {
            let round = match misconduct {
                Misconduct::Root(wrong) => root::round(manifest, wrong)?,
                _ => Round(0),
            };
            return Ok(Claim { culprit: manifest.steward, subject: manifest.steward, round });
        }
        Evidence::Recomputation(accused) => {
            let said = accused.recomputation.verify(run)?;
            (said.author(), said.target, &accused.freeze)
        }
        Evidence::Verdict(accused) => {
            let target = accused.transcript.request.verify(run)?.target;
            (accused.transcript.verdict.verify(run)?.author(), target, &accused.transcript.freeze)
        }
    };
    // The freeze tells the round: what the accuser says of it would be its own word.
    let frozen = frozen_commit(manifest, freeze, &subject)?;
    Ok(Claim { culprit, subject, round: frozen.commit.round })
}

/// Checks that the steps of a transcript, or question and answer of a call, fit each other, before anything is fetched or
/// recomputed because of them; other evidence has none.
///
/// # Errors
/// [`Reject`] naming the step that does not fit.
pub fn check_steps(manifest: &Manifest, evidence: &Evidence) -> Result<(), Reject> {
    if let Evidence::Answer(call) = evidence {
        return answer::check(manifest, call).map(drop);
    }
    evidence.transcript().map_or(Ok(()), |transcript| check_transcript(manifest, transcript).map(drop))
}

/// Decides evidence by re-executing it.
pub fn judge(
    manifest: &Manifest,
    evidence: &Evidence,
    witness: &mut dyn Witness,
    arithmetic: &mut dyn Arithmetic,
) -> Judgement {
    let decided = match evidence {
        Evidence::Equivocation(pair) => judge_equivocation(manifest, pair),
        Evidence::Audit(transcript) => judge_audit(manifest, transcript, witness, arithmetic),
        Evidence::Total(total) => judge_total(manifest, total, witness, arithmetic),
        // A root alone takes arithmetic; the other misconduct is decided by signatures and the ledger.
        Evidence::Misconduct(Misconduct::Root(wrong)) => root::judge(manifest, wrong, witness, arithmetic),
        Evidence::Misconduct(misconduct) => {
            misconduct::judge(manifest, misconduct, &mut |height| witness.ledger(height))
        }
        Evidence::Verdict(accused) => verdict::judge(manifest, accused, witness, arithmetic),
        Evidence::Aggregation(part) => reduction::judged(manifest, part, witness),
        Evidence::Results(pair) => reduction::judge_results(manifest, pair),
        Evidence::Recomputation(accused) => {
            verdict::judge_recomputation(manifest, accused, witness, arithmetic)
        }
        Evidence::Answer(call) => answer::judge(manifest, call, witness, arithmetic),
    };
    decided.unwrap_or_else(|reject| Judgement::Malformed(reject.to_string()))
}

/// Decides evidence about a part, which needs no arithmetic but the rule's.
pub fn judge_reduction(manifest: &Manifest, part: &Reduction, witness: &mut dyn Witness) -> Judgement {
    let decided = reduction::judged(manifest, part, witness);
    decided.unwrap_or_else(|reject| Judgement::Malformed(reject.to_string()))
}

/// Decides evidence against the steward from the messages alone; an invalid record and a wrong root stay undecided.
pub fn judge_steward(manifest: &Manifest, misconduct: &Misconduct) -> Judgement {
    let decided = misconduct::judge(manifest, misconduct, &mut |_| None);
    decided.unwrap_or_else(|reject| Judgement::Malformed(reject.to_string()))
}

fn judge_equivocation(manifest: &Manifest, pair: &Equivocation) -> Result<Judgement, Reject> {
    let first = pair.first.verify(manifest.run())?;
    let second = pair.second.verify(manifest.run())?;
    // Two commitments of two rounds are what every member signs.
    if first.author() != second.author() || first.round != second.round {
        return Err(Reject::Rule("equivocation is two commitments of one member in one round"));
    }
    // The same body under two signatures contradicts nothing.
    if *first == *second {
        return Ok(Judgement::NotGuilty("the two commitments are equal".into()));
    }
    let detail = format!("committed to {} and to {}", first.root, second.root);
    Ok(Judgement::Guilty {
        culprit: first.author(),
        round: first.round,
        finding: FindingKind::Equivocation,
        detail,
    })
}

#[cfg(test)]
mod tests;
