//! After a conviction: which of the convict's counted contributions and of the parts that it signed were false, and how far
//! they moved the aggregates.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use muster_core::audit::{Judgement, recompute_sum};
use muster_core::contribution::PackedContribution;
use muster_core::ids::{Block, MemberId, Part, ShardId, Slot};
use muster_core::layout::Layout;
use muster_core::ledger::{Ledger, RoundView};
use muster_core::lock::lock;
use muster_core::messages::evidence::Evidence;
use muster_core::messages::round::{Bitmap, Commit};
use muster_core::reduction::{SealedInputs, reduce};
use muster_core::sketch::probe::WRONG;
use muster_core::state::Update;
use muster_replica::{Brought, Exhibited, KeptState, PartInputs, Replica, WantedContribution, patience};
use muster_roles::steward::hearing::Matter;
use muster_roles::steward::past::{Found, PastRound};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use super::court::{Court, Wants};

/// A measurement waits for others for so many times as long as one contribution may take, in all.
const WAITS: u32 = 4;
/// Parts that are examined at once, each with its inputs in memory.
const AT_ONCE: usize = 8;

/// A round in which the convict counted or signed a part, with all that is needed of it and ages.
pub(super) struct ConvictRound {
    view: RoundView,
    convict: MemberId,
    commit: Option<Commit>,
    /// The state that its leaves are computed on, if it is still kept. It is taken here, since rounds go on meanwhile and the
    /// replica forgets.
    state: Option<KeptState>,
    /// What it signed, with the inputs.
    parts: Vec<SignedPart>,
    /// Everybody who counted.
    counted: Vec<CountedSlot>,
    measure: bool,
    /// Shards in which nothing of the round was applied.
    kept_out: Vec<ShardId>,
}

/// A part that the convict signed.
struct SignedPart {
    part: Part,
    evidence: Evidence,
    inputs: PartInputs,
}

/// A contribution that counted.
struct CountedSlot {
    slot: Slot,
    commit: Commit,
    /// Where it is; of a convict nobody looks, since what it should have been stands for it.
    wanted: Option<WantedContribution>,
}

impl ConvictRound {
    /// The rounds that are remembered and over, those first that the state can still go back to, each kind in order.
    pub(super) fn of(ledger: &Ledger, convict: &MemberId, replica: &Replica) -> Vec<Self> {
        // Nothing of an open round is in the state yet.
        let over = ledger.rounds().filter(|view| view.results().is_some());
        let rounds = over.filter_map(|view| Self::in_round(ledger, view, convict, replica));
        let (mut within, beyond): (Vec<Self>, Vec<Self>) = rounds.partition(|round| round.measure);
        within.extend(beyond);
        within
    }

    fn in_round(ledger: &Ledger, view: &RoundView, convict: &MemberId, replica: &Replica) -> Option<Self> {
        let slot = view.slot_of(convict).filter(|slot| view.counted(*slot));
        let commit = slot.and_then(|slot| Some(view.commitment(slot)?.commit.clone()));
        let parts = signed_parts(ledger, view, convict);
        if commit.is_none() && parts.is_empty() {
            return None;
        }
        let round = view.round();
        let counted = view.commitments().filter(|(slot, _)| view.counted(*slot)).map(|(slot, c)| {
            // Of no convict, also of none of other cases: its poison must not stand for the honest aggregate.
            let honest = !ledger.is_banned(&c.author);
            let wanted = honest.then(|| WantedContribution::of(ledger, round, c.author)).flatten();
            CountedSlot { slot, commit: c.commit.clone(), wanted }
        });
        // Harm leads nowhere but to a Rewind: without a limit, or without a state to go back to, it is not
        // measured.
        let measure = ledger.manifest().rollback.is_on() && ledger.state_before(round).is_some();
        let shards = view.open_shards(ledger.layout());
        let kept_out = shards.into_iter().filter(|shard| !ledger.was_applied(round, *shard)).collect();
        Some(Self {
            convict: *convict,
            commit,
            state: replica.state_at(&view.base().root()),
            parts,
            counted: counted.collect(),
            measure,
            kept_out,
            view: view.clone(),
        })
    }
}

