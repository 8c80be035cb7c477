//! Machines of nodes against the steward's machine: what a node says and when, and what it makes of refusals.

use std::collections::BTreeMap;
use std::sync::Arc;

use muster_core::audit::Judgement;
use muster_core::codec::{List, Text};
use muster_core::hash::{Domain, Hasher};
use muster_core::ids::{Digest, MemberId, Part, Round, Slot};
use muster_core::ledger::{Ledger, RoundView, Stage};
use muster_core::manifest::Profile;
use muster_core::manifest::fixture::tiny;
use muster_core::messages::audit::FindingKind;
use muster_core::messages::enrol::{Addresses, Enrol, Invitation, InvitationSecret, Role};
use muster_core::messages::record::Record;
use muster_core::messages::round::{Commit, CommitReceipt, Receipt};
use muster_core::messages::wire::{Notice, Request, Response};
use muster_core::sign::{Identity, Signed, Verified};
use muster_core::state::StateRoots;
use muster_roles::node::{self, MembershipEnd, Milestone, Node, NodeEffect, NodeInput, Parcel};
use muster_roles::steward::accusation::Allegation;
use muster_roles::steward::hearing::Ruling;
use muster_roles::steward::{self, Question, Steward};

const NODES: usize = 3;
/// A minute: longer than every timer of a round.
const LONG: u64 = 60_000;

fn identity(number: usize) -> Arc<Identity> {
    Arc::new(Identity::from_secret(&[number as u8 + 1; 32]))
}

fn roots(step: u32) -> StateRoots {
    let digest = Hasher::new(Domain::STATE).value(&step).finish();
    let [exponents, parameters, first, second] = [digest; 4];
    StateRoots { step, beta_powers: [0; 2], exponents, parameters, first, second }
}

fn addresses(number: usize) -> Addresses {
    List::new(vec![Text::new(format!("node:{number}")).expect("short")]).expect("one")
}

/// A steward, its records, and its nodes with what they say.
struct Run {
    steward: Steward,
    ledger: Ledger,
    records: Vec<Verified<Record>>,
    board: Vec<Notice>,
    applying: bool,
    hearing: Option<Box<Allegation>>,
    answers: BTreeMap<Question, Response>,
    questions: u64,
    nodes: Vec<Node>,
    /// Records and notices that each node has read.
    read: Vec<(usize, usize)>,
    now: u64,
}

impl Run {
    /// A run whose first round has begun.
    fn new() -> Self {
        let (organiser, key) = (identity(100), identity(101));
        let manifest = Arc::new(tiny(organiser.id(), key.id(), 4, NODES as u16));
        let ledger = Ledger::new(manifest);
        let setup = steward::StewardSetup {
            ledger: ledger.clone(),
            identity: key,
            roots: roots(0),
            states: Default::default(),
            bans: Vec::new(),
            kept: Vec::new(),
        };
        let shared = Arc::new(ledger.clone());
        let mut run = Self {
            steward: Steward::new(setup),
            ledger,
            records: Vec::new(),
            board: Vec::new(),
            applying: false,
            hearing: None,
            answers: BTreeMap::new(),
            questions: 0,
            nodes: (0..NODES).map(|number| node(number, &shared)).collect(),
            read: vec![(0, 0); NODES],
            now: 0,
        };
        run.drain();
        for number in 0..NODES {
            let (me, run_id, secret) = (identity(number), run.ledger.run(), InvitationSecret::new([9; 32]));
            let (role, uses, expires, founder) = (Role::Node, NODES as u32, u64::MAX, true);
            let invitation = Invitation { role, uses, expires, key: secret.key(), founder };
            let invitation = organiser.sign(run_id, &invitation);
            let invitation = Some(secret.present(run_id, invitation, me.id()));
            let enrol = Enrol { invitation, addresses: addresses(number), coins: None };
            run.ask(me.id(), Request::Enrol(me.sign(run_id, &enrol)));
            run.hand(steward::StewardInput::Connected(me.id(), true));
        }
        assert_eq!(run.ledger.stage(), Stage::Computing);
        run
    }

    fn hand(&mut self, input: steward::StewardInput) {
        self.steward.handle(self.now, input);
        self.drain();
    }

    fn ask(&mut self, from: MemberId, request: Request) -> Option<Response> {
        self.questions += 1;
        let (question, request) = (Question(self.questions), Box::new(request));
        self.hand(steward::StewardInput::Asked { question, from, request, date: 0 });
        self.answers.remove(&question).filter(|answer| !matches!(answer, Response::Refused(_)))
    }

