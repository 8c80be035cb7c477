//! A whole run in one process and virtual time: no socket, no disk, no clock.
//!
//! Everything that decides something is the product's: the machines of steward, nodes and verifiers, ledgers, the judge,
//! aggregation, arithmetic, optimiser, commitments, signatures. The simulator carries messages, each with a random delay,
//! and lets a member think as long as its leaves take. Two things are shared because all honest members have the same bits
//! of them: one ledger that follows the steward's, looked at by each member as far as it has come, and one state.
//!
//! Everything follows from the seed of the [`Plan`]; [`Sim::trace`] tells whether two runs were the same.

mod blocks;
mod book;
mod clock;
mod experts;
mod latecomers;
mod law;
mod node;
mod plan;
mod report;
mod steward;
mod watcher;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use muster_compute::{Exact, Machine};
use muster_core::codec::List;
use muster_core::hash::{Domain, Hasher};
use muster_core::ids::{Digest, MemberId, Part, Round, RunId};
use muster_core::layout::Layout;
use muster_core::ledger::{Ledger, Stage};
use muster_core::manifest::{Manifest, Profile};
use muster_core::messages::enrol::{CloseTree, Enrol, Invitation, InvitationSecret, Role};
use muster_core::messages::record::Record;
use muster_core::messages::round::PartResult;
use muster_core::messages::wire::{Notice, Request};
use muster_core::sign::{Identity, Signed};
use muster_core::state::{State, Update};
use muster_replica::Replica;
use muster_roles::steward::{Question, Steward, StewardInput, StewardSetup};
use muster_store::dataset::Dataset;
use muster_verifier::AuditWorker;

use book::Book;
use clock::{Clock, Event};
pub use experts::{Experts, mixture};
use law::Law;
pub use law::Longest;
use node::{Node, addresses};
pub use plan::{Behaviour, Plan, Player, Temper, cast, places};
pub use report::{Conviction, Left, Report, WrongPart};
use steward::Disk;
use watcher::Watcher;

/// A contribution's integers, by round and author.
type Contributions = BTreeMap<(Round, MemberId), Arc<Vec<i32>>>;
/// Values of reduced parts, block by block, by round, part and digest.
type Reduced = BTreeMap<(Round, Part, Digest), Vec<Vec<f32>>>;

/// A simulated run.
pub struct Sim {
    plan: Plan,
    manifest: Arc<Manifest>,
    run: RunId,
    layout: Layout,
    dataset: Arc<Dataset>,
    organiser: Identity,
    steward: Arc<Identity>,
    machine: Steward,
    /// When its process began, and what it has on its disk.
    began: u64,
    disk: Disk,
    /// Requests that the steward was asked, and those of nodes that it has not answered yet.
    questions: u64,
    unanswered: BTreeMap<Question, (usize, Box<Request>)>,
    /// The sealed records, and the ledger after each of the last ones.
    book: Book,
    board: Vec<Notice>,
    /// Which node an audit is about, by the digest of its request.
    asked: BTreeMap<Digest, (usize, Round)>,
    /// The round's results on the board, in order.
    results: Vec<Signed<PartResult>>,
    /// Parts that went to the steward because an aggregator did not take them.
    relayed: usize,
    nodes: Vec<Node>,
    watchers: Vec<Watcher>,
    replica: Replica,
    arithmetic: Exact,
    worker: AuditWorker,
    contributions: Contributions,
    reduced: Reduced,
    /// Aggregates of which a row may take a step later.
    aggregates: BTreeMap<Round, Arc<Update>>,
    /// Parts that are not what the rule gave, by their digests: how many of their blocks differ.
    distorted: BTreeMap<Digest, usize>,
    /// Parts that count something false, by round and node.
    false_parts: BTreeMap<(Round, usize), BTreeSet<Part>>,
    /// What the conductor asked to apply.
    applying: VecDeque<Vec<Option<Signed<PartResult>>>>,
    law: Law,
    /// Whether the steward's ledger or its docket may have changed since the law was checked.
    unchecked: bool,
    clock: Clock,
    trace: Hasher,
    report: Report,
}

