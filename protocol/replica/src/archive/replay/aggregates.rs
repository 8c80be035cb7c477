//! The aggregate of a round: reduced again from all contributions, or the archived one, and compared with the sealed
//! results either way.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use muster_core::contribution::PartDigest;
use muster_core::ids::{Block, Digest, MemberId, Part, Slot};
use muster_core::layout::Layout;
use muster_core::ledger::RoundView;
use muster_core::messages::round::PartResult;
use muster_core::reduction::{SealedInputs, reduce};
use muster_core::rounding::{BlockValues, ResultGrid};
use muster_core::state::Update;
use muster_store::reading;

use super::Replay;
use super::contributions::RecomputedRound;
use crate::archive::{BadContribution, ReplayError};
use crate::crew::spread;

/// For each slot, the sum of its factors weighted by coefficients, and that weight.
type Factors = BTreeMap<Slot, (f64, f64)>;

impl Replay<'_> {
    /// The aggregate of a round: by the rule from all contributions, else the archived one, the drawn contributions
    /// checked.
    pub(super) fn update(
        &mut self,
        view: &RoundView,
        told: &(dyn Fn() + Sync),
    ) -> Result<Update, ReplayError> {
        let counted: Vec<Slot> =
            view.commitments().map(|(slot, _)| slot).filter(|slot| view.counted(*slot)).collect();
        let takes = |slot: &Slot| self.plan.sample.is_none_or(|sample| sample.takes(view.round(), *slot));
        let drawn: Vec<Slot> = counted.iter().copied().filter(takes).collect();
        let checked = self.contributions(view, &drawn, told)?;
        self.recomputed += drawn.len() as u64;
        // The rule takes every input: with a sample, the sealed sums stand for the others.
        let (update, factors) = if drawn.len() == counted.len() {
            self.reduced(view, &checked)?
        } else {
            (self.archived(view)?, Factors::new())
        };
        for slot in checked.bad.keys() {
            let member = view.member_at(*slot).unwrap_or(MemberId([0; 32]));
            let factor = factors.get(slot).map(|(sum, weight)| sum / weight);
            self.replayed.bad.push(BadContribution { round: view.round(), member, factor });
        }
        Ok(update)
    }

    /// The update of a round by the run's rule, and what the rule left of each slot.
    fn reduced(
        &self,
        view: &RoundView,
        RecomputedRound { sums: contributions, missing, .. }: &RecomputedRound,
    ) -> Result<(Update, Factors), ReplayError> {
        let layout = self.ledger.layout();
        let commitment = |slot: Slot| view.commitment(slot);
        let input =
            |slot: Slot, block: Block| contributions.get(&slot)?.get(layout.block(block)?.range.clone());
        let jobs: Vec<(Part, Block)> = result_blocks(view).collect();
        let blocks = spread(self.plan.threads, jobs.clone(), |(part, block)| {
            let slots = view.inputs().get(part.index())?;
            let inputs = SealedInputs { freeze: view.freeze_digest()?, slots };
            reduce(&self.archive.manifest, layout, &[block], &inputs, commitment, input)
        });
        let (mut update, mut factors) = (Update::empty(layout, view.open_shards(layout)), Factors::new());
        for ((part, block), reduced) in jobs.into_iter().zip(blocks) {
            let reduced = reduced.ok_or_else(|| differs(view, part))?;
            let values = reduced.values.into_iter().next().ok_or_else(|| differs(view, part))?;
            let values = Arc::new(BlockValues::of(ResultGrid::of(layout, block), values));
            let size = values.count() as f64;
            update.put_held(layout, block, values).ok_or_else(|| differs(view, part))?;
            for (slot, factor) in reduced.factors {
                let (sum, weight) = factors.entry(slot).or_default();
                *sum += factor * size;
                *weight += size;
            }
        }
        // After the reduction: what counted is what was sealed, even where the rule gives something else.
        self.put_kept_parts(view, missing, &mut update)?;
        // Last, over all parts: kept values come from the archive, too, and nothing in it is believed.
        self.check_results(view, &update, |result| self.wrong_part(view, result, &update))?;
        Ok((update, factors))
    }

    /// The values of the parts of convicts, and of those of which a convict's integers are missing, as they were kept: they
    /// counted, and may not be what the rule gives, or cannot be combined again.
    fn put_kept_parts(
        &self,
        view: &RoundView,
        missing: &BTreeSet<Part>,
        update: &mut Update,
    ) -> Result<(), ReplayError> {
        let layout = self.ledger.layout();
        for (plan, result) in view.parts().iter().zip(view.results().unwrap_or_default()) {
            let Some(result) = result else { continue };
            let convicted = view.signers(result.part).any(|signer| self.outlook.convicts.contains(&signer));
            if !convicted && !missing.contains(&result.part) {
                continue;
            }
            let (round, part) = (view.round(), result.part);
            let wrong = |why: &str| ReplayError::Wrong(format!("round {round}, part {part}: {why}"));
            let Some(kept) = reading::part_exhibit(&self.archive.folder, layout, round, part)? else {
                // Without exhibits the reduction stands if it is the sealed one: a convict may have reduced this part
                // rightly.
                if digest_of(layout, &plan.blocks, update) == Some(result.digest) {
                    continue;
                }
                return Err(wrong("its author was convicted, and the values are missing"));
            };
            let mut rest = kept.as_slice();
            for block in &plan.blocks {
                let length = layout.block(*block).map_or(0, |block| block.range.len());
                let (own, after) =
                    rest.split_at_checked(length).ok_or_else(|| wrong("the kept values are cut short"))?;
                update.put(layout, *block, own).ok_or_else(|| differs(view, part))?;
                rest = after;
            }
        }
        Ok(())
    }

    /// The aggregate that the archive keeps, which must be the sealed one.
    fn archived(&self, view: &RoundView) -> Result<Update, ReplayError> {
        let round = view.round();
        let kept = reading::aggregate(&self.archive.folder, self.ledger.layout(), round)?.ok_or_else(|| {
            ReplayError::Wrong(format!(
                "the aggregate of round {round} is not in updates/: to recompute only a share of the contributions, the \
                 others' sum must be there (muster host --keep-aggregates); without, replay everything"
            ))
        })?;
        let layout = self.ledger.layout();
        let mut update = Update::empty(layout, view.open_shards(layout));
        for (part, block) in result_blocks(view) {
            let values = kept.held(layout, block).ok_or_else(|| differs(view, part))?.clone();
            update.put_held(layout, block, values).ok_or_else(|| differs(view, part))?;
        }
        self.check_results(view, &update, |result| differs(view, result.part))?;
        Ok(update)
    }

    /// Checks the values of every part against the sealed results; `otherwise` says what a difference means.
    pub(super) fn check_results(
        &self,
        view: &RoundView,
        update: &Update,
        otherwise: impl Fn(&PartResult) -> ReplayError,
    ) -> Result<(), ReplayError> {
        let layout = self.ledger.layout();
        for (plan, result) in view.parts().iter().zip(view.results().unwrap_or_default()) {
            let Some(result) = result else { continue };
            if digest_of(layout, &plan.blocks, update) != Some(result.digest) {
                return Err(otherwise(result));
            }
        }
        Ok(())
    }

    /// Says of a part that counted and is not what the rule gives: whose it is, what that proves, and where the archive
    /// has the aggregate, which blocks are wrong.
    fn wrong_part(&self, view: &RoundView, result: &PartResult, right: &Update) -> ReplayError {
        let (layout, part) = (self.ledger.layout(), result.part);
        let plan = view.parts().get(part.index());
        let blocks = plan.map_or(&[][..], |plan| &plan.blocks);
        let kept = reading::aggregate(&self.archive.folder, layout, view.round()).ok().flatten();
        let kept = kept.filter(|kept| digest_of(layout, blocks, kept) == Some(result.digest));
        let differs = |block: &&Block| {
            let bits = |update: &Update| {
                let values = update.block(layout, **block)?;
                // Bits, since equal numbers may differ in them: −0 and 0.
                Some(values.iter().map(|value| value.to_bits()).collect::<Vec<u32>>())
            };
            kept.as_ref().is_some_and(|kept| bits(kept) != bits(right))
        };
        let wrong: Vec<String> = blocks.iter().filter(differs).map(|block| block.to_string()).collect();
        let wrong = match wrong.len() {
            0 => "which blocks are wrong only the aggregate would show (updates/)".to_owned(),
            _ => format!("wrong are the blocks {}", wrong.join(", ")),
        };
        let signers: Vec<String> = view.signers(part).map(|signer| format!("{signer:#}")).collect();
        ReplayError::Wrong(format!(
            "round {}, part {part}: the sealed result is not what the rule gives on the sealed inputs; {wrong}. It was \
             signed by {}: an aggregation mismatch, proved by that signature and what was recomputed here, of which \
             nobody was convicted in the run",
            view.round(),
            signers.join(" and by "),
        ))
    }
}

/// What an aggregator signs for these values of its blocks.
fn digest_of(layout: &Layout, blocks: &[Block], update: &Update) -> Option<Digest> {
    let mut digest = PartDigest::default();
    for block in blocks {
        digest = digest.block(&update.block(layout, *block)?);
    }
    Some(digest.finish())
}

/// The blocks of the parts that have a result, with their parts.
fn result_blocks(view: &RoundView) -> impl Iterator<Item = (Part, Block)> + '_ {
    let results = view.results().unwrap_or_default().iter().flatten();
    let parts = results.filter_map(|result| Some((result.part, view.parts().get(result.part.index())?)));
    parts.flat_map(|(part, plan)| plan.blocks.iter().map(move |block| (part, *block)))
}

pub(super) fn differs(view: &RoundView, part: Part) -> ReplayError {
    ReplayError::Wrong(format!(
        "round {}, part {part}: the values at hand are not those of the sealed result",
        view.round()
    ))
}
