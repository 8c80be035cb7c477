//! The replicated state with its arithmetic and its text.

use std::collections::VecDeque;
use std::sync::Arc;

use muster_compute::{Exact, Path};
use muster_core::error::Misuse;
use muster_core::ids::{Digest, Round, Row, RowSet, ShardId};
use muster_core::layout::Layout;
use muster_core::manifest::Manifest;
use muster_core::state::{Arithmetic, State, StateRoots, Update};
use muster_store::dataset::Dataset;
use tokio::sync::watch;

use crate::archive::states::initial;
use crate::stopwatch::{Phase, Stopwatch};
use crate::witness::{Brought, Exhibited};

/// Held-out windows that a loss is measured on, at most.
pub const HELD_OUT_WINDOWS: usize = 256;

/// What a replica keeps once the state has several rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keeps {
    /// All rows.
    Everything,
    /// One row, or none where none was drawn for its owner yet; and the trunk.
    Path(Option<Row>),
}

/// State before some round, the states of the rounds before it, and what computes on them.
pub struct Replica {
    manifest: Arc<Manifest>,
    layout: Arc<Layout>,
    dataset: Arc<Dataset>,
    arithmetic: Exact,
    keeps: watch::Sender<Keeps>,
    /// The shards that it holds.
    state: State,
    /// Of all shards of the run.
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
        let roots = state.roots();
        Ok(Self::assemble(manifest, dataset, arithmetic, (state, roots), Round(0)))
    }

    /// A state that was fetched or read, before this round, of a run with these roots. The caller has checked them.
    ///
    /// # Errors
    /// [`Misuse`] when this machine cannot compute in defined bits.
    pub fn resume(
        manifest: Arc<Manifest>,
        dataset: Arc<Dataset>,
        threads: usize,
        path: Option<Path>,
        state: (State, StateRoots),
        round: Round,
    ) -> Result<Self, Misuse> {
        let arithmetic = Exact::new(threads, path)?;
        Ok(Self::assemble(manifest, dataset, arithmetic, state, round))
    }

    fn assemble(
        manifest: Arc<Manifest>,
        dataset: Arc<Dataset>,
        arithmetic: Exact,
        (state, roots): (State, StateRoots),
        round: Round,
    ) -> Self {
        let layout = Arc::new(Layout::of(&manifest.model));
        let whole = manifest.rollback.is_on();
        let snapshot = (roots.root(), Arc::new(kept(&state, whole, None)));
        Self {
            manifest,
            layout,
            dataset,
            arithmetic,
            keeps: watch::Sender::new(Keeps::Everything),
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

    /// The state, of the shards that it holds.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// The roots of the run's state.
    pub fn roots(&self) -> &StateRoots {
        &self.roots
    }

    /// What it keeps from now on, once the state has several rows.
    pub fn keep(&mut self, keeps: Keeps) {
        self.keeps.send_if_modified(|now| std::mem::replace(now, keeps) != keeps);
        let (wanted, held) = (self.wanted(), self.state.held().collect::<Vec<_>>());
        // What it has beyond that is dropped. What it lacks has to be fetched.
        if held.len() > wanted.len() && wanted.iter().all(|shard| held.contains(shard)) {
            self.state = self.state.select(wanted);
            // Leaves are computed on the snapshot, which is of what a seat holds.
            self.snapshot.1 = Arc::new(kept(&self.state, self.manifest.rollback.is_on(), None));
        }
    }

    /// What it keeps, for whoever waits for that to change.
    pub fn keeping(&self) -> watch::Receiver<Keeps> {
        self.keeps.subscribe()
    }

    /// The shards that it should hold now.
    pub fn wanted(&self) -> Vec<ShardId> {
        self.wanted_of(self.roots.rows())
    }

    /// The shards that it should hold of a state with so many rows.
    pub fn wanted_of(&self, rows: u16) -> Vec<ShardId> {
        match *self.keeps.borrow() {
            Keeps::Path(None) if rows > 1 => vec![ShardId::TRUNK],
            Keeps::Path(Some(row)) if rows > 1 => self.layout.path(row).collect(),
            _ => self.layout.all_shards(rows).collect(),
        }
    }

    /// Whether it holds what it should.
    pub fn is_complete(&self) -> bool {
        self.state.held().eq(self.wanted())
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

    /// The same, these shards of it alone; none where it holds others.
    pub fn shards_at(&self, root: &Digest, shards: &[ShardId]) -> Option<Arc<State>> {
        let state = self.state_at(root)?;
        if state.held().eq(shards.iter().copied()) {
            return Some(state);
        }
        let selected = state.select(shards.iter().copied());
        (selected.shards.len() == shards.len()).then(|| Arc::new(selected))
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

    /// Applies a round's update to the shards that it holds, and gives the roots of the run's state: computed here for
    /// these, as they were sealed for others.
    pub fn apply(&mut self, update: &Update, sealed: Option<&StateRoots>) -> StateRoots {
        let stopwatch = self.stopwatch.clone();
        let rows = self.roots.rows();
        stopwatch.time(Phase::Optimiser, || self.arithmetic.apply(&self.manifest, &mut self.state, update));
        self.round = self.round.next();
        self.roots = stopwatch.time(Phase::Hashing, || self.roots.with(&self.state));
        self.branch(rows);
        if let Some(sealed) = sealed.filter(|sealed| sealed.shards.len() == self.roots.shards.len()) {
            self.roots = sealed.overlaid(&self.roots, self.state.held());
        }
        let mut oldest = None;
        // Dropped before the new one is made, so that `retention.states` earlier ones are in memory and no more.
        while self.history.len() >= self.manifest.retention.states as usize {
            oldest = self.history.pop_front();
        }
        // The new one takes the memory of the oldest, unless somebody still computes on that.
        self.renew(oldest.and_then(|(_, state)| Arc::into_inner(state)));
        self.roots.clone()
    }

    /// STATE-8: where the state has so many updates now, its one row becomes all; this replica keeps some of them.
    fn branch(&mut self, rows: u16) {
        let now = self.manifest.model.rows_after(self.roots.step());
        if now == rows {
            return;
        }
        self.roots = self.roots.branched(now);
        self.state = self.state.branched(self.wanted().into_iter().filter_map(ShardId::row));
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
    pub fn rewind(&mut self, sealed: &StateRoots, round: Round) -> bool {
        let root = sealed.root();
        let kept = self.history.iter().rev().find(|(held, state)| *held == root && !state.first.is_empty());
        // Without its moments a state cannot be trained on.
        let Some(state) = kept.map(|(_, state)| State::clone(state)) else { return false };
        self.roots = sealed.clone();
        self.state = state;
        self.round = round;
        self.renew(None);
        true
    }

    /// The state is before this round: those between were abandoned.
    pub fn skip_to(&mut self, round: Round) {
        self.round = round;
    }

    /// Replaces the state by one that was fetched, of a run with these roots. The caller has checked them.
    pub fn replace(&mut self, state: State, roots: StateRoots, round: Round) {
        self.state = state;
        self.roots = roots;
        self.round = round;
        self.renew(None);
        self.history.clear();
    }

    /// Mean loss on the held-out text, in nats per token: of the windows that belong to a row that it holds. None without
    /// such a window.
    pub fn held_out_loss(&mut self) -> Option<f64> {
        let held: RowSet = self.state.held().filter_map(ShardId::row).collect();
        mean_held_out_loss(
            &mut self.arithmetic,
            &self.manifest,
            &self.dataset,
            &self.state,
            self.roots.rows(),
            |row| held.contains(row),
        )
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

/// Mean loss in nats per token of the held-out windows whose rows a state holds, each on the path of its row; of a state
/// with one row, of all windows. None where there is none.
pub(crate) fn mean_held_out_loss(
    arithmetic: &mut Exact,
    manifest: &Manifest,
    dataset: &Dataset,
    state: &State,
    rows: u16,
    holds: impl Fn(Row) -> bool,
) -> Option<f64> {
    let sequence = manifest.model.sequence;
    if rows == 1 {
        let windows = dataset.held_out_windows(sequence, HELD_OUT_WINDOWS);
        return (!windows.is_empty()).then(|| arithmetic.evaluate(manifest, state, &windows));
    }
    let layout = Layout::of(&manifest.model);
    let routed = dataset.routed_held_out_windows(sequence, HELD_OUT_WINDOWS, |row| row.0 < rows);
    let (mut sum, mut count) = (0.0, 0);
    for row in (0..rows).map(Row).filter(|row| holds(*row)) {
        let windows = routed.iter().filter(|window| window.row == Some(row));
        let windows: Vec<Vec<u32>> = windows.map(|window| window.tokens.clone()).collect();
        if !windows.is_empty() {
            let path = state.select(layout.path(row));
            sum += arithmetic.evaluate(manifest, &path, &windows) * windows.len() as f64;
            count += windows.len();
        }
    }
    (count > 0).then(|| sum / count as f64)
}
