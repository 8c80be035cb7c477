//! Delivering parts and reducing them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use muster_core::codec::List;
use muster_core::contribution::open_block;
use muster_core::ids::{Block, MemberId, Part, Round, Slot};
use muster_core::ledger::{Ledger, RoundView};
use muster_core::messages::round::{Bitmap, Delivered, PartResult, Receipt};
use muster_core::messages::wire::{Notice, PutBlocks, Request, Response};
use muster_core::reduction::{Reduced, reduce};
use muster_core::sign::Signed;
use muster_replica::{Contact, Peers, Phase, contact, groups};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::conduct::{Conduct, Inputs};
use super::own::Contribution;
use super::server::Shared;
use super::tell::tell;

/// Turns true once the steward has taken the round's echo, or refused it for good; closed where none is said.
#[derive(Clone)]
pub(super) struct Echoed(pub(super) watch::Receiver<bool>);

/// What is to be delivered.
pub(super) struct Delivering {
    pub(super) round: Round,
    pub(super) attempt: u8,
    /// Parts, and a keeper of each.
    pub(super) parts: Vec<(Part, MemberId)>,
    pub(super) echoed: Echoed,
}

/// Brings each part to its keepers, all at once, what one of them did not take to the steward, and tells that which
/// receipts came back: in time, whatever keepers do (ROUND-3).
pub(super) async fn deliver(
    shared: Arc<Shared>,
    (peers, steward): (Peers, Contact),
    ledger: Arc<Ledger>,
    contribution: Arc<Contribution>,
    Delivering { round, attempt, parts, echoed }: Delivering,
) {
    let begun = Instant::now();
    let mut keepers: BTreeMap<Part, Vec<MemberId>> = BTreeMap::new();
    parts.into_iter().for_each(|(part, keeper)| keepers.entry(part).or_default().push(keeper));
    let (me, mut tasks) = (shared.identity.id(), JoinSet::new());
    for (part, keepers) in keepers {
        let (peers, steward, ledger, contribution) =
            (peers.clone(), steward.clone(), ledger.clone(), contribution.clone());
        tasks.spawn(async move {
            let name = (round, attempt, part);
            let delivery = Delivery { me, way: (peers, steward), ledger, contribution, name };
            delivery.everywhere(keepers).await
        });
    }
    let mut receipts: Vec<Signed<Receipt>> = Vec::new();
    while let Some(done) = tasks.join_next().await {
        receipts.extend(done.ok().into_iter().flatten());
    }
    shared.stopwatch.add(Phase::Exchange, begun.elapsed());
    let Ok(receipts) = List::new(receipts) else { return };
    let delivered = Delivered { round, attempt, receipts };
    say_delivered(shared, (peers, steward), ledger, echoed, delivered).await;
}

/// Tells the steward what was delivered, after the echo: nothing of a member that has not echoed counts, so that the
/// steward takes no delivery before (ROUND-5).
pub(super) async fn say_delivered(
    shared: Arc<Shared>,
    way: (Peers, Contact),
    ledger: Arc<Ledger>,
    Echoed(mut echoed): Echoed,
    delivered: Delivered,
) {
    // Where nothing is echoed the steward says what is missing.
    let _ = echoed.wait_for(|told| *told).await;
    let delivered = shared.identity.sign(ledger.run(), &delivered);
    let answer = tell(&way, &Request::Delivered(delivered.clone())).await;
    shared.pledges.delivered(&ledger, &delivered, answer);
}

/// One part on its way to those who take it in.
struct Delivery {
    me: MemberId,
    way: (Peers, Contact),
    ledger: Arc<Ledger>,
    contribution: Arc<Contribution>,
    name: (Round, u8, Part),
}

