//! The replicated state with its arithmetic and its text.

use std::borrow::Borrow;
use std::collections::VecDeque;
use std::sync::Arc;

use muster_compute::{Exact, Path};
use muster_core::error::Misuse;
use muster_core::ids::{Digest, Round, Row, ShardId};
use muster_core::layout::Layout;
use muster_core::manifest::Manifest;
use muster_core::state::{Arithmetic, State, StateRoots, Update};
use muster_store::dataset::Dataset;
use muster_store::error::StoreError;
use muster_store::rows::{RowFiles, Rows};
use tokio::sync::watch;

use crate::archive::states::initial;
use crate::held::{HeldState, KeptState, Stepper};
use crate::memory::{self, Room};
use crate::stopwatch::Stopwatch;
use crate::witness::{Brought, Exhibited};

/// Held-out windows that a loss is measured on, at most and at least.
const HELD_OUT_WINDOWS: [u64; 2] = [256, 8];
/// Parameters times tokens of a measurement, but for the least number of windows: minutes on one thread.
const HELD_OUT_WORK: u64 = 1 << 42;

/// What a replica keeps once the state has several rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keeps {
    /// All rows.
    Everything,
    /// One row, or none where none was drawn for its owner yet; and the trunk.
    Path(Option<Row>),
}

/// Parameters times tokens of the first state's leaf from which it is told: some seconds on one thread.
const TOLD_WORK: u64 = 1 << 36;

/// State before some round, the states of the rounds before it, and what computes on them.
pub struct Replica {
    manifest: Arc<Manifest>,
    layout: Arc<Layout>,
    dataset: Arc<Dataset>,
    arithmetic: Exact,
    keeps: watch::Sender<Keeps>,
    held: HeldState,
    /// Where rows are that are not in memory.
    row_files: Option<RowFiles>,
    /// Where states go that take more bytes than these.
    state_files: Option<(RowFiles, Room)>,
    /// Whether the disk did not take the last one, which is said once.
    refused: bool,
    /// Bytes that the memory has left, where that is known.
    available: fn() -> Option<u64>,
    round: Round,
    /// Whether a step of the state failed half-way.
    torn: bool,
    /// Of the state as it is now, what is kept of it afterwards; and its roots.
    snapshot: KeptState,
    snapshot_roots: StateRoots,
    history: VecDeque<KeptState>,
    stopwatch: Arc<Stopwatch>,
}

