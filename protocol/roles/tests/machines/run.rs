//! A steward's machine and its nodes', with messages carried by hand.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use muster_core::audit::Judgement;
use muster_core::codec::{List, Text};
use muster_core::coins::CoinTree;
use muster_core::hash::{Domain, Hasher};
use muster_core::ids::{Digest, MemberId, Round, Slot};
use muster_core::ledger::fixture::Newcomer;
use muster_core::ledger::{Ledger, RoundView, Stage};
use muster_core::manifest::fixture::tiny;
use muster_core::manifest::{Manifest, Profile};
use muster_core::messages::audit::FindingKind;
use muster_core::messages::enrol::{Addresses, Enrol, Invitation, InvitationSecret, Role};
use muster_core::messages::record::Record;
use muster_core::messages::round::{Commit, Receipt};
use muster_core::messages::wire::{Notice, Request, Response};
use muster_core::round::ClaimedDelivery;
use muster_core::sign::{Identity, Signed, Verified};
use muster_core::state::{ShardRoots, StateRoots};
use muster_roles::node::{self, MembershipEnd, Node, NodeEffect, NodeInput, Parcel};
use muster_roles::steward::accusation::Allegation;
use muster_roles::steward::exhibits::OwedPart;
use muster_roles::steward::hearing::Ruling;
use muster_roles::steward::{self, Dial, Question, Steward};

pub(super) const NODES: usize = 3;
/// A minute: longer than every timer of a round.
pub(super) const LONG: u64 = 60_000;

pub(super) fn identity(number: usize) -> Arc<Identity> {
    Arc::new(Identity::from_secret(&[number as u8 + 1; 32]))
}

pub(super) fn roots(step: u32) -> StateRoots {
    let digest = Hasher::new(Domain::STATE).value(&step).finish();
    let [exponents, parameters, first, second] = [digest; 4];
    StateRoots::from([ShardRoots { step, beta_powers: [0; 2], exponents, parameters, first, second }])
}

pub(super) fn addresses(number: usize) -> Addresses {
    List::new(vec![Text::new(format!("node:{number}")).expect("short")]).expect("one")
}

/// A steward, its records, and its nodes with what they say.
pub(super) struct Run {
    pub(super) steward: Steward,
    pub(super) ledger: Ledger,
    pub(super) records: Vec<Verified<Record>>,
    pub(super) board: Vec<Notice>,
    pub(super) applying: bool,
    pub(super) hearing: Option<Box<Allegation>>,
    /// Whose results the steward has reduced again before it applied them.
    pub(super) inspected: Vec<MemberId>,
    pub(super) answers: BTreeMap<Question, Response>,
    /// What the steward has written down of what members said.
    pub(super) kept: Vec<Request>,
    /// What convictions have it fetch and recompute.
    pub(super) pending: VecDeque<steward::StewardEffect>,
    /// Deliveries whose receipts are to be checked, and blocks that are to be read.
    pub(super) checks: VecDeque<(Question, Box<ClaimedDelivery>)>,
    /// Parts that the steward has kept by value: after how many records, and whether the next one waited for them.
    pub(super) parts_kept: Vec<(usize, bool, Vec<OwedPart>)>,
    /// Whom the steward looks for, and whom it has looked for.
    dials: VecDeque<Question>,
    pub(super) dialled: Vec<Dial>,
    /// Whether nobody is found where it says that it is.
    pub(super) unreachable: bool,
    pub(super) reads: VecDeque<Question>,
    /// Whether the steward has no time for these.
    pub(super) busy: bool,
    pub(super) questions: u64,
    pub(super) nodes: Vec<Node>,
    /// Records and notices that each node has read.
    pub(super) read: Vec<(usize, usize)>,
    pub(super) now: u64,
}

impl Run {
    /// A run whose first round has begun.
    pub(super) fn new() -> Self {
        Self::with(Profile::Exact)
    }

    /// The same with this arithmetic.
    pub(super) fn with(profile: Profile) -> Self {
        Self::gathered(|manifest| manifest.profile = profile, None)
    }

