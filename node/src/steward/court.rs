//! Accusations: what they claim, what is fetched to examine them, and the judgement.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

use muster_compute::Exact;
use muster_core::audit::{Claim, Judgement, judge};
use muster_core::contribution::open_block;
use muster_core::ids::{Block, Digest, MemberId, Part, Round};
use muster_core::layout::Layout;
use muster_core::ledger::Ledger;
use muster_core::manifest::Manifest;
use muster_core::messages::audit::{Equivocation, Evidence};
use muster_core::messages::record::Body;
use muster_core::messages::round::Commit;
use muster_core::sign::Signed;
use muster_core::state::State;
use muster_replica::{Contact, Exhibited, Peers, Replica, contact};
use muster_store::dataset::Dataset;
use muster_store::home::Home;

/// Tries to fetch a contribution before evidence is judged without it.
const TRIES: u32 = 3;
/// Between two tries.
const PAUSE: std::time::Duration = std::time::Duration::from_millis(700);

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
            let aggregators =
                [view.aggregator(Part(part as u16)).map(|(slot, _)| slot), Some(plan.aggregator)];
            let holders =
                aggregators.into_iter().flatten().filter_map(|slot| contact(ledger, &view.member_at(slot)?));
            (plan.blocks.clone(), holders.chain(author.clone()).collect())
        });
        let mut parts: Vec<_> = parts.collect();
        if parts.is_empty() {
            let blocks = (0..ledger.layout().blocks().len() as u32).map(Block).collect();
            parts.push((blocks, author.into_iter().collect()));
        }
        Some(Self { round, member, root, parts })
    }
}

/// What examining needs; shared with the tasks that do it.
pub(super) struct Court {
    pub(super) manifest: Arc<Manifest>,
    pub(super) layout: Arc<Layout>,
    pub(super) home: Home,
    /// Whether the aggregates of all rounds stay.
    pub(super) keep_aggregates: bool,
    pub(super) peers: Peers,
    pub(super) dataset: Arc<Dataset>,
    pub(super) replica: Arc<Mutex<Replica>>,
    pub(super) arithmetic: Arc<Mutex<Exact>>,
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
        for (blocks, holders) in &wanted.parts {
            if blocks.iter().all(|block| kept.contains(block)) {
                continue;
            }
            let found = self.peers.contribution(holders, &self.layout, commitment, blocks).await;
            for (data, values) in found.map_err(|error| error.to_string())? {
                let place = self.layout.block(data.block).and_then(|block| q.get_mut(block.range.clone()));
                if let Some(place) = place.filter(|place| place.len() == values.len()) {
                    place.copy_from_slice(&values);
                }
            }
        }
        Ok(q)
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

    /// Re-executes evidence, with the contribution if it can be had. Gives that too.
    pub(super) async fn examine(
        self: Arc<Self>,
        evidence: Evidence,
        wanted: Option<Wanted>,
    ) -> (Judgement, Option<Vec<i32>>) {
        let mut brought = BTreeMap::new();
        if let (Evidence::Audit(_) | Evidence::Verdict(_), Some(wanted)) = (&evidence, &wanted) {
            for _ in 0..TRIES {
                match self.fetch(wanted).await {
                    Ok(q) => {
                        brought.insert((wanted.round, wanted.member), q);
                        break;
                    }
                    Err(why) => {
                        tracing::debug!("the contribution of {} is not to be had: {why}", wanted.member)
                    }
                }
                tokio::time::sleep(PAUSE).await;
            }
        }
        let judged = tokio::task::spawn_blocking(move || {
            let judgement = self.judge(&evidence, brought.clone());
            (judgement, brought.pop_first().map(|(_, q)| q))
        });
        judged
            .await
            .unwrap_or_else(|error| (Judgement::Undecided(format!("the examination failed: {error}")), None))
    }

    fn judge(&self, evidence: &Evidence, brought: BTreeMap<(Round, MemberId), Vec<i32>>) -> Judgement {
        let sequence = self.manifest.model.sequence;
        let mut witness = Exhibited::new(self.states(evidence), self.dataset.clone(), sequence, brought);
        let mut arithmetic = self.arithmetic.lock().unwrap_or_else(PoisonError::into_inner);
        judge(&self.manifest, evidence, &mut witness, &mut *arithmetic)
    }

    /// The state that evidence is about, if it is still kept.
    fn states(&self, evidence: &Evidence) -> Vec<(Digest, Arc<State>)> {
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
