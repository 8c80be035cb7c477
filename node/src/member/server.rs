//! A member's server: it takes in blocks, and gives out results and contributions.

use std::sync::Arc;
use std::time::Duration;

use muster_core::codec::{decode, encode};
use muster_core::ids::{MemberId, Round};
use muster_core::ledger::{Ledger, RoundView};
use muster_core::messages::wire::{InputQuery, PutBlocks, Request, Response};
use muster_core::sign::Identity;
use muster_net::serve::{Handler, Unanswered};
use muster_replica::{Results, Stopwatch};
use tokio::sync::watch;

use super::calls::Calls;
use super::conduct::{Delay, NodeConduct};
use super::own::Own;
use super::pieces::Pieces;
use crate::intake::{Intake, gathered};

/// How long a request may wait for this member to see what the asker has seen.
const PATIENCE: Duration = Duration::from_secs(10);

/// Shared by the server and the member's own tasks.
pub(super) struct NodeContext {
    pub(super) identity: Arc<Identity>,
    pub(super) ledger: watch::Receiver<Arc<Ledger>>,
    pub(super) conduct: Arc<dyn NodeConduct>,
    pub(super) intake: Arc<Intake>,
    pub(super) own: Own,
    pub(super) results: Results,
    pub(super) stopwatch: Arc<Stopwatch>,
    pub(super) calls: Calls,
    pub(super) pieces: Pieces,
}

impl Handler for NodeContext {
    async fn handle(&self, peer: MemberId, request: Vec<u8>) -> Result<Vec<u8>, Unanswered> {
        let request: Request = decode(&request)?;
        let response = match request {
            Request::PutBlocks(put) => self.put(peer, put).await?,
            Request::ResultBlocks(query) => {
                self.results.answer(&query).ok_or_else(|| absent("these results"))?
            }
            Request::InputBlocks(query) => self.inputs(peer, query).await?,
            // Whoever asks: newcomers are no members yet, and STATE-12 bounds what they get.
            Request::State(query) => {
                let ledger = self.ledger.borrow().clone();
                self.pieces.answer(peer, &ledger, query).await?
            }
            // Whoever asks: the bounds of CALL-8 hold for strangers, too.
            Request::Ask(ask) => {
                let ledger = self.ledger.borrow().clone();
                self.calls.answer(peer, &ledger, &ask).await?
            }
            _ => return Err(Unanswered::Refused("a node does not answer this: ask the steward".into())),
        };
        Ok(encode(&response))
    }
}

impl NodeContext {
    async fn put(&self, sender: MemberId, put: PutBlocks) -> Result<Response, Unanswered> {
        let ledger = self.ledger_at(put.round, put.attempt).await?;
        let view = ledger.round(put.round).ok_or_else(|| absent("this round"))?;
        if !self.conduct.takes_in(put.round, &sender) {
            return Err(Unanswered::Refused("not from you".into()));
        }
        let taken = self.intake.take(view, &self.identity.id(), &sender, put);
        let receipt = taken?;
        Ok(receipt
            .map_or(Response::Done, |receipt| Response::Receipt(self.identity.sign(ledger.run(), &receipt))))
    }

