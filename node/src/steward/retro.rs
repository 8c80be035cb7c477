//! After a conviction: which of the convict's counted contributions and of the parts that it signed were false, and how far
//! they moved the aggregates.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use muster_core::audit::{Judgement, recompute_sum};
use muster_core::ids::{Block, Digest, MemberId, Part, ShardId, Slot};
use muster_core::ledger::{Ledger, RoundView};
use muster_core::lock::lock;
use muster_core::messages::evidence::Evidence;
use muster_core::messages::round::{Bitmap, Commit};
use muster_core::reduction::{SealedInputs, reduce};
use muster_core::sketch::probe::WRONG;
use muster_core::state::Update;
use muster_replica::{Brought, Exhibited, KeptState, PartInputs, WantedContribution};
use muster_roles::steward::hearing::Matter;
use muster_roles::steward::past::{Found, PastRound};
use tokio::time::timeout;

use super::court::{Court, Wants};

/// How long to wait for the inputs of a part. Each time they are unavailable, the next part gets half as long. A convict's
/// friends that withhold inputs therefore delay a Rewind by twice this time at most, however many parts it signed.
const PATIENCE: Duration = Duration::from_secs(60);
/// Least time for the contribution of another member.
const LEAST: Duration = Duration::from_secs(1);

/// A round in which the convict counted or signed a part.
pub(super) struct ConvictRound {
    view: RoundView,
    convict: MemberId,
    commit: Option<Commit>,
    /// Root of the state that its leaves are computed on.
    state: Digest,
    /// What it signed, with the inputs.
    parts: Vec<(Part, Evidence, PartInputs)>,
    /// Everybody else who counted, with where their contributions are.
    others: Vec<(Slot, Commit, WantedContribution)>,
    measure: bool,
    /// Shards in which nothing of the round was applied.
    kept_out: Vec<ShardId>,
}

impl ConvictRound {
    /// The rounds that are remembered and over, in order.
    pub(super) fn of(ledger: &Ledger, convict: &MemberId) -> Vec<Self> {
        // Nothing of an open round is in the state yet.
        let over = ledger.rounds().filter(|view| view.results().is_some());
        over.filter_map(|view| Self::in_round(ledger, view, convict)).collect()
    }

    fn in_round(ledger: &Ledger, view: &RoundView, convict: &MemberId) -> Option<Self> {
        let slot = view.slot_of(convict).filter(|slot| view.counted(*slot));
        let commit = slot.and_then(|slot| Some(view.commitment(slot)?.commit.clone()));
        let parts = signed_parts(ledger, view, convict);
        if commit.is_none() && parts.is_empty() {
            return None;
        }
        let others =
            // Without all convicts, also those of other cases: their poison must not stand for the honest
            // aggregate.
            view.commitments().filter(|(slot, c)| view.counted(*slot) && !ledger.is_banned(&c.author));
        let others = others.filter_map(|(slot, c)| {
            Some((slot, c.commit.clone(), WantedContribution::of(ledger, view.round(), c.author)?))
        });
        // Harm leads nowhere but to a Rewind: without a limit, or without a state to go back to, it is not
        // measured.
        let measure = ledger.manifest().rollback.is_on() && ledger.state_before(view.round()).is_some();
        let (round, shards) = (view.round(), view.open_shards(ledger.layout()));
        let kept_out = shards.into_iter().filter(|shard| !ledger.was_applied(round, *shard)).collect();
        let (view, state) = (view.clone(), view.base().root());
        Some(Self {
            view,
            convict: *convict,
            commit,
            state,
            parts,
            others: others.collect(),
            measure,
            kept_out,
        })
    }
}

/// The sealed parts of a round that a member signed, with the evidence and inputs that show whether they are right.
fn signed_parts(ledger: &Ledger, view: &RoundView, member: &MemberId) -> Vec<(Part, Evidence, PartInputs)> {
    let signed = (0..view.parts().len()).flat_map(|part| view.signed_results_of(Part(part as u16)));
    let own = signed.filter(|signed| signed.claimed_signer() == *member);
    let found = own.filter_map(|signed| {
        let result = signed.verify(ledger.run()).ok()?;
        let evidence = Evidence::Aggregation(view.reduction(&result, signed)?);
        Some((result.part, evidence, PartInputs::of(ledger, &result)?))
    });
    found.collect()
}

