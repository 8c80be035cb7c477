//! Audits of one verifier, with leaves that are really computed: what it asks, finds and says.
#![allow(clippy::unwrap_used)] // the helpers, too, are tests

use std::collections::BTreeMap;
use std::sync::Arc;

use muster_compute::{Exact, Machine, Path};
use muster_core::assign;
use muster_core::audit::docket::Docket;
use muster_core::audit::{Witness, judge};
use muster_core::codec::Real;
use muster_core::coins::{CoinTerms, CoinTree};
use muster_core::contribution::Commitment;
use muster_core::ids::{Block, Leaf};
use muster_core::layout::Layout;
use muster_core::manifest::fixture::tiny;
use muster_core::manifest::{
    Admission, Audit, Manifest, Profile, Rollback, Timers, Tokeniser, TokeniserFile, Tolerance,
};
use muster_core::messages::audit::{Finding, FindingKind, Jury, Rows, TableOpening, TableSeal, table_seal};
use muster_core::messages::enrol::{Enrol, Invitation, InvitationSecret, Leave, Role};
use muster_core::messages::record::{Freeze, Outcome};
use muster_core::messages::round::{Commit, Echo};
use muster_core::messages::wire::BlockData;
use muster_core::state::{Arithmetic, LeafJob, State};
use muster_store::home::Home;
use muster_store::journal::Journal;

use muster_core::audit::{Judgement, probe};
use muster_core::ids::{Digest, MemberId, Round, RunId, Slot};
use muster_core::ledger::{Event, Ledger, RoundView, Standing};
use muster_core::messages::audit::{AuditRequest, Duty, Results};
use muster_core::messages::evidence::Evidence;
use muster_core::messages::record::Body;
use muster_core::messages::wire::Notice;
use muster_core::sign::Identity;
use muster_roles::verifier::audits::{Audits, Done, Message, Stop, Tally, WorkKind};
use muster_roles::verifier::coins::Coins;
use muster_verifier::{AuditWorker, Journaled};

mod coins;
mod duty;
mod tolerance;
mod verdicts;

const SEQUENCE: u32 = 8;

fn real(value: f32) -> Real {
    Real::new(value).unwrap()
}

fn id(secret: u8) -> Identity {
    Identity::from_secret(&[secret; 32])
}

fn manifest(share_ppm: u32, final_rounds: u32) -> Manifest {
    let mut manifest = tiny(id(1).id(), id(2).id(), 1 + u32::from(final_rounds == 0), 2);
    manifest.model.vocabulary = 32;
    manifest.data.tokeniser =
        Tokeniser::File(TokeniserFile { digest: Digest::default(), bytes: 1, tokens: 32 });
    (manifest.training.leaves, manifest.training.leaf_windows) = (6, 2);
    manifest.audit =
        Audit { share_ppm, leaves: 2, coin_lead: 1, final_rounds, recheck_ppm: 1_000_000, blocks_ppm: 0 };
    manifest.admission = Admission::closed(2, 1, 8);
    manifest.timers = Timers { commit: 1000, part: 1000, result: 1000, audit: 1000, final_audit: 1000 };
    manifest.retention.contributions = 4;
    manifest.check().unwrap();
    manifest
}

/// The text is a function of the place; states and contributions are those that the test made.
#[derive(Clone)]
struct Memory {
    state: State,
    contributions: BTreeMap<(Round, MemberId), Vec<i32>>,
}

fn window(index: u64) -> Vec<u32> {
    (0..=u64::from(SEQUENCE)).map(|at| ((index * 8 + at) * 7 % 31) as u32).collect()
}

impl Witness for Memory {
    fn state(&mut self, root: &Digest) -> Option<State> {
        (self.state.root() == *root).then(|| self.state.clone())
    }

    fn windows(&mut self, indices: &[u64]) -> Option<Vec<Vec<u32>>> {
        Some(indices.iter().map(|index| window(*index)).collect())
    }

    fn contribution(&mut self, round: Round, member: &MemberId) -> Option<Vec<i32>> {
        self.contributions.get(&(round, *member)).cloned()
    }

    fn round(&mut self, _: Round) -> Option<RoundView> {
        None
    }

    fn block(&mut self, _: Round, _: &MemberId, _: Block) -> Option<BlockData> {
        None
    }
}

