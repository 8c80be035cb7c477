//! The machines of the steward and of its nodes under any order of messages, losses, deaths and departures, and with the steward
//! killed at any moment and started again from its disk: no panic, the ledger takes every record, what was promised is
//! kept on the disk first and sealed afterwards, and once all is calm the run comes to its end.
#![no_main]

use std::collections::BTreeMap;
use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use muster_core::audit::Judgement;
use muster_core::codec::List;
use muster_core::ids::{Digest, MemberId, Part, Round};
use muster_core::ledger::{Ledger, Stage};
use muster_core::manifest::Manifest;
use muster_core::messages::audit::FindingKind;
use muster_core::messages::enrol::{Addresses, Leave, Role};
use muster_core::messages::record::{Body, Record};
use muster_core::messages::round::{Checked, Commit, Delivered, PartResult};
use muster_core::messages::wire::{Notice, Request, Response};
use muster_core::sign::{Identity, Signed};
use muster_fuzz::{
    PEOPLE, RowSettings, commit, enrol, initial, manifest, next_state, person, receipt, reduced, steward_key,
    with_rows,
};
use muster_roles::node::{self, MembershipEnd, Node, PartTask, Promise};
use muster_roles::steward::accusation::Allegation;
use muster_roles::steward::exhibits::OwedContribution;
use muster_roles::steward::hearing::Ruling;
use muster_roles::steward::{Question, Steward, StewardEffect, StewardInput, StewardSetup};

/// Turns in which a calm run must end.
const CALM: usize = 400;

#[derive(arbitrary::Arbitrary, Debug)]
enum Event {
    /// A waiting message arrives, twice if so.
    Arrive(u8, bool),
    Lose(u8),
    /// A member reads all records and does what it owes.
    Follow(u8),
    /// The steward has applied a round, or could not have a part.
    Applied(Option<u8>),
    Connect(u8, bool),
    Restart(u8),
    Wait(u16),
    /// Somebody enrols, can be dialled if so; the last of the people as a verifier.
    Admit(u8, bool),
    Leave(u8),
    /// A member commits to something else than before.
    Contradict(u8),
    /// An accusation was examined, and somebody is guilty if so.
    Heard(bool),
    /// A contribution was fetched, or not.
    Exhibited(bool),
    /// The steward is killed, and starts again.
    Kill,
    StrayCommit(Box<Signed<Commit>>),
    StrayDelivered(Box<Signed<Delivered>>),
    StrayResult(Box<Signed<PartResult>>),
    StrayChecked(Box<Signed<Checked>>),
    /// A member says that it has checked every part, and objects to everything if so.
    Check(u8, bool),
    /// An aggregator signs something else for its part.
    Wrong(u8),
    /// A part was reduced again, and is right if so.
    Inspected(bool),
}

struct Member {
    identity: &'static Identity,
    machine: Node,
    /// Notices of the board that it has read.
    read: usize,
}

impl Member {
    fn new(number: usize, ledger: Arc<Ledger>) -> Self {
        let identity = person(number);
        let key = Arc::new(Identity::from_secret(&identity.secret()));
        // Where it said it is when it enrolled: it never moves.
        let of = ledger.member(&identity.id());
        let addresses = of.map_or(Addresses::default(), |member| member.addresses.clone());
        let (secret, committed) = ([7; 32], Vec::new());
        let machine = Node::new(node::NodeSetup {
            ledger,
            identity: key,
            addresses,
            engagement: Default::default(),
            secret,
            committed,
        });
        Self { identity, machine, read: 0 }
    }
}

/// What outlives the steward's process.
#[derive(Default)]
struct Disk {
    kept: Vec<(Round, Request)>,
}

struct World {
    machine: Steward,
    disk: Disk,
    /// The records as a member takes them in.
    follower: Ledger,
    /// Commitments that have a receipt, by round.
    promised: Vec<(Round, Digest)>,
    members: Vec<Member>,
    mail: Vec<(MemberId, Request)>,
    /// Who has asked what, and has no answer yet.
    unanswered: BTreeMap<Question, (MemberId, Request)>,
    records: Vec<Signed<Record>>,
    board: Vec<Notice>,
    applying: bool,
    inspecting: Vec<Box<Allegation>>,
    hearing: Vec<Box<Allegation>>,
    exhibiting: Vec<OwedContribution>,
    questions: u64,
    began: u64,
    now: u64,
}

