//! Observers as real processes: they follow without being members, and halt on a steward that lies.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use e2e::processes::{Run, copy_folder, evidence_in};
use e2e::programs;
use e2e::settings::Settings;
use muster_core::codec::{Bytes, List, decode, encode};
use muster_core::hash::{Domain, Hasher};
use muster_core::ids::{Digest, Height, MemberId, Round, RunId, ShardId, Slot};
use muster_core::layout::Layout;
use muster_core::limits;
use muster_core::manifest::{Manifest, Profile};
use muster_core::messages::audit::FindingKind;
use muster_core::messages::enrol::Ticket;
use muster_core::messages::evidence::{Equivocation, Evidence, Misconduct, WrongRoot};
use muster_core::messages::record::{Ban, Body, Record};
use muster_core::messages::round::Commit;
use muster_core::messages::wire::{BlockQuery, News, Request, Response};
use muster_core::rounding::ResultGrid;
use muster_core::sign::{Identity, Signed};
use muster_core::state::{ShardRoots, StateRoots, Update};
use muster_net::endpoint::Endpoint;
use muster_net::listener::Listener;
use muster_net::seats::ConnectionLimit;
use muster_net::serve::{Unanswered, serve};
use muster_replica::archive::Archive;
use muster_replica::{Replica, disk};
use muster_store::home::Home;
use muster_store::journal::Journal;
use muster_store::room;
use tokio::runtime::Runtime;

#[test]
fn an_observer_follows_to_the_same_root_without_being_a_member() {
    let run = Run::new(programs!(), &Settings::default());
    let mut steward = run.host();
    let nodes = run.invite("node", 2);
    let ticket = Ticket::from_line(&nodes).expect("an invitation");
    let address = format!("{:#}@{:#}@{}", ticket.run, ticket.steward, &*ticket.addresses[0]);
    let mut observer = run.observe("observer", &address);
    observer.wait_for_log("observing run");
    let mut first = run.join("first", &nodes, &[]);
    let mut second = run.join("second", &nodes, &[]);
    assert_eq!(observer.wait(), 0, "{}", observer.log());
    assert_eq!(first.wait(), 0, "{}", first.log());
    assert_eq!(second.wait(), 0, "{}", second.log());
    assert_eq!(steward.wait(), 0);
    run.check_end(&["first", "second"]);
    let log = observer.log();
    assert_eq!(log.matches(" checked\n").count(), 12, "{log}");
    assert!(log.contains(&format!("closed with state {}", &run.root()[..16])), "{log}");
    assert!(log.contains("its last state was checked here"), "{log}");
    assert_eq!(run.events("admit").len(), 2);
}

#[test]
fn limit_3_a_long_ledger_stays_within_the_disk_that_an_observer_allows() {
    let run = Run::new(programs!(), &Settings { rounds: 5000, ..Settings::default() });
    let _steward = run.host();
    let nodes = run.invite("node", 2);
    let _nodes = ["first", "second"].map(|name| run.join(name, &nodes, &[]));
    run.wait_round(100);
    // Before it fetches anything.
    // As a mail program broke it, in a file.
    let (head, tail) = nodes.split_at(60);
    fs::write(run.path("line"), format!("\u{feff}<{head}\r\n{tail}>\r\n")).expect("a file");
    let in_file = format!("@{}", run.at("line"));
    let mut observer = run.observe_with("observer", &in_file, &["--max-disk", "0.001"]);
    assert_eq!(observer.wait(), 3, "{}", observer.log());
    let log = observer.log();
    assert!(log.contains("this run takes about 0.0") && log.contains("--max-disk allows 0.001;"), "{log}");
    assert!(!run.path("observer/data").exists());
    // So much is left that a few dozen rounds fit.
    let manifest: Manifest =
        decode(&fs::read(run.path("run/manifest.bin")).expect("a file")).expect("a manifest");
    let most: u64 = 1 << 26;
    assert!(disk::following(&manifest).bytes() < most, "the run itself is small enough");
    let reserved = disk::growth_of_follower(&manifest) + 300_000;
    let left = most - reserved - room::used(&run.path("observer"));
    fs::write(run.path("observer/other"), vec![1; left as usize]).expect("a file");
    let mut observer = run.observe_with("observer", &nodes, &["--max-disk", "0.0625"]);
    assert_eq!(observer.wait(), 3, "{}", observer.log());
    let log = observer.log();
    assert!(log.contains("observing run") && log.contains("the 0.0625 of --max-disk; allow more"), "{log}");
    assert!(room::used(&run.path("observer")) <= most);
    assert!(Journal::copy_of(&run.path("observer")).expect("a journal").height().expect("records").0 > 10);
    // With room it goes on.
    fs::remove_file(run.path("observer/other")).expect("a file");
    let observer = run.observe_with("observer", &nodes, &["--max-disk", "0.0625"]);
    observer.wait_for_log(" checked");
}

