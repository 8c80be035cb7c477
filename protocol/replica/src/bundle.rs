//! A piece of evidence and what it is judged by, as one file for somebody who has nothing else and believes nothing.
//!
//! Whoever judges writes down what it looks at ([`Recorder`]), and [`seal`] puts that together. [`Bundle::open`] ties every
//! piece to the manifest, whose hash is the run's id; what a judge checks itself (contributions, blocks, records) is left to it.

mod recorder;

use std::collections::BTreeMap;
use std::sync::Arc;

use borsh::{BorshDeserialize, BorshSerialize};
use muster_core::codec::{decode, encode};
use muster_core::contribution::PackedContribution;
use muster_core::ids::{Block, Digest, Height, MemberId, Round, ShardId};
use muster_core::layout::Layout;
use muster_core::manifest::Manifest;
use muster_core::messages::evidence::Evidence;
use muster_core::messages::record::Record;
use muster_core::messages::wire::BlockData;
use muster_core::regime::Regime;
use muster_core::sign::Signed;
use muster_core::state::{ShardRoots, State, StateRoots, integer_bytes, integers, real_bytes, reals};
use muster_store::bundles::CONTENTS_BYTES;
use muster_store::dataset::{Dataset, Excerpt, Pieces};
use muster_store::journal::Journal;

pub use recorder::{Asked, Recorder};

use crate::witness::Contributions;

/// What a bundle holds (AUDIT-30).
#[derive(BorshSerialize, BorshDeserialize)]
struct Contents {
    manifest: Manifest,
    evidence: Evidence,
    text: Pieces,
    state: Option<StateCopy>,
    contributions: Vec<((Round, MemberId), Vec<u8>)>,
    blocks: Vec<((Round, MemberId), BlockData)>,
    records: Vec<Signed<Record>>,
}

/// Some shards of a state, and the roots of all of them. Moments may be absent.
#[derive(BorshSerialize, BorshDeserialize)]
struct StateCopy {
    roots: StateRoots,
    shards: Vec<ShardId>,
    exponents: Vec<i16>,
    vectors: [Vec<u8>; 3],
}

/// Where a bundle is made of.
pub struct Sources<'a> {
    /// The manifest.
    pub manifest: &'a Manifest,
    /// The text.
    pub dataset: &'a Dataset,
    /// The ledger.
    pub journal: &'a Journal,
    /// Roots of the state that was looked at.
    pub roots: Option<&'a StateRoots>,
}

/// The contents of a bundle: the evidence, and of what a judge has looked at as much as there is room for. What is left out a
/// reader has to find elsewhere. Nothing is copied for which there is no room.
pub fn seal(evidence: &Evidence, asked: Asked, sources: &Sources<'_>) -> Vec<u8> {
    let Sources { manifest, dataset, journal, roots } = *sources;
    let sequence = manifest.model.sequence;
    let text = dataset.pieces(&asked.windows, &asked.routed, sequence, CONTENTS_BYTES / 2);
    let text = text.inspect_err(|error| tracing::warn!("a bundle lacks its text: {error}"));
    let mut contents = Contents {
        manifest: manifest.clone(),
        evidence: evidence.clone(),
        // With its proofs, a text of half a bundle takes less than the whole.
        text: text.unwrap_or_default(),
        state: None,
        contributions: Vec::new(),
        blocks: Vec::new(),
        records: Vec::new(),
    };
    let mut room = CONTENTS_BYTES.saturating_sub(encode(&contents).len() as u64);
    let state = asked.state.as_ref().zip(roots).filter(|((root, _), roots)| roots.root() == *root);
    let state = state.filter(|((_, state), roots)| takes(&mut room, StateCopy::bytes_of(state, roots)));
    contents.state = state.map(|((_, state), roots)| StateCopy::of(state, roots));
    let layout = Layout::of_run(manifest);
    let length = 4 * layout.coefficients() as u64 + BESIDE;
    let contributions = asked.contributions.into_iter().filter(|_| takes(&mut room, length));
    contents.contributions =
        contributions.filter_map(|(name, q)| Some((name, integer_bytes(&q.whole(&layout)?)))).collect();
    let blocks: Vec<_> =
        asked.blocks.into_iter().map(|((round, member, _), data)| ((round, member), data)).collect();
    let length = blocks.iter().map(|(_, data)| encode(data).len() as u64 + BESIDE).sum();
    contents.blocks = if takes(&mut room, length) { blocks } else { Vec::new() };
    if asked.ledger {
        contents.records = records(journal, room);
    }
    encode(&contents)
}

/// Bytes of a name and of the lengths that stand before things, at most.
const BESIDE: u64 = 64;

/// Takes so many bytes of the room, if there are so many.
fn takes(room: &mut u64, bytes: u64) -> bool {
    let left = room.checked_sub(bytes);
    *room = left.unwrap_or(*room);
    left.is_some()
}

/// The ledger from its first record on: all of it, or nothing where that is too much.
fn records(journal: &Journal, room: u64) -> Vec<Signed<Record>> {
    let bytes = usize::try_from(room).unwrap_or(usize::MAX);
    let read = journal.records_within(Height(0), usize::MAX, bytes);
    let whole = read.and_then(|records| Ok((records.len() as u64 == journal.height()?.0, records)));
    match whole {
        Ok((true, records)) if encode(&records).len() as u64 <= room => records,
        Ok(_) => Vec::new(),
        Err(error) => {
            tracing::warn!("a bundle stays without the ledger: {error}");
            Vec::new()
        }
    }
}