    fn drain(&mut self) {
        while let Some(effect) = self.steward.poll_effect() {
            match effect {
                steward::StewardEffect::Seal(signed, _) => {
                    self.records.push(self.ledger.apply(&signed).expect("the steward seals what is right"));
                }
                steward::StewardEffect::Post(notice) => self.board.push(notice),
                steward::StewardEffect::Answer(question, response) => {
                    self.answers.insert(question, response);
                }
                steward::StewardEffect::Apply(_) => self.applying = true,
                steward::StewardEffect::Hear(accusation, _) => self.hearing = Some(accusation),
                _ => {}
            }
        }
    }

    fn wait(&mut self, time: u64) {
        self.now += time;
        self.hand(steward::StewardInput::Tick);
    }

    /// A node reads what is new.
    fn follow(&mut self, number: usize) {
        let (records, notices) = self.read[number];
        let node = &mut self.nodes[number];
        node.handle(self.now, NodeInput::Followed { ledger: Arc::new(self.ledger.clone()), in_step: true });
        for record in &self.records[records..] {
            node.handle(self.now, NodeInput::Sealed(Box::new(record.clone().into_inner())));
        }
        for notice in &self.board[notices..] {
            node.handle(self.now, NodeInput::Notice(Box::new(notice.clone())));
        }
        self.read[number] = (self.records.len(), self.board.len());
    }

    fn tell(&mut self, number: usize, input: NodeInput) {
        self.nodes[number].handle(self.now, input);
    }

    /// The effects of a node that are there now.
    fn effects(&mut self, number: usize) -> Vec<NodeEffect> {
        std::iter::from_fn(|| self.nodes[number].poll_effect()).collect()
    }