/// How a node lies.
#[derive(Clone, Copy, PartialEq)]
enum Conduct {
    /// Not at all.
    Honest,
    /// Every leaf is what it committed to, and none is what it should be.
    FlipsLeaves,
    /// The table is right, the committed sum is not.
    FlipsTheSum,
    /// It never answers; the contribution is false.
    HidesAFalseSum,
    /// It never answers; the contribution is right.
    Sleeps,
    /// The leaf at this position is what it committed to, and not what it should be.
    FlipsOneLeaf(u32),
    /// Every leaf is greater by one in so many places, the same ones in each.
    Adds(usize),
}

impl Conduct {
    /// Whether the leaf at a position is false.
    fn flips(self, position: u32) -> bool {
        self == Self::FlipsLeaves || self == Self::FlipsOneLeaf(position)
    }
}

struct Node {
    identity: Identity,
    conduct: Conduct,
    salt: u8,
    rows: BTreeMap<Round, Vec<(Vec<i32>, i64)>>,
    sealed: BTreeMap<Digest, (Digest, Rows)>,
}

impl Node {
    /// What it says to a notice on the board.
    fn answer(&mut self, manifest: &Manifest, root: Digest, notice: &Notice) -> Option<Notice> {
        let run = manifest.run();
        if matches!(self.conduct, Conduct::HidesAFalseSum | Conduct::Sleeps) {
            return None;
        }
        match notice {
            Notice::Request(signed) => {
                let request = signed.verify(run).unwrap();
                if request.target != self.identity.id() {
                    return None;
                }
                let probe = probe(manifest, signed, &request);
                let row = |(q, loss): &(Vec<i32>, i64)| probe.row(q, *loss);
                let rows = Rows::new(self.rows[&request.round].iter().map(row).collect()).unwrap();
                let seal = table_seal(&[self.salt; 32], &rows);
                let table = TableSeal {
                    request: signed.digest(),
                    round: request.round,
                    freeze: request.freeze,
                    root,
                    seal,
                };
                let table = self.identity.sign(run, &table);
                self.sealed.insert(signed.digest(), (table.digest(), rows));
                Some(Notice::Table(table))
            }
            Notice::Results(signed) => {
                let results = signed.verify(run).unwrap();
                let (table, rows) = self.sealed.get(&results.request)?;
                assert_eq!(results.table, *table);
                let opening = TableOpening {
                    request: results.request,
                    results: signed.digest(),
                    salt: [self.salt; 32],
                    rows: rows.clone(),
                };
                Some(Notice::Opening(self.identity.sign(run, &opening)))
            }
            _ => None,
        }
    }
}

/// A run of one steward, two nodes and one verifier after its first round.
struct World {
    manifest: Arc<Manifest>,
    run: RunId,
    steward: Identity,
    ledger: Ledger,
    /// The ledger before each record.
    past: Vec<Ledger>,
    docket: Docket,
    nodes: Vec<Node>,
    memory: Memory,
    worker: AuditWorker,
    board: Vec<Notice>,
    accusations: Vec<Evidence>,
    /// What was computed, in words.
    worked: Vec<String>,
    home: tempfile::TempDir,
    verifiers: u8,
    now: u64,
}

impl World {
    fn new(conducts: [Conduct; 2], manifest: Manifest) -> Self {
        Self::shared(conducts, manifest, 1)
    }

    /// The same with so many verifiers.
    fn shared(conducts: [Conduct; 2], manifest: Manifest, verifiers: u8) -> Self {
        let manifest = Arc::new(manifest);
        let run = manifest.run();
        let mut exact = Exact::new(1, None).unwrap();
        let seed = assign::calibration_seed(run);
        let windows = assign::windows(&seed, Leaf(0), manifest.training.leaf_windows, manifest.windows());
        let state = exact.initial(&manifest, &windows.iter().map(|index| window(*index)).collect::<Vec<_>>());
        let nodes = [(11, conducts[0]), (12, conducts[1])].map(|(secret, conduct)| Node {
            identity: id(secret),
            conduct,
            salt: secret,
            rows: BTreeMap::new(),
            sealed: BTreeMap::new(),
        });
        let mut world = Self {
            steward: id(2),
            ledger: Ledger::new(manifest.clone()),
            past: Vec::new(),
            docket: Docket::default(),
            nodes: nodes.into(),
            memory: Memory { state, contributions: BTreeMap::new() },
            worker: AuditWorker::new(manifest.clone(), &Machine::new(1, None)).unwrap(),
            board: Vec::new(),
            accusations: Vec::new(),
            worked: Vec::new(),
            home: tempfile::tempdir().unwrap(),
            verifiers,
            now: 0,
            manifest,
            run,
        };
        world.gather();
        world.train(&mut exact);
        world
    }

