//! What a keeper takes in: blocks of a frozen contribution, checked before anything of them is kept.

use std::collections::BTreeMap;

use muster_core::contribution::open_block;
use muster_core::error::Reject;
use muster_core::ids::{Block, MemberId, Part};
use muster_core::layout::Layout;
use muster_core::ledger::RoundView;
use muster_core::messages::round::Receipt;
use muster_core::messages::wire::{BlockData, PutBlocks};

/// Blocks of one part, as their author brought them to a keeper, each proved against the frozen commitment.
#[derive(Debug)]
pub struct Delivery<'a> {
    /// What the keeper signs once it has all blocks of the part.
    pub receipt: Receipt,
    /// Whether the keeper reduces the part. Otherwise it is the steward, and stands in for those that did not take it.
    pub reduces: bool,
    /// All blocks of the part, ascending.
    pub plan: &'a [Block],
    /// Those that were brought, with their integers.
    pub blocks: BTreeMap<Block, (BlockData, Vec<i32>)>,
}

impl<'a> Delivery<'a> {
    /// Checks what `sender` brings to `keeper`. ROUND-4: each block is proved by COMMIT-5.
    ///
    /// # Errors
    /// [`Reject`] when the blocks are not of the sender's frozen contribution, not of one part, or not for this keeper.
    pub fn check(
        layout: &Layout,
        view: &'a RoundView,
        keeper: &MemberId,
        sender: &MemberId,
        put: PutBlocks,
    ) -> Result<Self, Reject> {
        let slot = view.slot_of(sender).ok_or(Reject::NotEntitled("deliver: it has no seat"))?;
        let commitment =
            view.commitment(slot).ok_or(Reject::Rule("only a frozen contribution is delivered"))?;
        let first = put.blocks.first().ok_or(Reject::Rule("a delivery holds a block"))?.block;
        let part: Part = view.part_of(first).ok_or(Reject::Rule("a delivered block is in a part"))?;
        // ROUND-5: only receipts of the part's own keepers count, in the attempt that is open.
        if !view.takes_in(part, sender, keeper) || view.attempt(part) != Some(put.attempt) {
            return Err(Reject::NotEntitled("deliver this part here"));
        }
        let plan = &view.parts().get(part.index()).ok_or(Reject::Rule("a part is one of the round"))?.blocks;
        each_once(&put.blocks)?;
        let root = commitment.commit.root;
        let mut blocks = BTreeMap::new();
        for data in put.blocks.into_inner() {
            // A receipt is of one part: blocks of others would be stored without anybody signing for them.
            if plan.binary_search(&data.block).is_err() {
                return Err(Reject::Rule("a delivery holds blocks of one part"));
            }
            // Before the receipt: afterwards the sender counts, and the aggregator would fail for blocks that fit
            // nothing.
            let integers = open_block(layout, &root, &data)?;
            blocks.insert(data.block, (data, integers));
        }
        let reduces = view.keepers(part, sender).is_some_and(|(keepers, _)| keepers.contains(keeper));
        let receipt = Receipt { round: view.round(), part, attempt: put.attempt, sender: *sender, root };
        Ok(Self { receipt, reduces, plan, blocks })
    }
}

/// Refuses a block that comes twice.
fn each_once(blocks: &[BlockData]) -> Result<(), Reject> {
    // A few bytes may stand for a whole block of zeros: repeated, they would fill the keeper's memory.
    let ascending = blocks.is_sorted_by(|one, next| one.block < next.block);
    ascending.then_some(()).ok_or(Reject::Rule("a delivery holds each block once, in order"))
}

#[cfg(test)]
mod tests {
    use muster_core::contribution::Commitment;
    use muster_core::manifest::fixture;

    use super::*;

    #[test]
    fn a_block_of_few_bytes_is_not_taken_many_times() {
        let (organiser, steward) = (MemberId([1; 32]), MemberId([2; 32]));
        let layout = Layout::of(&fixture::tiny(organiser, steward, 1, 1).model);
        let q = vec![0; layout.parameters()];
        let tree = Commitment::new(&layout, &q);
        let block = |number| tree.block(&layout, &q, Block(number)).unwrap();
        assert!(each_once(&[block(0), block(2), block(3)]).is_ok());
        assert!(each_once(&[block(0), block(0)]).is_err());
        assert!(each_once(&[block(2), block(0)]).is_err());
    }
}
