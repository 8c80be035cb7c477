//! States that others may fetch, piece by piece, each piece with its proof.

use core::ops::Range;

use crate::codec::{Bytes, List};
use crate::error::Reject;
use crate::hash::{Domain, Hasher};
use crate::ids::{Digest, Round, ShardId};
use crate::layout::ShardSize;
use crate::limits::{CHUNK_COEFFICIENTS, OFFER_ROUNDS, OFFER_RUNS};
use crate::merkle::{self, Proof};
use crate::state::{ShardRoots, StateRoots};
use crate::{choice, wire};

/// STATE-10: whether whoever holds the state before a round keeps it for others.
pub fn is_offered(round: Round) -> bool {
    // Everybody computes the state before the first round.
    round.0 > 0 && round.0.is_multiple_of(OFFER_ROUNDS)
}

wire! {
    /// A state that can be fetched.
    pub struct StateOffer {
        /// The state before this round.
        pub round: Round,
        /// Its roots, sealed in the ledger.
        pub roots: StateRoots,
    }
}

wire! {
    /// Asks for a piece of a state: some of the runs of one vector (STATE-2).
    pub struct StateQuery {
        /// Which state: that before this round.
        pub round: Round,
        /// Its root.
        pub root: Digest,
        /// Which shard of it.
        pub shard: ShardId,
        /// Which vector of that.
        pub vector: StateVector,
        /// First run; 0 for exponents.
        pub first: u64,
        /// Runs, at most [`OFFER_RUNS`]; 1 for exponents, which come whole.
        pub count: u32,
    }
}

choice! {
    /// A vector of a shard, as little-endian values.
    #[derive(PartialOrd, Ord)]
    pub enum StateVector {
        /// `f32` a coefficient.
        Parameters,
        /// `f32` a coefficient.
        First,
        /// `f32` a coefficient.
        Second,
        /// `i16` a tensor.
        Exponents,
    }
}

wire! {
    /// A piece of a state.
    pub struct StatePiece {
        /// The values asked for, little-endian.
        pub bytes: Bytes<{ OFFER_RUNS * CHUNK_COEFFICIENTS * 4 }>,
        /// A proof for each run; none for exponents, whose hash is sealed.
        pub proofs: List<Proof, OFFER_RUNS>,
    }
}

impl StateVector {
    /// Those of reals, in the order in which a state has them.
    pub const REALS: [Self; 3] = [Self::Parameters, Self::First, Self::Second];

    /// Bytes of a value.
    pub fn value_bytes(self) -> usize {
        match self {
            Self::Parameters | Self::First | Self::Second => 4,
            Self::Exponents => 2,
        }
    }

    /// Its values in a shard of this size.
    pub fn values(self, size: ShardSize) -> usize {
        match self {
            Self::Parameters | Self::First | Self::Second => size.coefficients,
            Self::Exponents => size.exponents,
        }
    }

    /// Its runs in a shard of this size.
    pub fn runs(self, size: ShardSize) -> usize {
        match self {
            Self::Parameters | Self::First | Self::Second => size.coefficients.div_ceil(CHUNK_COEFFICIENTS),
            Self::Exponents => 1,
        }
    }

    /// The root of its Merkle tree or, of exponents, their hash.
    pub fn root(self, roots: &ShardRoots) -> Digest {
        match self {
            Self::Parameters => roots.parameters,
            Self::First => roots.first,
            Self::Second => roots.second,
            Self::Exponents => roots.exponents,
        }
    }
}

impl StateQuery {
    /// The values that it asks for, of a shard of this size; none where the vector lacks a run of them, or where they are
    /// none or too many.
    pub fn values(&self, size: ShardSize) -> Option<Range<usize>> {
        // Numbers of a stranger: each step is checked.
        let (first, count) = (usize::try_from(self.first).ok()?, usize::try_from(self.count).ok()?);
        let end = first.checked_add(count)?;
        if count == 0 || count > OFFER_RUNS || end > self.vector.runs(size) {
            return None;
        }
        let all = self.vector.values(size);
        match self.vector {
            StateVector::Exponents => Some(0..all),
            _ => Some(first * CHUNK_COEFFICIENTS..(end * CHUNK_COEFFICIENTS).min(all)),
        }
    }
}

