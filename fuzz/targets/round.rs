//! The steward's machine and its members under any order of messages, losses, deaths and departures: no panic, every
//! record that the machine asks for is taken by the ledger, and once all is calm the run comes to its end.
#![no_main]

use libfuzzer_sys::fuzz_target;
use muster_core::codec::{List, encode};
use muster_core::ids::{MemberId, Part, Round};
use muster_core::ledger::{Ledger, Stage, Standing};
use muster_core::messages::audit::{FindingKind, Jury};
use muster_core::messages::enrol::{Leave, Return, Role};
use muster_core::messages::record::{Ban, Body};
use muster_core::messages::round::{Checked, Commit, Delivered, Echo, PartResult};
use muster_core::round::{Conductor, Duties, Duty, Output};
use muster_core::sign::{Identity, Signed};
use muster_fuzz::{PEOPLE, commit, enrol, manifest, person, receipt, reduced, roots, steward};

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
    Admit(u8, bool),
    Leave(u8),
    Ban(u8, u8),
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
    /// The oldest open case is so many rounds back; none is open.
    Case(Option<u8>),
}

enum Mail {
    Commit(Signed<Commit>),
    Echo(Signed<Echo>),
    Delivered(Signed<Delivered>),
    Result(Signed<PartResult>),
    Checked(Signed<Checked>),
}

struct Member {
    identity: &'static Identity,
    ledger: Ledger,
    duties: Duties,
}

struct World {
    conductor: Conductor,
    members: Vec<Member>,
    mail: Vec<Mail>,
    proposed: Vec<Vec<u8>>,
    applying: bool,
    inspecting: Option<(Part, MemberId)>,
    /// Of which round the oldest open case is.
    open: Option<Round>,
    now: u64,
}

impl World {
    fn new(rounds: u32, nodes: u16) -> Self {
        let ledger = Ledger::new(manifest(rounds, nodes));
        let member = |number| {
            let identity = person(number);
            Member { identity, ledger: ledger.clone(), duties: Duties::new(identity.id()) }
        };
        let members = (0..PEOPLE).map(member).collect();
        let mut conductor = Conductor::new(ledger, 0);
        conductor.start();
        let mut world = Self {
            conductor,
            members,
            mail: vec![],
            proposed: vec![],
            applying: false,
            inspecting: None,
            open: None,
            now: 0,
        };
        world.propose(Body::Open(roots(0)));
        world
    }

    fn ledger(&self) -> &Ledger {
        self.conductor.ledger()
    }

    fn propose(&mut self, body: Body) {
        self.proposed.push(encode(&body));
        self.conductor.propose(body);
        self.drain();
    }

    /// Does what the machine asks for, as its driver does after everything that happens.
    fn drain(&mut self) {
        while let Some(output) = self.next() {
            let mut body = match output {
                Output::Seal(body) => body,
                Output::Apply(_) => {
                    self.applying = true;
                    continue;
                }
                Output::Inspect(signed) => {
                    let result = signed.verify(self.ledger().run()).expect("the machine has checked it");
                    self.inspecting = Some((result.part, result.author()));
                    continue;
                }
            };
            let proposed = self.proposed.iter().position(|proposed| *proposed == encode(&body));
            let proposed = proposed.map(|place| self.proposed.swap_remove(place)).is_some();
            if let Body::Ban(ban) = &mut body {
                ban.effective = self.ledger().first_round_without();
            }
            let signed = steward().sign(self.ledger().run(), &self.ledger().record(body));
            let sealed = self.conductor.sealed(self.now, &signed);
            assert!(
                proposed || sealed.is_ok(),
                "the machine asks for what the ledger refuses: {:?}",
                sealed.err()
            );
        }
    }

    /// What the machine asks for. AUDIT-26: with an open case it never opens a round that leaves the case behind.
    fn next(&mut self) -> Option<Output> {
        self.conductor.cases(self.now, self.open);
        let output = self.conductor.poll_output();
        let opens = match &output {
            Some(Output::Seal(Body::Outcome(outcome))) if !outcome.seats.is_empty() => {
                Some(outcome.round.next())
            }
            Some(Output::Seal(Body::Begin(_))) => Some(self.ledger().next_round()),
            _ => None,
        };
        if let (Some(opens), Some(open)) = (opens, self.open) {
            assert!(opens.0 <= open.0 + self.ledger().audit_window(), "round {opens} leaves {open} behind");
        }
        output
    }

