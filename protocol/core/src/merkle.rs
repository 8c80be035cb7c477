//! Merkle trees: `merkle_light` stores and walks the nodes; leaves, commitment and proofs are ours.
//!
//! - leaf `i` of data `b`: BLAKE3 in derive-key mode, context [`Domain::MERKLE_LEAF`], over `b ‖ i` (`i` as eight
//!   little-endian bytes). The data comes first: bytes ahead of it would halve BLAKE3's speed.
//! - node: `H(MERKLE_NODE, left, right)`. A level of odd width repeats its last node.
//! - commitment: `H(MERKLE_ROOT, n, top)`, `n` as eight little-endian bytes; the top of one leaf is that leaf, the
//!   top of none is 32 zero bytes.
//!
//! `merkle_light` alone is unsound: an odd level makes `[a, b, c]` and `[a, b, c, c]` equal, its proofs bind neither
//! count nor index, and it panics below two leaves. Here the commitment binds the count, count and index fix the
//! shape of a proof, and the domains keep a node from passing as a leaf.

use core::hash::Hasher as StdHasher;

use merkle_light::hash::Algorithm;
use merkle_light::merkle::MerkleTree;

use crate::codec::List;
use crate::error::Reject;
use crate::hash::{Domain, Hasher};
use crate::ids::Digest;
use crate::{limits, wire};

/// Hash of the data of leaf `index` (MERKLE-1).
pub fn leaf(index: u64, data: &[u8]) -> Digest {
    Hasher::new(Domain::MERKLE_LEAF).bulk(data).bulk(&index.to_le_bytes()).finish()
}

/// A tree over leaf hashes.
#[derive(Clone, Debug)]
pub struct Tree {
    count: u64,
    top: Digest,
    /// Absent below two leaves.
    nodes: Option<MerkleTree<[u8; 32], Nodes>>,
}

impl Tree {
    /// A tree over the leaves in order, each made by [`leaf`] with its index.
    pub fn new(leaves: impl IntoIterator<Item = Digest>) -> Self {
        let leaves: Vec<[u8; 32]> = leaves.into_iter().map(|leaf| leaf.0).collect();
        let count = leaves.len() as u64;
        if count < 2 {
            return Self { count, top: Digest(leaves.first().copied().unwrap_or_default()), nodes: None };
        }
        let nodes = MerkleTree::new(leaves);
        Self { count, top: Digest(nodes.root()), nodes: Some(nodes) }
    }

    /// Commitment to count and leaves (MERKLE-4).
    pub fn root(&self) -> Digest {
        commitment(self.count, &self.top)
    }

    /// Number of leaves.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// That leaf `index` is in the tree; `None` beyond the last leaf, or in a tree too deep for a proof.
    pub fn prove(&self, index: u64) -> Option<Proof> {
        if index >= self.count {
            return None;
        }
        let Some(nodes) = &self.nodes else {
            return Some(Proof { siblings: List::default() });
        };
        let path = nodes.gen_proof(usize::try_from(index).ok()?);
        // Its lemma is the leaf, a sibling of each level, the root.
        let looked_up = path.lemma().iter().skip(1);
        let siblings = levels(self.count, index).zip(looked_up).filter(|(side, _)| *side != Side::Alone);
        let siblings = List::new(siblings.map(|(_, node)| Digest(*node)).collect()).ok()?;
        Some(Proof { siblings })
    }
}

wire! {
    /// That one leaf is in a tree: the siblings on its way up (MERKLE-5). A node that ends a level of odd width is
    /// its own sibling (MERKLE-3) and brings none.
    pub struct Proof {
        /// Lowest first.
        pub siblings: List<Digest, { limits::PROOF_SIBLINGS }>,
    }
}

impl Proof {
    /// Checks that `leaf` is number `index` of the `count` leaves under `root` (MERKLE-6).
    ///
    /// # Errors
    /// [`Reject::BadProof`] for anything else.
    pub fn verify(&self, root: &Digest, count: u64, index: u64, leaf: Digest) -> Result<(), Reject> {
        let bad = Reject::BadProof("a leaf");
        // First: beyond the last leaf the walk below would prove a repeated node.
        if index >= count {
            return Err(bad);
        }
        let mut siblings = self.siblings.iter();
        let mut top = leaf;
        for side in levels(count, index) {
            top = match side {
                Side::Alone => node(&top, &top),
                Side::Left => node(&top, siblings.next().ok_or_else(|| bad.clone())?),
                Side::Right => node(siblings.next().ok_or_else(|| bad.clone())?, &top),
            };
        }
        // Nothing may be left over: a proof has one form.
        if siblings.next().is_some() || commitment(count, &top) != *root { Err(bad) } else { Ok(()) }
    }
}

/// A tree in short (MERKLE-7): its nodes [`limits::PAGE_LEVELS`] above the leaves, one for each page of leaves; the top, where the
/// tree has no such level. Whoever has the outline checks every page by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outline {
    count: u64,
    pages: Vec<Digest>,
}

