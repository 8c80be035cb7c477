//! The replicated state, its root, and the arithmetic that computes on it.

mod update;

use std::borrow::Cow;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use crate::codec::schema::{Described, Schema, Shape};
use crate::codec::{List, encode};
use crate::hash::{Domain, Hasher};
use crate::ids::{Digest, Leaf, Row, ShardId};
use crate::layout::{Layout, ShardRange, ShardSize};
use crate::limits::{self, CHUNK_COEFFICIENTS};
use crate::manifest::Manifest;
use crate::merkle::{self, Tree};
use crate::wire;

pub use update::{ShardStep, Update};

/// Shards of what a run holds, bit for bit, before round t (STATE-7): those that its holder has, one after the other in order
/// of their numbers. A leaf is computed on a path of them: the trunk and one row.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct State {
    /// Its shards.
    pub shards: Vec<Shard>,
    /// Grid exponent of each tensor.
    pub exponents: Vec<i16>,
    /// Parameters; those of a path are the `d` of the canonical layout.
    pub parameters: Vector,
    /// First moments.
    pub first: Vector,
    /// Second moments.
    pub second: Vector,
}

/// Reals that copies share until one of them changes: a state is kept, written down and sent while it waits for its next step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Vector(Arc<Vec<f32>>);

impl Vector {
    /// The reals alone: copied only where somebody else has them, too.
    pub fn into_vec(self) -> Vec<f32> {
        Arc::unwrap_or_clone(self.0)
    }

    /// Puts zeros behind them.
    pub fn append_zeros(&mut self, count: usize) {
        let values = Arc::make_mut(&mut self.0);
        values.resize(values.len() + count, 0.0);
    }

    fn extend_from_slice(&mut self, more: &[f32]) {
        Arc::make_mut(&mut self.0).extend_from_slice(more);
    }
}

impl From<Vec<f32>> for Vector {
    fn from(values: Vec<f32>) -> Self {
        Self(Arc::new(values))
    }
}

impl FromIterator<f32> for Vector {
    fn from_iter<T: IntoIterator<Item = f32>>(values: T) -> Self {
        Vec::from_iter(values).into()
    }
}

impl Deref for Vector {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        &self.0
    }
}

/// Whoever changes them has them alone: they are copied if somebody else has them, too.
impl DerefMut for Vector {
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut *Arc::make_mut(&mut self.0)
    }
}

/// What a shard of a state has beside its share of exponents and vectors.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shard {
    /// Which.
    pub id: ShardId,
    /// Updates applied so far.
    pub step: u32,
    /// β₁^step and β₂^step, by iterated product.
    pub beta_powers: [f64; 2],
    /// Its size.
    pub size: ShardSize,
}

/// The pieces of a shard's root, so that a part of a shard can be proved alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, borsh::BorshSerialize, borsh::BorshDeserialize)]
#[cfg_attr(feature = "arbitrary", derive(arbitrary::Arbitrary))]
pub struct ShardRoots {
    /// Updates applied.
    pub step: u32,
    /// Bits of β₁^step and β₂^step.
    pub beta_powers: [u64; 2],
    /// Hash of the exponents.
    pub exponents: Digest,
    /// Merkle root of the parameters.
    pub parameters: Digest,
    /// Merkle root of the first moments.
    pub first: Digest,
    /// Merkle root of the second moments.
    pub second: Digest,
}

impl Described for ShardRoots {
    fn shape(_: &mut Schema) -> Shape {
        let mut row = vec![Shape::Integer(4), Shape::Integer(8), Shape::Integer(8)];
        row.extend(vec![Shape::Raw(32); 4]);
        Shape::Row(row)
    }
}

wire! {
    /// The roots of all shards of a run's state.
    pub struct StateRoots {
        /// In order of their numbers.
        pub shards: List<ShardRoots, { limits::SHARDS }>,
    }
}

impl ShardRoots {
    /// What they say of the shard itself, which is as large as the model has it.
    pub fn shard(&self, id: ShardId, size: ShardSize) -> Shard {
        Shard { id, step: self.step, beta_powers: self.beta_powers.map(f64::from_bits), size }
    }
}

