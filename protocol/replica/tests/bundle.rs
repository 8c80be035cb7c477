//! Bundles that a stranger wrote (AUDIT-30): whatever is in them, they are opened or refused, in little memory.
#![allow(clippy::unwrap_used)] // the helpers, too, are tests

use borsh::BorshSerialize;
use muster_core::codec::{List, encode};
use muster_core::ids::{Digest, Height, MemberId, Round, ShardId};
use muster_core::layout::Layout;
use muster_core::manifest::{Family, Manifest, fixture};
use muster_core::messages::evidence::{Evidence, Total};
use muster_core::messages::record::{Body, Freeze, Record};
use muster_core::messages::wire::BlockData;
use muster_core::sign::{Identity, Signed};
use muster_core::state::{State, StateRoots, integer_bytes, real_bytes};
use muster_replica::bundle::Bundle;
use muster_store::dataset::{Dataset, Pieces};

/// The contents of a bundle as they are written: by anybody, so that any of it may be anything.
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

/// An honest one of a tiny run.
fn written() -> Written {
    let [steward, member] = [1, 2].map(|secret| Identity::from_secret(&[secret; 32]));
    let dataset =
        Dataset::of_bytes((0..20_000u32).map(|place| (place * 7 % 251) as u8).collect(), vec![1; 9]);
    let mut manifest = fixture::tiny(steward.id(), steward.id(), 4, 1);
    manifest.data = dataset.data();
    let layout = Layout::of_run(&manifest);
    let q: Vec<i32> = (0..layout.coefficients()).map(|place| place as i32 % 5 - 2).collect();
    let parameters = (0..layout.parameters()).map(|place| place as f32 * 0.01).collect();
    let state = State::initial(&layout, parameters);
    let body = Body::Freeze(Freeze {
        round: Round(0),
        state: state.root(),
        commits: List::new(Vec::new()).unwrap(),
    });
    let freeze =
        steward.sign(manifest.run(), &Record { height: Height(0), previous: Digest::default(), body });
    let windows = [0, 40, 41].into();
    Written {
        evidence: Evidence::Total(Total { freeze: freeze.clone(), culprit: member.id() }),
        text: dataset.pieces(&windows, &windows, manifest.model.sequence, u64::MAX).unwrap(),
        state: Some(WrittenState {
            roots: state.roots(),
            shards: state.held().collect(),
            exponents: state.exponents.clone(),
            vectors: [&state.parameters, &state.first, &state.second]
                .map(|values| real_bytes(values).into_owned()),
        }),
        contributions: vec![((Round(0), member.id()), integer_bytes(&q))],
        blocks: Vec::new(),
        records: vec![freeze],
        manifest,
    }
}

fn open(written: &Written) -> Result<Bundle, String> {
    Bundle::open(&encode(written))
}

fn refused(change: impl FnOnce(&mut Written), words: &str) {
    let mut written = written();
    change(&mut written);
    let why = open(&written).err().unwrap();
    assert!(why.contains(words), "{why}");
}

#[test]
fn audit_30_an_honest_bundle_opens() {
    let bundle = open(&written()).unwrap();
    assert_eq!(bundle.state.unwrap().1.held().collect::<Vec<_>>(), [ShardId::TRUNK]);
    assert_eq!(bundle.text.window(40, bundle.manifest.model.sequence).unwrap().len(), 9);
}

/// More shards than a state can have made its roots a panic.
#[test]
fn audit_30_a_state_has_each_shard_once() {
    for times in [2, 66, 300] {
        let repeat = |written: &mut Written| {
            let state = written.state.as_mut().unwrap();
            state.shards = vec![ShardId::TRUNK; times];
            state.exponents = state.exponents.repeat(times);
            state.vectors = state.vectors.each_ref().map(|bytes| bytes.repeat(times));
        };
        refused(repeat, "its state is not the one whose roots it names");
    }
    refused(|written| written.state.as_mut().unwrap().shards.clear(), "its state is not");
}

/// The largest model that a manifest may have, beside a state of nothing.
#[test]
fn audit_30_a_state_is_as_large_as_its_model() {
    let huge = |written: &mut Written| {
        let Family::Decoder(decoder) = &mut written.manifest.model.family else { panic!("a decoder") };
        decoder.tied = false;
        (written.manifest.model.width, written.manifest.model.hidden) = (1 << 12, 1 << 17);
        written.manifest.model.layers = 5;
    };
    refused(huge, "its state is not the one whose roots it names");
}

/// Numbers of a short cycle (Marsaglia, "Xorshift RNGs", 2003).
struct Draw(u64);

impl Draw {
    fn below(&mut self, most: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % most.max(1)
    }
}

/// One change of some bytes.
fn change(bytes: &mut Vec<u8>, draw: &mut Draw) {
    let (at, length) = (draw.below(bytes.len()), 1 + draw.below(40));
    let end = bytes.len().min(at + length);
    match draw.below(6) {
        0 => bytes[at] ^= 1 << draw.below(8),
        // A number, which may be a length: none, a few, more than there is, more than any memory.
        1 => {
            let number = [0u32, 1, 66, 1 << 16, 1 << 26, u32::MAX][draw.below(6)].to_le_bytes();
            let end = bytes.len().min(at + 4);
            bytes[at..end].copy_from_slice(&number[..end - at]);
        }
        2 => bytes.truncate(at),
        3 => drop(bytes.drain(at..end)),
        4 => {
            let more = bytes[at..end].to_vec();
            bytes.splice(at..at, more);
        }
        _ => bytes[at..end].fill(draw.below(256) as u8),
    }
}

/// Bytes of memory that this process has had at most.
#[cfg(target_os = "linux")]
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

#[cfg(not(target_os = "linux"))]
fn peak() -> u64 {
    0
}

#[test]
fn audit_30_a_contribution_of_another_length_is_refused() {
    for length in [0, 3, 4] {
        let mut other = written();
        other.contributions[0].1.truncate(length);
        let error = Bundle::open(&encode(&other)).err().unwrap();
        assert!(error.contains("not as long as those of its run"), "{error}");
    }
}

#[test]
fn audit_30_changed_bundles_are_opened_or_refused_in_little_memory() {
    let honest = encode(&written());
    let (before, mut opened) = (peak(), 0);
    for seed in 1..4000 {
        let (mut draw, mut bytes) = (Draw(0x9e37_79b9_7f4a_7c15u64.wrapping_mul(seed)), honest.clone());
        // Half of them near the front, where lengths and the manifest stand.
        let front = if seed % 2 == 0 { 600 } else { bytes.len() };
        let mut rest = bytes.split_off(front.min(bytes.len()));
        for _ in 0..1 + draw.below(3) {
            if !bytes.is_empty() {
                change(&mut bytes, &mut draw);
            }
        }
        bytes.append(&mut rest);
        let Ok(bundle) = Bundle::open(&bytes) else { continue };
        opened += 1;
        let sequence = bundle.manifest.model.sequence;
        for window in [0, 40, draw.below(usize::MAX) as u64] {
            let found = bundle.text.window(window, sequence);
            assert!(found.is_none_or(|tokens| tokens.len() == sequence as usize + 1), "seed {seed}");
            bundle.text.row_of(window, sequence, |_| true);
        }
    }
    assert!(opened > 0, "no change was of what a judge checks itself");
    // The layout of the largest model takes the most.
    let taken = peak() - before;
    assert!(taken < 200 << 20, "{} MiB", taken >> 20);
}