impl Court {
    /// All rounds of a convict, one after the other.
    pub(super) async fn retro_all(self: Arc<Self>, jobs: Vec<ConvictRound>) -> Vec<PastRound> {
        let (mut past, mut patience) = (Vec::new(), PATIENCE);
        for job in jobs {
            past.push(self.clone().retro(job, &mut patience).await);
        }
        past
    }

    /// Recomputes what a convict contributed to a round, and the parts that it signed. If something is false, it also
    /// reduces the round without the convicts. Each part whose inputs are unavailable halves the patience for the next.
    async fn retro(self: Arc<Self>, mut job: ConvictRound, patience: &mut Duration) -> PastRound {
        let round = job.view.round();
        let state = {
            let replica = lock(&self.replica);
            replica.state_at(&job.state)
        };
        let mut past =
            PastRound { round, contribution: None, parts: Vec::new(), harm: None, wrong: Vec::new() };
        if let Some(commit) = &job.commit {
            past.contribution = Some(self.clone().contributed(&job.convict, commit, state.as_ref()).await);
        }
        for (part, evidence, inputs) in std::mem::take(&mut job.parts) {
            let wants = Wants::Part(Box::new(inputs));
            let (admit, withheld, expelled) = (None, false, false);
            let (run, exact) = (self.manifest.run(), self.is_exact());
            let matter = Matter { evidence: evidence.clone(), run, exact, admit, withheld, expelled };
            let examined = self.clone().hear(matter, wants, *patience).await;
            let judgement = examined
                .map_or_else(|failure| Judgement::Undecided(failure.to_string()), |ruling| ruling.judgement);
            let found = match judgement {
                Judgement::NotGuilty(_) => Found::Right,
                Judgement::Guilty { .. } => {
                    past.wrong.push(evidence);
                    Found::False
                }
                Judgement::Undecided(why) | Judgement::Malformed(why) => {
                    *patience /= 2;
                    Found::Unknown(why)
                }
            };
            past.parts.push((part, found));
        }
        if let Some(state) = state.filter(|_| job.measure && past.is_bad()) {
            past.harm = self.harm(job, state, patience).await;
        }
        past
    }

    /// Whether a convict's contribution is what follows from the state and the text.
    async fn contributed(
        self: Arc<Self>,
        convict: &MemberId,
        commit: &Commit,
        state: Option<&KeptState>,
    ) -> Found {
        let Some(state) = state else { return Found::Unknown("the state is not kept any more".into()) };
        let committed = self.home.load_exhibit(commit.round, convict).ok();
        match self.recomputed(commit, state, committed).await {
            None => Found::Unknown("the text or the state is unavailable".into()),
            Some((_, true)) => Found::Right,
            Some((_, false)) => Found::False,
        }
    }

