//! What the examination of evidence needs, and from whom it is fetched.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use muster_compute::Backend;
use muster_core::audit::Claim;
use muster_core::contribution::PackedContribution;
use muster_core::contribution::open_block;
use muster_core::ids::{Block, Digest, MemberId, Part, Round};
use muster_core::layout::Layout;
use muster_core::ledger::Ledger;
use muster_core::lock::lock;
use muster_core::manifest::Manifest;
use muster_core::messages::evidence::Evidence;
use muster_core::messages::wire::BlockData;
use muster_core::state::Update;
use muster_keeper::intake::shelf::Shelf;
use muster_replica::bundle::{Asked, Sources, seal};
use muster_replica::{
    Brought, CommittedContribution, InputBlocks, InputSources, KeptState, Offers, PartInputs, Peers, Replica,
    WantedContribution,
};
use muster_roles::steward::KeptContribution;
use muster_store::bundles::bundle_path;
use muster_store::dataset::Dataset;
use muster_store::error::StoreError;
use muster_store::home::Home;
use muster_store::journal::Journal;
use muster_store::reading::part_exhibit;
use tokio::sync::{Semaphore, watch};

use super::origins::Origins;
use super::second::Second;

/// Contributions that cases have in memory at once.
pub(super) const HOARD: usize = 4;
/// Contributions that are fetched as exhibits at once.
pub(super) const SHOWING: usize = 4;

/// What a judgement needs besides states and text.
#[derive(Clone)]
pub(super) enum Wants {
    /// A contribution.
    Contribution(WantedContribution),
    /// The inputs of a part.
    Part(Box<PartInputs>),
    /// Nothing: the messages are enough, or the round is forgotten.
    Nothing,
}

impl Wants {
    /// What evidence with this claim needs.
    pub(super) fn of(ledger: &Ledger, evidence: &Evidence, claim: &Claim) -> Self {
        let found = match evidence {
            Evidence::Audit(_) | Evidence::Verdict(_) => {
                WantedContribution::of(ledger, claim.round, claim.subject).map(Self::Contribution)
            }
            Evidence::Aggregation(part) => {
                let result = part.result.verify(ledger.run()).ok();
                let inputs = result.and_then(|result| PartInputs::of(ledger, &result));
                inputs.map(|inputs| Self::Part(Box::new(inputs)))
            }
            // TOL-6: where leaves need not be equal, a total is compared by its integers.
            Evidence::Total(_) if !ledger.manifest().profile.leaves_stand_for_integers() => {
                WantedContribution::of(ledger, claim.round, claim.subject).map(Self::Contribution)
            }
            Evidence::Equivocation(_)
            | Evidence::Total(_)
            | Evidence::Results(_)
            | Evidence::Recomputation(_)
            | Evidence::Misconduct(_)
            | Evidence::Answer(_) => None,
        };
        found.unwrap_or(Self::Nothing)
    }
}

/// What examinations need, shared by the tasks that do them.
pub(super) struct Court {
    pub(super) manifest: Arc<Manifest>,
    pub(super) layout: Arc<Layout>,
    pub(super) home: Home,
    /// The ledger.
    pub(super) journal: Arc<Journal>,
    /// The contributions in this home.
    pub(super) shelf: Arc<Shelf>,
    /// Whether the aggregates of all rounds stay.
    pub(super) keep_aggregates: bool,
    pub(super) peers: Peers,
    pub(super) dataset: Arc<Dataset>,
    pub(super) replica: Arc<Mutex<Replica>>,
    /// What others may fetch of it.
    pub(super) offers: Arc<Offers>,
    /// Where members come from.
    pub(super) origins: Origins,
    pub(super) arithmetic: Arc<Mutex<Box<dyn Backend>>>,
    /// The second code path, which must agree before a ban for life.
    pub(super) second: Second,
    /// Contributions that are in memory at once.
    pub(super) hoard: Arc<Semaphore>,
    /// Contributions that are fetched as exhibits at once.
    pub(super) showing: Semaphore,
    /// Whether nobody waits for hearings any more.
    pub(super) stopped: watch::Receiver<bool>,
}

impl Court {
    /// Whether leaves have one result on every machine.
    pub(super) fn is_exact(&self) -> bool {
        self.manifest.profile.has_defined_bits()
    }

    /// States that a Rewind can go back to.
    pub(super) fn kept_states(&self) -> BTreeSet<Digest> {
        let replica = lock(&self.replica);
        replica.kept_states().collect()
    }

    /// The whole contribution, each block proved against the commitment: from the exhibits, or else from its holders.
    ///
    /// # Errors
    /// Why it is unavailable, in words.
    pub(super) async fn fetch(&self, wanted: &WantedContribution) -> Result<PackedContribution, String> {
        let CommittedContribution { round, member, .. } = wanted.name;
        // It was proved when it was kept, and its holders may have forgotten the round.
        if let Ok(kept) = self.home.load_exhibit(round, &member) {
            return Ok(PackedContribution::new(&self.layout, &kept));
        }
        let kept = self.home.load_contribution(round, &member).unwrap_or_default();
        let shelve = |part: Part, found: &[BlockData]| {
            if self.is_exact() {
                return Ok(());
            }
            // TOL-12: verifiers and jurors have it of the steward from now on.
            self.shelf.save(round, &member, part.0, found.iter()).map_err(|error| error.to_string())
        };
        let fetched = wanted.fetch(&self.peers, &self.layout, &kept, shelve).await;
        fetched.map_err(|unavailable| unavailable.why)
    }

