//! Sanctions: what is taken back after a conviction, by whom and how far; and a steward that breaks its word is halted
//! on, while one that keeps it is never convicted.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use e2e::processes::Run;
use e2e::programs;
use e2e::settings::Settings;
use e2e::sim::{self, Behaviour, Sim};
use muster_core::audit::{Judgement, judge_steward};
use muster_core::codec::{Bytes, List, Real, Text, decode, encode};
use muster_core::ids::{Digest, Height, MemberId, Part, Round};
use muster_core::ledger::{Ledger, Stage};
use muster_core::manifest::{Manifest, Rollback};
use muster_core::messages::audit::{FindingKind, Jury};
use muster_core::messages::enrol::{Enrol, Ticket};
use muster_core::messages::evidence::{Evidence, Misconduct, OmittedCommit, OmittedDelivery, Seal, TwoSeals};
use muster_core::messages::gossip::Head;
use muster_core::messages::record::{Ban, Body, Freeze, Inputs, Record, Rewind};
use muster_core::messages::round::{Bitmap, Commit, CommitReceipt, Delivered, DeliveryReceipt, Receipt};
use muster_core::messages::wire::{News, Request, Response};
use muster_core::sign::{Identity, Signed};
use muster_core::state::{State, StateRoots};
use muster_net::endpoint::Endpoint;
use muster_net::listener::Listener;
use muster_net::seats::ConnectionLimit;
use muster_net::serve::{Unanswered, serve};
use muster_replica::Replica;
use muster_replica::archive::{Archive, Plan, Replay};
use muster_store::dataset::Dataset;
use muster_store::home::Home;

fn steward() -> Identity {
    Identity::from_secret(&[2; 32])
}

fn node(number: u8) -> Identity {
    Identity::from_secret(&[10 + number; 32])
}

/// Ledgers before each record of a run in which a part is reassigned, with the record that comes next.
fn steps() -> Vec<(Ledger, Record)> {
    let mut behaviours = [Behaviour::Honest; 4];
    behaviours[3] = Behaviour::NeverReduces;
    let change: fn(&mut Manifest) = |manifest| {
        let limit = Real::new(0.5).expect("finite");
        manifest.rollback = Rollback { limit, most_rounds: 2, spacing: 3 };
    };
    let mut sim = Sim::new(sim::Plan { change, ..sim::Plan::behaving(11, 3, &behaviours) });
    sim.run(3_600_000);
    let mut ledger = Ledger::new(Arc::clone(sim.ledger().manifest()));
    let run = ledger.run();
    let step = |record: Record| {
        let before = ledger.clone();
        ledger.apply(&steward().sign(run, &record)).expect("an honest record");
        (before, record)
    };
    sim.records().map(step).collect()
}

fn guilty(manifest: &Manifest, misconduct: Misconduct) -> bool {
    match judge_steward(manifest, &misconduct) {
        Judgement::Guilty { culprit, .. } => {
            assert_eq!(culprit, manifest.steward);
            true
        }
        Judgement::NotGuilty(_) => false,
        other => panic!("{other:?}"),
    }
}

fn malformed(manifest: &Manifest, misconduct: Misconduct, what: &str) {
    let judgement = judge_steward(manifest, &misconduct);
    assert!(matches!(judgement, Judgement::Malformed(_)), "{what}: {judgement:?}");
}