impl World {
    fn new(manifest: Arc<Manifest>) -> Self {
        let ledger = Ledger::new(manifest);
        let empty = Arc::new(ledger.clone());
        let mut world = Self {
            machine: begin(ledger.clone(), Vec::new()),
            disk: Disk::default(),
            members: (0..PEOPLE).map(|number| Member::new(number, empty.clone())).collect(),
            follower: ledger,
            promised: vec![],
            mail: vec![],
            unanswered: BTreeMap::new(),
            records: vec![],
            board: vec![],
            applying: false,
            inspecting: vec![],
            hearing: vec![],
            exhibiting: vec![],
            questions: 0,
            began: 0,
            now: 0,
        };
        world.drain();
        world
    }

    fn ledger(&self) -> &Ledger {
        self.machine.ledger()
    }

    fn hand(&mut self, input: StewardInput) {
        self.machine.handle(self.now - self.began, input);
        self.drain();
    }

    /// What comes late or twice is refused, and changes nothing.
    fn ask(&mut self, from: MemberId, request: Request) {
        self.questions += 1;
        let question = Question(self.questions);
        self.unanswered.insert(question, (from, request.clone()));
        let request = Box::new(request);
        self.hand(StewardInput::Asked { question, from, request, date: 0 });
    }

    /// Does what the machine says, as its driver does after everything that happens.
    fn drain(&mut self) {
        while let Some(effect) = self.machine.poll_effect() {
            let now = self.now - self.began;
            match effect {
                StewardEffect::Seal(signed, _) => self.sealed(&signed),
                StewardEffect::Keep(round, request) => self.disk.kept.push((round, *request)),
                StewardEffect::Prune(before) => self.disk.kept.retain(|(round, _)| *round >= before),
                StewardEffect::Answer(question, response) => self.answered(question, response),
                StewardEffect::Apply(_) => self.applying = true,
                StewardEffect::Inspect(accusation, _) => self.inspecting.push(accusation),
                StewardEffect::Hear(accusation, _) => self.hearing.push(accusation),
                StewardEffect::Exhibit(owed) => self.exhibiting.push(owed),
                StewardEffect::Store(question, ..) => {
                    self.machine.handle(now, StewardInput::Stored(question, Ok(None)))
                }
                StewardEffect::DialBack(question, _) => {
                    self.machine.handle(now, StewardInput::DialledBack(question, Ok(())));
                }
                StewardEffect::CheckDelivery(question, claimed) => {
                    let shown = Box::new(claimed.check());
                    self.machine.handle(now, StewardInput::DeliveryChecked(question, shown));
                }
                StewardEffect::Read(question, ..) => self.machine.handle(now, StewardInput::Served(question)),
                StewardEffect::KeepParts { parts, .. } => {
                    self.machine.handle(now, StewardInput::PartsKept(parts, Vec::new()));
                }
                StewardEffect::Measure(convict) => {
                    self.machine.handle(now, StewardInput::Measured(convict, Vec::new()))
                }
                StewardEffect::GoBack(_) => panic!("this run never goes back"),
                StewardEffect::Halt(why) => panic!("{why}"),
                StewardEffect::Post(notice) => self.board.push(notice),
                // What is here and cannot be applied after all: [`Event::Applied`].
                StewardEffect::Prefetch(result, _) => {
                    self.machine.handle(now, StewardInput::Obtained(result, true))
                }
                StewardEffect::KeepEvidence(..)
                | StewardEffect::DropParts(_)
                | StewardEffect::Archive
                | StewardEffect::Tell(_) => {}
            }
        }
    }

    fn sealed(&mut self, signed: &Signed<Record>) {
        let record = self.follower.apply(signed).expect("the machine seals what the ledger takes");
        self.records.push(signed.clone());
        if let Body::Freeze(freeze) = &record.body {
            for (_, promised) in self.promised.iter().filter(|(round, _)| *round == freeze.round) {
                let holds = freeze.commits.iter().any(|commit| commit.digest() == *promised);
                assert!(holds, "a commitment that has a receipt is frozen (COMMIT-4)");
            }
        }
    }

    fn answered(&mut self, question: Question, response: Response) {
        self.look_at(&response);
        let Some((from, request)) = self.unanswered.remove(&question) else { return };
        let answer = Some(response).filter(|response| !matches!(response, Response::Refused(_)));
        let now = self.now;
        let asker = self.members.iter_mut().find(|member| member.identity.id() == from);
        asker.into_iter().for_each(|member| {
            member.machine.handle(now, node::NodeInput::Told(Box::new(request.clone()), answer.clone()));
        });
    }

