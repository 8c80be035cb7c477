//! What a keeper takes in: blocks of a frozen contribution, checked before anything of them is kept.

use std::collections::{BTreeMap, BTreeSet};

use muster_core::contribution::open_block;
use muster_core::error::Reject;
use muster_core::ids::{Block, Digest, MemberId, Part};
use muster_core::layout::Layout;
use muster_core::ledger::{Ledger, RoundView, Stage, Standing};
use muster_core::messages::round::Receipt;
use muster_core::messages::wire::{BlockData, InputQuery, PutBlocks};

/// Blocks of one part, as their author brought them to a keeper, each proved against the frozen commitment.
#[derive(Debug)]
pub struct Delivery<'a> {
    /// What the keeper signs once it has all blocks of the part.
    pub receipt: Receipt,
    /// Whether the keeper reduces the part. Otherwise it is the steward, and stands in for those that did not take it.
    pub reduces: bool,
    /// All blocks of the part, ascending.
    pub plan: &'a [Block],
    /// Those that were brought, as they travel: their integers take four times as much, and are wanted once.
    pub blocks: BTreeMap<Block, BlockData>,
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
            open_block(layout, &root, &data)?;
            blocks.insert(data.block, data);
        }
        let reduces = view.keepers(part, sender).is_some_and(|(keepers, _)| keepers.contains(keeper));
        let receipt = Receipt { round: view.round(), part, attempt: put.attempt, sender: *sender, root };
        Ok(Self { receipt, reduces, plan, blocks })
    }
}

/// A request for blocks that may be answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// The open round waits for it.
    Now {
        /// Root of the contribution.
        root: Digest,
        /// As many blocks of it as whoever asks may lack.
        most: usize,
    },
    /// Nobody waits for it but whoever asks.
    Later {
        /// Root of the contribution.
        root: Digest,
    },
}

impl Wanted {
    /// ROUND-35: looks at a request by `from` before anything is read for it.
    ///
    /// # Errors
    /// [`Reject`] for strangers and for whoever is out of the run, for a block that is named twice or is none of the
    /// model's, and for a contribution that the ledger does not know.
    pub fn by(ledger: &Ledger, from: &MemberId, query: &InputQuery) -> Result<Self, Reject> {
        let is_steward = *from == ledger.manifest().steward;
        let standing = ledger.member(from).map(|member| member.standing);
        let out = matches!(standing, None | Some(Standing::Banned | Standing::Left));
        if out && !is_steward {
            return Err(Reject::NotEntitled("ask for blocks: they are for members"));
        }
        // The root comes from the ledger: a query cannot choose what is read from the disk.
        let view = ledger.round(query.round).ok_or(Reject::Stale("the round is not remembered"))?;
        let commitment = view.slot_of(&query.member).and_then(|slot| view.commitment(slot));
        let root = commitment.ok_or(Reject::Rule("only a frozen contribution is kept"))?.commit.root;
        let named: BTreeSet<Block> = query.blocks.iter().copied().collect();
        if named.len() < query.blocks.len() {
            return Err(Reject::Rule("a request names each block once"));
        }
        if named.iter().any(|block| ledger.layout().block(*block).is_none()) {
            return Err(Reject::Rule("a request names blocks of the model"));
        }
        let open = ledger.current().is_some_and(|view| view.round() == query.round);
        if !open || ledger.stage() != Stage::Reducing {
            return Ok(Self::Later { root });
        }
        // Whoever has to reduce the part now, and the steward, which reduces disputed ones again.
        let parts = (0..view.parts().len() as u16).map(Part);
        let own: Vec<&[Block]> = parts
            .filter(|part| is_steward || view.aggregating(*part).any(|member| member == *from))
            .filter_map(|part| Some(view.parts().get(part.index())?.blocks.as_slice()))
            .collect();
        let is_own = |block: &Block| own.iter().any(|blocks| blocks.binary_search(block).is_ok());
        match named.iter().all(is_own) {
            true => Ok(Self::Now { root, most: own.iter().map(|blocks| blocks.len()).sum() }),
            false => Ok(Self::Later { root }),
        }
    }

    /// The same after everything that a round waits for.
    #[must_use]
    pub fn later(self) -> Self {
        Self::Later { root: self.root() }
    }

