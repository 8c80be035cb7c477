//! The verifier's machine under any order of answers, finished work, fetches, silences and stray notices, killed at any
//! moment and started again from what it has written down: no panic, no more at once than is allowed, no coin shown for two
//! things, nobody accused whom no second opinion finds guilty, and once it is to stop, it ends.
#![no_main]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, LazyLock, Mutex};

use libfuzzer_sys::fuzz_target;
use muster_core::audit::docket::Docket;
use muster_core::audit::{Judgement, claim};
use muster_core::codec::List;
use muster_core::coins::CoinTree;
use muster_core::contribution::PackedContribution;
use muster_core::ids::{Digest, MemberId, Part, Round, Slot};
use muster_core::layout::Layout;
use muster_core::ledger::{Event as Happening, Ledger};
use muster_core::lock::lock;
use muster_core::messages::audit::{
    FindingKind, LeafResult, Results, Rows, TableOpening, TableRow, TableSeal, table_seal,
};
use muster_core::messages::enrol::Role;
use muster_core::messages::record::{Body, Record};
use muster_core::messages::wire::Notice;
use muster_core::sign::{Identity, Signed, Verified};
use muster_core::sketch::Sketch;
use muster_fuzz::{PEOPLE, commit, end_round, enrol, manifest, person, seal};
use muster_roles::verifier::audits::{Done, Honest, Key, Message, Work, WorkKind};
use muster_roles::verifier::coins::{Coins, Notes, Unwritten};
use muster_roles::verifier::parts::{DrawnBlocks, Seen};
use muster_roles::verifier::{
    Answer, HaltCause, LedgerUpdate, Verifier, VerifierEffect, VerifierInput, VerifierSetup,
};

const NODES: usize = 2;
const VERIFIER: usize = PEOPLE - 1;
/// Turns in which a machine that is to stop must end.
const CALM: usize = 200;
/// What a machine may have under way at once.
const FETCHES: usize = 4;
const LOOKS: usize = 3;

#[derive(arbitrary::Arbitrary, Debug)]
enum Event {
    /// The verifier reads what is new.
    News,
    /// What it says arrives, or is lost; or only the answer is.
    Arrive,
    Lose(bool),
    /// A node answers the newest step, by these rows if they are not what it should have.
    Node(u8, Option<u64>),
    /// Work ends: as it should, or otherwise.
    Work(End),
    Fetched(u8, bool),
    Looked(Look),
    Judged(Option<bool>),
    Wait(u16),
    /// The steward's clocks go on.
    Clocks,
    /// The verifier is killed and starts again.
    Kill,
    /// The steward is killed and starts again, with an empty board.
    Board,
    StrayTable(Box<Signed<TableSeal>>),
    StrayOpening(Box<Signed<TableOpening>>),
}

#[derive(arbitrary::Arbitrary, Clone, Copy, Debug)]
enum End {
    Good,
    Wrong,
    Withheld,
    Missing,
    /// An opinion that fits no question, or finds this one guilty.
    Opinion(Option<u8>),
}

#[derive(arbitrary::Arbitrary, Clone, Copy, Debug)]
enum Look {
    Right,
    Wrong,
    Missing,
}

/// Two nodes, a verifier, and a round that is over.
static SCENE: LazyLock<(Ledger, Vec<Verified<Record>>)> = LazyLock::new(|| {
    let manifest = manifest(1, NODES as u16);
    let mut ledger = Ledger::new(manifest.clone());
    let mut records = Vec::new();
    let state = ledger.state().clone();
    records.push(seal(&mut ledger, Body::Open(state)).1);
    for number in (0..NODES).chain([VERIFIER]) {
        let role = if number == VERIFIER { Role::Verifier } else { Role::Node };
        let enrol = enrol(manifest.run(), number, role, true);
        records.push(seal(&mut ledger, Body::Admit(enrol)).1);
    }
    let seats = List::new(ledger.derived_seats()).expect("few");
    records.push(seal(&mut ledger, Body::Begin(seats)).1);
    let view = ledger.current().expect("a round").clone();
    let commits = view.seats().iter().enumerate().map(|(slot, seat)| {
        let said = commit(&view, Slot(slot as u16), seat.quota).expect("a seat");
        muster_fuzz::named(&seat.member).expect("a person").sign(ledger.run(), &said)
    });
    let commits = commits.collect();
    records.extend(end_round(&mut ledger, commits).into_iter().map(|(_, record)| record));
    (ledger, records)
});

