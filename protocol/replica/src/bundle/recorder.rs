//! What a judge looks at, written down.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use muster_core::audit::Witness;
use muster_core::contribution::PackedContribution;
use muster_core::ids::{Block, Digest, Height, MemberId, Round, Row, RowSet, ShardId};
use muster_core::ledger::{Ledger, RoundView};
use muster_core::limits::BUNDLE_BYTES;
use muster_core::messages::wire::BlockData;
use muster_core::state::{State, Update};

use crate::witness::Contributions;

/// What a judge has looked at.
#[derive(Default)]
pub struct Asked {
    /// Windows of the text.
    pub(super) windows: BTreeSet<u64>,
    /// Windows whose rows were asked for.
    pub(super) routed: BTreeSet<u64>,
    /// The state, by its root.
    pub(super) state: Option<(Digest, State)>,
    /// Whole contributions.
    pub(super) contributions: Contributions,
    /// Blocks of contributions.
    pub(super) blocks: BTreeMap<(Round, MemberId, Block), BlockData>,
    /// Whether a round was asked for, which follows from the ledger.
    pub(super) ledger: bool,
    /// Bytes of blocks: beyond what a bundle can hold nothing more is copied.
    bytes: u64,
}

impl Asked {
    fn has_room(&mut self, bytes: usize) -> bool {
        self.bytes = self.bytes.saturating_add(bytes as u64);
        self.bytes <= BUNDLE_BYTES
    }
}

/// A witness that writes down what it gives.
pub struct Recorder<'a> {
    witness: &'a mut dyn Witness,
    asked: &'a mut Asked,
    /// Whether leaves begin with moments: they are left out otherwise.
    moments: bool,
}

impl<'a> Recorder<'a> {
    /// Of another witness.
    pub fn new(witness: &'a mut dyn Witness, asked: &'a mut Asked, moments: bool) -> Self {
        Self { witness, asked, moments }
    }
}

impl Witness for Recorder<'_> {
    fn state(&mut self, root: &Digest, shards: &[ShardId]) -> Option<State> {
        let state = self.witness.state(root, shards)?;
        // A copy shares its vectors.
        let mut kept = state.clone();
        if !self.moments {
            (kept.first, kept.second) = Default::default();
        }
        self.asked.state = Some((*root, kept));
        Some(state)
    }

    fn windows(&mut self, indices: &[u64]) -> Option<Vec<Vec<u32>>> {
        self.asked.windows.extend(indices);
        self.witness.windows(indices)
    }

    fn row(&mut self, window: u64, open: RowSet) -> Option<Row> {
        self.asked.routed.insert(window);
        self.witness.row(window, open)
    }

    fn contribution(&mut self, round: Round, member: &MemberId) -> Option<Arc<PackedContribution>> {
        let q = self.witness.contribution(round, member)?;
        self.asked.contributions.insert((round, *member), q.clone());
        Some(q)
    }

    fn round(&mut self, round: Round) -> Option<RoundView> {
        self.asked.ledger = true;
        self.witness.round(round)
    }

    fn block(&mut self, round: Round, member: &MemberId, block: Block) -> Option<BlockData> {
        let data = self.witness.block(round, member, block)?;
        let bytes = data.chunks.iter().map(|chunk| chunk.len()).sum();
        if self.asked.has_room(bytes) {
            self.asked.blocks.insert((round, *member, block), data.clone());
        }
        Some(data)
    }

    fn ledger(&mut self, height: Height) -> Option<Ledger> {
        self.asked.ledger = true;
        self.witness.ledger(height)
    }

    fn update(&mut self, round: Round) -> Option<Update> {
        self.witness.update(round)
    }
}