/// AUDIT-13: a Commit with a receipt is in the Freeze of its round.
#[test]
fn a_receipted_commitment_that_is_left_out_convicts_the_steward() {
    let mut seen = 0;
    for (ledger, record) in steps() {
        let Body::Freeze(freeze) = &record.body else { continue };
        seen += 1;
        let (run, manifest) = (ledger.run(), ledger.manifest());
        let commit = freeze.commits[1].clone();
        let receipt = |digest, round| steward().sign(run, &CommitReceipt { commit: digest, round });
        let seal = |commits: Vec<Signed<Commit>>, round| {
            let freeze = Freeze { commits: List::new(commits).expect("few"), round, ..freeze.clone() };
            steward().sign(run, &ledger.record(Body::Freeze(freeze)))
        };
        let without: Vec<_> = freeze.commits.iter().filter(|kept| **kept != commit).cloned().collect();
        let omitted =
            |receipt, freeze| Misconduct::Commit(OmittedCommit { commit: commit.clone(), receipt, freeze });
        let good = receipt(commit.digest(), freeze.round);
        assert!(guilty(manifest, omitted(good.clone(), seal(without.clone(), freeze.round))));
        assert!(!guilty(manifest, omitted(good.clone(), seal(freeze.commits.to_vec(), freeze.round))));
        let later = Round(freeze.round.0 + 1);
        malformed(manifest, omitted(good.clone(), seal(without.clone(), later)), "a freeze of another round");
        let other = receipt(freeze.commits[0].digest(), freeze.round);
        malformed(manifest, omitted(other, seal(without.clone(), freeze.round)), "a receipt of another");
        let own = node(0).sign(run, &CommitReceipt { commit: commit.digest(), round: freeze.round });
        malformed(manifest, omitted(own, seal(without.clone(), freeze.round)), "a receipt of one's own");
        let own = node(0).sign(run, &ledger.record(Body::Close(Digest([1; 32]))));
        malformed(manifest, omitted(good, own), "a record of one's own");
    }
    assert_eq!(seen, 3);
}

/// AUDIT-13: a Delivered with a receipt counts its author in each part that it has a keeper's receipt for.
#[test]
fn a_receipted_delivery_that_is_left_out_convicts_the_steward() {
    let (mut seen, mut seconds) = (0, 0);
    let (mut freeze, mut reassign) = (None, None);
    for (ledger, record) in steps() {
        let signed = steward().sign(ledger.run(), &record);
        match &record.body {
            Body::Freeze(_) => (freeze, reassign) = (Some(signed), None),
            Body::Reassign(_) => reassign = Some(signed),
            Body::Inputs(inputs) => {
                let freeze = freeze.clone().expect("a freeze");
                left_out(&ledger, inputs, freeze, reassign.clone());
                seen += 1;
                seconds += u32::from(inputs.attempt);
            }
            _ => {}
        }
    }
    assert!(seen > 3 && seconds > 0, "{seen} and {seconds}");
}

fn left_out(ledger: &Ledger, inputs: &Inputs, freeze: Signed<Record>, reassign: Option<Signed<Record>>) {
    let (run, manifest) = (ledger.run(), ledger.manifest());
    let view = ledger.current().expect("a round");
    let author = view.member_at(inputs.parts[0].slots().next().expect("a sender")).expect("a member");
    let author = (0..4).map(node).find(|node| node.id() == author).expect("a node");
    let slot = view.slot_of(&author.id()).expect("a seat");
    let second: Vec<Part> = view.reassigned().collect();
    let place = inputs.parts.len() - 1;
    let part = if inputs.attempt == 0 { Part(place as u16) } else { second[place] };
    let (round, attempt) = (inputs.round, inputs.attempt);
    let root = view.commitment(slot).expect("a commitment").commit.root;
    let receipt = Receipt { round, part, attempt, sender: author.id(), root };
    let keeper = node(0).sign(run, &receipt);
    let delivered = Delivered { round, attempt, receipts: List::new(vec![keeper]).expect("one") };
    let delivered = author.sign(run, &delivered);
    let promise = DeliveryReceipt { delivered: delivered.digest(), round, attempt };
    let seal = |counted: bool, attempt: u8| {
        let mut parts = inputs.parts.to_vec();
        let others = parts[place].slots().filter(|other| *other != slot).collect::<Vec<_>>();
        parts[place] = Bitmap::default();
        others.into_iter().for_each(|other| parts[place].insert(other));
        if counted {
            parts[place].insert(slot);
        }
        let inputs = Inputs { round, attempt, parts: List::new(parts).expect("few") };
        steward().sign(run, &ledger.record(Body::Inputs(inputs)))
    };
    let omitted = |receipt: Signed<DeliveryReceipt>, inputs: Signed<Record>| {
        let (delivered, freeze) = (delivered.clone(), freeze.clone());
        let reassign = reassign.clone().filter(|_| attempt == 1);
        Misconduct::Delivery(OmittedDelivery { delivered, receipt, freeze, reassign, inputs })
    };
    let good = steward().sign(run, &promise);
    assert!(guilty(manifest, omitted(good.clone(), seal(false, attempt))));
    assert!(!guilty(manifest, omitted(good.clone(), seal(true, attempt))));
    malformed(manifest, omitted(good.clone(), seal(false, 1 - attempt)), "inputs of another attempt");
    malformed(manifest, omitted(author.sign(run, &promise), seal(false, attempt)), "a receipt of one's own");
    let other = DeliveryReceipt { delivered: Digest([5; 32]), ..promise };
    malformed(manifest, omitted(steward().sign(run, &other), seal(false, attempt)), "a receipt of another");
}