    fn seal(&mut self, body: Body) -> Event {
        let record = self.ledger.record(body);
        let signed = self.steward.sign(self.run, &record);
        self.past.push(self.ledger.clone());
        Event::Sealed(Box::new(self.ledger.apply(&signed).unwrap()))
    }

    fn gather(&mut self) {
        self.seal(Body::Open(self.memory.state.roots()));
        let mut members: Vec<(u8, Role, Option<CoinTerms>)> =
            vec![(11, Role::Node, None), (12, Role::Node, None)];
        for number in 21..21 + self.verifiers {
            members.push((number, Role::Verifier, Some(coin_tree(number).terms())));
        }
        for (secret, role, coins) in members {
            let pass = InvitationSecret::new([secret; 32]);
            let invitation = Invitation { role, uses: 1, expires: 0, key: pass.key(), founder: false };
            let invitation = pass.present(self.run, id(1).sign(self.run, &invitation), id(secret).id());
            let enrol = Enrol { invitation: Some(invitation), addresses: Default::default(), coins };
            self.seal(Body::Admit(id(secret).sign(self.run, &enrol)));
        }
        let seats = self.ledger.derived_seats();
        self.seal(Body::Begin(muster_core::codec::List::new(seats).unwrap()));
    }

    fn train(&mut self, exact: &mut Exact) {
        let view = self.ledger.current().unwrap().clone();
        let layout = Layout::of(&self.manifest.model);
        let mut commits = Vec::new();
        for (slot, seat) in view.seats().iter().enumerate() {
            let node = &mut self.nodes[slot];
            let mut leaf = |position| {
                let leaf = assign::leaf(Slot(slot as u16), 2, position);
                let (count, all) = (self.manifest.training.leaf_windows, self.manifest.windows());
                let indices = assign::windows(&view.seed(), leaf, count, all);
                let windows: Vec<_> = indices.iter().map(|index| window(*index)).collect();
                let mut q = vec![0; layout.parameters()];
                let job =
                    LeafJob { state: &self.memory.state, round_seed: view.seed(), leaf, windows: &windows };
                let loss = exact.leaf(&self.manifest, &job, &mut q);
                let flip = |q: i32| if node.conduct.flips(position) { -10 * q } else { q };
                let mut q: Vec<i32> = q.into_iter().map(flip).collect();
                if let Conduct::Adds(places) = node.conduct {
                    let stride = q.len() / places;
                    q.iter_mut().step_by(stride).take(places).for_each(|q| *q += 1);
                }
                (q, loss)
            };
            let rows: Vec<(Vec<i32>, i64)> = (0..seat.quota).map(&mut leaf).collect();
            let sum = |at: usize| rows.iter().map(|(q, _)| q[at]).sum();
            let mut q: Vec<i32> = (0..layout.parameters()).map(sum).collect();
            if matches!(node.conduct, Conduct::FlipsTheSum | Conduct::HidesAFalseSum) {
                q.iter_mut().for_each(|q| *q = -*q);
            }
            let commit = Commit {
                round: view.round(),
                head: view.head(),
                state: view.state().root(),
                slot: Slot(slot as u16),
                seats: 2,
                leaves: seat.quota,
                profile: self.manifest.profile,
                loss: rows.iter().map(|(_, loss)| loss).sum(),
                root: Commitment::new(&layout, &q).root(),
            };
            commits.push(node.identity.sign(self.run, &commit));
            node.rows.insert(view.round(), rows);
            self.memory.contributions.insert((view.round(), seat.member), q);
        }
        let freeze = Freeze {
            round: view.round(),
            state: view.state().root(),
            commits: muster_core::codec::List::new(commits).unwrap(),
        };
        self.seal(Body::Freeze(freeze));
        let echoes = self.nodes.len();
        let credits = muster_core::codec::List::new(self.docket.credits()).unwrap();
        self.seal(Body::Outcome(Outcome { credits, ..self.outcome(&self.ledger, echoes) }));
    }

