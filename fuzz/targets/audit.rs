//! Verifiers that lie, in every step of an audit: whatever evidence they put together, an honest member is never found
//! guilty, and the steward's docket takes no step out of its turn. No case is lost (AUDIT-26): it is closed by a pass, by a
//! ban, or by its verifier's being idle, and a finding of guilt by a ban of one of the two; whoever says nothing, in bounded
//! time.
#![no_main]

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use muster_compute::Exact;
use muster_core::audit::docket::Docket;
use muster_core::audit::{Judgement, Recomputing, Witness, judge, leaf_coin};
use muster_core::codec::{List, decode, encode};
use muster_core::coins::CoinKind;
use muster_core::contribution::{Commitment, PackedContribution};
use muster_core::ids::{Block, Digest, MemberId, Round, ShardId, Slot};
use muster_core::layout::Layout;
use muster_core::ledger::{Ledger, RoundView, Standing};
use muster_core::messages::audit::{
    AuditRequest, Finding, FindingKind, Jury, LeafResult, Recomputation, ResultsSeal, Rows, TableOpening,
    TableRow, TableSeal, Verdict, results_seal, table_seal,
};
use muster_core::messages::enrol::Role;
use muster_core::messages::evidence::{Equivocation, Evidence, Total, Transcript};
use muster_core::messages::record::{Ban, Body, Record};
use muster_core::messages::round::Commit;
use muster_core::messages::wire::{BlockData, Notice};
use muster_core::sign::{Identity, Message, Signed};
use muster_core::sketch::{Sketch, fingerprint, points};
use muster_core::state::State;
use muster_fuzz::{PEOPLE, coins, commit, end_round, enrol, manifest, named, person, seal, steward, window};

const HONEST: usize = 0;
/// Signs what the fuzzer wants.
const OTHER: usize = 1;
const VERIFIER: usize = PEOPLE - 1;
/// Virtual milliseconds in which every case is closed once nobody says anything any more: each turn of an audit, and whole
/// contributions after it, at the patience of a second.
const CALM: u64 = 60_000;

/// A round that is over, with everything that a judge may ask for.
struct Scene {
    ledger: Ledger,
    freeze: Signed<Record>,
    commits: Vec<Signed<Commit>>,
    state: State,
    contributions: Vec<Vec<i32>>,
    /// Of the honest member.
    rows: Rows,
}

static SCENE: LazyLock<Scene> = LazyLock::new(scene);

struct Everything<'a>(&'a Scene);

impl Witness for Everything<'_> {
    fn state(&mut self, root: &Digest, _: &[ShardId]) -> Option<State> {
        (*root == self.0.state.root()).then(|| self.0.state.clone())
    }

    fn windows(&mut self, indices: &[u64]) -> Option<Vec<Vec<u32>>> {
        Some(indices.iter().map(|index| window(*index)).collect())
    }

    fn contribution(&mut self, round: Round, member: &MemberId) -> Option<Arc<PackedContribution>> {
        let slot = self.0.ledger.round(round)?.slot_of(member)?;
        let q = self.0.contributions.get(slot.index())?;
        PackedContribution::whole_of(self.0.ledger.layout(), q).map(Arc::new)
    }

    fn round(&mut self, round: Round) -> Option<RoundView> {
        self.0.ledger.round(round).cloned()
    }

    fn block(&mut self, round: Round, member: &MemberId, block: Block) -> Option<BlockData> {
        self.contribution(round, member)?.block(self.0.ledger.layout(), block)
    }
}

fn bounded<T, const MAX: usize>(items: Vec<T>) -> List<T, MAX> {
    List::new(items).expect("few")
}

