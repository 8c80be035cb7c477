//! A run in virtual time: the real conductor, ledgers, duties and signatures; surrogate gradients and states.
//!
//! Messages take random times on every link; everything follows from one seed, and a digest of the trace tells whether
//! two runs were the same.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;

use muster_core::codec::{List, Text};
use muster_core::hash::{Domain, Hasher, below};
use muster_core::ids::{Digest, MemberId, Part, Round, RunId};
use muster_core::ledger::{Ledger, RoundView, Stage};
use muster_core::manifest::Manifest;
use muster_core::messages::enrol::{Enrol, Invitation, Role};
use muster_core::messages::record::{Body, Record};
use muster_core::messages::round::{Bitmap, Checked, Commit, Delivered, Echo, PartResult, Receipt};
use muster_core::round::{Check, Checks, Conductor, Duties, Duty, Output};
use muster_core::sign::{Identity, Signed};
use muster_core::state::StateRoots;
use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};

use crate::manifests::tiny;

/// What a member does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behaviour {
    /// Nothing.
    Honest,
    /// Its process dies when it first sees this stage of this round.
    Dies(Round, Stage),
    /// Commits, never delivers.
    Withholds,
    /// Takes parts in, never reduces them.
    NeverReduces,
    /// Never commits, but stays connected.
    Mute,
    /// Signs parts that are not what the rule gives.
    ReducesWrongly,
    /// Signs two results for its part.
    ReducesTwice,
    /// Objects to every block.
    Objects,
    /// Never says what it thinks of the results.
    NeverChecks,
}

struct Peer {
    identity: Identity,
    ledger: Ledger,
    duties: Duties,
    checks: Checks,
    behaviour: Behaviour,
    alive: bool,
}

enum Event {
    Records(usize),
    Commit(Signed<Commit>),
    Echo(Signed<Echo>),
    Delivered(Signed<Delivered>),
    Result(Signed<PartResult>),
    Shown(usize, Signed<PartResult>),
    Checked(Signed<Checked>),
    Inspected(PartResult),
    Applied,
    Gone(MemberId),
    Tick,
}

/// A simulated run.
pub struct Sim {
    manifest: Arc<Manifest>,
    steward: Identity,
    conductor: Conductor,
    records: Vec<Signed<Record>>,
    peers: Vec<Peer>,
    events: BTreeMap<u64, Event>,
    queue: BinaryHeap<Reverse<(u64, u64)>>,
    next: u64,
    now: u64,
    random: ChaCha8Rng,
    trace: Hasher,
    /// Parts that were reduced again, and whether they were right.
    inspections: Vec<(PartResult, bool)>,
}

impl Sim {
    /// A run with one node for each behaviour.
    pub fn new(seed: u64, rounds: u32, behaviours: &[Behaviour]) -> Self {
        Self::with(seed, (rounds, behaviours), behaviours.len(), |_| ())
    }

    /// The same with another manifest; the first so many nodes are founders.
    pub fn with(
        seed: u64,
        (rounds, behaviours): (u32, &[Behaviour]),
        founders: usize,
        change: impl FnOnce(&mut Manifest),
    ) -> Self {
        let organiser = Identity::from_secret(&[1; 32]);
        let steward = Identity::from_secret(&[2; 32]);
        let mut manifest = tiny(organiser.id(), steward.id(), rounds, behaviours.len() as u16);
        change(&mut manifest);
        let manifest = Arc::new(manifest);
        let ledger = Ledger::new(manifest.clone());
        let peers = behaviours.iter().enumerate().map(|(number, behaviour)| {
            let identity = Identity::from_secret(&[number as u8 + 10; 32]);
            let (duties, checks) = (Duties::new(identity.id()), Checks::new(identity.id()));
            Peer { duties, checks, identity, ledger: ledger.clone(), behaviour: *behaviour, alive: true }
        });
        let mut sim = Self {
            peers: peers.collect(),
            conductor: Conductor::new(ledger, 0),
            manifest,
            steward,
            records: Vec::new(),
            events: BTreeMap::new(),
            queue: BinaryHeap::new(),
            next: 0,
            now: 0,
            random: ChaCha8Rng::seed_from_u64(seed),
            trace: Hasher::new(Domain::LEDGER),
            inspections: Vec::new(),
        };
        sim.open(&organiser, founders);
        sim
    }