    /// The end of the round that a ledger is in, echoed by so many nodes.
    fn outcome(&self, ledger: &Ledger, echoes: usize) -> Outcome {
        let view = ledger.current().unwrap();
        let echo = Echo { round: view.round(), freeze: view.freeze_digest().unwrap() };
        let echoes = self.nodes[..echoes].iter().map(|node| node.identity.sign(self.run, &echo)).collect();
        let mut outcome = Outcome {
            round: view.round(),
            results: Default::default(),
            echoes: muster_core::codec::List::new(echoes).unwrap(),
            state: muster_core::state::StateRoots { step: view.state().step + 1, ..*view.state() },
            seats: muster_core::codec::List::default(),
            credits: muster_core::codec::List::default(),
            seconds: muster_core::codec::List::default(),
        };
        outcome.seats = muster_core::codec::List::new(ledger.seats_after(&outcome)).unwrap();
        outcome
    }

    /// The verifier, with what its journal has kept.
    fn audits(&self) -> Audits {
        self.audits_of(21)
    }

    fn audits_of(&self, number: u8) -> Audits {
        let folder = self.home.path().join(number.to_string());
        std::fs::create_dir_all(&folder).unwrap();
        let home = Home::open(&folder).unwrap();
        let coins =
            Coins::new(coin_tree(number), Arc::new(Journaled::new(Arc::new(Journal::open(&home).unwrap()))));
        Audits::new(self.manifest.clone(), Arc::new(id(number)), coins)
    }

    /// Posts on the steward's board and lets the nodes answer; gives everything that is new there.
    fn post(&mut self, notice: Notice) -> Vec<Event> {
        let mut fresh = vec![notice];
        let mut events = Vec::new();
        while let Some(notice) = fresh.pop() {
            // Cases are the steward's own affair.
            if !matches!(notice, Notice::Charge(_) | Notice::Opinion(_)) {
                self.docket
                    .post(self.now, &self.ledger, &notice)
                    .unwrap_or_else(|reject| panic!("{notice:?}: {reject}"));
            }
            let round = match &notice {
                Notice::Request(signed) => signed.verify(self.run).unwrap().round,
                _ => Round(0),
            };
            let view = self.ledger.round(round).unwrap();
            for (slot, node) in self.nodes.iter_mut().enumerate() {
                let root = view.commitment(Slot(slot as u16)).unwrap().commit.root;
                fresh.extend(node.answer(&self.manifest, root, &notice));
            }
            self.board.push(notice.clone());
            events.push(Event::Notice(Box::new(notice)));
        }
        events
    }

    /// One thing that the verifier says or computes; `false` when there is nothing.
    fn step(&mut self, audits: &mut Audits) -> Result<bool, Stop> {
        self.step_among(std::slice::from_mut(audits), 0)
    }

    /// The same of one among several, who all read the board.
    fn step_among(&mut self, all: &mut [Audits], index: usize) -> Result<bool, Stop> {
        let audits = &mut all[index];
        if let Some(message) = audits.next_message(&|_| true) {
            audits.told(&message);
            match message {
                Message::Notice(_, notice) | Message::Say(notice) => {
                    let events = self.post(*notice);
                    all.iter_mut().try_for_each(|audits| audits.take(&self.ledger, &events))?;
                }
                Message::Accuse(evidence) => self.accusations.push(*evidence),
            }
            return Ok(true);
        }
        let Some(work) = audits.next_work(&|_| true) else { return Ok(false) };
        let done = self.worker.perform(&work, &mut self.memory);
        let kind = match work.kind {
            WorkKind::Leaves(..) => "leaves",
            WorkKind::Contribution => "contribution",
            WorkKind::Everything => "everything",
            WorkKind::SecondOpinion(..) => "second opinion",
            WorkKind::Opinion(_) => "opinion",
            WorkKind::Recheck(_) => "recheck",
            WorkKind::SecondRecheck(..) => "second recheck",
        };
        self.worked.push(format!("{kind} of slot {}", work.subject.commit.slot));
        audits.worked(&work, done)?;
        Ok(true)
    }

    fn run(&mut self, audits: &mut Audits) {
        audits.take(&self.ledger, &[]).unwrap();
        while self.step(audits).unwrap() {}
    }