    /// The same with another manifest, and with a verifier that has coins from this round on and never says anything.
    pub(super) fn gathered(change: impl FnOnce(&mut Manifest), silent: Option<Round>) -> Self {
        let (organiser, key) = (identity(100), identity(101));
        let mut manifest = tiny(organiser.id(), key.id(), 4, NODES as u16);
        change(&mut manifest);
        let ledger = Ledger::new(Arc::new(manifest));
        let setup = steward::StewardSetup {
            ledger: ledger.clone(),
            identity: key,
            roots: roots(0),
            states: Default::default(),
            bans: Vec::new(),
            kept: Vec::new(),
        };
        let mut run = Self::of(Steward::new(setup), ledger);
        if let Some(first) = silent {
            let coins = CoinTree::new([5; 32], first, 64, 1).expect("a few coins").terms();
            let enrol = Newcomer::verifier(&identity(NODES), coins).enrol(run.ledger.run(), &identity(100));
            assert!(run.ask(identity(NODES).id(), Request::Enrol(enrol)).is_some());
        }
        for number in 0..NODES {
            let secret = InvitationSecret::new([9; 32]);
            run.enrol(number, &secret);
            run.hand(steward::StewardInput::Connected(identity(number).id(), true));
        }
        assert_eq!(run.ledger.stage(), Stage::Computing);
        run
    }

    /// Somebody asks to be let in by an invitation of the organiser, which as many may use as the run begins with.
    pub(super) fn enrol(&mut self, number: usize, secret: &InvitationSecret) -> Option<Response> {
        let (me, run) = (identity(number), self.ledger.run());
        let (role, uses, expires, founder) = (Role::Node, NODES as u32, u64::MAX, true);
        let invitation = Invitation { role, uses, expires, key: secret.key(), founder };
        let invitation = Some(secret.present(run, identity(100).sign(run, &invitation), me.id()));
        let enrol = Enrol {
            invitation,
            addresses: addresses(number),
            coins: None,
            name: Default::default(),
            engagement: Default::default(),
        };
        self.ask(me.id(), Request::Enrol(me.sign(run, &enrol)))
    }

    /// A steward with this ledger, and nodes that have read it.
    pub(super) fn of(steward: Steward, ledger: Ledger) -> Self {
        let shared = Arc::new(ledger.clone());
        let mut run = Self {
            steward,
            ledger,
            records: Vec::new(),
            board: Vec::new(),
            applying: false,
            hearing: None,
            inspected: Vec::new(),
            answers: BTreeMap::new(),
            kept: Vec::new(),
            pending: VecDeque::new(),
            checks: VecDeque::new(),
            parts_kept: Vec::new(),
            dials: VecDeque::new(),
            dialled: Vec::new(),
            unreachable: false,
            reads: VecDeque::new(),
            busy: false,
            questions: 0,
            nodes: (0..NODES).map(|number| node(number, &shared)).collect(),
            read: vec![(0, 0); NODES],
            now: 0,
        };
        run.drain();
        run
    }

    pub(super) fn hand(&mut self, input: steward::StewardInput) {
        self.steward.handle(self.now, input);
        self.drain();
        if !self.busy {
            self.catch_up();
        }
    }

    /// The steward does what it owes.
    pub(super) fn catch_up(&mut self) {
        while let Some(question) = self.dials.pop_front() {
            let found = if self.unreachable { Err("nobody answers there".into()) } else { Ok(()) };
            self.steward.handle(self.now, steward::StewardInput::DialledBack(question, found));
            self.drain();
        }
        while let Some((question, claimed)) = self.checks.pop_front() {
            let shown = Box::new(claimed.check());
            self.steward.handle(self.now, steward::StewardInput::DeliveryChecked(question, shown));
            self.drain();
        }
        while let Some(question) = self.reads.pop_front() {
            self.steward.handle(self.now, steward::StewardInput::Served(question));
            self.drain();
        }
    }

    pub(super) fn ask(&mut self, from: MemberId, request: Request) -> Option<Response> {
        self.questions += 1;
        let (question, request) = (Question(self.questions), Box::new(request));
        self.hand(steward::StewardInput::Asked { question, from, request, date: 0 });
        self.answers.remove(&question).filter(|answer| !matches!(answer, Response::Refused(_)))
    }

