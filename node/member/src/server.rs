//! A member's server: it takes in blocks, and gives out results and contributions.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use muster_core::codec::{Bytes, decode, encode};
use muster_core::error::Reject;
use muster_core::ids::{Block, EndpointKey, MemberId, Round};
use muster_core::ledger::{Ledger, RoundView};
use muster_core::limits::{MESSAGE_BYTES, STRANGER_BYTES};
use muster_core::messages::wire::{InputQuery, PutBlocks, Request, Response};
use muster_core::sign::Identity;
use muster_keeper::intake::{Intake, gathered};
use muster_net::relay::member::MemberRelay;
use muster_net::serve::{Handler, Unanswered};
use muster_net::shares::{Role, Turns};
use muster_replica::text::{held, outline};
use muster_replica::{Results, Stopwatch};
use muster_roles::keeper::Wanted;
use muster_store::dataset::Dataset;
use tokio::sync::watch;

use super::calls::Calls;
use super::conduct::{Delay, NodeConduct};
use super::early::Early;
use super::own::Own;
use super::pieces::Pieces;

/// How long a request may wait for this member to see what the asker has seen.
const PATIENCE: Duration = Duration::from_secs(10);
/// Rounds that a sender may be ahead of this member.
const AHEAD: u32 = 1;
/// Results that are read for members at once.
pub(super) const READERS: usize = 2;
/// Requests that ask for something are no longer than this.
const ASKING_BYTES: usize = 8 << 10;
/// Answers to what brings something are no longer than this.
const SHORT_BYTES: usize = 1 << 10;

/// Shared by the server and the member's own tasks.
pub(super) struct NodeContext {
    pub(super) identity: Arc<Identity>,
    pub(super) ledger: watch::Receiver<Arc<Ledger>>,
    pub(super) conduct: Arc<dyn NodeConduct>,
    pub(super) intake: Arc<Intake>,
    pub(super) own: Arc<Own>,
    pub(super) early: Arc<Early>,
    pub(super) results: Results,
    pub(super) stopwatch: Arc<Stopwatch>,
    pub(super) calls: Calls,
    pub(super) pieces: Pieces,
    pub(super) turns: Turns,
    pub(super) text: Arc<Dataset>,
    /// Where others can dial this member, unless its volunteer wants none.
    pub(super) relay: OnceLock<MemberRelay>,
}

impl Handler for NodeContext {
    fn role(&self, peer: &MemberId) -> Role {
        let ledger = self.ledger.borrow();
        let is_member = ledger.member(peer).is_some() && !ledger.is_banned(peer);
        if is_member || *peer == ledger.manifest().steward { Role::Member } else { Role::Stranger }
    }

    async fn ready(&self, request: &[u8]) -> usize {
        // What is longer brings something, and is answered in a few words; but a call may be long, too.
        match (request.len() <= ASKING_BYTES).then(|| decode::<Request>(request)) {
            Some(Ok(Request::PutBlocks(_) | Request::Relay(_))) => SHORT_BYTES,
            Some(Err(_)) => SHORT_BYTES,
            None if request.len() > STRANGER_BYTES => SHORT_BYTES,
            _ => MESSAGE_BYTES,
        }
    }

    async fn handle(&self, peer: MemberId, request: Vec<u8>) -> Result<Vec<u8>, Unanswered> {
        let decoded: Request = decode(&request)?;
        // Blocks that wait for a round would be in memory twice.
        drop(request);
        let response = match decoded {
            Request::PutBlocks(put) => self.put(peer, put).await?,
            Request::ResultBlocks(query) => {
                let results = self.results.clone();
                // CHAN-17: they may be on the disk, and whoever asks may be a stranger.
                let read = self.turns.work(self.role(&peer), move || results.answer(&query)).await;
                read.flatten().ok_or_else(|| absent("these results"))?
            }
            Request::InputBlocks(query) => self.inputs(peer, query).await?,
            // Whoever asks: newcomers are no members yet, and STATE-12 bounds what they get.
            Request::State(query) => {
                let ledger = self.ledger.borrow().clone();
                self.pieces.answer(peer, &ledger, query).await?
            }
            // DATA-11: what is there of the files, read in turn as CHAN-17 has it, since newcomers are no members yet.
            Request::Data(query) => {
                let text = self.text.clone();
                let read = self.turns.work(self.role(&peer), move || held(&text, &query)).await;
                bulk(read.flatten().ok_or_else(|| absent("this part of the text"))?)?
            }
            Request::Outline(query) => {
                let text = self.text.clone();
                let read = self.turns.work(self.role(&peer), move || outline(&text, &query)).await;
                bulk(read.ok_or_else(|| absent("this outline"))?)?
            }
            // Whoever asks: the bounds of CALL-8 hold for strangers, too.
            Request::Ask(ask) => {
                let ledger = self.ledger.borrow().clone();
                self.calls.answer(peer, &ledger, &ask).await?
            }
            // CHAN-29: members alone.
            Request::Relay(key) => self.place(peer, key)?,
            _ => return Err(Unanswered::Refused("a node does not answer this: ask the steward".into())),
        };
        Ok(encode(&response))
    }
}