    /// Fetches a contribution whose blocks stay here until their round is forgotten (TOL-12), and no longer: a verifier that
    /// claims to lack one must not fill the disk.
    ///
    /// # Errors
    /// Why it is unavailable, in words.
    pub(super) async fn obtain(&self, wanted: &WantedContribution) -> Result<(), String> {
        self.fetch(wanted).await.map(drop)
    }

    /// Fetches a contribution and keeps it for replay.
    ///
    /// # Errors
    /// Why not, in words.
    pub(super) async fn exhibit(&self, wanted: &WantedContribution) -> Result<(), String> {
        let q = self.fetch(wanted).await?;
        let q = q.whole(&self.layout).ok_or("it is of another model")?;
        let kept = self.home.save_exhibit(wanted.name.round, &wanted.name.member, &q);
        kept.map_err(|error| error.to_string())
    }

    /// Keeps the values of these parts of a round as they were applied.
    ///
    /// # Errors
    /// What the disk reports.
    pub(super) fn exhibit_round(&self, round: Round, parts: &[(Part, Vec<Block>)]) -> Result<(), StoreError> {
        // A shard at a time: parts come in order of their blocks.
        let mut update = Update::default();
        for (part, blocks) in parts {
            // It may be owed twice, for two convicts, and the aggregate be gone by then.
            if part_exhibit(self.home.path(), &self.layout, round, *part)?.is_some() {
                continue;
            }
            let shard = blocks.first().and_then(|block| self.layout.shard_of(*block));
            if let Some(shard) = shard.filter(|shard| update.shards != [*shard]) {
                update = self.home.load_update_of(&self.layout, round, shard)?;
            }
            let values = blocks.iter().filter_map(|block| update.block(&self.layout, *block));
            let values: Vec<f32> = values.flat_map(Cow::into_owned).collect();
            self.home.save_part_exhibit(round, *part, &values)?;
        }
        Ok(())
    }

    /// Fetches what an examination wants, each block proved against its commitment.
    ///
    /// # Errors
    /// Why it is unavailable, in words.
    pub(super) async fn bring(&self, wants: &Wants) -> Result<Brought, String> {
        let mut brought = Brought::default();
        match wants {
            Wants::Nothing => {}
            Wants::Contribution(wanted) => {
                let q = self.fetch(wanted).await?;
                brought.contributions.insert((wanted.name.round, wanted.name.member), Arc::new(q));
            }
            Wants::Part(inputs) => {
                // The aggregator is the suspect: authors are asked first.
                let sources = InputSources { steward: None, suspected: true };
                let kept = self.kept(inputs);
                let found = inputs.fetch(&self.peers, &self.layout, &inputs.blocks, sources, kept);
                let found = found.await?;
                self.shelve(inputs, &found);
                brought.blocks = found;
                brought.round = Some(inputs.view.clone());
            }
        }
        Ok(brought)
    }

    /// Keeps fetched inputs until the round is forgotten: a convict may stop serving its own, and a replay of this case
    /// needs them (AUDIT-24).
    fn shelve(&self, inputs: &PartInputs, found: &InputBlocks) {
        let mut senders: BTreeMap<MemberId, Vec<&BlockData>> = BTreeMap::new();
        for ((member, _), data) in found {
            senders.entry(*member).or_default().push(data);
        }
        // Whole parts only: a label of the shelf stands for all blocks of its part.
        for (member, blocks) in senders.iter().filter(|(_, blocks)| blocks.len() == inputs.blocks.len()) {
            if let Err(error) =
                self.shelf.save(inputs.view.round(), member, inputs.part.0, blocks.iter().copied())
            {
                tracing::warn!("inputs of part {} could not be kept: {error}", inputs.part);
            }
        }
    }

    /// The inputs of a part that this steward keeps: those of aggregators themselves.
    fn kept(&self, inputs: &PartInputs) -> InputBlocks {
        let mut kept = InputBlocks::new();
        for (member, root) in inputs.senders() {
            let held = self.home.load_contribution(inputs.view.round(), &member).unwrap_or_default();
            for data in held.into_iter().filter(|data| inputs.blocks.contains(&data.block)) {
                if open_block(&self.layout, &root, &data).is_ok() {
                    kept.insert((member, data.block), data);
                }
            }
        }
        kept
    }

    /// The state that evidence is about, if it is still kept.
    pub(super) fn states(&self, evidence: &Evidence) -> Vec<KeptState> {
        let replica = lock(&self.replica);
        let found = evidence.state(self.manifest.run()).and_then(|(_, root)| replica.state_at(&root));
        found.into_iter().collect()
    }

    /// Keeps what a ban rests on.
    ///
    /// # Errors
    /// What the disk reports.
    pub(super) fn keep_evidence(
        &self,
        evidence: &Evidence,
        exhibit: Option<KeptContribution>,
    ) -> Result<(), StoreError> {
        if let Some(KeptContribution { round, member, q }) = exhibit {
            self.home.save_exhibit(round, &member, &q)?;
        }
        self.home.save_evidence(evidence)?;
        // What messages alone decide had no hearing that has made one.
        if !bundle_path(self.home.path(), &evidence.digest()).is_file() {
            self.bundle(evidence, Asked::default());
        }
        Ok(())
    }

    /// AUDIT-30: keeps evidence with what it was judged by as one file, for whoever has nothing else.
    pub(super) fn bundle(&self, evidence: &Evidence, asked: Asked) {
        let states = self.states(evidence);
        let (manifest, dataset, journal) = (&*self.manifest, &*self.dataset, &*self.journal);
        let roots = states.first().and_then(KeptState::shard_roots);
        let contents = seal(evidence, asked, &Sources { manifest, dataset, journal, roots });
        if let Err(error) = self.home.save_bundle(&evidence.digest(), &contents) {
            tracing::warn!("a ban can be examined, but not downloaded as one file: {error}");
        }
    }
}
