//! A proof that was not made for this leaf, index and count does not verify.
#![no_main]

use libfuzzer_sys::fuzz_target;
use muster_core::merkle::{Proof, Tree, leaf};

#[derive(arbitrary::Arbitrary, Debug)]
struct Forgery {
    leaves: u8,
    index: u64,
    count: u64,
    data: Vec<u8>,
    proof: Proof,
    honest: u8,
}

fuzz_target!(|forgery: Forgery| {
    let count = u64::from(forgery.leaves) + 1;
    let tree = Tree::new((0..count).map(|index| leaf(index, &index.to_le_bytes())));
    let root = tree.root();
    let claimed = leaf(forgery.index, &forgery.data);
    let true_claim = forgery.index < count && forgery.count == count && forgery.data == forgery.index.to_le_bytes();
    if forgery.proof.verify(&root, forgery.count, forgery.index, claimed).is_ok() {
        assert!(true_claim);
    }
    let honest = u64::from(forgery.honest) % count;
    let proof = tree.prove(honest).expect("a leaf of the tree");
    proof.verify(&root, count, honest, leaf(honest, &honest.to_le_bytes())).expect("an honest proof");
    if forgery.index != honest || forgery.count != count {
        assert!(proof.verify(&root, forgery.count, forgery.index, leaf(honest, &honest.to_le_bytes())).is_err());
    }
});
