//! The replicated state with its arithmetic and its text.

use std::collections::VecDeque;
use std::sync::Arc;

use muster_compute::{Exact, Path};
use muster_core::error::Misuse;
use muster_core::ids::{Digest, Round};
use muster_core::layout::Layout;
use muster_core::manifest::Manifest;
use muster_core::state::{Arithmetic, State, StateRoots, Update};
use muster_store::dataset::Dataset;

use crate::archive::states::initial;
use crate::stopwatch::{Phase, Stopwatch};
use crate::witness::{Brought, Exhibited};

/// Held-out windows that a loss is measured on, at most.
pub const HELD_OUT_WINDOWS: usize = 256;

/// State before some round, the states of the rounds before it, and what computes on them.
pub struct Replica {
    manifest: Arc<Manifest>,
    layout: Arc<Layout>,
    dataset: Arc<Dataset>,
    arithmetic: Exact,
    state: State,
    roots: StateRoots,
    round: Round,
    /// Of the state as it is now, what is kept of it afterwards.
    snapshot: (Digest, Arc<State>),
    history: VecDeque<(Digest, Arc<State>)>,
    stopwatch: Arc<Stopwatch>,
}

impl Replica {
    /// The initial state of a run, which follows from its manifest and the files that this commits to.
    ///
    /// # Errors
    /// [`Misuse`] when this machine cannot compute in defined bits, or the files are those of another model.
    pub fn genesis(
        manifest: Arc<Manifest>,
        dataset: Arc<Dataset>,
        threads: usize,
        path: Option<Path>,
    ) -> Result<Self, Misuse> {
        let mut arithmetic = Exact::new(threads, path)?;
        let state = initial(&manifest, &dataset, &mut arithmetic)?;
        Ok(Self::assemble(manifest, dataset, arithmetic, state, Round(0)))
    }

    /// A state that was fetched or read, before this round. The caller has checked its root.
    ///
    /// # Errors
    /// [`Misuse`] when this machine cannot compute in defined bits.
    pub fn resume(
        manifest: Arc<Manifest>,
        dataset: Arc<Dataset>,
        threads: usize,
        path: Option<Path>,
        state: State,
        round: Round,
    ) -> Result<Self, Misuse> {
        let arithmetic = Exact::new(threads, path)?;
        Ok(Self::assemble(manifest, dataset, arithmetic, state, round))
    }

    fn assemble(
        manifest: Arc<Manifest>,
        dataset: Arc<Dataset>,
        arithmetic: Exact,
        state: State,
        round: Round,
    ) -> Self {
        let layout = Arc::new(Layout::of(&manifest.model));
        let roots = state.roots();
        let whole = manifest.rollback.is_on();
        let snapshot = (roots.root(), Arc::new(kept(&state, whole, None)));
        Self {
            manifest,
            layout,
            dataset,
            arithmetic,
            state,
            roots,
            round,
            snapshot,
            history: VecDeque::new(),
            stopwatch: Arc::default(),
        }
    }

    /// The manifest.
    pub fn manifest(&self) -> &Arc<Manifest> {
        &self.manifest
    }

    /// The layout.
    pub fn layout(&self) -> &Arc<Layout> {
        &self.layout
    }

    /// The text, and what else the manifest commits to.
    pub fn dataset(&self) -> &Arc<Dataset> {
        &self.dataset
    }

    /// The whole state.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Its roots.
    pub fn roots(&self) -> &StateRoots {
        &self.roots
    }

    /// The round that the state is before.
    pub fn round(&self) -> Round {
        self.round
    }

    /// Root, parameters and exponents of the state, to compute leaves on while the replica goes on; its moments, too, where
    /// the run may go back to it.
    pub fn snapshot(&self) -> (Digest, Arc<State>) {
        self.snapshot.clone()
    }

    /// Parameters and exponents of a state that is still kept; its moments, too, where the run may go back to it.
    pub fn state_at(&self, root: &Digest) -> Option<Arc<State>> {
        let kept = self.history.iter().chain([&self.snapshot]);
        kept.into_iter().find(|(held, _)| held == root).map(|(_, state)| state.clone())
    }

