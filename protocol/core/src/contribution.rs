//! A contribution Q: its Merkle commitment over chunks, its blocks with proofs, and their checking.

use std::ops::Range;

use crate::bug::OrBug;
use crate::codec::{Bytes, List};
use crate::error::Reject;
use crate::hash::{Domain, Hasher};
use crate::ids::{Block, Digest};
use crate::layout::Layout;
use crate::limits::CHUNK_BYTES;
use crate::merkle::{self, Tree};
use crate::messages::wire::BlockData;
use crate::packing::{pack, unpack};
use crate::sketch::{Probe, Sketch};
use crate::state::real_bytes;

/// The Merkle tree over the chunks of a contribution (COMMIT-1).
#[derive(Clone, Debug)]
pub struct Commitment(Tree);

impl Commitment {
    /// Of `d` grid integers.
    pub fn new(layout: &Layout, q: &[i32]) -> Self {
        Self::of((0..layout.chunks().len()).map(|index| chunk_hash(layout, q, index)))
    }

    /// Of the hash of every chunk, in order.
    fn of(hashes: impl IntoIterator<Item = Digest>) -> Self {
        Self(Tree::new(hashes))
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
            chunks.push(Bytes::new(pack(coefficients)).ok()?);
            proofs.push(self.0.prove(index as u64)?);
        }
        Some(BlockData { block, chunks: List::new(chunks).ok()?, proofs: List::new(proofs).ok()? })
    }
}

/// A chunk as it travels (COMMIT-6), with its hash in the tree.
pub struct PackedChunk {
    bytes: Bytes<CHUNK_BYTES>,
    hash: Digest,
}

impl PackedChunk {
    /// The chunk of this number, of no integers where there is no such chunk.
    pub fn new(layout: &Layout, q: &[i32], index: usize) -> Self {
        let packed = packed_chunk(layout, q, index);
        let hash = merkle::leaf(index as u64, &packed);
        Self { bytes: Bytes::new(packed).or_bug("a chunk as it is packed").unwrap_or_default(), hash }
    }
}

/// A contribution as it travels: about two bytes a coefficient instead of the four of its integers.
#[derive(Clone, Debug)]
pub struct PackedContribution {
    chunks: Vec<Bytes<CHUNK_BYTES>>,
    tree: Commitment,
}

impl PackedContribution {
    /// Of `d` grid integers.
    pub fn new(layout: &Layout, q: &[i32]) -> Self {
        Self::of((0..layout.chunks().len()).map(|index| PackedChunk::new(layout, q, index)))
    }

    /// The same of integers that may be of another length: of what a stranger wrote down.
    pub fn whole_of(layout: &Layout, q: &[i32]) -> Option<Self> {
        (q.len() == layout.coefficients()).then(|| Self::new(layout, q))
    }

    /// Of all chunks in order: for callers that pack them in parallel.
    pub fn of(chunks: impl IntoIterator<Item = PackedChunk>) -> Self {
        let (chunks, hashes): (_, Vec<Digest>) =
            chunks.into_iter().map(|chunk| (chunk.bytes, chunk.hash)).unzip();
        Self { chunks, tree: Commitment::of(hashes) }
    }

    /// The one with this root, of its blocks; none where one is missing. A block that does not prove itself is passed over.
    pub fn gathered(layout: &Layout, root: &Digest, blocks: impl Iterator<Item = BlockData>) -> Option<Self> {
        let mut assembly = Assembly::new(layout, *root);
        for data in blocks {
            let _ = assembly.open(data);
        }
        assembly.whole()
    }

    /// The root that is committed.
    pub fn root(&self) -> Digest {
        self.tree.root()
    }

    /// One block with its proofs; `None` when there is no such block.
    pub fn block(&self, layout: &Layout, block: Block) -> Option<BlockData> {
        let of = layout.block(block)?.chunks.clone();
        let proofs = of.clone().map(|index| self.tree.0.prove(index as u64)).collect::<Option<Vec<_>>>()?;
        let chunks = self.chunks.get(of)?.to_vec();
        Some(BlockData { block, chunks: List::new(chunks).ok()?, proofs: List::new(proofs).ok()? })
    }