impl Outline {
    /// Of so many leaves; none where these are not as many pages as the leaves have.
    pub fn new(count: u64, pages: Vec<Digest>) -> Option<Self> {
        (pages.len() as u64 == Self::pages_of(count)).then_some(Self { count, pages })
    }

    /// Pages that so many leaves have.
    pub fn pages_of(count: u64) -> u64 {
        count.div_ceil(limits::PAGE_CHUNKS)
    }

    /// The node of a page by its leaves, at least one.
    pub fn page(number: u64, leaves: &[Digest]) -> Digest {
        let top = levels_of_page(number, leaves).pop().unwrap_or_default();
        top.first().copied().unwrap_or_default()
    }

    /// Commitment to the whole tree (MERKLE-4).
    pub fn root(&self) -> Digest {
        // A level in the place of the one below: a tree of all levels would take twice as much.
        let mut level = self.pages.clone();
        while level.len() > 1 {
            let last = level.len() - 1;
            for place in 0..=last / 2 {
                level[place] = node(&level[2 * place], &level[(2 * place + 1).min(last)]);
            }
            level.truncate(last / 2 + 1);
        }
        commitment(self.count, &level.first().copied().unwrap_or_default())
    }

    /// Nodes of the pages.
    pub fn pages(&self) -> &[Digest] {
        &self.pages
    }

    /// The upper part of the tree, for [`Self::prove`].
    pub fn tree(&self) -> Tree {
        Tree::new(self.pages.iter().copied())
    }

    /// That leaf `index` is in the tree, by the leaves of its page and the upper part.
    pub fn prove(&self, upper: &Tree, index: u64, leaves: &[Digest]) -> Option<Proof> {
        let number = index / limits::PAGE_CHUNKS;
        let mut place = usize::try_from(index % limits::PAGE_CHUNKS).ok()?;
        if index >= self.count || place >= leaves.len() {
            return None;
        }
        let mut levels = levels_of_page(number, leaves);
        levels.pop();
        let mut siblings = Vec::new();
        for level in levels {
            siblings.extend(level.get(place ^ 1).copied());
            place /= 2;
        }
        siblings.extend(upper.prove(number)?.siblings.into_inner());
        Some(Proof { siblings: List::new(siblings).ok()? })
    }
}

/// The levels of a page from its leaves to its node.
fn levels_of_page(number: u64, leaves: &[Digest]) -> Vec<Vec<Digest>> {
    let mut levels = vec![leaves.to_vec()];
    for _ in 0..limits::PAGE_LEVELS {
        let Some(below) = levels.last() else { break };
        // A tree of one page may end below. In a larger one the last page's only node is repeated (MERKLE-3).
        if number == 0 && below.len() < 2 {
            break;
        }
        let pair = |pair: &[Digest]| node(&pair[0], &pair[pair.len() - 1]);
        levels.push(below.chunks(2).map(pair).collect());
    }
    levels
}

/// Where a node stands beside its sibling.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Left,
    Right,
    /// Last of a level of odd width.
    Alone,
}

/// The positions on the way from leaf `index` of `count` to the top.
fn levels(count: u64, index: u64) -> impl Iterator<Item = Side> {
    let mut position = (count, index);
    core::iter::from_fn(move || {
        let (width, index) = position;
        if width < 2 {
            return None;
        }
        position = (width.div_ceil(2), index / 2);
        Some(match index % 2 {
            1 => Side::Right,
            // Follows from count and index, so that no prover can claim a node to be its own sibling.
            _ if index + 1 == width => Side::Alone,
            _ => Side::Left,
        })
    })
}

// MERKLE-2
fn node(left: &Digest, right: &Digest) -> Digest {
    Hasher::new(Domain::MERKLE_NODE).part(&left.0).part(&right.0).finish()
}

fn commitment(count: u64, top: &Digest) -> Digest {
    Hasher::new(Domain::MERKLE_ROOT).value(&count).value(top).finish()
}

/// The node hash, as `merkle_light` wants it: leaves come hashed.
#[derive(Clone, Debug, Default)]
struct Nodes;

impl Algorithm<[u8; 32]> for Nodes {
    /// Not called: [`Self::leaf`] and [`Self::node`] need no stream.
    fn hash(&mut self) -> [u8; 32] {
        [0; 32]
    }

    fn leaf(&mut self, leaf: [u8; 32]) -> [u8; 32] {
        leaf
    }

    fn node(&mut self, left: [u8; 32], right: [u8; 32]) -> [u8; 32] {
        node(&Digest(left), &Digest(right)).0
    }
}

impl StdHasher for Nodes {
    fn finish(&self) -> u64 {
        0
    }

    fn write(&mut self, _: &[u8]) {}
}

#[cfg(test)]
mod tests;