/// The sealed parts of a round that a member signed, with the evidence and inputs that show whether they are right.
fn signed_parts(ledger: &Ledger, view: &RoundView, member: &MemberId) -> Vec<SignedPart> {
    let signed = (0..view.parts().len()).flat_map(|part| view.signed_results_of(Part(part as u16)));
    let own = signed.filter(|signed| signed.claimed_signer() == *member);
    let found = own.filter_map(|signed| {
        let result = signed.verify(ledger.run()).ok()?;
        let evidence = Evidence::Aggregation(view.reduction(&result, signed)?);
        Some(SignedPart { part: result.part, evidence, inputs: PartInputs::of(ledger, &result)? })
    });
    found.collect()
}

/// For how long one measurement waits for others. However many rounds and parts it looks at, and whoever keeps what it wants,
/// the convict's friends among them: rounds may be held back meanwhile (ROLLBACK-5).
struct Waits {
    until: Instant,
    /// For one of them.
    each: Duration,
    /// Members whose contribution did not come: they are not asked for another one.
    silent: Mutex<BTreeSet<MemberId>>,
}

impl Waits {
    fn new(layout: &Layout) -> Self {
        let blocks: Vec<Block> = (0..layout.blocks().len() as u32).map(Block).collect();
        Self::of(patience(layout, &blocks))
    }

    fn of(each: Duration) -> Self {
        Self { until: Instant::now() + WAITS * each, each, silent: Mutex::default() }
    }

    /// How long one more wait may take; none once all of them have taken as long as they may.
    fn left(&self) -> Option<Duration> {
        let left = self.until.saturating_duration_since(Instant::now()).min(self.each);
        (!left.is_zero()).then_some(left)
    }
}

/// What was found of a part, and what shows that it is wrong.
type ExaminedPart = (Part, Found, Option<Evidence>);

impl Court {
    /// Recomputes what a convict contributed, and the parts that it signed. Where something is false, it also reduces the round
    /// as it would have been. What needs nobody's answer comes first, and whatever others have to show is waited for beside it.
    pub(super) async fn retro_all(self: Arc<Self>, mut jobs: Vec<ConvictRound>) -> Vec<PastRound> {
        let waits = Arc::new(Waits::new(&self.layout));
        let parts: Vec<Vec<SignedPart>> = jobs.iter_mut().map(|job| std::mem::take(&mut job.parts)).collect();
        let examined = tokio::spawn(self.clone().examined(parts, waits.clone()));
        let jobs: Vec<Arc<ConvictRound>> = jobs.into_iter().map(Arc::new).collect();
        let mut past = Vec::new();
        for job in &jobs {
            let contribution = self.clone().contributed(job).await;
            let round = job.view.round();
            let mut found =
                PastRound { round, contribution, parts: Vec::new(), harm: None, wrong: Vec::new() };
            if found.is_bad() {
                found.harm = self.clone().harm(job.clone(), waits.clone()).await;
            }
            past.push(found);
        }
        let mut examined = examined.await.unwrap_or_else(|error| {
            tracing::error!("bug: the parts of a convict were not examined: {error}");
            Vec::new()
        });
        examined.resize_with(jobs.len(), Vec::new);
        for ((job, past), parts) in jobs.iter().zip(&mut past).zip(examined) {
            for (part, found, wrong) in parts {
                past.parts.push((part, found));
                past.wrong.extend(wrong);
            }
            if past.is_bad() && past.harm.is_none() {
                past.harm = self.clone().harm(job.clone(), waits.clone()).await;
            }
        }
        past.sort_by_key(|past| past.round);
        past
    }

    /// The parts of each round, a few at once.
    async fn examined(
        self: Arc<Self>,
        rounds: Vec<Vec<SignedPart>>,
        waits: Arc<Waits>,
    ) -> Vec<Vec<ExaminedPart>> {
        let places = Arc::new(Semaphore::new(AT_ONCE));
        let mut tasks = JoinSet::new();
        let mut found: Vec<Vec<ExaminedPart>> = rounds.iter().map(|_| Vec::new()).collect();
        for (index, signed) in
            rounds.into_iter().enumerate().flat_map(|(i, p)| p.into_iter().map(move |p| (i, p)))
        {
            let (court, places, waits) = (self.clone(), places.clone(), waits.clone());
            tasks.spawn(async move {
                // Never closed: without a place only memory is at stake.
                let _place = places.acquire_owned().await.ok();
                (index, court.examined_part(signed, &waits).await)
            });
        }
        while let Some(examined) = tasks.join_next().await {
            match examined {
                Ok((index, part)) => found.get_mut(index).into_iter().for_each(|of| of.push(part.clone())),
                Err(error) => tracing::error!("bug: a part of a convict was not examined: {error}"),
            }
        }
        found.iter_mut().for_each(|parts| parts.sort_by_key(|(part, ..)| *part));
        found
    }