    /// The integers of one block; `None` when there is no such block.
    pub fn integers(&self, layout: &Layout, block: Block) -> Option<Vec<i32>> {
        self.unpacked(layout, layout.block(block)?.chunks.clone())
    }

    /// The integers of these chunks; `None` when there is no such chunk.
    pub fn unpacked(&self, layout: &Layout, chunks: Range<usize>) -> Option<Vec<i32>> {
        let ranges = layout.chunks().get(chunks.clone())?;
        let mut values = Vec::with_capacity(ranges.iter().map(Range::len).sum());
        for (bytes, range) in self.chunks.get(chunks)?.iter().zip(ranges) {
            unpack(bytes, range.len(), &mut values).or_bug("a chunk that was packed here")?;
        }
        Some(values)
    }

    /// Its sketch, of a chunk at a time: all of its integers would take as much as the model. `None` when a chunk is missing.
    pub fn sketch(&self, layout: &Layout, probe: &Probe) -> Option<Sketch> {
        let mut sum = probe.row(&[], 0);
        for (index, range) in layout.chunks().iter().enumerate() {
            let piece = probe.row_of_piece(range.start, &self.unpacked(layout, index..index + 1)?);
            sum.sketch = probe.sum(&[sum.clone(), piece]).0;
        }
        Some(sum.sketch)
    }

    /// All of its integers.
    pub fn whole(&self, layout: &Layout) -> Option<Vec<i32>> {
        self.unpacked(layout, 0..layout.chunks().len())
    }

    /// Whether it has as many chunks as a contribution.
    pub fn is_whole(&self, layout: &Layout) -> bool {
        self.chunks.len() == layout.chunks().len()
    }

    /// Whether these are its integers.
    pub fn is_of(&self, layout: &Layout, q: &[i32]) -> bool {
        let same = |(index, bytes): (usize, &Bytes<CHUNK_BYTES>)| packed_chunk(layout, q, index) == **bytes;
        q.len() == layout.coefficients() && self.chunks.iter().enumerate().all(same)
    }
}

/// A contribution that is put together from its blocks, each proved against the committed root.
pub struct Assembly<'a> {
    layout: &'a Layout,
    root: Digest,
    chunks: Vec<Option<PackedChunk>>,
}

impl<'a> Assembly<'a> {
    /// Of no blocks yet.
    pub fn new(layout: &'a Layout, root: Digest) -> Self {
        let mut chunks = Vec::new();
        chunks.resize_with(layout.chunks().len(), || None);
        Self { layout, root, chunks }
    }

    /// Adds a block.
    ///
    /// # Errors
    /// As [`open_block`].
    pub fn open(&mut self, data: BlockData) -> Result<(), Reject> {
        open_block(self.layout, &self.root, &data)?;
        self.put(data);
        Ok(())
    }

    /// Adds a block that was proved against the root already. One of another shape is left out.
    pub fn put(&mut self, data: BlockData) {
        // By place: a block of another row has another number, and stands where that of this row does.
        let range = self.layout.block(data.block).map(|block| block.chunks.clone());
        // A caller's mistake must not leave half a block counted as present.
        if let Some(range) = range.filter(|range| range.len() == data.chunks.len()) {
            for (index, bytes) in range.zip(data.chunks.into_inner()) {
                let hash = merkle::leaf(index as u64, &bytes);
                self.chunks[index] = Some(PackedChunk { bytes, hash });
            }
        }
    }

    /// Whether a block is there.
    pub fn has(&self, block: Block) -> bool {
        let range = self.layout.block(block).map(|block| block.chunks.clone());
        range.and_then(|range| self.chunks.get(range)).is_some_and(|held| held.iter().all(Option::is_some))
    }

    /// All of it; `None` while a block is missing.
    pub fn whole(self) -> Option<PackedContribution> {
        Some(PackedContribution::of(self.chunks.into_iter().collect::<Option<Vec<_>>>()?))
    }
}