    pub(super) fn drain(&mut self) {
        while let Some(effect) = self.steward.poll_effect() {
            match effect {
                steward::StewardEffect::Seal(signed, _) => {
                    self.records.push(self.ledger.apply(&signed).expect("the steward seals what is right"));
                }
                steward::StewardEffect::Post(notice) => self.board.push(notice),
                steward::StewardEffect::Answer(question, response) => {
                    self.answers.insert(question, response);
                }
                steward::StewardEffect::DialBack(question, dial) => {
                    self.dials.push_back(question);
                    self.dialled.push(dial);
                }
                steward::StewardEffect::CheckDelivery(question, claimed) => {
                    self.checks.push_back((question, claimed));
                }
                steward::StewardEffect::Read(question, ..) => self.reads.push_back(question),
                steward::StewardEffect::Apply(_) => self.applying = true,
                steward::StewardEffect::Prefetch(result, _) => {
                    self.steward.handle(self.now, steward::StewardInput::Obtained(result, true));
                }
                steward::StewardEffect::Inspect(accusation, _) => {
                    self.inspected.push(accusation.claim.culprit);
                    let right = Judgement::NotGuilty("it is what the rule gives".into());
                    self.steward
                        .handle(self.now, steward::StewardInput::Inspected(accusation, Box::new(right)));
                }
                steward::StewardEffect::Hear(accusation, _) => self.hearing = Some(accusation),
                steward::StewardEffect::KeepParts { parts, at_once } => {
                    self.parts_kept.push((self.records.len(), at_once, parts.clone()));
                    self.steward.handle(self.now, steward::StewardInput::PartsKept(parts, Vec::new()));
                }
                steward::StewardEffect::Keep(_, request) => self.kept.push(*request),
                effect @ (steward::StewardEffect::Exhibit(_) | steward::StewardEffect::Measure(_)) => {
                    self.pending.push_back(effect);
                }
                _ => {}
            }
        }
    }

    pub(super) fn wait(&mut self, time: u64) {
        self.now += time;
        self.hand(steward::StewardInput::Tick);
    }

    /// A node reads what is new.
    pub(super) fn follow(&mut self, number: usize) {
        let (records, notices) = self.read[number];
        let node = &mut self.nodes[number];
        node.handle(
            self.now,
            NodeInput::Followed { ledger: Arc::new(self.ledger.clone()), in_step: true, complete: true },
        );
        for record in &self.records[records..] {
            node.handle(self.now, NodeInput::Sealed(Box::new(record.clone().into_inner())));
        }
        for notice in &self.board[notices..] {
            node.handle(self.now, NodeInput::Notice(Box::new(notice.clone())));
        }
        self.read[number] = (self.records.len(), self.board.len());
    }

    pub(super) fn tell(&mut self, number: usize, input: NodeInput) {
        self.nodes[number].handle(self.now, input);
    }

    /// The effects of a node that are there now.
    pub(super) fn effects(&mut self, number: usize) -> Vec<NodeEffect> {
        std::iter::from_fn(|| self.nodes[number].poll_effect()).collect()
    }

    /// A node does all that it owes. Gives how its membership ended, if it did.
    pub(super) fn work(&mut self, number: usize) -> Option<MembershipEnd> {
        while let Some(effect) = self.nodes[number].poll_effect() {
            let done = match effect {
                NodeEffect::Say(requests) => {
                    for request in requests {
                        let answer = self.ask(identity(number).id(), request.clone());
                        self.tell(number, NodeInput::Told(Box::new(request), answer));
                    }
                    continue;
                }
                NodeEffect::End(ending) => return Some(ending),
                effect => self.perform(number, effect),
            };
            done.into_iter().for_each(|input| self.tell(number, input));
        }
        None
    }

    pub(super) fn perform(&self, number: usize, effect: NodeEffect) -> Option<NodeInput> {
        let run = self.ledger.run();
        Some(match effect {
            NodeEffect::Compute { round, slot, .. } => {
                let commit = commit(self.ledger.round(round)?, slot);
                NodeInput::Committed(vec![identity(number).sign(run, &commit)])
            }
            NodeEffect::WriteEcho(round, freeze) => NodeInput::EchoWritten(round, Some(freeze)),
            NodeEffect::Prepare { round, attempt, parts } => NodeInput::Prepared { round, attempt, parts },
            NodeEffect::Bring(parcel) => {
                let receipt = self.receipt(number, &parcel, &parcel.keeper);
                NodeInput::Brought(parcel, receipt)
            }
            NodeEffect::Reduce(task) => {
                let digest = Hasher::new(Domain::PART).value(&task.round).value(&task.part).finish();
                NodeInput::Reduced(task, vec![digest])
            }
            NodeEffect::Compare(check) => NodeInput::Compared(check, BTreeMap::new()),
            _ => return None,
        })
    }

