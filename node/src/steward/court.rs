//! Accusations: what they claim, what is fetched to examine them, and the judgement.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use muster_compute::Backend;
use muster_core::audit::{Claim, Judgement, judge};
use muster_core::contribution::open_block;
use muster_core::ids::{Block, Digest, MemberId, Part, Round};
use muster_core::layout::Layout;
use muster_core::ledger::Ledger;
use muster_core::manifest::{Manifest, Profile};
use muster_core::messages::audit::{Equivocation, Evidence, TwoResults};
use muster_core::messages::record::Body;
use muster_core::messages::round::{Commit, PartResult};
use muster_core::messages::wire::BlockData;
use muster_core::sign::Signed;
use muster_core::state::State;
use muster_replica::{Brought, Contact, Exhibited, InputBlocks, PartInputs, Peers, Replica, contact};
use muster_store::dataset::Dataset;
use muster_store::error::StoreError;
use muster_store::home::Home;
use muster_store::reading::part_exhibit;
use tokio::task::JoinSet;

use crate::intake::shelf::Shelf;

/// Tries to fetch a contribution before evidence is judged without it.
const TRIES: u32 = 3;
/// Between two tries.
const PAUSE: Duration = Duration::from_millis(700);
/// For all of them: evidence of somebody who stalls must not keep the next from being examined.
const PATIENCE: Duration = Duration::from_secs(60);

/// Evidence on its way to a judgement.
pub(super) struct Accusation {
    pub(super) evidence: Evidence,
    pub(super) digest: Digest,
    pub(super) accuser: MemberId,
    pub(super) claim: Claim,
}

/// Two different commitments of one member in one round, if `second` is another one than the held or frozen one.
pub(super) fn equivocation(
    ledger: &Ledger,
    held: Option<&Signed<Commit>>,
    second: &Signed<Commit>,
) -> Option<Evidence> {
    let run = ledger.run();
    let said = second.verify(run).ok()?;
    let frozen = ledger.round(said.round).and_then(|view| view.freeze()?.verify(run).ok());
    let frozen = frozen.and_then(|record| match &record.body {
        Body::Freeze(freeze) => {
            freeze.commits.iter().find(|commit| commit.claimed_signer() == said.author()).cloned()
        }
        _ => None,
    });
    let first = held.filter(|held| held.claimed_signer() == said.author()).cloned().or(frozen)?;
    let before = first.verify(run).ok().filter(|before| before.round == said.round)?;
    (*before != *said).then(|| Evidence::Equivocation(Equivocation { first, second: second.clone() }))
}

/// Two different results for one part, if `second` is another one than the held or sealed one over the same inputs.
pub(super) fn two_results(
    ledger: &Ledger,
    held: Option<&Signed<PartResult>>,
    second: &Signed<PartResult>,
) -> Option<Evidence> {
    let said = second.verify(ledger.run()).ok()?;
    let sealed = ledger.round(said.round).into_iter().flat_map(|view| view.signed_results_of(said.part));
    let about =
        |result: &PartResult| (result.round, result.part, result.attempt, result.freeze, result.inputs);
    let contradicts = |first: &&Signed<PartResult>| {
        first.verify(ledger.run()).is_ok_and(|first| {
            first.author() == said.author() && about(&first) == about(&said) && first.digest != said.digest
        })
    };
    let first = held.into_iter().chain(sealed).find(contradicts)?.clone();
    Some(Evidence::Results(TwoResults { first, second: second.clone() }))
}

/// What a judgement needs besides states and text.
#[derive(Clone)]
pub(super) enum Wants {
    /// A contribution.
    Contribution(Wanted),
    /// The inputs of a part.
    Part(Box<PartInputs>),
    /// The messages are enough, or what is needed is not remembered.
    Nothing,
}

impl Wants {
    /// Of evidence with this claim.
    pub(super) fn of(ledger: &Ledger, evidence: &Evidence, claim: &Claim) -> Self {
        let found = match evidence {
            Evidence::Audit(_) | Evidence::Verdict(_) => {
                Wanted::of(ledger, claim.round, claim.subject).map(Self::Contribution)
            }
            Evidence::Aggregation(part) => {
                let result = part.result.verify(ledger.run()).ok();
                let inputs = result.and_then(|result| PartInputs::of(ledger, &result));
                inputs.map(|inputs| Self::Part(Box::new(inputs)))
            }
            // TOL-6: where leaves need not be equal, a total is compared by its integers.
            Evidence::Total(_) if ledger.manifest().profile != Profile::Exact => {
                Wanted::of(ledger, claim.round, claim.subject).map(Self::Contribution)
            }
            Evidence::Equivocation(_)
            | Evidence::Total(_)
            | Evidence::Results(_)
            | Evidence::Misconduct(_) => None,
        };
        found.unwrap_or(Self::Nothing)
    }
}