#[test]
fn an_observer_halts_on_a_steward_that_lies() {
    let run = Run::new(programs!(), &Settings { rounds: 4, ..Settings::default() });
    let mut steward = run.host();
    let nodes = run.invite("node", 2);
    let mut first = run.join("first", &nodes, &[]);
    let mut second = run.join("second", &nodes, &[]);
    assert_eq!((first.wait(), second.wait(), steward.wait()), (0, 0, 0));
    let tells = |lie: &str, change: &dyn Fn(&mut Vec<Record>), code: i32, words: &str| {
        let teller = Teller::new(&run, change);
        let mut observer = run.observe(lie, &teller.address);
        assert_eq!(observer.wait(), code, "{lie}: {}", observer.log());
        assert!(observer.log().contains(words), "{lie}: {}", observer.log());
    };
    tells("truth", &|_| (), 0, "its last state was checked here");
    let initial = |records: &mut Vec<Record>| {
        let Body::Open(roots) = &mut records[0].body else { panic!("a run opens first") };
        *roots = other(roots);
    };
    // LEDGER-4: the roots of the first record are those of the follower's own initial state.
    tells("initial", &initial, 1, "the initial state computed here is not the sealed one; halting");
    // The state before the round follows from the one that was written down last, where none is kept to go back to.
    written_down(&run, "outcome");
    // STATE-5: a next state with another root than the sealed one halts whoever computes it.
    tells("outcome", &wrong_root, 1, "was sealed; halting. The proof is ");
    let (code, output) = run.verifier(&["check", &the_proof(&run.path("outcome")).to_string_lossy()]);
    assert!(code == 0 && output.contains("guilty: the steward"), "{output}");
    let seats = |records: &mut Vec<Record>| {
        let mut begins = records.iter_mut();
        let seats = begins.find_map(|r| if let Body::Begin(s) = &mut r.body { Some(s) } else { None });
        let seats = seats.expect("a beginning");
        *seats = List::new(seats[1..].to_vec()).expect("fewer");
    };
    tells("seats", &seats, 1, "breaks a rule, halting: ");
    // AUDIT-13: who has found a proof does not follow again, whatever it is told then, nor who was shown it.
    let proof = std::fs::read(the_proof(&run.path("seats"))).expect("a file");
    let proof: Evidence = decode(&proof).expect("evidence");
    assert!(matches!(proof, Evidence::Misconduct(Misconduct::Record(_))));
    Home::open(&run.path("shown")).and_then(|home| home.save_evidence(&proof)).expect("a copy");
    for name in ["seats", "shown"] {
        tells(name, &|_| (), 1, "the steward broke its word, halting: ");
    }
    // A file that proves nothing stops nobody: a record that keeps the rules, and one that somebody else has signed.
    let archive = Archive::open(&run.path("run")).expect("an archive");
    let good = archive.records[3].clone();
    let record = good.verify(archive.manifest.run()).expect("signed").into_inner();
    let strange = Identity::from_secret(&[9; 32]).sign(archive.manifest.run(), &record);
    let home = Home::open(&run.path("slandered")).expect("a new directory");
    for record in [good, strange] {
        home.save_evidence(&Evidence::Misconduct(Misconduct::Record(record))).expect("room");
    }
    drop(home);
    tells("slandered", &|_| (), 0, "its last state was checked here");
    tells("gap", &|records| drop(records.remove(1)), 1, "breaks a rule, halting: ");
    let run = Ticket::from_line(&nodes).expect("an invitation").run;
    tells("frame", &|records| frame(records, run), 0, "names evidence that is about another member or round");
}

/// A directory that has the state before the first round.
fn written_down(run: &Run, name: &str) {
    let Archive { manifest, dataset, .. } = Archive::open(&run.path("run")).expect("an archive");
    let replica = Replica::genesis(manifest, dataset, 1, None).expect("an initial state");
    let home = Home::open(&run.path(name)).expect("a new directory");
    home.save_state(replica.round(), replica.state(), replica.roots()).expect("room");
}

/// Has a member banned, before the run closes, for what a stranger did.
fn frame(records: &mut Vec<Record>, run: RunId) {
    let admitted = records.iter().find_map(|record| match &record.body {
        Body::Admit(enrol) => Some(enrol.claimed_signer()),
        _ => None,
    });
    let member = admitted.expect("a member");
    let close = records.pop().expect("an end");
    let ban = Ban {
        culprit: member,
        effective: Round(4),
        round: Round(1),
        finding: FindingKind::Equivocation,
        evidence: contradiction(run).digest(),
        accuser: member,
        jury: List::default(),
    };
    records.push(Record { body: Body::Ban(ban), ..close.clone() });
    records.push(Record { height: close.height.next(), ..close });
}