/// The hash of one chunk of `d` grid integers, of no integers where there is no such chunk.
fn chunk_hash(layout: &Layout, q: &[i32], index: usize) -> Digest {
    merkle::leaf(index as u64, &packed_chunk(layout, q, index))
}

fn packed_chunk(layout: &Layout, q: &[i32], index: usize) -> Vec<u8> {
    let values = layout.chunks().get(index).and_then(|range| q.get(range.clone()));
    pack(values.unwrap_or(&[]))
}

/// Checks a block against a committed root and gives its integers (COMMIT-5).
///
/// # Errors
/// [`Reject`] when it is no block of the layout, has another shape, or a proof does not lead to the root.
pub fn open_block(layout: &Layout, root: &Digest, data: &BlockData) -> Result<Vec<i32>, Reject> {
    let range = layout.block(data.block).ok_or(Reject::Rule("a block is one of the layout"))?;
    // From the layout, not from the sender: the count fixes the shape of a proof.
    let count = layout.chunks().len() as u64;
    if data.chunks.len() != range.chunks.len() || data.proofs.len() != range.chunks.len() {
        return Err(Reject::Rule("a block has all its chunks, each with a proof"));
    }
    for ((index, bytes), proof) in range.chunks.clone().zip(&data.chunks).zip(&data.proofs) {
        // Before it is decoded: bytes that were not committed to are not looked at.
        proof.verify(root, count, index as u64, merkle::leaf(index as u64, bytes))?;
    }
    let values = block_integers(layout, data)?;
    // GRID-7: what no contribution has must not weigh before its author is found out.
    let most = layout.most(usize::from(layout.is_of_moments(data.block))).unsigned_abs();
    if values.iter().any(|value| value.unsigned_abs() > most) {
        return Err(Reject::Rule("an integer is within what saturates the grid"));
    }
    Ok(values)
}

/// The integers of a block that was checked before, by [`open_block`].
///
/// # Errors
/// [`Reject`] when it is no block of the layout, or its chunks have other lengths.
pub fn block_integers(layout: &Layout, data: &BlockData) -> Result<Vec<i32>, Reject> {
    let range = layout.block(data.block).ok_or(Reject::Rule("a block is one of the layout"))?;
    let mut values = Vec::with_capacity(range.range.len());
    for (index, bytes) in range.chunks.clone().zip(&data.chunks) {
        let length = layout.chunks().get(index).map_or(0, Range::len);
        unpack(bytes, length, &mut values)?;
    }
    Ok(values)
}

