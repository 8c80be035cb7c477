//! What a member serves to others: blocks in, results and contributions out.

use std::sync::Arc;
use std::time::Duration;

use muster_core::codec::{List, decode, encode};
use muster_core::ids::{MemberId, Round};
use muster_core::ledger::{Ledger, RoundView};
use muster_core::messages::wire::{BULK_BYTES, BlockData, InputQuery, PutBlocks, Request, Response};
use muster_core::sign::Identity;
use muster_net::serve::{Handler, Refuse};
use muster_replica::{Results, Stopwatch};
use tokio::sync::watch;

use super::conduct::Conduct;
use super::own::Own;
use super::pledges::Pledges;
use crate::intake::Intake;

/// How long a request may wait for this member to see what the asker has seen.
const PATIENCE: Duration = Duration::from_secs(10);

/// Shared by the server and the member's own tasks.
pub(super) struct Shared {
    pub(super) identity: Arc<Identity>,
    pub(super) ledger: watch::Receiver<Arc<Ledger>>,
    pub(super) conduct: Arc<dyn Conduct>,
    pub(super) intake: Intake,
    pub(super) own: Own,
    pub(super) pledges: Pledges,
    pub(super) results: Results,
    pub(super) stopwatch: Arc<Stopwatch>,
}

impl Handler for Shared {
    async fn handle(&self, peer: MemberId, request: Vec<u8>) -> Result<Vec<u8>, Refuse> {
        let request: Request = decode(&request).map_err(|reject| Refuse(reject.to_string()))?;
        let response = match request {
            Request::PutBlocks(put) => self.put(peer, put).await?,
            Request::ResultBlocks(query) => {
                self.results.answer(&query).ok_or_else(|| absent("these results"))?
            }
            Request::InputBlocks(query) => self.inputs(&query)?,
            _ => return Err(Refuse("a node does not answer this: ask the steward".into())),
        };
        Ok(encode(&response))
    }
}

impl Shared {
    async fn put(&self, sender: MemberId, put: PutBlocks) -> Result<Response, Refuse> {
        let ledger = self.ledger_at(put.round, put.attempt).await?;
        let view = ledger.round(put.round).ok_or_else(|| absent("this round"))?;
        if !self.conduct.takes_in(put.round, &sender) {
            return Err(Refuse("not from you".into()));
        }
        let taken = self.intake.take(view, &self.identity.id(), &sender, put);
        let receipt = taken.map_err(|reject| Refuse(reject.to_string()))?;
        Ok(receipt
            .map_or(Response::Done, |receipt| Response::Receipt(self.identity.sign(ledger.run(), &receipt))))
    }

    /// Waits until the freeze, or the reassignment, of a round is known here too.
    async fn ledger_at(&self, round: Round, attempt: u8) -> Result<Arc<Ledger>, Refuse> {
        let known = |view: &RoundView| {
            view.freeze().is_some() && (attempt == 0 || view.reassigned().next().is_some())
        };
        let mut ledgers = self.ledger.clone();
        let found =
            ledgers.wait_for(|ledger| ledger.round(round).is_some_and(known) || ledger.next_round() > round);
        match tokio::time::timeout(PATIENCE, found).await {
            Ok(Ok(ledger)) => Ok(ledger.clone()),
            _ => Err(absent("this round")),
        }
    }

    fn inputs(&self, query: &InputQuery) -> Result<Response, Refuse> {
        let ledger = self.ledger.borrow().clone();
        let view = ledger.round(query.round).ok_or_else(|| absent("this round"))?;
        let slot = view.slot_of(&query.member).ok_or_else(|| absent("this member in the round"))?;
        let commitment = view.commitment(slot).ok_or_else(|| absent("a commitment of this member"))?;
        if query.member == self.identity.id() && !self.conduct.serves(query.round) {
            return Err(absent("this contribution"));
        }
        let mut bytes = 0;
        let mut blocks: Vec<BlockData> = Vec::new();
        for block in &query.blocks {
            let own = (query.member == self.identity.id()).then(|| self.own.round(query.round)).flatten();
            let data = match own {
                Some(contribution) => contribution.block(ledger.layout(), *block),
                None => self
                    .intake
                    .block(query.round, &query.member, &commitment.commit.root, *block)
                    .map(|entry| entry.0.clone()),
            };
            let data = data.ok_or_else(|| absent("this block"))?;
            bytes += data.chunks.iter().map(|chunk| chunk.len()).sum::<usize>();
            if bytes > BULK_BYTES {
                return Err(Refuse("more blocks than one answer holds".into()));
            }
            blocks.push(data);
        }
        List::new(blocks).map(Response::Blocks).map_err(|misuse| Refuse(misuse.to_string()))
    }
}

fn absent(what: &str) -> Refuse {
    Refuse(format!("{what} is not held here"))
}