    /// Recomputes a contribution, and says whether it is what was committed. A comparison that needs the committed integers
    /// fails without them: by ROLLBACK-1, the convict has to show that it was right.
    async fn recomputed(
        self: Arc<Self>,
        commit: &Commit,
        state: &KeptState,
        committed: Option<Vec<i32>>,
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

    /// ROLLBACK-2: how far the aggregate that was applied is from the one without the convicts.
    async fn harm(
        self: Arc<Self>,
        job: ConvictRound,
        state: KeptState,
        patience: &mut Duration,
    ) -> Option<f64> {
        let inputs = self.clone().inputs(&job.others, &state, patience).await?;
        let court = self.clone();
        let task = tokio::task::spawn_blocking(move || {
            // The largest of any shard: the trunk, which everybody trains, would dilute what was done to a row. What was
            // held back harms nobody.
            let shards = job.view.open_shards(&court.layout);
            let mut harms = shards.into_iter().filter(|shard| !job.kept_out.contains(shard)).map(|shard| {
                let applied = court.home.load_update_of(&court.layout, job.view.round(), shard).ok()?;
                Some(court.shard_harm(shard, &applied, &court.without(&job.view, &inputs, shard)?))
            });
            harms.try_fold(0.0, |most, harm| Some(f64::max(most, harm?)))
        });
        task.await.ok().flatten()
    }

    /// What others contributed. ROLLBACK-2: recomputed leaves stand for an unavailable contribution, whether or not they
    /// give its root. Otherwise a member that withholds a part would keep everybody's poison in the state.
    async fn inputs(
        self: Arc<Self>,
        others: &[(Slot, Commit, WantedContribution)],
        state: &KeptState,
        patience: &mut Duration,
    ) -> Option<BTreeMap<Slot, Vec<i32>>> {
        let mut inputs = BTreeMap::new();
        for (slot, commit, wanted) in others {
            let q = match self.in_time(wanted, patience).await {
                Some(q) => q,
                None => self.clone().recomputed(commit, state, None).await?.0,
            };
            inputs.insert(*slot, q);
        }
        Some(inputs)
    }

    /// A contribution; `None` if it does not come in time, which halves the patience for the next.
    async fn in_time(&self, wanted: &WantedContribution, patience: &mut Duration) -> Option<Vec<i32>> {
        let q = timeout((*patience).max(LEAST), self.fetch(wanted)).await.ok().and_then(Result::ok);
        if q.is_none() {
            *patience /= 2;
        }
        q
    }

    /// ROLLBACK-2 for one shard: over the blocks that have a result.
    fn shard_harm(&self, shard: ShardId, applied: &Update, without: &Update) -> f64 {
        let layout = &self.layout;
        let present = applied.shard(layout, shard).map_or(&[][..], |(_, present)| present);
        let blocks = layout.blocks_of(shard).zip(present).filter(|(_, present)| **present);
        let values = |update: &Update, block| update.block(layout, block).map(<[f32]>::to_vec);
        let pairs = blocks
            .filter_map(|(block, _)| Some(values(applied, block)?.into_iter().zip(values(without, block)?)));
        movement(pairs.flatten())
    }

    /// A shard of the aggregate of a round from these contributions alone; zero in parts that none of them counts in.
    fn without(&self, view: &RoundView, inputs: &BTreeMap<Slot, Vec<i32>>, shard: ShardId) -> Option<Update> {
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
    for (with, without) in pairs {
        let (with, without) = (f64::from(with), f64::from(without));
        moved += (with - without) * (with - without);
        size += with * with;
    }
    // No update, no harm: and nothing to divide by.
    if size > 0.0 { (moved / size).sqrt() } else { 0.0 }
}

#[cfg(test)]
pub(super) mod tests {
    use std::path::Path;
    use std::sync::Mutex;

    use muster_compute::{Exact, Machine};
    use muster_core::contribution::Commitment;
    use muster_core::ids::Round;
    use muster_core::layout::Layout;
    use muster_core::manifest::{Manifest, Profile};
    use muster_core::sign::Identity;
    use muster_net::endpoint::Endpoint;
    use muster_replica::{CommittedContribution, HeldBlocks, Offers, Peers, Replica};
    use muster_store::dataset::{self, Dataset, SourceText};
    use muster_store::home::Home;

    use tokio::sync::Semaphore;

    use super::*;
    use crate::intake::shelf::Shelf;
    use crate::organise::config::{Makers, Settings};
    use crate::steward::court::{HOARD, SHOWING};
    use crate::steward::second::Second;

    /// A tiny model.
    pub(in crate::steward) const TINY: &str = "
        [model]
        width = 8
        layers = 1
        heads = 2
        key_value_heads = 2
        hidden = 12
        sequence = 16
    ";
    const TOLERANT: &str = "
        [arithmetic]
        profile = \"f32\"
        tolerance = [1e-3]
        loss_tolerance = 1e-3
    ";

    /// A court of these settings at the beginning of a run, and who seals its records.
    pub(in crate::steward) fn court(folder: &Path, settings: &str) -> (Court, Arc<Identity>) {
        let text = |name: &str| {
            let bytes = "to muster is to gather, and to inspect. ".repeat(40).into_bytes();
            vec![Ok(SourceText { name: name.into(), bytes })]
        };
        let corpus = folder.join("corpus");
        let data = dataset::pack(text("train"), text("held out"), &corpus, &mut |_| ()).unwrap();
        let identity = Arc::new(Identity::from_secret(&[2; 32]));
        let makers = Makers { organiser: MemberId([0; 32]), steward: identity.id(), nonce: [0; 16] };
        let settings = Settings::parse(Path::new("run.toml"), settings).unwrap();
        let manifest = Arc::new(settings.manifest(&makers, data.clone()).unwrap());
        let dataset = Arc::new(Dataset::open(&corpus, &data).unwrap());
        let replica = Replica::genesis(manifest.clone(), dataset.clone(), 1, None).unwrap();
        let layout = Arc::new(Layout::of_run(&manifest));
        let home = Home::open(&folder.join("home")).unwrap();
        let replica = Arc::new(Mutex::new(replica));
        let (failed, _) = tokio::sync::mpsc::channel(1);
        let court = Court {
            shelf: Arc::new(Shelf::new(layout.clone(), Arc::new(home.clone()), failed)),
            layout,
            offers: Arc::new(Offers::new(home.clone(), replica.clone()).unwrap()),
            home,
            keep_aggregates: false,
            peers: Peers::new(Endpoint::new(manifest.run(), identity.clone())),
            dataset,
            replica,
            arithmetic: Arc::new(Mutex::new(Box::new(Exact::new(1, None).unwrap()))),
            second: Second::new(Machine::new(1, None)),
            hoard: Arc::new(Semaphore::new(HOARD)),
            showing: Semaphore::new(SHOWING),
            stopped: tokio::sync::watch::channel(false).1,
            manifest,
        };
        (court, identity)
    }

    fn commit(manifest: &Manifest, state: Digest, root: Digest, loss: i64) -> Commit {
        let (round, slot, profile) = (Round(0), Slot(1), Profile::F32);
        assert_eq!(manifest.profile, profile);
        let (head, route) = (Digest::default(), None);
        Commit { round, head, state, slot, seats: 2, route, leaves: 2, profile, loss, root }
    }

    #[tokio::test]
    async fn rollback_2_a_withheld_part_hides_no_harm() {
        let folder = tempfile::tempdir().unwrap();
        let court = Arc::new(court(folder.path(), &format!("{TINY}{TOLERANT}")).0);
        let (root, state) = court.replica.lock().unwrap().snapshot();
        let kept = KeptState::in_memory(root, state.clone());
        let honest = commit(&court.manifest, root, Digest::default(), 0);
        let (own, _) = court.clone().recomputed(&honest, &kept, None).await.unwrap();
        // Another machine's sum, one off in one place, and its loss.
        let mut theirs = own.clone();
        theirs[0] += 1;
        let nothing = Brought::default();
        let mut text = Exhibited::new(Vec::new(), court.dataset.clone(), &court.manifest, nothing);
        let mut exact = Exact::new(1, None).unwrap();
        let sum = recompute_sum(&court.manifest, &honest, &state, &mut text, &mut exact).unwrap();
        let theirs_root = Commitment::new(&court.layout, &theirs).root();
        let commit = commit(&court.manifest, root, theirs_root, sum.loss);
        // A convict shows that it was right, or it was not.
        let found = |committed| court.clone().recomputed(&commit, &kept, committed);
        assert!(found(Some(theirs.clone())).await.unwrap().1);
        assert!(!found(None).await.unwrap().1);
        assert!(!found(Some(theirs.iter().map(|q| 10 * q).collect())).await.unwrap().1);
        // Nobody has what this one contributed.
        let name = CommittedContribution { round: Round(0), member: MemberId([9; 32]), root: theirs_root };
        let parts = vec![HeldBlocks { part: Part(0), blocks: vec![Block(0)], holders: Vec::new() }];
        let wanted = WantedContribution { name, parts };
        assert!(court.fetch(&wanted).await.is_err());
        let inputs =
            court.clone().inputs(&[(Slot(1), commit.clone(), wanted)], &kept, &mut PATIENCE.clone()).await;
        assert_eq!(inputs, Some(BTreeMap::from([(Slot(1), own)])));
    }

    #[test]
    fn movement_is_relative() {
        let of = |with: [f32; 2], without: [f32; 2]| movement(with.into_iter().zip(without));
        assert_eq!(of([3.0, 4.0], [3.0, 4.0]), 0.0);
        assert_eq!(of([3.0, 4.0], [0.0, 0.0]), 1.0);
        assert_eq!(of([3.0, 4.0], [-3.0, -4.0]), 2.0);
        assert_eq!(of([0.0, 0.0], [1.0, 0.0]), 0.0);
    }
}