    /// A node does all that it owes. Gives how its membership ended, if it did.
    fn work(&mut self, number: usize) -> Option<MembershipEnd> {
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

    fn perform(&self, number: usize, effect: NodeEffect) -> Option<NodeInput> {
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
    fn receipt(&self, number: usize, parcel: &Parcel, by: &MemberId) -> Option<Signed<Receipt>> {
        let Parcel { round, attempt, part, .. } = *parcel;
        let (view, sender) = (self.ledger.round(round)?, identity(number).id());
        let root = view.commitment(view.slot_of(&sender)?)?.commit.root;
        let signer = (0..NODES).chain([101]).map(identity).find(|key| key.id() == *by)?;
        Some(signer.sign(self.ledger.run(), &Receipt { round, part, attempt, sender, root }))
    }

    /// All nodes read and work until the run is at this stage.
    fn until(&mut self, stage: Stage) {
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

    fn apply(&mut self) {
        if std::mem::take(&mut self.applying) {
            let next = roots(self.ledger.state().step + 1);
            self.hand(steward::StewardInput::Applied(Ok(next), Default::default()));
        }
    }

    /// A run in whose exchange the first node has read everything, and is told to bring its parts.
    fn exchanging() -> (Self, Vec<NodeEffect>) {
        let mut run = Self::new();
        run.until(Stage::Exchanging);
        run.follow(0);
        let effects = run.effects(0);
        (run, effects)
    }
}

fn node(number: usize, ledger: &Arc<Ledger>) -> Node {
    Node::new(node::NodeSetup {
        ledger: ledger.clone(),
        identity: identity(number),
        addresses: addresses(number),
        secret: [3; 32],
    })
}

fn commit(view: &RoundView, slot: Slot) -> Commit {
    Commit {
        round: view.round(),
        head: view.head(),
        state: view.state().root(),
        slot,
        seats: view.seats().len() as u16,
        leaves: 1,
        profile: Profile::Exact,
        loss: 1,
        root: Digest([slot.0 as u8 + 1; 32]),
    }
}

/// The parcels among effects.
fn parcels(effects: &[NodeEffect]) -> Vec<Parcel> {
    let parcel = |effect: &NodeEffect| match effect {
        NodeEffect::Bring(parcel) => Some(parcel.clone()),
        _ => None,
    };
    effects.iter().filter_map(parcel).collect()
}

/// The requests among effects.
fn said(effects: Vec<NodeEffect>) -> Vec<Request> {
    let requests = |effect| if let NodeEffect::Say(requests) = effect { requests } else { Vec::new() };
    effects.into_iter().flat_map(requests).collect()
}

/// Parts with receipts of what is said to be delivered; none where nothing is said.
fn delivered(effects: Vec<NodeEffect>, run: &Run) -> Option<Vec<Part>> {
    said(effects).into_iter().find_map(|request| match request {
        Request::Delivered(said) => {
            let said = said.verify(run.ledger.run()).ok()?;
            said.receipts.iter().map(|receipt| Some(receipt.verify(run.ledger.run()).ok()?.part)).collect()
        }
        _ => None,
    })
}

/// Has a node prepare what it was told to deliver; the parcels.
fn prepare(run: &mut Run, effects: Vec<NodeEffect>) -> Vec<Parcel> {
    for effect in effects {
        if let NodeEffect::Prepare { round, attempt, parts } = effect {
            run.tell(0, NodeInput::Prepared { round, attempt, parts });
        }
    }
    parcels(&run.effects(0))
}

/// Has the keepers of all parcels sign for them.
fn bring_all(run: &mut Run, parcels: Vec<Parcel>) {
    for parcel in parcels {
        let receipt = run.receipt(0, &parcel, &parcel.keeper);
        run.tell(0, NodeInput::Brought(parcel, receipt));
    }
}

#[test]
fn a_run_of_machines_comes_to_its_end() {
    let mut run = Run::new();
    run.until(Stage::Closed);
    for number in 0..NODES {
        run.follow(number);
        assert_eq!(run.work(number), Some(MembershipEnd::Closed));
        assert!(run.nodes[number].poll_effect().is_none(), "nothing follows the end");
    }
}

#[test]
fn round_5_a_delivery_is_said_once_the_echo_was_taken() {
    let (mut run, effects) = Run::exchanging();
    let freeze = effects.iter().find_map(|effect| match effect {
        NodeEffect::WriteEcho(round, freeze) => Some((*round, *freeze)),
        _ => None,
    });
    let (round, freeze) = freeze.unwrap();
    run.tell(0, NodeInput::EchoWritten(round, Some(freeze)));
    let echo = said(run.effects(0)).pop().unwrap();
    assert!(matches!(echo, Request::Notice(Notice::Echo(_))));
    let parcels = prepare(&mut run, effects);
    let count = parcels.len();
    assert!(count > 0);
    bring_all(&mut run, parcels);
    assert_eq!(delivered(run.effects(0), &run), None, "the echo is on its way");
    run.tell(0, NodeInput::Told(Box::new(echo), Some(Response::Done)));
    assert_eq!(delivered(run.effects(0), &run).map(|parts| parts.len()), Some(count));
}

#[test]
fn round_2_a_node_that_has_said_another_freeze_says_none_and_delivers() {
    for written in [None, Some(Digest([5; 32]))] {
        let (mut run, effects) = Run::exchanging();
        run.tell(0, NodeInput::EchoWritten(Round(0), written));
        assert!(said(run.effects(0)).is_empty());
        let parcels = prepare(&mut run, effects);
        bring_all(&mut run, parcels);
        assert!(delivered(run.effects(0), &run).is_some());
    }
}

#[test]
fn a_contribution_that_is_lost_holds_nobody_up() {
    let (mut run, effects) = Run::exchanging();
    run.tell(0, NodeInput::EchoWritten(Round(0), None));
    assert!(effects.iter().any(|effect| matches!(effect, NodeEffect::Prepare { .. })));
    run.tell(0, NodeInput::Prepared { round: Round(0), attempt: 0, parts: Vec::new() });
    assert_eq!(delivered(run.effects(0), &run), Some(Vec::new()));
}

#[test]
fn round_24_what_an_aggregator_does_not_take_goes_to_the_steward() {
    let steward = identity(101).id();
    for takes in [true, false] {
        let (mut run, effects) = Run::exchanging();
        run.tell(0, NodeInput::EchoWritten(Round(0), None));
        let mut parcels = prepare(&mut run, effects);
        let refused = parcels.iter().position(|parcel| parcel.keeper != steward).unwrap();
        let refused = parcels.remove(refused);
        // ROUND-3: what another one has signed is no receipt.
        let forged = run.receipt(0, &refused, &identity(0).id());
        assert!(refused.keeper != identity(0).id() && forged.is_some());
        run.tell(0, NodeInput::Brought(refused.clone(), forged));
        let relayed = self::parcels(&run.effects(0)).pop().unwrap();
        assert!(relayed.relayed && relayed.keeper == steward && relayed.part == refused.part);
        assert!(relayed.within < refused.within);
        bring_all(&mut run, parcels);
        assert_eq!(delivered(run.effects(0), &run), None, "a parcel is on its way");
        let receipt = run.receipt(0, &relayed, &steward).filter(|_| takes);
        run.tell(0, NodeInput::Brought(relayed, receipt));
        let parts = delivered(run.effects(0), &run).unwrap();
        assert_eq!(parts.contains(&refused.part), takes);
        assert!(!parts.is_empty());
    }
}

#[test]
fn ledger_13_a_return_that_is_refused_is_said_again_with_the_next_news() {
    let mut run = Run::new();
    // The first node commits to nothing, and is away.
    (1..NODES).for_each(|number| {
        run.follow(number);
        run.work(number);
    });
    run.hand(steward::StewardInput::Connected(identity(0).id(), false));
    run.wait(LONG);
    assert_eq!(run.ledger.stage(), Stage::Exchanging);
    (1..NODES).for_each(|number| {
        run.follow(number);
        run.work(number);
    });
    let back = |run: &mut Run| {
        run.follow(0);
        let said = said(run.effects(0)).into_iter();
        said.filter(|request| matches!(request, Request::Notice(Notice::Return(_)))).collect::<Vec<_>>()
    };
    let first = back(&mut run).pop().unwrap();
    assert!(back(&mut run).is_empty(), "it waits for the answer");
    run.tell(0, NodeInput::Told(Box::new(first), None));
    assert!(said(run.effects(0)).is_empty(), "it waits for news");
    let again = back(&mut run).pop().unwrap();
    run.tell(0, NodeInput::Told(Box::new(again), Some(Response::Done)));
    assert!(back(&mut run).is_empty(), "the record is on its way");
}

#[test]
fn an_interrupted_node_finishes_its_round() {
    let mut run = Run::new();
    run.follow(0);
    run.tell(0, NodeInput::Interrupt);
    assert_eq!(run.work(0), None);
    run.until(Stage::Exchanging);
    run.follow(0);
    assert_eq!(run.work(0), None);
    run.tell(0, NodeInput::Applied(Round(0)));
    assert_eq!(run.work(0), Some(MembershipEnd::Interrupted));
    // Before its first round it ends at once.
    let mut idle = node(0, &Arc::new(Ledger::new(run.ledger.manifest().clone())));
    idle.handle(0, NodeInput::Interrupt);
    let effects: Vec<NodeEffect> = std::iter::from_fn(|| idle.poll_effect()).collect();
    assert!(matches!(
        effects[..],
        [NodeEffect::Tell(Milestone::Stopping), NodeEffect::End(MembershipEnd::Interrupted)]
    ));
}

#[test]
fn commit_4_a_commitment_with_a_receipt_that_is_not_frozen_ends_the_membership() {
    let mut run = Run::new();
    run.follow(0);
    // It has a receipt for what the steward then leaves out.
    let view = run.ledger.current().unwrap();
    let slot = view.slot_of(&identity(0).id()).unwrap();
    let signed = identity(0).sign(run.ledger.run(), &commit(view, slot));
    let receipt = CommitReceipt { commit: signed.digest(), round: view.round() };
    let receipt = identity(101).sign(run.ledger.run(), &receipt);
    (1..NODES).for_each(|number| {
        run.follow(number);
        run.work(number);
    });
    run.tell(0, NodeInput::Told(Box::new(Request::Commit(signed)), Some(Response::Committed(receipt))));
    run.effects(0);
    run.wait(LONG);
    run.follow(0);
    assert!(matches!(run.work(0), Some(MembershipEnd::Convicted(..))));
}

#[test]
fn a_convict_serves_for_a_while_after_its_last_round() {
    let mut run = Run::new();
    // The first node says two things of one round.
    let view = run.ledger.current().unwrap();
    let slot = view.slot_of(&identity(0).id()).unwrap();
    let said = Commit { loss: 2, ..commit(view, slot) };
    let second = identity(0).sign(run.ledger.run(), &said);
    run.follow(0);
    assert_eq!(run.work(0), None);
    run.ask(identity(0).id(), Request::Commit(second));
    let accusation = run.hearing.take().unwrap();
    let (culprit, round) = (accusation.claim.culprit, accusation.claim.round);
    let (finding, detail) = (FindingKind::Equivocation, String::new());
    let judgement = Judgement::Guilty { culprit, round, finding, detail };
    let ruling = Box::new(Ruling::plain(accusation.evidence.clone(), judgement));
    run.hand(steward::StewardInput::Heard(accusation, ruling));
    run.follow(0);
    let effects = run.effects(0);
    assert!(effects.iter().any(|effect| matches!(effect, NodeEffect::Tell(Milestone::Banned))));
    assert!(effects.iter().any(|effect| matches!(effect, NodeEffect::FetchEvidence(_))));
    let ban = effects.into_iter().find_map(|effect| match effect {
        NodeEffect::FetchEvidence(ban) => Some(ban),
        _ => None,
    });
    let effective = ban.unwrap().effective;
    for _ in 0..20 {
        if run.ledger.next_round() >= effective {
            break;
        }
        (1..NODES).for_each(|number| {
            run.follow(number);
            run.work(number);
        });
        run.apply();
        run.wait(LONG);
    }
    assert!(run.ledger.next_round() >= effective, "its last round is over");
    run.follow(0);
    run.tell(0, NodeInput::Tick);
    assert_eq!(run.work(0), None, "others need what it holds");
    let due = run.nodes[0].poll_timeout().unwrap();
    run.now = due;
    run.tell(0, NodeInput::Tick);
    assert!(matches!(run.work(0), Some(MembershipEnd::Banned(ban)) if ban.culprit == identity(0).id()));
}
