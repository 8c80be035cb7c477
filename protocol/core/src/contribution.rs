//! A contribution Q: its Merkle commitment over chunks, its blocks with proofs, and their checking.

use std::collections::BTreeSet;
use std::ops::Range;

use crate::codec::{Bytes, List};
use crate::error::Reject;
use crate::hash::{Domain, Hasher};
use crate::ids::{Block, Digest};
use crate::layout::Layout;
use crate::merkle::{self, Tree};
use crate::messages::wire::BlockData;
use crate::state::real_bytes;

/// The Merkle tree over the chunks of a contribution (COMMIT-1).
pub struct Commitment(Tree);

impl Commitment {
    /// Of `d` grid integers.
    pub fn new(layout: &Layout, q: &[i32]) -> Self {
        Self::of((0..layout.chunks().len()).map(|index| chunk_hash(layout, q, index)))
    }

    /// Of the [`chunk_hash`] of every chunk, in order: for callers that compute them in parallel.
    pub fn of(hashes: impl IntoIterator<Item = Digest>) -> Self {
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
            chunks.push(Bytes::new(chunk_bytes(coefficients)).ok()?);
            proofs.push(self.0.prove(index as u64)?);
        }
        Some(BlockData { block, chunks: List::new(chunks).ok()?, proofs: List::new(proofs).ok()? })
    }
}

/// A contribution that is put together from its blocks, each proved against the committed root.
pub struct Assembly<'a> {
    layout: &'a Layout,
    root: Digest,
    q: Vec<i32>,
    /// Where the blocks that are there stand in the path.
    present: BTreeSet<usize>,
}

impl<'a> Assembly<'a> {
    /// Of no blocks yet.
    pub fn new(layout: &'a Layout, root: Digest) -> Self {
        Self { layout, root, q: vec![0; layout.coefficients()], present: BTreeSet::new() }
    }

    /// Adds a block.
    ///
    /// # Errors
    /// As [`open_block`].
    pub fn open(&mut self, data: &BlockData) -> Result<(), Reject> {
        let integers = open_block(self.layout, &self.root, data)?;
        self.put(data.block, &integers);
        Ok(())
    }

    /// Adds a block that was proved against the root already. Integers of another count are left out.
    pub fn put(&mut self, block: Block, integers: &[i32]) {
        let range = self.layout.block(block).and_then(|block| self.q.get_mut(block.range.clone()));
        // A caller's mistake must not leave half a block counted as present.
        if let Some(range) = range.filter(|range| range.len() == integers.len()) {
            range.copy_from_slice(integers);
            // By place: a block of another row has another number, and stands where that of this row does.
            self.present.extend(self.layout.position(block));
        }
    }

    /// Whether a block is there.
    pub fn has(&self, block: Block) -> bool {
        self.layout.position(block).is_some_and(|position| self.present.contains(&position))
    }

    /// All integers; `None` while a block is missing.
    pub fn whole(self) -> Option<Vec<i32>> {
        (self.present.len() == self.layout.blocks().len()).then_some(self.q)
    }
}

/// The hash of one chunk of `d` grid integers, of no integers where there is no such chunk.
pub fn chunk_hash(layout: &Layout, q: &[i32], index: usize) -> Digest {
    let values = layout.chunks().get(index).and_then(|range| q.get(range.clone()));
    merkle::leaf(index as u64, &chunk_bytes(values.unwrap_or(&[])))
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
    let mut values = Vec::with_capacity(range.range.len());
    for ((index, bytes), proof) in range.chunks.clone().zip(&data.chunks).zip(&data.proofs) {
        let length = layout.chunks().get(index).map_or(0, Range::len);
        // Before it is decoded: bytes that were not committed to are not looked at.
        proof.verify(root, count, index as u64, merkle::leaf(index as u64, bytes))?;
        chunk_values(bytes, length, &mut values)?;
    }
    // GRID-7: what no contribution has must not weigh before its author is found out.
    let most = layout.most(usize::from(layout.is_of_moments(data.block))).unsigned_abs();
    if values.iter().any(|value| value.unsigned_abs() > most) {
        return Err(Reject::Rule("an integer is within what saturates the grid"));
    }
    Ok(values)
}

/// Widest integer of a chunk, in bits.
const WIDEST: usize = 32;

/// The one encoding of a chunk (COMMIT-6): a byte w, then the w low bits of each integer, the first ones lowest, in
/// little-endian bytes; w is the least even number of bits that holds them all in two's complement, 0 where all are 0.
pub fn chunk_bytes(values: &[i32]) -> Vec<u8> {
    pulp::Arch::new().dispatch(Narrow(values))
}

