//! Small runs to compute on.

use muster_core::codec::Real;
use muster_core::ids::{Digest, Leaf, MemberId};
use muster_core::manifest::fixture::tiny;
use muster_core::manifest::{
    Albert, Data, Decoder, Family, Manifest, Mixture, Model, Optimiser, Projection, Scaling, Tokeniser,
    TokeniserFile, Training, Variant,
};
use muster_core::state::{Arithmetic, LeafJob, State};

pub fn real(value: f32) -> Real {
    Real::new(value).unwrap()
}

/// A model of `[vocabulary, width, layers, heads, key-value heads, hidden, sequence]`.
pub fn model(
    [vocabulary, width, layers, heads, key_value_heads, hidden, sequence]: [u32; 7],
    tied: bool,
) -> Model {
    Model {
        vocabulary,
        width,
        layers,
        heads,
        hidden,
        sequence,
        norm_epsilon: real(1e-5),
        initial_scale: real(0.3),
        family: Family::Decoder(Decoder { key_value_heads, tied, rope_base: real(10_000.0) }),
    }
}

/// An ALBERT of `[vocabulary, width, layers, heads, hidden, sequence]`.
pub fn albert([vocabulary, width, layers, heads, hidden, sequence]: [u32; 6], embedding: u32) -> Model {
    Model {
        family: Family::Albert(Albert { embedding, masked_ppm: 300_000, mask_token: 2 }),
        ..model([vocabulary, width, layers, heads, heads, hidden, sequence], true)
    }
}

/// The same with experts: `[columns, active, width inside the shared expert]`.
pub fn mixture(model: Model, [columns, active, shared_hidden]: [u16; 3], balance: f32) -> Model {
    let Family::Decoder(decoder) = model.family else { panic!("a decoder") };
    let shared_hidden = shared_hidden.into();
    let mixture = Mixture {
        decoder,
        columns,
        active,
        shared_hidden,
        balance: real(balance),
        trust: real(4.0),
        rows: 1,
        branch: 0,
        few: 0,
        held: 0,
        lag: 0,
    };
    Model { family: Family::Mixture(mixture), ..model }
}

/// The same with heads of this width, with biases or norms, and scaled positions.
pub fn variant(model: Model, head_width: u32, projection: Projection) -> Model {
    let Family::Decoder(decoder) = model.family else { panic!("a decoder") };
    let [factor, low, high] = [8.0, 1.0, 4.0].map(real);
    let scaling = Some(Scaling { factor, low, high, original: 20 });
    Model { family: Family::Variant(Variant { decoder, head_width, projection, scaling }), ..model }
}

/// Small models of every kind.
pub fn models() -> Vec<Model> {
    vec![
        model([70, 32, 3, 4, 2, 56, 49], true),
        model([33, 24, 2, 4, 4, 17, 25], false),
        albert([70, 32, 3, 4, 56, 49], 16),
        albert([1100, 18, 2, 3, 40, 30], 7),
        mixture(model([70, 32, 3, 4, 2, 56, 49], true), [8, 2, 20], 0.05),
        mixture(model([33, 24, 2, 4, 4, 17, 25], false), [40, 1, 33], 0.0),
        variant(model([70, 32, 3, 4, 2, 56, 49], true), 12, Projection::Biased),
        variant(model([33, 23, 2, 6, 3, 17, 25], false), 2, Projection::Biased),
        variant(model([70, 32, 3, 4, 2, 56, 49], true), 20, Projection::Normed),
        variant(model([33, 23, 2, 6, 3, 17, 25], false), 2, Projection::Normed),
    ]
}

/// A run of this model, otherwise the tiny one.
pub fn manifest(model: Model) -> Manifest {
    let nobody = MemberId([0; 32]);
    let tiny = tiny(nobody, nobody, 40, 1);
    // A tokeniser of bytes would fix the vocabulary at 256.
    let file = TokeniserFile { digest: Digest::default(), bytes: 1, tokens: model.vocabulary };
    let manifest = Manifest {
        model,
        data: Data { bytes: 1 << 20, tokeniser: Tokeniser::File(file), ..tiny.data },
        training: Training { leaves: 4, leaf_windows: 2, grid_bits: 14, ..tiny.training },
        optimiser: Optimiser { warmup: 3, weight_decay: real(0.1), ..tiny.optimiser },
        ..tiny
    };
    manifest.check().unwrap();
    manifest
}

/// Windows of a text that repeats after a while.
pub fn windows(model: &Model, count: u32, seed: u32) -> Vec<Vec<u32>> {
    let token = |place: u32| (place * place * 7 + place / 3 + seed * 13) % model.vocabulary;
    (0..count).map(|window| (0..=model.sequence).map(|place| token(place + window * 31)).collect()).collect()
}

/// Seed of every round.
pub const ROUND_SEED: Digest = Digest([9; 32]);

/// One leaf from an empty sum.
pub fn leaf(
    exact: &mut impl Arithmetic,
    manifest: &Manifest,
    state: &State,
    leaf: u64,
    windows: &[Vec<u32>],
) -> (i64, Vec<i32>) {
    let mut sum = vec![0; state.parameters.len()];
    let job = LeafJob { state, round_seed: ROUND_SEED, leaf: Leaf(leaf), windows };
    let loss = exact.leaf(manifest, &job, &mut sum);
    (loss, sum)
}