    fn look_at(&mut self, response: &Response) {
        let Response::Committed(receipt) = response else { return };
        let receipt = receipt.verify(self.follower.run()).expect("the steward signs it");
        let name = receipt.commit;
        let is_it = |request: &Request| matches!(request, Request::Commit(kept) if kept.digest() == name);
        // After a crash only the disk can keep the promise (COMMIT-4, ROUND-16).
        let kept = self.disk.kept.iter().any(|(_, request)| is_it(request));
        assert!(kept, "what was promised is on the disk before the promise is out");
        if self
            .follower
            .current()
            .is_some_and(|view| view.round() == receipt.round && view.freeze().is_none())
        {
            self.promised.push((receipt.round, name));
        }
    }

    /// The process is killed; what it has under way is lost, and everybody's connection.
    fn kill(&mut self) {
        // A new process counts its own milliseconds.
        (self.applying, self.began) = (false, self.now);
        self.inspecting.clear();
        self.hearing.clear();
        self.exhibiting.clear();
        self.unanswered.clear();
        self.board.clear();
        self.members.iter_mut().for_each(|member| member.read = 0);
        let kept = self.disk.kept.iter().map(|(_, request)| request.clone()).collect();
        self.machine = begin(self.follower.clone(), kept);
        self.drain();
    }

    /// A member reads everything that is new, and does what its machine says.
    fn follow(&mut self, number: usize) {
        let (place, now) = (number % PEOPLE, self.now);
        let ledger = Arc::new(self.follower.clone());
        let member = &mut self.members[place];
        member.machine.handle(now, node::NodeInput::Followed { ledger, in_step: true, complete: true });
        for notice in &self.board[member.read..] {
            member.machine.handle(now, node::NodeInput::Notice(Box::new(notice.clone())));
        }
        member.read = self.board.len();
        // What was done is handed back at once, so that what follows from it is done in the same turn.
        while let Some(effect) = self.members[place].machine.poll_effect() {
            let done = self.perform(place, effect);
            done.into_iter().for_each(|input| self.members[place].machine.handle(now, input));
        }
    }

    fn perform(&mut self, place: usize, effect: node::NodeEffect) -> Option<node::NodeInput> {
        let Member { identity, machine, .. } = &self.members[place];
        let (ledger, me) = (machine.ledger(), identity.id());
        Some(match effect {
            node::NodeEffect::Compute { round, slot, quota } => {
                let said = commit(ledger.round(round)?, slot, quota)?;
                node::NodeInput::Committed(vec![identity.sign(ledger.run(), &said)])
            }
            node::NodeEffect::WriteEcho(round, freeze) => node::NodeInput::EchoWritten(round, Some(freeze)),
            node::NodeEffect::Prepare { round, attempt, parts } => {
                node::NodeInput::Prepared { round, attempt, parts }
            }
            node::NodeEffect::Bring(parcel) => {
                let receipt = receipt(ledger, parcel.part, &parcel.keeper, me);
                node::NodeInput::Brought(parcel, receipt)
            }
            node::NodeEffect::Reduce(task) => {
                let PartTask { round, part, inputs, .. } = task;
                node::NodeInput::Reduced(task, vec![reduced(round, part, &inputs)])
            }
            node::NodeEffect::Compare(check) => node::NodeInput::Compared(check, BTreeMap::new()),
            node::NodeEffect::Recall(promise) => self.recalled(promise),
            node::NodeEffect::Say(requests) => {
                self.mail.extend(requests.into_iter().map(|request| (me, request)));
                return None;
            }
            node::NodeEffect::End(MembershipEnd::Convicted(_, why)) => {
                panic!("the steward broke a promise: {why}")
            }
            _ => return None,
        })
    }

    /// The records that a promise of the steward's is held against.
    fn recalled(&self, promise: Box<Promise>) -> node::NodeInput {
        let newest = |wanted: &dyn Fn(&Body) -> bool| {
            let is = |signed: &&Signed<Record>| {
                signed.verify(self.follower.run()).is_ok_and(|record| wanted(&record.body))
            };
            self.records.iter().rev().find(is).cloned()
        };
        let inputs = newest(&|body| promise.is_settled_by(body));
        let reassign = newest(&|body| promise.follows(body));
        node::NodeInput::Recalled { promise, inputs, reassign }
    }

    fn applied(&mut self, missing: Option<u8>) {
        if std::mem::take(&mut self.applying) {
            let next =
                missing.map_or_else(|| Ok(next_state(self.ledger())), |part| Err(vec![Part(part.into())]));
            self.hand(StewardInput::Applied(next, Default::default()));
        }
    }