    fn run_all(&mut self, all: &mut [Audits]) {
        all.iter_mut().for_each(|audits| audits.take(&self.ledger, &[]).unwrap());
        while (0..all.len()).fold(false, |more, index| self.step_among(all, index).unwrap() | more) {}
    }

    /// Seals, and tells all.
    fn seal_to(&mut self, all: &mut [Audits], body: Body) {
        let events = [self.seal(body)];
        all.iter_mut().for_each(|audits| audits.take(&self.ledger, &events).unwrap());
    }

    /// Cases that nothing has closed.
    fn open(&mut self) -> usize {
        assert!(self.docket.idles(0, &self.ledger).is_empty());
        self.docket.open_cases(&self.ledger).count()
    }

    /// The inspector of a slot of the round.
    fn inspector(&self, slot: u16) -> MemberId {
        self.ledger.round(Round(0)).unwrap().inspector(Slot(slot)).unwrap()
    }

    /// The silence of the member of a slot, about what it was asked.
    fn silence(&self, slot: u16) -> Body {
        let target = self.ledger.round(Round(0)).unwrap().member_at(Slot(slot)).unwrap();
        let asked = self.board.iter().find_map(|notice| match notice {
            Notice::Request(signed) => Some(signed).filter(|s| s.verify(self.run).unwrap().target == target),
            _ => None,
        });
        Body::Silence(asked.unwrap().clone())
    }

    /// Who asked about whom.
    fn requests(&self) -> Vec<(MemberId, MemberId)> {
        let requests = self.board.iter().filter_map(|notice| match notice {
            Notice::Request(signed) => Some(signed.verify(self.run).unwrap()),
            _ => None,
        });
        requests.map(|request| (request.author(), request.target)).collect()
    }

    /// What an independent judge makes of the accusations.
    fn judged(&mut self) -> Vec<(MemberId, FindingKind)> {
        let mut exact = Exact::new(1, Some(Path::Portable)).unwrap();
        let judged = self
            .accusations
            .iter()
            .map(|evidence| judge(&self.manifest, evidence, &mut self.memory, &mut exact));
        judged
            .map(|judgement| match judgement {
                Judgement::Guilty { culprit, finding, .. } => (culprit, finding),
                other => panic!("{other:?}"),
            })
            .collect()
    }

    fn verdicts(&self) -> Vec<(MemberId, Finding)> {
        let requests: BTreeMap<Digest, MemberId> = self
            .board
            .iter()
            .filter_map(|notice| match notice {
                Notice::Request(signed) => Some((signed.digest(), signed.verify(self.run).unwrap().target)),
                _ => None,
            })
            .collect();
        let verdicts = self.board.iter().filter_map(|notice| match notice {
            Notice::Verdict(signed) => Some(signed.verify(self.run).unwrap()),
            _ => None,
        });
        verdicts.map(|verdict| (requests[&verdict.request], verdict.finding)).collect()
    }
}

fn coin_tree(number: u8) -> CoinTree {
    CoinTree::new([number + 21; 32], Round(0), 8, 8).unwrap()
}

fn member(secret: u8) -> MemberId {
    id(secret).id()
}

const ALWAYS: u32 = 1_000_000;

#[test]
fn honest_nodes_pass() {
    let mut world = World::new([Conduct::Honest; 2], manifest(ALWAYS, 0));
    let mut audits = world.audits();
    world.run(&mut audits);
    assert_eq!(world.verdicts(), [(member(11), Finding::Pass), (member(12), Finding::Pass)]);
    assert_eq!(audits.tally(), Tally { passed: 2, guilty: 0, undecided: 0 });
    assert!(world.accusations.is_empty());
    assert!(world.docket.has_passed(&world.ledger, Round(0), &member(11)) && world.open() == 0);
    assert!(audits.unfinished_rounds().is_empty());
}

#[test]
fn a_false_leaf_convicts_its_author_alone() {
    let mut world = World::new([Conduct::Honest, Conduct::FlipsLeaves], manifest(ALWAYS, 0));
    let mut audits = world.audits();
    world.run(&mut audits);
    let guilty = Finding::Guilty(FindingKind::LeafMismatch);
    assert_eq!(world.verdicts(), [(member(11), Finding::Pass), (member(12), guilty)]);
    assert_eq!(world.judged(), [(member(12), FindingKind::LeafMismatch)]);
    assert_eq!(audits.tally(), Tally { passed: 1, guilty: 1, undecided: 0 });
}

