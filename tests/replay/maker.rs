//! An archive in the making: a run of two nodes, whose parts or leaves may be wrong.

use muster_compute::Exact;
use muster_core::codec::{List, Text, encode};
use muster_core::contribution::{Commitment, PartDigest};
use muster_core::ids::{Digest, Part, Round, Slot};
use muster_core::ledger::{Ledger, RoundView};
use muster_core::manifest::Manifest;
use muster_core::manifest::fixture::tiny;
use muster_core::messages::audit::FindingKind;
use muster_core::messages::enrol::{Enrol, Invitation, InvitationSecret, Role};
use muster_core::messages::evidence::{Evidence, Total};
use muster_core::messages::record::{Ban, Body, Freeze, Inputs, Outcome, Record};
use muster_core::messages::round::{Bitmap, Commit, Echo, PartResult};
use muster_core::messages::wire::BlockData;
use muster_core::reduction::{Reduced, SealedInputs, reduce};
use muster_core::sign::{Identity, Signed};
use muster_core::state::{Arithmetic, State, Update};
use muster_replica::{Crew, HeldState, Replica};
use muster_store::dataset::{Dataset, SourceText as Source, pack};
use muster_store::home::Home;
use std::path::Path;
use std::sync::Arc;

use super::ROUNDS;

pub(super) fn identity(number: u8) -> Identity {
    Identity::from_secret(&[number; 32])
}

/// The first `slots` slots.
fn first(slots: u16) -> Bitmap {
    let mut bitmap = Bitmap::default();
    (0..slots).for_each(|slot| bitmap.insert(Slot(slot)));
    bitmap
}

/// A run in the making: organiser 1, steward 2, nodes 10 and 11.
pub(super) struct Maker {
    pub(super) ledger: Ledger,
    records: Vec<Signed<Record>>,
    pub(super) state: State,
    arithmetic: Exact,
    crew: Crew,
    pub(super) home: Home,
}

/// Turns the sign of its first block, and signs for that.
fn turn(reduced: &mut Reduced) {
    reduced.values[0].iter_mut().for_each(|value| *value = 0.0 - *value);
    let digest = PartDigest::default();
    reduced.digest = reduced.values.iter().fold(digest, |digest, values| digest.block(values)).finish();
}

impl Maker {
    pub(super) fn new(folder: &Path, replicas: u8) -> Self {
        let home = Home::open(folder).expect("a folder");
        let words: String = (0..900).map(|n| format!("word {} of {n}\n", n * n % 97)).collect();
        let text = |words: &str| [Ok(Source { name: "text".into(), bytes: words.as_bytes().to_vec() })];
        let data = pack(text(&words), text(&words[..500]), &folder.join("data"), &mut |_| ()).expect("room");
        let mut manifest = Manifest { data, ..tiny(identity(1).id(), identity(2).id(), ROUNDS, 2) };
        manifest.aggregation.replicas = replicas;
        let manifest = Arc::new(manifest);
        home.write_file("manifest.bin", &manifest.bytes()).expect("room");
        let dataset = Arc::new(Dataset::open(&folder.join("data"), &manifest.data).expect("the text"));
        let replica = Replica::genesis(manifest.clone(), dataset.clone(), 1, None).expect("arithmetic");
        let crew = Crew::new(manifest.clone(), dataset, 1, None).expect("arithmetic");
        let mut maker = Self {
            ledger: Ledger::new(manifest),
            records: Vec::new(),
            state: replica.state().clone(),
            arithmetic: Exact::new(1, None).expect("arithmetic"),
            crew,
            home,
        };
        maker.seal(Body::Open(maker.state.roots()));
        for number in [10, 11] {
            let run = maker.ledger.run();
            let (role, secret) = (Role::Node, InvitationSecret::new([number; 32]));
            let invitation =
                Invitation { role, uses: 1, expires: u64::MAX, key: secret.key(), founder: false };
            let invitation = identity(1).sign(run, &invitation);
            let enrol = Enrol {
                invitation: Some(secret.present(run, invitation, identity(number).id())),
                addresses: List::new(vec![Text::new(format!("node:{number}")).expect("short")]).expect("one"),
                coins: None,
                name: Default::default(),
                engagement: Default::default(),
            };
            maker.seal(Body::Admit(identity(number).sign(run, &enrol)));
        }
        maker.seal(Body::Begin(List::new(maker.ledger.derived_seats()).expect("two")));
        maker
    }

    fn seal(&mut self, body: Body) {
        let signed = identity(2).sign(self.ledger.run(), &self.ledger.record(body));
        self.ledger.apply(&signed).expect("a good record");
        self.records.push(signed);
    }

    pub(super) fn round(&mut self) {
        self.round_with(None, false);
    }

    /// What both members commit to in this round, and its integers and losses.
    fn commits(&mut self, view: &RoundView) -> (Vec<Commit>, Vec<(Vec<i32>, i64)>) {
        let (profile, layout) = (self.ledger.manifest().profile, self.ledger.layout().clone());
        let seats = view.seats().iter().enumerate();
        let empty = seats.map(|(slot, seat)| Commit {
            round: view.round(),
            head: view.head(),
            state: view.state().root(),
            slot: Slot(slot as u16),
            seats: 2,
            route: None,
            leaves: seat.quota,
            profile,
            loss: 0,
            root: Digest::default(),
        });
        let mut commits: Vec<Commit> = empty.collect();
        let sums = self.crew.sums(
            &HeldState::whole(self.state.clone()),
            &commits.iter().collect::<Vec<_>>(),
            &|| (),
        );
        let sums = sums.expect("a state in memory");
        for (commit, (q, loss)) in commits.iter_mut().zip(&sums) {
            (commit.loss, commit.root) = (*loss, Commitment::new(&layout, q).root());
        }
        (commits, sums)
    }