/// A contribution and who may have it.
#[derive(Clone)]
pub(super) struct Wanted {
    pub(super) round: Round,
    pub(super) member: MemberId,
    root: Digest,
    /// Blocks and their holders, the likeliest first.
    parts: Vec<(Vec<Block>, Vec<Contact>)>,
}

impl Wanted {
    /// A frozen contribution of a round that is remembered.
    pub(super) fn of(ledger: &Ledger, round: Round, member: MemberId) -> Option<Self> {
        let view = ledger.round(round)?;
        let root = view.commitment(view.slot_of(&member)?)?.commit.root;
        let author = contact(ledger, &member);
        let parts = view.parts().iter().enumerate().map(|(part, plan)| {
            let keepers = |attempt| view.reducers(Part(part as u16), attempt);
            let holders = keepers(1).chain(keepers(0)).filter_map(|keeper| contact(ledger, &keeper));
            (plan.blocks.clone(), holders.chain(author.clone()).collect())
        });
        let mut parts: Vec<_> = parts.collect();
        if parts.is_empty() {
            let blocks = (0..ledger.layout().blocks().len() as u32).map(Block).collect();
            parts.push((blocks, author.into_iter().collect()));
        }
        Some(Self { round, member, root, parts })
    }

    /// One that nobody has.
    #[cfg(test)]
    pub(super) fn lost(round: Round, member: MemberId, root: Digest) -> Self {
        Self { round, member, root, parts: vec![(vec![Block(0)], Vec::new())] }
    }
}

/// What examining needs; shared with the tasks that do it.
pub(super) struct Court {
    pub(super) manifest: Arc<Manifest>,
    pub(super) layout: Arc<Layout>,
    pub(super) home: Home,
    /// The same disk's contributions.
    pub(super) shelf: Arc<Shelf>,
    /// Whether the aggregates of all rounds stay.
    pub(super) keep_aggregates: bool,
    pub(super) peers: Peers,
    pub(super) dataset: Arc<Dataset>,
    pub(super) replica: Arc<Mutex<Replica>>,
    pub(super) arithmetic: Arc<Mutex<Box<dyn Backend>>>,
}

impl Court {
    /// The whole contribution, each block proved against the commitment: from the exhibits, else from who holds it.
    ///
    /// # Errors
    /// Why it could not be had, in words.
    pub(super) async fn fetch(&self, wanted: &Wanted) -> Result<Vec<i32>, String> {
        if let Ok(kept) = self.home.load_exhibit(wanted.round, &wanted.member) {
            return Ok(kept);
        }
        let mut q = vec![0; self.layout.parameters()];
        let commitment = (wanted.round, wanted.member, wanted.root);
        let mut kept = BTreeSet::new();
        for data in self.home.load_contribution(wanted.round, &wanted.member).unwrap_or_default() {
            let place = self.layout.block(data.block).and_then(|block| q.get_mut(block.range.clone()));
            if let (Some(place), Ok(values)) = (place, open_block(&self.layout, &wanted.root, &data)) {
                place.copy_from_slice(&values);
                kept.insert(data.block);
            }
        }
        let mut tasks = JoinSet::new();
        for (part, (blocks, holders)) in wanted.parts.iter().cloned().enumerate() {
            if !blocks.iter().all(|block| kept.contains(block)) {
                let (peers, layout) = (self.peers.clone(), self.layout.clone());
                tasks.spawn(async move {
                    (part, peers.contribution(&holders, &layout, commitment, &blocks).await)
                });
            }
        }
        while let Some(done) = tasks.join_next().await {
            let (part, found) = done.map_err(|error| error.to_string())?;
            let found = found.map_err(|error| error.to_string())?;
            if self.manifest.profile != Profile::Exact {
                // TOL-12: verifiers and jurors have it of the steward from now on.
                let data: Vec<BlockData> = found.iter().map(|(data, _)| data.clone()).collect();
                let kept = self.shelf.save(wanted.round, &wanted.member, part as u16, &data);
                kept.map_err(|error| error.to_string())?;
            }
            for (data, values) in found {
                let place = self.layout.block(data.block).and_then(|block| q.get_mut(block.range.clone()));
                if let Some(place) = place.filter(|place| place.len() == values.len()) {
                    place.copy_from_slice(&values);
                }
            }
        }
        Ok(q)
    }

    /// Fetches a contribution of which the blocks stay here until their round is forgotten (TOL-12), and no longer: whoever
    /// says that it lacks one must not fill the disk.
    ///
    /// # Errors
    /// Why it could not be had, in words.
    pub(super) async fn obtain(&self, wanted: &Wanted) -> Result<(), String> {
        self.fetch(wanted).await.map(drop)
    }