/// For what each coin was shown, whatever happens to the process.
#[derive(Default)]
struct Notebook(Mutex<BTreeMap<(String, Round), Digest>>);

impl Notes for Notebook {
    fn stands(&self, coin: &str, round: Round, digest: &Digest) -> Result<bool, Unwritten> {
        Ok(lock(&self.0).entry((coin.to_owned(), round)).or_insert(*digest) == digest)
    }
}

struct World {
    machine: Verifier,
    notes: Arc<Notebook>,
    ledger: Ledger,
    records: Vec<Verified<Record>>,
    docket: Docket,
    board: Vec<Notice>,
    boards: u64,
    read: (usize, usize),
    now: u64,
    telling: Option<Box<Message>>,
    computing: Option<Box<Work>>,
    fetching: Vec<Key>,
    looking: Vec<Box<DrawnBlocks>>,
    doubted: Vec<(Box<DrawnBlocks>, Box<muster_core::messages::evidence::Reduction>)>,
    /// Whom some opinion has found guilty, and whether some opinion has acquitted anybody.
    guilty: BTreeSet<MemberId>,
    acquitted: bool,
    over: bool,
}

fn machine(ledger: &Ledger, notes: &Arc<Notebook>) -> Verifier {
    Verifier::new(VerifierSetup {
        ledger,
        manifest: ledger.manifest().clone(),
        identity: Arc::new(Identity::from_secret(&[VERIFIER as u8 + 1; 32])),
        coins: Coins::new(CoinTree::new([9; 32], Round(0), 16, 4).expect("few coins"), notes.clone()),
        conduct: Arc::new(Honest),
        silences: Vec::new(),
        accusations: Vec::new(),
        kept: BTreeSet::new(),
    })
}

impl World {
    fn new() -> Self {
        let (ledger, records) = &*SCENE;
        let notes = Arc::new(Notebook::default());
        Self {
            machine: machine(ledger, &notes),
            notes,
            ledger: ledger.clone(),
            records: records.clone(),
            docket: Docket::default(),
            board: Vec::new(),
            boards: 1,
            read: (0, 0),
            now: 0,
            telling: None,
            computing: None,
            fetching: Vec::new(),
            looking: Vec::new(),
            doubted: Vec::new(),
            guilty: BTreeSet::new(),
            acquitted: false,
            over: false,
        }
    }

    fn hand(&mut self, input: VerifierInput) {
        self.machine.handle(self.now, input);
        self.drain();
    }

    fn drain(&mut self) {
        while let Some(effect) = self.machine.poll_effect() {
            assert!(!self.over, "nothing follows the end");
            match effect {
                VerifierEffect::Tell(message) => self.tell(message),
                VerifierEffect::Compute(work, _) => {
                    assert!(self.computing.replace(work).is_none(), "one at a time")
                }
                VerifierEffect::Fetch(subject) => self.fetching.push(subject.key()),
                VerifierEffect::Look(drawn) => self.looking.push(drawn),
                VerifierEffect::Doubt(drawn, evidence) => self.doubted.push((drawn, evidence)),
                VerifierEffect::KeepStates { .. }
                | VerifierEffect::SaveState
                | VerifierEffect::KeepEvidence(_) => {}
                VerifierEffect::Halt(HaltCause::Faulty(why)) => {
                    // Two code paths that disagree are a faulty machine, which must not go on.
                    assert!(self.acquitted, "{why}");
                    self.over = true;
                }
                VerifierEffect::Halt(cause) => panic!("{cause:?}"),
                VerifierEffect::End => self.over = true,
            }
        }
        assert!(self.fetching.len() <= FETCHES && self.looking.len() + self.doubted.len() <= LOOKS);
    }

    fn tell(&mut self, message: Box<Message>) {
        if let Message::Accuse(evidence) = &*message {
            let claim = claim(self.ledger.manifest(), evidence).expect("evidence that says whom it is about");
            assert!(self.guilty.contains(&claim.culprit), "nobody has found {} guilty", claim.culprit);
        }
        assert!(self.telling.replace(message).is_none(), "one after the other");
    }

    fn seal(&mut self, body: Body) {
        self.records.push(seal(&mut self.ledger, body).1);
    }

    /// What the steward makes of a message.
    fn take(&mut self, message: &Message) -> Answer {
        let (Message::Notice(_, notice) | Message::Say(notice)) = message else { return Answer::Taken };
        match self.docket.post(self.now, &self.ledger, notice) {
            Ok(body) => {
                self.board.push((**notice).clone());
                body.into_iter().for_each(|body| self.seal(body));
                Answer::Taken
            }
            Err(_) => Answer::Refused,
        }
    }