impl FromIterator<ShardRoots> for StateRoots {
    /// # Panics
    /// When there are more than [`limits::SHARDS`].
    fn from_iter<T: IntoIterator<Item = ShardRoots>>(shards: T) -> Self {
        Self { shards: List::new(shards.into_iter().collect()).expect("a model has no more shards") }
    }
}

impl<const COUNT: usize> From<[ShardRoots; COUNT]> for StateRoots {
    fn from(shards: [ShardRoots; COUNT]) -> Self {
        shards.into_iter().collect()
    }
}

impl StateRoots {
    /// The state root X (STATE-1).
    pub fn root(&self) -> Digest {
        // Pieces have one length: without a count, a state of one shard has that shard's hash.
        let pieces: Vec<u8> = self.shards.iter().flat_map(encode).collect();
        Hasher::new(Domain::STATE).part(&pieces).finish()
    }

    /// Updates applied so far to the first shard, which every round updates.
    pub fn step(&self) -> u32 {
        self.shards.first().map_or(0, |shard| shard.step)
    }

    /// One shard's.
    pub fn shard(&self, id: ShardId) -> Option<&ShardRoots> {
        self.shards.get(id.index())
    }

    /// Rows of a state with these roots; 1 where there are no experts.
    pub fn rows(&self) -> u16 {
        (self.shards.len() as u16).saturating_sub(1).max(1)
    }

    /// STATE-8: those of a state whose one row has become so many.
    #[must_use]
    pub fn branched(&self, rows: u16) -> Self {
        let row = self.shards.get(1).into_iter().cycle().take(rows.into());
        self.shards.first().into_iter().chain(row).copied().collect()
    }

    /// These, with those of others for some shards.
    #[must_use]
    pub fn overlaid(&self, others: &Self, shards: impl Iterator<Item = ShardId>) -> Self {
        let mut all = self.shards.to_vec();
        for id in shards {
            if let (Some(shard), Some(other)) = (all.get_mut(id.index()), others.shard(id)) {
                *shard = *other;
            }
        }
        all.into_iter().collect()
    }

    /// The same with the roots of the shards that a state holds. Equal to these if it holds what was sealed, whichever
    /// shards it holds.
    #[must_use]
    pub fn with(&self, state: &State) -> Self {
        self.with_shards(state.shard_roots())
    }

    /// The same with these roots of shards.
    #[must_use]
    pub fn with_shards(&self, of: impl IntoIterator<Item = (ShardId, ShardRoots)>) -> Self {
        let mut shards = self.shards.to_vec();
        for (id, roots) in of {
            match shards.get_mut(id.index()) {
                Some(shard) => *shard = roots,
                // A shard that these know nothing of: no roots are equal then.
                None => shards.push(roots),
            }
        }
        shards.truncate(limits::SHARDS);
        shards.into_iter().collect()
    }
}

impl State {
    /// A path of these parameters that no round has changed yet: moments and exponents are 0.
    pub fn initial(layout: &Layout, parameters: Vec<f32>) -> Self {
        // Two vectors, which steps change: to share them would only put the second one off.
        let zeros = || Vector::from(vec![0.0; parameters.len()]);
        let [first, second] = [zeros(), zeros()];
        let shard = |(id, range): (ShardId, &ShardRange)| Shard {
            id,
            step: 0,
            beta_powers: [1.0, 1.0],
            size: range.size(),
        };
        Self {
            shards: layout.path(Row(0)).zip(layout.shards()).map(shard).collect(),
            exponents: vec![0; layout.shards().iter().map(|shard| shard.exponents).sum()],
            parameters: parameters.into(),
            first,
            second,
        }
    }