    /// Whether a part is what the rule gives.
    async fn examined_part(self: Arc<Self>, signed: SignedPart, waits: &Waits) -> ExaminedPart {
        let SignedPart { part, evidence, inputs } = signed;
        let Some(left) = waits.left() else {
            return (part, Found::Unknown("its inputs did not come in time".into()), None);
        };
        let (admit, withheld, expelled) = (None, false, false);
        let (run, exact) = (self.manifest.run(), self.is_exact());
        let matter = Matter { evidence: evidence.clone(), run, exact, admit, withheld, expelled };
        let examined = self.hear(matter, Wants::Part(Box::new(inputs)), left).await;
        match examined.map(|ruling| ruling.judgement) {
            Ok(Judgement::NotGuilty(_)) => (part, Found::Right, None),
            Ok(Judgement::Guilty { .. }) => (part, Found::False, Some(evidence)),
            Ok(Judgement::Undecided(why) | Judgement::Malformed(why)) => (part, Found::Unknown(why), None),
            Err(failure) => (part, Found::Unknown(failure.to_string()), None),
        }
    }

    /// Whether what the convict contributed is what follows from the state and the text; none where nothing of it counted.
    async fn contributed(self: Arc<Self>, job: &ConvictRound) -> Option<Found> {
        let commit = job.commit.as_ref()?;
        let Some(state) = &job.state else {
            return Some(Found::Unknown("the state is not kept any more".into()));
        };
        let committed = self.home.load_exhibit(commit.round, &job.convict).ok();
        let committed = committed.and_then(|q| PackedContribution::whole_of(&self.layout, &q)).map(Arc::new);
        Some(match self.recomputed(commit, state, committed).await {
            None => Found::Unknown("the text or the state is unavailable".into()),
            Some((_, true)) => Found::Right,
            Some((_, false)) => Found::False,
        })
    }

    /// Recomputes a contribution, and says whether it is what was committed. A comparison that needs the committed integers
    /// fails without them: by ROLLBACK-1, the convict has to show that it was right.
    async fn recomputed(
        self: Arc<Self>,
        commit: &Commit,
        state: &KeptState,
        committed: Option<Arc<PackedContribution>>,
    ) -> Option<(Vec<i32>, bool)> {
        let (court, commit, state) = (self.clone(), commit.clone(), state.clone());
        let task = tokio::task::spawn_blocking(move || {
            let nothing = Brought::default();
            let mut text = Exhibited::new(Vec::new(), court.dataset.clone(), &court.manifest, nothing);
            let state = state.shards(&commit.shards(&court.layout))?;
            let mut arithmetic = lock(&court.arithmetic);
            let sum = recompute_sum(&court.manifest, &commit, &state, &mut text, &mut **arithmetic)?;
            let deviation = sum.deviation(&court.manifest, &commit, || committed);
            let right = deviation.is_some_and(|deviation| deviation <= WRONG);
            Some((sum.q, right))
        });
        task.await.ok().flatten()
    }

    /// ROLLBACK-2: how far the aggregate that was applied is from the one that honest work would have given; none where that is
    /// not measured, or cannot be.
    async fn harm(self: Arc<Self>, job: Arc<ConvictRound>, waits: Arc<Waits>) -> Option<f64> {
        let state = job.state.as_ref().filter(|_| job.measure)?;
        let inputs = self.clone().inputs(&job.counted, state, &waits).await?;
        let court = self.clone();
        let task = tokio::task::spawn_blocking(move || {
            // The largest of any shard: the trunk, which everybody trains, would dilute what was done to a row. What was
            // held back harms nobody.
            let shards = job.view.open_shards(&court.layout);
            let mut harms = shards.into_iter().filter(|shard| !job.kept_out.contains(shard)).map(|shard| {
                let applied = court.home.load_update_of(&court.layout, job.view.round(), shard).ok()?;
                Some(court.shard_harm(shard, &applied, &court.rightly(&job.view, &inputs, shard)?))
            });
            harms.try_fold(0.0, |most, harm| Some(f64::max(most, harm?)))
        });
        task.await.ok().flatten()
    }

