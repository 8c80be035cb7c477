//! Reduced blocks of the last rounds, to serve and to apply.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};

use muster_core::ids::{Block, Digest, MemberId, Part, Round, ShardId};
use muster_core::layout::Layout;
use muster_core::ledger::Ledger;
use muster_core::lock::lock;
use muster_core::messages::round::PartResult;
use muster_core::messages::wire::{BlockQuery, Response};
use muster_core::rounding::{BlockValues, ResultGrid};
use muster_core::state::Update;
use muster_store::error::StoreError;
use muster_store::home::Home;
use muster_store::updates::AggregateFile;

use tokio::sync::watch;

use crate::peers::{Contact, PeerError, Peers, bulk, contact};

/// Rounds kept for members that are a little behind.
const ROUNDS: usize = 6;
/// Rounds in memory where they take too much: the one under way, and the one before.
const FEWEST_ROUNDS: usize = 2;
/// Bytes that values of more rounds may take.
const BYTES: u64 = 32 << 20;

/// Results of a part that are kept beside each other: of two aggregators, in two attempts.
const VERSIONS: usize = 4;

/// Rounds of which values are held, where those of one take so many bytes.
pub(crate) fn rounds_held(bytes: u64) -> usize {
    usize::try_from(BYTES / bytes.max(1)).unwrap_or(ROUNDS).clamp(FEWEST_ROUNDS, ROUNDS)
}

/// Values by round and block, the newest last: a part that was reassigned has other ones, and whoever brings the first ones late
/// takes nothing away from these.
type Held = BTreeMap<Round, BTreeMap<Block, Vec<Version>>>;

/// Values of a block.
struct Version {
    /// That of its part.
    digest: Digest,
    values: Arc<BlockValues>,
    /// Whether they were reduced here: whoever asks for a block means these.
    own: bool,
}

/// The values of a result, and who may have them.
#[derive(Clone, Debug)]
pub struct WantedValues {
    /// The result.
    pub result: PartResult,
    /// The blocks of its part.
    pub blocks: Vec<Block>,
    /// Who is asked, in this order.
    pub holders: Vec<Contact>,
}

impl WantedValues {
    /// Of a result of a round that is remembered, from those of these members that can be dialled; `None` when it names no
    /// part of the round.
    pub fn of(ledger: &Ledger, result: PartResult, holders: impl Iterator<Item = MemberId>) -> Option<Self> {
        let blocks = ledger.round(result.round)?.parts().get(result.part.index())?.blocks.clone();
        let holders = holders.filter_map(|holder| contact(ledger, &holder)).collect();
        Some(Self { result, blocks, holders })
    }
}

/// Values by round and block, shared by whoever serves and whoever applies.
#[derive(Clone)]
pub struct Results {
    layout: Arc<Layout>,
    rounds: Arc<Mutex<Held>>,
    /// Where aggregates are once they were applied.
    disk: Option<Home>,
    /// Rounds that are kept, besides those that are needed.
    most: usize,
    /// Rounds of which something is applied later (ROW-6).
    needed: Arc<Mutex<BTreeSet<Round>>>,
    /// Told of everything new.
    news: Arc<watch::Sender<()>>,
}

impl Results {
    /// Empty, for this layout.
    pub fn new(layout: Arc<Layout>) -> Self {
        let news = Arc::new(watch::channel(()).0);
        Self { layout, rounds: Arc::default(), disk: None, most: ROUNDS, needed: Arc::default(), news }
    }

    /// The same, of a home that keeps what was applied: in memory stays the newest round.
    #[must_use]
    pub fn with_disk(self, home: Home) -> Self {
        Self { disk: Some(home), most: 1, ..self }
    }

    /// Keeps these rounds however old they are, and no longer those that were needed before.
    pub fn need(&self, rounds: impl Iterator<Item = Round>) {
        *lock(&self.needed) = rounds.collect();
    }

    /// Keeps the values of a part with this digest, in order of its blocks. The oldest round goes when there are too
    /// many.
    pub fn put(&self, round: Round, blocks: &[Block], digest: &Digest, values: Vec<Vec<f32>>) {
        self.keep(round, blocks, digest, self.packed(blocks, values), false);
    }

    /// The same for values that were reduced here: queries are answered by these, whatever another aggregator says.
    pub fn put_own(&self, round: Round, blocks: &[Block], digest: &Digest, values: Vec<Vec<f32>>) {
        self.keep(round, blocks, digest, self.packed(blocks, values), true);
    }

    fn grid(&self, block: Block) -> ResultGrid {
        ResultGrid::of(&self.layout, block)
    }

    fn packed(&self, blocks: &[Block], values: Vec<Vec<f32>>) -> Vec<BlockValues> {
        blocks.iter().zip(values).map(|(block, values)| BlockValues::of(self.grid(*block), values)).collect()
    }