    /// The roots of the pieces of each shard. What a vector lacks counts as absent: it has another root then.
    fn shard_roots(&self) -> impl Iterator<Item = (ShardId, ShardRoots)> {
        let (mut exponents, mut vectors) =
            (&*self.exponents, [&*self.parameters, &*self.first, &*self.second]);
        self.shards.iter().map(move |Shard { id, step, beta_powers, size }| {
            let exponents = exponents_hash(cut(&mut exponents, size.exponents));
            let [parameters, first, second] =
                vectors.each_mut().map(|vector| vector_root(cut(vector, size.coefficients)));
            // Bits, not numbers: nothing that is hashed depends on how a float is written.
            let beta_powers = beta_powers.map(f64::to_bits);
            (*id, ShardRoots { step: *step, beta_powers, exponents, parameters, first, second })
        })
    }

    /// The roots of its shards: all of a run's where it holds all.
    pub fn roots(&self) -> StateRoots {
        self.shard_roots().map(|(_, roots)| roots).collect()
    }

    /// The state root X, of a state that holds all shards.
    pub fn root(&self) -> Digest {
        self.roots().root()
    }

    /// As [`StateRoots::step`].
    pub fn step(&self) -> u32 {
        self.shards.first().map_or(0, |shard| shard.step)
    }

    /// The shards that it holds.
    pub fn held(&self) -> impl Iterator<Item = ShardId> + Clone + '_ {
        self.shards.iter().map(|shard| shard.id)
    }

    /// Where a shard that it holds begins: tensors and coefficients before it.
    fn before(&self, id: ShardId) -> Option<ShardSize> {
        let mut before = ShardSize { exponents: 0, coefficients: 0 };
        for shard in &self.shards {
            if shard.id == id {
                return Some(before);
            }
            before.exponents += shard.size.exponents;
            before.coefficients += shard.size.coefficients;
        }
        None
    }

    /// Exponents and vectors of a shard that it holds; empty where it has no moments.
    pub fn shard(&self, id: ShardId) -> Option<ShardView<'_>> {
        let (shard, before) = (self.shards.iter().find(|shard| shard.id == id)?, self.before(id)?);
        let slice = |of| part(of, before.coefficients, shard.size.coefficients);
        Some(ShardView {
            shard: *shard,
            exponents: part(&self.exponents, before.exponents, shard.size.exponents),
            vectors: [slice(&self.parameters), slice(&self.first), slice(&self.second)],
        })
    }

    /// The same, to be changed.
    pub fn shard_mut(&mut self, id: ShardId) -> Option<ShardMut<'_>> {
        let before = self.before(id)?;
        let shard = self.shards.iter_mut().find(|shard| shard.id == id)?;
        let ShardSize { exponents, coefficients } = shard.size;
        let vectors = [&mut self.parameters, &mut self.first, &mut self.second];
        Some(ShardMut {
            exponents: self.exponents.get_mut(before.exponents..before.exponents + exponents)?,
            vectors: vectors.map(|vector| {
                vector.get_mut(before.coefficients..before.coefficients + coefficients).unwrap_or_default()
            }),
            shard,
        })
    }

    /// The shards of these that it holds, in the order of these, with whatever it has of their moments.
    pub fn select(&self, ids: impl IntoIterator<Item = ShardId>) -> Self {
        let mut selected = Self::default();
        for view in ids.into_iter().filter_map(|id| self.shard(id)) {
            selected.push(view);
        }
        selected
    }

    /// The same, with the shards of another state behind its own; without moments where one of them has none.
    #[must_use]
    pub fn and(mut self, other: &Self) -> Self {
        for view in other.held().filter_map(|id| other.shard(id)) {
            self.push(view);
        }
        let lacks = |moments: &Vector| moments.len() != self.parameters.len();
        if lacks(&self.first) || lacks(&self.second) {
            (self.first, self.second) = Default::default();
        }
        self
    }

    fn push(&mut self, view: ShardView<'_>) {
        self.shards.push(view.shard);
        self.exponents.extend_from_slice(view.exponents);
        let vectors = [&mut self.parameters, &mut self.first, &mut self.second];
        vectors.into_iter().zip(view.vectors).for_each(|(to, from)| to.extend_from_slice(from));
    }

    /// STATE-8: the one row that it holds becomes these rows, each a copy of it.
    #[must_use]
    pub fn branched(&self, rows: impl IntoIterator<Item = Row>) -> Self {
        let mut branched = self.select([ShardId::TRUNK]);
        for row in rows {
            let Some(mut view) = self.shard(ShardId::of(Row(0))) else { break };
            view.shard.id = ShardId::of(row);
            branched.push(view);
        }
        branched
    }

    /// The same with one row more, of these parameters, that no round has changed yet; it is as large as the first one.
    #[must_use]
    pub fn with_row(mut self, row: Row, parameters: &[f32]) -> Self {
        let Some(mut shard) = self.shards.get(1).copied() else { return self };
        shard = Shard { id: ShardId::of(row), step: 0, beta_powers: [1.0, 1.0], ..shard };
        let (exponents, zeros) = (vec![0; shard.size.exponents], vec![0.0; parameters.len()]);
        self.push(ShardView { shard, exponents: &exponents, vectors: [parameters, &zeros, &zeros] });
        self
    }

    /// Whether it has whole shards of a model, with moments: what an update takes for granted.
    pub fn is_whole(&self, layout: &Layout) -> bool {
        let sizes = || self.shards.iter().map(|shard| shard.size);
        let exponents: usize = sizes().map(|size| size.exponents).sum();
        let coefficients: usize = sizes().map(|size| size.coefficients).sum();
        let fits = |shard: &Shard| layout.shard(shard.id).is_some_and(|range| range.size() == shard.size);
        let vectors = [&self.parameters, &self.first, &self.second];
        !self.shards.is_empty()
            && self.shards.is_sorted_by(|a, b| a.id < b.id)
            && self.shards.iter().all(fits)
            && vectors.iter().all(|vector| vector.len() == coefficients)
            && self.exponents.len() == exponents
    }
}