/// LEDGER-3, AUDIT-13: one record of each height.
#[test]
fn two_seals_of_one_height_convict_the_steward() {
    let steps = steps();
    for ((ledger, record), (_, next)) in steps.iter().zip(&steps[1..]) {
        let (run, manifest) = (ledger.run(), ledger.manifest());
        let other = ledger.record(Body::Close(Digest([7; 32])));
        let after_other = Record { previous: other.head(), ..next.clone() };
        let seal = |record: &Record| Seal::Record(steward().sign(run, record));
        let head =
            |of: &Record| Seal::Head(steward().sign(run, &Head { height: of.height, head: of.head() }));
        let split = |first, second| Misconduct::Split(TwoSeals { first, second });
        assert!(guilty(manifest, split(seal(record), seal(&other))));
        assert!(guilty(manifest, split(seal(record), seal(&after_other))));
        assert!(guilty(manifest, split(head(&other), seal(next))));
        assert!(guilty(manifest, split(head(&other), head(record))));
        assert!(!guilty(manifest, split(seal(record), seal(record))));
        assert!(!guilty(manifest, split(seal(record), seal(next))));
        assert!(!guilty(manifest, split(seal(next), head(record))));
        malformed(manifest, split(head(record), head(next)), "two heights");
        let own = Seal::Record(node(1).sign(run, &other));
        malformed(manifest, split(seal(record), own), "a member's record");
    }
}

/// A ledger in which a member is banned, in the middle of a run, with the name of the evidence.
fn convicted(stage: Stage) -> (Ledger, Digest) {
    let mut steps = steps();
    // The last record leads to the last audits, which no record follows here.
    let (mut end, last) = steps.last().cloned().expect("records");
    seal(&mut end, last.body.clone()).expect("an honest record");
    steps.push((end, last));
    let at = steps.iter().rev().find(|(ledger, _)| ledger.stage() == stage && ledger.next_round().0 >= 2);
    let mut ledger = at.expect("such a stage").0.clone();
    let evidence = Digest([4; 32]);
    let ban = Ban {
        culprit: node(1).id(),
        effective: ledger.first_round_without(),
        round: Round(1),
        finding: FindingKind::LeafMismatch,
        evidence,
        accuser: node(0).id(),
        jury: Jury::default(),
    };
    seal(&mut ledger, Body::Ban(ban)).expect("a ban");
    (ledger, evidence)
}

fn seal(ledger: &mut Ledger, body: Body) -> Result<(), muster_core::error::Reject> {
    let signed = steward().sign(ledger.run(), &ledger.record(body));
    ledger.apply(&signed).map(drop)
}

fn refused(ledger: &Ledger, rewind: &Rewind, what: &str) {
    let mut after = ledger.clone();
    seal(&mut after, Body::Rewind(rewind.clone())).expect_err(what);
    assert_eq!((after.head(), after.stage(), after.state()), (ledger.head(), ledger.stage(), ledger.state()));
}