    fn keep(&self, round: Round, blocks: &[Block], digest: &Digest, values: Vec<BlockValues>, own: bool) {
        let mut rounds = self.lock();
        let held = rounds.entry(round).or_default();
        for (block, values) in blocks.iter().zip(values) {
            let versions = held.entry(*block).or_default();
            // Fetched again, they are still the ones that were reduced here.
            let own = own || versions.iter().any(|held| held.digest == *digest && held.own);
            versions.retain(|held| held.digest != *digest);
            versions.push(Version { digest: *digest, values: Arc::new(values), own });
            // Own values stay: others can be fetched from whoever reduced them, these only from here.
            if versions.len() > VERSIONS {
                let others = versions.iter().position(|held| !held.own).unwrap_or_default();
                versions.remove(others);
            }
        }
        let needed = lock(&self.needed);
        let mut spare: Vec<Round> = rounds.keys().copied().filter(|round| !needed.contains(round)).collect();
        // The largest tells how many there is room for: the newest is not there as a whole yet.
        let largest = spare.iter().filter_map(|round| rounds.get(round)).map(bytes_of).max();
        spare.truncate(spare.len().saturating_sub(self.most.min(rounds_held(largest.unwrap_or_default()))));
        spare.iter().for_each(|round| drop(rounds.remove(round)));
        drop(needed);
        drop(rounds);
        self.news.send_replace(());
    }

    /// Has values here: fetches them from the first holder whose values have the digest, unless they are here, or come
    /// meanwhile.
    ///
    /// # Errors
    /// [`PeerError`] of the last holder.
    pub async fn fetch(&self, peers: &Peers, wanted: &WantedValues) -> Result<(), PeerError> {
        let WantedValues { result: PartResult { round, digest, .. }, blocks, holders } = wanted;
        tokio::select! {
            // What is here already is not fetched, however fast a holder would answer.
            biased;
            () = self.wait(*round, blocks, digest) => {}
            values = peers.values(holders, &self.layout, *round, blocks, digest) => {
                self.keep(*round, blocks, digest, values?, false);
            }
        }
        Ok(())
    }

    /// Whether all blocks of the part with this digest are there.
    pub fn has(&self, round: Round, blocks: &[Block], digest: &Digest) -> bool {
        blocks.iter().all(|block| self.held(round, *block, digest).is_some())
    }

    /// Waits until they are there, without a bound of its own: whoever calls it sets one.
    pub async fn wait(&self, round: Round, blocks: &[Block], digest: &Digest) {
        let mut news = self.news.subscribe();
        while !self.has(round, blocks, digest) {
            if news.changed().await.is_err() {
                return;
            }
        }
    }

    /// The values of one block of the part with this digest.
    pub fn block(&self, round: Round, block: Block, digest: &Digest) -> Option<Vec<f32>> {
        // The lock is free again before they are unpacked.
        let held = self.held(round, block, digest);
        held.map(|values| values.reals().into_owned())
    }

    /// Whether the values of one block of the part with this digest are all finite numbers; none where they are not here.
    pub fn are_finite(&self, round: Round, block: Block, digest: &Digest) -> Option<bool> {
        self.held(round, block, digest).map(|values| values.are_finite())
    }

    fn held(&self, round: Round, block: Block, digest: &Digest) -> Option<Arc<BlockValues>> {
        let rounds = self.lock();
        let mut versions = rounds.get(&round)?.get(&block)?.iter();
        versions.find(|held| held.digest == *digest).map(|held| held.values.clone())
    }

    fn shown(&self, round: Round, block: Block) -> Option<Arc<BlockValues>> {
        let rounds = self.lock();
        let versions = rounds.get(&round)?.get(&block)?;
        let own = versions.iter().rev().find(|held| held.own);
        own.or(versions.last()).map(|held| held.values.clone())
    }

