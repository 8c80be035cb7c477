//! A run of real leaves, honest or false, whose board the test carries by hand.

use std::collections::BTreeMap;
use std::sync::Arc;

use muster_compute::{Exact, Machine, Path};
use muster_core::assign;
use muster_core::audit::docket::Docket;
use muster_core::audit::{Judgement, judge};
use muster_core::codec::Real;
use muster_core::coins::{CoinTerms, CoinTree};
use muster_core::contribution::PackedContribution;
use muster_core::ids::{Digest, Leaf, MemberId, Part, Round, RunId, Slot};
use muster_core::layout::Layout;
use muster_core::ledger::{Event, Ledger};
use muster_core::manifest::fixture::tiny;
use muster_core::manifest::{Admission, Audit, Manifest, Timers, Tokeniser, TokeniserFile};
use muster_core::messages::audit::{Finding, FindingKind, Jury};
use muster_core::messages::enrol::{Enrol, Invitation, InvitationSecret, Role};
use muster_core::messages::evidence::Evidence;
use muster_core::messages::record::{Ban, Body, Freeze, Inputs, Outcome};
use muster_core::messages::round::{Bitmap, Commit, Echo, PartResult};
use muster_core::messages::wire::Notice;
use muster_core::sign::Identity;
use muster_core::state::{Arithmetic, LeafJob, ShardRoots, StateRoots};
use muster_roles::verifier::audits::{Audits, Message, Stop, WorkKind};
use muster_roles::verifier::coins::Coins;
use muster_store::home::Home;
use muster_store::journal::Journal;
use muster_verifier::{AuditWorker, Journaled};

use super::node::{Conduct, Memory, Node, window};

pub(super) fn real(value: f32) -> Real {
    Real::new(value).unwrap()
}

pub(super) fn id(secret: u8) -> Identity {
    Identity::from_secret(&[secret; 32])
}

