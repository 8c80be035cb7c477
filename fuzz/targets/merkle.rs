//! A proof verifies for the leaf, index and count that it was made for, and no other proof does.
#![no_main]

use libfuzzer_sys::fuzz_target;
use muster_core::codec::List;
use muster_core::ids::Digest;
use muster_core::merkle::{Proof, Tree, leaf};

#[derive(arbitrary::Arbitrary, Debug)]
struct Forgery {
    leaves: u8,
    /// Whose honest proof the forgery begins with.
    from: u8,
    edits: Vec<Edit>,
    index: Claim,
    count: Claim,
    /// The leaf claimed: the data of this one, or any.
    data: Result<u8, Vec<u8>>,
}

/// A number as it is, a little off, or any.
#[derive(arbitrary::Arbitrary, Debug)]
enum Claim {
    True,
    Off(i8),
    Any(u64),
}

#[derive(arbitrary::Arbitrary, Debug)]
enum Edit {
    Drop(u8),
    Repeat(u8),
    Swap(u8, u8),
    Flip(u8, u8, u8),
    Push(Digest),
    /// A node of another leaf's proof.
    Graft(u8, u8),
}

impl Claim {
    fn of(&self, truth: u64) -> u64 {
        match self {
            Self::True => truth,
            Self::Off(off) => truth.wrapping_add_signed(i64::from(*off)),
            Self::Any(number) => *number,
        }
    }
}

fn data(index: u64) -> Vec<u8> {
    index.to_le_bytes().to_vec()
}

fn edited(tree: &Tree, mut siblings: Vec<Digest>, edits: &[Edit]) -> Vec<Digest> {
    for edit in edits {
        let count = siblings.len().max(1);
        let at = |place: &u8| usize::from(*place) % count;
        match edit {
            Edit::Push(node) => siblings.push(*node),
            Edit::Graft(place, other) => {
                let proof = tree.prove(u64::from(*other) % tree.count()).expect("a leaf of the tree");
                siblings.extend(proof.siblings.iter().cycle().nth(usize::from(*place)).copied());
            }
            // The tree of one leaf has an empty proof; below, places are taken of what is there.
            _ if siblings.is_empty() => {}
            Edit::Drop(place) => drop(siblings.remove(at(place))),
            Edit::Repeat(place) => siblings.insert(at(place), siblings[at(place)]),
            Edit::Swap(a, b) => siblings.swap(at(a), at(b)),
            Edit::Flip(place, byte, bits) => siblings[at(place)].0[usize::from(*byte) % 32] ^= bits,
        }
    }
    siblings
}

fuzz_target!(|forgery: Forgery| {
    // Few enough that odd widths occur at every level.
    let count = u64::from(forgery.leaves) % 40 + 1;
    let tree = Tree::new((0..count).map(|index| leaf(index, &data(index))));
    let (root, from) = (tree.root(), u64::from(forgery.from) % count);
    let honest = tree.prove(from).expect("a leaf of the tree");
    honest.verify(&root, count, from, leaf(from, &data(from))).expect("an honest proof");
    let siblings = edited(&tree, honest.siblings.to_vec(), &forgery.edits);
    let Ok(siblings) = List::new(siblings) else { return };
    let proof = Proof { siblings };
    let (index, claimed) = (forgery.index.of(from), forgery.count.of(count));
    let bytes = forgery.data.as_ref().map_or_else(Clone::clone, |index| data(u64::from(*index)));
    if proof.verify(&root, claimed, index, leaf(index, &bytes)).is_ok() {
        // MERKLE-5: a leaf has one proof, with no sibling where a node is paired with itself.
        assert!(index < count && claimed == count && bytes == data(index), "a false claim is proved");
        assert_eq!(Some(proof), tree.prove(index), "a second proof of one leaf");
    }
});