impl Sim {
    /// A run that has not begun.
    ///
    /// # Panics
    /// When the plan makes no manifest, or this machine cannot compute in defined bits.
    pub fn new(plan: Plan) -> Self {
        let organiser = Identity::from_secret(&[1; 32]);
        let steward = Arc::new(Identity::from_secret(&[2; 32]));
        let dataset = Arc::new(plan.dataset());
        let manifest = Arc::new(plan.manifest(&organiser, &steward, dataset.data()));
        let ledger = Ledger::new(manifest.clone());
        let replica = Replica::genesis(manifest.clone(), dataset.clone(), 1, None).expect("a processor");
        let shared = Arc::new(ledger.clone());
        let mut sim = Self {
            nodes: (0..plan.players.len()).map(|number| Node::new(&plan, number, &shared)).collect(),
            watchers: (0..plan.verifiers).map(|number| Watcher::new(&plan, &ledger, number)).collect(),
            worker: AuditWorker::new(manifest.clone(), &Machine::new(1, None)).expect("a processor"),
            arithmetic: Exact::new(1, None).expect("a processor"),
            run: manifest.run(),
            layout: Layout::of_run(&manifest),
            machine: Steward::new(StewardSetup {
                ledger,
                identity: steward.clone(),
                roots: replica.roots().clone(),
                states: replica.kept_states().collect(),
                bans: Vec::new(),
                kept: Vec::new(),
            }),
            began: 0,
            disk: Disk::default(),
            questions: 0,
            unanswered: BTreeMap::new(),
            book: Book::new(shared),
            board: Vec::new(),
            asked: BTreeMap::new(),
            results: Vec::new(),
            relayed: 0,
            contributions: Contributions::new(),
            reduced: Reduced::new(),
            aggregates: BTreeMap::new(),
            distorted: BTreeMap::new(),
            false_parts: BTreeMap::new(),
            applying: VecDeque::new(),
            law: Law::default(),
            unchecked: true,
            clock: Clock::new(plan.seed),
            trace: Hasher::new(Domain::LEDGER),
            report: Report::default(),
            manifest,
            dataset,
            organiser,
            steward,
            replica,
            plan,
        };
        sim.open();
        sim
    }

    fn open(&mut self) {
        self.drain();
        for number in 0..self.nodes.len() {
            if self.nodes[number].player.joins.is_none() {
                self.enter(number);
                assert!(self.ledger().member(&self.id(number)).is_some(), "a good enrolment");
            }
        }
        for number in 0..self.watchers.len() {
            let id = self.watchers[number].identity.id();
            let mut enrol = self.enrol(Role::Verifier, false, number as u32, id);
            enrol.addresses = List::default();
            enrol.coins = Some(self.watchers[number].terms.clone());
            let signed = self.watchers[number].identity.sign(self.run, &enrol);
            self.admit(signed, id);
            assert!(self.ledger().member(&id).is_some(), "a good enrolment");
        }
    }

    /// A node enrols.
    fn enter(&mut self, number: usize) {
        let id = self.id(number);
        let founder = number < self.plan.founders && self.nodes[number].player.joins.is_none();
        let enrol = self.enrol(Role::Node, founder, number as u32, id);
        let signed = self.nodes[number].identity.sign(self.run, &enrol);
        self.admit(signed, id);
    }

    fn enrol(&self, role: Role, founder: bool, number: u32, newcomer: MemberId) -> Enrol {
        let mut secret = [0; 32];
        secret[..4].copy_from_slice(&number.to_le_bytes());
        let secret = InvitationSecret::new(secret);
        let invitation = Invitation { role, uses: 1, expires: u64::MAX, key: secret.key(), founder };
        let invitation = self.organiser.sign(self.run, &invitation);
        Enrol {
            invitation: Some(secret.present(self.run, invitation, newcomer)),
            addresses: addresses(number as usize),
            coins: None,
            name: Default::default(),
            engagement: Default::default(),
        }
    }

    fn admit(&mut self, signed: Signed<Enrol>, id: MemberId) {
        self.ask(id, Box::new(Request::Enrol(signed)));
        self.hand(StewardInput::Connected(id, true));
    }

    /// Has the organiser close a node's tree of invitations.
    ///
    /// # Panics
    /// When it is closed already.
    pub fn close_tree(&mut self, number: usize) {
        let order = self.organiser.sign(self.run, &CloseTree { member: self.id(number) });
        self.ledger().check_close_tree(&order).expect("a good order");
        self.ask(self.organiser.id(), Box::new(Request::CloseTree(order)));
    }

