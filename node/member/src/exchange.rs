//! Bringing parts to their keepers, and reducing them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use muster_core::assign::PartPlan;
use muster_core::codec::List;
use muster_core::contribution::block_integers;
use muster_core::ids::{Block, Digest, Slot};
use muster_core::ledger::{Ledger, RoundView, Stage};
use muster_core::messages::round::{Bitmap, Receipt};
use muster_core::messages::wire::{BlockData, PutBlocks, Request, Response};
use muster_core::reduction::{Reduced, Reducer, SealedInputs};
use muster_core::sign::Signed;
use muster_replica::{CommittedContribution, Contact, PeerError, Phase, contact, groups};
use muster_roles::node::{Parcel, PartTask};

use super::conduct::{AggregatorView, NodeConduct};
use super::own::Contribution;
use super::server::NodeContext;
use super::tell::Uplink;

/// How long after a try an aggregator asks again for inputs that it lacks.
const AGAIN: Duration = Duration::from_secs(1);

/// Brings a part to its keeper, and returns the receipt that the keeper signs once it has the whole part.
pub(super) async fn bring(
    uplink: Uplink,
    ledger: Arc<Ledger>,
    contribution: Arc<Contribution>,
    parcel: &Parcel,
) -> Option<Signed<Receipt>> {
    let Parcel { round, part, keeper, within, .. } = parcel;
    let brought = blocks_to(&uplink, &ledger, &contribution, parcel);
    // ROUND-3: what was delivered is reported in time, whatever a keeper does.
    let begun = Instant::now();
    let given =
        tokio::time::timeout(uplink.keepers.within(*keeper, Duration::from_millis(*within)), brought).await;
    let given = given.unwrap_or_else(|_| Err("it took too long".into()));
    // The steward takes what others did not, after them.
    if *keeper != uplink.steward.member {
        uplink.keepers.brought(*round, *keeper, given.is_ok().then(|| begun.elapsed()));
    }
    let is_news = uplink.peers.fails(*keeper, given.is_err());
    match &given {
        Err(why) if is_news => tracing::warn!(
            "part {part} of round {round} was not delivered to {keeper}: {why}; that it takes parts again is told, further parts \
             that it does not take are not"
        ),
        Err(why) => tracing::debug!("part {part} of round {round} was not delivered to {keeper}: {why}"),
        Ok(_) if is_news => tracing::info!("{keeper} takes parts again"),
        Ok(_) => {}
    }
    given.ok()
}

async fn blocks_to(
    uplink: &Uplink,
    ledger: &Ledger,
    contribution: &Contribution,
    parcel: &Parcel,
) -> Result<Signed<Receipt>, String> {
    let Parcel { round, attempt, part, keeper, .. } = *parcel;
    let layout = ledger.layout();
    let view = ledger.round(round).ok_or("the round is over")?;
    let blocks = &view.parts().get(part.index()).ok_or("no such part")?.blocks;
    let Uplink { peers, steward, .. } = uplink;
    // The steward keeps parts, too (ROUND-15, ROUND-24), and is in no ledger as a member.
    let to = if keeper == steward.member { Some(steward.clone()) } else { contact(ledger, &keeper) };
    let to = to.ok_or("its keeper is not a member")?;
    if blocks.iter().any(|block| layout.block(*block).is_none()) {
        return Err("a block is not in the layout".into());
    }
    let groups = groups(layout, blocks);
    let put = |number: usize| {
        let blocks = groups.get(number)?.iter().map(|block| contribution.block(layout, *block));
        let blocks = List::new(blocks.collect::<Option<_>>()?).ok()?;
        Some(Request::PutBlocks(PutBlocks { round, attempt, blocks }))
    };
    let mut receipt = None;
    let mut take = |response| match response {
        Response::Done => Ok(true),
        Response::Receipt(given) => {
            receipt = Some(given);
            Ok(false)
        }
        _ => Err(PeerError::Unexpected),
    };
    peers.bring(&to, &put, &mut take).await.map_err(|error| error.to_string())?;
    receipt.ok_or_else(|| "its keeper gave no receipt".into())
}

/// Reduces a part over its sealed inputs, and serves the values. Returns the digests of all results that this member
/// signs, which are none if an input is unavailable.
pub(super) async fn reduce_part(
    shared: Arc<NodeContext>,
    uplink: Uplink,
    ledger: Arc<Ledger>,
    conduct: Arc<dyn NodeConduct>,
    task: PartTask,
) -> Vec<Digest> {
    let PartTask { round, part, inputs, .. } = task;
    let fetched = fetch_lacking(&shared, &ledger, &uplink, &task).await;
    // Beside the runtime: a rule goes through all inputs of the part several times.
    let reduced = tokio::task::spawn_blocking(move || {
        let view = ledger.round(round)?;
        let PartPlan { shard, blocks, .. } = view.parts().get(part.index())?;
        let rule = |inputs: &Bitmap| reduce_here(&shared, &ledger, view, blocks, inputs, &fetched);
        let reduced =
            conduct.reduce(&AggregatorView { round, shard: *shard, sealed: inputs, rule: &rule }).into_iter();
        let digests = reduced.map(|reduced| {
            // Before the digest is signed: whoever reads it asks for the values at once.
            shared.results.put_own(round, blocks, &reduced.digest, reduced.values);
            reduced.digest
        });
        Some(digests.collect())
    });
    reduced.await.ok().flatten().unwrap_or_default()
}