impl Delivery {
    /// Brings the part to its keepers, and to the steward where one of them does not take it in half of the time that
    /// there is (ROUND-24). Gives the receipts if with them the part counts.
    async fn everywhere(self, keepers: Vec<MemberId>) -> Vec<Signed<Receipt>> {
        let (round, _, part) = self.name;
        let patience = Duration::from_millis(u64::from(self.ledger.manifest().timers.part));
        let delivery = Arc::new(self);
        let mut tasks = JoinSet::new();
        for keeper in keepers {
            let delivery = delivery.clone();
            tasks.spawn(async move { (keeper, delivery.within(keeper, patience / 2).await) });
        }
        let mut receipts: BTreeMap<MemberId, Signed<Receipt>> = BTreeMap::new();
        while let Some(done) = tasks.join_next().await {
            let Ok((keeper, given)) = done else { continue };
            receipts.extend(given.map(|receipt| (keeper, receipt)));
        }
        let (ledger, me) = (&delivery.ledger, delivery.me);
        let Some(view) = ledger.round(round) else { return Vec::new() };
        let kept = |receipts: &BTreeMap<MemberId, _>| {
            view.is_kept(part, &me, &receipts.keys().copied().collect::<Vec<_>>())
        };
        if !kept(&receipts) {
            let steward = delivery.way.1.member;
            let given = delivery.within(steward, patience / 4).await;
            receipts.extend(given.map(|receipt| (steward, receipt)));
        }
        if kept(&receipts) { receipts.into_values().collect() } else { Vec::new() }
    }

    async fn within(&self, keeper: MemberId, patience: Duration) -> Option<Signed<Receipt>> {
        let (round, _, part) = self.name;
        let given = tokio::time::timeout(patience, self.to(keeper)).await;
        let given = given.unwrap_or_else(|_| Err("it took too long".into()));
        let tell = |why: &String| {
            tracing::warn!("part {part} of round {round} was not delivered to {keeper}: {why}");
        };
        given.inspect_err(tell).ok()
    }

    async fn to(&self, keeper: MemberId) -> Result<Signed<Receipt>, String> {
        let ((round, attempt, part), (peers, steward)) = (self.name, &self.way);
        let (ledger, layout) = (&self.ledger, self.ledger.layout());
        let view = ledger.round(round).ok_or("the round is over")?;
        let blocks = &view.parts().get(part.index()).ok_or("no such part")?.blocks;
        let to = if keeper == steward.member { Some(steward.clone()) } else { contact(ledger, &keeper) };
        let to = to.ok_or("its keeper is no member")?;
        for group in groups(layout, blocks) {
            let data: Option<Vec<_>> =
                group.iter().map(|block| self.contribution.block(layout, *block)).collect();
            let blocks = List::new(data.ok_or("a block is not in the layout")?)
                .map_err(|misuse| misuse.to_string())?;
            let put = PutBlocks { round, attempt, blocks };
            match peers.ask(&to, &Request::PutBlocks(put)).await.map_err(|error| error.to_string())? {
                Response::Done => {}
                Response::Receipt(receipt) => return self.checked(receipt, &keeper),
                _ => return Err("its keeper answered something else".into()),
            }
        }
        Err("its keeper gave no receipt".into())
    }

    /// ROUND-3: a false receipt would have the whole delivery refused.
    fn checked(&self, receipt: Signed<Receipt>, keeper: &MemberId) -> Result<Signed<Receipt>, String> {
        let (round, attempt, part) = self.name;
        let (sender, root) = (self.me, self.contribution.commit.root);
        let due = Receipt { round, part, attempt, sender, root };
        let said = receipt.verify(self.ledger.run()).map_err(|reject| reject.to_string())?;
        if said.author() != *keeper || *said != due {
            return Err("its keeper gave another receipt".into());
        }
        Ok(receipt)
    }
}

