//! A sealed state that the sealed results do not give: the round's step, taken again.

use super::judgement::{Judgement, Witness};
use super::seal::{guilty, of_round, sealed};
use crate::assign::{open_shards, parts_in};
use crate::contribution::PartDigest;
use crate::error::{Reject, require};
use crate::ids::{Block, Digest, Height, Part, Round, ShardId};
use crate::layout::Layout;
use crate::manifest::Manifest;
use crate::messages::evidence::{Evidence, Misconduct, WrongRoot};
use crate::messages::record::{Body, Record};
use crate::sign::Verified;
use crate::state::{Arithmetic, ShardRoots, State, StateRoots, Update};

/// The step of one shard in a round, as the steward has sealed it.
struct Step {
    round: Round,
    /// Of the outcome.
    height: Height,
    /// Roots of the state before.
    before: StateRoots,
    /// The shard that takes the step: the one that is said to be wrong, or the row that it is a copy of.
    from: ShardId,
    /// The shard's blocks in parts that have a result, with its digest.
    parts: Vec<(Vec<Block>, Digest)>,
    /// The round whose results it takes; none where it takes no step.
    source: Option<Round>,
    /// The shard after the round.
    after: ShardRoots,
    /// The state after the round.
    sealed: StateRoots,
    /// Whether its leaves were computed on the state before the one that it changes (ROUND-28).
    behind: bool,
}

/// STATE-5: the sealed shard is the one that the sealed results make of the one before.
pub(super) fn judge(
    manifest: &Manifest,
    wrong: &WrongRoot,
    witness: &mut dyn Witness,
    arithmetic: &mut dyn Arithmetic,
) -> Result<Judgement, Reject> {
    let layout = Layout::of_run(manifest);
    let step = Step::of(manifest, &layout, wrong)?;
    let Step { round, height, before, after, from, .. } = &step;
    // A state without moments, or of another shape, would give another step without anybody's fault.
    let held = |state: &State| state.held().eq([*from]) && state.is_whole(&layout);
    let state = witness.state(&before.root(), &[*from]);
    let state = state.filter(|state| held(state) && before.with(state) == *before);
    let source = step.source.unwrap_or(*round);
    let update = witness.update(source).and_then(|update| step.fitted(&layout, &update));
    let (mut state, update) = match (state, update) {
        (Some(state), Some(update)) => (state, update),
        (state, update) => {
            let root = before.root();
            let state =
                state.is_none().then(|| format!("the state {root} before round {round}, with moments"));
            let update = update.is_none().then(|| format!("the aggregate that round {source} sealed"));
            let lacking: Vec<String> = state.into_iter().chain(update).collect();
            return Ok(Judgement::Undecided(format!("unavailable: {}", lacking.join("; "))));
        }
    };
    arithmetic.apply(manifest, &mut state, &update);
    let of_shard = format!("shard {} of the state after round {round}", wrong.shard);
    match state.roots().shards.first() {
        Some(computed) if computed == after => {
            Ok(Judgement::NotGuilty(format!("{of_shard} is what the results give")))
        }
        _ => {
            let detail =
                format!("{of_shard}, {}, is not what the results give (record {height})", step.sealed.root());
            Ok(guilty(manifest, *round, detail))
        }
    }
}

/// What the signatures alone decide: nothing, if they fit.
pub(super) fn unexecuted(manifest: &Manifest, wrong: &WrongRoot) -> Result<Judgement, Reject> {
    let Step { round, .. } = Step::of(manifest, &Layout::of_run(manifest), wrong)?;
    Ok(Judgement::Undecided(format!("whether round {round} gives the sealed state only re-executing shows")))
}

/// The round whose aggregate shows a wrong root; none for other evidence.
pub fn source(manifest: &Manifest, evidence: &Evidence) -> Option<Round> {
    let Evidence::Misconduct(Misconduct::Root(wrong)) = evidence else { return None };
    let freeze = wrong.earlier.as_ref().map_or(&wrong.freeze, |earlier| &earlier.freeze);
    sealed(manifest, freeze).ok().map(|freeze| of_round(&freeze))
}

/// The round that it is about.
pub(super) fn round(manifest: &Manifest, wrong: &WrongRoot) -> Result<Round, Reject> {
    sealed(manifest, &wrong.freeze).map(|freeze| of_round(&freeze))
}