    fn wait(&mut self, milliseconds: u64) {
        self.now += milliseconds;
        self.hand(StewardInput::Tick);
    }

    fn happen(&mut self, event: Event) {
        let run = self.ledger().run();
        match event {
            Event::Arrive(place, twice) if !self.mail.is_empty() => {
                let (from, request) = self.mail.remove(usize::from(place) % self.mail.len());
                self.ask(from, request.clone());
                if twice {
                    self.ask(from, request);
                }
            }
            Event::Lose(place) if !self.mail.is_empty() => {
                self.mail.remove(usize::from(place) % self.mail.len());
            }
            Event::Arrive(..) | Event::Lose(_) => {}
            Event::Follow(place) => self.follow(place.into()),
            Event::Applied(missing) => self.applied(missing),
            Event::Connect(place, is) => self.hand(StewardInput::Connected(person(place.into()).id(), is)),
            Event::Restart(place) => {
                self.restart(usize::from(place) % PEOPLE);
            }
            Event::Wait(milliseconds) => self.wait(milliseconds.into()),
            Event::Admit(place, dialable) => self.admit(place.into(), dialable),
            Event::Leave(place) => {
                let (person, said) = (person(place.into()), Leave { height: self.ledger().height() });
                self.ask(person.id(), Request::Notice(Notice::Leave(person.sign(run, &said))));
            }
            Event::Contradict(place) => self.contradict(place.into()),
            Event::Heard(guilty) => self.heard(guilty),
            Event::Exhibited(kept) => self.exhibited(kept),
            Event::Kill => self.kill(),
            Event::StrayCommit(signed) => self.ask(signed.claimed_signer(), Request::Commit(*signed)),
            Event::StrayDelivered(signed) => self.ask(signed.claimed_signer(), Request::Delivered(*signed)),
            Event::StrayResult(signed) => {
                self.ask(signed.claimed_signer(), Request::Notice(Notice::Result(*signed)));
            }
            Event::StrayChecked(signed) => self.ask(signed.claimed_signer(), Request::Checked(*signed)),
            Event::Check(place, objects) => self.check(place.into(), objects),
            Event::Wrong(part) => self.wrong(Part(part.into())),
            Event::Inspected(right) => self.inspected(right),
        }
    }

    /// A member's process is killed and starts again.
    fn restart(&mut self, place: usize) {
        self.members[place] = Member::new(place, Arc::new(self.follower.clone()));
    }

    fn contradict(&mut self, number: usize) {
        let identity = person(number);
        let Some(view) = self.ledger().current() else { return };
        let said = view.slot_of(&identity.id()).and_then(|slot| commit(view, slot, 1));
        let Some(said) = said.map(|commit| Commit { loss: 2, ..commit }) else { return };
        let signed = identity.sign(self.ledger().run(), &said);
        self.ask(identity.id(), Request::Commit(signed));
    }

    fn heard(&mut self, guilty: bool) {
        let Some(accusation) = self.hearing.pop() else { return };
        let ruling = Box::new(ruling(&accusation, guilty));
        self.hand(StewardInput::Heard(accusation, ruling));
    }

    fn exhibited(&mut self, kept: bool) {
        if let Some(owed) = self.exhibiting.pop() {
            self.hand(StewardInput::Exhibited(
                owed,
                kept.then_some(()).ok_or_else(|| "nobody has it".into()),
            ));
        }
    }

    fn check(&mut self, number: usize, objects: bool) {
        let Some(view) = self.ledger().current() else { return };
        let attempt = u8::from(view.reassigned().next().is_some());
        let parts: Vec<Part> = (0..view.parts().len() as u16).map(Part).collect();
        let mut blocks: Vec<_> = view.parts().iter().flat_map(|plan| plan.blocks.clone()).collect();
        blocks.sort_unstable();
        blocks.retain(|_| objects);
        let (parts, objections) = (List::new(parts).expect("few"), List::new(blocks).expect("few"));
        let said = Checked { round: view.round(), attempt, parts, objections };
        let signed = person(number).sign(self.ledger().run(), &said);
        self.ask(person(number).id(), Request::Checked(signed));
    }

