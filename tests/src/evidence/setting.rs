//! What the evidence is gathered on.

use std::sync::Arc;

use muster_core::codec::Real;
use muster_core::ids::MemberId;
use muster_core::manifest::{Decoder, Family, Manifest, Model};
use muster_store::dataset::Dataset;
use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};

use muster_core::manifest::fixture::tiny;

/// Windows of a leaf.
pub const WINDOWS: u32 = 8;
/// Tokens of a window.
pub const SEQUENCE: u32 = 128;

/// Sizes of a decoder on bytes.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// What the command line calls it.
    pub name: &'static str,
    width: u32,
    layers: u32,
    hidden: u32,
}

/// About 0.1 M, 0.4 M and 1 M parameters.
pub const SIZES: [Size; 3] = [
    Size { name: "small", width: 64, layers: 2, hidden: 172 },
    Size { name: "medium", width: 96, layers: 4, hidden: 256 },
    Size { name: "large", width: 128, layers: 5, hidden: 344 },
];

/// A run of that size with its text, on that grid.
pub fn run(size: &Size, grid_bits: u8, rounds: u32) -> (Arc<Manifest>, Arc<Dataset>) {
    let real = |value| Real::new(value).expect("a finite constant");
    let dataset = Dataset::of_bytes(text(1, 400_000), text(2, 20_000));
    let mut manifest = tiny(MemberId([0; 32]), MemberId([0; 32]), rounds, 2);
    manifest.data = dataset.data();
    manifest.model = Model {
        width: size.width,
        layers: size.layers,
        heads: 4,
        hidden: size.hidden,
        sequence: SEQUENCE,
        family: Family::Decoder(Decoder { key_value_heads: 4, tied: true, rope_base: real(10_000.0) }),
        ..manifest.model
    };
    manifest.training.leaf_windows = WINDOWS;
    manifest.training.grid_bits = grid_bits;
    manifest.optimiser.rate = real(0.005);
    manifest.optimiser.minimum_rate = real(0.000_5);
    manifest.optimiser.warmup = 20;
    manifest.check().expect("a manifest that keeps its rules");
    (Arc::new(manifest), Arc::new(dataset))
}

/// Words of a language of four hundred, each of which has eight successors, the first ones the likeliest: there is much
/// to learn, and something that cannot be learnt.
fn text(seed: u64, bytes: usize) -> Vec<u8> {
    let mut language = ChaCha8Rng::seed_from_u64(0);
    let mut draw = |below: u32| language.next_u32() % below;
    let words: Vec<Vec<u8>> = (0..400)
        .map(|_| (0..2 + draw(7)).map(|_| b'a' + (draw(26) * draw(26) / 26) as u8).collect())
        .collect();
    let successors: Vec<[u32; 8]> = words.iter().map(|_| std::array::from_fn(|_| draw(400))).collect();
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let (mut text, mut word) = (Vec::with_capacity(bytes), 0);
    while text.len() < bytes {
        text.extend(&words[word]);
        text.push(if random.next_u32().is_multiple_of(9) { b'\n' } else { b' ' });
        // 0 with probability a half, 1 with a quarter, …
        let turn = random.next_u32().trailing_zeros().min(7);
        word = successors[word][turn as usize] as usize;
    }
    text.truncate(bytes);
    text
}