/// LEDGER-17, LEDGER-18.
#[test]
fn a_rewind_keeps_its_limits() {
    let (ledger, evidence) = convicted(Stage::Computing);
    let next = ledger.next_round();
    let to = Round(next.0 - 1);
    let good = Rewind { to, state: *ledger.state_before(to).expect("a sealed state"), evidence };
    let unknown = Rewind { evidence: Digest([5; 32]), ..good.clone() };
    refused(&ledger, &unknown, "evidence of no ban");
    refused(&ledger, &Rewind { to: next, ..good.clone() }, "to the present");
    refused(&ledger, &Rewind { state: *ledger.state(), ..good.clone() }, "to another state");
    assert!(ledger.state_before(Round(0)).is_none() || next.0 <= 2, "most_rounds is 2");
    if next.0 > 2 {
        let state = StateRoots { step: 0, ..good.state };
        refused(&ledger, &Rewind { to: Round(0), state, ..good.clone() }, "too far back");
    }
    for stage in [Stage::Exchanging, Stage::Reducing, Stage::Auditing] {
        let (busy, evidence) = convicted(stage);
        let to = Round(busy.next_round().0 - 1);
        let state = *busy.state_before(to).expect("a sealed state");
        refused(&busy, &Rewind { to, state, evidence }, "inside an update, or after the last one");
    }

    let mut after = ledger.clone();
    seal(&mut after, Body::Rewind(good.clone())).expect("a rewind");
    assert_eq!(
        (after.stage(), after.next_round(), *after.state()),
        (Stage::Gathering, next.next(), good.state)
    );
    assert!(after.round(next).is_none(), "the open round is over without an update");
    refused(&after, &good, "the same evidence twice, at once");
    let seats = List::new(after.derived_seats()).expect("few");
    seal(&mut after, Body::Begin(seats)).expect("rounds go on");
    let view = after.current().expect("a round");
    assert_eq!((view.round(), *view.state()), (next.next(), good.state));
    assert!(view.slot_of(&node(1).id()).is_none(), "the convict has no seat");
    let ban = Ban {
        culprit: node(2).id(),
        effective: after.first_round_without(),
        round: Round(1),
        finding: FindingKind::LeafMismatch,
        evidence: Digest([6; 32]),
        accuser: node(0).id(),
        jury: Jury::default(),
    };
    seal(&mut after, Body::Ban(ban)).expect("another ban");
    refused(&after, &Rewind { evidence: Digest([6; 32]), ..good }, "two rewinds without spacing");
    assert_eq!(after.next_rewind(), Round(next.0 + 4), "three above the round that went on");
    assert!(
        (0..=after.next_round().0).all(|round| !after.can_rewind_to(Round(round))),
        "out of reach by then"
    );
}

/// A run in which an attacker is found late, by a verifier that comes late; the state goes back for it.
fn taken_back(attack: &str, audit: (f64, u32), blocks: f64) -> (Run, String) {
    let settings = Settings {
        // Long enough for the verifier to come in time, however slowly it starts, and what counted before is kept.
        rounds: 60,
        contributions: 60,
        nodes: 3,
        audit,
        blocks,
        coin_lead: 6,
        rollback: 0.01,
        ..Settings::default()
    };
    let settings = settings.to_string().replace("states = 16", "states = 60");
    let run = Run::packed(programs!(), &settings, None);
    let mut steward = run.host_with(&["--keep-aggregates"]);
    let nodes = run.invite("node", 3);
    let mut first = run.join("first", &nodes, &[]);
    let mut second = run.join("second", &nodes, &[]);
    let mut cheat = run.attack("cheat", attack, 2, &nodes);
    run.wait_round(2);
    let mut watch = run.watch("verifier", &run.invite("verifier", 1));
    assert_eq!(cheat.wait(), 1, "{}", cheat.log());
    assert_eq!(first.wait(), 0, "{}", first.log());
    assert_eq!(second.wait(), 0, "{}", second.log());
    assert_eq!(watch.wait(), 0, "{}", watch.log());
    assert_eq!(steward.wait(), 0, "{}", steward.log());
    assert_eq!(run.events("ban").len(), 1);
    let rewinds = run.events("rewind");
    assert_eq!(rewinds.len(), 1, "{rewinds:?}");
    let root = run.root();
    for member in ["first", "second", "verifier"] {
        assert_eq!(run.result(member)["final_state_root"], root.as_str(), "{member}");
    }
    let (code, output) = run.replay();
    assert_eq!(code, 0, "{output}");
    assert!(output.contains(&root), "{output}");
    (run, output)
}

