//! Judging who answers calls: the logits, computed once more.

use super::judgement::{Judgement, Witness};
use crate::error::{Reject, require};
use crate::ids::{MemberId, Round, ShardId};
use crate::layout::Layout;
use crate::manifest::Manifest;
use crate::messages::audit::FindingKind;
use crate::messages::call::{Answer, Ask, fixed, logits_digest};
use crate::messages::evidence::FalseAnswer;
use crate::sign::Verified;
use crate::state::Arithmetic;

/// Whom evidence about an answer accuses, and the round of the offence.
pub(super) fn accused(manifest: &Manifest, call: &FalseAnswer) -> Result<(MemberId, Round), Reject> {
    let (ask, answer) = check(manifest, call)?;
    Ok((answer.author(), offence(ask.round)))
}

/// The round of the offence: the last one that the state has seen. Seats of the round that the state is before need not be
/// sealed yet, and nobody is banned for a round to come (LEDGER-12).
fn offence(round: Round) -> Round {
    Round(round.0.saturating_sub(1))
}

/// CALL-6: the answer is to this question, which the model can be asked.
pub(super) fn check(
    manifest: &Manifest,
    call: &FalseAnswer,
) -> Result<(Verified<Ask>, Verified<Answer>), Reject> {
    let (ask, answer) = (call.ask.verify(manifest.run())?, call.answer.verify(manifest.run())?);
    // The signed question and not its words: an answer to another asker's is another answer.
    require(answer.ask == call.ask.digest(), "the answer names the question that is shown")?;
    ask.check(manifest)?;
    Ok((ask, answer))
}

/// CALL-5: the logits, computed at the named root, have the signed digest, else *false answer*.
pub(super) fn judge(
    manifest: &Manifest,
    call: &FalseAnswer,
    witness: &mut dyn Witness,
    arithmetic: &mut dyn Arithmetic,
) -> Result<Judgement, Reject> {
    let (ask, answer) = check(manifest, call)?;
    // A root that was never sealed is one that no witness has: nobody is blamed for what was answered to it.
    let unavailable =
        || Judgement::Undecided(format!("the state {} before round {} is unavailable", ask.root, ask.round));
    let layout = Layout::of_run(manifest);
    let path: Vec<ShardId> = layout.path(ask.row).collect();
    let state = witness.state(&ask.root, &path);
    let state = state.filter(|state| state.parameters.len() == layout.parameters());
    let Some(state) = state else { return Ok(unavailable()) };
    let computed = arithmetic.logits(manifest, &state, &ask.tokens, usize::from(ask.positions));
    let Some(computed) = computed else {
        return Ok(Judgement::Undecided("this machine computes no logits with defined bits".into()));
    };
    let computed: Vec<i32> = computed.into_iter().map(fixed).collect();
    let digest = logits_digest(&computed);
    if digest == answer.logits {
        return Ok(Judgement::NotGuilty(format!("the logits have the signed digest {digest}")));
    }
    Ok(Judgement::Guilty {
        culprit: answer.author(),
        round: offence(ask.round),
        finding: FindingKind::FalseAnswer,
        detail: format!("the logits give {digest}, signed is {}", answer.logits),
    })
}

#[cfg(test)]
mod tests;