/// Blocks that an aggregator did not hold, by slot.
type Fetched = BTreeMap<(Slot, Block), BlockData>;

/// ROUND-6: fetches the inputs that senders have not brought here: the steward has them, if not their authors.
async fn fetch_lacking(shared: &NodeContext, ledger: &Ledger, uplink: &Uplink, task: &PartTask) -> Fetched {
    let PartTask { round, part, inputs, .. } = *task;
    let mut fetched = Fetched::new();
    let Some(view) = ledger.round(round) else { return fetched };
    let Some(plan) = view.parts().get(part.index()) else { return fetched };
    for slot in inputs.slots() {
        let Some(commitment) = view.commitment(slot) else { continue };
        let (author, root) = (commitment.author, commitment.commit.root);
        let held = |block: &&Block| shared.intake.block(round, &author, &root, **block).is_some();
        let lacking: Vec<Block> = plan.blocks.iter().filter(|block| !held(block)).copied().collect();
        // Its own contribution is in memory as a whole.
        if lacking.is_empty() || author == shared.identity.id() {
            continue;
        }
        let holders: Vec<Contact> =
            std::iter::once(uplink.steward.clone()).chain(contact(ledger, &author)).collect();
        let name = CommittedContribution { round, member: author, root };
        let found = loop {
            match uplink.peers.contribution(&holders, ledger.layout(), &name, &lacking).await {
                Ok(found) => break found,
                // ROUND-36: the round may wait because the steward was slow, and one try is not all that there is time for.
                Err(error) if is_awaited(shared, task) => {
                    tracing::debug!(
                        "part {part} of round {round} still lacks the inputs of {author}: {error}"
                    );
                    tokio::time::sleep(AGAIN).await;
                }
                Err(error) => {
                    // `reduce_here` finds that it is missing, and nothing is said of the part (ROUND-6).
                    tracing::warn!("part {part} of round {round} lacks the inputs of {author}: {error}");
                    break Vec::new();
                }
            }
        };
        fetched.extend(found.into_iter().map(|data| ((slot, data.block), data)));
    }
    fetched
}

/// Whether the round still waits for this member's word about a part.
fn is_awaited(shared: &NodeContext, task: &PartTask) -> bool {
    let ledger = shared.ledger.borrow();
    let (reducing, me) = (ledger.stage() == Stage::Reducing, shared.identity.id());
    ledger.current().is_some_and(|view| {
        let same = view.round() == task.round && view.attempt(task.part) == Some(task.attempt);
        reducing && same && view.aggregating(task.part).any(|member| member == me)
    })
}

fn reduce_here(
    shared: &NodeContext,
    ledger: &Ledger,
    view: &RoundView,
    blocks: &[Block],
    inputs: &Bitmap,
    fetched: &Fetched,
) -> Option<Reduced> {
    let (round, layout) = (view.round(), ledger.layout());
    let own = shared.own.round(round);
    let mut held = BTreeMap::new();
    for slot in inputs.slots() {
        let commitment = view.commitment(slot)?;
        if own.is_some() && commitment.author == shared.identity.id() {
            continue;
        }
        for block in blocks.iter().filter(|block| !fetched.contains_key(&(slot, **block))) {
            // ROUND-6: without one of the sealed inputs there is no result.
            let entry = shared.intake.block(round, &commitment.author, &commitment.commit.root, *block)?;
            held.insert((slot, *block), entry);
        }
    }
    let commitment = |slot| view.commitment(slot);
    let input = |slot, block| {
        let others = held.get(&(slot, block)).map(Arc::as_ref).or_else(|| fetched.get(&(slot, block)));
        match others {
            Some(data) => block_integers(layout, data).ok(),
            None => own.as_ref()?.sum.integers(layout, block),
        }
    };
    let sealed = SealedInputs { freeze: view.freeze_digest()?, slots: inputs };
    let reducer = Reducer::new(ledger.manifest(), layout, &sealed, commitment)?;
    let one = |block| {
        let early = shared.early.take(view, block, inputs);
        early.or_else(|| reducer.block(block, |slot| input(slot, block)))
    };
    shared.stopwatch.time(Phase::Aggregation, || reducer.part(blocks, one))
}
