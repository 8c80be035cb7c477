//! The replicated state, its root, and the arithmetic that computes on it.

use crate::hash::{Domain, Hasher, hash_of};
use crate::ids::{Digest, Leaf};
use crate::limits::CHUNK_COEFFICIENTS;
use crate::manifest::Manifest;
use crate::merkle::{self, Tree};

/// What every honest member holds, bit for bit, before round t.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct State {
    /// Updates applied so far.
    pub step: u32,
    /// β₁^step and β₂^step, by iterated product.
    pub beta_powers: [f64; 2],
    /// Grid exponent of each tensor.
    pub exponents: Vec<i16>,
    /// Parameters, `d` in the canonical layout.
    pub parameters: Vec<f32>,
    /// First moments.
    pub first: Vec<f32>,
    /// Second moments.
    pub second: Vec<f32>,
}

/// The pieces of a state root, so that a part of a state can be proved alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, borsh::BorshSerialize, borsh::BorshDeserialize)]
#[cfg_attr(feature = "arbitrary", derive(arbitrary::Arbitrary))]
pub struct StateRoots {
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

impl StateRoots {
    /// The state root X (STATE-1).
    pub fn root(&self) -> Digest {
        hash_of(Domain::STATE, self)
    }
}

impl State {
    /// The roots of the pieces.
    pub fn roots(&self) -> StateRoots {
        StateRoots {
            step: self.step,
            // Bits, not numbers: nothing that is hashed depends on how a float is written.
            beta_powers: self.beta_powers.map(f64::to_bits),
            exponents: exponents_hash(&self.exponents),
            parameters: vector_root(&self.parameters),
            first: vector_root(&self.first),
            second: vector_root(&self.second),
        }
    }

    /// The state root X.
    pub fn root(&self) -> Digest {
        self.roots().root()
    }
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

    /// Threads of the processor in use.
    fn threads(&self) -> usize {
        1
    }
}
