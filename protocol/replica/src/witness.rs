//! What a judge may look at: states that this replica has computed, its text, contributions that were brought.

use std::collections::BTreeMap;
use std::sync::Arc;

use muster_core::audit::Witness;
use muster_core::contribution::PackedContribution;
use muster_core::ids::{Block, Digest, Height, MemberId, Round, Row, RowSet, ShardId};
use muster_core::layout::Layout;
use muster_core::ledger::{Ledger, RoundView};
use muster_core::manifest::Manifest;
use muster_core::messages::wire::BlockData;
use muster_core::state::{State, Update};
use muster_store::dataset::Dataset;
use muster_store::error::StoreError;

use crate::held::KeptState;

/// Whole contributions, by round and author.
pub type Contributions = BTreeMap<(Round, MemberId), Arc<PackedContribution>>;

/// What was brought for one judgement besides states and text. Nothing of it need have been checked, but the round.
#[derive(Clone, Default)]
pub struct Brought {
    /// Whole contributions.
    pub contributions: Contributions,
    /// Blocks of contributions with their proofs.
    pub blocks: BTreeMap<(MemberId, Block), BlockData>,
    /// The round that it is about, from the judge's own ledger.
    pub round: Option<RoundView>,
    /// The aggregate of the round that it is about.
    pub update: Option<Update>,
    /// The judge's own ledger, before the record that it is about.
    pub ledger: Option<Ledger>,
}

/// Kept states by root, the text, and what was brought.
pub struct Exhibited {
    states: Vec<KeptState>,
    dataset: Arc<Dataset>,
    layout: Arc<Layout>,
    sequence: u32,
    brought: Brought,
    /// Some text could not be read. No more of it is waited for.
    lacks_text: bool,
}

impl Exhibited {
    /// States must have been checked against their roots, the text against the manifest.
    pub fn new(states: Vec<KeptState>, dataset: Arc<Dataset>, manifest: &Manifest, brought: Brought) -> Self {
        let (layout, sequence) = (Arc::new(Layout::of_run(manifest)), manifest.model.sequence);
        Self { states, dataset, layout, sequence, brought, lacks_text: false }
    }

    /// Text that can be read. A judge that lacks some decides nothing.
    fn text<T>(&mut self, read: impl FnOnce(&Dataset) -> Result<T, StoreError>) -> Option<T> {
        if self.lacks_text {
            return None;
        }
        let read = read(&self.dataset);
        self.lacks_text = read.is_err();
        read.inspect_err(|error| tracing::warn!("a judge lacks text: {error}")).ok()
    }
}

impl Witness for Exhibited {
    fn state(&mut self, root: &Digest, shards: &[ShardId]) -> Option<State> {
        let kept = self.states.iter().find(|kept| kept.root() == *root)?;
        // A judge computes on it: it gets a state of its own.
        kept.shards(shards).map(Arc::unwrap_or_clone)
    }

    fn windows(&mut self, indices: &[u64]) -> Option<Vec<Vec<u32>>> {
        let sequence = self.sequence;
        self.text(|dataset| dataset.windows(indices, sequence))
    }

    fn row(&mut self, window: u64, open: RowSet) -> Option<Row> {
        let sequence = self.sequence;
        self.text(|dataset| dataset.row_of(window, sequence, |row| open.contains(row))).flatten()
    }

    fn contribution(&mut self, round: Round, member: &MemberId) -> Option<Arc<PackedContribution>> {
        self.brought.contributions.get(&(round, *member)).cloned()
    }

    fn round(&mut self, round: Round) -> Option<RoundView> {
        self.brought.round.clone().filter(|view| view.round() == round)
    }

    fn update(&mut self, _: Round) -> Option<Update> {
        // Taken and not cloned: as large as the model, and looked at once.
        self.brought.update.take()
    }

    fn ledger(&mut self, height: Height) -> Option<Ledger> {
        self.brought.ledger.take().filter(|ledger| ledger.height() == height)
    }

    fn block(&mut self, round: Round, member: &MemberId, block: Block) -> Option<BlockData> {
        if let Some(data) = self.brought.blocks.get(&(*member, block)) {
            return Some(data.clone());
        }
        self.brought.contributions.get(&(round, *member))?.block(&self.layout, block)
    }
}
