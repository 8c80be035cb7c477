//! Real processes: a node halts on a steward that breaks its word, and keeps the proof.

use std::sync::{Arc, Mutex};

use e2e::processes::Run;
use e2e::programs;
use e2e::settings::Settings;
use muster_core::codec::{Bytes, List, Text, decode, encode};
use muster_core::ids::{Digest, Height, MemberId, Round};
use muster_core::ledger::{Ledger, Stage};
use muster_core::manifest::Manifest;
use muster_core::messages::enrol::{Enrol, Ticket};
use muster_core::messages::evidence::Evidence;
use muster_core::messages::record::{Body, Freeze, Record};
use muster_core::messages::round::{Commit, CommitReceipt};
use muster_core::messages::wire::{News, Request, Response};
use muster_core::sign::{Identity, Signed};
use muster_net::endpoint::Endpoint;
use muster_net::listener::Listener;
use muster_net::seats::ConnectionLimit;
use muster_net::serve::{Unanswered, serve};
use muster_replica::Replica;
use muster_store::dataset::Dataset;
use muster_store::home::Home;

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
        let enrol = Enrol {
            invitation: ticket.present(liar.accomplice.id()),
            addresses,
            coins: None,
            name: Default::default(),
            engagement: Default::default(),
        };
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
            Request::Outline(query) => {
                Response::Bytes(Bytes::new(dataset.outline_chunks(query.file, query.first, 512)).ok()?)
            }
            Request::Data(query) => {
                let chunks = dataset.chunks(query.file, query.first, query.count.min(64));
                Response::Bytes(Bytes::new(chunks.ok()?).ok()?)
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
                route: None,
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