/// `H(PART, values of the blocks in order)`: what an aggregator signs (AGG-9).
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::MemberId;

    fn layout() -> Layout {
        Layout::of(&crate::manifest::fixture::tiny(MemberId([1; 32]), MemberId([2; 32]), 1, 1).model)
    }

    #[test]
    fn commit_6_a_packed_contribution_is_its_integers() {
        let layout = layout();
        let q: Vec<i32> = (0..layout.parameters()).map(|c| c as i32 % 300 - 150).collect();
        let commitment = Commitment::new(&layout, &q);
        let packed = PackedContribution::of(
            (0..layout.chunks().len()).map(|index| PackedChunk::new(&layout, &q, index)),
        );
        assert_eq!(packed.root(), commitment.root());
        assert_eq!(packed.unpacked(&layout, 0..layout.chunks().len()).as_ref(), Some(&q));
        assert!(packed.is_of(&layout, &q) && !packed.is_of(&layout, &q[1..]));
        let other: Vec<i32> = q.iter().enumerate().map(|(at, q)| if at == 77 { q + 1 } else { *q }).collect();
        assert!(!packed.is_of(&layout, &other));
        let blocks: Vec<Block> = (0..layout.blocks().len() as u32).map(Block).collect();
        for block in &blocks {
            let data = commitment.block(&layout, &q, *block).unwrap();
            assert_eq!(packed.block(&layout, *block).as_ref(), Some(&data));
            assert_eq!(packed.integers(&layout, *block), block_integers(&layout, &data).ok());
        }
        assert!(packed.block(&layout, Block(blocks.len() as u32)).is_none());
        // From its blocks, in any order and twice; not from others, nor where one is missing.
        let gathered = |of: &dyn Fn(&Block) -> Option<BlockData>| {
            let found = blocks.iter().rev().chain(&blocks).filter_map(of);
            PackedContribution::gathered(&layout, &packed.root(), found)
        };
        assert!(gathered(&|block| packed.block(&layout, *block)).unwrap().is_of(&layout, &q));
        assert!(gathered(&|block| packed.block(&layout, *block).filter(|_| block.0 != 1)).is_none());
        let foreign = Commitment::new(&layout, &other);
        assert!(gathered(&|block| foreign.block(&layout, &other, *block)).is_none());
    }

    #[test]
    fn commit_5_a_block_is_all_its_chunks_each_proved() {
        let layout = layout();
        let q: Vec<i32> = (0..layout.parameters()).map(|c| c as i32 % 300 - 150).collect();
        let commitment = Commitment::new(&layout, &q);
        let root = commitment.root();
        for block in (0..layout.blocks().len() as u32).map(Block) {
            let data = commitment.block(&layout, &q, block).unwrap();
            let range = layout.block(block).unwrap().range.clone();
            assert_eq!(open_block(&layout, &root, &data).as_deref(), Ok(&q[range]));
            assert!(open_block(&layout, &Digest::default(), &data).is_err(), "another root");
            for other in [block.next(), Block(u32::MAX)] {
                assert!(open_block(&layout, &root, &BlockData { block: other, ..data.clone() }).is_err());
            }
            let bare = BlockData { chunks: List::default(), proofs: List::default(), ..data.clone() };
            assert!(open_block(&layout, &root, &bare).is_err(), "no chunks");
            let unproved = BlockData { proofs: List::default(), ..data.clone() };
            assert!(open_block(&layout, &root, &unproved).is_err(), "no proofs");
            let mut bytes: Vec<Bytes<_>> = data.chunks.clone().into_inner();
            let mut changed = bytes[0].clone().into_inner();
            *changed.last_mut().unwrap() ^= 1;
            bytes[0] = Bytes::new(changed).unwrap();
            let changed = BlockData { chunks: List::new(bytes).unwrap(), ..data };
            assert!(open_block(&layout, &root, &changed).is_err(), "another integer");
        }
    }

    /// COMMIT-5: what its author committed to is refused all the same.
    #[test]
    fn grid_7_a_block_beyond_what_saturates_the_grid_is_refused() {
        let mut manifest = crate::manifest::fixture::tiny(MemberId([1; 32]), MemberId([2; 32]), 1, 1);
        let gradients = Layout::of_run(&manifest);
        crate::manifest::fixture::local(&mut manifest, 2);
        let layout = Layout::of_run(&manifest);
        // 2^(8 + 5) − 1 in the plane of parameters.
        for (plane, most) in [(0, 8191), (1, 255)] {
            let block = layout.blocks_in(crate::ids::ShardId::TRUNK, plane).nth(1).unwrap();
            let place = layout.block(block).unwrap().range.start;
            for (value, good) in [(most, true), (-most, true), (most + 1, false), (-most - 1, false)] {
                let mut q = vec![0; layout.coefficients()];
                q[place] = value;
                let commitment = Commitment::new(&layout, &q);
                let data = commitment.block(&layout, &q, block).unwrap();
                let opened = open_block(&layout, &commitment.root(), &data);
                assert_eq!(opened.is_ok(), good, "{plane} {value}");
            }
        }
        let mut q = vec![0; gradients.coefficients()];
        q[0] = 1 << 30;
        let commitment = Commitment::new(&gradients, &q);
        let data = commitment.block(&gradients, &q, Block(0)).unwrap();
        assert!(open_block(&gradients, &commitment.root(), &data).is_ok(), "sums of leaves are larger");
    }
}
