//! What is fetched of members: contributions, and what drawn blocks are reduced from.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use muster_core::audit::Judgement;
use muster_core::audit::roster::fetch_patience;
use muster_core::contribution::PackedContribution;
use muster_core::ids::{Block, Part};
use muster_core::lock::lock;
use muster_core::messages::evidence::Reduction;
use muster_core::messages::wire::BlockData;
use muster_replica::exit::Failure;
use muster_replica::{
    CommittedContribution, Contact, HeldBlocks, InputSources, PartInputs, Unavailable, WantedContribution,
    WantedValues, patience,
};
use muster_roles::verifier::audits::Subject;
use muster_roles::verifier::parts::{DrawnBlocks, Seen};
use tokio::time::timeout;
use tracing::info;

use super::tools::{Contacts, Tools};
use crate::parts;

/// Holders of a part that may each let this verifier wait before it does without: other drawn blocks come first.
const HOLDERS: u32 = 2;

/// A contribution to be fetched, and where it can be had.
pub(super) struct FetchPlan {
    pub(super) subject: Arc<Subject>,
    wanted: WantedContribution,
}

impl FetchPlan {
    pub(super) fn of(subject: Arc<Subject>, contacts: &Contacts, steward: &Contact) -> Self {
        let Subject { commit, author, sources, .. } = &*subject;
        let parts = sources.iter().map(|source| {
            let mut holders = contacts.all(&source.holders);
            // The steward keeps what an aggregator would otherwise keep of itself alone.
            holders.push(steward.clone());
            HeldBlocks { part: source.part, blocks: source.blocks.clone(), holders }
        });
        let name = CommittedContribution { round: commit.round, member: *author, root: commit.root };
        let wanted = WantedContribution { name, parts: parts.collect() };
        Self { subject, wanted }
    }
}

/// A drawn part to be looked at, and where its values and inputs can be had.
pub(super) struct Inspected {
    pub(super) drawn: Box<DrawnBlocks>,
    holders: Vec<Contact>,
    inputs: Option<PartInputs>,
}

impl Inspected {
    pub(super) fn of(drawn: Box<DrawnBlocks>, contacts: &Contacts) -> Self {
        let holders = contacts.all(&drawn.holders);
        let inputs = PartInputs::held_by(&drawn.view, &drawn.result, |member| contacts.get(member));
        Self { drawn, holders, inputs }
    }
}

impl Tools {
    /// The committed integers, or the parts that nobody shows. In `exact` nobody waits for them any longer than DUTY-4 leaves
    /// time for: the leaves, all recomputed, stand for them.
    pub(super) async fn fetch_in_time(&self, plan: &FetchPlan) -> Result<PackedContribution, Vec<Part>> {
        let came = Mutex::new(BTreeSet::new());
        let fetch = self.fetch(&plan.wanted, &came);
        let fetched = if self.session.manifest.profile.leaves_stand_for_integers() {
            timeout(Duration::from_millis(fetch_patience(&self.layout)), fetch).await
        } else {
            Ok(fetch.await)
        };
        match fetched {
            Ok(Ok(q)) => Ok(q),
            Ok(Err(Unavailable { part: Some(part), .. })) => Err(vec![part]),
            // Nobody in particular is late: all that has not come is.
            Ok(Err(_)) | Err(_) => {
                let came = lock(&came);
                let parts = plan.wanted.parts.iter().map(|held| held.part);
                Err(parts.filter(|part| !came.contains(part)).collect())
            }
        }
    }

    /// The committed integers, every chunk proved. `came` has the parts that came.
    async fn fetch(
        &self,
        wanted: &WantedContribution,
        came: &Mutex<BTreeSet<Part>>,
    ) -> Result<PackedContribution, Unavailable> {
        let took = |part, found: &[BlockData]| {
            lock(&self.spent).fetched(found.iter());
            lock(came).insert(part);
            Ok(())
        };
        let fetched = wanted.fetch(&self.session.peers, &self.layout, &[], took).await;
        fetched.inspect_err(|Unavailable { why, .. }| {
            let CommittedContribution { round, member, .. } = wanted.name;
            info!(
                "round {round}: the contribution of {member} is unavailable ({why}); its leaves are recomputed"
            );
        })
    }

    /// The values that were applied, from what this replica fetched, else from the aggregator or the steward.
    async fn values(&self, part: &Inspected) -> Result<(), String> {
        let drawn = &part.drawn;
        let mut holders = part.holders.clone();
        holders.push(self.session.target.steward.clone());
        let (result, blocks) = (drawn.result.clone(), drawn.part.clone());
        let wanted = WantedValues { result, blocks, holders };
        let fetched = self.results.fetch(&self.session.peers, &wanted).await;
        fetched.map_err(|error| error.to_string())
    }

    /// Looks at drawn blocks.
    pub(super) async fn look(&self, part: &Inspected) -> Seen {
        let drawn = &part.drawn;
        let limit = |blocks: &[Block]| HOLDERS * patience(&self.layout, blocks);
        let late = |_| Err("the holders of the values take too long".to_owned());
        let values = timeout(limit(&drawn.part), self.values(part)).await;
        if let Err(why) = values.unwrap_or_else(late) {
            return Seen::Missing(why);
        }
        let Some(inputs) = &part.inputs else { return Seen::Missing("the round has no such part".into()) };
        let sources = InputSources { steward: Some(&self.session.target.steward), suspected: false };
        let inputs = inputs.fetch(&self.session.peers, &self.layout, &drawn.blocks, sources, BTreeMap::new());
        let inputs = timeout(limit(&drawn.blocks), inputs).await;
        match inputs.unwrap_or_else(|_| Err("the holders of the inputs take too long".to_owned())) {
            Ok(inputs) => {
                let begun = Instant::now();
                let seen = parts::look(drawn, &self.session.manifest, &self.layout, &self.results, &inputs);
                lock(&self.spent).looked(drawn.blocks.len(), inputs.values(), begun.elapsed());
                seen
            }
            Err(why) => Seen::Missing(why),
        }
    }

    /// Reduces the whole part again; or says why its inputs are unavailable.
    ///
    /// # Errors
    /// [`Failure`] when this machine cannot.
    pub(super) async fn doubt(
        &self,
        part: &Inspected,
        evidence: Reduction,
    ) -> Result<Result<Judgement, String>, Failure> {
        let (drawn, steward) = (&part.drawn, &self.session.target.steward);
        let Some(inputs) = &part.inputs else { return Ok(Err("the round has no such part".to_owned())) };
        // Other drawn blocks wait for it.
        let limit = HOLDERS * patience(&self.layout, &drawn.part);
        let sources = InputSources { steward: Some(steward), suspected: true };
        let inputs = inputs.fetch(&self.session.peers, &self.layout, &drawn.part, sources, BTreeMap::new());
        let late = |_| Err("the holders of its inputs take too long".to_owned());
        let inputs = match timeout(limit, inputs).await.unwrap_or_else(late) {
            Ok(inputs) => inputs,
            Err(why) => return Ok(Err(why)),
        };
        let (view, manifest, dataset) =
            (drawn.view.clone(), self.session.manifest.clone(), self.session.dataset.clone());
        let judged = tokio::task::spawn_blocking(move || {
            parts::second_opinion(view, &manifest, dataset, &evidence, inputs)
        });
        let judged = judged.await;
        Ok(Ok(judged.map_err(|error| Failure::environment(format!("reducing a part failed: {error}")))?))
    }
}