    fn run_id(&self) -> RunId {
        self.manifest.run()
    }

    fn open(&mut self, organiser: &Identity, founders: usize) {
        self.conductor.propose(Body::Open(surrogate_state(0)));
        self.drain();
        for number in 0..self.peers.len() {
            let run = self.run_id();
            let (nonce, founder) = ([number as u8; 16], number < founders);
            let invitation = Invitation { role: Role::Node, uses: 1, expires: u64::MAX, nonce, founder };
            let enrol = Enrol {
                invitation: Some(organiser.sign(run, &invitation)),
                addresses: List::new(vec![Text::new(format!("sim:{number}")).expect("short")]).expect("one"),
                coins: None,
            };
            let identity = &self.peers[number].identity;
            let (signed, id) = (identity.sign(run, &enrol), identity.id());
            self.conductor.ledger().check_enrol(&signed).expect("a good enrolment");
            self.conductor.propose(Body::Admit(signed));
            self.drain();
            self.conductor.live(self.now, id, true);
            self.drain();
        }
    }

    /// Runs until the last outcome is sealed, or for this many virtual milliseconds.
    pub fn run(&mut self, most: u64) {
        while self.conductor.ledger().stage() != Stage::Auditing && self.now < most {
            let Some(Reverse((time, number))) = self.queue.pop() else { break };
            self.now = time;
            let Some(event) = self.events.remove(&number) else { continue };
            self.handle(event);
            self.drain();
        }
        let heights = self.records.len();
        for number in 0..self.peers.len() {
            if self.peers[number].alive {
                self.catch_up(number, heights);
            }
        }
    }

    /// The steward's ledger.
    pub fn ledger(&self) -> &Ledger {
        self.conductor.ledger()
    }

    /// All sealed records.
    pub fn records(&self) -> impl Iterator<Item = Record> {
        let run = self.run_id();
        self.records.iter().map(move |signed| signed.verify(run).expect("sealed by the steward").into_inner())
    }

    /// Heads of the ledgers of all living members.
    pub fn heads(&self) -> Vec<Digest> {
        self.peers.iter().filter(|peer| peer.alive).map(|peer| peer.ledger.head()).collect()
    }

    /// Id of a node.
    pub fn id(&self, number: usize) -> MemberId {
        self.peers[number].identity.id()
    }

    /// Digest of everything that happened, with its times.
    pub fn trace(&self) -> Digest {
        self.trace.finish()
    }

    /// Virtual milliseconds that have passed.
    pub fn now(&self) -> u64 {
        self.now
    }

    fn after(&mut self, least: u64, spread: u64, event: Event) {
        let delay = least + below(self.random.next_u64(), spread);
        self.events.insert(self.next, event);
        self.queue.push(Reverse((self.now + delay, self.next)));
        self.next += 1;
    }

    fn drain(&mut self) {
        while let Some(output) = self.conductor.poll_output() {
            match output {
                Output::Seal(body) => {
                    let record = self.conductor.ledger().record(body);
                    let signed = self.steward.sign(self.run_id(), &record);
                    if self.conductor.sealed(self.now, &signed).is_ok() {
                        self.trace = self.trace.clone().value(&self.now).value(&record.head());
                        self.records.push(signed);
                        (0..self.peers.len()).for_each(|number| self.after(5, 40, Event::Records(number)));
                    }
                }
                Output::Apply(_) => self.after(10, 20, Event::Applied),
                Output::Inspect(signed) => {
                    let result = signed.verify(self.run_id()).expect("the conductor has checked it");
                    self.after(20, 50, Event::Inspected(result.into_inner()));
                }
            }
        }
        if let Some(timeout) = self.conductor.poll_timeout() {
            let wait = timeout.saturating_sub(self.now);
            if wait > 0 && !self.events.values().any(|event| matches!(event, Event::Tick)) {
                self.after(wait, 1, Event::Tick);
            }
        }
    }