fn scene() -> Scene {
    let manifest = manifest(1, 2);
    let run = manifest.run();
    let mut exact = Exact::new(1, None).expect("a processor");
    let layout = Layout::of_run(&manifest);
    let d = layout.parameters();
    let parameters = (0..d).map(|place| ((place * 7919 % 1000) as f32 - 500.0) / 3000.0).collect();
    let mut state = State::initial(&layout, parameters);
    state.exponents.fill(-12);
    let mut ledger = Ledger::new(manifest.clone());
    seal(&mut ledger, Body::Open(state.roots()));
    for (number, role) in [(HONEST, Role::Node), (OTHER, Role::Node), (VERIFIER, Role::Verifier)] {
        seal(&mut ledger, Body::Admit(enrol(run, number, role, true)));
    }
    let seats = bounded(ledger.derived_seats());
    seal(&mut ledger, Body::Begin(seats));
    let view = ledger.current().expect("a round").clone();
    let mut scene = Scene {
        ledger,
        freeze: steward_blank(run),
        commits: vec![],
        state,
        contributions: vec![],
        rows: bounded(vec![]),
    };
    let mut leaves = Vec::new();
    for (slot, seat) in view.seats().iter().enumerate() {
        let mut said = commit(&view, Slot(slot as u16), seat.quota).expect("a seat");
        let sums: Vec<(Vec<i32>, i64)> = (0..seat.quota)
            .map(|position| {
                let (commit, state) = (&said, &scene.state);
                let (witness, arithmetic) = (&mut Everything(&scene), &mut exact);
                let mut recomputing = Recomputing { manifest: &manifest, commit, state, witness, arithmetic };
                recomputing.leaf(position).expect("windows")
            })
            .collect();
        let mut q = vec![0; scene.state.parameters.len()];
        sums.iter().for_each(|(leaf, _)| q.iter_mut().zip(leaf).for_each(|(sum, value)| *sum += value));
        said.root = Commitment::new(&layout, &q).root();
        said.loss = sums.iter().map(|(_, loss)| loss).sum();
        scene.commits.push(named(&seat.member).expect("a person").sign(run, &said));
        scene.contributions.push(q);
        leaves.push(sums);
    }
    let [(freeze, _), ..] = &end_round(&mut scene.ledger, scene.commits.clone())[..] else {
        panic!("three records")
    };
    scene.freeze = freeze.clone();
    let freeze = scene.ledger.round(Round(0)).and_then(|view| view.freeze_digest()).expect("a frozen round");
    let rows = leaves[HONEST].iter().map(|(q, loss)| TableRow {
        sketch: Sketch::Fingerprint(fingerprint(points(&freeze), q)),
        loss: *loss,
    });
    scene.rows = bounded(rows.collect());
    scene
}

/// Something to stand where the freeze will be.
fn steward_blank(run: muster_core::ids::RunId) -> Signed<Record> {
    let record = Record {
        height: Default::default(),
        previous: Digest::default(),
        body: Body::Close(Digest::default()),
    };
    steward().sign(run, &record)
}

#[derive(Arbitrary, Debug)]
struct Step {
    act: Act,
    /// Changes bytes of the message before it is signed.
    edits: Vec<(u16, u8)>,
    by: Signer,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Signer {
    Verifier,
    Accomplice,
}

#[derive(Arbitrary, Debug)]
enum Act {
    /// The next step of an audit of the honest member, then the accusation.
    Proceed,
    /// Ask about the honest member, or about the accomplice.
    Request {
        honest: bool,
        coin: bool,
    },
    /// Seal a table for a request, with some rows.
    Table {
        request: u8,
        rows: Vec<(u64, i64)>,
    },
    /// Seal results for a table.
    Results {
        request: u8,
        table: u8,
        said: Vec<(u8, u64, i64)>,
    },
    Opening {
        request: u8,
        results: u8,
        rows: Vec<(u64, i64)>,
    },
    /// Judge an opened table, by results that were sealed or by others.
    Verdict {
        request: u8,
        opening: u8,
        said: Vec<(u8, u64, i64)>,
        guilty: bool,
    },
    Wait(u16),
    /// Put a transcript together from what was said.
    Accuse([u8; 6]),
    AccuseTotal(bool),
    AccuseTwice(u8, u8),
    /// Say what all leaves give.
    Recompute {
        honest: bool,
        guilty: bool,
    },
    /// The steward examines what verifiers find guilty.
    Hear,
}

/// Everything that was ever said.
#[derive(Default)]
struct Said {
    requests: Vec<Signed<AuditRequest>>,
    tables: Vec<Signed<TableSeal>>,
    results: Vec<Signed<ResultsSeal>>,
    openings: Vec<Signed<TableOpening>>,
    verdicts: Vec<Signed<Verdict>>,
}

struct Trial {
    scene: &'static Scene,
    ledger: Ledger,
    exact: Exact,
    docket: Docket,
    said: Said,
    /// Open cases by audited member, and their verifiers.
    open: BTreeMap<MemberId, MemberId>,
    now: u64,
}

/// One of the items, counted from the last.
fn pick<T: Clone>(items: &[T], place: u8) -> Option<T> {
    items.iter().rev().cycle().nth(usize::from(place)).cloned()
}

fn rows(said: &[(u64, i64)]) -> Rows {
    let row = |(sketch, loss): &(u64, i64)| TableRow {
        sketch: Sketch::Fingerprint([*sketch, *sketch]),
        loss: *loss,
    };
    bounded(said.iter().take(8).map(row).collect())
}

fn results(said: &[(u8, u64, i64)]) -> List<LeafResult, { muster_core::limits::AUDIT_LEAVES }> {
    let result = |(position, sketch, loss): &(u8, u64, i64)| LeafResult {
        position: u32::from(*position),
        row: TableRow { sketch: Sketch::Fingerprint([*sketch, *sketch]), loss: *loss },
    };
    bounded(said.iter().take(8).map(result).collect())
}

impl Trial {
    fn sign<M: Message + borsh::BorshSerialize + borsh::BorshDeserialize>(
        &self,
        step: &Step,
        message: &M,
    ) -> Option<Signed<M>> {
        let mut bytes = encode(message);
        // Before it is signed: signatures are good, what they sign is not.
        for (at, bits) in step.edits.iter().take(3) {
            let at = usize::from(*at) % bytes.len();
            bytes[at] ^= bits;
        }
        let by = match step.by {
            Signer::Verifier => person(VERIFIER),
            Signer::Accomplice => person(OTHER),
        };
        Some(by.sign(self.scene.ledger.run(), &decode::<M>(&bytes).ok()?))
    }