/// A shard of a state.
#[derive(Clone, Copy)]
pub struct ShardView<'a> {
    /// Which, and how far it is.
    pub shard: Shard,
    /// Exponents of its tensors.
    pub exponents: &'a [i16],
    /// Parameters, first and second moments; the moments are empty where the state has none.
    pub vectors: [&'a [f32]; 3],
}

/// A shard of a state, to be changed.
pub struct ShardMut<'a> {
    /// Which, and how far it is.
    pub shard: &'a mut Shard,
    /// Exponents of its tensors.
    pub exponents: &'a mut [i16],
    /// Parameters, first and second moments; the moments are empty where the state has none.
    pub vectors: [&'a mut [f32]; 3],
}

/// A range of a slice, as much of it as there is.
fn part<T>(of: &[T], first: usize, count: usize) -> &[T] {
    let rest = of.get(first..).unwrap_or_default();
    &rest[..count.min(rest.len())]
}

/// Takes the first values off a slice, or as many as there are.
fn cut<'a, T>(values: &mut &'a [T], count: usize) -> &'a [T] {
    let (own, rest) = values.split_at(count.min(values.len()));
    *values = rest;
    own
}

/// Hash of the exponents of all tensors (STATE-3).
pub fn exponents_hash(exponents: &[i16]) -> Digest {
    let bytes: Vec<u8> = exponents.iter().flat_map(|e| e.to_le_bytes()).collect();
    Hasher::new(Domain::EXPONENTS).part(&bytes).finish()
}

/// Merkle root over chunks of 16,384 values, each value its four little-endian bytes (STATE-2).
pub fn vector_root(values: &[f32]) -> Digest {
    let mut hasher = VectorHasher::default();
    hasher.update(values);
    hasher.finish()
}

/// Computes a [`vector_root`] of values that come one after the other.
#[derive(Clone, Debug, Default)]
pub struct VectorHasher {
    leaves: Vec<Digest>,
    /// The beginning of a chunk.
    rest: Vec<f32>,
}