    fn arrive(&mut self, answered: bool) {
        let Some(message) = self.telling.take() else { return };
        let answer = self.take(&message);
        self.hand(VerifierInput::Told(message, if answered { answer } else { Answer::Unreached }));
    }

    fn news(&mut self) {
        let records = self.records[self.read.0..].iter().cloned();
        let notices = self.board[self.read.1..].iter().cloned();
        let records = records.map(|record| Happening::Sealed(Box::new(record)));
        let events: Vec<Happening> =
            records.chain(notices.map(|notice| Happening::Notice(Box::new(notice)))).collect();
        self.read = (self.records.len(), self.board.len());
        let ledger = self.ledger.clone();
        let states = ledger.rounds().map(|view| view.state().root()).collect();
        self.machine.handle(self.now, VerifierInput::States(states));
        let news =
            LedgerUpdate { ledger: &ledger, events: &events, whole: true, in_step: true, board: self.boards };
        self.hand(VerifierInput::News(news));
    }

    /// A node seals its table, or opens it.
    fn node(&mut self, number: usize, wrong: Option<u64>) {
        let (identity, run) = (person(number % NODES), self.ledger.run());
        let Some(view) = self.ledger.round(Round(0)) else { return };
        let Some(commitment) = view.slot_of(&identity.id()).and_then(|slot| view.commitment(slot)) else {
            return;
        };
        let mut rows: Vec<TableRow> = (0..commitment.commit.leaves).map(row).collect();
        if let (Some(wrong), Some(row)) = (wrong, rows.first_mut()) {
            row.sketch = Sketch::Fingerprint([wrong; 2]);
        }
        let rows: Rows = List::new(rows).expect("few");
        let (salt, root) = ([7; 32], commitment.commit.root);
        let asked = |notice: &Notice| match notice {
            Notice::Request(signed) => {
                signed.verify(run).ok().filter(|asked| asked.target == identity.id()).map(|_| signed.digest())
            }
            _ => None,
        };
        let requests: BTreeSet<Digest> = self.board.iter().filter_map(asked).collect();
        let answer = self.board.iter().rev().find_map(|notice| match notice {
            Notice::Request(signed) if requests.contains(&signed.digest()) => {
                let asked = signed.verify(run).ok()?;
                let seal = table_seal(&salt, &rows);
                let (request, round, freeze) = (signed.digest(), asked.round, asked.freeze);
                Some(Notice::Table(identity.sign(run, &TableSeal { request, round, freeze, root, seal })))
            }
            Notice::Results(signed) => {
                let request = signed.verify(run).ok()?.request;
                let (results, rows) = (signed.digest(), rows.clone());
                let opening = TableOpening { request, results, salt, rows };
                requests.contains(&request).then(|| Notice::Opening(identity.sign(run, &opening)))
            }
            _ => None,
        });
        if let Some(notice) = answer {
            self.take(&Message::Say(Box::new(notice)));
        }
    }

    fn work(&mut self, end: End) {
        let Some(work) = self.computing.take() else { return };
        let done = self.done(&work, end);
        self.hand(VerifierInput::Worked(work, done));
    }

    fn done(&mut self, work: &Work, end: End) -> Done {
        let author = work.subject.author;
        let q = self.zeros();
        match (&work.kind, end) {
            (_, End::Missing) => Done::Missing("it is gone".into()),
            (WorkKind::Leaves(drawn), _) => {
                let wrong = u64::from(matches!(end, End::Wrong));
                let results = drawn.positions.iter().map(|position| {
                    let row = TableRow { sketch: Sketch::Fingerprint([wrong; 2]), ..row(*position) };
                    LeafResult { position: *position, row }
                });
                Done::Leaves(Results::new(results.collect()).expect("few"))
            }
            (WorkKind::Contribution, End::Withheld) => Done::Withheld,
            (WorkKind::Contribution, End::Good) => Done::Contribution(q),
            (WorkKind::Contribution | WorkKind::Everything, _) => Done::Summed(q, matches!(end, End::Good)),
            // What gives no judgement is answered by none.
            (_, End::Opinion(Some(culprit))) => self.opinion(person(culprit.into()).id(), true),
            (_, End::Opinion(None)) => self.opinion(author, false),
            (WorkKind::Recheck(_), End::Wrong) => Done::Suspicion(author, None),
            (WorkKind::Recheck(_), _) => self.opinion(author, false),
            (WorkKind::SecondOpinion(..) | WorkKind::SecondRecheck(..) | WorkKind::Opinion(_), _) => {
                self.opinion(author, true)
            }
        }
    }