impl NodeContext {
    fn place(&self, peer: MemberId, key: EndpointKey) -> Result<Response, Unanswered> {
        if self.role(&peer) == Role::Stranger {
            return Err(Unanswered::Refused("only members have a place at the relay".into()));
        }
        let terms = self.relay.get().and_then(|relay| relay.admit(peer, key));
        terms
            .map(Response::Relay)
            .ok_or_else(|| Unanswered::Refused("there is no place at a relay here".into()))
    }

    async fn put(&self, sender: MemberId, put: PutBlocks) -> Result<Response, Unanswered> {
        may_bring(&self.ledger.borrow(), &sender, put.round)?;
        let ledger = self.ledger_at(put.round, put.attempt).await?;
        if ledger.round(put.round).is_none() {
            return Err(absent("this round"));
        }
        if !self.conduct.takes_in(put.round, &sender) {
            return Err(Unanswered::Refused("not from you".into()));
        }
        let (round, blocks) = (put.round, put.blocks.iter().map(|data| data.block).collect::<Vec<Block>>());
        let taking = self.intake.clone().take_in_turn(ledger.clone(), self.identity.id(), sender, put);
        let receipt = taking.await?;
        // Before the answer, so that a sender has no more of it done at a time than it has connections.
        let (early, known) = (self.early.clone(), ledger.clone());
        let early = tokio::task::spawn_blocking(move || early.reduce(&known, round, &blocks));
        if let Err(error) = early.await {
            tracing::error!("a block could not be reduced early: {error}");
        }
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
        let wanted = Wanted::by(&ledger, &peer, &query).map_err(refused)?;
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
            Some(contribution) => {
                let give =
                    move || gathered(&query.blocks, |block| contribution.block(ledger.layout(), block));
                self.intake.in_turn(peer, wanted, give).await
            }
            None => self.intake.clone().answer(peer, query, wanted).await,
        };
        answer.map_err(refused)
    }
}

/// CHAN-16: whether a sender may bring blocks of a round, before they wait for it. Blocks are as long as messages may be, and
/// keys cost nothing.
fn may_bring(ledger: &Ledger, sender: &MemberId, round: Round) -> Result<(), Unanswered> {
    let unfit = |why: &str| Err(Unanswered::Refused(why.into()));
    if ledger.member(sender).is_none() || ledger.is_banned(sender) {
        return unfit("blocks are brought by members");
    }
    match ledger.round(round) {
        Some(view) if view.slot_of(sender).is_none() => unfit("this member has no seat in the round"),
        Some(_) => Ok(()),
        None if round.0 > ledger.next_round().0.saturating_add(AHEAD) => unfit("this round is still to come"),
        None if round < ledger.next_round() => Err(absent("this round")),
        None => Ok(()),
    }
}

fn bulk(bytes: Vec<u8>) -> Result<Response, Unanswered> {
    let bytes = Bytes::new(bytes).map_err(|misuse| Unanswered::Refused(misuse.to_string()))?;
    Ok(Response::Bytes(bytes))
}

fn refused(reject: Reject) -> Unanswered {
    Unanswered::Refused(reject.to_string())
}

