//! Whole contributions, fetched from whoever may have them.

use muster_core::contribution::{Assembly, PackedContribution};
use muster_core::ids::{Block, MemberId, Part, Round};
use muster_core::layout::Layout;
use muster_core::ledger::Ledger;
use muster_core::messages::wire::BlockData;
use tokio::task::JoinSet;

use crate::peers::{CommittedContribution, Contact, Peers, contact};

/// Blocks of a contribution, and who may have them.
#[derive(Clone, Debug)]
pub struct HeldBlocks {
    /// The part that they are; the first one where the round has no parts.
    pub part: Part,
    /// The blocks.
    pub blocks: Vec<Block>,
    /// Members that may have them, the likeliest first.
    pub holders: Vec<Contact>,
}

/// A contribution to be fetched.
#[derive(Clone, Debug)]
pub struct WantedContribution {
    /// Its name, and the root that proves its blocks.
    pub name: CommittedContribution,
    /// All its blocks, by part; all as one where the round has no parts.
    pub parts: Vec<HeldBlocks>,
}

/// Why a contribution is not whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unavailable {
    /// The part that nobody shows, where that is why.
    pub part: Option<Part>,
    /// Why, in words.
    pub why: String,
}

impl WantedContribution {
    /// A frozen contribution of a round that is remembered.
    pub fn of(ledger: &Ledger, round: Round, member: MemberId) -> Option<Self> {
        let view = ledger.round(round)?;
        let slot = view.slot_of(&member)?;
        let root = view.commitment(slot)?.commit.root;
        let author = contact(ledger, &member);
        // Of other rows it has nothing.
        let parts = view.parts_of(slot).map(|(part, plan)| {
            let keepers = |attempt| view.reducers(part, attempt);
            // Keepers before the author: whoever is under suspicion may want to delay.
            let holders = keepers(1).chain(keepers(0)).filter_map(|keeper| contact(ledger, &keeper));
            let holders = holders.chain(author.clone()).collect();
            HeldBlocks { part, blocks: plan.blocks.clone(), holders }
        });
        let mut parts: Vec<_> = parts.collect();
        if parts.is_empty() {
            let blocks = ledger.layout().path_blocks(view.row_of(slot)).collect();
            parts.push(HeldBlocks { part: Part(0), blocks, holders: author.into_iter().collect() });
        }
        Some(Self { name: CommittedContribution { round, member, root }, parts })
    }

    /// All of it: from blocks that are `kept` here, and of each part that lacks one from the first holder whose blocks are
    /// proved, all parts at once. `fetched` is told of each part that came.
    ///
    /// # Errors
    /// The first part that is unavailable, and why; or what `fetched` says.
    pub async fn fetch(
        &self,
        peers: &Peers,
        layout: &Layout,
        kept: &[BlockData],
        mut fetched: impl FnMut(Part, &[BlockData]) -> Result<(), String>,
    ) -> Result<PackedContribution, Unavailable> {
        let other = |why: String| Unavailable { part: None, why };
        let mut assembly = Assembly::new(layout, self.name.root);
        for data in kept {
            // A block that was damaged here is fetched.
            let _ = assembly.open(data.clone());
        }
        let mut tasks = JoinSet::new();
        for HeldBlocks { part, blocks, holders } in self.parts.iter().cloned() {
            // What the disk has is not fetched again, after a restart for instance.
            if !blocks.iter().all(|block| assembly.has(*block)) {
                let (peers, layout, name) = (peers.clone(), layout.clone(), self.name);
                tasks.spawn(
                    async move { (part, peers.contribution(&holders, &layout, &name, &blocks).await) },
                );
            }
        }
        while let Some(done) = tasks.join_next().await {
            let (part, found) = done.map_err(|error| other(error.to_string()))?;
            let found = found.map_err(|error| Unavailable { part: Some(part), why: error.to_string() })?;
            fetched(part, &found).map_err(other)?;
            // Proved as they came.
            found.into_iter().for_each(|data| assembly.put(data));
        }
        assembly.whole().ok_or_else(|| other("a block is in none of its parts".to_owned()))
    }
}