#[test]
fn a_convict_s_past_is_taken_back_and_everybody_follows() {
    let (run, output) = taken_back("flip", (1.0, 2), 0.3);
    let root = run.root();
    // As many updates as were to be made lead to the end.
    let archive = Archive::open(&run.path("run")).expect("an archive");
    let mut ledger = Ledger::new(archive.manifest.clone());
    archive.records.iter().for_each(|record| drop(ledger.apply(record).expect("a good record")));
    assert_eq!(ledger.state().step, 60);
    assert!(ledger.next_round().0 > 60);

    let told = run.events("retro");
    let found = told[0]["rounds"].as_array().expect("rounds").iter();
    let found: BTreeSet<u64> =
        found.filter(|round| round["found"] == "false").filter_map(|round| round["round"].as_u64()).collect();
    let words = |line: &str| line.strip_prefix("round ")?.split(':').next()?.parse::<u64>().ok();
    let replayed: BTreeSet<u64> =
        output.lines().filter(|line| line.contains("a false contribution")).filter_map(words).collect();
    assert_eq!(found, replayed, "the audit of the past finds what the replay finds");
    resumed(&archive, &root);
    sampled(&run, &root);
}

/// ROLLBACK-1: one drawn block convicts an aggregator, and every part that it signed before is combined again.
#[test]
fn a_convict_s_wrong_parts_are_found_and_taken_back() {
    let (run, _) = taken_back("nudge", (0.0, 1), 1.0);
    let (ban, retro) = (&run.events("ban")[0], &run.events("retro")[0]);
    assert_eq!((&ban["finding"], &ban["member"]), (&"aggregation mismatch".into(), &retro["member"]));
    let rounds = retro["rounds"].as_array().expect("rounds");
    let mut bad = Vec::new();
    for told in rounds {
        let round = told["round"].as_u64().expect("a number");
        assert!(told["found"].is_null() || told["found"] == "right", "its leaves are honest: {told}");
        for part in told["parts"].as_array().expect("parts") {
            assert_eq!(part["found"], if round < 2 { "right" } else { "false" }, "{told}");
        }
        if round >= 2 && !told["parts"].as_array().expect("parts").is_empty() {
            bad.push(round);
        }
    }
    assert!(bad.len() > 1, "more than the one that was drawn: {retro}");
    assert!(run.events("rewind")[0]["to"].as_u64() <= bad.last().copied());
}

/// A replay that stops after any round goes on from what it kept, and finds the same.
fn resumed(archive: &Archive, root: &str) {
    let plan = Plan { threads: 2, path: None, sample: None };
    let mut whole = Replay::begin(archive, &plan).expect("arithmetic");
    while let Some(round) = whole.round(&|| ()).expect("a good archive") {
        if round.0 % 5 != 3 {
            continue;
        }
        let (progress, states) = whole.progress();
        let states: BTreeMap<Round, State> = states.map(|(round, state)| (round, state.clone())).collect();
        let mut later = Replay::begin(archive, &plan).expect("arithmetic");
        later.skip(&progress, &|round| states.get(&round).cloned()).expect("what was kept");
        while later.round(&|| ()).expect("a good archive").is_some() {}
        let found = later.finish();
        assert_eq!(format!("{:#}", found.root), root, "resumed after round {round}");
        // A state that is not the sealed one is not gone on from.
        let mut forged = Replay::begin(archive, &plan).expect("arithmetic");
        let change = |round| {
            let mut state = states.get(&round)?.clone();
            state.parameters[0] += 1.0;
            Some(state)
        };
        forged.skip(&progress, &change).expect_err("another state");
    }
}

