//! What an archive keeps of a convict's contribution that nobody can recompute: opened block by block.

use std::collections::BTreeSet;
use std::path::Path;

use muster_core::contribution::{Commitment, open_block};
use muster_core::ids::{Block, MemberId, Part, Round, Slot};
use muster_core::layout::Layout;
use muster_core::ledger::RoundView;
use muster_core::messages::wire::BlockData;
use muster_store::reading;

use super::ReplayError;

/// A contribution as far as it counted.
pub(super) struct CountedContribution {
    /// The integers; zero in blocks that never counted and are not kept.
    pub(super) q: Vec<i32>,
    /// The blocks that are kept with their proofs; none where the whole contribution is kept, which proves itself.
    pub(super) blocks: Vec<BlockData>,
    /// Parts in which it counted and of which nobody showed it: the values that were applied are kept instead.
    pub(super) missing: BTreeSet<Part>,
}

/// A slot's contribution as it was committed: whole where the archive has that, else the proved blocks of its parts. All
/// blocks of the parts in which it counted must be there; the others are needed by nobody.
///
/// # Errors
/// [`ReplayError::Wrong`] naming the round, the member and the block that is missing or not what was committed.
pub(super) fn exhibit(
    folder: &Path,
    layout: &Layout,
    view: &RoundView,
    slot: Slot,
) -> Result<CountedContribution, ReplayError> {
    let (round, commitment) = (view.round(), view.commitment(slot));
    let commitment =
        commitment.ok_or_else(|| ReplayError::Wrong(format!("round {round} has no slot {slot}")))?;
    let (who, root) = (commitment.author, commitment.commit.root);
    if let Some(q) = reading::exhibit(folder, layout, round, &who)? {
        if q.len() == layout.coefficients() && Commitment::new(layout, &q).root() == root {
            return Ok(CountedContribution { q, blocks: Vec::new(), missing: BTreeSet::new() });
        }
        let what = format!("round {round}: the exhibit of {who} is not what it committed to");
        return Err(ReplayError::Wrong(what));
    }
    let q = vec![0; layout.coefficients()];
    let mut exhibit = CountedContribution { q, blocks: Vec::new(), missing: BTreeSet::new() };
    let mut proved = BTreeSet::new();
    for part in (0..view.parts().len()).map(|part| Part(part as u16)) {
        for data in reading::exhibited_blocks(folder, layout, round, &who, part)?.unwrap_or_default() {
            let values = open_block(layout, &root, &data).map_err(|reject| {
                at(round, &who, data.block, &format!("is not what it committed to: {reject}"))
            })?;
            let target = layout.block(data.block).and_then(|block| exhibit.q.get_mut(block.range.clone()));
            target.into_iter().for_each(|target| target.copy_from_slice(&values));
            proved.insert(data.block);
            exhibit.blocks.push(data);
        }
    }
    for (part, block) in counted(view, slot).filter(|(_, block)| !proved.contains(block)) {
        // AUDIT-24: an author and its aggregator may both keep it back; what it was combined to is there all the same.
        if !exhibit.missing.contains(&part) && reading::part_exhibit(folder, layout, round, part)?.is_none() {
            return Err(at(round, &who, block, "counted, and is missing in exhibits/"));
        }
        exhibit.missing.insert(part);
    }
    Ok(exhibit)
}

/// The blocks of a slot that went into the aggregate, with their parts.
fn counted(view: &RoundView, slot: Slot) -> impl Iterator<Item = (Part, Block)> + '_ {
    let results = view.results().unwrap_or_default().iter();
    let parts = (0u16..).map(Part).zip(view.parts()).zip(view.inputs()).zip(results);
    let counted = parts.filter(move |((_, inputs), result)| result.is_some() && inputs.contains(slot));
    counted.flat_map(|(((part, plan), _), _)| plan.blocks.iter().map(move |block| (part, *block)))
}

fn at(round: Round, who: &MemberId, block: Block, what: &str) -> ReplayError {
    ReplayError::Wrong(format!("round {round}: block {block} of the convict {who} {what}"))
}
