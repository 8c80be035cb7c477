//! Each rule is broken once, alone, and the refusal names field, rule and value.

use super::*;
use crate::codec::{List, Text};
use crate::ids::Digest;
use crate::manifest::fixture;
use crate::manifest::{
    Aggregation, Audit, CommittedFile, Listed, Method, Optimiser, Profile, Retention, Rule, Schedule, Timers,
    TokeniserFile, Training,
};

fn real(value: f32) -> Real {
    Real::new(value).unwrap()
}

fn model() -> Model {
    Model {
        vocabulary: 256,
        width: 64,
        layers: 2,
        heads: 4,
        hidden: 96,
        sequence: 32,
        norm_epsilon: real(1e-5),
        initial_scale: real(0.02),
        family: Family::Decoder(Decoder { key_value_heads: 2, tied: true, rope_base: real(10_000.0) }),
    }
}

fn data() -> Data {
    Data {
        root: Digest::default(),
        bytes: 10_000,
        held_out_root: Digest::default(),
        held_out_bytes: 1000,
        tokeniser: Tokeniser::Bytes,
        start: Start::Drawn,
        router: None,
    }
}

fn optimiser() -> Optimiser {
    Optimiser {
        method: Method::AdamW,
        rate: real(0.01),
        minimum_rate: real(0.0),
        warmup: 2,
        schedule: Schedule::Cosine,
        beta1: real(0.9),
        beta2: real(0.99),
        epsilon: real(1e-8),
        weight_decay: real(0.1),
        clip_norm: real(1.0),
    }
}

fn manifest() -> Manifest {
    Manifest {
        version: VERSION,
        name: Text::new("test").unwrap(),
        organiser: MemberId([1; 32]),
        steward: MemberId([2; 32]),
        nonce: [3; 16],
        model: model(),
        profile: Profile::Exact,
        tolerance: Tolerance::none(),
        data: data(),
        training: Training { rounds: 10, leaves: 8, leaf_windows: 2, grid_bits: 8, recompute: false },
        optimiser: optimiser(),
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
            share_ppm: 50_000,
            leaves: 1,
            coin_lead: 1,
            final_rounds: 2,
            recheck_ppm: 100_000,
            blocks_ppm: 50_000,
        },
        admission: Admission::closed(3, 2, 5),
        timers: Timers { commit: 1, part: 1, result: 1, audit: 1, final_audit: 1 },
        retention: Retention { contributions: 8, states: 8 },
        rollback: Rollback { limit: real(0.5), most_rounds: 8, spacing: 9 },
        delay: 0,
        exchange: crate::manifest::Exchange::Gradients,
        groups: 0,
    }
}

type Change = fn(&mut Manifest);

fn is_refused(cases: &[(Change, &str)]) {
    for (change, expected) in cases {
        let mut manifest = manifest();
        manifest.check().unwrap();
        change(&mut manifest);
        let why = manifest.check().expect_err(expected).0;
        assert_eq!(why, *expected);
    }
}

#[test]
fn sizes_are_bounded() {
    let cases: [(Change, &str); 10] = [
        (|m| m.model.vocabulary = (1 << 20) + 1, "model.vocabulary must be 2 to 1048576; it is 1048577"),
        (|m| m.model.vocabulary = 1, "model.vocabulary must be 2 to 1048576; it is 1"),
        (|m| m.model.width = (1 << 20) + 2, "model.width must be 1 to 1048576; it is 1048578"),
        (|m| m.model.heads = (1 << 20) + 1, "model.heads must be 1 to 1048576; it is 1048577"),
        (|m| m.model.heads = 0, "model.heads must be 1 to 1048576; it is 0"),
        (|m| m.model.hidden = (1 << 20) + 1, "model.hidden must be 2 to 1048576; it is 1048577"),
        (|m| m.model.layers = 257, "model.layers must be 1 to 256; it is 257"),
        (|m| m.model.sequence = 65_537, "model.sequence must be 1 to 65536; it is 65537"),
        // DATA-3: a manifest with no window is refused.
        (
            |m| m.model.sequence = 10_000,
            "model.sequence must be below the training text's tokens, 10000; it is 10000",
        ),
        (
            |m| (m.model.width, m.model.hidden) = (1 << 20, 1 << 20),
            "model has more than 2^33 parameters: lower vocabulary, width, layers, key_value_heads, hidden or embedding, or columns, \
             shared_hidden or rows of its experts; it is 13194413211648",
        ),
    ];
    is_refused(&cases);
}

