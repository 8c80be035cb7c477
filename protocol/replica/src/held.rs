//! A state with its rows in memory or on the disk, and the step that it takes.

use std::borrow::Borrow;
use std::sync::{Arc, Mutex, Weak};

use muster_compute::Exact;
use muster_core::ids::{Digest, Row, ShardId};
use muster_core::lock::lock;
use muster_core::manifest::Manifest;
use muster_core::state::{Arithmetic, State, StateRoots, Update};
use muster_store::error::StoreError;
use muster_store::rows::{RowFile, RowFiles, Rows};

use crate::step::step;
use crate::stopwatch::{Phase, Stopwatch};

/// A state with its roots, its rows in memory or on the disk.
#[derive(Clone, Debug)]
pub struct HeldState {
    /// Shards in memory.
    pub state: State,
    /// Shards on the disk, which stand behind those.
    pub rows: Rows,
    /// Roots of all shards of the run.
    pub roots: StateRoots,
}

/// What a state takes its steps with.
pub struct Stepper<'a> {
    /// The manifest.
    pub manifest: &'a Manifest,
    /// The arithmetic.
    pub arithmetic: &'a mut Exact,
    /// Where rows go that are not kept in memory.
    pub row_files: Option<&'a RowFiles>,
    /// Where the time goes.
    pub stopwatch: &'a Stopwatch,
}

impl HeldState {
    /// A state that has all shards of the run, in memory.
    pub fn whole(state: State) -> Self {
        Self { roots: state.roots(), state, rows: Rows::new() }
    }

    /// The shards that it has.
    pub fn shards(&self) -> impl Iterator<Item = ShardId> + Clone + '_ {
        self.state.held().chain(self.rows.keys().copied())
    }

    /// Its roots as its values give them; those of shards that it lacks as they are said to be.
    pub fn found_roots(&self) -> StateRoots {
        self.roots.with(&self.state).with_shards(self.rows.iter().map(|(id, file)| (*id, *file.roots())))
    }

    /// These of its shards, in memory, as far as it has them. Rows from the disk come with moments if these are wanted.
    ///
    /// # Errors
    /// What the disk reports.
    pub fn select(&self, shards: &[ShardId], moments: bool) -> Result<State, StoreError> {
        select(&self.state, &self.rows, shards, moments)
    }

    /// Moves its rows from memory to the disk; the trunk as well, where it is to go `whole`.
    ///
    /// # Errors
    /// What the disk reports. Nothing has changed then.
    pub(crate) fn put_away(&mut self, files: &RowFiles, whole: bool) -> Result<(), StoreError> {
        let mut moved = Rows::new();
        let away = |id: &ShardId| whole || id.row().is_some();
        for id in self.state.held().filter(away) {
            if let (Some(shard), Some(roots)) = (self.state.shard(id), self.roots.shard(id)) {
                moved.insert(id, files.put(shard, *roots)?);
            }
        }
        self.rows.append(&mut moved);
        self.state = self.state.select(self.state.held().filter(|id| !away(id)).collect::<Vec<_>>());
        Ok(())
    }

    /// Bytes of all its vectors, wherever they are.
    pub(crate) fn bytes(&self) -> u64 {
        let in_memory = self.state.shards.iter().map(|shard| shard.size.coefficients);
        let on_disk = self.rows.iter().map(|(id, row)| row.shard(*id).size.coefficients);
        in_memory.chain(on_disk).map(|coefficients| 12 * coefficients as u64).sum()
    }

    /// Takes a round's step: what the round gives for each shard, in one update or in several of some shards each, which are
    /// asked for one after the other. Where the state has so many updates then that its one row becomes several (STATE-8), it
    /// has `rows` of them afterwards.
    ///
    /// # Errors
    /// That of an update; what the disk reports. What was in memory is of no use any more then.
    pub fn advance<U: Borrow<Update>>(
        &mut self,
        with: Stepper<'_>,
        rows: &[Row],
        updates: impl IntoIterator<Item = Result<U, StoreError>>,
    ) -> Result<(), StoreError> {
        let Stepper { manifest, arithmetic, row_files, stopwatch } = with;
        let before = manifest.model.rows_after(self.step());
        let mut stepped = Rows::new();
        for update in updates {
            let update = update?;
            let update = update.borrow();
            stopwatch.time(Phase::Optimiser, || arithmetic.apply(manifest, &mut self.state, update));
            for id in &update.shards {
                let (Some(files), Some(file)) = (row_files, self.rows.get(id)) else { continue };
                let row = stopwatch
                    .time(Phase::Optimiser, || step(arithmetic, manifest, (*id, file), files, update))?;
                stepped.insert(*id, row);
            }
        }
        // All at once: whatever fails before leaves those on the disk as they were.
        self.rows.append(&mut stepped);
        self.roots = stopwatch.time(Phase::Hashing, || self.found_roots());
        let now = manifest.model.rows_after(self.step());
        if now != before {
            self.branch(now, rows, row_files)?;
        }
        Ok(())
    }

    /// Updates applied so far to the first shard, which every round updates.
    fn step(&self) -> u32 {
        let first = self.rows.first_key_value().map(|(id, row)| row.shard(*id).step);
        self.state.shards.first().map(|shard| shard.step).or(first).unwrap_or_default()
    }

    /// STATE-8: its one row becomes `now` of them, of which it has these.
    fn branch(&mut self, now: u16, rows: &[Row], files: Option<&RowFiles>) -> Result<(), StoreError> {
        self.roots = self.roots.branched(now);
        let first = ShardId::of(Row(0));
        let written = match (files, self.state.shard(first), self.roots.shard(first)) {
            (Some(files), Some(row), Some(roots)) => Some(files.put(row, *roots)?),
            _ => self.rows.remove(&first),
        };
        let Some(file) = written else {
            self.state = self.state.branched(rows.iter().copied());
            return Ok(());
        };
        // One file for all of them, until they take steps.
        self.rows.extend(rows.iter().map(|row| (ShardId::of(*row), file.clone())));
        self.state = self.state.select([ShardId::TRUNK]);
        Ok(())
    }
}

