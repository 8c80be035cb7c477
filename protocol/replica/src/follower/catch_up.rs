//! Taking the sealed steps of the state: from the results where they are still at hand, else by fetching a whole state.

use std::sync::Arc;
use std::time::{Duration, Instant};

use muster_core::error::Reject;
use muster_core::ids::{Block, Digest, Height, Part, Round, Row, ShardId};
use muster_core::ledger::Event;
use muster_core::lock::lock;
use muster_core::messages::offer::StateOffer;
use muster_core::messages::round::PartResult;
use muster_core::messages::wire::{Notice, Request, Response};
use muster_core::state::{ShardStep, StateRoots, Update};
use muster_store::rows::Rows;
use tokio::task::JoinSet;

use super::fetch::StateFetch;
use super::prefetches::Prefetch;
use super::{FollowError, Follower};
use crate::held::HeldState;
use crate::peers::PeerError;
use crate::results::WantedValues;
use crate::stopwatch::Phase;

/// The pause between two tries to fetch a part's values before its round is over: the steward may have them later, as long as
/// ROUND-7 lets it wait for a slow aggregator. After wrong values it is twice as long each time, up to the last: they would be
/// fetched again and again.
const AGAIN: Duration = Duration::from_millis(500);
const AT_LAST: Duration = Duration::from_secs(32);
/// Whoever takes the results of more rounds at once has been outpaced meanwhile.
const AT_ONCE: usize = 2;

/// A sealed step of the state that the replica has not taken yet.
#[derive(Clone)]
pub(super) enum Pending {
    /// By a round's results to this state, in the record of this height.
    Outcome(Round, StateRoots, Height),
    /// Back to this state; rounds go on with this one.
    Rewind(Round, StateRoots),
}

impl Pending {
    /// The round whose results it takes.
    pub(super) fn round(&self) -> Option<Round> {
        match self {
            Self::Outcome(round, ..) => Some(*round),
            Self::Rewind(..) => None,
        }
    }
}

/// Results of a round that are being fetched, until it is dropped; by part whether they came.
struct Fetched {
    round: Round,
    tasks: JoinSet<bool>,
}

impl Follower {
    /// Starts fetching a part's values before the outcome is sealed.
    pub(super) fn prefetch(&self, notice: &Notice) {
        let Notice::Result(signed) = notice else { return };
        // Unchecked, any notice on the board would have all members dial its holders.
        let Ok(result) = self.ledger.check_result(signed) else { return };
        let Some(wanted) = self.wanted(&result) else { return };
        // Of other rows nothing is applied here.
        let shard = wanted.blocks.first().and_then(|block| self.ledger.layout().shard_of(*block));
        if shard.is_none_or(|shard| !lock(&self.replica).held().any(|held| held == shard)) {
            return;
        }
        // CHAN-26: what is shown again is fetched already, or was.
        if let Some(prefetch) = self.prefetches.begin(&result, result.author()) {
            tokio::spawn(self.fetch_ahead(prefetch, wanted));
        }
    }

    /// Fetches values until they are here, with pauses, for as long as the round may need them: without them this member has no
    /// word on the part, and keeps the round waiting (ROUND-21).
    fn fetch_ahead(&self, prefetch: Prefetch, wanted: WantedValues) -> impl Future<Output = ()> + use<> {
        let results = self.results.clone();
        let peers = self.peers.clone();
        let replica = self.replica.clone();
        let stopwatch = lock(&self.replica).stopwatch().clone();
        // The steward's time for the values, and that of the members for their words.
        let most = 2 * Duration::from_millis(self.ledger.manifest().timers.result.into());
        async move {
            let _until_it_ends = prefetch;
            let (first, mut pause) = (Instant::now(), AGAIN);
            while first.elapsed() < most && lock(&replica).round() <= wanted.result.round {
                let begun = Instant::now();
                match results.fetch(&peers, &wanted).await {
                    Ok(()) => return stopwatch.add(Phase::Exchange, begun.elapsed()),
                    Err(error) => {
                        let PartResult { round, part, .. } = wanted.result;
                        tracing::debug!("part {part} of round {round} could not be fetched yet: {error}");
                        pause = if error.is_untrue() { (2 * pause).min(AT_LAST) } else { AGAIN };
                        tokio::time::sleep(pause).await;
                    }
                }
            }
        }
    }

    fn wanted(&self, result: &PartResult) -> Option<WantedValues> {
        let view = self.ledger.round(result.round)?;
        let holders = view.reducers(result.part, result.attempt);
        let mut wanted = WantedValues::of(&self.ledger, result.clone(), holders)?;
        // Last: it has the values of every part, and would otherwise be asked by everybody.
        wanted.holders.push(self.steward.clone());
        Some(wanted)
    }