    /// Values that were applied, from the disk, whose `file` is opened once. They are not checked: whoever asks compares them with a
    /// digest.
    fn on_disk<'a>(
        &'a self,
        file: &mut Option<AggregateFile<'a>>,
        round: Round,
        block: Block,
    ) -> Option<BlockValues> {
        let failed = |error: &StoreError| tracing::warn!("a result cannot be served: {error}");
        if file.is_none() {
            *file = self.disk.as_ref()?.open_update(&self.layout, round).inspect_err(failed).ok()?;
        }
        file.as_mut()?.block(block).inspect_err(failed).ok()?
    }

    /// Answers a query; `None` when a block is not held or the answer would be too long. May read the disk.
    pub fn answer(&self, query: &BlockQuery) -> Option<Response> {
        let (mut bytes, mut file) = (Vec::new(), None);
        for block in &query.blocks {
            match self.shown(query.round, *block) {
                Some(held) => bytes.extend(held.bytes()?),
                None => bytes.extend(self.on_disk(&mut file, query.round, *block)?.bytes()?),
            }
            if bytes.len() > muster_core::messages::wire::BULK_BYTES {
                return None;
            }
        }
        bulk(bytes)
    }

    /// The update of a round for these shards: the blocks of the parts that have a result, with its digest.
    ///
    /// # Errors
    /// The parts whose values are not held.
    pub fn update(
        &self,
        round: Round,
        parts: &[(Part, Vec<Block>, Digest)],
        shards: &[ShardId],
    ) -> Result<Update, Vec<Part>> {
        let mut update = Update::empty(&self.layout, shards.iter().copied());
        let mut missing = Vec::new();
        for (part, blocks, digest) in parts {
            if !blocks.iter().all(|block| self.fill(round, *block, digest, &mut update)) {
                missing.push(*part);
            }
        }
        if missing.is_empty() { Ok(update) } else { Err(missing) }
    }

    /// Puts the values of a block into an update; whether they are held.
    fn fill(&self, round: Round, block: Block, digest: &Digest, update: &mut Update) -> bool {
        // Values are believed by their digest alone, which says nothing of the layout.
        self.held(round, block, digest)
            .is_some_and(|values| update.put_held(&self.layout, block, values).is_some())
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        lock(&self.rounds)
    }
}

/// Bytes of a round's values.
fn bytes_of(held: &BTreeMap<Block, Vec<Version>>) -> u64 {
    held.values().flatten().map(|version| version.values.size() as u64).sum()
}

#[cfg(test)]
mod tests {
    use muster_core::manifest::{Decoder, Family, Model};

    use super::*;

    fn layout() -> Arc<Layout> {
        let real = |value| muster_core::codec::Real::new(value).unwrap();
        Arc::new(Layout::of(&Model {
            vocabulary: 16,
            width: 4,
            layers: 1,
            heads: 1,
            hidden: 4,
            sequence: 4,
            norm_epsilon: real(1e-5),
            initial_scale: real(0.1),
            family: Family::Decoder(Decoder { key_value_heads: 1, tied: true, rope_base: real(10_000.0) }),
        }))
    }

    #[test]
    fn fewer_rounds_are_kept_where_they_take_much() {
        let layout = layout();
        let results = Results::new(layout.clone());
        let (block, digest) = (Block(1), Digest([1; 32]));
        let length = layout.block(block).unwrap().range.len();
        // Off the grid values stay as they are, however many: those of a large model.
        let held = |count: usize, values: Vec<f32>| {
            (0..count as u32)
                .for_each(|round| results.put(Round(round), &[block], &digest, vec![values.clone()]));
            results.lock().keys().map(|round| round.0).collect::<Vec<_>>()
        };
        assert_eq!(held(9, vec![1.0; length]), [3, 4, 5, 6, 7, 8]);
        let large = vec![0.3; BYTES as usize / 4 / 3];
        assert_eq!(held(12, large.clone()), [9, 10, 11]);
        assert_eq!(held(13, [large.clone(), large].concat()), [11, 12]);
        assert_eq!([0, 1, BYTES / 4, BYTES, u64::MAX].map(rounds_held), [6, 6, 4, 2, 2]);
    }

    #[test]
    fn a_reassigned_part_is_not_taken_for_the_first_one() {
        let layout = layout();
        let results = Results::new(layout.clone());
        let (block, first, second) = (Block(1), Digest([1; 32]), Digest([2; 32]));
        let length = layout.block(block).unwrap().range.len();
        results.put(Round(3), &[block], &first, vec![vec![1.0; length]]);
        assert!(results.has(Round(3), &[block], &first) && !results.has(Round(3), &[block], &second));
        let part = |digest| [(Part(0), vec![block], digest)];
        assert_eq!(results.update(Round(3), &part(second), &[ShardId::TRUNK]).err(), Some(vec![Part(0)]));
        results.put(Round(3), &[block], &second, vec![vec![2.0; length]]);
        let update = results.update(Round(3), &part(second), &[ShardId::TRUNK]).ok().unwrap();
        assert_eq!(update.block(&layout, block).unwrap()[0], 2.0);
        // Whoever brings the first ones once more takes nothing away.
        results.put(Round(3), &[block], &first, vec![vec![1.0; length]]);
        assert!(results.update(Round(3), &part(second), &[ShardId::TRUNK]).is_ok());
        // An aggregator shows what it has signed, whatever it has fetched of the other one since.
        results.put_own(Round(3), &[block], &second, vec![vec![2.0; length]]);
        results.put(Round(3), &[block], &first, vec![vec![1.0; length]]);
        let shown = results.shown(Round(3), block).unwrap();
        assert_eq!(shown.reals()[0], 2.0);
    }
}