impl StatePiece {
    /// STATE-11: a piece counts only if each of its runs is proved against the sealed root of its vector, and if it is just
    /// what was asked for, of a shard of this size with these roots.
    ///
    /// # Errors
    /// [`Reject::BadProof`]: whoever sent it may have none of the state.
    pub fn check(&self, query: &StateQuery, roots: &ShardRoots, size: ShardSize) -> Result<(), Reject> {
        let bad = || Reject::BadProof("a piece of the state");
        let values = query.values(size).ok_or_else(bad)?;
        if self.bytes.len() != values.len() * query.vector.value_bytes() {
            return Err(bad());
        }
        let root = query.vector.root(roots);
        if query.vector == StateVector::Exponents {
            let hash = Hasher::new(Domain::EXPONENTS).part(&self.bytes).finish();
            return if hash == root && self.proofs.is_empty() { Ok(()) } else { Err(bad()) };
        }
        let runs = self.bytes.chunks(4 * CHUNK_COEFFICIENTS);
        if self.proofs.len() != runs.len() {
            return Err(bad());
        }
        let count = query.vector.runs(size) as u64;
        for ((index, run), proof) in (query.first..).zip(runs).zip(self.proofs.iter()) {
            proof.verify(&root, count, index, merkle::leaf(index, run)).map_err(|_| bad())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::merkle::Tree;
    use crate::state::{exponents_hash, real_bytes, vector_root};

    const SIZE: ShardSize = ShardSize { exponents: 3, coefficients: 2 * CHUNK_COEFFICIENTS + 5 };

    fn vector() -> Vec<f32> {
        (0..SIZE.coefficients).map(|place| place as f32 * 0.5).collect()
    }

    fn roots() -> ShardRoots {
        let (own, other) = (vector_root(&vector()), Digest([1; 32]));
        let exponents = exponents_hash(&[1, -2, 3]);
        ShardRoots { step: 1, beta_powers: [0; 2], exponents, parameters: own, first: own, second: other }
    }

    fn query(vector: StateVector, first: u64, count: u32) -> StateQuery {
        StateQuery { round: Round(3), root: Digest::default(), shard: ShardId(0), vector, first, count }
    }

    fn piece(first: usize, count: usize) -> StatePiece {
        let values = vector();
        let bytes = real_bytes(&values);
        let runs: Vec<&[u8]> = bytes.chunks(4 * CHUNK_COEFFICIENTS).collect();
        let tree = Tree::new((0..).zip(&runs).map(|(index, run)| merkle::leaf(index, run)));
        let proofs = (first..first + count).map(|index| tree.prove(index as u64).unwrap()).collect();
        let bytes = runs[first..first + count].concat();
        StatePiece { bytes: Bytes::new(bytes).unwrap(), proofs: List::new(proofs).unwrap() }
    }

    fn exponents(values: [i16; 3]) -> StatePiece {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        StatePiece { bytes: Bytes::new(bytes).unwrap(), proofs: List::default() }
    }

    #[test]
    fn state_11_a_piece_is_what_was_sealed_and_what_was_asked_for() {
        let check = |query: StateQuery, piece: &StatePiece| piece.check(&query, &roots(), SIZE).is_ok();
        let parameters = StateVector::Parameters;
        for (first, count) in [(0, 1), (1, 1), (2, 1), (0, 3), (1, 2)] {
            let good = piece(first, count);
            let asked = query(parameters, first as u64, count as u32);
            assert!(check(asked.clone(), &good), "{first}, {count}");
            assert!(check(StateQuery { vector: StateVector::First, ..asked.clone() }, &good));
            // Another vector, another place, more or less than was asked for, an end beyond all numbers.
            assert!(!check(StateQuery { vector: StateVector::Second, ..asked.clone() }, &good));
            assert!(!check(StateQuery { vector: StateVector::Exponents, ..asked.clone() }, &good));
            for place in [0, 1, 2, 3, u64::MAX].into_iter().filter(|place| *place != asked.first) {
                assert!(!check(StateQuery { first: place, ..asked.clone() }, &good));
            }
            for number in [0, 1, 2, 3, 33, u32::MAX].into_iter().filter(|number| *number != asked.count) {
                assert!(!check(StateQuery { count: number, ..asked.clone() }, &good));
            }
            for place in [0, good.bytes.len() - 1] {
                let mut bytes = good.bytes.to_vec();
                bytes[place] ^= 1;
                assert!(!check(
                    asked.clone(),
                    &StatePiece { bytes: Bytes::new(bytes).unwrap(), ..good.clone() }
                ));
            }
            let short = good.bytes[..good.bytes.len() - 4].to_vec();
            assert!(!check(asked.clone(), &StatePiece { bytes: Bytes::new(short).unwrap(), ..good.clone() }));
            assert!(!check(asked.clone(), &StatePiece { proofs: List::default(), ..good.clone() }));
        }
        let asked = || query(StateVector::Exponents, 0, 1);
        assert!(check(asked(), &exponents([1, -2, 3])) && !check(asked(), &exponents([1, -2, 4])));
        assert!(!check(StateQuery { first: 1, ..asked() }, &exponents([1, -2, 3])));
        let with_proof = StatePiece { proofs: piece(0, 1).proofs, ..exponents([1, -2, 3]) };
        assert!(!check(asked(), &with_proof));
    }

    #[test]
    fn state_10_every_third_state_is_kept_for_others() {
        let kept: Vec<u32> = (0..10).filter(|round| is_offered(Round(*round))).collect();
        assert_eq!(kept, [3, 6, 9]);
    }
}