/// Says what takes minutes with a large model, before it begins. Local updates need no gradient for it (LOCAL-12).
fn tell_of_genesis(manifest: &Manifest) {
    let (parameters, tokens) = (
        manifest.model.all_parameters(),
        u64::from(manifest.training.leaf_windows) * u64::from(manifest.model.sequence),
    );
    if manifest.local().is_none() && parameters.saturating_mul(tokens) > TOLD_WORK {
        tracing::info!(
            "computing the first state of the run: {parameters} parameters, and their gradient over {tokens} tokens, which takes \
             as long as a leaf"
        );
    }
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
        tell_of_genesis(&manifest);
        let mut arithmetic = Exact::new(threads, path)?;
        // One leaf is worth no packed matrices: they would take more than the state does.
        arithmetic.pack_up_to(0);
        let state = initial(&manifest, &dataset, &mut arithmetic)?;
        // Its gradient is as large as the model, and steps need none.
        let arithmetic = Exact::new(threads, path)?;
        Ok(Self::assemble(manifest, dataset, arithmetic, HeldState::whole(state), Round(0)))
    }

    /// A state that was fetched or read, before this round. The caller has checked its roots.
    ///
    /// # Errors
    /// [`Misuse`] when this machine cannot compute in defined bits.
    pub fn resume(
        manifest: Arc<Manifest>,
        dataset: Arc<Dataset>,
        threads: usize,
        path: Option<Path>,
        held: HeldState,
        round: Round,
    ) -> Result<Self, Misuse> {
        let arithmetic = Exact::new(threads, path)?;
        Ok(Self::assemble(manifest, dataset, arithmetic, held, round))
    }

    fn assemble(
        manifest: Arc<Manifest>,
        dataset: Arc<Dataset>,
        arithmetic: Exact,
        held: HeldState,
        round: Round,
    ) -> Self {
        let layout = Arc::new(Layout::of_run(&manifest));
        let snapshot = KeptState::of(&held, manifest.keeps_moments(), true);
        let snapshot_roots = held.roots.clone();
        Self {
            manifest,
            layout,
            dataset,
            arithmetic,
            keeps: watch::Sender::new(Keeps::Everything),
            held,
            row_files: None,
            state_files: None,
            refused: false,
            available: memory::available,
            round,
            torn: false,
            snapshot,
            snapshot_roots,
            history: VecDeque::new(),
            stopwatch: Arc::default(),
        }
    }

    /// The same, which keeps rows on the disk from now on: in memory are the trunk and the row that it computes on.
    ///
    /// # Errors
    /// What the disk reports.
    pub fn with_row_files(mut self, files: RowFiles) -> Result<Self, StoreError> {
        if self.held.roots.rows() > 1 {
            self.held.put_away(&files, false)?;
        }
        self.row_files = Some(files);
        self.snapshot = self.kept();
        Ok(self)
    }

    /// The same, with states on the disk from now on that take more than this room: earlier ones, and the newest as well.
    #[must_use]
    pub fn with_state_files(mut self, files: RowFiles, room: Room) -> Self {
        self.state_files = Some((files, room));
        self.put_away();
        self
    }

    /// The same on a machine whose memory has as much left as this says: for tests.
    #[must_use]
    pub fn with_memory(self, available: fn() -> Option<u64>) -> Self {
        Self { available, ..self }
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

    /// The state, of the shards that it has in memory: of all that it holds where none are on the disk.
    pub fn state(&self) -> &State {
        &self.held.state
    }

    /// The state with the rows that are on the disk.
    pub fn held_state(&self) -> &HeldState {
        &self.held
    }

    /// The roots of the run's state.
    pub fn roots(&self) -> &StateRoots {
        &self.held.roots
    }

    /// The shards that it holds.
    pub fn held(&self) -> impl Iterator<Item = ShardId> + Clone + '_ {
        self.held.shards()
    }

    /// What it keeps from now on, once the state has several rows.
    pub fn keep(&mut self, keeps: Keeps) {
        self.keeps.send_if_modified(|now| std::mem::replace(now, keeps) != keeps);
        let (wanted, held) = (self.wanted(), self.held().collect::<Vec<_>>());
        // What it has beyond that is dropped. What it lacks has to be fetched.
        if held.len() > wanted.len() && wanted.iter().all(|shard| held.contains(shard)) {
            self.held.rows.retain(|shard, _| wanted.contains(shard));
            self.held.state = self.held.state.select(wanted);
            // Leaves are computed on the snapshot, which is of what a seat holds.
            self.snapshot = self.kept();
        }
    }

    /// What it keeps, for whoever waits for that to change.
    pub fn keeping(&self) -> watch::Receiver<Keeps> {
        self.keeps.subscribe()
    }

    /// The shards that it should hold now.
    pub fn wanted(&self) -> Vec<ShardId> {
        self.wanted_of(self.held.roots.rows())
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
        self.held().eq(self.wanted())
    }

    /// Whether a step failed half-way, so that the state is that of no round: nobody writes it down or goes on from it.
    pub fn is_torn(&self) -> bool {
        self.torn
    }

    /// The round that the state is before.
    pub fn round(&self) -> Round {
        self.round
    }

    /// Root, parameters and exponents of the shards in memory, to compute leaves on while the replica goes on; their moments,
    /// too, where the run may go back to the state.
    pub fn snapshot(&self) -> (Digest, Arc<State>) {
        // It is in memory: of that kind `near` reads nothing.
        (self.snapshot.root(), self.snapshot.near().unwrap_or_default())
    }

    /// What is kept of a state: parameters and exponents; its moments, too, where the run may go back to it.
    pub fn state_at(&self, root: &Digest) -> Option<KeptState> {
        self.newest_first().find(|kept| kept.root() == *root).cloned()
    }

    /// What is kept. Of one state it may be kept twice: with fewer shards first, and then with those that were fetched.
    fn newest_first(&self) -> impl Iterator<Item = &KeptState> {
        [&self.snapshot].into_iter().chain(self.history.iter().rev())
    }

    /// Roots of the states that [`Self::state_at`] gives.
    pub fn states_at_hand(&self) -> impl Iterator<Item = Digest> {
        self.history.iter().chain([&self.snapshot]).map(KeptState::root)
    }

    /// Roots of the states that it can go back to.
    pub fn kept_states(&self) -> impl Iterator<Item = Digest> {
        self.history.iter().filter(|kept| kept.has_moments()).map(KeptState::root)
    }

    /// Where the time of [`Replica::apply`] goes.
    pub fn stopwatch(&self) -> &Arc<Stopwatch> {
        &self.stopwatch
    }

    /// Applies a round's update to the shards that it holds, and gives the roots of the run's state: computed here for
    /// these, as they were sealed for others. The update may come in several, of some shards each, and is asked for one after
    /// the other.
    ///
    /// # Errors
    /// As [`HeldState::advance`]; [`StoreError`] where neither the disk nor the memory takes the state before, which is unchanged then.
    pub fn apply<U: Borrow<Update>>(
        &mut self,
        updates: impl IntoIterator<Item = Result<U, StoreError>>,
        sealed: Option<&StateRoots>,
    ) -> Result<StateRoots, StoreError> {
        // Of the rows that come to be, this replica keeps some.
        let rows: Vec<Row> =
            self.wanted_of(self.manifest.model.rows()).into_iter().filter_map(ShardId::row).collect();
        self.settle()?;
        // Of several rows there may be no memory for all updates, which are asked for one after the other.
        if self.is_away() && self.held.rows.len() == 1 {
            let updates = updates.into_iter().collect::<Result<Vec<U>, StoreError>>()?;
            let all = || updates.iter().map(|update| Ok(update.borrow()));
            if let Err(error) = self.advance(&rows, all()) {
                self.bring_back(&error)?;
                self.advance(&rows, all())?;
            }
        } else {
            self.advance(&rows, updates)?;
        }
        self.round = self.round.next();
        if let Some(sealed) = sealed.filter(|sealed| sealed.shards.len() == self.held.roots.shards.len()) {
            self.held.roots = sealed.overlaid(&self.held.roots, self.held.shards());
        }
        self.make_room();
        self.renew();
        Ok(self.held.roots.clone())
    }

    /// Takes a step of the state.
    fn advance<U: Borrow<Update>>(
        &mut self,
        rows: &[Row],
        updates: impl IntoIterator<Item = Result<U, StoreError>>,
    ) -> Result<(), StoreError> {
        let away = self.is_away();
        let Self { manifest, arithmetic, held, stopwatch, row_files, state_files, .. } = self;
        let state_files = state_files.as_ref().map(|(files, _)| files).filter(|_| away);
        let row_files = row_files.as_ref().or(state_files);
        // What is on the disk is written anew, beside what it was.
        self.torn = !away;
        held.advance(Stepper { manifest, arithmetic, row_files, stopwatch }, rows, updates)?;
        self.torn = false;
        Ok(())
    }

    /// Whether all of the state is on the disk.
    fn is_away(&self) -> bool {
        self.held.state.shards.is_empty()
    }

    /// LIMIT-4: a state whose next step the disk does not take comes back to the memory while that has room for it.
    ///
    /// # Errors
    /// What the disk reports, where the memory has no room either, or the disk does not give the state.
    fn bring_back(&mut self, error: &StoreError) -> Result<(), StoreError> {
        self.refused = self.holds_instead(self.held.bytes(), error)?;
        let shards: Vec<ShardId> = self.held.shards().collect();
        let state = self.held.select(&shards, true)?;
        self.held = HeldState { state, rows: Rows::new(), roots: self.held.roots.clone() };
        Ok(())
    }

    /// Before the state changes: the snapshot goes to the disk where earlier states are kept there. It would have a copy made of
    /// all that the next step changes.
    ///
    /// # Errors
    /// [`StoreError`] where neither the disk nor the memory takes it.
    fn settle(&mut self) -> Result<(), StoreError> {
        self.put_away();
        let all = memory::past(&self.manifest, self.snapshot.bytes() as u64);
        if let Some((files, _)) = self.state_files.as_ref().filter(|(_, room)| all > room.past) {
            match self.snapshot.stored(files, &self.snapshot_roots) {
                Ok(stored) => (self.snapshot, self.refused) = (stored, false),
                Err(error) => {
                    self.refused = self.holds_instead(self.snapshot.bytes() as u64, &error)?;
                }
            }
        }
        Ok(())
    }

    /// The state goes to the disk if it takes more than its room. LIMIT-4: one that the disk does not take stays in memory,
    /// where it is already.
    fn put_away(&mut self) {
        let large = |room: &Room| !self.is_away() && self.held.bytes() > room.state;
        let Some((files, _)) = self.state_files.as_ref().filter(|(_, room)| large(room)) else { return };
        match self.held.put_away(files, true) {
            Ok(()) => self.snapshot = self.kept(),
            Err(error) => {
                if !self.refused {
                    tracing::warn!("the state stays in memory until the disk takes it: {error}");
                }
                self.refused = true;
            }
        }
    }

    /// What is kept of the state as it is now. Where rows are on the disk because there are many, leaves are computed on none.
    fn kept(&self) -> KeptState {
        KeptState::of(&self.held, self.manifest.keeps_moments(), self.row_files.is_none())
    }

    /// Drops earlier states, up to one less than are kept.
    fn make_room(&mut self) {
        while self.history.len() >= self.manifest.retention.states as usize {
            self.history.pop_front();
        }
    }

    /// After the state has changed: the snapshot is an earlier state now, and the new one shares the state's memory.
    fn renew(&mut self) {
        let snapshot = self.kept();
        self.history.push_back(std::mem::replace(&mut self.snapshot, snapshot));
        self.snapshot_roots = self.held.roots.clone();
    }

    /// LIMIT-4: a state of so many bytes that the disk does not take stays in memory while that has room for it: audits may ask for it.
    /// Always true.
    ///
    /// # Errors
    /// What the disk reports, where the memory has no room either.
    fn holds_instead(&self, bytes: u64, error: &StoreError) -> Result<bool, StoreError> {
        let kept = self.history.iter().map(|kept| kept.bytes() as u64).sum();
        let left = (self.available)();
        if !memory::holds(bytes, kept, left) {
            let left = left.map(|left| format!(" ({} left)", memory::shown(left))).unwrap_or_default();
            return Err(error.clone().and(format!(
                "the memory{left} has no room for another state of {} (retention.states)",
                memory::shown(bytes)
            )));
        }
        if !self.refused {
            tracing::warn!("states stay in memory until the disk takes them: {error}");
        }
        Ok(true)
    }

    /// STATE-6: goes back to a state that is kept, from which this round goes on; whether it is. The states since then stay for
    /// audits.
    ///
    /// # Errors
    /// [`StoreError`] where neither the disk nor the memory takes the state before.
    pub fn rewind(&mut self, sealed: &StateRoots, round: Round) -> Result<bool, StoreError> {
        let root = sealed.root();
        // What came after it may never have been applied here.
        if !self.torn && self.held.roots == *sealed {
            self.round = round;
            return Ok(true);
        }
        // Without its moments a state cannot be trained on.
        let kept = self.history.iter().rev().find(|kept| kept.root() == root && kept.has_moments());
        let away = self.is_away();
        let Some(held) = kept.and_then(|kept| kept.held(sealed.clone(), away)) else { return Ok(false) };
        self.settle()?;
        self.held = held;
        (self.round, self.torn) = (round, false);
        self.renew();
        Ok(true)
    }

    /// The state is before this round: those between were abandoned.
    pub fn skip_to(&mut self, round: Round) {
        self.round = round;
    }

    /// Replaces the state by one that was fetched. The caller has checked its roots.
    ///
    /// # Errors
    /// [`StoreError`] where neither the disk nor the memory takes the state before.
    pub fn replace(&mut self, held: HeldState, round: Round) -> Result<(), StoreError> {
        // Earlier states stay: this member may still be audited on them.
        self.settle()?;
        self.held = held;
        (self.round, self.torn) = (round, false);
        self.make_room();
        self.renew();
        self.put_away();
        Ok(())
    }

    /// Mean loss on the held-out text, in nats per token: of the windows that belong to a row that it holds. None without
    /// such a window.
    pub fn held_out_loss(&mut self) -> Option<f64> {
        let Self { manifest, dataset, arithmetic, held, .. } = self;
        mean_held_out_loss(arithmetic, manifest, dataset, held)
    }

    /// What a judge may look at: the kept states, the text, and what was brought.
    pub fn witness(&self, brought: Brought) -> Exhibited {
        let states = self.newest_first().cloned().collect();
        Exhibited::new(states, self.dataset.clone(), &self.manifest, brought)
    }

    /// The arithmetic, for callers that compute leaves themselves.
    pub fn arithmetic(&mut self) -> &mut Exact {
        &mut self.arithmetic
    }
}