    fn follow(&mut self, number: usize) {
        let ledger = self.ledger().clone();
        let place = number % PEOPLE;
        let duties = self.members[place].duties.due(&ledger);
        self.members[place].ledger = ledger;
        for duty in duties {
            let mail = self.perform(place, duty);
            self.mail.extend(mail);
        }
    }

    fn perform(&self, place: usize, duty: Duty) -> Option<Mail> {
        let Member { identity, ledger, .. } = &self.members[place];
        let (run, me) = (ledger.run(), identity.id());
        let view = ledger.current()?;
        Some(match duty {
            Duty::Compute { slot, quota, .. } => {
                Mail::Commit(identity.sign(run, &commit(view, slot, quota)?))
            }
            Duty::Echo { round, freeze } => Mail::Echo(identity.sign(run, &Echo { round, freeze })),
            Duty::Deliver { round, attempt, parts } => {
                // A keeper that is gone gives no receipt.
                let there = |keeper: &MemberId| *keeper == steward().id() || self.conductor.is_live(keeper);
                let kept = parts.iter().filter(|(_, keeper)| there(keeper));
                let receipts = kept.filter_map(|(part, keeper)| receipt(ledger, *part, keeper, me));
                let receipts = List::new(receipts.collect()).expect("one for each part");
                Mail::Delivered(identity.sign(run, &Delivered { round, attempt, receipts }))
            }
            Duty::Reduce { round, part, attempt, inputs } => {
                let (digest, freeze) = (reduced(round, part, &inputs), view.freeze_digest()?);
                Mail::Result(identity.sign(run, &PartResult { round, part, attempt, freeze, inputs, digest }))
            }
        })
    }

    fn arrive(&mut self, mail: &Mail) {
        let now = self.now;
        // What comes late or twice is refused, and changes nothing.
        let _ = match mail {
            Mail::Commit(signed) => self.conductor.commit(now, signed.clone()).map(drop),
            Mail::Echo(signed) => self.conductor.echo(now, signed.clone()).map(drop),
            Mail::Delivered(signed) => self.conductor.delivered(now, signed),
            Mail::Result(signed) => self.conductor.result(now, signed.clone()).map(drop),
            Mail::Checked(signed) => self.conductor.checked(now, signed),
        };
        self.drain();
    }

    fn applied(&mut self, missing: Option<u8>) {
        if std::mem::take(&mut self.applying) {
            let next = missing
                .map_or(Ok(roots(self.ledger().state().step + 1)), |part| Err(vec![Part(part.into())]));
            self.conductor.applied(self.now, next);
            self.drain();
        }
    }

    fn wait(&mut self, milliseconds: u64) {
        self.now += milliseconds;
        self.conductor.tick(self.now);
        self.drain();
    }