/// Two commitments of a stranger in round 1.
fn contradiction(run: RunId) -> Evidence {
    let commit = |root| Commit {
        round: Round(1),
        head: Digest::default(),
        state: Digest::default(),
        slot: Slot(0),
        seats: 2,
        route: None,
        leaves: 1,
        profile: Profile::Exact,
        loss: 0,
        root: Digest([root; 32]),
    };
    let [first, second] = [1, 2].map(|root| Identity::from_secret(&[3; 32]).sign(run, &commit(root)));
    Evidence::Equivocation(Equivocation { first, second })
}

/// The roots of another state.
fn other(roots: &StateRoots) -> StateRoots {
    let shard = roots.shards[0];
    let parameters = Hasher::new(Domain::STATE).value(&shard.parameters).finish();
    StateRoots::from([ShardRoots { parameters, ..shard }])
}

/// Ends with an outcome whose state does not follow.
fn wrong_root(records: &mut Vec<Record>) {
    while !matches!(records.last().expect("an outcome").body, Body::Outcome(_)) {
        records.pop();
    }
    let Some(Record { body: Body::Outcome(outcome), .. }) = records.last_mut() else { return };
    outcome.state = other(&outcome.state);
}

/// The evidence in a directory that has one piece.
fn the_proof(directory: &Path) -> PathBuf {
    let files = evidence_in(directory);
    assert_eq!(files.len(), 1, "{files:?}");
    files[0].clone()
}

/// Against each round's root that the steward has sealed.
fn against_all_roots(run: &Run) -> Vec<Evidence> {
    let archive = Archive::open(&run.path("run")).expect("an archive");
    let (id, mut freeze, mut evidence) = (archive.manifest.run(), None, Vec::new());
    let mut before = None;
    for signed in &archive.records {
        match &signed.verify(id).expect("an honest record").body {
            Body::Open(roots) => before = Some(roots.clone()),
            Body::Freeze(_) => freeze = Some(signed.clone()),
            Body::Outcome(sealed) => {
                let (freeze, outcome) = (freeze.take().expect("a freeze"), signed.clone());
                let before = before.replace(sealed.state.clone()).expect("a state before");
                let wrong = WrongRoot { freeze, outcome, before, shard: ShardId::TRUNK, earlier: None };
                evidence.push(Evidence::Misconduct(Misconduct::Root(wrong)));
            }
            _ => {}
        }
    }
    evidence
}

/// A new directory that has been shown evidence, with what this is judged by in another one.
fn shown(run: &Run, name: &str, evidence: &Evidence, from: &str) {
    let home = Home::open(&run.path(name)).expect("a new directory");
    home.save_evidence(evidence).expect("room");
    for folder in ["states", "updates"] {
        copy_folder(&run.path(from).join(folder), &run.path(name).join(folder));
    }
}

/// AUDIT-13: a sealed state that does not follow is evidence, for which anyone takes the step again.
#[test]
fn a_wrong_root_convicts_the_steward_and_right_ones_do_not() {
    let run = Run::new(programs!(), &Settings { rounds: 4, rollback: 0.5, ..Settings::default() });
    let mut steward = run.host_with(&["--keep-aggregates"]);
    let nodes = run.invite("node", 2);
    let mut first = run.join("first", &nodes, &[]);
    let mut second = run.join("second", &nodes, &[]);
    assert_eq!((first.wait(), second.wait(), steward.wait()), (0, 0, 0));
    let observes = |name: &str, teller: &Teller, code: i32, words: &str| {
        let mut observer = run.observe(name, &teller.address);
        assert_eq!(observer.wait(), code, "{name}: {}", observer.log());
        assert!(observer.log().contains(words), "{name}: {}", observer.log());
    };
    let checked = |evidence: &Path, more: &[&str], code: i32, words: &str| {
        let output = run.verifier(&[&["check", &evidence.to_string_lossy()], more].concat());
        assert!(output.0 == code && output.1.contains(words), "{output:?}");
    };
    let (liar, honest) = (Teller::new(&run, &wrong_root), Teller::new(&run, &|_| ()));
    observes("outcome", &liar, 1, "was sealed; halting. The proof is ");
    let proof = the_proof(&run.path("outcome"));
    checked(&proof, &[], 0, "guilty: the steward");
    checked(&proof, &["--run", &run.at("run")], 0, "shard 0 of the state after round 3");
    // Neither who has found it follows again, nor who is shown it with what it is judged by.
    observes("outcome", &liar, 1, "the steward broke its word, halting: shard 0 of the state after round 3");
    let convicts = decode(&fs::read(&proof).expect("a file")).expect("evidence");
    shown(&run, "shown", &convicts, "outcome");
    observes("shown", &honest, 1, "the steward broke its word, halting: shard 0 of the state after round 3");

    let right = against_all_roots(&run);
    assert_eq!(right.len(), 4);
    for evidence in &right {
        let file = run.path("right.evidence");
        fs::write(&file, encode(evidence)).expect("room");
        checked(&file, &["--run", &run.at("run")], 1, "not guilty: shard 0 of the state after round ");
    }
    shown(&run, "framed", &right[3], "outcome");
    observes("framed", &honest, 0, "its last state was checked here");

    // Without the state nobody can say, and only who has found it halts.
    fs::remove_file(run.path("outcome/states/3.state")).expect("the state before");
    checked(&proof, &[], 3, "before round 3");
    observes("outcome", &liar, 1, "this member computed another state than the sealed one");
    shown(&run, "told", &convicts, "outcome");
    observes("told", &honest, 0, "its last state was checked here");
}