    fn handle(&mut self, event: Event) {
        let now = self.now;
        match event {
            Event::Records(number) => {
                if self.peers[number].alive {
                    let heights = self.records.len();
                    self.catch_up(number, heights);
                }
            }
            // A refusal is part of the run: late and repeated messages are dropped.
            Event::Commit(signed) => drop(self.conductor.commit(now, signed)),
            Event::Echo(signed) => drop(self.conductor.echo(now, signed)),
            Event::Delivered(signed) => drop(self.conductor.delivered(now, &signed)),
            Event::Result(signed) => self.result(signed),
            Event::Shown(number, signed) => {
                // The board's news begin with the records that were sealed before.
                self.catch_up(number, self.records.len());
                let peer = &mut self.peers[number];
                drop(peer.checks.saw(&peer.ledger, &signed));
                self.look(number);
            }
            Event::Checked(signed) => drop(self.conductor.checked(now, &signed)),
            Event::Inspected(result) => {
                let right = result.digest == part_digest(result.round, result.part, &result.inputs);
                self.conductor.inspected(now, &result, right);
                self.inspections.push((result, right));
            }
            Event::Applied => {
                let step = self.conductor.ledger().state().step + 1;
                self.conductor.applied(now, Ok(surrogate_state(step)));
            }
            Event::Gone(member) => self.conductor.live(now, member, false),
            Event::Tick => self.conductor.tick(now),
        }
    }

    /// Parts that were reduced again, and whether they were right.
    pub fn inspections(&self) -> &[(PartResult, bool)] {
        &self.inspections
    }

    /// Members that no round waits for because they did not check its results.
    pub fn stalling(&self) -> Vec<MemberId> {
        self.conductor.stalling().copied().collect()
    }

    /// The steward takes a result, and shows it, or has two of them.
    fn result(&mut self, signed: Signed<PartResult>) {
        let said = signed.verify(self.run_id()).expect("signed by a member").into_inner();
        let held = self.conductor.held_result(said.part).cloned();
        if held.is_some_and(|held| held.claimed_signer() == signed.claimed_signer() && held != signed) {
            self.conductor.contest(&said);
        }
        if self.conductor.result(self.now, signed.clone()).is_ok() {
            (0..self.peers.len()).for_each(|number| self.after(5, 40, Event::Shown(number, signed.clone())));
        }
    }

    /// A peer compares what it has seen with what it would have reduced.
    fn look(&mut self, number: usize) {
        let run = self.run_id();
        let peer = &mut self.peers[number];
        if !peer.alive || peer.behaviour == Behaviour::NeverChecks {
            return;
        }
        let Some(check) = peer.checks.due(&peer.ledger) else { return };
        let view = peer.ledger.current().expect("results are of a round");
        let far = |(part, digest): &&(Part, Digest)| {
            let right = part_digest(check.round, *part, &view.inputs()[part.index()]);
            peer.behaviour == Behaviour::Objects || *digest != right
        };
        let blocks = |(part, _): &(Part, Digest)| (*part, view.parts()[part.index()].blocks.clone());
        let objections = check.parts.iter().filter(far).map(blocks).collect();
        let signed = peer.identity.sign(run, &Check::word(&check, &objections));
        self.after(5, 40, Event::Checked(signed));
    }

