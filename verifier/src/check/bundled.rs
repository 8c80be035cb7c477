//! A bundle as a judge's witness.

use std::sync::Arc;

use muster_core::audit::Witness;
use muster_core::contribution::PackedContribution;
use muster_core::ids::{Block, Digest, Height, MemberId, Round, Row, RowSet, ShardId};
use muster_core::ledger::{Ledger, RoundView};
use muster_core::limits::BUNDLE_BYTES;
use muster_core::messages::wire::BlockData;
use muster_core::state::{State, Update};
use muster_replica::bundle::Bundle;

use super::folder::{FolderWitness, Searching, sealed_round};

/// A bundle, and a folder where somebody has named one. What the bundle lacks is looked for in the folder.
pub(super) struct BundleWitness {
    bundle: Bundle,
    folder: Option<FolderWitness>,
    missing: Vec<String>,
}

impl BundleWitness {
    pub(super) fn new(bundle: Bundle, folder: Option<FolderWitness>) -> Self {
        Self { bundle, folder, missing: Vec::new() }
    }

    /// What the bundle has, or else the folder; where nobody has it, that is said.
    fn or_folder<T>(
        &mut self,
        found: Option<T>,
        what: impl FnOnce() -> String,
        look: impl FnOnce(&mut FolderWitness) -> Option<T>,
    ) -> Option<T> {
        if found.is_some() {
            return found;
        }
        if let Some(folder) = &mut self.folder {
            return look(folder);
        }
        self.missing.push(format!(
            "{} is not in this bundle, which holds no more than {} MiB: follow the run with `muster-verifier observe` while its \
             members keep it, or get the steward's folder once the run is over, and name the folder with --run DIR",
            what(),
            BUNDLE_BYTES >> 20
        ));
        None
    }
}

impl Searching for BundleWitness {
    fn missing(&self) -> Vec<String> {
        let folder = self.folder.iter().flat_map(Searching::missing);
        self.missing.iter().cloned().chain(folder).collect()
    }
}

impl Witness for BundleWitness {
    fn state(&mut self, root: &Digest, shards: &[ShardId]) -> Option<State> {
        let state = self.bundle.state.as_ref().filter(|(of, _)| of == root);
        let state = state.map(|(_, state)| state.select(shards.iter().copied()));
        let state = state.filter(|state| state.shards.len() == shards.len());
        self.or_folder(state, || format!("the state {root}"), |folder| folder.state(root, shards))
    }

    fn windows(&mut self, indices: &[u64]) -> Option<Vec<Vec<u32>>> {
        let sequence = self.bundle.manifest.model.sequence;
        let windows = indices.iter().map(|index| self.bundle.text.window(*index, sequence)).collect();
        self.or_folder(windows, || "some of the text".into(), |folder| folder.windows(indices))
    }

    fn row(&mut self, window: u64, open: RowSet) -> Option<Row> {
        let sequence = self.bundle.manifest.model.sequence;
        // A window may be of no row: that is no lack.
        let row = self.bundle.text.row_of(window, sequence, |row| open.contains(row));
        row.or_else(|| self.folder.as_mut()?.row(window, open))
    }

    fn contribution(&mut self, round: Round, member: &MemberId) -> Option<Arc<PackedContribution>> {
        let q = self.bundle.contributions.get(&(round, *member)).cloned();
        let what = || format!("the contribution of {member} to round {round}");
        self.or_folder(q, what, |folder| folder.contribution(round, member))
    }

    fn round(&mut self, round: Round) -> Option<RoundView> {
        let view = sealed_round(&self.bundle.manifest, &self.bundle.records, round);
        let why = view.as_ref().err().cloned();
        let what = || format!("round {round} of the ledger ({})", why.unwrap_or_default());
        self.or_folder(view.ok(), what, |folder| folder.round(round))
    }

    fn block(&mut self, round: Round, member: &MemberId, block: Block) -> Option<BlockData> {
        let data = self.bundle.blocks.get(&(round, *member, block)).cloned();
        let what = || format!("block {block} of {member} in round {round}");
        self.or_folder(data, what, |folder| folder.block(round, member, block))
    }

    fn ledger(&mut self, height: Height) -> Option<Ledger> {
        let what = || format!("the ledger before height {height}");
        self.or_folder(None, what, |folder| folder.ledger(height))
    }

    fn update(&mut self, round: Round) -> Option<Update> {
        let what = || format!("the aggregate of round {round}");
        self.or_folder(None, what, |folder| folder.update(round))
    }
}
