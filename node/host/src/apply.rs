//! A round's results on their way into the state.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use muster_core::ids::{Block, MemberId, Part, Round, ShardId};
use muster_core::ledger::Ledger;
use muster_core::lock::lock;
use muster_core::messages::round::PartResult;
use muster_core::sign::Signed;
use muster_core::state::{ShardStep, StateRoots, Update};
use muster_keeper::intake::Intake;
use muster_replica::exit::{Failure, Outcome};
use muster_replica::{PeerError, Results, WantedValues, patience};
use muster_store::error::StoreError;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::court::Court;
use super::stand_in::StandIn;

/// Tries to fetch values whose holders refuse, and the pause between two.
const TRIES: u32 = 3;
const PAUSE: Duration = Duration::from_millis(700);

/// The values of a round on their way into the state.
pub(super) struct Applying {
    round: Round,
    /// The shards that were computed on.
    shards: Vec<ShardId>,
    /// The steps that are taken.
    steps: Vec<ShardStep>,
    /// As [`Update::behind`].
    behind: bool,
    wanted: Vec<WantedValues>,
    court: Arc<Court>,
    results: Results,
    stand_in: Option<StandIn>,
    /// The aggregate of the shard that was looked at last: a model without rows has only one, which is looked at three times.
    last: Mutex<Option<Arc<Update>>>,
}

impl Applying {
    /// The values of these results of the open round; `None` if no round is open.
    pub(super) fn of(
        ledger: &Ledger,
        sealed: &[Option<Signed<PartResult>>],
        court: Arc<Court>,
        results: Results,
        intake: &Arc<Intake>,
    ) -> Option<Self> {
        let view = ledger.current()?;
        let wanted = sealed.iter().flatten().filter_map(|signed| {
            let result = signed.verify(ledger.run()).ok()?;
            let author = result.author();
            wanted_values(ledger, result.into_inner(), author)
        });
        let shards = view.open_shards(ledger.layout());
        let (round, steps, wanted) = (view.round(), view.shard_steps(), wanted.collect());
        let behind = view.is_behind();
        let stand_in = StandIn::of(ledger, intake);
        Some(Self { round, shards, steps, behind, wanted, court, results, stand_in, last: Mutex::default() })
    }

    /// Fetches and applies the values. Returns the next state's roots, or the parts that are unavailable. The aggregate is
    /// on the disk before it is applied.
    pub(super) async fn run(self) -> Outcome<Result<StateRoots, Vec<Part>>> {
        let mut missing = self.fetch().await;
        // ROUND-23: no rule gives a value that is no finite number; nothing can be done with one.
        let defined = |part: &&WantedValues| part.blocks.iter().all(|block| self.is_finite(part, *block));
        missing.extend(self.wanted.iter().filter(|part| !defined(part)).map(|part| part.result.part));
        if !missing.is_empty() {
            return Ok(Err(missing));
        }
        let absent = |part: &&WantedValues| !self.results.has(self.round, &part.blocks, &part.result.digest);
        missing.extend(self.wanted.iter().filter(absent).map(|part| part.result.part));
        if !missing.is_empty() {
            return Ok(Err(missing));
        }
        let applied = tokio::task::spawn_blocking(move || self.apply())
            .await
            .map_err(|error| Failure::environment(format!("applying a round failed: {error}")))?;
        Ok(Ok(applied?))
    }

    /// Writes the aggregate down and applies it, shard by shard: it is as large as all of them.
    fn apply(&self) -> Result<StateRoots, StoreError> {
        let Self { round, shards, steps, court, .. } = self;
        let (home, layout) = (&court.home, &court.layout);
        // First: a restart takes this step again from the files.
        home.save_update_by_shard(layout, *round, shards, steps, &|shard| self.shard(shard))?;
        // What has waited is on the disk alone; what is applied at once need not be read again.
        let updates = steps.iter().map(|step| {
            let at_once = if step.round == *round { self.shard(step.shard) } else { None };
            at_once.map_or_else(
                || {
                    *lock(&self.last) = None;
                    home.load_step(layout, *round, *step).map(Arc::new)
                },
                Ok,
            )
        });
        lock(&court.replica).apply(updates, None)
    }

    /// The aggregate of one shard, of the values at hand.
    fn shard(&self, shard: ShardId) -> Option<Arc<Update>> {
        let mut last = lock(&self.last);
        if let Some(update) = last.as_ref().filter(|update| update.shards == [shard]) {
            return Some(update.clone());
        }
        let own = |part: &&WantedValues| {
            part.blocks.first().and_then(|block| self.court.layout.shard_of(*block)) == Some(shard)
        };
        let named = |part: &WantedValues| (part.result.part, part.blocks.clone(), part.result.digest);
        let parts: Vec<_> = self.wanted.iter().filter(own).map(named).collect();
        // Before the next one is made, so that one is in memory.
        *last = None;
        let update = self.results.update(self.round, &parts, &[shard]).ok()?;
        *last = Some(Arc::new(Update { behind: self.behind, ..update }));
        last.clone()
    }

