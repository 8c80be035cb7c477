//! Hashes of every domain, and streams of random words.

use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};
use serde_json::{Value, json};

use muster_core::hash::{Domain, Hasher};

use super::cases::{digest, full, list, number, shown, text, unhexed};

pub(super) fn domain(inputs: &Value) -> Domain {
    let context = format!("muster 1 {}", text(inputs, "domain"));
    let found = Domain::ALL.iter().find(|domain| domain.context() == context);
    *found.unwrap_or_else(|| panic!("no domain {context:?}"))
}

pub(super) fn hash(inputs: &Value) -> Value {
    let parts = list(inputs, "parts").iter().map(unhexed);
    let hasher = parts.fold(Hasher::new(domain(inputs)), |hasher, part| hasher.part(&part));
    json!({ "digest": full(&hasher.finish()), "number": shown(hasher.number()) })
}

pub(super) fn stream(inputs: &Value) -> Value {
    let mut words = ChaCha8Rng::from_seed(digest(inputs, "key").0);
    let mut wide = words.clone();
    words.set_word_pos(u128::from(number(inputs, "first")));
    let words: Vec<u32> = (0..number(inputs, "count")).map(|_| words.next_u32()).collect();
    // HASH-7: each 64-bit number is two words, the low one first.
    json!({ "words": words, "u64": (0..3).map(|_| shown(wide.next_u64())).collect::<Vec<_>>() })
}