impl VectorHasher {
    /// Takes the values that come next.
    pub fn update(&mut self, mut values: &[f32]) {
        if !self.rest.is_empty() {
            let lacks = CHUNK_COEFFICIENTS - self.rest.len();
            let (first, later) = values.split_at(lacks.min(values.len()));
            self.rest.extend_from_slice(first);
            values = later;
            if self.rest.len() < CHUNK_COEFFICIENTS {
                return;
            }
            self.leaves.push(merkle::leaf(self.leaves.len() as u64, &real_bytes(&self.rest)));
            self.rest.clear();
        }
        let (chunks, rest) = values.as_chunks::<CHUNK_COEFFICIENTS>();
        for chunk in chunks {
            self.leaves.push(merkle::leaf(self.leaves.len() as u64, &real_bytes(chunk)));
        }
        self.rest.extend_from_slice(rest);
    }

    /// The root of all of them.
    pub fn finish(mut self) -> Digest {
        if !self.rest.is_empty() {
            self.leaves.push(merkle::leaf(self.leaves.len() as u64, &real_bytes(&self.rest)));
        }
        Tree::new(self.leaves).root()
    }
}

/// Little-endian bytes of reals: the reals themselves, where the machine has them so.
pub fn real_bytes(values: &[f32]) -> Cow<'_, [u8]> {
    if cfg!(target_endian = "little") {
        Cow::Borrowed(bytemuck::cast_slice(values))
    } else {
        values.iter().flat_map(|value| value.to_le_bytes()).collect()
    }
}

/// Reals of little-endian bytes; a tail shorter than a value is dropped.
pub fn reals(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|four| f32::from_le_bytes(*four)).collect()
}

/// Little-endian bytes of grid integers.
pub fn integer_bytes(values: &[i32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// Grid integers of little-endian bytes; a tail shorter than a value is dropped.
pub fn integers(bytes: &[u8]) -> Vec<i32> {
    bytes.as_chunks().0.iter().map(|four| i32::from_le_bytes(*four)).collect()
}

/// What a leaf gradient is a function of.
pub struct LeafJob<'a> {
    /// The state before the round; moments are not read.
    pub state: &'a State,
    /// Seed of the round.
    pub round_seed: Digest,
    /// Which leaf.
    pub leaf: Leaf,
    /// Its windows: `leaf_windows` of `sequence + 1` tokens.
    pub windows: &'a [Vec<u32>],
}

/// A [`LeafJob`] among many, with what its grid integers are written to.
pub struct LeafTask<'a> {
    /// See [`LeafJob`].
    pub state: &'a State,
    /// See [`LeafJob`].
    pub round_seed: Digest,
    /// See [`LeafJob`].
    pub leaf: Leaf,
    /// See [`LeafJob`].
    pub windows: Vec<Vec<u32>>,
    /// What the grid integers are written to, whatever it holds.
    pub q: Vec<i32>,
}

impl LeafTask<'_> {
    /// What is to be computed.
    pub fn job(&self) -> LeafJob<'_> {
        let Self { state, round_seed, leaf, windows, .. } = self;
        LeafJob { state, round_seed: *round_seed, leaf: *leaf, windows }
    }
}

/// Computes leaves for callers that do not keep them.
pub trait LeafPieces {
    /// As [`Arithmetic::leaf`], in pieces: `take` gets the place of the first of some integers and these, on any thread and in any
    /// order.
    fn leaf_in_pieces(
        &mut self,
        manifest: &Manifest,
        job: &LeafJob<'_>,
        take: &(dyn Fn(usize, &[i32]) + Sync),
    ) -> i64;
}

/// The arithmetic of a run, in defined bits: what [`crate::manifest::Profile`] names.
pub trait Arithmetic: Send {
    /// Drawn parameters, zero moments, and exponents from the calibration leaf.
    fn initial(&mut self, manifest: &Manifest, calibration: &[Vec<u32>]) -> State;