    fn happen(&mut self, event: Event) {
        let run = self.ledger().run();
        match event {
            Event::Arrive(place, twice) if !self.mail.is_empty() => {
                let mail = self.mail.remove(usize::from(place) % self.mail.len());
                self.arrive(&mail);
                if twice {
                    self.arrive(&mail);
                }
            }
            Event::Lose(place) if !self.mail.is_empty() => {
                self.mail.remove(usize::from(place) % self.mail.len());
            }
            Event::Arrive(..) | Event::Lose(_) => {}
            Event::Follow(place) => self.follow(place.into()),
            Event::Applied(missing) => self.applied(missing),
            Event::Connect(place, live) => {
                let id = person(place.into()).id();
                self.conductor.live(self.now, id, live && self.ledger().member(&id).is_some());
                self.drain();
            }
            Event::Restart(place) => {
                let member = &mut self.members[usize::from(place) % PEOPLE];
                member.duties = Duties::new(member.identity.id());
            }
            Event::Wait(milliseconds) => self.wait(milliseconds.into()),
            Event::Admit(place, dialable) => self.admit(place.into(), dialable),
            Event::Leave(place) => {
                let said = Leave { height: self.ledger().height() };
                self.propose(Body::Leave(person(place.into()).sign(run, &said)));
            }
            Event::Ban(culprit, accuser) => self.propose(Body::Ban(Ban {
                culprit: person(culprit.into()).id(),
                effective: self.ledger().first_round_without(),
                round: self.ledger().next_round(),
                finding: FindingKind::SumMismatch,
                evidence: Default::default(),
                accuser: person(accuser.into()).id(),
                jury: Jury::default(),
            })),
            Event::StrayCommit(signed) => self.arrive(&Mail::Commit(*signed)),
            Event::StrayDelivered(signed) => self.arrive(&Mail::Delivered(*signed)),
            Event::StrayResult(signed) => self.arrive(&Mail::Result(*signed)),
            Event::StrayChecked(signed) => self.arrive(&Mail::Checked(*signed)),
            Event::Check(place, objects) => self.check(place.into(), objects),
            Event::Wrong(part) => self.wrong(Part(part.into())),
            Event::Inspected(right) => self.inspected(right),
            Event::Case(back) => {
                let round = self.ledger().current().map(|view| view.round().0);
                self.open = back.zip(round).map(|(back, round)| Round(round.saturating_sub(back.into())));
                self.drain();
            }
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
        let signed = person(number % PEOPLE).sign(self.ledger().run(), &said);
        self.arrive(&Mail::Checked(signed));
    }

    fn wrong(&mut self, part: Part) {
        let Some(view) = self.ledger().current() else { return };
        let aggregator = view.aggregator(part).and_then(|(slot, _)| view.member_at(slot));
        let identity = aggregator.and_then(|id| (0..PEOPLE).map(person).find(|person| person.id() == id));
        let (Some(identity), Some(inputs)) = (identity, view.inputs().get(part.index())) else { return };
        let (round, attempt) = (view.round(), view.aggregator(part).map_or(0, |(_, attempt)| attempt));
        let Some(freeze) = view.freeze_digest() else { return };
        let (digest, author) = (Default::default(), identity.id());
        let said = PartResult { round, part, attempt, freeze, inputs: *inputs, digest };
        let signed = identity.sign(self.ledger().run(), &said);
        self.conductor.contest(part, &author);
        self.arrive(&Mail::Result(signed));
    }

    fn inspected(&mut self, right: bool) {
        if let Some((part, author)) = self.inspecting.take() {
            self.conductor.inspected(self.now, (part, &author), right);
            self.drain();
        }
    }

    fn admit(&mut self, number: usize, dialable: bool) {
        let signed = enrol(self.ledger().run(), number, Role::Node, dialable);
        self.propose(Body::Admit(signed));
        let id = person(number).id();
        let admitted = self.ledger().member(&id).is_some();
        self.conductor.live(self.now, id, admitted);
        self.drain();
    }

    /// Everybody is here, hears everything and does its part.
    fn calm(&mut self) {
        self.open = None;
        // What was lost was lost with whoever said it: it says it again.
        self.members.iter_mut().for_each(|member| member.duties = Duties::new(member.identity.id()));
        for turn in 0..CALM {
            if self.ledger().stage() == Stage::Auditing {
                return;
            }
            for number in 0..PEOPLE {
                self.present(number);
            }
            (0..PEOPLE).for_each(|number| self.follow(number));
            while let Some(mail) = self.mail.pop() {
                self.arrive(&mail);
            }
            self.inspected(true);
            self.applied(None);
            // A member that forgot what it had taken on is waited for, and a pause (ROUND-26) is waited out.
            if turn % 3 == 2 {
                let pause = self.conductor.paused_until().map_or(0, |until| until.saturating_sub(self.now));
                self.wait(pause.max(1000));
            }
        }
        // Only people are missing: too many left, or were banned.
        let (stage, round) = (self.ledger().stage(), self.ledger().next_round());
        assert!(
            stage == Stage::Gathering && !self.ledger().ready(),
            "the run stands still: {stage:?} of {round:?}"
        );
    }

    /// Brings a person in, or back.
    fn present(&mut self, number: usize) {
        let id = person(number).id();
        match self.ledger().member(&id).map(|member| member.standing) {
            None if !self.ledger().ready() && self.ledger().current().is_none() => self.admit(number, true),
            Some(Standing::Away) => {
                let said = Return { height: self.ledger().height(), addresses: Default::default() };
                self.propose(Body::Return(person(number).sign(self.ledger().run(), &said)));
            }
            None | Some(_) => {}
        }
        self.conductor.live(self.now, id, self.ledger().member(&id).is_some());
        self.drain();
    }
}

fuzz_target!(|input: (u8, Vec<Event>)| {
    let (settings, events) = input;
    let mut world = World::new(1 + u32::from(settings % 2), 1 + u16::from(settings / 2) % 3);
    events.into_iter().take(96).for_each(|event| world.happen(event));
    world.calm();
});