/// A share is drawn, everything else followed; without aggregates it says what it lacks.
fn sampled(run: &Run, root: &str) {
    let (folder, work) = (run.at("run"), run.at("work"));
    let (code, output) = run.verifier(&["replay", &folder, "--fraction", "0.3", "--work", &work]);
    assert_eq!(code, 0, "{output}");
    assert!(output.contains("contributions were drawn") && output.contains(root), "{output}");
    std::fs::write(run.path("work/progress"), b"junk").expect("a file");
    let (code, output) = run.verifier(&["replay", &folder, "--fraction", "0", "--work", &work]);
    assert_eq!(code, 0, "{output}");
    assert!(output.contains("is not used") && output.contains(" 0 of "), "{output}");
    std::fs::remove_dir_all(run.path("run/updates")).expect("aggregates");
    let (code, output) = run.verifier(&["replay", &folder, "--fraction", "0.3", "--work", &work]);
    assert_eq!(code, 1, "{output}");
    assert!(output.contains("--keep-aggregates"), "{output}");
}

/// A steward that gives a receipt for a node's commitment and freezes the round without it.
struct Liar {
    identity: Identity,
    archive: (Arc<Manifest>, Dataset),
    accomplice: Identity,
    told: Mutex<(Ledger, Vec<Signed<Record>>)>,
}

impl Liar {
    /// Opens the run and admits an accomplice, on the same invitation as the node that will come.
    fn new(folder: &std::path::Path, ticket: &Ticket) -> Self {
        let home = Home::open(folder).expect("the steward has ended");
        let manifest: Manifest =
            decode(&home.read_file("manifest.bin").expect("a manifest")).expect("canonical");
        let (manifest, data) = (Arc::new(manifest), folder.join("data"));
        let dataset = Dataset::open(&data, &manifest.data).expect("the text");
        let again = Arc::new(Dataset::open(&data, &manifest.data).expect("the text"));
        let replica = Replica::genesis(manifest.clone(), again, 1, None).expect("arithmetic");
        let liar = Self {
            identity: home.identity().expect("the steward's key"),
            accomplice: Identity::from_secret(&[77; 32]),
            told: Mutex::new((Ledger::new(manifest.clone()), Vec::new())),
            archive: (manifest, dataset),
        };
        liar.seal(Body::Open(replica.state().roots()));
        let addresses = List::new(Vec::new()).expect("none");
        let enrol = Enrol { invitation: ticket.present(liar.accomplice.id()), addresses, coins: None };
        liar.seal(Body::Admit(liar.accomplice.sign(ticket.run, &enrol)));
        liar
    }

    fn seal(&self, body: Body) {
        let mut told = self.told.lock().expect("one at a time");
        let signed = self.identity.sign(told.0.run(), &told.0.record(body));
        told.0.apply(&signed).expect("a record that keeps the ledger's rules");
        told.1.push(signed);
    }

    fn answer(&self, request: &[u8]) -> Option<Vec<u8>> {
        let (manifest, dataset) = &self.archive;
        let response = match decode(request).ok()? {
            Request::Manifest => Response::Manifest(Bytes::new(manifest.bytes()).ok()?),
            Request::Data(query) => {
                let chunks = dataset.chunks(query.file, query.first, query.count.min(64));
                Response::Bytes(Bytes::new(chunks.to_vec()).ok()?)
            }
            Request::Follow(follow) => {
                let told = self.told.lock().expect("one at a time");
                let records = told.1.iter().skip(follow.height.index()).cloned().collect();
                let newest = Height(told.1.len() as u64 - 1);
                let notices = List::new(Vec::new()).expect("none");
                let records = List::new(records).expect("few");
                Response::News(News { records, newest, board: 1, first_notice: 0, notices })
            }
            Request::Enrol(signed) => {
                self.seal(Body::Admit(signed));
                let seats = self.told.lock().expect("one at a time").0.derived_seats();
                self.seal(Body::Begin(List::new(seats).expect("two")));
                Response::Done
            }
            Request::Commit(signed) => {
                let receipt = CommitReceipt { commit: signed.digest(), round: Round(0) };
                self.freeze_without();
                Response::Committed(self.identity.sign(manifest.run(), &receipt))
            }
            _ => return None,
        };
        Some(encode(&response))
    }