    /// The ledger, once it has the freeze of a round, or its reassignment for attempt 1.
    async fn ledger_at(&self, round: Round, attempt: u8) -> Result<Arc<Ledger>, Unanswered> {
        let known = |view: &RoundView| {
            // Members learn of a record one after the other: a sender may be ahead of this keeper.
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

    /// Blocks of a contribution, for members and the steward, who reduce, audit or judge. Others are refused: keys cost
    /// nothing, and each request reads the disk.
    async fn inputs(&self, peer: MemberId, query: InputQuery) -> Result<Response, Unanswered> {
        let ledger = self.ledger.borrow().clone();
        if ledger.member(&peer).is_none() && peer != ledger.manifest().steward {
            return Err(Unanswered::Refused("blocks are for members".into()));
        }
        let view = ledger.round(query.round).ok_or_else(|| absent("this round"))?;
        let slot = view.slot_of(&query.member).ok_or_else(|| absent("this member in the round"))?;
        let commitment = view.commitment(slot).ok_or_else(|| absent("a commitment of this member"))?;
        let own = query.member == self.identity.id();
        if own && !self.conduct.serves(query.round, peer == ledger.manifest().steward) {
            return Err(absent("this contribution"));
        }
        if !own && !self.conduct.shows(query.round) {
            return Err(absent("this contribution"));
        }
        // Nothing for an honest member: attacks of the rehearsal stall here.
        let pause = self.conduct.lingers(Delay::Blocks, ledger.manifest());
        if own && !pause.is_zero() {
            tokio::time::sleep(pause).await;
        }
        let answer = match self.own.round(query.round).filter(|_| own) {
            Some(contribution) => gathered(&query.blocks, |block| contribution.block(ledger.layout(), block)),
            None => self.intake.clone().answer(query, commitment.commit.root).await,
        };
        answer.map_err(|reject| Unanswered::Refused(reject.to_string()))
    }
}

fn absent(what: &str) -> Unanswered {
    Unanswered::Refused(format!("{what} is not held here"))
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use muster_core::codec::List;
    use muster_core::ids::{Block, Digest, Row};
    use muster_core::state::State;
    use muster_replica::{Offers, Replica};
    use muster_store::dataset::{self, Dataset, SourceText};
    use muster_store::home::Home;

    use super::*;
    use crate::member::calls::{Holder, States};
    use crate::member::conduct::HonestNode;
    use crate::organise::config::{Makers, Settings};

    /// A member that keeps no state.
    struct NoStates;

    impl States for NoStates {
        fn at(&self, _: &Digest, _: Row) -> Option<Arc<State>> {
            None
        }

        fn oldest(&self) -> Option<Arc<State>> {
            None
        }
    }

    #[tokio::test]
    async fn a_stranger_has_nothing_read_from_the_disk() {
        let folder = tempfile::tempdir().unwrap();
        let [me, steward, stranger] = [1, 2, 3].map(|name| MemberId([name; 32]));
        let text = |name: &str| {
            vec![Ok(SourceText { name: name.into(), bytes: "to muster is to gather. ".repeat(40).into() })]
        };
        let corpus = folder.path().join("corpus");
        let data = dataset::pack(text("train"), text("held out"), &corpus, &mut |_| ()).unwrap();
        let dataset = Arc::new(Dataset::open(&corpus, &data).unwrap());
        let makers = Makers { organiser: me, steward, nonce: [0; 16] };
        let settings =
            Settings::parse("run.toml".as_ref(), "[model]\nwidth = 8\nlayers = 1\nhidden = 12\n").unwrap();
        let ledger = Ledger::new(Arc::new(settings.manifest(&makers, data).unwrap()));
        let layout = ledger.layout().clone();
        let home = Arc::new(Home::open(&folder.path().join("home")).unwrap());
        let failed = tokio::sync::mpsc::channel(1).0;
        let identity = Arc::new(Identity::from_secret(&[1; 32]));
        let (states, conduct) = (Arc::new(NoStates), Arc::new(HonestNode));
        let manifest = ledger.manifest().clone();
        let replica = Replica::genesis(manifest.clone(), dataset, 1, None).unwrap();
        let offers = Offers::new(Home::clone(&home), Arc::new(Mutex::new(replica))).unwrap();
        let calls = Calls::new(Holder { identity: identity.clone(), conduct, manifest, states, path: None });
        let shared = NodeContext {
            identity,
            calls,
            pieces: Pieces::new(offers, Arc::new(HonestNode)),
            ledger: watch::channel(Arc::new(ledger)).1,
            conduct: Arc::new(HonestNode),
            intake: Arc::new(Intake::new(layout.clone(), home, failed)),
            own: Own::new(2),
            results: Results::new(layout),
            stopwatch: Arc::default(),
        };
        let blocks = List::new(vec![Block(0)]).unwrap();
        let query = InputQuery { round: Round(0), member: me, blocks };
        let refused = |peer| shared.inputs(peer, query.clone());
        // CHAN-10: blocks are not public, and whoever is no member or steward does not get so far as to be looked up.
        assert_eq!(refused(stranger).await, Err(Unanswered::Refused("blocks are for members".into())));
        assert_eq!(refused(steward).await, Err(absent("this round")));
    }
}