    /// Writes the grid integers of one leaf to `q` (`d` long), whatever it held, and returns its fixed-point mean loss.
    fn leaf(&mut self, manifest: &Manifest, job: &LeafJob<'_>, q: &mut [i32]) -> i64;

    /// Computes leaves in order. `take` has each one's integers and loss, on the calling thread; the next leaves may
    /// be under way by then, and `tasks` be asked for them on another thread.
    ///
    /// In a run of local updates the tasks are the segments of one slot, from its first one on: each begins where the one
    /// before it ends (LOCAL-8), and its integers are of both planes. [`Self::leaf`] computes a single gradient there as well.
    fn leaves<'a>(
        &mut self,
        manifest: &Manifest,
        tasks: &mut (dyn Iterator<Item = LeafTask<'a>> + Send),
        take: &mut dyn FnMut(Vec<i32>, i64),
    ) {
        for mut task in tasks {
            let mut q = std::mem::take(&mut task.q);
            q.resize(task.state.parameters.len(), 0);
            let loss = self.leaf(manifest, &task.job(), &mut q);
            take(q, loss);
        }
    }

    /// Itself, where it can give leaves away in pieces. Devices cannot: they compute several leaves at once, and some of them twice
    /// (COMMIT-7).
    fn in_pieces(&mut self) -> Option<&mut dyn LeafPieces> {
        None
    }

    /// Applies one round's aggregate to the shards that state and update both have.
    fn apply(&mut self, manifest: &Manifest, state: &mut State, update: &Update);

    /// Mean loss in nats per token of the windows under these parameters, without gradient.
    fn evaluate(&mut self, manifest: &Manifest, state: &State, windows: &[Vec<u32>]) -> f64;

    /// The logits after each of the last `positions` tokens of a text, `vocabulary` of them each, which the call has been
    /// checked for (CALL-1). `None` where they have no defined bits.
    fn logits(
        &mut self,
        _manifest: &Manifest,
        _state: &State,
        _tokens: &[u32],
        _positions: usize,
    ) -> Option<Vec<f32>> {
        None
    }

    /// Threads of the processor in use.
    fn threads(&self) -> usize {
        1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::MemberId;
    use crate::manifest::fixture::{mixture, tiny};

    #[test]
    fn state_2_a_root_does_not_depend_on_how_the_values_came() {
        let values: Vec<f32> = (0..3 * CHUNK_COEFFICIENTS + 5).map(|place| place as f32 * 0.5).collect();
        for (length, step) in
            [(0, 1), (5, 2), (CHUNK_COEFFICIENTS, 7_000), (values.len(), 9_999), (values.len(), 40_000)]
        {
            let mut hasher = VectorHasher::default();
            values[..length].chunks(step).for_each(|piece| hasher.update(piece));
            assert_eq!(hasher.finish(), vector_root(&values[..length]), "{length} in steps of {step}");
        }
    }

    #[test]
    fn state_7_shards_are_runs_of_whole_tensors_and_each_root_is_of_its_own_run() {
        let mut model = tiny(MemberId([1; 32]), MemberId([2; 32]), 1, 1).model;
        let dense = Layout::of(&model);
        assert_eq!(dense.shards().len(), 1);
        mixture(&mut model, 1);
        let layout = Layout::of(&model);
        let [trunk, row] = layout.shards() else { panic!("two shards") };
        assert_eq!(trunk.tensors.len() + row.tensors.len(), layout.tensors().len());
        assert_eq!(row.coefficients.start, layout.tensors()[row.tensors.start].offset);
        assert_eq!(trunk.coefficients.len() + row.coefficients.len(), layout.parameters());

        let state = State::initial(&layout, vec![0.5; layout.parameters()]);
        let roots = state.roots();
        let mut other = state.clone();
        other.parameters[row.coefficients.start] = 0.25;
        other.exponents[trunk.tensors.end - 1] = 1;
        let others = other.roots();
        let [(trunk, other_trunk), (row, other_row)] =
            [0, 1].map(|shard| (roots.shards[shard], others.shards[shard]));
        assert_eq!((trunk.parameters, row.exponents), (other_trunk.parameters, other_row.exponents));
        assert!(trunk.exponents != other_trunk.exponents && row.parameters != other_row.parameters);
    }
}