    fn catch_up(&mut self, number: usize, heights: usize) {
        while self.peers[number].ledger.height().index() < heights && self.peers[number].alive {
            let height = self.peers[number].ledger.height().index();
            let record = self.records[height].clone();
            let peer = &mut self.peers[number];
            peer.ledger.apply(&record).expect("an honest steward's records apply");
            let at = peer.ledger.current().map(RoundView::round);
            if let Behaviour::Dies(round, stage) = peer.behaviour
                && at == Some(round)
                && peer.ledger.stage() == stage
            {
                peer.alive = false;
                let id = peer.identity.id();
                self.after(200, 100, Event::Gone(id));
            }
        }
        let peer = &mut self.peers[number];
        let duties = if peer.alive { peer.duties.due(&peer.ledger) } else { Vec::new() };
        duties.into_iter().for_each(|duty| self.perform(number, duty));
        self.look(number);
    }

    fn perform(&mut self, number: usize, duty: Duty) {
        let run = self.run_id();
        let peer = &self.peers[number];
        let view = peer.ledger.current().expect("a duty has a round").clone();
        let me = peer.identity.id();
        match duty {
            Duty::Compute { round, slot, quota } if peer.behaviour != Behaviour::Mute => {
                let commit = Commit {
                    round,
                    head: view.head(),
                    state: view.state().root(),
                    slot,
                    seats: view.seats().len() as u16,
                    leaves: quota,
                    profile: self.manifest.profile,
                    loss: 1,
                    root: surrogate(round, &me),
                };
                let signed = peer.identity.sign(run, &commit);
                self.after(100, 400, Event::Commit(signed));
            }
            Duty::Echo { round, freeze } => {
                let signed = peer.identity.sign(run, &Echo { round, freeze });
                self.after(5, 40, Event::Echo(signed));
            }
            Duty::Deliver { round, attempt, parts } if peer.behaviour != Behaviour::Withholds => {
                let receipts = parts
                    .iter()
                    .filter_map(|(part, aggregator)| self.receipt(round, *part, attempt, me, aggregator));
                let receipts = List::new(receipts.collect()).expect("bounded by parts");
                let signed = self.peers[number].identity.sign(run, &Delivered { round, attempt, receipts });
                self.after(20, 100, Event::Delivered(signed));
            }
            Duty::Reduce { round, part, attempt, inputs } if peer.behaviour != Behaviour::NeverReduces => {
                let freeze = view.freeze_digest().expect("inputs follow a freeze");
                let digest = part_digest(round, part, &inputs);
                let wrong = PartResult { round, part, attempt, freeze, inputs, digest: Digest([9; 32]) };
                let right = PartResult { digest, ..wrong.clone() };
                let said = match peer.behaviour {
                    Behaviour::ReducesWrongly => vec![wrong],
                    Behaviour::ReducesTwice => vec![wrong, right],
                    _ => vec![right],
                };
                let signed: Vec<_> = said.iter().map(|result| peer.identity.sign(run, result)).collect();
                signed.into_iter().for_each(|signed| self.after(20, 100, Event::Result(signed)));
            }
            _ => {}
        }
    }

    fn receipt(
        &self,
        round: Round,
        part: Part,
        attempt: u8,
        sender: MemberId,
        aggregator: &MemberId,
    ) -> Option<Signed<Receipt>> {
        let keeper = self.peers.iter().find(|peer| peer.identity.id() == *aggregator && peer.alive);
        let keeper = keeper.map(|peer| &peer.identity);
        let keeper = keeper.or((*aggregator == self.steward.id()).then_some(&self.steward))?;
        let receipt = Receipt { round, part, attempt, sender, root: surrogate(round, &sender) };
        Some(keeper.sign(self.run_id(), &receipt))
    }
}

fn surrogate(round: Round, member: &MemberId) -> Digest {
    Hasher::new(Domain::PART).value(&round).value(member).finish()
}

fn part_digest(round: Round, part: Part, inputs: &Bitmap) -> Digest {
    Hasher::new(Domain::PART).value(&round).value(&part).value(inputs).finish()
}

fn surrogate_state(step: u32) -> StateRoots {
    let digest = Hasher::new(Domain::STATE).value(&step).finish();
    StateRoots {
        step,
        beta_powers: [0; 2],
        exponents: digest,
        parameters: digest,
        first: digest,
        second: digest,
    }
}