/// The blocks of a shard in those parts of a round that have a result, with its digest.
fn parts_of(
    manifest: &Manifest,
    layout: &Layout,
    freeze: &Verified<Record>,
    record: &Verified<Record>,
    shard: ShardId,
) -> Result<Vec<(Vec<Block>, Digest)>, Reject> {
    let (Body::Freeze(frozen), Body::Outcome(outcome)) = (&freeze.body, &record.body) else {
        return Err(Reject::Rule("results are shown with freeze and outcome of their round"));
    };
    // Records of two rounds would show a step that nobody took.
    require(frozen.round == outcome.round, "freeze and outcome are of one round")?;
    // Each commitment names the open rows, and the ledger has compared it with the seats.
    let commit = frozen.commits.first().ok_or(Reject::Rule("a freeze holds a commitment"))?;
    let shards = open_shards(layout, commit.verify(manifest.run())?.route.as_ref());
    let plans = parts_in(layout, manifest.planes_in(frozen.round), &shards, outcome.results.len());
    let plans = plans.ok_or(Reject::Rule("an outcome holds one result for each part"))?;
    let mut parts = Vec::new();
    for (part, (signed, (of, blocks))) in (0..).map(Part).zip(outcome.results.iter().zip(plans)) {
        let Some(signed) = signed else { continue };
        let result = signed.verify(manifest.run())?;
        require((result.round, result.part) == (outcome.round, part), "results are in order of parts")?;
        // Ties the outcome to this freeze, and with it to the state that it names.
        require(result.freeze == freeze.head(), "the results are of this freeze")?;
        if of == shard {
            parts.push((blocks, result.digest));
        }
    }
    Ok(parts)
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
        require(wrong.before.root() == frozen.state, "the roots are those of the state before the round")?;
        let after = outcome.state.shard(wrong.shard).copied();
        let after = after.ok_or(Reject::Rule("the state after the round has the shard"))?;
        // STATE-8: rows that come to be in this round are copies of the one there was.
        let branches = outcome.state.rows() > wrong.before.rows();
        let from = if branches { ShardId(wrong.shard.0.min(1)) } else { wrong.shard };
        require(wrong.before.shard(from).is_some(), "the state before the round has the shard")?;
        // ROW-6: the Outcome names whose results the shard takes. A shard that it does not name keeps everything.
        let step = outcome.shard_steps().into_iter().find(|step| step.shard == from);
        let earlier = step.filter(|step| step.round != outcome.round);
        require(
            earlier.is_some() == wrong.earlier.is_some(),
            "what sealed the results is shown, and nothing else",
        )?;
        let parts = match (&step, &wrong.earlier) {
            (None, _) => Vec::new(),
            (Some(_), None) => parts_of(manifest, layout, &freeze, &record, from)?,
            (Some(step), Some(earlier)) => {
                let (freeze, record) =
                    (sealed(manifest, &earlier.freeze)?, sealed(manifest, &earlier.outcome)?);
                require(
                    of_round(&freeze) == step.round,
                    "the results are of the round that the outcome names",
                )?;
                parts_of(manifest, layout, &freeze, &record, from)?
            }
        };
        let source = step.map(|step| step.round);
        let before = wrong.before.clone();
        let (round, height, sealed) = (outcome.round, record.height, outcome.state.clone());
        // Where nobody has committed there are no results, whose units could matter.
        let commit = frozen.commits.first().map(|commit| commit.verify(manifest.run())).transpose()?;
        let behind = commit.is_some_and(|commit| commit.state != frozen.state);
        Ok(Self { round, height, before, from, parts, source, after, sealed, behind })
    }

    /// The shard's part of an aggregate with the sealed digests; nothing of it in the blocks that were left out.
    fn fitted(&self, layout: &Layout, update: &Update) -> Option<Update> {
        if !update.fits(layout) {
            return None;
        }
        // Not the witness's word: which blocks were left out follows from the sealed results (ROUND-8).
        let mut fitted = Update::empty(layout, self.source.map(|_| self.from));
        fitted.behind = self.behind;
        if self.source.is_some_and(|source| source != self.round) {
            fitted.late.push(self.from);
        }
        for (blocks, sealed) in &self.parts {
            let mut digest = PartDigest::default();
            for block in blocks {
                let values = update.held(layout, *block)?;
                digest = digest.block(&values.reals());
                fitted.put_held(layout, *block, values.clone())?;
            }
            // Values that were not sealed prove nothing about the step.
            if digest.finish() != *sealed {
                return None;
            }
        }
        Some(fitted)
    }
}

#[cfg(test)]
mod tests;