#[test]
fn shapes_fit_together() {
    let cases: [(Change, &str); 9] = [
        (|m| m.model.heads = 3, "model.heads must divide model.width, 64; it is 3"),
        (|m| decoder(m).key_value_heads = 3, "model.key_value_heads must divide model.heads, 4; it is 3"),
        (|m| decoder(m).key_value_heads = 0, "model.key_value_heads must be 1 to model.heads, 4; it is 0"),
        (
            |m| m.model.width = 36,
            "model.heads must leave an even head width for rotary positions, not 9; it is 4",
        ),
        (|m| decoder(m).rope_base = real(0.5), "model.rope_base must be at least 1; it is 0.5"),
        (|m| m.model.family = albert(0, 1, 0), "model.embedding must be 1 to 1048576; it is 0"),
        (|m| m.model.family = albert(8, 0, 0), "model.masked must lie in (0, 1]; it is 0"),
        (|m| m.model.family = albert(8, 1_000_001, 0), "model.masked must lie in (0, 1]; it is 1.000001"),
        (
            |m| m.model.family = albert(8, 1, 256),
            "model.mask_token must lie below model.vocabulary, 256; it is 256",
        ),
    ];
    is_refused(&cases);
}

fn decoder(manifest: &mut Manifest) -> &mut Decoder {
    let Family::Decoder(decoder) = &mut manifest.model.family else { panic!("a decoder") };
    decoder
}

fn albert(embedding: u32, masked_ppm: u32, mask_token: u32) -> Family {
    Family::Albert(Albert { embedding, masked_ppm, mask_token })
}

#[test]
fn initial_parameters_are_of_a_size_to_train() {
    for scale in [1e-3, 1.0, 16.0] {
        Model { initial_scale: real(scale), ..model() }.check().unwrap();
    }
    for scale in [0.0, -1.0, 16.1, 3e10] {
        let why = Model { initial_scale: real(scale), ..model() }.check().unwrap_err().0;
        assert_eq!(why, format!("model.initial_scale must be above 0 and at most 16; it is {scale}"));
    }
}

#[test]
fn work_is_of_a_size_to_do() {
    let cases: [(Change, &str); 12] = [
        (|m| m.training.rounds = 0, "training.rounds must be 1 to 16777216; it is 0"),
        (|m| m.training.leaves = 65_537, "training.leaves must be 1 to 65536; it is 65537"),
        (|m| m.training.leaf_windows = 1025, "training.leaf_windows must be 1 to 1024; it is 1025"),
        (|m| m.training.grid_bits = 15, "training.grid_bits must be 1 to 14; it is 15"),
        (|m| m.optimiser.beta1 = real(-0.5), "optimiser.beta1 must lie in [0, 1); it is -0.5"),
        (|m| m.optimiser.beta2 = real(1.0), "optimiser.beta2 must lie in [0, 1); it is 1"),
        (|m| m.optimiser.epsilon = real(0.0), "optimiser.epsilon must be positive; it is 0"),
        (|m| m.optimiser.clip_norm = real(-2.0), "optimiser.clip_norm must not be negative; it is -2"),
        (|m| m.aggregation.iterations = 65, "aggregation.iterations must be 0 to 64; it is 65"),
        (|m| m.aggregation.replicas = 3, "aggregation.replicas must be 1 to 2; it is 3"),
        (
            |m| m.aggregation.result_bits = 9,
            "aggregation.result_bits must be at most training.grid_bits, 8; it is 9",
        ),
        (
            |m| m.aggregation.assumed_ppm = 500_000,
            "aggregation.assumed_ppm must be below 500000: no rule withstands a majority; it is 500000",
        ),
    ];
    is_refused(&cases);
}