/// A steward that tells a finished run again with some records changed, all of them signed and chained as they should.
struct Teller {
    address: String,
    _runtime: Runtime,
}

/// What it tells.
struct Story {
    archive: Archive,
    records: Vec<Signed<Record>>,
    updates: Vec<Update>,
}

impl Teller {
    fn new(run: &Run, change: &dyn Fn(&mut Vec<Record>)) -> Self {
        let folder = run.path("run");
        let archive = Archive::open(&folder).expect("an archive");
        let home = Home::open(&folder).expect("the steward has ended");
        let identity = Arc::new(home.identity().expect("the steward's key"));
        let id = archive.manifest.run();
        let verified = |signed: &Signed<Record>| signed.verify(id).expect("an honest record").into_inner();
        let mut records: Vec<Record> = archive.records.iter().map(verified).collect();
        change(&mut records);
        let mut head: Digest = id.0;
        for record in &mut records {
            record.previous = head;
            head = record.head();
        }
        let records = records.iter().map(|record| identity.sign(id, record)).collect();
        let rounds = home.updates().expect("aggregates");
        let layout = Layout::of_run(&archive.manifest);
        let update = |round: &Round| home.load_update(&layout, *round).expect("an aggregate");
        let updates = rounds.iter().map(update).collect();
        let story = Arc::new(Story { archive, records, updates });
        let runtime = Runtime::new().expect("threads");
        let listener =
            runtime.block_on(Listener::bind("127.0.0.1:0", ConnectionLimit::default())).expect("a port");
        let address = format!("{id:#}@{:#}@{}", identity.id(), listener.local_addr());
        let handler = Arc::new(move |_: MemberId, request: Vec<u8>| {
            let story = story.clone();
            async move { story.answer(&request).ok_or_else(|| Unanswered::Refused("not told".into())) }
        });
        runtime.spawn(serve(listener, Endpoint::new(id, identity), handler, std::future::pending()));
        Self { address, _runtime: runtime }
    }
}

impl Story {
    fn answer(&self, request: &[u8]) -> Option<Vec<u8>> {
        let response = match decode(request).ok()? {
            Request::Manifest => Response::Manifest(Bytes::new(self.archive.manifest.bytes()).ok()?),
            Request::Follow(follow) => Response::News(self.news(follow.height)),
            Request::Outline(query) => {
                let outline = self.archive.dataset.outline_chunks(query.file, query.first, 512);
                Response::Bytes(Bytes::new(outline).ok()?)
            }
            Request::Data(query) => {
                let count = query.count.min(64);
                let chunks = self.archive.dataset.chunks(query.file, query.first, count);
                Response::Bytes(Bytes::new(chunks.ok()?).ok()?)
            }
            Request::Evidence(name) => {
                let evidence = contradiction(self.archive.manifest.run());
                (evidence.digest() == name).then_some(Response::Evidence(evidence))?
            }
            Request::ResultBlocks(query) => Response::Bytes(Bytes::new(self.values(&query)?).ok()?),
            _ => return None,
        };
        Some(encode(&response))
    }

    fn news(&self, from: Height) -> News {
        let records = self.records.iter().skip(from.index()).take(limits::PULL_RECORDS);
        let newest = Height(self.records.len() as u64 - 1);
        let records = List::new(records.cloned().collect()).expect("bounded");
        News { records, newest, board: 1, first_notice: 0, notices: List::new(Vec::new()).expect("none") }
    }

    fn values(&self, query: &BlockQuery) -> Option<Vec<u8>> {
        let (layout, update) =
            (Layout::of_run(&self.archive.manifest), self.updates.get(query.round.index())?);
        let packed = query
            .blocks
            .iter()
            .map(|block| ResultGrid::of(&layout, *block).pack(&update.block(&layout, *block)?));
        Some(packed.collect::<Option<Vec<_>>>()?.concat())
    }
}
