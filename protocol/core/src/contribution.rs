//! A contribution Q: its Merkle commitment over chunks, its blocks with proofs, and their checking.

use crate::codec::{Bytes, List};
use crate::error::Reject;
use crate::hash::{Domain, Hasher};
use crate::ids::{Block, Digest};
use crate::layout::Layout;
use crate::merkle::{self, Tree};
use crate::messages::wire::BlockData;
use crate::state::{integer_bytes, integers, real_bytes};

/// The Merkle tree over the chunks of a contribution.
pub struct Commitment(Tree);

impl Commitment {
    /// Of `d` grid integers.
    pub fn new(layout: &Layout, q: &[i32]) -> Self {
        let chunks = layout.chunks().iter().enumerate();
        Self(Tree::new(chunks.map(|(index, range)| {
            merkle::leaf(index as u64, &integer_bytes(q.get(range.clone()).unwrap_or(&[])))
        })))
    }

    /// The root that is committed.
    pub fn root(&self) -> Digest {
        self.0.root()
    }

    /// One block with its proofs; `None` when there is no such block.
    pub fn block(&self, layout: &Layout, q: &[i32], block: Block) -> Option<BlockData> {
        let range = layout.block(block)?;
        let mut chunks = Vec::new();
        let mut proofs = Vec::new();
        for index in range.chunks.clone() {
            let coefficients = q.get(layout.chunks().get(index)?.clone())?;
            chunks.push(Bytes::new(integer_bytes(coefficients)).ok()?);
            proofs.push(self.0.prove(index as u64)?);
        }
        Some(BlockData { block, chunks: List::new(chunks).ok()?, proofs: List::new(proofs).ok()? })
    }
}

/// Checks a block against a committed root and gives its integers.
///
/// # Errors
/// [`Reject`] when it is no block of the layout, has another shape, or a proof does not lead to the root.
pub fn open_block(layout: &Layout, root: &Digest, data: &BlockData) -> Result<Vec<i32>, Reject> {
    let range = layout.block(data.block).ok_or(Reject::Rule("a block is one of the layout"))?;
    let count = layout.chunks().len() as u64;
    if data.chunks.len() != range.chunks.len() || data.proofs.len() != range.chunks.len() {
        return Err(Reject::Rule("a block has all its chunks, each with a proof"));
    }
    let mut values = Vec::with_capacity(range.range.len());
    for ((index, bytes), proof) in range.chunks.clone().zip(&data.chunks).zip(&data.proofs) {
        let length = layout.chunks().get(index).map(|chunk| chunk.len() * 4);
        if length != Some(bytes.len()) {
            return Err(Reject::Rule("a chunk has the length that the layout gives"));
        }
        proof.verify(root, count, index as u64, merkle::leaf(index as u64, bytes))?;
        values.extend(integers(bytes));
    }
    Ok(values)
}

/// `H(PART, values of the blocks in order)`: what an aggregator signs.
#[derive(Clone)]
pub struct PartDigest(Hasher);

impl Default for PartDigest {
    fn default() -> Self {
        Self(Hasher::new(Domain::PART))
    }
}

impl PartDigest {
    /// Adds the values of the next block.
    #[must_use]
    pub fn block(self, values: &[f32]) -> Self {
        Self(self.0.part(&real_bytes(values)))
    }

    /// The digest.
    pub fn finish(&self) -> Digest {
        self.0.finish()
    }
}
