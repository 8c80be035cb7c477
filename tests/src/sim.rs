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
use muster_core::messages::round::{Bitmap, Commit, Delivered, Echo, PartResult, Receipt};
use muster_core::round::{Conductor, Duties, Duty, Output};
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
}

struct Peer {
    identity: Identity,
    ledger: Ledger,
    duties: Duties,
    behaviour: Behaviour,
    alive: bool,
}

enum Event {
    Records(usize),
    Commit(Signed<Commit>),
    Echo(Signed<Echo>),
    Delivered(Signed<Delivered>),
    Result(Signed<PartResult>),
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
            let duties = Duties::new(identity.id());
            Peer { duties, identity, ledger: ledger.clone(), behaviour: *behaviour, alive: true }
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
            Event::Result(signed) => drop(self.conductor.result(now, signed)),
            Event::Applied => {
                let step = self.conductor.ledger().state().step + 1;
                self.conductor.applied(now, Ok(surrogate_state(step)));
            }
            Event::Gone(member) => self.conductor.live(now, member, false),
            Event::Tick => self.conductor.tick(now),
        }
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
                let digest = part_digest(round, part, &inputs);
                let signed = peer.identity.sign(run, &PartResult { round, part, attempt, inputs, digest });
                self.after(20, 100, Event::Result(signed));
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