    /// Root of the contribution.
    pub fn root(&self) -> Digest {
        match self {
            Self::Now { root, .. } | Self::Later { root } => *root,
        }
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
    use muster_core::codec::{Bytes, List};
    use muster_core::contribution::Commitment;
    use muster_core::ids::Round;
    use muster_core::ledger::fixture::{Makers, Newcomer, commitment};
    use muster_core::manifest::fixture;
    use muster_core::sign::Identity;

    use super::*;

    const NODES: [u8; 2] = [11, 12];

    fn member(number: u8) -> Identity {
        Identity::from_secret(&[number; 32])
    }

    /// A round in which both nodes have committed to these integers, and their trees.
    fn exchanging(contributions: &[Vec<i32>; 2]) -> (Ledger, [Commitment; 2]) {
        let (makers, nodes) = (Makers::of(1, 2), NODES.map(member));
        let newcomers = nodes.iter().map(|node| Newcomer::node(node).at("node:1"));
        let mut ledger = makers.begin(makers.tiny(4, 2), newcomers);
        let trees = [0, 1].map(|index| Commitment::new(ledger.layout(), &contributions[index]));
        let commits =
            [0, 1].map(|index| (&nodes[index], commitment(&ledger, &nodes[index], 0, trees[index].root())));
        makers.freeze(&mut ledger, commits);
        (ledger, trees)
    }

    #[test]
    fn round_4_a_keeper_signs_for_blocks_that_are_proved_and_for_no_others() {
        let layout = Layout::of(&fixture::tiny(member(1).id(), member(2).id(), 4, 2).model);
        let contributions = [1, 300].map(|value| vec![value; layout.parameters()]);
        let (ledger, [tree, others]) = exchanging(&contributions);
        let view = ledger.current().unwrap();
        // A part of several blocks, and whoever does not reduce it.
        let large = view.parts().iter().position(|plan| plan.blocks.len() > 1).unwrap();
        let part = Part(large as u16);
        let aggregator = view.reducers(part, 0).next().unwrap();
        let from = NODES.iter().position(|number| member(*number).id() != aggregator).unwrap();
        let sender = member(NODES[from]).id();
        let (tree, others) = if from == 0 { (tree, others) } else { (others, tree) };
        let [own, foreign] = [from, 1 - from].map(|index| &contributions[index]);
        let plan = &view.parts()[part.index()].blocks;
        let whole = |tree: &Commitment, q: &[i32]| -> Vec<BlockData> {
            plan.iter().map(|block| tree.block(&layout, q, *block).unwrap()).collect()
        };
        let check = |keeper: &MemberId, attempt: u8, blocks: Vec<BlockData>| {
            let blocks = List::new(blocks).unwrap();
            let put = PutBlocks { round: Round(0), attempt, blocks };
            Delivery::check(&layout, view, keeper, &sender, put)
                .map(|delivery| (delivery.receipt, delivery.blocks.len() == delivery.plan.len()))
        };
        let good = whole(&tree, own);
        let (receipt, all) = check(&aggregator, 0, good.clone()).unwrap();
        assert!(all && (receipt.part, receipt.sender, receipt.root) == (part, sender, tree.root()));
        let (_, all) = check(&aggregator, 0, good[1..].to_vec()).unwrap();
        assert!(!all, "what is missing shows");
        // COMMIT-5: chunks of another contribution, a chunk that was changed, one too few, a block of another number.
        let refused = |blocks| assert!(check(&aggregator, 0, blocks).is_err());
        refused(whole(&others, foreign));
        let mut changed = good.clone();
        let mut bytes = changed[0].chunks.to_vec();
        bytes[0] = Bytes::new([&bytes[0][..bytes[0].len() - 1], &[7]].concat()).unwrap();
        changed[0].chunks = List::new(bytes).unwrap();
        refused(changed);
        let mut cut = good.clone();
        cut[0].chunks = List::default();
        refused(cut);
        let mut renamed = good.clone();
        renamed[0].block = Block(u32::MAX);
        refused(renamed);
        refused([&good[..1], &good[..]].concat());
        refused(good.iter().rev().cloned().collect());
        assert!(check(&sender, 0, good.clone()).is_err(), "the sender keeps nothing of its own");
        assert!(check(&aggregator, 1, good.clone()).is_err(), "nothing was reassigned");
        assert!(check(&MemberId(Digest::default().0), 0, good).is_err());
    }

    /// COMMIT-5: a delivery holds each block once, ascending.
    #[test]
    fn commit_5_a_block_of_few_bytes_is_not_taken_many_times() {
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
