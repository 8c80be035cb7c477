//! Trees, committed texts, layouts, states and contributions.

use serde_json::{Value, json};

use muster_core::codec::List;
use muster_core::contribution::Commitment;
use muster_core::ids::Digest;
use muster_core::layout::Layout;
use muster_core::limits;
use muster_core::manifest::{self, Manifest, Model};
use muster_core::merkle::{self, Proof, Tree};
use muster_core::state::{ShardRoots, StateRoots, exponents_hash, vector_root};

use super::cases::{as_digest, as_word, counted, digest, full, list, number, read_as};

pub(super) fn tree(inputs: &Value) -> Value {
    let count = number(inputs, "count");
    let leaves: Vec<Digest> = (0..count).map(|i| merkle::leaf(i, &vec![i as u8; i as usize + 1])).collect();
    let tree = Tree::new(leaves.iter().copied());
    assert!(tree.prove(count).is_none());
    let proofs = (0..count).zip(&leaves).map(|(i, leaf)| {
        // MERKLE-5: the siblings on the path, lowest first, without those that are paired with themselves.
        let proof = tree.prove(i).expect("a leaf of the tree has a proof");
        assert_eq!(proof.verify(&tree.root(), count, i, *leaf), Ok(()));
        proof.siblings.iter().map(full).collect::<Vec<_>>()
    });
    let proofs: Vec<_> = proofs.collect();
    let leaves: Vec<_> = leaves.iter().map(full).collect();
    json!({ "leaves": leaves, "root": full(&tree.root()), "proofs": proofs })
}

pub(super) fn proof(inputs: &Value) -> Value {
    let siblings = list(inputs, "siblings").iter().map(as_digest).collect();
    let proof = Proof { siblings: List::new(siblings).expect("a vector has few siblings") };
    let (count, index) = (number(inputs, "count"), number(inputs, "index"));
    let verified = proof.verify(&digest(inputs, "root"), count, index, digest(inputs, "leaf"));
    json!({ "accepted": verified.is_ok() })
}

pub(super) fn dataset(inputs: &Value) -> Value {
    let data = counted(inputs);
    let chunks = data.chunks(limits::DATA_CHUNK_BYTES).enumerate();
    let root = Tree::new(chunks.map(|(i, chunk)| merkle::leaf(i as u64, chunk))).root();
    let mut manifest: Manifest = read_as(inputs, "manifest");
    let sequence = number(inputs, "sequence");
    manifest.data.bytes = data.len() as u64;
    manifest.data.tokeniser = manifest::Tokeniser::Bytes;
    if inputs.get("numbers").is_some() {
        let tokens = number(inputs, "numbers") as u32;
        let file = manifest::TokeniserFile { digest: Digest::default(), bytes: 1, tokens };
        manifest.data.tokeniser = manifest::Tokeniser::File(file);
    }
    manifest.model.sequence = sequence as u32;
    // DATA-3: a tail that fills no window counts for none.
    let windows = manifest.windows();
    let last = [(windows - 1) * sequence, windows * sequence];
    let mut answer = json!({ "root": full(&root), "windows": windows, "last_window": last });
    if inputs.get("numbers").is_some() {
        let size = manifest.data.token_bytes();
        let [first, end] = [last[0], last[1] + 1].map(|token| (token * size) as usize);
        let numbers = data[first..end].chunks_exact(size as usize);
        let numbers =
            numbers.map(|bytes| bytes.iter().rev().fold(0, |high, byte| high << 8 | u64::from(*byte)));
        answer["token_bytes"] = size.into();
        answer["last_tokens"] = numbers.collect();
    }
    answer
}

pub(super) fn layout(inputs: &Value) -> Value {
    let model: Model = read_as(inputs, "model");
    let layout = Layout::of(&model);
    assert_eq!(layout.parameters() as u64, model.parameters());
    let tensors =
        layout.tensors().iter().map(|tensor| json!([tensor.name, tensor.shape[0], tensor.shape[1]]));
    let blocks = layout.blocks().iter().map(|block| json!([block.range.start, block.range.end]));
    // LAYOUT-3
    let chunks = layout.chunks().iter().map(|chunk| json!([chunk.start, chunk.end]));
    let (tensors, blocks): (Vec<_>, Vec<_>) = (tensors.collect(), blocks.collect());
    let shards = layout.shards().iter().map(|shard| json!([shard.tensors, shard.coefficients]));
    json!({ "shards": shards.collect::<Vec<_>>(), "tensors": tensors, "blocks": blocks, "chunks": chunks.collect::<Vec<_>>() })
}

pub(super) fn state(inputs: &Value) -> Value {
    let vectors = list(inputs, "vectors").iter().map(|vector| {
        let [count, first, stride] = [0, 1, 2].map(|i| vector[i].as_u64().expect("a number") as u32);
        vector_root(&(0..count).map(|i| f32::from_bits(first + i * stride)).collect::<Vec<_>>())
    });
    let vectors: Vec<Digest> = vectors.collect();
    let exponents = list(inputs, "exponents").iter().map(|e| e.as_i64().expect("a number") as i16);
    let powers: Vec<u64> = list(inputs, "beta_powers").iter().map(as_word).collect();
    let shard = ShardRoots {
        step: number(inputs, "step") as u32,
        beta_powers: [powers[0], powers[1]],
        // STATE-3
        exponents: exponents_hash(&exponents.collect::<Vec<_>>()),
        parameters: vectors[0],
        first: vectors[1],
        second: vectors[2],
    };
    let shown: Vec<String> = vectors.iter().map(full).collect();
    let root = StateRoots::from([shard]).root();
    json!({ "exponents": full(&shard.exponents), "vectors": shown, "root": full(&root) })
}

pub(super) fn contribution(inputs: &Value) -> Value {
    let layout = Layout::of(&read_as(inputs, "model"));
    let multiplier = number(inputs, "multiplier");
    let value = |c: u64| (c * multiplier % 8191) as i32 - 4095;
    let q: Vec<i32> = (0..layout.parameters() as u64).map(value).collect();
    json!({ "root": full(&Commitment::new(&layout, &q).root()) })
}