    /// Fetches the values of all parts at once; returns the parts that are unavailable. They are here already, but for those
    /// that a restart or later rounds have dropped.
    async fn fetch(&self) -> Vec<Part> {
        let mut tasks = JoinSet::new();
        for wanted in self.wanted.iter().cloned() {
            let (court, results, stand_in) =
                (self.court.clone(), self.results.clone(), self.stand_in.clone());
            tasks.spawn(async move {
                let are_here = obtain(&court, &results, &wanted, stand_in.as_ref()).await;
                (!are_here).then_some(wanted.result.part)
            });
        }
        let mut missing = Vec::new();
        while let Some(done) = tasks.join_next().await {
            missing.extend(done.ok().flatten());
        }
        missing
    }

    fn is_finite(&self, part: &WantedValues, block: Block) -> bool {
        // What is not here was reported as missing by `fetch`.
        self.results.are_finite(self.round, block, &part.result.digest).unwrap_or(true)
    }
}

/// The values of a result of a round that is remembered, and who may have them; `None` when it names no part of the round.
pub(super) fn wanted_values(ledger: &Ledger, result: PartResult, author: MemberId) -> Option<WantedValues> {
    let view = ledger.round(result.round)?;
    // Where the author does not show the values, the other aggregator of the part may.
    let others = view.reducers(result.part, result.attempt).filter(|other| *other != author);
    let holders: Vec<MemberId> = std::iter::once(author).chain(others).collect();
    WantedValues::of(ledger, result, holders.into_iter())
}

/// Fetches the values of a result; whether they came. An aggregator has as long to show the values of a part as it had to
/// sign their digest, and at least as long as the bytes take on a slow line (ROUND-7). Where nobody can be dialled, the steward
/// reduces the part itself (ROUND-39).
pub(super) async fn obtain(
    court: &Court,
    results: &Results,
    wanted: &WantedValues,
    stand_in: Option<&StandIn>,
) -> bool {
    if let Some(stand_in) = stand_in {
        let WantedValues { result, blocks, .. } = wanted;
        return results.has(result.round, blocks, &result.digest) || stand_in.reduce(result, results).await;
    }
    let least = Duration::from_millis(court.manifest.timers.result.into());
    let limit = least.max(patience(&court.layout, &wanted.blocks));
    let PartResult { round, part, .. } = wanted.result;
    let fetched = async {
        let mut tries = 0;
        loop {
            let Err(unavailable) = results.fetch(&court.peers, wanted).await else { return Ok(()) };
            tries += 1;
            // One that refuses the connection is not waited for as long as one that is slow.
            if tries == TRIES {
                return Err(unavailable);
            }
            tokio::time::sleep(PAUSE).await;
        }
    };
    let fetched = timeout(limit, fetched).await.unwrap_or(Err(PeerError::Late));
    if let Err(unavailable) = &fetched {
        tracing::warn!("part {part} of round {round} is unavailable: {unavailable}");
    }
    fetched.is_ok()
}

#[cfg(test)]
mod tests {
    use muster_core::ids::Digest;
    use muster_core::messages::round::Bitmap;

    use super::*;
    use crate::retro::tests::{TINY, court};

    #[tokio::test]
    async fn round_23_values_that_are_not_finite_count_as_unavailable() {
        let folder = tempfile::tempdir().unwrap();
        let court = Arc::new(court(folder.path(), TINY).0);
        let (round, part, block) = (Round(0), Part(0), Block(0));
        let length = court.layout.block(block).unwrap().range.len();
        let before = court.replica.lock().unwrap().state().clone();
        for (bad, name) in [(Some(f32::NAN), 1), (Some(f32::NEG_INFINITY), 2), (None, 3)] {
            let digest = Digest([name; 32]);
            let mut values = vec![0.25; length];
            values[length - 1] = bad.unwrap_or(0.25);
            let results = Results::new(court.layout.clone());
            results.put_own(round, &[block], &digest, vec![values]);
            let (freeze, inputs) = (Digest::default(), Bitmap::default());
            let result = PartResult { round, part, attempt: 0, freeze, inputs, digest };
            let wanted = vec![WantedValues { result, blocks: vec![block], holders: Vec::new() }];
            let (shards, steps) = (vec![ShardId::TRUNK], vec![ShardStep { shard: ShardId::TRUNK, round }]);
            let last = Mutex::default();
            let (own, stand_in) = (court.clone(), None);
            let applying =
                Applying { round, shards, steps, behind: false, wanted, court: own, results, stand_in, last };
            let applied = applying.run().await.unwrap();
            assert_eq!(applied.err(), bad.map(|_| vec![part]), "{bad:?}");
            let after = court.replica.lock().unwrap().state().clone();
            assert_eq!(after == before, bad.is_some(), "{bad:?}");
        }
    }
}