#[test]
fn a_false_sum_convicts_its_author_alone() {
    let mut world = World::new([Conduct::FlipsTheSum, Conduct::Honest], manifest(ALWAYS, 0));
    let mut audits = world.audits();
    world.run(&mut audits);
    assert_eq!(world.judged(), [(member(11), FindingKind::SumMismatch)]);
    assert_eq!(audits.tally().passed, 1);
}

#[test]
fn a_sum_that_is_not_to_be_had_is_recomputed() {
    let mut world = World::new([Conduct::FlipsTheSum, Conduct::Honest], manifest(ALWAYS, 0));
    world.memory.contributions.clear();
    let mut audits = world.audits();
    world.run(&mut audits);
    assert_eq!(world.judged(), [(member(11), FindingKind::TotalMismatch)]);
    let guilty = Finding::Guilty(FindingKind::TotalMismatch);
    assert_eq!(world.verdicts(), [(member(11), guilty), (member(12), Finding::Pass)]);
}

#[test]
fn silence_has_every_leaf_recomputed() {
    let mut world = World::new([Conduct::HidesAFalseSum, Conduct::Sleeps], manifest(ALWAYS, 0));
    let mut audits = world.audits();
    world.run(&mut audits);
    assert!(world.accusations.is_empty() && world.worked.is_empty());
    let silences = world.docket.silences(1000, &world.ledger);
    assert_eq!(silences.len(), 2);
    let events: Vec<Event> = silences.into_iter().map(|body| world.seal(body)).collect();
    audits.take(&world.ledger, &events).unwrap();
    world.run(&mut audits);
    assert_eq!(world.worked, ["everything of slot 0", "second opinion of slot 0", "everything of slot 1"]);
    assert_eq!(world.judged(), [(member(11), FindingKind::TotalMismatch)]);
    assert_eq!(audits.tally(), Tally { passed: 1, guilty: 1, undecided: 0 });
    // AUDIT-25: both are said, so that the one case is closed by its credit, and the other one by what is found.
    assert_eq!(world.docket.credits().len(), 1);
    let charges = world.docket.charges(&world.ledger);
    assert!(
        matches!(&charges[..], [(accuser, Evidence::Total(total))] if *accuser == member(21) && total.culprit == member(11))
    );
    assert_eq!(world.open(), 1, "the one that is charged");
    world.docket.dismiss(Round(0), &member(11), &member(21));
    assert_eq!(world.open(), 0);
}

#[test]
fn audit_8_silence_to_one_request_has_all_that_was_asked_recomputed() {
    let mut world = World::new([Conduct::HidesAFalseSum, Conduct::Sleeps], manifest(ALWAYS, 0));
    world.train(&mut Exact::new(1, None).unwrap());
    let mut audits = world.audits();
    world.run(&mut audits);
    let target = |world: &World, body: &Body| match body {
        Body::Silence(request) => request.verify(world.run).unwrap().target,
        other => panic!("{other:?}"),
    };
    let silences = world.docket.silences(1000, &world.ledger);
    let [first, second] = silences.try_into().expect("one of each member, of two rounds");
    let (silent, other) = (target(&world, &first), target(&world, &second));
    assert_ne!(silent, other, "a second one of the same member would be refused");
    let event = world.seal(first);
    audits.take(&world.ledger, &[event]).unwrap();
    world.run(&mut audits);
    let slot = world.nodes.iter().position(|node| node.identity.id() == silent).unwrap();
    let everything = format!("everything of slot {slot}");
    assert_eq!(world.worked.iter().filter(|work| **work == everything).count(), 2, "{:?}", world.worked);
    // The other one's was not sealed: its second audit brings another one, after as long.
    assert!(world.docket.silences(1999, &world.ledger).is_empty());
    let again = world.docket.silences(2000, &world.ledger);
    assert_eq!(again.iter().map(|body| target(&world, body)).collect::<Vec<_>>(), [other]);
    world.seal(second);
    assert!(world.docket.silences(9000, &world.ledger).is_empty(), "no second silence is sealed");
}