impl StateCopy {
    fn of(state: &State, roots: &StateRoots) -> Self {
        Self {
            roots: roots.clone(),
            shards: state.held().collect(),
            exponents: state.exponents.clone(),
            vectors: [&state.parameters, &state.first, &state.second]
                .map(|values| real_bytes(values).into_owned()),
        }
    }

    /// Bytes of a copy, at most.
    fn bytes_of(state: &State, roots: &StateRoots) -> u64 {
        let values = state.parameters.len() + state.first.len() + state.second.len();
        let words = state.shards.len() + state.exponents.len();
        (4 * values + 2 * words + encode(roots).len()) as u64 + BESIDE
    }

    /// The shards, if they are those that the roots are of; and the root of the whole state.
    fn checked(self, layout: &Layout) -> Option<(Digest, State)> {
        let Self { roots, shards, exponents, vectors } = self;
        // Each once, as a state holds them: so there are no more than roots.
        if !shards.is_sorted_by(|one, next| one < next) {
            return None;
        }
        let shard = |id: &ShardId| Some(roots.shard(*id)?.shard(*id, layout.shard(*id)?.size()));
        let shards: Vec<_> = shards.iter().map(shard).collect::<Option<_>>()?;
        let (tensors, values) = shards.iter().fold((0usize, 0usize), |(tensors, values), shard| {
            (tensors + shard.size.exponents, values + shard.size.coefficients)
        });
        let [parameters, first, second] = vectors;
        let lengths = [&first, &second].map(Vec::len);
        let fits = exponents.len() == tensors && parameters.len() == 4 * values;
        // Moments are whole or absent.
        if !fits || shards.is_empty() || !lengths.iter().all(|length| *length == 0 || *length == 4 * values) {
            return None;
        }
        let vector = |bytes: Vec<u8>| reals(&bytes).into();
        let (parameters, first, second) = (vector(parameters), vector(first), vector(second));
        let state = State { shards, exponents, parameters, first, second };
        let found = state.roots();
        let right = state.held().zip(found.shards.iter()).all(|(id, found)| {
            roots.shard(id).is_some_and(|kept| {
                // Where there are no moments, nothing can be said against their roots.
                let first = if state.first.is_empty() { kept.first } else { found.first };
                let second = if state.second.is_empty() { kept.second } else { found.second };
                ShardRoots { first, second, ..*found } == *kept
            })
        });
        right.then(|| (roots.root(), state))
    }
}

/// A bundle of which everything is tied to its manifest that a judge does not check itself.
pub struct Bundle {
    /// Its hash is the run's id.
    pub manifest: Manifest,
    /// What is to be judged.
    pub evidence: Evidence,
    /// A state by its root.
    pub state: Option<(Digest, State)>,
    /// Of the text.
    pub text: Excerpt,
    /// Contributions, which a judge compares with their commitments.
    pub contributions: Contributions,
    /// Blocks of contributions with their proofs, which a judge checks.
    pub blocks: BTreeMap<(Round, MemberId, Block), BlockData>,
    /// The ledger from its first record on; empty where nobody needs it, or it was too long.
    pub records: Vec<Signed<Record>>,
}

impl Bundle {
    /// Reads the contents of a bundle.
    ///
    /// # Errors
    /// In words: what is wrong with it.
    pub fn open(contents: &[u8]) -> Result<Self, String> {
        let contents: Contents = decode(contents).map_err(|reject| reject.to_string())?;
        let Contents { manifest, evidence, text, state, contributions, blocks, records } = contents;
        // MANIFEST-1, and before anything is made as large as it says.
        manifest.check().map_err(|misuse| format!("its manifest: {misuse}; there is no such run"))?;
        let text = Excerpt::checked(&manifest.data, text)?;
        let state = match state {
            None => None,
            Some(copy) => Some(
                copy.checked(&Layout::of_run(&manifest))
                    .ok_or("its state is not the one whose roots it names")?,
            ),
        };
        // LOCAL-1, AUDIT-13: what begins with moments comes to other bits without them, and honest work would look false.
        let steps =
            Regime::of(&manifest).begins_with_moments() || matches!(evidence, Evidence::Misconduct(_));
        if steps && state.as_ref().is_some_and(|(_, state)| state.first.is_empty()) {
            return Err("its state lacks the moments with which what is judged begins".into());
        }
        let layout = Layout::of_run(&manifest);
        let packed = |bytes: &[u8]| PackedContribution::whole_of(&layout, &integers(bytes)).map(Arc::new);
        let contributions = contributions.into_iter().map(|(name, bytes)| Some((name, packed(&bytes)?)));
        let contributions = contributions.collect::<Option<_>>();
        let contributions =
            contributions.ok_or("one of its contributions is not as long as those of its run")?;
        let blocks = blocks.into_iter().map(|((round, member), data)| ((round, member, data.block), data));
        Ok(Self { state, text, contributions, blocks: blocks.collect(), records, manifest, evidence })
    }
}