    fn zeros(&self) -> Arc<PackedContribution> {
        let layout = Layout::of_run(self.ledger.manifest());
        Arc::new(PackedContribution::new(&layout, &vec![0; layout.coefficients()]))
    }

    fn opinion(&mut self, culprit: MemberId, guilty: bool) -> Done {
        Done::Opinion(self.judgement(culprit, guilty))
    }

    fn judgement(&mut self, culprit: MemberId, guilty: bool) -> Judgement {
        if !guilty {
            self.acquitted = true;
            return Judgement::NotGuilty("all is right".into());
        }
        self.guilty.insert(culprit);
        let (finding, detail) = (FindingKind::LeafMismatch, String::new());
        Judgement::Guilty { culprit, round: Round(0), finding, detail }
    }

    fn fetched(&mut self, place: usize, there: bool) {
        if !self.fetching.is_empty() {
            let key = self.fetching.remove(place % self.fetching.len());
            let found = there.then(|| self.zeros()).ok_or_else(|| vec![Part(0)]);
            self.hand(VerifierInput::Fetched(key, found));
        }
    }

    fn looked(&mut self, look: Look) {
        let Some(drawn) = self.looking.pop() else { return };
        let seen = match look {
            Look::Right => Seen::Right,
            Look::Wrong => Seen::Wrong(drawn.blocks[0]),
            Look::Missing => Seen::Missing("nobody has it".into()),
        };
        self.hand(VerifierInput::Looked(drawn, seen));
    }

    fn judged(&mut self, guilty: Option<bool>) {
        let Some((drawn, evidence)) = self.doubted.pop() else { return };
        let judgement = match guilty {
            Some(guilty) => Ok(self.judgement(drawn.author, guilty)),
            None => Err("nobody has its inputs".to_owned()),
        };
        self.hand(VerifierInput::Judged { drawn, evidence, judgement });
    }

    /// What its process had under way is lost.
    fn kill(&mut self) {
        // It reads the run from the first record again; of its own it has the notes alone.
        self.machine = machine(&Ledger::new(self.ledger.manifest().clone()), &self.notes);
        (self.telling, self.computing, self.over) = (None, None, false);
        self.fetching.clear();
        self.looking.clear();
        self.doubted.clear();
        self.read = (0, 0);
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::News => self.news(),
            Event::Arrive => self.arrive(true),
            Event::Lose(arrived) if arrived => self.arrive(false),
            Event::Lose(_) => {
                if let Some(message) = self.telling.take() {
                    self.hand(VerifierInput::Told(message, Answer::Unreached));
                }
            }
            Event::Node(number, wrong) => self.node(number.into(), wrong),
            Event::Work(end) => self.work(end),
            Event::Fetched(place, there) => self.fetched(place.into(), there),
            Event::Looked(look) => self.looked(look),
            Event::Judged(guilty) => self.judged(guilty),
            Event::Wait(milliseconds) => {
                self.now += u64::from(milliseconds);
                self.hand(VerifierInput::Tick);
            }
            Event::Clocks => {
                let mut sealed = self.docket.silences(self.now, &self.ledger);
                sealed.extend(self.docket.idles(self.now, &self.ledger));
                sealed.into_iter().for_each(|body| self.seal(body));
            }
            Event::Kill => self.kill(),
            Event::Board => {
                // A new number of the board tells readers to begin anew.
                (self.docket, self.board, self.read.1) = (Docket::default(), Vec::new(), 0);
                self.boards += 1;
            }
            Event::StrayTable(signed) => self.board.push(Notice::Table(*signed)),
            Event::StrayOpening(signed) => self.board.push(Notice::Opening(*signed)),
        }
    }

    /// It is to stop, and everything is answered.
    fn finish(mut self) {
        self.hand(VerifierInput::Stop);
        for _ in 0..CALM {
            if self.over {
                return;
            }
            self.arrive(true);
            self.work(End::Good);
            self.now += 100;
            self.hand(VerifierInput::Tick);
        }
        panic!("it does not end");
    }
}

/// A leaf that is nothing, of contributions that are nothing; the first one has their whole loss.
fn row(position: u32) -> TableRow {
    TableRow { sketch: Sketch::Fingerprint([0; 2]), loss: i64::from(position == 0) }
}

fuzz_target!(|events: Vec<Event>| {
    let mut world = World::new();
    for event in events {
        world.happen(event);
    }
    world.finish();
});
