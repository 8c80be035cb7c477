//! Delivering parts and reducing them.

use std::sync::Arc;
use std::time::Instant;

use muster_core::codec::List;
use muster_core::contribution::open_block;
use muster_core::ids::{Block, MemberId, Part, Round};
use muster_core::ledger::{Ledger, RoundView};
use muster_core::messages::round::{Bitmap, Delivered, PartResult, Receipt};
use muster_core::messages::wire::{Notice, PutBlocks, Request, Response};
use muster_core::reduction::{Reduced, reduce};
use muster_core::sign::Signed;
use muster_replica::{Contact, Peers, Phase, contact, groups};
use tokio::task::JoinSet;

use super::conduct::Conduct;
use super::own::Contribution;
use super::server::Shared;
use super::tell::tell;

/// Brings each part to its keeper, all at once, and tells the steward which receipts came back.
pub(super) async fn deliver(
    shared: Arc<Shared>,
    (peers, steward): (Peers, Contact),
    ledger: Arc<Ledger>,
    contribution: Arc<Contribution>,
    (round, attempt, parts): (Round, u8, Vec<(Part, MemberId)>),
) {
    let begun = Instant::now();
    let mut tasks = JoinSet::new();
    for (part, keeper) in parts {
        let (peers, steward, ledger, contribution) =
            (peers.clone(), steward.clone(), ledger.clone(), contribution.clone());
        tasks.spawn(async move {
            let to = (round, attempt, part, keeper);
            let given = deliver_part((&peers, &steward), &ledger, &contribution, to).await;
            given
                .inspect_err(|why| {
                    tracing::warn!("part {part} of round {round} was not delivered to {keeper}: {why}")
                })
                .ok()
        });
    }
    let mut receipts: Vec<Signed<Receipt>> = Vec::new();
    while let Some(done) = tasks.join_next().await {
        receipts.extend(done.ok().flatten());
    }
    shared.stopwatch.add(Phase::Exchange, begun.elapsed());
    let Ok(receipts) = List::new(receipts) else { return };
    let delivered = shared.identity.sign(ledger.run(), &Delivered { round, attempt, receipts });
    let answer = tell(&(peers, steward), &Request::Delivered(delivered.clone())).await;
    shared.pledges.delivered(&ledger, &delivered, answer);
}

async fn deliver_part(
    (peers, steward): (&Peers, &Contact),
    ledger: &Ledger,
    contribution: &Contribution,
    (round, attempt, part, keeper): (Round, u8, Part, MemberId),
) -> Result<Signed<Receipt>, String> {
    let layout = ledger.layout();
    let view = ledger.round(round).ok_or("the round is over")?;
    let blocks = &view.parts().get(part.index()).ok_or("no such part")?.blocks;
    let to = if keeper == steward.member { Some(steward.clone()) } else { contact(ledger, &keeper) };
    let to = to.ok_or("its keeper is no member")?;
    for group in groups(layout, blocks) {
        let data: Option<Vec<_>> = group.iter().map(|block| contribution.block(layout, *block)).collect();
        let blocks =
            List::new(data.ok_or("a block is not in the layout")?).map_err(|misuse| misuse.to_string())?;
        let put = PutBlocks { round, attempt, blocks };
        match peers.ask(&to, &Request::PutBlocks(put)).await.map_err(|error| error.to_string())? {
            Response::Done => {}
            Response::Receipt(receipt) => return Ok(receipt),
            _ => return Err("its keeper answered something else".into()),
        }
    }
    Err("its keeper gave no receipt".into())
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
    let worker = shared.clone();
    let reduced = tokio::task::spawn_blocking(move || {
        let view = ledger.round(round)?;
        let (freeze, blocks) = (view.freeze_digest()?, &view.parts().get(part.index())?.blocks);
        let reduced = conduct.reduce(round, reduce_here(&worker, &ledger, view, blocks, &inputs)?);
        worker.results.put(round, blocks, &reduced.digest, reduced.values);
        Some(PartResult { round, part, attempt, freeze, inputs, digest: reduced.digest })
    });
    let Ok(Some(result)) = reduced.await else {
        tracing::warn!("part {part} of round {round} cannot be reduced: an input is not here any more");
        return;
    };
    let result = shared.identity.sign(run, &result);
    tell(&(peers, steward), &Request::Notice(Notice::Result(result))).await;
}

fn reduce_here(
    shared: &Shared,
    ledger: &Ledger,
    view: &RoundView,
    blocks: &[Block],
    inputs: &Bitmap,
) -> Option<Reduced> {
    let (round, layout) = (view.round(), ledger.layout());
    let own = shared.own.round(round);
    let mut held = std::collections::BTreeMap::new();
    for slot in inputs.slots() {
        let commitment = view.commitment(slot)?;
        if own.is_some() && commitment.author == shared.identity.id() {
            continue;
        }
        for block in blocks {
            let entry = shared.intake.block(round, &commitment.author, &commitment.commit.root, *block)?;
            held.insert((slot, *block), entry);
        }
    }
    let commitment = |slot| view.commitment(slot);
    let mine = |block| own.as_ref()?.q.get(layout.block(block)?.range.clone());
    let input =
        |slot, block| held.get(&(slot, block)).map(|entry| entry.1.as_slice()).or_else(|| mine(block));
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
