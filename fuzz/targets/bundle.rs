//! Bundles of evidence as anybody may write them: they are refused, or open to what their manifest ties them to.
#![no_main]

use std::sync::LazyLock;

use borsh::BorshSerialize;
use libfuzzer_sys::fuzz_target;
use muster_core::codec::{List, encode};
use muster_core::ids::{Digest, Height, MemberId, Round, Row, ShardId};
use muster_core::layout::Layout;
use muster_core::manifest::Manifest;
use muster_core::messages::evidence::{Evidence, Total};
use muster_core::messages::record::{Body, Freeze, Record};
use muster_core::messages::wire::BlockData;
use muster_core::sign::Signed;
use muster_core::state::{State, StateRoots, real_bytes};
use muster_fuzz::{RowSettings, manifest, person, steward, with_rows};
use muster_replica::bundle::Bundle;
use muster_store::dataset::{Dataset, Pieces};

/// The contents of a bundle in their order (AUDIT-30).
#[derive(Clone, BorshSerialize)]
struct Written {
    manifest: Manifest,
    evidence: Evidence,
    text: Pieces,
    state: Option<WrittenState>,
    contributions: Vec<((Round, MemberId), Vec<u8>)>,
    blocks: Vec<((Round, MemberId), BlockData)>,
    records: Vec<Signed<Record>>,
}

#[derive(Clone, BorshSerialize)]
struct WrittenState {
    roots: StateRoots,
    shards: Vec<ShardId>,
    exponents: Vec<i16>,
    vectors: [Vec<u8>; 3],
}

/// Rows of the model.
const ROWS: u16 = 2;

/// Shards of a path: the trunk, and one row.
const SHARDS: usize = 2;

/// An honest one, whose state is a path.
static HONEST: LazyLock<Written> = LazyLock::new(|| {
    let text = Dataset::of_bytes((0..9_000u32).map(|place| (place * 7 % 251) as u8).collect(), vec![1; 9]);
    let rows = RowSettings { rows: ROWS, branch: 0, few: 0, held: 0 };
    let mut manifest = (*with_rows(&manifest(4, 1), rows)).clone();
    let router = manifest.data.router.take();
    manifest.data = text.data();
    manifest.data.router = router;
    manifest.check().expect("a good manifest");
    let layout = Layout::of_run(&manifest);
    let parameters = (0..layout.parameters()).map(|place| place as f32 * 0.01).collect();
    let state = State::initial(&layout, parameters);
    let commits = List::new(Vec::new()).expect("none");
    let body = Body::Freeze(Freeze { round: Round(0), state: state.root(), commits });
    let freeze =
        steward().sign(manifest.run(), &Record { height: Height(0), previous: Digest::default(), body });
    let windows = [0, 7, 600].into();
    Written {
        evidence: Evidence::Total(Total { freeze: freeze.clone(), culprit: person(0).id() }),
        text: text.pieces(&windows, &windows, manifest.model.sequence, u64::MAX).expect("a text in memory"),
        state: Some(WrittenState {
            roots: state.roots(),
            shards: state.held().collect(),
            exponents: state.exponents.clone(),
            vectors: [&state.parameters, &state.first, &state.second]
                .map(|values| real_bytes(values).into_owned()),
        }),
        contributions: vec![((Round(0), person(0).id()), vec![0; 4 * layout.coefficients()])],
        blocks: Vec::new(),
        records: vec![freeze],
        manifest,
    }
});

#[derive(arbitrary::Arbitrary, Debug)]
struct Case<'a> {
    /// Which shards the state says it has, and how much of their values there is, in eighths; all of it where it says nothing.
    shards: Option<Vec<u8>>,
    eighths: [u8; 3],
    /// Places, by parts of the length, where bytes are put in the place of others.
    edits: Vec<(u16, u8, Vec<u8>)>,
    /// Behind all.
    tail: &'a [u8],
    windows: [u64; 3],
}

/// The state with other shards, whose values are repeated as often as that takes.
fn with_shards(state: &mut WrittenState, shards: &[u8], eighths: [u8; 3]) {
    let of = |number: &u8| ShardId(u16::from(number % 4));
    state.shards = shards.iter().take(200).map(of).collect();
    for (vector, eighths) in state.vectors.iter_mut().zip(eighths) {
        let whole = vector.len() * state.shards.len() / SHARDS;
        let length = whole * usize::from(eighths % 10) / 8;
        *vector = vector.iter().copied().cycle().take(length).collect();
    }
    let tensors = state.exponents.len() * state.shards.len() / SHARDS;
    state.exponents = state.exponents.iter().copied().cycle().take(tensors).collect();
}

fuzz_target!(|case: Case<'_>| {
    let mut written = HONEST.clone();
    let is_honest = case.shards.is_none() && case.edits.is_empty() && case.tail.is_empty();
    if let (Some(state), Some(shards)) = (&mut written.state, &case.shards) {
        with_shards(state, shards, case.eighths);
    }
    let mut bytes = encode(&written);
    for (at, length, by) in case.edits.into_iter().take(8) {
        let start = bytes.len() * usize::from(at) >> 16;
        let end = bytes.len().min(start + usize::from(length));
        bytes.splice(start..end, by);
    }
    bytes.extend_from_slice(case.tail);
    let Ok(bundle) = Bundle::open(&bytes) else {
        assert!(!is_honest, "an honest bundle opens");
        return;
    };
    let sequence = bundle.manifest.model.sequence;
    if let Some((_, state)) = &bundle.state {
        assert!(state.held().is_sorted_by(|one, next| one < next) && state.held().count() <= 65);
        let layout = Layout::of_run(&bundle.manifest);
        let values: usize = state.shards.iter().map(|shard| shard.size.coefficients).sum();
        assert_eq!(state.parameters.len(), values);
        for row in 0..bundle.manifest.model.rows() {
            state.select(layout.path(Row(row)));
        }
    }
    for window in case.windows {
        let found = bundle.text.window(window, sequence);
        assert!(found.is_none_or(|tokens| tokens.len() == sequence as usize + 1));
        bundle.text.row_of(window, sequence, |_| true);
    }
});