    fn new() -> Self {
        let exact = Exact::new(1, None).expect("a processor");
        let ledger = SCENE.ledger.clone();
        Self {
            scene: &SCENE,
            ledger,
            exact,
            docket: Docket::default(),
            said: Said::default(),
            open: BTreeMap::new(),
            now: 0,
        }
    }

    /// Shows a step to the steward, which seals what it is to seal because of it.
    fn post(&mut self, notice: Notice) {
        if let Ok(body) = self.docket.post(self.now, &self.ledger, &notice) {
            body.into_iter().for_each(|body| self.seal(body));
        }
    }

    fn seal(&mut self, body: Body) {
        let signed = steward().sign(self.ledger.run(), &self.ledger.record(body));
        self.ledger.apply(&signed).expect("the docket asks for what the ledger takes");
    }

    /// Time goes on: who has used up its turn is sealed as silent or idle.
    fn advance(&mut self, milliseconds: u64) {
        self.now += milliseconds;
        for body in self.docket.silences(self.now, &self.ledger) {
            let Body::Silence(request) = &body else { panic!("a silence is proposed") };
            let target = request.verify(self.ledger.run()).expect("a checked request").target;
            // It answers within the step in which it is asked, so that no clock of its own ever runs out.
            assert!(target != person(HONEST).id(), "the honest member answers at once");
            self.seal(body);
        }
        self.idle();
    }

    /// Has the docket take in the ledger as it is.
    fn idle(&mut self) {
        loop {
            let idles = self.docket.idles(self.now, &self.ledger);
            if idles.is_empty() {
                return;
            }
            idles.into_iter().for_each(|body| self.seal(body));
        }
    }

    /// AUDIT-26, after each step: a case that is open no more was closed by something.
    fn check_law(&mut self) {
        self.idle();
        let cases = self.docket.open_cases(&self.ledger);
        let open = cases.filter_map(|case| Some((case.target?, case.verifier))).collect();
        for (target, verifier) in std::mem::replace(&mut self.open, open) {
            let standing = |member| self.ledger.member(member).map(|member| member.standing);
            let closed = self.open.contains_key(&target)
                || self.docket.has_passed(&self.ledger, Round(0), &target)
                || standing(&target) == Some(Standing::Banned)
                || standing(&verifier) != Some(Standing::Active);
            assert!(closed, "the case of {target} vanished");
        }
    }

    /// DUTY-10: what a verifier finds guilty has the member examined, then the verifier, and one of them is banned.
    fn hear(&mut self) {
        for (verifier, charge) in self.docket.charges(&self.ledger) {
            let mut evidence = Some(charge);
            let mut banned = false;
            while let Some(charge) = evidence.filter(|_| !banned) {
                banned = self.judge(&charge);
                evidence = self.docket.after(&self.ledger, &charge, &verifier);
            }
            assert!(banned, "a finding of guilt by {verifier} comes to nothing");
            self.idle();
        }
    }