    fn wrong(&mut self, part: Part) {
        let Some(view) = self.ledger().current() else { return };
        let aggregator = view.aggregator(part).and_then(|(slot, _)| view.member_at(slot));
        let identity = aggregator.and_then(|id| (0..PEOPLE).map(person).find(|person| person.id() == id));
        let (Some(identity), Some(inputs)) = (identity, view.inputs().get(part.index())) else { return };
        let (round, attempt) = (view.round(), view.aggregator(part).map_or(0, |(_, attempt)| attempt));
        let Some(freeze) = view.freeze_digest() else { return };
        let said = PartResult { round, part, attempt, freeze, inputs: *inputs, digest: Default::default() };
        let signed = identity.sign(self.ledger().run(), &said);
        self.ask(identity.id(), Request::Notice(Notice::Result(signed)));
    }

    fn inspected(&mut self, right: bool) {
        if let Some(accusation) = self.inspecting.pop() {
            let judgement = ruling(&accusation, !right).judgement;
            self.hand(StewardInput::Inspected(accusation, Box::new(judgement)));
        }
    }

    fn admit(&mut self, number: usize, dialable: bool) {
        let role = if number % PEOPLE == PEOPLE - 1 { Role::Verifier } else { Role::Node };
        let signed = enrol(self.ledger().run(), number, role, dialable);
        self.ask(person(number).id(), Request::Enrol(signed));
        self.restart(number % PEOPLE);
        self.hand(StewardInput::Connected(person(number).id(), true));
    }

    /// Everybody is here, hears everything and does its part; but the verifier never does, and is idle.
    fn calm(&mut self) {
        // What was lost was lost with whoever said it: it says it again.
        (0..PEOPLE).for_each(|place| self.restart(place));
        for turn in 0..CALM {
            if self.ledger().stage() == Stage::Closed {
                return;
            }
            for number in 0..PEOPLE {
                self.present(number);
            }
            (0..PEOPLE).for_each(|number| self.follow(number));
            while let Some((from, request)) = self.mail.pop() {
                self.ask(from, request);
            }
            while !self.hearing.is_empty() {
                self.heard(true);
            }
            while !self.exhibiting.is_empty() {
                self.exhibited(true);
            }
            self.inspected(true);
            self.applied(None);
            // A member that forgot what it had taken on is waited for, and a pause (ROUND-26) is waited out.
            if turn % 3 == 2 {
                let due =
                    self.machine.poll_timeout().map_or(0, |due| (due + self.began).saturating_sub(self.now));
                self.wait(due.max(1000));
            }
        }
        // Only people are missing: too many left, or were banned.
        let (stage, round) = (self.ledger().stage(), self.ledger().next_round());
        assert!(
            stage == Stage::Gathering && !self.ledger().ready(),
            "the run stands still: {stage:?} of {round:?}"
        );
    }

    /// Brings a person in.
    fn present(&mut self, number: usize) {
        let id = person(number).id();
        let node = number != PEOPLE - 1;
        let unknown = self.ledger().member(&id).is_none();
        if unknown && node && !self.ledger().ready() && self.ledger().current().is_none() {
            self.admit(number, true);
        }
        self.hand(StewardInput::Connected(id, true));
    }
}

fn begin(ledger: Ledger, kept: Vec<Request>) -> Steward {
    let roots = if ledger.stage() == Stage::Empty { initial(&ledger) } else { ledger.state().clone() };
    let (states, bans) = Default::default();
    Steward::new(StewardSetup { ledger, identity: steward_key(), roots, states, bans, kept })
}

fn ruling(accusation: &Allegation, guilty: bool) -> Ruling {
    let (culprit, round) = (accusation.claim.culprit, accusation.claim.round);
    let (finding, detail) = (FindingKind::Equivocation, String::new());
    let judgement = match guilty {
        true => Judgement::Guilty { culprit, round, finding, detail },
        false => Judgement::NotGuilty(String::new()),
    };
    Ruling::plain(accusation.evidence.clone(), judgement)
}

fuzz_target!(|input: (u8, Vec<Event>)| {
    let (settings, events) = input;
    let mut run = manifest(1 + u32::from(settings % 2), 1 + u16::from(settings / 2) % 3);
    let bit = |place: u8| u16::from(settings >> place & 1);
    if bit(7) > 0 {
        // Rows that begin with the run, or after its first round; then they last for a round at least.
        let branch = u32::from(bit(6)).min(run.training.rounds - 1);
        let (few, held) = (3 * bit(5), 2 * bit(5) * bit(4));
        run = with_rows(&run, RowSettings { rows: 2 + bit(3), branch, few, held });
    }
    let mut world = World::new(run);
    events.into_iter().take(96).for_each(|event| world.happen(event));
    world.calm();
});