    /// What everybody should have contributed. ROLLBACK-2: recomputed leaves stand for a convict's contribution, so that harm is
    /// the distance to honest work, and not to its absence. They also stand for an unavailable one, whether or not they give
    /// its root: otherwise a member that withholds a part would keep everybody's poison in the state.
    async fn inputs(
        self: Arc<Self>,
        counted: &[CountedSlot],
        state: &KeptState,
        waits: &Arc<Waits>,
    ) -> Option<BTreeMap<Slot, Vec<i32>>> {
        let mut tasks = JoinSet::new();
        for CountedSlot { slot, wanted, .. } in counted {
            let Some(wanted) = wanted.clone() else { continue };
            let (court, waits, slot) = (self.clone(), waits.clone(), *slot);
            tasks.spawn(async move { (slot, court.in_time(&wanted, &waits).await) });
        }
        let mut inputs = BTreeMap::new();
        while let Some(fetched) = tasks.join_next().await {
            if let Ok((slot, Some(q))) = fetched {
                inputs.insert(slot, q);
            }
        }
        for CountedSlot { slot, commit, .. } in counted {
            if !inputs.contains_key(slot) {
                inputs.insert(*slot, self.clone().recomputed(commit, state, None).await?.0);
            }
        }
        Some(inputs)
    }

    /// A contribution; none if it does not come in time, and then none of its author's in this measurement.
    async fn in_time(&self, wanted: &WantedContribution, waits: &Waits) -> Option<Vec<i32>> {
        let author = wanted.name.member;
        let left = waits.left().filter(|_| !lock(&waits.silent).contains(&author))?;
        let q = timeout(left, self.fetch(wanted)).await.ok().and_then(Result::ok);
        let q = q.and_then(|q| q.whole(&self.layout));
        if q.is_none() {
            lock(&waits.silent).insert(author);
        }
        q
    }

    /// ROLLBACK-2 for one shard: over the blocks that have a result.
    fn shard_harm(&self, shard: ShardId, applied: &Update, rightly: &Update) -> f64 {
        let layout = &self.layout;
        let pairs = layout.blocks_of(shard).filter_map(|block| {
            let applied = applied.block(layout, block)?.into_owned();
            let rightly = rightly.block(layout, block).map(Cow::into_owned);
            // Where nobody who counts has given anything, nothing would have moved.
            let rightly = rightly.unwrap_or_else(|| vec![0.0; applied.len()]);
            Some(applied.into_iter().zip(rightly))
        });
        movement(pairs.flatten())
    }

    /// A shard of the aggregate of a round from these contributions; zero in parts that none of them counts in.
    fn rightly(&self, view: &RoundView, inputs: &BTreeMap<Slot, Vec<i32>>, shard: ShardId) -> Option<Update> {
        let layout = &self.layout;
        let mut values = Update::empty(layout, [shard]);
        let commitment = |slot: Slot| view.commitment(slot);
        let input = |slot: Slot, block: Block| inputs.get(&slot)?.get(layout.block(block)?.range.clone());
        for ((plan, result), sealed) in view.parts().iter().zip(view.results()?).zip(view.inputs()) {
            let mut left = Bitmap::default();
            sealed.slots().filter(|slot| inputs.contains_key(slot)).for_each(|slot| left.insert(slot));
            if plan.shard != shard || result.is_none() || left.is_empty() {
                continue;
            }
            let inputs = SealedInputs { freeze: view.freeze_digest()?, slots: &left };
            let reduced = reduce(&self.manifest, layout, &plan.blocks, &inputs, commitment, input)?;
            for (block, reduced) in plan.blocks.iter().zip(&reduced.values) {
                values.put(layout, *block, reduced)?;
            }
        }
        Some(values)
    }
}

/// ROLLBACK-2: ‖u − u′‖ / ‖u‖ of pairs (u, u′), squares added in order in f64; 0 where u is 0.
fn movement(pairs: impl Iterator<Item = (f32, f32)>) -> f64 {
    let (mut moved, mut size) = (0.0f64, 0.0f64);
    for (applied, right) in pairs {
        let (applied, right) = (f64::from(applied), f64::from(right));
        moved += (applied - right) * (applied - right);
        size += applied * applied;
    }
    // No update, no harm: and nothing to divide by.
    if size > 0.0 { (moved / size).sqrt() } else { 0.0 }
}

#[cfg(test)]
pub(super) mod tests;