/// How many held-out windows a loss is measured on: fewer where the model is large, and the same ones in each measurement.
fn held_out_windows(manifest: &Manifest) -> usize {
    let [most, least] = HELD_OUT_WINDOWS;
    let window = manifest.model.parameters().saturating_mul(manifest.model.sequence.into());
    (HELD_OUT_WORK / window.max(1)).clamp(least, most) as usize
}

/// Mean loss in nats per token of the held-out windows whose rows a state holds, each on the path of its row; of a state
/// with one row, of all windows. None where there is none, or its row cannot be read.
pub(crate) fn mean_held_out_loss(
    arithmetic: &mut Exact,
    manifest: &Manifest,
    dataset: &Dataset,
    held: &HeldState,
) -> Option<f64> {
    let (sequence, most, rows) = (manifest.model.sequence, held_out_windows(manifest), held.roots.rows());
    let unread = |error: &StoreError| tracing::warn!("no held-out loss: {error}");
    let layout = Layout::of_run(manifest);
    let on_path = |row: Row| {
        let path: Vec<ShardId> = layout.path(row).collect();
        held.select(&path, false).inspect_err(unread).ok()
    };
    if rows == 1 {
        let windows = dataset.held_out_windows(sequence, most).inspect_err(unread).ok()?;
        if windows.is_empty() {
            return None;
        }
        let read = if held.rows.is_empty() { None } else { Some(on_path(Row(0))?) };
        return Some(arithmetic.evaluate(manifest, read.as_ref().unwrap_or(&held.state), &windows));
    }
    let routed = dataset.routed_held_out_windows(sequence, most, |row| row.0 < rows);
    let routed = routed.inspect_err(unread).ok()?;
    let (mut sum, mut count) = (0.0, 0);
    for row in held.shards().filter_map(ShardId::row) {
        let windows = routed.iter().filter(|window| window.row == Some(row));
        let windows: Vec<Vec<u32>> = windows.map(|window| window.tokens.clone()).collect();
        if !windows.is_empty() {
            sum += arithmetic.evaluate(manifest, &on_path(row)?, &windows) * windows.len() as f64;
            count += windows.len();
        }
    }
    (count > 0).then(|| sum / count as f64)
}
