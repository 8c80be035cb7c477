//! Merkle trees: `merkle_light` stores and walks the nodes, the proofs are ours.

use crate::ids::Digest;

/// Hash of the data of leaf `index`.
pub fn leaf(index: u64, data: &[u8]) -> Digest {
    crate::hash::Hasher::new(crate::hash::Domain::MERKLE_LEAF).value(&index).part(data).finish()
}

/// A tree over leaf hashes.
pub struct Tree(Vec<Digest>);

impl Tree {
    /// A tree over the leaves in order.
    pub fn new(leaves: impl IntoIterator<Item = Digest>) -> Self {
        Self(leaves.into_iter().collect())
    }

    /// Commitment to count and leaves.
    pub fn root(&self) -> Digest {
        crate::hash::hash_of(crate::hash::Domain::MERKLE_ROOT, &self.0)
    }
}