#[test]
fn leaving_answers_no_audit() {
    let mut world = World::new([Conduct::HidesAFalseSum, Conduct::Sleeps], manifest(ALWAYS, 0));
    let mut audits = world.audits();
    world.run(&mut audits);
    assert!(world.worked.is_empty());
    for secret in [11, 12] {
        let leave = Leave { height: world.ledger.height() };
        let event = world.seal(Body::Leave(id(secret).sign(world.run, &leave)));
        audits.take(&world.ledger, &[event]).unwrap();
    }
    assert!(world.docket.silences(1000, &world.ledger).is_empty());
    world.run(&mut audits);
    assert_eq!(world.worked, ["everything of slot 0", "second opinion of slot 0", "everything of slot 1"]);
    assert_eq!(world.judged(), [(member(11), FindingKind::TotalMismatch)]);
}

#[test]
fn the_final_audit_asks_everyone() {
    let mut world = World::new([Conduct::Honest, Conduct::FlipsLeaves], manifest(0, 1));
    let mut audits = world.audits();
    world.run(&mut audits);
    assert_eq!(world.verdicts().len(), 2);
    assert_eq!(world.judged(), [(member(12), FindingKind::LeafMismatch)]);
    let mut world = World::new([Conduct::Honest, Conduct::FlipsLeaves], manifest(0, 0));
    let mut audits = world.audits();
    world.run(&mut audits);
    assert!(world.requests().is_empty() && world.board.len() == 1, "the coin is shown, and selects nobody");
}

#[test]
fn a_machine_that_computes_wrongly_accuses_nobody() {
    let mut world = World::new([Conduct::Honest; 2], manifest(ALWAYS, 0));
    let mut audits = world.audits();
    audits.take(&world.ledger, &[]).unwrap();
    while audits.next_message(&|_| true).is_some() {
        world.step(&mut audits).unwrap();
    }
    let work = audits.next_work(&|_| true).unwrap();
    let Done::Leaves(results) = world.worker.perform(&work, &mut world.memory) else { panic!() };
    let mut wrong = results.into_inner();
    wrong[0].row.loss ^= 1;
    audits.worked(&work, Done::Leaves(Results::new(wrong).unwrap())).unwrap();
    let stop = loop {
        match world.step(&mut audits) {
            Ok(more) => assert!(more),
            Err(stop) => break stop,
        }
    };
    assert!(matches!(stop, Stop::Faulty(_)), "{stop:?}");
    assert!(world.accusations.is_empty() && world.verdicts().is_empty());
}

#[test]
fn an_accusation_lasts_until_the_ban() {
    let mut world = World::new([Conduct::Honest, Conduct::FlipsLeaves], manifest(ALWAYS, 0));
    let mut audits = world.audits();
    world.run(&mut audits);
    assert!(audits.next_message(&|_| true).is_none());
    audits.remind();
    assert!(matches!(audits.next_message(&|_| true), Some(Message::Accuse(_))));
    let ban = muster_core::messages::record::Ban {
        culprit: member(12),
        effective: world.ledger.first_round_without(),
        round: Round(0),
        finding: FindingKind::LeafMismatch,
        evidence: world.accusations[0].digest(),
        accuser: member(21),
        jury: Jury::default(),
    };
    let events = [world.seal(Body::Ban(ban))];
    audits.take(&world.ledger, &events).unwrap();
    audits.remind();
    assert!(audits.next_message(&|_| true).is_none());
    // Neither does a restart bring it back.
    let evidence = Box::new(world.accusations[0].clone());
    audits.accuse(&world.ledger, evidence);
    assert!(audits.next_message(&|_| true).is_none());
}

#[test]
fn killed_at_any_step_it_goes_on_with_the_same_words() {
    let whole = {
        let mut world = World::new([Conduct::Honest, Conduct::FlipsLeaves], manifest(ALWAYS, 0));
        let mut audits = world.audits();
        world.run(&mut audits);
        world.board.len()
    };
    for steps in 0..14 {
        let mut world = World::new([Conduct::Honest, Conduct::FlipsLeaves], manifest(ALWAYS, 0));
        let mut audits = world.audits();
        audits.take(&world.ledger, &[]).unwrap();
        for _ in 0..steps {
            world.step(&mut audits).unwrap();
        }
        drop(audits);
        let mut audits = world.audits();
        let seen: Vec<Event> =
            world.board.iter().map(|notice| Event::Notice(Box::new(notice.clone()))).collect();
        audits.take(&world.ledger, &seen).unwrap();
        world.accusations.clear();
        // The docket would refuse, and `post` panic, if a step were said twice; a guilty verdict may be.
        let judged = world.board.iter().filter(|notice| matches!(notice, Notice::Verdict(_))).count();
        if judged < 2 {
            world.run(&mut audits);
            assert_eq!(world.board.len(), whole, "killed after {steps} steps");
            assert_eq!(world.judged(), [(member(12), FindingKind::LeafMismatch)]);
        }
    }
}