/// Reduces a part over its sealed inputs, serves the values and announces their digest.
pub(super) async fn reduce_part(
    shared: Arc<Shared>,
    (peers, steward): (Peers, Contact),
    ledger: Arc<Ledger>,
    conduct: Arc<dyn Conduct>,
    (round, part, attempt, inputs): (Round, Part, u8, Bitmap),
) {
    let run = ledger.run();
    let fetched = fetch_lacking(&shared, &ledger, (&peers, &steward), (round, part, &inputs)).await;
    let worker = shared.clone();
    let reduced = tokio::task::spawn_blocking(move || {
        let view = ledger.round(round)?;
        let (freeze, blocks) = (view.freeze_digest()?, &view.parts().get(part.index())?.blocks);
        let rule = |inputs: &Bitmap| reduce_here(&worker, &ledger, view, blocks, (inputs, &fetched));
        let reduced = conduct.reduce(&Inputs { round, sealed: inputs, rule: &rule }).into_iter();
        let results = reduced.map(|reduced| {
            worker.results.put_own(round, blocks, &reduced.digest, reduced.values);
            PartResult { round, part, attempt, freeze, inputs, digest: reduced.digest }
        });
        Some(results.collect::<Vec<_>>())
    });
    let results = reduced.await.ok().flatten().unwrap_or_default();
    if results.is_empty() {
        tracing::warn!("part {part} of round {round} cannot be reduced: an input is not here any more");
    }
    let way = (peers, steward);
    for result in results {
        let result = shared.identity.sign(run, &result);
        tell(&way, &Request::Notice(Notice::Result(result))).await;
    }
}

/// Integers that an aggregator did not hold, by slot and block.
type Fetched = BTreeMap<(Slot, Block), Vec<i32>>;

/// ROUND-6: fetches the inputs that senders have not brought here: the steward has them, if not their authors.
async fn fetch_lacking(
    shared: &Shared,
    ledger: &Ledger,
    (peers, steward): (&Peers, &Contact),
    (round, part, inputs): (Round, Part, &Bitmap),
) -> Fetched {
    let mut fetched = Fetched::new();
    let Some(view) = ledger.round(round) else { return fetched };
    let Some(plan) = view.parts().get(part.index()) else { return fetched };
    for slot in inputs.slots() {
        let Some(commitment) = view.commitment(slot) else { continue };
        let (author, root) = (commitment.author, commitment.commit.root);
        let held = |block: &&Block| shared.intake.block(round, &author, &root, **block).is_some();
        let lacking: Vec<Block> = plan.blocks.iter().filter(|block| !held(block)).copied().collect();
        if lacking.is_empty() || author == shared.identity.id() {
            continue;
        }
        let holders: Vec<Contact> =
            std::iter::once(steward.clone()).chain(contact(ledger, &author)).collect();
        match peers.contribution(&holders, ledger.layout(), (round, author, root), &lacking).await {
            Ok(found) => {
                fetched.extend(found.into_iter().map(|(data, integers)| ((slot, data.block), integers)));
            }
            Err(error) => {
                tracing::warn!("part {part} of round {round} lacks the inputs of {author}: {error}")
            }
        }
    }
    fetched
}

fn reduce_here(
    shared: &Shared,
    ledger: &Ledger,
    view: &RoundView,
    blocks: &[Block],
    (inputs, fetched): (&Bitmap, &Fetched),
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
            let entry = shared.intake.block(round, &commitment.author, &commitment.commit.root, *block)?;
            held.insert((slot, *block), entry);
        }
    }
    let commitment = |slot| view.commitment(slot);
    let mine = |block| own.as_ref()?.q.get(layout.block(block)?.range.clone());
    let others = |slot, block| fetched.get(&(slot, block)).map(Vec::as_slice).or_else(|| mine(block));
    let input = |slot, block| {
        held.get(&(slot, block)).map(|entry| entry.1.as_slice()).or_else(|| others(slot, block))
    };
    let work = || reduce(ledger.manifest(), layout, blocks, inputs, commitment, input);
    shared.stopwatch.time(Phase::Aggregation, work)
}

/// Puts a contribution together from its blocks on disk, after a restart.
pub(super) fn reassemble(
    ledger: &Ledger,
    root: &muster_core::ids::Digest,
    kept: &[muster_core::messages::wire::BlockData],
) -> Option<Vec<i32>> {
    let layout = ledger.layout();
    let mut q = vec![0; layout.parameters()];
    let mut seen = std::collections::BTreeSet::new();
    for data in kept {
        let integers = open_block(layout, root, data).ok()?;
        q.get_mut(layout.block(data.block)?.range.clone())?.copy_from_slice(&integers);
        seen.insert(data.block);
    }
    (0..layout.blocks().len() as u32).all(|block| seen.contains(&Block(block))).then_some(q)
}