    /// Applies what is pending, or fetches a state when that is not possible any more.
    pub(super) async fn catch_up(&mut self, events: &mut Vec<Event>) -> Result<(), FollowError> {
        self.outpaced = self.pending.len() > AT_ONCE;
        let mut ahead = None;
        while let Some(next) = self.pending.front().cloned() {
            let at = lock(&self.replica).round();
            let (round, sealed, height) = match next {
                Pending::Outcome(round, sealed, height) => (round, sealed, height),
                Pending::Rewind(round, sealed) if at < round => {
                    // STATE-6: its own copy first; a fetch is three vectors of the model.
                    let gone = lock(&self.replica).rewind(&sealed, round).map_err(FollowError::Store)?;
                    if gone || self.fetch_state().await? {
                        continue;
                    }
                    return Ok(());
                }
                Pending::Rewind(..) => {
                    self.pending.pop_front();
                    continue;
                }
            };
            if at > round {
                self.pending.pop_front();
                continue;
            }
            // Values are kept for a few rounds: whoever comes later takes a whole state instead.
            if at < round || !self.have_results(round, &mut ahead).await {
                if !self.fetch_state().await? {
                    return Ok(());
                }
                continue;
            }
            // The next ones come while these are applied.
            ahead = self.pending.get(1).and_then(Pending::round).and_then(|next| self.fetch_results(next));
            let roots = self.apply(round, sealed.clone()).await?;
            match roots {
                Some(roots) if roots == sealed => {
                    self.pending.pop_front();
                    events.push(Event::Applied(round, roots));
                }
                Some(roots) => {
                    let differs =
                        roots.shards.iter().zip(&sealed.shards).position(|(own, sealed)| own != sealed);
                    let shard = ShardId(differs.unwrap_or_default() as u16);
                    let proof = self.prove_root(round, height, shard);
                    return Err(FollowError::Diverged {
                        round,
                        computed: roots.root(),
                        sealed: sealed.root(),
                        proof,
                    });
                }
                // What a late step takes may have been dropped since.
                None if self.fetch_state().await? => {}
                None => return Ok(()),
            }
        }
        if !lock(&self.replica).is_complete() {
            // A row was drawn for this member, which holds it from the next state on that is offered.
            self.fetch_state().await?;
        }
        Ok(())
    }

    /// Has what a round's Outcome applies here, of which some may be `ahead`; whether all of it is.
    async fn have_results(&self, round: Round, ahead: &mut Option<Fetched>) -> bool {
        let ahead = ahead.take().filter(|fetched| fetched.round == round);
        let Some(mut fetched) = ahead.or_else(|| self.fetch_results(round)) else { return false };
        while let Some(done) = fetched.tasks.join_next().await {
            if !done.unwrap_or(false) {
                return false;
            }
        }
        true
    }

    /// Fetches what is not there of the sealed results that a round's Outcome applies, all parts at once; none of a round that is
    /// forgotten.
    fn fetch_results(&self, round: Round) -> Option<Fetched> {
        let mut tasks = JoinSet::new();
        let results: Vec<Vec<PartResult>> =
            self.steps(round)?.into_iter().map(|step| self.results_of(step)).collect::<Option<_>>()?;
        for result in results.into_iter().flatten() {
            let wanted = self.wanted(&result)?;
            let (peers, results) = (self.peers.clone(), self.results.clone());
            tasks.spawn(async move {
                // It may be fetched ahead at the same time.
                let fetched = results.fetch(&peers, &wanted).await;
                let PartResult { round, part, .. } = wanted.result;
                let unavailable = |error: &PeerError| {
                    tracing::info!("part {part} of round {round} is unavailable ({error})")
                };
                fetched.inspect_err(unavailable).is_ok()
            });
        }
        Some(Fetched { round, tasks })
    }

    async fn apply(&self, round: Round, sealed: StateRoots) -> Result<Option<StateRoots>, FollowError> {
        let Some(update) = self.update(round) else { return Ok(None) };
        let replica = self.replica.clone();
        // A step takes as long as the model is large; the runtime's threads serve channels meanwhile.
        let applied = tokio::task::spawn_blocking(move || lock(&replica).apply([Ok(update)], Some(&sealed)));
        applied.await.ok().transpose().map_err(FollowError::Store)
    }

    /// The steps that the Outcome of a round takes, of the shards that the replica holds; none of a round that is forgotten.
    pub(super) fn steps(&self, round: Round) -> Option<Vec<ShardStep>> {
        let steps = self.ledger.round(round)?.shard_steps();
        let replica = lock(&self.replica);
        let holds = |step: &ShardStep| replica.held().any(|held| held == step.shard);
        Some(steps.into_iter().filter(holds).collect())
    }

    /// The sealed results that a step takes; none of a round that is forgotten, which is something else than no result.
    fn results_of(&self, step: ShardStep) -> Option<Vec<PartResult>> {
        let view = self.ledger.round(step.round)?;
        let parts = view.parts().iter().zip(view.results()?).filter(|(plan, _)| plan.shard == step.shard);
        Some(parts.filter_map(|(_, result)| result.clone()).collect())
    }