    /// A round in which all aggregators of a part turn the sign of its first block, if one is named, and the second member
    /// commits to another sum than that of its leaves, if it is a `cheat`: in all parts but the first.
    pub(super) fn round_with(&mut self, wrong: Option<Part>, cheat: bool) {
        let (run, manifest) = (self.ledger.run(), self.ledger.manifest().clone());
        let layout = self.ledger.layout().clone();
        let view = self.ledger.current().expect("a round").clone();
        let (mut commits, mut sums) = self.commits(&view);
        if cheat {
            commits[1].root = self.flip(&view, &mut sums[1].0);
        }
        let signed = commits.iter().map(|commit| identity(10 + commit.slot.0 as u8).sign(run, commit));
        let commits = List::new(signed.collect()).expect("two");
        self.seal(Body::Freeze(Freeze { round: view.round(), state: view.state().root(), commits }));
        let mut parts = vec![first(2); view.parts().len()];
        if cheat {
            parts[0] = first(1);
        }
        let parts = List::new(parts).expect("few");
        self.seal(Body::Inputs(Inputs { round: view.round(), attempt: 0, parts }));
        let view = self.ledger.current().expect("a round").clone();
        let mut update = Update::empty(&layout, view.open_shards(&layout));
        let (mut results, mut seconds) = (Vec::new(), Vec::new());
        for (part, plan) in (0..).map(Part).zip(view.parts()) {
            let inputs = view.inputs()[part.index()];
            let input = |slot: Slot, block| sums.get(slot.index())?.0.get(layout.block(block)?.range.clone());
            let freeze = view.freeze_digest().expect("frozen");
            let sealed = SealedInputs { freeze, slots: &inputs };
            let mut reduced =
                reduce(&manifest, &layout, &plan.blocks, &sealed, |slot| view.commitment(slot), input)
                    .expect("inputs");
            if wrong == Some(part) {
                turn(&mut reduced);
            }
            for (block, values) in plan.blocks.iter().zip(&reduced.values) {
                update.put(&layout, *block, values).expect("a block");
            }
            let (round, digest) = (view.round(), reduced.digest);
            let result = PartResult { round, part, attempt: 0, freeze, inputs, digest };
            let signers = view.aggregators_in(part, 0);
            let mut signed = signers.map(|slot| identity(10 + slot.0 as u8).sign(run, &result));
            results.push(signed.next());
            seconds.extend(signed);
        }
        self.home
            .save_update(self.ledger.layout(), view.round(), &update, &view.shard_steps())
            .expect("room");
        self.arithmetic.apply(&manifest, &mut self.state, &update);
        let echo = Echo { round: view.round(), freeze: view.freeze_digest().expect("frozen") };
        let echoes = [10, 11].map(|number| identity(number).sign(run, &echo));
        let mut outcome = Outcome {
            round: view.round(),
            results: List::new(results).expect("few"),
            echoes: List::new(echoes.to_vec()).expect("two"),
            state: self.state.roots(),
            seats: List::default(),
            credits: List::default(),
            seconds: List::new(seconds).expect("few"),
            steps: List::new(view.row_steps().to_vec()).expect("few"),
        };
        outcome.seats = List::new(self.ledger.seats_after(&outcome)).expect("two");
        self.seal(Body::Outcome(outcome));
    }

    /// Turns a sum to what the cheat commits to, and keeps the proved blocks of all parts but the first, of which it showed
    /// nothing. Gives the root.
    fn flip(&self, view: &RoundView, q: &mut [i32]) -> Digest {
        q.iter_mut().for_each(|q| *q *= -10);
        let tree = Commitment::new(self.ledger.layout(), q);
        let (layout, cheat) = (self.ledger.layout(), view.member_at(Slot(1)).expect("a seat"));
        for (part, plan) in (0..).map(Part).zip(view.parts()).skip(1) {
            let blocks = plan.blocks.iter().map(|block| tree.block(layout, q, *block).expect("a block"));
            let blocks: Vec<BlockData> = blocks.collect();
            self.home.save_exhibited_blocks(view.round(), &cheat, part, &blocks).expect("room");
        }
        tree.root()
    }

    /// Bans the second member for what it committed to in a round.
    pub(super) fn ban(&mut self, round: Round) {
        let view = self.ledger.round(round).expect("remembered");
        let culprit = view.member_at(Slot(1)).expect("a seat");
        let total = Total { freeze: view.freeze().expect("frozen").clone(), culprit };
        let evidence = self.home.save_evidence(&Evidence::Total(total)).expect("room");
        let effective = self.ledger.first_round_without();
        let (finding, accuser) = (FindingKind::TotalMismatch, identity(2).id());
        let jury = List::default();
        self.seal(Body::Ban(Ban { culprit, effective, round, finding, evidence, accuser, jury }));
    }

    pub(super) fn write(&mut self) {
        self.seal(Body::Close(self.state.root()));
        let mut bytes = Vec::new();
        for record in &self.records {
            let record = encode(record);
            bytes.extend((record.len() as u32).to_le_bytes());
            bytes.extend(record);
        }
        self.home.write_file("ledger.bin", &bytes).expect("room");
    }
}