pub(super) fn manifest(share_ppm: u32, final_rounds: u32) -> Manifest {
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

/// A run of one steward, two nodes and one verifier after its first round.
pub(super) struct World {
    pub(super) manifest: Arc<Manifest>,
    pub(super) run: RunId,
    pub(super) steward: Identity,
    pub(super) ledger: Ledger,
    /// The ledger before each record.
    pub(super) past: Vec<Ledger>,
    pub(super) docket: Docket,
    pub(super) nodes: Vec<Node>,
    pub(super) memory: Memory,
    pub(super) worker: AuditWorker,
    pub(super) board: Vec<Notice>,
    pub(super) accusations: Vec<Evidence>,
    /// What was computed, in words.
    pub(super) worked: Vec<String>,
    pub(super) home: tempfile::TempDir,
    pub(super) verifiers: u8,
    pub(super) now: u64,
}

impl World {
    pub(super) fn new(conducts: [Conduct; 2], manifest: Manifest) -> Self {
        Self::shared(conducts, manifest, 1)
    }

    /// The same with so many verifiers.
    pub(super) fn shared(conducts: [Conduct; 2], manifest: Manifest, verifiers: u8) -> Self {
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

    pub(super) fn seal(&mut self, body: Body) -> Event {
        let record = self.ledger.record(body);
        let signed = self.steward.sign(self.run, &record);
        self.past.push(self.ledger.clone());
        Event::Sealed(Box::new(self.ledger.apply(&signed).unwrap()))
    }

    pub(super) fn gather(&mut self) {
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
            let enrol = Enrol {
                invitation: Some(invitation),
                addresses: Default::default(),
                coins,
                name: Default::default(),
                engagement: Default::default(),
            };
            self.seal(Body::Admit(id(secret).sign(self.run, &enrol)));
        }
        let seats = self.ledger.derived_seats();
        self.seal(Body::Begin(muster_core::codec::List::new(seats).unwrap()));
    }

    pub(super) fn train(&mut self, exact: &mut Exact) {
        let view = self.ledger.current().unwrap().clone();
        let layout = Layout::of_run(&self.manifest);
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
            let q = Arc::new(PackedContribution::new(&layout, &q));
            let commit = Commit {
                round: view.round(),
                head: view.head(),
                state: view.state().root(),
                slot: Slot(slot as u16),
                seats: 2,
                route: None,
                leaves: seat.quota,
                profile: self.manifest.profile,
                loss: rows.iter().map(|(_, loss)| loss).sum(),
                root: q.root(),
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
        self.seal(self.inputs(&self.ledger, &[Slot(0), Slot(1)]));
        let echoes = self.nodes.len();
        let credits = muster_core::codec::List::new(self.docket.credits()).unwrap();
        self.seal(Body::Outcome(Outcome { credits, ..self.outcome(&self.ledger, echoes) }));
    }

    /// ROUND-39: nobody can be dialled, and the steward has what these slots contributed, of all parts.
    pub(super) fn inputs(&self, ledger: &Ledger, slots: &[Slot]) -> Body {
        let view = ledger.current().unwrap();
        let mut counted = Bitmap::default();
        slots.iter().for_each(|slot| counted.insert(*slot));
        let parts = muster_core::codec::List::new(vec![counted; view.parts().len()]).unwrap();
        Body::Inputs(Inputs { round: view.round(), attempt: 0, parts })
    }

    /// The end of the round that a ledger is in, echoed by so many nodes.
    pub(super) fn outcome(&self, ledger: &Ledger, echoes: usize) -> Outcome {
        let view = ledger.current().unwrap();
        let echo = Echo { round: view.round(), freeze: view.freeze_digest().unwrap() };
        let echoes = self.nodes[..echoes].iter().map(|node| node.identity.sign(self.run, &echo)).collect();
        // Of each part, by its first aggregator; nobody looks at the values.
        let result = |part: usize| {
            let part = Part(part as u16);
            let (round, freeze, inputs) = (view.round(), echo.freeze, view.inputs()[part.index()]);
            if inputs.is_empty() {
                return None;
            }
            let attempt = view.attempt(part).unwrap();
            let result = PartResult { round, part, attempt, freeze, inputs, digest: Digest([9; 32]) };
            let author = view.aggregating(part).next().unwrap();
            let node = self.nodes.iter().find(|node| node.identity.id() == author).unwrap();
            Some(node.identity.sign(self.run, &result))
        };
        let results = (0..view.parts().len()).map(result).collect();
        let mut outcome = Outcome {
            round: view.round(),
            results: muster_core::codec::List::new(results).unwrap(),
            echoes: muster_core::codec::List::new(echoes).unwrap(),
            state: StateRoots::from([ShardRoots { step: view.state().step() + 1, ..view.state().shards[0] }]),
            seats: muster_core::codec::List::default(),
            credits: muster_core::codec::List::default(),
            seconds: muster_core::codec::List::default(),
            steps: muster_core::codec::List::default(),
        };
        outcome.seats = muster_core::codec::List::new(ledger.seats_after(&outcome)).unwrap();
        outcome
    }

    /// The verifier, with what its journal has kept.
    pub(super) fn audits(&self) -> Audits {
        self.audits_of(21)
    }

    pub(super) fn audits_of(&self, number: u8) -> Audits {
        let folder = self.home.path().join(number.to_string());
        std::fs::create_dir_all(&folder).unwrap();
        let home = Home::open(&folder).unwrap();
        let coins =
            Coins::new(coin_tree(number), Arc::new(Journaled::new(Arc::new(Journal::open(&home).unwrap()))));
        Audits::new(self.manifest.clone(), Arc::new(id(number)), coins)
    }

    /// Posts on the steward's board and lets the nodes answer; gives everything that is new there.
    pub(super) fn post(&mut self, notice: Notice) -> Vec<Event> {
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
    pub(super) fn step(&mut self, audits: &mut Audits) -> Result<bool, Stop> {
        self.step_among(std::slice::from_mut(audits), 0)
    }

    /// The same of one among several, who all read the board.
    pub(super) fn step_among(&mut self, all: &mut [Audits], index: usize) -> Result<bool, Stop> {
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

    pub(super) fn run(&mut self, audits: &mut Audits) {
        audits.take(&self.ledger, &[]).unwrap();
        while self.step(audits).unwrap() {}
    }

    pub(super) fn run_all(&mut self, all: &mut [Audits]) {
        all.iter_mut().for_each(|audits| audits.take(&self.ledger, &[]).unwrap());
        while (0..all.len()).fold(false, |more, index| self.step_among(all, index).unwrap() | more) {}
    }

    /// Seals, and tells all.
    pub(super) fn seal_to(&mut self, all: &mut [Audits], body: Body) {
        let events = [self.seal(body)];
        all.iter_mut().for_each(|audits| audits.take(&self.ledger, &events).unwrap());
    }

    /// Cases that nothing has closed.
    pub(super) fn open(&mut self) -> usize {
        assert!(self.docket.idles(0, &self.ledger).is_empty());
        self.docket.open_cases(&self.ledger).count()
    }

    /// The inspector of a slot of the round.
    pub(super) fn inspector(&self, slot: u16) -> MemberId {
        self.ledger.round(Round(0)).unwrap().inspector(Slot(slot)).unwrap()
    }

    /// The silence of the member of a slot, about what it was asked.
    pub(super) fn silence(&self, slot: u16) -> Body {
        let target = self.ledger.round(Round(0)).unwrap().member_at(Slot(slot)).unwrap();
        let asked = self.board.iter().find_map(|notice| match notice {
            Notice::Request(signed) => Some(signed).filter(|s| s.verify(self.run).unwrap().target == target),
            _ => None,
        });
        Body::Silence(asked.unwrap().clone())
    }

    /// Who asked about whom.
    pub(super) fn requests(&self) -> Vec<(MemberId, MemberId)> {
        let requests = self.board.iter().filter_map(|notice| match notice {
            Notice::Request(signed) => Some(signed.verify(self.run).unwrap()),
            _ => None,
        });
        requests.map(|request| (request.author(), request.target)).collect()
    }

    /// What an independent judge makes of the accusations.
    pub(super) fn judged(&mut self) -> Vec<(MemberId, FindingKind)> {
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

    pub(super) fn verdicts(&self) -> Vec<(MemberId, Finding)> {
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

pub(super) fn coin_tree(number: u8) -> CoinTree {
    CoinTree::new([number + 21; 32], Round(0), 8, 8).unwrap()
}

pub(super) fn member(secret: u8) -> MemberId {
    id(secret).id()
}

pub(super) const ALWAYS: u32 = 1_000_000;

/// A world in which the first verifier inspects both contributions, or each one of them.
pub(super) fn shared(conducts: [Conduct; 2], both: bool) -> World {
    let worlds = (0..64).map(|nonce| {
        let mut manifest = manifest(ALWAYS, 0);
        manifest.nonce = [nonce; 16];
        World::shared(conducts, manifest, 2)
    });
    let fits = |world: &World| {
        let second = if both { member(21) } else { member(22) };
        world.inspector(0) == member(21) && world.inspector(1) == second
    };
    worlds.into_iter().find(fits).expect("some nonce of 64 gives every sharing")
}

/// The first verifier goes, for an acquittal that the second one has found false.
pub(super) fn ban(world: &World) -> Body {
    Body::Ban(Ban {
        culprit: member(21),
        effective: world.ledger.first_round_without(),
        round: Round(0),
        finding: FindingKind::FalseAcquittal,
        evidence: Digest::default(),
        accuser: member(22),
        jury: Jury::default(),
    })
}