#[test]
fn texts_are_whole_tokens_of_the_models_kinds() {
    let cases: [(Change, &str); 6] = [
        (|m| m.data.bytes = (1 << 40) + 1, "data.bytes must be 0 to 1099511627776; it is 1099511627777"),
        (
            |m| (m.data.held_out_bytes, m.data.tokeniser) = (999, file(256, 1)),
            "data.held_out_bytes must be whole tokens of 2; it is 999",
        ),
        (|m| m.data.tokeniser = file(1, 1), "data.tokeniser must know 2 to 2^20 tokens; it is 1"),
        (|m| m.data.tokeniser = file(256, 0), "data.tokeniser.bytes must be 1 to 67108864; it is 0"),
        (
            |m| m.model.vocabulary = 255,
            "model.vocabulary is 255, but the text's tokens are of 256 kinds: it must be 256, or up to 1023 more \
             where a model pads it",
        ),
        (
            |m| m.data.start = Start::Given(CommittedFile { root: Digest::default(), bytes: 4 }),
            "data.start.bytes must be four for each parameter of the model, 312576; it is 4",
        ),
    ];
    is_refused(&cases);
}

fn file(tokens: u32, bytes: u32) -> Tokeniser {
    Tokeniser::File(TokeniserFile { digest: Digest::default(), bytes, tokens })
}

#[test]
fn audits_and_rollbacks_can_be_done() {
    let cases: [(Change, &str); 9] = [
        (|m| m.audit.share_ppm = 1_000_001, "audit.share_ppm must be 0 to 1000000; it is 1000001"),
        (|m| m.audit.leaves = 33, "audit.leaves must be 1 to 32; it is 33"),
        (
            |m| m.audit.coin_lead = 0,
            "audit.coin_lead must be at least 1, or coins could be chosen after the freeze they are used with; it is 0",
        ),
        (
            |m| (m.audit.final_rounds, m.retention.contributions) = (8, 9),
            "audit.final_rounds must be below retention.states, 8; it is 8",
        ),
        (
            |m| m.audit.final_rounds = 9,
            "audit.final_rounds must be within retention.contributions, 8; it is 9",
        ),
        (|m| m.timers.audit = 0, "timers.audit must be positive; it is 0"),
        (
            |m| m.rollback.most_rounds = 9,
            "rollback.most_rounds must be at least 1 and within retention.states and retention.contributions, 8; it is 9",
        ),
        (
            |m| m.rollback.spacing = 8,
            "rollback.spacing must be above rollback.most_rounds, 8, or the run could go back again and again; it is 8",
        ),
        (|m| m.delay = 2, "delay must be 0 to 1; it is 2"),
    ];
    is_refused(&cases);
}

#[test]
fn manifest_13_coins_last_as_long_as_the_run() {
    // Of 2^22 coins each round takes 257, and seventeen rounds are left for rechecks.
    let mut manifest = manifest();
    manifest.admission = Admission::closed(2, 1, 256);
    (manifest.retention.contributions, manifest.rollback.limit) = (16, real(0.0));
    manifest.training.rounds = 16_303;
    manifest.check().unwrap();
    manifest.training.rounds += 1;
    assert_eq!(
        manifest.check().unwrap_err().0,
        "training.rounds must be at most 16303 here, or verifiers' coins run out and nothing is audited any more: they \
         register 257 for each of at most 16320 rounds; lower admission.most_members, or train fewer rounds and go on in \
         another run (--init); it is 16304"
    );
    manifest.admission.most_members = 200;
    manifest.check().unwrap();
    manifest.rollback.limit = real(0.5);
    let why = manifest.check().unwrap_err().0;
    assert!(why.starts_with("training.rounds must be at most 10425 here"), "it may go back: {why}");
    // Where not even one round has coins, fewer rounds are no remedy.
    for contributions in [20_866, u32::MAX] {
        manifest.retention.contributions = contributions;
        let why = manifest.check().unwrap_err().0;
        assert!(why.starts_with("retention.contributions must be below 20865, or verifiers"), "{why}");
    }
    // Where nobody audits anything there are no coins to run out of.
    (manifest.audit.share_ppm, manifest.audit.blocks_ppm, manifest.audit.final_rounds) = (0, 0, 0);
    manifest.admission.start_verifiers = 0;
    manifest.check().unwrap();
}

