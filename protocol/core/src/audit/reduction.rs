//! Judging aggregators: a part reduced again, or two results for one part.

use std::collections::BTreeMap;

use super::judgement::{Judgement, Witness};
use crate::contribution::{block_integers, open_block};
use crate::error::{Reject, require};
use crate::ids::{Block, Slot};
use crate::layout::Layout;
use crate::ledger::RoundView;
use crate::manifest::Manifest;
use crate::messages::audit::FindingKind;
use crate::messages::evidence::{Reduction, TwoResults};
use crate::messages::record::{Body, Record};
use crate::messages::round::PartResult;
use crate::messages::wire::BlockData;
use crate::reduction::{SealedInputs, reduce};
use crate::sign::{Signed, Verified};

/// AUDIT-21: the part, reduced again over the sealed inputs, has the signed digest, else *aggregation mismatch*.
pub(super) fn judged(
    manifest: &Manifest,
    evidence: &Reduction,
    witness: &mut dyn Witness,
) -> Result<Judgement, Reject> {
    let result = evidence.result.verify(manifest.run())?;
    // Who had to reduce the part follows from the ledger alone: without the round nobody can be blamed.
    let Some(view) = witness.round(result.round) else {
        return Ok(Judgement::Undecided(format!("round {} is unavailable", result.round)));
    };
    let blocks = check(manifest, evidence, &view, &result)?;
    let layout = Layout::of_run(manifest);
    // As they travel: their integers take four times as much.
    let mut inputs: BTreeMap<(Slot, Block), BlockData> = BTreeMap::new();
    for slot in result.inputs.slots() {
        let commitment =
            view.commitment(slot).ok_or(Reject::Rule("only frozen contributions are counted"))?;
        for block in &blocks {
            let data = witness.block(result.round, &commitment.author, *block);
            let opened = data.filter(|data| data.block == *block);
            // A holder that serves a false block is not the accused: unproved, it is missing.
            let is_proved = |data: &BlockData| open_block(&layout, &commitment.commit.root, data).is_ok();
            let Some(data) = opened.filter(is_proved) else {
                let what = format!("block {block} of {} is unavailable", commitment.author);
                return Ok(Judgement::Undecided(what));
            };
            inputs.insert((slot, *block), data);
        }
    }
    let commitment = |slot| view.commitment(slot);
    let input = |slot, block| block_integers(&layout, inputs.get(&(slot, block))?).ok();
    let sealed = SealedInputs { freeze: result.freeze, slots: &result.inputs };
    let Some(reduced) = reduce(manifest, &layout, &blocks, &sealed, commitment, input) else {
        return Ok(Judgement::Undecided("the rule gives nothing on these inputs".into()));
    };
    if reduced.digest == result.digest {
        return Ok(Judgement::NotGuilty("the part is what the rule gives".into()));
    }
    let detail = format!("part {} is {}, signed is {}", result.part, reduced.digest, result.digest);
    Ok(Judgement::Guilty {
        culprit: result.author(),
        round: result.round,
        finding: FindingKind::AggregationMismatch,
        detail,
    })
}

/// Whether a judge would look at the arithmetic of this evidence at all, by the round as the ledger has it.
///
/// # Errors
/// [`Reject`]: records and result are not of this round, or the part was not its author's to reduce.
pub fn check_reduction(manifest: &Manifest, evidence: &Reduction, view: &RoundView) -> Result<(), Reject> {
    let result = evidence.result.verify(manifest.run())?;
    check(manifest, evidence, view, &result).map(|_| ())
}

/// Checks that the accused signed exactly what was sealed, and that the part was its own.
///
/// Its signature covers R_t, and so every commitment, and the bitmap: no other freeze and no other inputs that
/// somebody signs later can make its result wrong.
///
/// Gives the part's blocks.
fn check(
    manifest: &Manifest,
    evidence: &Reduction,
    view: &RoundView,
    result: &Verified<PartResult>,
) -> Result<Vec<Block>, Reject> {
    let freeze = sealed(manifest, &evidence.freeze)?;
    require(matches!(freeze.body, Body::Freeze(_)), "evidence holds the freeze of its round")?;
    require(
        view.freeze_digest() == Some(freeze.head()) && result.freeze == freeze.head(),
        "freeze, result and ledger are of one round",
    )?;
    let record = sealed(manifest, &evidence.inputs)?;
    let Body::Inputs(inputs) = &record.body else {
        return Err(Reject::Rule("evidence holds the sealed inputs of its round"));
    };
    require(
        inputs.round == result.round && inputs.attempt == result.attempt,
        "the inputs are of the result's attempt",
    )?;
    let place = view.inputs_record(result.part, result.attempt);
    let (own, place) = place.ok_or(Reject::Rule("the ledger has sealed inputs for the part"))?;
    // Else a steward could seal other inputs afterwards, and an honest result would be wrong by them.
    require(own.verify(manifest.run())?.head() == record.head(), "the inputs are those of the ledger")?;
    // The bitmap is in the result: its author cannot claim to have meant other inputs.
    let counted = inputs.parts.get(place).filter(|inputs| **inputs == result.inputs && !inputs.is_empty());
    require(counted.is_some(), "a result is over exactly the sealed inputs")?;
    require(
        // A result that nobody asked for is not a wrong one.
        view.reducers(result.part, result.attempt).any(|reducer| reducer == result.author()),
        "a result is signed by an aggregator of the part",
    )?;
    let plan = view.parts().get(result.part.index()).ok_or(Reject::Rule("a result names a part"))?;
    Ok(plan.blocks.clone())
}

fn sealed(manifest: &Manifest, record: &Signed<Record>) -> Result<Verified<Record>, Reject> {
    let record = record.verify(manifest.run())?;
    if record.author() == manifest.steward { Ok(record) } else { Err(Reject::NotEntitled("seal records")) }
}

/// AUDIT-22: one member, one part and attempt, the same freeze and inputs, and two digests: *equivocation*. The rule
/// gives one.
pub(super) fn judge_results(manifest: &Manifest, pair: &TwoResults) -> Result<Judgement, Reject> {
    let first = pair.first.verify(manifest.run())?;
    let second = pair.second.verify(manifest.run())?;
    // Freeze and inputs, too: over other inputs another digest is right.
    let about =
        |result: &PartResult| (result.round, result.part, result.attempt, result.freeze, result.inputs);
    require(
        first.author() == second.author() && about(&first) == about(&second),
        "two results are of one member, part and attempt, over the same inputs",
    )?;
    if first.digest == second.digest {
        return Ok(Judgement::NotGuilty("the two results are equal".into()));
    }
    Ok(Judgement::Guilty {
        culprit: first.author(),
        round: first.round,
        finding: FindingKind::Equivocation,
        detail: format!("signed {} and {} for part {}", first.digest, second.digest, first.part),
    })
}

#[cfg(test)]
pub(super) mod tests;