    fn freeze_without(&self) {
        let freeze = {
            let told = self.told.lock().expect("one at a time");
            if told.0.stage() != Stage::Computing {
                return;
            }
            let view = told.0.current().expect("a round");
            let commit = Commit {
                round: view.round(),
                head: view.head(),
                state: view.state().root(),
                slot: view.slot_of(&self.accomplice.id()).expect("a seat"),
                seats: 2,
                leaves: 1,
                profile: self.archive.0.profile,
                loss: 0,
                root: Digest([8; 32]),
            };
            let commits = List::new(vec![self.accomplice.sign(told.0.run(), &commit)]).expect("one");
            Freeze { round: view.round(), state: commit.state, commits }
        };
        self.seal(Body::Freeze(freeze));
    }
}

/// COMMIT-4, AUDIT-13: the node halts, and what it writes down convicts the steward anywhere.
#[test]
fn a_node_halts_on_a_steward_that_breaks_its_word() {
    let run = Run::new(programs!(), &Settings { rounds: 4, ..Settings::default() });
    let mut honest = run.host();
    let mut ticket = Ticket::from_line(&run.invite("node", 2)).expect("an invitation");
    honest.kill();
    let liar = Arc::new(Liar::new(&run.path("run"), &ticket));
    let runtime = tokio::runtime::Runtime::new().expect("threads");
    let listener =
        runtime.block_on(Listener::bind("127.0.0.1:0", ConnectionLimit::default())).expect("a port");
    let address = Text::new(listener.local_addr().to_string()).expect("short");
    ticket.addresses = List::new(vec![address]).expect("one");
    let home = Home::open(&run.path("run")).expect("the steward has ended");
    let endpoint = Endpoint::new(ticket.run, Arc::new(home.identity().expect("the steward's key")));
    let handler = Arc::new(move |_: MemberId, request: Vec<u8>| {
        let liar = liar.clone();
        async move {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            liar.answer(&request).ok_or_else(|| Unanswered::Refused("not told".into()))
        }
    });
    runtime.spawn(serve(listener, endpoint, handler, std::future::pending()));
    let mut victim = run.join("victim", &ticket.to_line(), &["--no-gossip"]);
    assert_eq!(victim.wait(), 1, "{}", victim.log());
    assert!(victim.log().contains("the steward broke its word, halting"), "{}", victim.log());
    let proofs = std::fs::read_dir(run.path("victim/evidence")).expect("a folder");
    let proofs: Vec<_> = proofs.map(|entry| entry.expect("an entry").path()).collect();
    assert_eq!(proofs.len(), 1, "{proofs:?}");
    let (code, output) = run.verifier(&["check", &proofs[0].to_string_lossy()]);
    assert_eq!(code, 0, "{output}");
    assert!(output.contains("guilty: the steward"), "{output}");
    // Nor does it follow again, nor anybody who was shown the proof.
    let shown = Home::open(&run.path("shown")).expect("a data directory");
    let proof: Evidence = decode(&std::fs::read(&proofs[0]).expect("a file")).expect("evidence");
    shown.save_evidence(&proof).expect("a copy");
    drop(shown);
    for member in ["victim", "shown"] {
        let mut halted = run.join(member, &ticket.to_line(), &["--no-gossip"]);
        assert_eq!(halted.wait(), 1, "{}", halted.log());
        assert!(halted.log().contains("the steward broke its word, halting"), "{}", halted.log());
        assert!(!run.path(member).join("result.json").exists() || member == "victim", "it followed");
    }
    // Anywhere: the file and the manifest are enough.
    let elsewhere = run.path("elsewhere");
    std::fs::create_dir_all(&elsewhere).expect("a folder");
    std::fs::copy(run.path("run/manifest.bin"), elsewhere.join("manifest.bin")).expect("a copy");
    let (proof, folder) = (proofs[0].to_string_lossy(), elsewhere.to_string_lossy());
    let (code, output) = run.verifier(&["check", &proof, "--run", &folder]);
    assert_eq!(code, 0, "{output}");
}