#[test]
fn data_8_a_router_has_rows_and_reads_text() {
    let router = |rows, tokens| {
        let router = Some(Router { rows, tokens, digest: Digest::default() });
        Manifest { data: Data { router, ..data() }, ..mixture(rows.clamp(1, 64)) }.check()
    };
    for (rows, tokens) in [(2, 1), (64, 4096)] {
        assert_eq!(router(rows, tokens), Ok(()));
    }
    for (rows, tokens, message) in [
        (1, 64, "data.router.rows must be 2 to 64; it is 1"),
        (65, 64, "data.router.rows must be 2 to 64; it is 65"),
        (2, 0, "data.router.tokens must be 1 to 4096; it is 0"),
        (2, 4097, "data.router.tokens must be 1 to 4096; it is 4097"),
    ] {
        assert_eq!(router(rows, tokens).unwrap_err().0, message);
    }
}

/// A run whose model has so many rows, without a router.
fn mixture(rows: u16) -> Manifest {
    let mut manifest = manifest();
    fixture::mixture(&mut manifest.model, rows);
    manifest
}

#[test]
fn manifest_15_a_router_has_the_rows_of_the_model() {
    let check = |manifest: Manifest, routed: Option<u16>| {
        let router = routed.map(|rows| Router { rows, tokens: 64, digest: Digest::default() });
        Manifest { data: Data { router, ..data() }, ..manifest }.check()
    };
    for (model, routed) in [(mixture(1), None), (manifest(), None), (mixture(3), Some(3))] {
        assert_eq!(check(model, routed), Ok(()));
    }
    for (model, routed) in
        [(mixture(3), None), (mixture(3), Some(2)), (mixture(1), Some(2)), (manifest(), Some(2))]
    {
        let refused = check(model, routed).unwrap_err().0;
        assert!(refused.starts_with("data.router says that the text was packed for"), "{refused}");
    }
}

#[test]
fn tolerance_belongs_to_the_profile() {
    let bounds = |value| List::new(vec![real(value)]).unwrap();
    let mut manifest = manifest();
    manifest.tolerance = Tolerance { groups: bounds(0.01), loss: real(0.01) };
    let why = manifest.check().unwrap_err().0;
    assert!(why.starts_with("tolerance.groups is for other profiles than exact"), "{why}");
    manifest.profile = Profile::F32;
    manifest.check().unwrap();
    manifest.tolerance.groups = bounds(0.25);
    let why = manifest.check().unwrap_err().0;
    assert_eq!(why, "tolerance.groups must be above 0 and at most 0.125; it is 0.25");
    manifest.tolerance = Tolerance::none();
    let why = manifest.check().unwrap_err().0;
    assert_eq!(why, "tolerance.groups is what profiles other than exact need: calibrate; it is empty");
}

#[test]
fn a_run_that_never_starts_is_refused() {
    let refusal = |admission: &Admission| admission.check(0).err().map(|misuse| misuse.0);
    assert_eq!(refusal(&Admission::closed(3, 2, 5)), None);
    let why = refusal(&Admission::closed(3, 2, 4)).unwrap();
    assert_eq!(
        why,
        "admission.most_members must be at least start_nodes and start_verifiers together, 5, or the run never starts; \
         it is 4"
    );
    assert!(refusal(&Admission::closed(u16::MAX, u16::MAX, 4096)).is_some());
    let listed = |keys: Vec<MemberId>| Listed {
        founders: List::new(keys).unwrap(),
        nodes: List::new(vec![MemberId([4; 32])]).unwrap(),
        verifiers: List::default(),
    };
    let admission = |keys| Admission { mode: Mode::Listed(listed(keys)), ..Admission::closed(3, 2, 5) };
    assert_eq!(refusal(&admission(vec![MemberId([5; 32])])), None);
    let why = refusal(&admission(vec![MemberId([4; 32])])).unwrap();
    assert_eq!(why, format!("admission.mode lists a key twice; it is {}", "04".repeat(32)));
}
