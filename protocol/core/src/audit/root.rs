//! A sealed state that the sealed results do not give: the round's step, taken again.

use super::judgement::{Judgement, Witness, require};
use super::seal::{guilty, of_round, sealed};
use crate::assign;
use crate::contribution::PartDigest;
use crate::error::Reject;
use crate::ids::{Block, Digest, Height, Part, Round};
use crate::layout::Layout;
use crate::manifest::Manifest;
use crate::messages::evidence::WrongRoot;
use crate::messages::record::Body;
use crate::state::{Arithmetic, StateRoots, Update};

/// The step of a round as the steward has sealed it.
struct Step {
    round: Round,
    /// Of the outcome.
    height: Height,
    /// Root of the state before.
    before: Digest,
    /// The blocks of the parts that have a result, with its digest.
    parts: Vec<(Vec<Block>, Digest)>,
    /// The state after.
    after: StateRoots,
}

/// STATE-5: the sealed state is the one that the sealed results make of the one before.
pub(super) fn judge(
    manifest: &Manifest,
    wrong: &WrongRoot,
    witness: &mut dyn Witness,
    arithmetic: &mut dyn Arithmetic,
) -> Result<Judgement, Reject> {
    let layout = Layout::of(&manifest.model);
    let step = Step::of(manifest, &layout, wrong)?;
    let Step { round, height, before, after, .. } = &step;
    // A state without moments, or of another shape, would give another step without anybody's fault.
    let state = witness.state(before).filter(|state| state.is_whole(&layout) && state.root() == *before);
    let update = witness.update(*round).and_then(|update| step.fitted(&layout, update));
    let (mut state, update) = match (state, update) {
        (Some(state), Some(update)) => (state, update),
        (state, update) => {
            let state =
                state.is_none().then(|| format!("the state {before} before round {round}, with moments"));
            let update = update.is_none().then(|| format!("the aggregate that round {round} sealed"));
            let lacking: Vec<String> = state.into_iter().chain(update).collect();
            return Ok(Judgement::Undecided(format!("unavailable: {}", lacking.join("; "))));
        }
    };
    arithmetic.apply(manifest, &mut state, &update);
    let (computed, sealed) = (state.roots(), after.root());
    if computed == *after {
        return Ok(Judgement::NotGuilty(format!("round {round} gives the sealed state {sealed}")));
    }
    let computed = computed.root();
    let detail = format!("round {round} gives the state {computed}, sealed is {sealed} (record {height})");
    Ok(guilty(manifest, *round, detail))
}

/// What the signatures alone decide: nothing, if they fit.
pub(super) fn unexecuted(manifest: &Manifest, wrong: &WrongRoot) -> Result<Judgement, Reject> {
    let Step { round, .. } = Step::of(manifest, &Layout::of(&manifest.model), wrong)?;
    Ok(Judgement::Undecided(format!("whether round {round} gives the sealed state only re-executing shows")))
}

/// The round that it is about.
pub(super) fn round(manifest: &Manifest, wrong: &WrongRoot) -> Result<Round, Reject> {
    sealed(manifest, &wrong.freeze).map(|freeze| of_round(&freeze))
}

impl Step {
    /// A number is that of one round of a ledger (LEDGER-18), which has one freeze and one outcome, and no Rewind
    /// between: whoever keeps one ledger seals no two records that fit and are of two rounds.
    fn of(manifest: &Manifest, layout: &Layout, wrong: &WrongRoot) -> Result<Self, Reject> {
        let (freeze, record) = (sealed(manifest, &wrong.freeze)?, sealed(manifest, &wrong.outcome)?);
        let (Body::Freeze(frozen), Body::Outcome(outcome)) = (&freeze.body, &record.body) else {
            return Err(Reject::Rule("a wrong root is shown with freeze and outcome of its round"));
        };
        // Records of two rounds would show a step that nobody took.
        require(frozen.round == outcome.round, "freeze and outcome are of one round")?;
        let blocks = assign::blocks(layout, outcome.results.len());
        require(blocks.len() == outcome.results.len(), "an outcome holds one result for each part")?;
        let mut parts = Vec::new();
        for (part, (signed, blocks)) in (0..).map(Part).zip(outcome.results.iter().zip(blocks)) {
            let Some(signed) = signed else { continue };
            let result = signed.verify(manifest.run())?;
            require((result.round, result.part) == (outcome.round, part), "results are in order of parts")?;
            // Ties the outcome to this freeze, and with it to the state that it names.
            require(result.freeze == freeze.head(), "the results are of this freeze")?;
            parts.push((blocks, result.digest));
        }
        let (before, after) = (frozen.state, outcome.state.clone());
        Ok(Self { round: outcome.round, height: record.height, before, parts, after })
    }

    /// An aggregate with the sealed digests; nothing of it in the blocks that were left out.
    fn fitted(&self, layout: &Layout, mut update: Update) -> Option<Update> {
        // Not the witness's word: which blocks were left out follows from the sealed results (ROUND-8).
        update.present = vec![false; layout.blocks().len()];
        for (blocks, sealed) in &self.parts {
            let mut digest = PartDigest::default();
            for block in blocks {
                digest = digest.block(update.values.get(layout.block(*block)?.range.clone())?);
                *update.present.get_mut(block.index())? = true;
            }
            // Values that were not sealed prove nothing about the step.
            if digest.finish() != *sealed {
                return None;
            }
        }
        (update.values.len() == layout.parameters()).then_some(update)
    }
}

#[cfg(test)]
mod tests;