/// A chunk to be encoded; no closure, whose body would not be compiled for the vectors that are dispatched to.
struct Narrow<'a>(&'a [i32]);

impl pulp::NullaryFnOnce for Narrow<'_> {
    type Output = Vec<u8>;

    #[inline(always)]
    fn call(self) -> Vec<u8> {
        let width = width_of(self.0);
        let mut bytes = vec![0; 1 + (width * self.0.len()).div_ceil(8)];
        let Some((first, rest)) = bytes.split_first_mut() else { return bytes };
        *first = width as u8;
        of_width!(width, pack, self.0, rest);
        bytes
    }
}

/// Calls a function that is compiled for each width.
macro_rules! of_width {
    ($width:expr, $function:ident, $($argument:expr),*) => {
        match $width {
            2 => $function::<2>($($argument),*),
            4 => $function::<4>($($argument),*),
            6 => $function::<6>($($argument),*),
            8 => $function::<8>($($argument),*),
            10 => $function::<10>($($argument),*),
            12 => $function::<12>($($argument),*),
            14 => $function::<14>($($argument),*),
            16 => $function::<16>($($argument),*),
            18 => $function::<18>($($argument),*),
            20 => $function::<20>($($argument),*),
            22 => $function::<22>($($argument),*),
            24 => $function::<24>($($argument),*),
            26 => $function::<26>($($argument),*),
            28 => $function::<28>($($argument),*),
            30 => $function::<30>($($argument),*),
            32 => $function::<32>($($argument),*),
            _ => {}
        }
    };
}
use of_width;

/// Writes the low bits of each integer. Four of them are whole bytes, whatever the even width.
#[inline(always)]
fn pack<const BITS: usize>(values: &[i32], bytes: &mut [u8]) {
    let (fours, rest) = values.as_chunks::<4>();
    let (whole, tail) = bytes.split_at_mut((fours.len() * BITS / 2).min(bytes.len()));
    for (bytes, four) in whole.chunks_exact_mut(BITS / 2).zip(fours) {
        bytes.copy_from_slice(&joined::<BITS>(four)[..BITS / 2]);
    }
    let mut last = [0; 4];
    last[..rest.len()].copy_from_slice(rest);
    tail.copy_from_slice(&joined::<BITS>(&last)[..tail.len()]);
}

/// The low bits of four integers, the first one lowest.
#[inline(always)]
fn joined<const BITS: usize>(four: &[i32; 4]) -> [u8; 16] {
    let low = |value: i32| u64::from(value as u32) & ((1 << BITS) - 1);
    let [a, b, c, d] = four.map(low);
    let (low, high) = (a | b << BITS, c | d << BITS);
    // Of 2·BITS bits each, which are 64 at most.
    (u128::from(low) | u128::from(high) << (2 * BITS)).to_le_bytes()
}

/// Appends as many integers as there is room for in the bytes.
#[inline(always)]
fn unpack<const BITS: usize>(bytes: &[u8], values: &mut [i32]) {
    let (fours, rest) = values.as_chunks_mut::<4>();
    let (whole, tail) = bytes.split_at((fours.len() * BITS / 2).min(bytes.len()));
    for (bytes, four) in whole.chunks_exact(BITS / 2).zip(fours) {
        *four = parted::<BITS>(bytes);
    }
    let last = parted::<BITS>(tail);
    rest.copy_from_slice(&last[..rest.len()]);
}

/// Four integers of their low bits.
#[inline(always)]
fn parted<const BITS: usize>(bytes: &[u8]) -> [i32; 4] {
    let mut word = [0; 16];
    word[..bytes.len()].copy_from_slice(bytes);
    let word = u128::from_le_bytes(word);
    let shift = 32 - BITS as u32;
    std::array::from_fn(|place| (((word >> (place * BITS)) as u32) << shift) as i32 >> shift)
}

/// The integers of a chunk, whose room is there.
struct Widen<'a> {
    width: usize,
    bytes: &'a [u8],
    values: &'a mut [i32],
}

impl pulp::NullaryFnOnce for Widen<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        of_width!(self.width, unpack, self.bytes, self.values);
    }
}