#[test]
fn a_shown_leaf_coin_is_not_used_for_another_table() {
    let mut world = World::new([Conduct::FlipsLeaves, Conduct::Honest], manifest(ALWAYS, 0));
    let mut audits = world.audits();
    world.run(&mut audits);
    assert_eq!(world.verdicts().len(), 2);
    // The steward lost its board, the verifier its memory; both nodes seal other tables than those that were drawn from.
    drop(audits);
    (world.docket, world.board) = (Docket::default(), Vec::new());
    world.nodes.iter_mut().for_each(|node| node.salt += 100);
    world.accusations.clear();
    world.worked.clear();
    let mut audits = world.audits();
    world.run(&mut audits);
    assert!(
        world.worked.contains(&"everything of slot 0".to_owned())
            && world.worked.contains(&"everything of slot 1".to_owned())
    );
    assert_eq!(
        world.judged(),
        [(member(11), FindingKind::TotalMismatch)],
        "the one who lies is found out all the same"
    );
    // The other one passes by all its leaves: nothing is left that would make an honest verifier idle.
    assert!(world.verdicts().contains(&(member(12), Finding::Pass)), "{:?}", world.verdicts());
}

#[test]
fn a_new_board_hears_everything_again() {
    let mut world = World::new([Conduct::Honest, Conduct::Sleeps], manifest(0, 1));
    let mut audits = world.audits();
    world.run(&mut audits);
    assert_eq!(audits.tally().passed, 1);
    (world.docket, world.board) = (Docket::default(), Vec::new());
    world.nodes[1].conduct = Conduct::Honest;
    audits.board_changed(&world.ledger);
    world.run(&mut audits);
    assert_eq!(world.verdicts(), [(member(11), Finding::Pass), (member(12), Finding::Pass)]);
    assert_eq!(world.open(), 0);
}

#[test]
fn nobody_is_asked_what_cannot_be_followed_up() {
    let world = World::new([Conduct::Honest; 2], manifest(ALWAYS, 0));
    let mut audits = world.audits();
    audits.take(&world.ledger, &[]).unwrap();
    let coin = audits.next_message(&|_| false).unwrap();
    assert!(matches!(coin, Message::Say(_)), "{coin:?}");
    audits.told(&coin);
    assert!(audits.next_message(&|_| false).is_none());
    assert!(audits.next_message(&|_| true).is_some());
}

#[test]
fn forged_steps_are_ignored() {
    let mut world = World::new([Conduct::Honest; 2], manifest(ALWAYS, 0));
    let mut audits = world.audits();
    audits.take(&world.ledger, &[]).unwrap();
    world.step(&mut audits).unwrap();
    let Some(Message::Notice(_, notice)) = audits.next_message(&|_| true) else { panic!() };
    let Notice::Request(request) = *notice else { panic!() };
    let view = world.ledger.round(Round(0)).unwrap();
    let root = view.commitment(Slot(0)).unwrap().commit.root;
    let table = TableSeal {
        request: request.digest(),
        round: Round(0),
        freeze: view.freeze_digest().unwrap(),
        root,
        seal: Digest([9; 32]),
    };
    let run = world.run;
    let posted =
        |signer: u8, table: &TableSeal| Event::Notice(Box::new(Notice::Table(id(signer).sign(run, table))));
    let wrong = [
        posted(12, &table),
        posted(11, &TableSeal { root: Digest([1; 32]), ..table.clone() }),
        posted(11, &TableSeal { round: Round(1), ..table.clone() }),
        posted(11, &TableSeal { request: Digest([1; 32]), ..table.clone() }),
    ];
    audits.take(&world.ledger, &wrong).unwrap();
    assert!(audits.next_work(&|_| true).is_none());
    let events = [posted(11, &table)];
    audits.take(&world.ledger, &events).unwrap();
    assert!(audits.next_work(&|_| true).is_some());
    world.worked.clear();
}