    /// Roots of the states that [`Self::state_at`] gives.
    pub fn states_at_hand(&self) -> impl Iterator<Item = Digest> {
        self.history.iter().chain([&self.snapshot]).map(|(root, _)| *root)
    }

    /// Roots of the states that it can go back to.
    pub fn kept_states(&self) -> impl Iterator<Item = Digest> {
        self.history.iter().filter(|(_, state)| !state.first.is_empty()).map(|(root, _)| *root)
    }

    /// Where the time of [`Replica::apply`] goes.
    pub fn stopwatch(&self) -> &Arc<Stopwatch> {
        &self.stopwatch
    }

    /// Applies a round's update.
    pub fn apply(&mut self, update: &Update) -> StateRoots {
        let stopwatch = self.stopwatch.clone();
        stopwatch.time(Phase::Optimiser, || self.arithmetic.apply(&self.manifest, &mut self.state, update));
        self.round = self.round.next();
        self.roots = stopwatch.time(Phase::Hashing, || self.state.roots());
        let mut oldest = None;
        // Dropped before the new one is made, so that `retention.states` earlier ones are in memory and no more.
        while self.history.len() >= self.manifest.retention.states as usize {
            oldest = self.history.pop_front();
        }
        // The new one takes the memory of the oldest, unless somebody still computes on that.
        self.renew(oldest.and_then(|(_, state)| Arc::into_inner(state)));
        self.roots.clone()
    }

    /// Keeps the snapshot, and makes one of the state as it is now.
    fn renew(&mut self, spare: Option<State>) {
        let whole = self.manifest.rollback.is_on();
        let fresh = (self.roots.root(), Arc::new(kept(&self.state, whole, spare)));
        let before = std::mem::replace(&mut self.snapshot, fresh);
        self.history.push_back(before);
    }

    /// STATE-6: goes back to a state that is kept, from which this round goes on; whether it is. The states since then stay for
    /// audits.
    pub fn rewind(&mut self, root: &Digest, round: Round) -> bool {
        let kept = self.history.iter().rev().find(|(held, state)| held == root && !state.first.is_empty());
        // Without its moments a state cannot be trained on.
        let Some(state) = kept.map(|(_, state)| State::clone(state)) else { return false };
        self.roots = state.roots();
        self.state = state;
        self.round = round;
        self.renew(None);
        true
    }

    /// The state is before this round: those between were abandoned.
    pub fn skip_to(&mut self, round: Round) {
        self.round = round;
    }

    /// Replaces the state by one that was fetched. The caller has checked its root.
    pub fn replace(&mut self, state: State, round: Round) {
        self.state = state;
        self.roots = self.state.roots();
        self.round = round;
        self.renew(None);
        self.history.clear();
    }

    /// Mean loss on the held-out text, in nats per token; none without held-out text.
    pub fn held_out_loss(&mut self) -> Option<f64> {
        let windows = self.dataset.held_out_windows(self.manifest.model.sequence, HELD_OUT_WINDOWS);
        (!windows.is_empty()).then(|| self.arithmetic.evaluate(&self.manifest, &self.state, &windows))
    }

    /// What a judge may look at: the kept states, the text, and what was brought.
    pub fn witness(&self, brought: Brought) -> Exhibited {
        let states = self.history.iter().chain([&self.snapshot]).cloned().collect();
        Exhibited::new(states, self.dataset.clone(), &self.manifest, brought)
    }

    /// The arithmetic, for callers that compute leaves themselves.
    pub fn arithmetic(&mut self) -> &mut Exact {
        &mut self.arithmetic
    }
}

/// What is kept of a state, in the memory of another one: parameters and exponents and, where the run may go back to it,
/// the moments.
fn kept(state: &State, whole: bool, spare: Option<State>) -> State {
    let State { mut shards, mut exponents, mut parameters, mut first, mut second, .. } =
        spare.unwrap_or_default();
    shards.clone_from(&state.shards);
    exponents.clone_from(&state.exponents);
    parameters.clone_from(&state.parameters);
    let moments = |of: &mut Vec<f32>, from: &Vec<f32>| if whole { of.clone_from(from) } else { of.clear() };
    moments(&mut first, &state.first);
    moments(&mut second, &state.second);
    State { shards, exponents, parameters, first, second }
}