    /// Nobody says anything any more: every case is closed all the same.
    fn finish(mut self) {
        let end = self.now + CALM;
        while self.now < end {
            self.hear();
            self.advance(500);
            self.check_law();
        }
        if let Some(case) = self.docket.open_cases(&self.ledger).next() {
            panic!("{case:?} is open still");
        }
    }

    fn step(&mut self, step: &Step) -> Option<()> {
        let scene = self.scene;
        let freeze = scene.ledger.round(Round(0))?.freeze_digest()?;
        match &step.act {
            Act::Proceed => {
                let said = &self.said;
                let act = if said.requests.is_empty() {
                    Act::Request { honest: true, coin: false }
                } else if said.results.len() < said.tables.len() {
                    Act::Results { request: 0, table: 0, said: vec![(0, 1, 2)] }
                } else if said.verdicts.len() < said.openings.len() {
                    Act::Verdict { request: 0, opening: 0, said: vec![(0, 1, 2)], guilty: false }
                } else {
                    Act::Accuse([0; 6])
                };
                self.step(&Step { act, edits: Vec::new(), by: step.by })?;
            }
            Act::Request { honest, coin } => {
                let target = person(if *honest { HONEST } else { OTHER }).id();
                let coin = coin.then(|| coins().open(CoinKind::Node, Round(0), 0)).flatten();
                let request = AuditRequest { round: Round(0), freeze, target, coin };
                let signed = self.sign(step, &request)?;
                self.said.requests.push(signed.clone());
                self.post(Notice::Request(signed.clone()));
                self.answer(&signed);
            }
            Act::Table { request, rows: said } => {
                let request = pick(&self.said.requests, *request)?.digest();
                let root = scene.commits[OTHER].verify(scene.ledger.run()).ok()?.root;
                let seal = table_seal(&[1; 32], &rows(said));
                let table = TableSeal { request, round: Round(0), freeze, root, seal };
                let signed = self.sign(step, &table)?;
                self.said.tables.push(signed.clone());
                self.post(Notice::Table(signed));
            }
            Act::Results { request, table, said } => {
                let (request, table) =
                    (pick(&self.said.requests, *request)?, pick(&self.said.tables, *table)?);
                let seal = results_seal(&[2; 32], &results(said));
                let sealed = ResultsSeal { request: request.digest(), table: table.digest(), seal };
                let signed = self.sign(step, &sealed)?;
                self.said.results.push(signed.clone());
                self.post(Notice::Results(signed.clone()));
                self.open(&signed);
            }
            Act::Opening { request, results, rows: said } => {
                let (request, results) =
                    (pick(&self.said.requests, *request)?, pick(&self.said.results, *results)?);
                let (request, results) = (request.digest(), results.digest());
                let opening = TableOpening { request, results, salt: [1; 32], rows: rows(said) };
                let signed = self.sign(step, &opening)?;
                self.said.openings.push(signed.clone());
                self.post(Notice::Opening(signed));
            }
            Act::Verdict { request, opening, said, guilty } => {
                let (request, opening) =
                    (pick(&self.said.requests, *request)?, pick(&self.said.openings, *opening)?);
                let slot = Slot(u16::from(*guilty));
                let finding =
                    if *guilty { Finding::Guilty(FindingKind::LeafMismatch) } else { Finding::Pass };
                let verdict = Verdict {
                    request: request.digest(),
                    opening: opening.digest(),
                    coin: coins().open(CoinKind::Leaf, Round(0), leaf_coin(slot))?,
                    salt: [2; 32],
                    results: results(said),
                    total: Sketch::Fingerprint([0; 2]),
                    finding,
                };
                let signed = self.sign(step, &verdict)?;
                self.said.verdicts.push(signed.clone());
                self.post(Notice::Verdict(signed));
            }
            Act::Wait(milliseconds) => self.advance(u64::from(*milliseconds)),
            Act::Recompute { honest, guilty } => {
                let target = person(if *honest { HONEST } else { OTHER }).id();
                let finding =
                    if *guilty { Finding::Guilty(FindingKind::TotalMismatch) } else { Finding::Pass };
                let said = Recomputation { round: Round(0), freeze, target, finding };
                let signed = self.sign(step, &said)?;
                self.post(Notice::Recomputation(signed));
            }
            Act::Hear => self.hear(),
            Act::Accuse(places) => self.accuse(places)?,
            Act::AccuseTotal(honest) => {
                let culprit = person(if *honest { HONEST } else { OTHER }).id();
                self.judge(&Evidence::Total(Total { freeze: scene.freeze.clone(), culprit }));
            }
            Act::AccuseTwice(first, second) => {
                let (first, second) = (pick(&scene.commits, *first)?, pick(&scene.commits, *second)?);
                self.judge(&Evidence::Equivocation(Equivocation { first, second }));
            }
        }
        Some(())
    }