/// Appends the `count` integers of a chunk, whose width must be the least one (COMMIT-6).
///
/// # Errors
/// [`Reject`] when the bytes are not the encoding of that many.
pub fn chunk_values(bytes: &[u8], count: usize, values: &mut Vec<i32>) -> Result<(), Reject> {
    let (width, bytes) = bytes.split_first().ok_or(Reject::Rule("a chunk begins with its width"))?;
    let width = usize::from(*width);
    // The count comes from the layout, so that a stranger's width cannot make this reserve more.
    if width > WIDEST || !width.is_multiple_of(2) || bytes.len() != (width * count).div_ceil(8) {
        return Err(Reject::Rule("a chunk has the length that the layout and its width give"));
    }
    let start = values.len();
    values.resize(start + count, 0);
    let read = &mut values[start..];
    pulp::Arch::new().dispatch(Widen { width, bytes, values: &mut *read });
    // One encoding: the committed hash is over these bytes.
    if width_of(read) != width {
        return Err(Reject::Rule("a chunk has the least width"));
    }
    let used = (width * count) % 8;
    if used > 0 && bytes.last().is_some_and(|last| last >> used != 0) {
        return Err(Reject::Rule("the bits behind a chunk's last integer are 0"));
    }
    Ok(())
}

/// The least even number of bits that holds every one of the integers in two's complement; 0 where all are 0.
#[inline(always)]
fn width_of(values: &[i32]) -> usize {
    // A non-negative number has the same bits below its sign as the value, a negative one their complement.
    let (mut any, mut bits) = (0, 0);
    for value in values {
        any |= *value;
        bits |= value ^ (value >> 31);
    }
    let with_sign = 33 - bits.leading_zeros() as usize;
    if any == 0 { 0 } else { with_sign.next_multiple_of(2) }
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

    #[test]
    fn commit_6_a_chunk_has_one_encoding() {
        let chunks: [(&[i32], usize); 13] = [
            (&[0, 0, 0], 0),
            (&[], 0),
            (&[-1, 0, 0], 2),
            (&[1, -2, 0, 1, 1], 2),
            (&[2, 0], 4),
            (&[-8, 7, 7, 7, -8], 4),
            (&[31, -32], 6),
            (&[127, -128, 3], 8),
            (&[128, 0], 10),
            (&[32_767, -32_768], 16),
            (&[32_768, -5, 9, 1, 2, 3, 4], 18),
            (&[8_388_607, -8_388_608, -1], 24),
            (&[i32::MAX, i32::MIN, 8_388_608], 32),
        ];
        for (values, width) in chunks {
            let bytes = chunk_bytes(values);
            assert_eq!((bytes.len(), usize::from(bytes[0])), (1 + (width * values.len()).div_ceil(8), width));
            let mut read = vec![9];
            chunk_values(&bytes, values.len(), &mut read).unwrap();
            assert_eq!(&read[1..], values);
            assert!(chunk_values(&bytes, values.len() + 4, &mut Vec::new()).is_err() || width == 0);
            assert!(chunk_values(&bytes[..bytes.len() - 1], values.len(), &mut Vec::new()).is_err());
            assert!(chunk_values(&[&bytes[..], &[0]].concat(), values.len(), &mut Vec::new()).is_err());
        }
        for wide in [&[2u8, 0][..], &[8, 1, 0], &[16, 127, 0, 1, 0], &[24, 0, 128, 255], &[34, 0, 0, 0, 0, 0]]
        {
            let count = 8 * (wide.len() - 1) / usize::from(wide[0]);
            assert!(chunk_values(wide, count, &mut Vec::new()).is_err(), "{wide:?}");
        }
        // An odd width, and bits behind the last integer.
        assert!(chunk_values(&[3, 1], 1, &mut Vec::new()).is_err());
        assert!(chunk_values(&[2, 1], 1, &mut Vec::new()).is_ok());
        assert!(chunk_values(&[2, 5], 1, &mut Vec::new()).is_err());
    }

    #[test]
    fn commit_6_every_width_and_length_comes_back() {
        for width in (2..=32u32).step_by(2) {
            for count in 1..40usize {
                let most = ((1u64 << (width - 1)) - 1) as i64;
                let value = |place: usize| (place as i64 * 2_654_435_761 % (2 * most + 2) - most - 1) as i32;
                let mut values: Vec<i32> = (0..count).map(value).collect();
                values[count / 2] = most as i32;
                let bytes = chunk_bytes(&values);
                assert_eq!(u32::from(bytes[0]), width);
                let mut read = Vec::new();
                chunk_values(&bytes, count, &mut read).unwrap();
                assert_eq!(read, values);
            }
        }
    }
}