    /// Runs until the run is closed, or for this many virtual milliseconds.
    pub fn run(&mut self, most: u64) {
        while self.ledger().stage() != Stage::Closed && self.clock.now() < most {
            let Some(event) = self.clock.next() else { break };
            self.handle(event);
            self.check_law();
            // Afterwards: the docket of a steward that goes on with a closed run knows nothing of the last verdict.
            if self.restart_by_chance() {
                self.check_law();
            }
        }
        (0..self.nodes.len()).for_each(|number| self.catch_up(number));
    }

    /// No case is lost, whatever happened, in `exact`: with a tolerance a case may wait for jurors, whom no round waits for.
    fn check_law(&mut self) {
        if self.manifest.profile != Profile::Exact || !std::mem::take(&mut self.unchecked) {
            return;
        }
        let (now, ledger) = (self.clock.now(), self.machine.ledger());
        if let Err(lost) = self.law.check(now, ledger, self.machine.docket()) {
            panic!("seed {}, after {now} ms: {lost}", self.plan.seed);
        }
    }

    /// Runs to the end and gives what happened.
    ///
    /// # Panics
    /// When the run does not end within a virtual day.
    pub fn finish(mut self) -> Report {
        self.run(24 * 3_600_000);
        let (seed, stage, round) = (self.plan.seed, self.ledger().stage(), self.ledger().next_round());
        let waits = self.machine.docket().open_cases(self.ledger()).next();
        assert_eq!(
            stage,
            Stage::Closed,
            "seed {seed}: the run did not end: {stage:?} at round {round}, waiting for {waits:?}"
        );
        self.report.root = self.replica.state().root();
        self.report.trace = self.trace();
        self.report.longest = self.law.longest();
        let uncredited: Vec<_> = self.law.uncredited().collect();
        assert!(uncredited.is_empty(), "seed {}: passes were never credited: {uncredited:?}", self.plan.seed);
        self.report.verdicts = self.watchers.iter().map(|watcher| watcher.tally().passed).sum();
        self.report
    }

    /// What has happened so far.
    pub fn report(&self) -> &Report {
        &self.report
    }

    /// Members that no round waits for because they did not check its results.
    pub fn stalling(&self) -> Vec<MemberId> {
        self.machine.stalling().copied().collect()
    }

    /// Parts that went to the steward because an aggregator did not take them.
    pub fn relayed(&self) -> usize {
        self.relayed
    }

    /// The steward's ledger.
    pub fn ledger(&self) -> &Ledger {
        self.machine.ledger()
    }

    /// The state after all that was applied.
    pub fn state(&self) -> &State {
        self.replica.state()
    }

    /// All sealed records.
    pub fn records(&self) -> impl Iterator<Item = Record> {
        self.book.records().iter().map(|record| Record::clone(record))
    }

    /// Heads of the ledgers of all living nodes.
    pub fn heads(&self) -> Vec<Digest> {
        self.nodes.iter().filter(|node| node.alive).map(|node| node.machine.ledger().head()).collect()
    }

    /// Id of a node.
    pub fn id(&self, number: usize) -> MemberId {
        self.nodes[number].identity.id()
    }

    /// Digest of everything that was sealed, with its times: commitments, results, bans and states are in it.
    pub fn trace(&self) -> Digest {
        self.trace.finish()
    }

    /// Virtual milliseconds that have passed.
    pub fn now(&self) -> u64 {
        self.clock.now()
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Records(number) => self.catch_up(number),
            Event::Join(number) => self.join(number),
            Event::Fetched(number, wanted) => self.fetched(number, wanted),
            Event::Ask(from, request) => self.ask(from, request),
            Event::Shown(number) => self.shown(number),
            Event::Hear(accusation, matter) => self.heard(accusation, &matter),
            Event::Inspect(accusation, matter) => self.inspect(accusation, &matter),
            Event::Exhibit(owed) => self.exhibit(owed),
            Event::Measure(convict) => self.measured(convict),
            Event::Unavailable(result) => self.hand(StewardInput::Obtained(result, false)),
            Event::Applied => self.apply(),
            Event::Gone(member) => self.hand(StewardInput::Connected(member, false)),
            Event::Back(member) => self.hand(StewardInput::Connected(member, true)),
            Event::Tick => self.hand(StewardInput::Tick),
            Event::Asked(number, notice) => self.answer(number, *notice),
            Event::Watch(number) => self.watch(number),
            Event::Worked(number, process, work, done) => self.worked(number, process, work, *done),
            Event::Alarm(number) => self.alarm(number),
        }
    }
}