    /// Fetches a contribution and keeps it for replay.
    ///
    /// # Errors
    /// Why not, in words.
    pub(super) async fn exhibit(&self, wanted: &Wanted) -> Result<(), String> {
        let q = self.fetch(wanted).await?;
        let kept = self.home.save_exhibit(wanted.round, &wanted.member, &q);
        kept.map_err(|error| error.to_string())
    }

    /// Keeps the values of a part that were applied.
    ///
    /// # Errors
    /// What the disk reports.
    pub(super) fn exhibit_part(&self, round: Round, part: Part, blocks: &[Block]) -> Result<(), StoreError> {
        if part_exhibit(self.home.path(), round, part)?.is_some() {
            return Ok(());
        }
        let update = self.home.load_update(round)?;
        let ranges = blocks.iter().filter_map(|block| self.layout.block(*block));
        let values: Vec<f32> =
            ranges.filter_map(|block| update.values.get(block.range.clone())).flatten().copied().collect();
        self.home.save_part_exhibit(round, part, &values)
    }

    /// Re-executes evidence, with what it wants if that can be had. Gives the contribution too.
    pub(super) async fn examine(
        self: Arc<Self>,
        evidence: Evidence,
        wants: Wants,
    ) -> (Judgement, Option<Vec<i32>>) {
        let brought = tokio::time::timeout(PATIENCE, self.bring_at_last(&wants, evidence.digest())).await;
        let mut brought = brought.unwrap_or_default();
        let judged = tokio::task::spawn_blocking(move || {
            let judgement = self.judge(&evidence, brought.clone());
            (judgement, brought.contributions.pop_first().map(|(_, q)| q))
        });
        judged
            .await
            .unwrap_or_else(|error| (Judgement::Undecided(format!("the examination failed: {error}")), None))
    }

    /// What is wanted, or nothing after a few tries.
    async fn bring_at_last(&self, wants: &Wants, name: Digest) -> Brought {
        for _ in 0..TRIES {
            match self.bring(wants).await {
                Ok(found) => return found,
                Err(why) => tracing::debug!("evidence {name} wants more: {why}"),
            }
            tokio::time::sleep(PAUSE).await;
        }
        Brought::default()
    }

    async fn bring(&self, wants: &Wants) -> Result<Brought, String> {
        let mut brought = Brought::default();
        match wants {
            Wants::Nothing => {}
            Wants::Contribution(wanted) => {
                let q = self.fetch(wanted).await?;
                brought.contributions.insert((wanted.round, wanted.member), q);
            }
            Wants::Part(inputs) => {
                // The aggregator is the suspect: authors are asked first.
                let from = (None, true);
                let found = inputs.fetch(&self.peers, &self.layout, &inputs.blocks, from, self.kept(inputs));
                brought.blocks = found.await?.into_iter().map(|(name, (data, _))| (name, data)).collect();
                brought.round = Some(inputs.view.clone());
            }
        }
        Ok(brought)
    }

    /// What this steward keeps of a part's inputs: an aggregator's own ones.
    fn kept(&self, inputs: &PartInputs) -> InputBlocks {
        let mut kept = InputBlocks::new();
        for (member, root) in inputs.senders() {
            let held = self.home.load_contribution(inputs.view.round(), &member).unwrap_or_default();
            for data in held.into_iter().filter(|data| inputs.blocks.contains(&data.block)) {
                if let Ok(values) = open_block(&self.layout, &root, &data) {
                    kept.insert((member, data.block), (data, values));
                }
            }
        }
        kept
    }

    fn judge(&self, evidence: &Evidence, brought: Brought) -> Judgement {
        let mut witness =
            Exhibited::new(self.states(evidence), self.dataset.clone(), &self.manifest, brought);
        let mut arithmetic = self.arithmetic.lock().unwrap_or_else(PoisonError::into_inner);
        judge(&self.manifest, evidence, &mut witness, &mut **arithmetic)
    }

    /// The state that evidence is about, if it is still kept.
    fn states(&self, evidence: &Evidence) -> Vec<(Digest, Arc<State>)> {
        if matches!(evidence, Evidence::Aggregation(_)) {
            return Vec::new();
        }
        let Some(freeze) = evidence.freeze() else { return Vec::new() };
        let record = freeze.verify(self.manifest.run()).ok();
        let root = record.and_then(|record| match &record.body {
            Body::Freeze(freeze) => Some(freeze.state),
            _ => None,
        });
        let replica = self.replica.lock().unwrap_or_else(PoisonError::into_inner);
        root.and_then(|root| Some((root, replica.state_at(&root)?))).into_iter().collect()
    }
}