    /// What somebody signs for a parcel of a node.
    pub(super) fn receipt(&self, number: usize, parcel: &Parcel, by: &MemberId) -> Option<Signed<Receipt>> {
        let Parcel { round, attempt, part, .. } = *parcel;
        let (view, sender) = (self.ledger.round(round)?, identity(number).id());
        let root = view.commitment(view.slot_of(&sender)?)?.commit.root;
        let signer = (0..NODES).chain([101]).map(identity).find(|key| key.id() == *by)?;
        Some(signer.sign(self.ledger.run(), &Receipt { round, part, attempt, sender, root }))
    }

    /// All nodes read and work until the run is at this stage.
    pub(super) fn until(&mut self, stage: Stage) {
        for _ in 0..50 {
            for number in 0..NODES {
                if self.ledger.stage() == stage {
                    return;
                }
                self.follow(number);
                self.work(number);
                self.apply();
            }
        }
        panic!("the run stays in {:?}", self.ledger.stage());
    }

    pub(super) fn apply(&mut self) {
        if std::mem::take(&mut self.applying) {
            let next = roots(self.ledger.state().step() + 1);
            self.hand(steward::StewardInput::Applied(Ok(next), Default::default()));
        }
    }

    /// A node commits, then says something else of the same round: what it is accused of.
    pub(super) fn equivocate(&mut self, number: usize) -> Box<Allegation> {
        let view = self.ledger.current().unwrap();
        let slot = view.slot_of(&identity(number).id()).unwrap();
        let said = Commit { loss: 2, ..commit(view, slot) };
        let second = identity(number).sign(self.ledger.run(), &said);
        self.follow(number);
        assert_eq!(self.work(number), None);
        self.ask(identity(number).id(), Request::Commit(second));
        self.hearing.take().unwrap()
    }

    /// The steward's examination finds the accused guilty.
    pub(super) fn convict(&mut self, accusation: Box<Allegation>) {
        let (culprit, round) = (accusation.claim.culprit, accusation.claim.round);
        let (finding, detail) = (FindingKind::Equivocation, String::new());
        let judgement = Judgement::Guilty { culprit, round, finding, detail };
        let ruling = Box::new(Ruling::plain(accusation.evidence.clone(), judgement));
        self.hand(steward::StewardInput::Heard(accusation, ruling));
    }

    /// All nodes but the first one work until this round is the next one.
    pub(super) fn go_on_without_the_first(&mut self, until: Round) {
        for _ in 0..20 {
            if self.ledger.next_round() >= until {
                return;
            }
            (1..NODES).for_each(|number| {
                self.follow(number);
                self.work(number);
            });
            self.apply();
            self.wait(LONG);
        }
        panic!("round {until} does not begin");
    }

    /// A run in whose exchange the first node has read everything, and is told to bring its parts.
    pub(super) fn exchanging() -> (Self, Vec<NodeEffect>) {
        let mut run = Self::new();
        run.until(Stage::Exchanging);
        run.follow(0);
        let effects = run.effects(0);
        (run, effects)
    }
}

pub(super) fn node(number: usize, ledger: &Arc<Ledger>) -> Node {
    node_with(number, ledger, Vec::new())
}

/// A node whose disk has these commitments.
pub(super) fn node_with(number: usize, ledger: &Arc<Ledger>, committed: Vec<Signed<Commit>>) -> Node {
    Node::new(node::NodeSetup {
        ledger: ledger.clone(),
        identity: identity(number),
        addresses: addresses(number),
        engagement: Default::default(),
        secret: [3; 32],
        committed,
    })
}

pub(super) fn commit(view: &RoundView, slot: Slot) -> Commit {
    Commit {
        round: view.round(),
        head: view.head(),
        state: view.state().root(),
        slot,
        seats: view.seats().len() as u16,
        route: None,
        leaves: 1,
        profile: Profile::Exact,
        loss: 1,
        root: Digest([slot.0 as u8 + 1; 32]),
    }
}