/// What is kept of a state: parameters, exponents and, where the run may go back to it, moments. Cheap to copy.
#[derive(Clone, Debug)]
pub struct KeptState {
    root: Digest,
    /// Roots of all its shards, where they are known: what proves a part of it to others.
    shard_roots: Option<Arc<StateRoots>>,
    /// Whether it has its moments.
    whole: bool,
    /// The shards that leaves are computed on, in memory or on the disk.
    near: Vec<ShardId>,
    state: Arc<State>,
    /// Shards on the disk.
    rows: Rows,
    /// Those that leaves are computed on, while somebody does.
    read: Arc<Mutex<Weak<State>>>,
}

impl KeptState {
    /// Of a state that is in memory, with the run's root.
    pub fn in_memory(root: Digest, state: Arc<State>) -> Self {
        let (whole, near) = (!state.first.is_empty(), state.held().collect());
        Self { root, shard_roots: None, whole, near, state, rows: Rows::new(), read: Arc::default() }
    }

    /// Of a state, which shares its memory until the next step; its moments only if it is to be kept `whole`. Leaves are computed
    /// on what is in memory, and on what is on the disk if everything is there and `near`.
    pub(crate) fn of(held: &HeldState, whole: bool, near: bool) -> Self {
        let mut state = held.state.clone();
        if !whole {
            (state.first, state.second) = Default::default();
        }
        let state = Arc::new(state);
        let row = |(id, file): (&ShardId, &RowFile)| {
            (*id, if whole { file.clone() } else { file.without_moments() })
        };
        let rows = held.rows.iter().map(row).collect();
        let shard_roots = Some(Arc::new(held.roots.clone()));
        let kept = Self { shard_roots, ..Self::in_memory(held.roots.root(), state) };
        if !held.state.shards.is_empty() {
            return Self { rows, ..kept };
        }
        let near = if near { held.shards().collect() } else { vec![ShardId::TRUNK] };
        Self { rows, near, whole, ..kept }
    }

    /// The same with all its shards on the disk. `roots` are those of the state.
    ///
    /// # Errors
    /// What the disk reports.
    pub(crate) fn stored(&self, files: &RowFiles, roots: &StateRoots) -> Result<Self, StoreError> {
        let mut rows = self.rows.clone();
        for id in self.state.held() {
            if let (Some(shard), Some(roots)) = (self.state.shard(id), roots.shard(id)) {
                rows.insert(id, files.put(shard, *roots)?);
            }
        }
        let (shard_roots, near) = (self.shard_roots.clone(), self.near.clone());
        Ok(Self { state: Arc::default(), shard_roots, rows, near, read: Arc::default(), ..*self })
    }

    /// The run's root.
    pub fn root(&self) -> Digest {
        self.root
    }

    /// Roots of all its shards, where they are known.
    pub fn shard_roots(&self) -> Option<&StateRoots> {
        self.shard_roots.as_deref()
    }

    /// The shards that leaves are computed on. Read from the disk if they are there; none where that cannot be read.
    pub fn near(&self) -> Option<Arc<State>> {
        if self.rows.is_empty() {
            return self.shards(&self.near);
        }
        // Whoever comes second shares it, however large it is.
        let mut read = lock(&self.read);
        if let Some(state) = read.upgrade() {
            return Some(state);
        }
        let state = self.shards(&self.near)?;
        *read = Arc::downgrade(&state);
        Some(state)
    }

    /// Bytes of the shards that are in memory.
    pub(crate) fn bytes(&self) -> usize {
        let State { parameters, first, second, .. } = &*self.state;
        4 * (parameters.len() + first.len() + second.len())
    }

    /// Whether it can be trained on.
    pub fn has_moments(&self) -> bool {
        self.whole
    }

    /// These shards of it alone; none where it lacks one, or the disk cannot be read.
    pub fn shards(&self, shards: &[ShardId]) -> Option<Arc<State>> {
        if self.state.held().eq(shards.iter().copied()) {
            return Some(self.state.clone());
        }
        let selected = select(&self.state, &self.rows, shards, self.has_moments());
        let selected =
            selected.inspect_err(|error| tracing::warn!("an earlier state cannot be read: {error}")).ok()?;
        (selected.shards.len() == shards.len()).then(|| Arc::new(selected))
    }

    /// The state itself, which has these roots, on the disk as far as it is there and `away`; none where the disk cannot be
    /// read.
    pub(crate) fn held(&self, roots: StateRoots, away: bool) -> Option<HeldState> {
        let mut rows = self.rows.clone();
        if away && self.state.shards.is_empty() {
            return Some(HeldState { state: State::default(), rows, roots });
        }
        rows.retain(|id, _| !self.near.contains(id));
        Some(HeldState { state: Arc::unwrap_or_clone(self.near()?), rows, roots })
    }
}

/// Shards from memory and, behind them, rows from the disk.
fn select(memory: &State, rows: &Rows, shards: &[ShardId], moments: bool) -> Result<State, StoreError> {
    let mut selected = memory.select(shards.iter().copied());
    for (id, row) in shards.iter().filter_map(|id| Some((id, rows.get(id)?))) {
        let row = if moments { row.load(*id)? } else { row.load_parameters(*id)? };
        // The first one is not copied: it may be the whole model.
        selected = if selected.shards.is_empty() { row } else { selected.and(&row) };
    }
    Ok(selected)
}
