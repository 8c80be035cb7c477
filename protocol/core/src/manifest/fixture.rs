//! A small manifest for tests.

use crate::codec::{Real, Text};
use crate::ids::{Digest, MemberId};

use super::{
    Admission, Aggregation, Audit, Data, Decoder, Exchange, Family, Local, Manifest, Method, Mixture, Model,
    Optimiser, Profile, Retention, Rollback, Rule, Schedule, Start, Timers, Tokeniser, Tolerance, Training,
    VERSION,
};

/// A tiny model that trains in milliseconds, for a run of these rounds and nodes.
pub fn tiny(organiser: MemberId, steward: MemberId, rounds: u32, nodes: u16) -> Manifest {
    Manifest {
        version: VERSION,
        name: Text::new("tiny").expect("a short name"),
        organiser,
        steward,
        nonce: [7; 16],
        model: model(),
        profile: Profile::Exact,
        tolerance: Tolerance::none(),
        data: data(),
        training: Training {
            rounds,
            leaves: u32::from(nodes) * 2,
            leaf_windows: 1,
            grid_bits: 8,
            recompute: false,
        },
        optimiser: Optimiser {
            method: Method::AdamW,
            rate: real(0.01),
            minimum_rate: real(0.001),
            warmup: 2,
            schedule: Schedule::Cosine,
            beta1: real(0.9),
            beta2: real(0.95),
            epsilon: real(1e-8),
            weight_decay: real(0.01),
            clip_norm: real(1.0),
        },
        aggregation: Aggregation {
            rule: Rule::CenteredClip,
            radius: real(1.25),
            iterations: 5,
            cap_ppm: 200_000,
            assumed_ppm: 200_000,
            mixing: false,
            replicas: 1,
            result_bits: 4,
        },
        audit: Audit {
            share_ppm: 500_000,
            leaves: 1,
            coin_lead: 2,
            final_rounds: 2,
            recheck_ppm: 100_000,
            blocks_ppm: 50_000,
        },
        admission: Admission::closed(nodes, 0, 256),
        timers: Timers { commit: 30_000, part: 30_000, result: 30_000, audit: 30_000, final_audit: 60_000 },
        retention: Retention { contributions: 8, states: 4 },
        rollback: Rollback::never(),
        delay: 0,
        exchange: Exchange::Gradients,
        groups: 0,
    }
}

/// Makes a decoder a mixture of so many rows, there from the beginning on, in none of which anything waits. A token passes two
/// of four experts.
pub fn mixture(model: &mut Model, rows: u16) {
    let Family::Decoder(decoder) = model.family.clone() else { return };
    let (balance, trust) = (real(0.01), real(4.0));
    model.family = Family::Mixture(Mixture {
        decoder,
        columns: 4,
        active: 2,
        shared_hidden: 8,
        balance,
        trust,
        rows,
        branch: 0,
        few: 0,
        held: 0,
        lag: 0,
    });
}

/// Makes a run one of local updates: `segments` segments of two steps, second moments in every other round.
pub fn local(manifest: &mut Manifest, segments: u32) {
    let (outer_rate, outer_momentum) = (real(0.7), real(0.9));
    let local = Local { steps: 2 * segments, segment: 2, moments_every: 2, outer_rate, outer_momentum };
    manifest.exchange = Exchange::Local(local);
    manifest.training.leaves = segments;
}

fn data() -> Data {
    Data {
        root: Digest([1; 32]),
        bytes: 4096,
        held_out_root: Digest([2; 32]),
        held_out_bytes: 0,
        tokeniser: Tokeniser::Bytes,
        start: Start::Drawn,
        router: None,
    }
}

fn model() -> Model {
    Model {
        vocabulary: 256,
        width: 8,
        layers: 1,
        heads: 2,
        hidden: 12,
        sequence: 8,
        norm_epsilon: real(1e-5),
        initial_scale: real(0.1),
        family: Family::Decoder(Decoder { key_value_heads: 1, tied: true, rope_base: real(10_000.0) }),
    }
}

fn real(value: f32) -> Real {
    Real::new(value).expect("a finite constant")
}