fn absent(what: &str) -> Unanswered {
    Unanswered::Refused(format!("{what} is not held here"))
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::sync::Mutex;
    use std::task::{Context, Poll, Waker};

    use muster_core::assign::PartPlan;
    use muster_core::codec::List;
    use muster_core::contribution::Commitment;
    use muster_core::ids::{Block, Digest, Row};
    use muster_core::layout::Layout;
    use muster_core::ledger::fixture::{Makers, Newcomer, commitment};
    use muster_core::manifest::DataFile;
    use muster_core::merkle::Outline;
    use muster_core::messages::audit::FindingKind;
    use muster_core::messages::record::{Ban, Body};
    use muster_core::messages::wire::DataQuery;
    use muster_core::state::State;
    use muster_net::endpoint::Endpoint;
    use muster_net::listener::Listener;
    use muster_net::seats::ConnectionLimit;
    use muster_net::shares::Shares;
    use muster_organise::config::{self, Settings};
    use muster_replica::{Offers, Replica};
    use muster_store::dataset::{self, SourceText};
    use muster_store::home::Home;

    use super::*;
    use crate::calls::{Holder, States};
    use crate::conduct::HonestNode;

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

    /// A member of a run that nobody has joined yet, and its steward.
    fn context(folder: &std::path::Path) -> (NodeContext, [MemberId; 2]) {
        let [me, steward] = [1, 2].map(|name| MemberId([name; 32]));
        let text = |name: &str| {
            vec![Ok(SourceText { name: name.into(), bytes: "to muster is to gather. ".repeat(40).into() })]
        };
        let corpus = folder.join("corpus");
        let data = dataset::pack(text("train"), text("held out"), &corpus, &mut |_| ()).unwrap();
        let dataset = Arc::new(Dataset::open(&corpus, &data).unwrap());
        let makers = config::Makers { organiser: me, steward, nonce: [0; 16] };
        let settings =
            Settings::parse("run.toml".as_ref(), "[model]\nwidth = 8\nlayers = 1\nhidden = 12\n").unwrap();
        let ledger = Ledger::new(Arc::new(settings.manifest(&makers, data).unwrap()));
        let layout = ledger.layout().clone();
        let home = Arc::new(Home::open(&folder.join("home")).unwrap());
        let failed = tokio::sync::mpsc::channel(1).0;
        let identity = Arc::new(Identity::from_secret(&[1; 32]));
        let (states, conduct) = (Arc::new(NoStates), Arc::new(HonestNode));
        let manifest = ledger.manifest().clone();
        let replica = Replica::genesis(manifest.clone(), dataset.clone(), 1, None).unwrap();
        let offers = Offers::new(home.row_files().unwrap(), Arc::new(Mutex::new(replica)));
        let calls = Calls::new(Holder { identity: identity.clone(), conduct, manifest, states, path: None });
        let (intake, own) = (Arc::new(Intake::new(layout.clone(), home, failed)), Arc::new(Own::new(2)));
        let early = Arc::new(Early::new(identity.id(), intake.clone(), own.clone(), Arc::default()));
        let context = NodeContext {
            identity,
            calls,
            pieces: Pieces::new(offers, Arc::new(HonestNode)),
            ledger: watch::channel(Arc::new(ledger)).1,
            conduct: Arc::new(HonestNode),
            intake,
            own,
            early,
            results: Results::new(layout),
            stopwatch: Arc::default(),
            turns: Turns::new(1),
            text: dataset,
            relay: OnceLock::new(),
        };
        (context, [me, steward])
    }

    #[tokio::test]
    async fn data_11_whoever_asks_gets_the_text_that_is_here() {
        let folder = tempfile::tempdir().unwrap();
        let (shared, [_, steward]) = context(folder.path());
        let data = shared.text.data();
        for peer in [steward, MemberId([3; 32])] {
            let ask = |request: Request| shared.handle(peer, encode(&request));
            let query = DataQuery { file: DataFile::Training, first: 0, count: u32::MAX };
            let text = decode(&ask(Request::Data(query.clone())).await.unwrap()).unwrap();
            assert!(matches!(text, Response::Bytes(bytes) if bytes.len() as u64 == data.bytes));
            let outline = decode(&ask(Request::Outline(query)).await.unwrap()).unwrap();
            let Response::Bytes(outline) = outline else { panic!("bytes") };
            let node = Digest(outline[..].try_into().unwrap());
            assert_eq!(Outline::new(1, vec![node]).unwrap().root(), data.root);
        }
    }

    #[tokio::test]
    async fn a_stranger_has_nothing_read_from_the_disk() {
        let folder = tempfile::tempdir().unwrap();
        let (shared, [me, steward]) = context(folder.path());
        let stranger = MemberId([3; 32]);
        let blocks = List::new(vec![Block(0)]).unwrap();
        let query = InputQuery { round: Round(0), member: me, blocks };
        let refused = |peer| shared.inputs(peer, query.clone());
        // CHAN-10: blocks are not public, and whoever is no member or steward does not get so far as to be looked up.
        let strange = Reject::NotEntitled("ask for blocks: they are for members");
        assert_eq!(refused(stranger).await, Err(Unanswered::Refused(strange.to_string())));
        let unknown = Reject::Stale("the round is not remembered");
        assert_eq!(refused(steward).await, Err(Unanswered::Refused(unknown.to_string())));
    }

    fn identity(number: u8) -> Identity {
        Identity::from_secret(&[number; 32])
    }

    fn makers() -> Makers {
        Makers::of(21, 22)
    }

    /// A round in which two members, this one and another, have committed to the same integers.
    fn exchanging(q: &[i32]) -> Ledger {
        let (makers, members) = (makers(), [1, 12].map(identity));
        let founder = |member| Newcomer { founder: true, ..Newcomer::node(member).at("8.8.8.8:1") };
        let mut ledger = makers.begin(makers.tiny(4, 2), members.iter().map(founder));
        let root = Commitment::new(ledger.layout(), q).root();
        let commits = [0, 1].map(|index| (&members[index], commitment(&ledger, &members[index], 0, root)));
        makers.freeze(&mut ledger, commits);
        ledger
    }

    /// Everything else that a member does shares the threads of its network: to compute, to follow, to be heard in time.
    #[tokio::test]
    async fn round_35_a_member_that_brings_blocks_without_end_takes_no_thread_of_the_network() {
        let folder = tempfile::tempdir().unwrap();
        let (shared, _) = context(folder.path());
        let layout = Layout::of(&makers().tiny(4, 2).model);
        let q = vec![7; layout.parameters()];
        let (ledger, tree) = (exchanging(&q), Commitment::new(&layout, &q));
        let (me, sender) = (identity(1).id(), identity(12).id());
        let view = ledger.current().unwrap();
        let mine = |plan: &&PartPlan| view.takes_in(view.part_of(plan.blocks[0]).unwrap(), &sender, &me);
        let blocks = view.parts().iter().find(mine).unwrap().blocks.clone();
        let home = Arc::new(Home::open(&folder.path().join("blocks")).unwrap());
        let failed = tokio::sync::mpsc::channel(1).0;
        let intake = Arc::new(Intake::new(Arc::new(layout.clone()), home, failed));
        let shared = NodeContext { ledger: watch::channel(Arc::new(ledger)).1, intake, ..shared };
        let put = || {
            let blocks = blocks.iter().map(|block| tree.block(&layout, &q, *block).unwrap());
            PutBlocks { round: Round(0), attempt: 0, blocks: List::new(blocks.collect()).unwrap() }
        };
        let (mut context, mut waiting) = (Context::from_waker(Waker::noop()), Vec::new());
        for mut put in (0..16).map(|_| Box::pin(shared.put(sender, put()))) {
            // Another thread may be done before this one looks, but hardly with each of them.
            match put.as_mut().poll(&mut context) {
                Poll::Ready(answer) => assert!(matches!(answer, Ok(Response::Receipt(_)))),
                Poll::Pending => waiting.push(put),
            }
        }
        assert!(!waiting.is_empty(), "proved on the thread that asks");
        for put in waiting {
            assert!(matches!(put.await, Ok(Response::Receipt(_))), "each has its turn");
        }
    }

    #[tokio::test]
    async fn chan_16_blocks_wait_for_no_round_before_it_is_known_that_their_sender_may_bring_them() {
        let folder = tempfile::tempdir().unwrap();
        let (shared, [_, steward]) = context(folder.path());
        for sender in [steward, MemberId([3; 32])] {
            let put = PutBlocks { round: Round(7), attempt: 0, blocks: List::default() };
            // Else they would be in memory for ten seconds, whoever sends them.
            let refused = shared.put(sender, put).await;
            assert_eq!(refused, Err(Unanswered::Refused("blocks are brought by members".into())));
        }
    }

    #[tokio::test]
    async fn chan_29_only_members_have_a_place_at_a_members_relay() {
        let folder = tempfile::tempdir().unwrap();
        let (shared, _) = context(folder.path());
        let layout = Layout::of(&makers().tiny(4, 2).model);
        let ledger = exchanging(&vec![7; layout.parameters()]);
        let (run, member) = (ledger.run(), identity(12).id());
        let shared = NodeContext { ledger: watch::channel(Arc::new(ledger)).1, ..shared };
        let ask = |peer, key| shared.handle(peer, encode(&Request::Relay(EndpointKey([key; 32]))));
        let none = Unanswered::Refused("there is no place at a relay here".into());
        assert_eq!(ask(member, 1).await, Err(none.clone()), "its volunteer wants none");
        let listener = Listener::bind("127.0.0.1:0", ConnectionLimit::default()).await.unwrap();
        let (own, shares) =
            (Endpoint::new(run, Arc::new(identity(1))), Shares::new(ConnectionLimit::default()));
        let relay = MemberRelay::new(&own, listener.local_addr(), shares).unwrap();
        assert!(shared.relay.set(relay).is_ok());
        let answer: Response = decode(&ask(member, 1).await.unwrap()).unwrap();
        assert!(matches!(answer, Response::Relay(terms) if terms.port != 0), "from where it is seen as well");
        let strange = Unanswered::Refused("only members have a place at the relay".into());
        assert_eq!(ask(MemberId([3; 32]), 2).await, Err(strange));
        assert_eq!(ask(makers().steward.id(), 1).await, Err(none), "nobody has another's key");
    }

    #[tokio::test]
    async fn chan_16_a_banned_member_is_a_stranger_to_the_others() {
        let folder = tempfile::tempdir().unwrap();
        let (shared, _) = context(folder.path());
        let layout = Layout::of(&makers().tiny(4, 2).model);
        let mut ledger = exchanging(&vec![7; layout.parameters()]);
        let [member, convict] = [1, 12].map(|number| identity(number).id());
        let ban = Ban {
            culprit: convict,
            effective: ledger.first_round_without(),
            round: Round(0),
            finding: FindingKind::SumMismatch,
            evidence: Digest([1; 32]),
            accuser: makers().steward.id(),
            jury: Default::default(),
        };
        let (news, followed) = watch::channel(Arc::new(ledger.clone()));
        let shared = NodeContext { ledger: followed, ..shared };
        assert!([member, convict].iter().all(|peer| shared.role(peer) == Role::Member));
        makers().seal(&mut ledger, Body::Ban(ban));
        news.send_replace(Arc::new(ledger));
        assert!(shared.role(&convict) == Role::Stranger && shared.role(&member) == Role::Member);
        assert!(shared.role(&makers().steward.id()) == Role::Member);
    }

    #[test]
    fn chan_16_blocks_are_of_a_round_in_which_their_sender_has_a_seat_or_of_the_next_one() {
        let layout = Layout::of(&makers().tiny(4, 2).model);
        let mut ledger = exchanging(&vec![7; layout.parameters()]);
        let [seated, newcomer] = [12, 13].map(|number| identity(number).id());
        let enrol = Newcomer::node(&identity(13)).enrol(ledger.run(), &makers().organiser);
        makers().seal(&mut ledger, Body::Admit(enrol));
        let why = |ledger: &Ledger, sender: &MemberId, round| match may_bring(ledger, sender, Round(round)) {
            Err(Unanswered::Refused(why)) => why,
            other => format!("{other:?}"),
        };
        assert_eq!(may_bring(&ledger, &seated, Round(0)), Ok(()));
        assert_eq!(why(&ledger, &newcomer, 0), "this member has no seat in the round");
        for sender in [&seated, &newcomer] {
            assert_eq!(may_bring(&ledger, sender, Round(AHEAD)), Ok(()), "who is seated there is not known");
            assert_eq!(why(&ledger, sender, AHEAD + 1), "this round is still to come");
        }
        let ban = Ban {
            culprit: seated,
            effective: ledger.first_round_without(),
            round: Round(0),
            finding: FindingKind::SumMismatch,
            evidence: Digest([1; 32]),
            accuser: makers().steward.id(),
            jury: Default::default(),
        };
        makers().seal(&mut ledger, Body::Ban(ban));
        assert_eq!(why(&ledger, &seated, 0), "blocks are brought by members");
    }
}
