//! Trees, committed texts, layouts, states and contributions.

use serde_json::{Value, json};

use muster_core::codec::{List, encode};
use muster_core::contribution::Commitment;
use muster_core::hash::{Domain, Hasher};
use muster_core::ids::{Block, Digest, Row, ShardId, hex};
use muster_core::layout::{Layout, ShardSize};
use muster_core::limits;
use muster_core::manifest::{self, Manifest, Model};
use muster_core::merkle::{self, Proof, Tree};
use muster_core::router::{BUCKETS, RouterRow, Table};
use muster_core::state::{Shard, ShardRoots, State, StateRoots, exponents_hash, vector_root};

use super::cases::{as_digest, as_integer, as_word, counted, digest, full, list, number, read_as};

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

/// A row of the table is given as some of its entries, the entry of all others, and its bias.
pub(super) fn router(inputs: &Value) -> Value {
    let row = |row: &Value| {
        let mut entries = [as_integer(&row[1]); BUCKETS];
        for some in row[0].as_array().expect("entries") {
            entries[some[0].as_u64().expect("a bucket") as usize] = as_integer(&some[1]);
        }
        RouterRow { entries, bias: as_integer(&row[2]) }
    };
    let table = Table::new(list(inputs, "table").iter().map(row).collect()).expect("a router's rows");
    let file = table.encode();
    // DATA-8: the file gives the table back.
    assert_eq!(Table::decode(&file, table.rows()).as_ref(), Ok(&table));
    let numbers = |name| list(inputs, name).iter().map(|number| number.as_u64().expect("a number"));
    let before: Vec<u32> = numbers("before").map(|token| token as u32).collect();
    let open = |row: Row| numbers("closed").all(|closed| closed != u64::from(row.0));
    json!({
        "digest": full(&Hasher::new(Domain::ROUTER).part(&file).finish()),
        "scores": table.scores(&before),
        "ranked": table.ranked(&before).iter().map(|row| row.0).collect::<Vec<_>>(),
        "row": table.row(&before, open).map(|row| row.0),
    })
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
    let shards = layout.shards().iter().map(|shard| json!([shard.tensors.len(), shard.coefficients.len()]));
    json!({ "shards": shards.collect::<Vec<_>>(), "tensors": tensors, "blocks": blocks, "chunks": chunks.collect::<Vec<_>>() })
}

/// LAYOUT-7
pub(super) fn contribution_layout(inputs: &Value) -> Value {
    let model: Model = read_as(inputs, "model");
    let layout = Layout::of(&model).with_moments();
    assert_eq!(layout.coefficients(), 2 * layout.parameters());
    let blocks: Vec<Value> =
        layout.blocks().iter().map(|block| json!([block.range.start, block.range.end])).collect();
    let chunks: Vec<Value> = layout.chunks().iter().map(|chunk| json!([chunk.start, chunk.end])).collect();
    let place = |block: &Value| {
        let block = Block(block.as_u64().expect("a block") as u32);
        let place = layout.shard_of(block).zip(layout.position(block));
        let behind = place.is_some_and(|(_, position)| position >= layout.blocks().len() / 2);
        assert_eq!(layout.is_of_moments(block), behind);
        json!(place.map(|(shard, position)| json!([shard.0, position])))
    };
    let places: Vec<Value> = list(inputs, "blocks").iter().map(place).collect();
    json!({ "blocks": blocks, "chunks": chunks, "places": places })
}

/// LAYOUT-6
pub(super) fn block_places(inputs: &Value) -> Value {
    let layout = Layout::of(&read_as(inputs, "model"));
    let place = |block: &Value| {
        let block = Block(block.as_u64().expect("a block") as u32);
        let (shard, position) = (layout.shard_of(block), layout.position(block));
        assert_eq!(
            (shard.is_some(), layout.block(block).is_some()),
            (position.is_some(), position.is_some())
        );
        json!(shard.zip(position).map(|(shard, position)| json!([shard.0, position])))
    };
    let places: Vec<Value> = list(inputs, "blocks").iter().map(place).collect();
    let blocks = |shard| layout.blocks_of(shard).map(|block| block.0).collect::<Vec<_>>();
    let shards = layout.all_shards(layout.rows()).map(blocks).inspect(|own| {
        assert!(own.windows(2).all(|pair| pair[0] + 1 == pair[1]));
    });
    let shards: Vec<Value> = shards.map(|own| json!([own[0], own.len()])).collect();
    assert!(blocks(ShardId(shards.len() as u16)).is_empty());
    json!({ "places": places, "shards": shards })
}

/// STATE-8
pub(super) fn rows_after(inputs: &Value) -> Value {
    let model: Model = read_as(inputs, "model");
    let updates = list(inputs, "updates").iter().map(|count| count.as_u64().expect("a number") as u32);
    json!({ "rows": updates.map(|count| model.rows_after(count)).collect::<Vec<_>>() })
}

/// A state of the shards that a case lists, each as `state` has them.
fn shards(inputs: &Value) -> State {
    let mut state = State::default();
    for (id, shard) in (0..).map(ShardId).zip(list(inputs, "shards")) {
        let exponents = shard[2].as_array().expect("exponents").iter();
        let exponents: Vec<i16> = exponents.map(|e| e.as_i64().expect("a number") as i16).collect();
        let [parameters, first, second] = [0, 1, 2].map(|which| expanded(&shard[3][which]));
        state.shards.push(Shard {
            id,
            step: shard[0].as_u64().expect("a number") as u32,
            beta_powers: [0, 1].map(|which| f64::from_bits(as_word(&shard[1][which]))),
            size: ShardSize { exponents: exponents.len(), coefficients: parameters.len() },
        });
        state.exponents.extend(exponents);
        let vectors = [&mut state.parameters, &mut state.first, &mut state.second];
        for (all, more) in vectors.into_iter().zip([parameters, first, second]) {
            *all = all.iter().copied().chain(more).collect();
        }
    }
    state
}

fn shown_state(state: &State) -> Value {
    json!({ "sealed": hex(&encode(&state.roots())), "root": full(&state.root()) })
}

pub(super) fn shards_state(inputs: &Value) -> Value {
    shown_state(&shards(inputs))
}

pub(super) fn branched(inputs: &Value) -> Value {
    let (before, rows) = (shards(inputs), number(inputs, "rows") as u16);
    let after = before.branched((0..rows).map(Row));
    // Whoever holds one of the rows finds the same roots as whoever holds all.
    let roots = before.roots().branched(rows);
    let path = before.branched([Row(rows - 1)]);
    assert_eq!([&roots, &roots.with(&path)], [&after.roots(); 2]);
    shown_state(&after)
}

/// The values of a vector: how many, bits of the first one, and what is added to these for each next one.
fn expanded(vector: &Value) -> Vec<f32> {
    let [count, first, stride] = [0, 1, 2].map(|i| vector[i].as_u64().expect("a number") as u32);
    (0..count).map(|i| f32::from_bits(first + i * stride)).collect()
}

pub(super) fn state(inputs: &Value) -> Value {
    let vectors = list(inputs, "vectors").iter().map(|vector| vector_root(&expanded(vector)));
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
