//! A run's training in one process: the states at which leaves are compared.

use std::sync::Arc;

use muster_compute::Exact;
use muster_core::assign::{round_seed, windows};
use muster_core::error::Misuse;
use muster_core::ids::{Digest, Leaf, Round};
use muster_core::layout::Layout;
use muster_core::manifest::Manifest;
use muster_core::state::{Arithmetic, LeafJob, State, Update};
use muster_replica::Replica;
use muster_store::dataset::Dataset;
use muster_store::error::StoreError;

/// Leaves of a round whose sum is certain to fit.
const MOST_LEAVES: u32 = 256;

/// A run without members, in profile exact: the mean of a round's leaves is its aggregate.
pub struct Course {
    manifest: Arc<Manifest>,
    dataset: Arc<Dataset>,
    exact: Exact,
    state: State,
    round: Round,
    seed: Digest,
}

/// A leaf's number and text.
pub struct Passage {
    leaf: Leaf,
    /// Its windows.
    pub windows: Vec<Vec<u32>>,
}

impl Course {
    /// Before the first round.
    ///
    /// # Errors
    /// [`Misuse`] when this machine cannot compute in defined bits, or the files are those of another model.
    pub fn begin(manifest: Arc<Manifest>, dataset: Arc<Dataset>, threads: usize) -> Result<Self, Misuse> {
        let state = Replica::genesis(manifest.clone(), dataset.clone(), threads, None)?.state().clone();
        let exact = Exact::new(threads, None)?;
        let seed = round_seed(manifest.run(), Round(0), &state.root());
        Ok(Self { manifest, dataset, exact, state, round: Round(0), seed })
    }

    /// Leaves of a round.
    pub fn leaves(&self) -> u32 {
        self.manifest.training.leaves.min(MOST_LEAVES)
    }

    /// Trains until before this round; says when a leaf is done.
    ///
    /// # Errors
    /// What the text's file reports.
    pub fn train(&mut self, to: u32, done: &dyn Fn()) -> Result<(), StoreError> {
        while self.round.0 < to {
            let d = self.state.parameters.len();
            let (mut sum, mut q) = (vec![0i32; d], vec![0; d]);
            for leaf in 0..self.leaves() {
                let passage = self.passage(leaf.into())?;
                let job = LeafJob {
                    state: &self.state,
                    round_seed: self.seed,
                    leaf: passage.leaf,
                    windows: &passage.windows,
                };
                self.exact.leaf(&self.manifest, &job, &mut q);
                sum.iter_mut().zip(&q).for_each(|(sum, q)| *sum += q);
                done();
            }
            let leaves = f64::from(self.leaves());
            let values = sum.iter().map(|q| (f64::from(*q) / leaves) as f32).collect();
            let update = Update::whole(&Layout::of_run(&self.manifest), values);
            self.exact.apply(&self.manifest, &mut self.state, &update);
            self.round = self.round.next();
            self.seed = round_seed(self.manifest.run(), self.round, &self.state.root());
        }
        Ok(())
    }

    /// What a leaf of this round is computed on; there are more than the round trains.
    ///
    /// # Errors
    /// What the text's file reports.
    pub fn passage(&self, leaf: u64) -> Result<Passage, StoreError> {
        let (leaf, manifest) = (Leaf(leaf), &self.manifest);
        let drawn = windows(&self.seed, leaf, manifest.training.leaf_windows, manifest.windows());
        let window = |index: &u64| self.dataset.window(*index, manifest.model.sequence);
        Ok(Passage { leaf, windows: drawn.iter().map(window).collect::<Result<_, _>>()? })
    }

    /// The job of a leaf of this round.
    pub fn job<'a>(&'a self, passage: &'a Passage) -> LeafJob<'a> {
        LeafJob { state: &self.state, round_seed: self.seed, leaf: passage.leaf, windows: &passage.windows }
    }

    /// The state before this round.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// The run's manifest.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Loss on the held-out text, in nats per token.
    ///
    /// # Errors
    /// What the text's file reports.
    pub fn held_out_loss(&mut self) -> Result<f64, StoreError> {
        let windows = self.dataset.held_out_windows(self.manifest.model.sequence, 64)?;
        Ok(self.exact.evaluate(&self.manifest, &self.state, &windows))
    }
}