    /// The honest member answers whatever request is due and about itself.
    fn answer(&mut self, signed: &Signed<AuditRequest>) {
        let (scene, me) = (self.scene, person(HONEST));
        // An honest member looks before it answers: the fuzzer has changed requests before they were signed.
        let Ok(request) = scene.ledger.check_request(signed) else { return };
        if request.target != me.id() {
            return;
        }
        let root = scene.commits[HONEST].verify(scene.ledger.run()).expect("its own").root;
        let seal = table_seal(&salt(signed), &scene.rows);
        let table =
            TableSeal { request: signed.digest(), round: request.round, freeze: request.freeze, root, seal };
        let table = me.sign(scene.ledger.run(), &table);
        self.said.tables.push(table.clone());
        self.post(Notice::Table(table));
    }

    /// The honest member opens its table once, to results that its verifier has sealed for it.
    fn open(&mut self, signed: &Signed<ResultsSeal>) {
        let (run, me): (_, &Identity) = (self.scene.ledger.run(), person(HONEST));
        let Ok(results) = signed.verify(run) else { return };
        let Some(asked) = self.said.requests.iter().find(|asked| asked.digest() == results.request) else {
            return;
        };
        let own =
            |table: &&Signed<TableSeal>| table.digest() == results.table && table.claimed_signer() == me.id();
        let Some(table) = self.said.tables.iter().find(own) else { return };
        let Ok(table) = table.verify(run) else { return };
        let opened = self.said.openings.iter().any(|opening| {
            opening.verify(run).is_ok_and(|o| o.author() == me.id() && o.request == results.request)
        });
        if table.request != results.request || asked.claimed_signer() != results.author() || opened {
            return;
        }
        let opening = TableOpening {
            request: results.request,
            results: signed.digest(),
            salt: salt(asked),
            rows: self.scene.rows.clone(),
        };
        let opening = me.sign(run, &opening);
        self.said.openings.push(opening.clone());
        self.post(Notice::Opening(opening));
    }

    fn accuse(&mut self, places: &[u8; 6]) -> Option<()> {
        let said = &self.said;
        let transcript = Transcript {
            freeze: self.scene.freeze.clone(),
            request: pick(&said.requests, places[1])?,
            table: pick(&said.tables, places[2])?,
            results: pick(&said.results, places[3])?,
            opening: pick(&said.openings, places[4])?,
            verdict: pick(&said.verdicts, places[5])?,
        };
        self.judge(&Evidence::Audit(transcript));
        Some(())
    }

    /// Bans whom the evidence convicts; whether it convicts anybody.
    fn judge(&mut self, evidence: &Evidence) -> bool {
        let manifest = self.scene.ledger.manifest();
        let judgement = judge(manifest, evidence, &mut Everything(self.scene), &mut self.exact);
        let Judgement::Guilty { culprit, round, finding, detail } = judgement else { return false };
        assert!(culprit != person(HONEST).id(), "an honest member is convicted: {detail}");
        // The same evidence may come again, and a member is banned once.
        if !self.ledger.is_banned(&culprit) {
            self.seal(Body::Ban(Ban {
                culprit,
                effective: self.ledger.first_round_without(),
                round,
                finding,
                evidence: evidence.digest(),
                accuser: steward().id(),
                jury: Jury::default(),
            }));
        }
        true
    }
}

fn salt(request: &Signed<AuditRequest>) -> [u8; 32] {
    request.digest().0
}

fuzz_target!(|steps: Vec<Step>| {
    let mut trial = Trial::new();
    trial.check_law();
    for step in steps.iter().take(24) {
        trial.step(step);
        trial.check_law();
    }
    trial.finish();
});
