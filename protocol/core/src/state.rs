//! The replicated state, its root, and the arithmetic that computes on it.

use crate::codec::{List, encode};
use crate::hash::{Domain, Hasher};
use crate::ids::{Digest, Leaf};
use crate::layout::{Layout, ShardSize};
use crate::limits::{self, CHUNK_COEFFICIENTS};
use crate::manifest::Manifest;
use crate::merkle::{self, Tree};
use crate::wire;

/// What every honest member holds, bit for bit, before round t: the shards of a model (STATE-7), one after the other.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct State {
    /// Its shards.
    pub shards: Vec<Shard>,
    /// Grid exponent of each tensor.
    pub exponents: Vec<i16>,
    /// Parameters, `d` in the canonical layout.
    pub parameters: Vec<f32>,
    /// First moments.
    pub first: Vec<f32>,
    /// Second moments.
    pub second: Vec<f32>,
}

/// What a shard of a state has beside its share of exponents and vectors.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shard {
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

wire! {
    /// The roots of a state's shards.
    pub struct StateRoots {
        /// In order.
        pub shards: List<ShardRoots, { limits::SHARDS }>,
    }
}

impl ShardRoots {
    /// What they say of the shard itself, which is as large as the model has it.
    pub fn shard(&self, size: ShardSize) -> Shard {
        Shard { step: self.step, beta_powers: self.beta_powers.map(f64::from_bits), size }
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
}

impl State {
    /// A state of these parameters that no round has changed yet: moments and exponents are 0.
    pub fn initial(layout: &Layout, parameters: Vec<f32>) -> Self {
        let zeros = vec![0.0; parameters.len()];
        let shard = |size: &ShardSize| Shard { step: 0, beta_powers: [1.0, 1.0], size: *size };
        Self {
            shards: layout.shards().iter().map(shard).collect(),
            exponents: vec![0; layout.tensors().len()],
            parameters,
            first: zeros.clone(),
            second: zeros,
        }
    }

    /// The roots of the pieces. What a vector lacks counts as absent: it has another root then.
    pub fn roots(&self) -> StateRoots {
        let (mut exponents, mut vectors) =
            (&*self.exponents, [&self.parameters, &self.first, &self.second].map(Vec::as_slice));
        let shards = self.shards.iter().map(|Shard { step, beta_powers, size }| {
            let exponents = exponents_hash(cut(&mut exponents, size.tensors));
            let [parameters, first, second] =
                vectors.each_mut().map(|vector| vector_root(cut(vector, size.coefficients)));
            // Bits, not numbers: nothing that is hashed depends on how a float is written.
            ShardRoots {
                step: *step,
                beta_powers: beta_powers.map(f64::to_bits),
                exponents,
                parameters,
                first,
                second,
            }
        });
        shards.collect()
    }

    /// The state root X.
    pub fn root(&self) -> Digest {
        self.roots().root()
    }

    /// As [`StateRoots::step`].
    pub fn step(&self) -> u32 {
        self.shards.first().map_or(0, |shard| shard.step)
    }

    /// Whether it has every shard of a model, with moments: what an update takes for granted.
    pub fn is_whole(&self, layout: &Layout) -> bool {
        let vectors = [&self.parameters, &self.first, &self.second];
        vectors.iter().all(|vector| vector.len() == layout.parameters())
            && self.exponents.len() == layout.tensors().len()
            && self.shards.iter().map(|shard| &shard.size).eq(layout.shards())
    }
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
    let leaves = values
        .chunks(CHUNK_COEFFICIENTS)
        .enumerate()
        .map(|(index, chunk)| merkle::leaf(index as u64, &real_bytes(chunk)));
    Tree::new(leaves).root()
}

/// Little-endian bytes of reals.
pub fn real_bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
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

/// The aggregate of one round, in grid units per leaf.
#[derive(Clone)]
pub struct Update {
    /// `d` values; meaningless in blocks that were left out.
    pub values: Vec<f32>,
    /// Whether each block has a value. ROUND-8: one without keeps parameters and moments.
    pub present: Vec<bool>,
}

/// The arithmetic of a run, in defined bits: what [`crate::manifest::Profile`] names.
pub trait Arithmetic: Send {
    /// Drawn parameters, zero moments, and exponents from the calibration leaf.
    fn initial(&mut self, manifest: &Manifest, calibration: &[Vec<u32>]) -> State;

    /// Writes the grid integers of one leaf to `q` (`d` long), whatever it held, and returns its fixed-point mean loss.
    fn leaf(&mut self, manifest: &Manifest, job: &LeafJob<'_>, q: &mut [i32]) -> i64;

    /// Computes leaves in order. `take` has each one's integers and loss, on the calling thread; the next leaves may
    /// be under way by then, and `tasks` be asked for them on another thread.
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

    /// Applies one round's aggregate.
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
    use crate::codec::Real;
    use crate::ids::MemberId;
    use crate::manifest::fixture::tiny;
    use crate::manifest::{Family, Mixture};

    #[test]
    fn state_7_shards_are_runs_of_whole_tensors_and_each_root_is_of_its_own_run() {
        let mut model = tiny(MemberId([1; 32]), MemberId([2; 32]), 1, 1).model;
        let dense = Layout::of(&model);
        assert_eq!(dense.shards().len(), 1);
        let decoder = model.decoder().unwrap().clone();
        let [balance, trust] = [0.0, 4.0].map(|value| Real::new(value).unwrap());
        let mixture = Mixture { decoder, columns: 3, active: 2, shared_hidden: 4, balance, trust };
        model.family = Family::Mixture(mixture);
        let layout = Layout::of(&model);
        let [trunk, row] = layout.shards() else { panic!("two shards") };
        assert_eq!(trunk.tensors + row.tensors, layout.tensors().len());
        assert_eq!(trunk.coefficients, layout.tensors()[trunk.tensors].offset);
        assert_eq!(trunk.coefficients + row.coefficients, layout.parameters());

        let state = State::initial(&layout, vec![0.5; layout.parameters()]);
        let roots = state.roots();
        let mut other = state.clone();
        other.parameters[trunk.coefficients] = 0.25;
        other.exponents[trunk.tensors - 1] = 1;
        let others = other.roots();
        let [(trunk, other_trunk), (row, other_row)] =
            [0, 1].map(|shard| (roots.shards[shard], others.shards[shard]));
        assert_eq!((trunk.parameters, row.exponents), (other_trunk.parameters, other_row.exponents));
        assert!(trunk.exponents != other_trunk.exponents && row.parameters != other_row.parameters);
    }
}