    /// What the Outcome of a round applies, where its values are there.
    pub(super) fn update(&self, round: Round) -> Option<Update> {
        let steps = self.steps(round)?;
        let behind = self.ledger.round(round)?.is_behind();
        let aggregate = |of| self.aggregate(of, &steps).map(Arc::new);
        Some(Update { behind, ..Update::of_steps(self.ledger.layout(), &steps, aggregate)? })
    }

    /// What these steps take of the aggregate of a round.
    pub(super) fn aggregate(&self, round: Round, steps: &[ShardStep]) -> Option<Update> {
        let view = self.ledger.round(round)?;
        let own: Vec<ShardStep> = steps.iter().copied().filter(|step| step.round == round).collect();
        let blocks = |part: Part| view.parts().get(part.index()).map(|plan| plan.blocks.clone());
        let results: Vec<Vec<PartResult>> =
            own.iter().map(|step| self.results_of(*step)).collect::<Option<_>>()?;
        let parts: Vec<(Part, Vec<Block>, Digest)> = results
            .into_iter()
            .flatten()
            .filter_map(|result| Some((result.part, blocks(result.part)?, result.digest)))
            .collect();
        let shards: Vec<ShardId> = own.iter().map(|step| step.shard).collect();
        Some(Update { behind: view.is_behind(), ..self.results.update(round, &parts, &shards).ok()? })
    }

    /// Fetches the state that the steward offers; `false` when the ledger must move on first.
    async fn fetch_state(&mut self) -> Result<bool, FollowError> {
        self.look_for_holders();
        let Some(offer) = self.offered().await? else { return Ok(false) };
        tracing::info!("fetching the state before round {}", offer.round);
        let wanted = lock(&self.replica).wanted_of(offer.roots.rows());
        let hinted = only_row(&wanted).map(|row| self.row_holders.of(row)).unwrap_or_default();
        let fetch = StateFetch { peers: &self.peers, steward: &self.steward, offer: &offer, hinted };
        let state = match fetch.run(&self.ledger, self.owner, &wanted).await {
            Ok(state) => state,
            Err(error) => return later(error).map(|()| false),
        };
        // STATE-4: nothing of a fetched state is used before all its roots are the sealed ones.
        if offer.roots.with(&state) != offer.roots {
            return Err(PeerError::Reject(Reject::BadProof("the offered state")).into());
        }
        let held = HeldState { state, rows: Rows::new(), roots: offer.roots };
        lock(&self.replica).replace(held, offer.round).map_err(FollowError::Store)?;
        self.outpaced = true;
        Ok(true)
    }

    /// The state that the steward offers, if it is a sealed one with something that is lacking here.
    async fn offered(&self) -> Result<Option<StateOffer>, FollowError> {
        let offer = match self.peers.ask(&self.steward, &Request::StateOffer).await {
            Ok(Response::State(offer)) => offer,
            Ok(_) => return Err(PeerError::Unexpected.into()),
            Err(error) => return later(error).map(|()| None),
        };
        // The offer is the steward's word; which roots were sealed before that round is the ledger's.
        let sealed = match self.ledger.round(offer.round) {
            Some(view) => Some(view.state()),
            None if offer.round == self.ledger.next_round() => Some(self.ledger.state()),
            None => None,
        };
        let (at, complete) = {
            let replica = lock(&self.replica);
            (replica.round(), replica.is_complete())
        };
        // An older state would undo rounds that were applied; the same one may have what is lacking here.
        let newer = offer.round > at || (offer.round == at && !complete);
        let useful = sealed == Some(&offer.roots) && newer;
        Ok(useful.then_some(offer))
    }

    /// STATE-13: has the swarm asked who holds the row of this member.
    fn look_for_holders(&self) {
        let wanted = lock(&self.replica).wanted_of(self.ledger.state().rows());
        if let (Some(gossip), Some(row)) = (&self.gossip, only_row(&wanted)) {
            self.row_holders.look(gossip, row);
        }
    }
}

/// The one row of these shards. Whoever holds all rows has somebody to ask for each of them.
fn only_row(shards: &[ShardId]) -> Option<Row> {
    let mut rows = shards.iter().filter_map(|shard| shard.row());
    rows.next().filter(|_| rows.next().is_none())
}

/// What to do where no state came: a steward that is away, or no longer offers it, is asked again with the next news.
fn later(error: PeerError) -> Result<(), FollowError> {
    match error {
        PeerError::Net(_) | PeerError::Refused(_) | PeerError::Unreachable | PeerError::Late => {
            tracing::info!("the state is unavailable for now ({error}); trying again");
            Ok(())
        }
        error => Err(error.into()),
    }
}
