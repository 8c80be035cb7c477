//! The steward: it admits members, freezes rounds, has results applied, seals outcomes, examines accusations,
//! and keeps the public board.
//!
//! The machine decides; its driver writes, fetches, computes and speaks. The driver performs a
//! [`StewardEffect`] before it asks for the next one. So a promise is on the disk before it is given, and a
//! record before anything that follows from it.
//!
//! The machine is made of rooms. Each has private fields and changes nothing but itself. This file says in
//! which order they act. `requests` takes in what members say, and `sealing` makes records of proposals.
//!
//! The way of a verdict to a ban: the `board` takes the verdict. The `court` lets it wait, has it examined as
//! [`hearing`] says, and orders the ban, if need be after a trial before jurors. `justice` proposes the ban,
//! and `sealing` seals it. Then [`exhibits`] keeps what replay needs of the convict, and [`past`] looks into
//! what it did before.

pub mod accusation;
pub mod exhibits;
pub mod hearing;
pub mod past;

mod admission;
mod board;
mod closing;
mod court;
mod deliveries;
mod interface;
mod justice;
mod presence;
mod relays;
mod requests;
mod results;
mod sealing;
mod told;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use muster_core::audit::docket::{Docket, OpenCase};
use muster_core::audit::roster::Counts;
use muster_core::ids::MemberId;
use muster_core::ledger::{Ledger, Member, RoundView, Stage, Standing};
use muster_core::messages::enrol::Role;
use muster_core::messages::evidence::Evidence;
use muster_core::messages::record::{Ban, Body};
use muster_core::messages::wire::Request;
pub use muster_core::round::{Awaited, Owed};
use muster_core::round::{Conductor, Output};
use muster_core::sign::Identity;
use muster_core::state::StateRoots;

use admission::Admission;
use board::Board;
use closing::Closing;
use court::Court;
use deliveries::Deliveries;
use exhibits::Exhibits;
use past::Past;
use presence::{Move, Presence};
use relays::Relays;
use told::Told;

pub use interface::{
    Bulletin, Dial, HostingEnd, KeptContribution, Payer, Question, StewardEffect, StewardInput, StewardSetup,
};

/// The steward's machine: its rooms, each with a state of its own, and the order in which they act.
pub struct Steward {
    conductor: Conductor,
    admission: Admission,
    board: Board,
    court: Court,
    exhibits: Exhibits,
    past: Past,
    presence: Presence,
    deliveries: Deliveries,
    relays: Relays,
    closing: Closing,
    told: Told,
    identity: Arc<Identity>,
    effects: VecDeque<StewardEffect>,
    now: u64,
    /// Whether something has happened since the last turn.
    stirred: bool,
    /// Whether a round's results are being applied.
    applying: bool,
    /// Refused records of a round's own in a row.
    refusals: u32,
}

impl Steward {
    /// A machine at time 0.
    pub fn new(setup: StewardSetup) -> Self {
        let StewardSetup { ledger, identity, roots, states, bans, kept } = setup;
        let mut steward = Self {
            conductor: Conductor::new(ledger, 0),
            admission: Admission::default(),
            board: Board::default(),
            court: Court::default(),
            exhibits: Exhibits::default(),
            past: Past::new(bans.iter().map(|(ban, _)| ban.clone()), states),
            presence: Presence::default(),
            deliveries: Deliveries::default(),
            relays: Relays::default(),
            closing: Closing::default(),
            told: Told::default(),
            identity,
            effects: VecDeque::new(),
            now: 0,
            stirred: true,
            applying: false,
            refusals: 0,
        };
        steward.begin(&roots, &bans, kept);
        steward
    }

    /// The same, which moves nobody's share class by what it measures (ROUND-40).
    #[must_use]
    pub fn with_equal_parts(mut self) -> Self {
        self.conductor.keep_parts_equal();
        self
    }

    fn begin(&mut self, roots: &StateRoots, bans: &[(Ban, Option<Evidence>)], kept: Vec<Request>) {
        if self.ledger().stage() == Stage::Closed {
            // It may have been interrupted before the folder was an archive.
            self.effects.push_back(StewardEffect::Archive);
        }
        if self.ledger().stage() == Stage::Empty {
            self.conductor.propose(Body::Open(roots.clone()));
            return self.conductor.start();
        }
        // ROUND-16: what has a receipt is taken again before the conductor may end a phase.
        self.expect_members();
        self.replay(kept);
        self.examine_acquitted(bans);
        // Before the first Freeze: ROLLBACK-4 has pasts looked into again.
        self.conductor.measuring(self.now, self.past.at_stake(self.conductor.ledger()));
        self.conductor.start();
    }

    /// The ledger so far.
    pub fn ledger(&self) -> &Ledger {
        self.conductor.ledger()
    }

    /// The audits so far.
    pub fn docket(&self) -> &Docket {
        self.board.docket()
    }

    /// What the verifiers were to do, and have done.
    pub fn duties(&self) -> &BTreeMap<MemberId, Counts> {
        self.board.docket().counts()
    }

    /// What the open phase waits for, and on whom.
    pub fn owed(&self) -> Option<(Owed, Vec<MemberId>)> {
        self.conductor.owed()
    }

    /// What the round must not be spent without, and is not there.
    pub fn awaits(&self) -> Option<Awaited> {
        self.conductor.awaits()
    }

    /// Members that no round waits for because they did not check its results.
    pub fn stalling(&self) -> impl Iterator<Item = &MemberId> {
        self.conductor.stalling()
    }

    /// Takes something in. Time never goes back.
    pub fn handle(&mut self, now: u64, input: StewardInput) {
        self.now = self.now.max(now);
        self.stirred = true;
        match input {
            StewardInput::Connected(member, is) => self.presence.connected(member, is),
            StewardInput::Asked { question, from, request, date } => {
                self.asked(question, &from, *request, date)
            }
            StewardInput::Stored(question, stored) => self.stored(question, stored),
            StewardInput::DialledBack(question, found) => self.dialled_back(question, found),
            StewardInput::DeliveryChecked(question, shown) => self.delivery_checked(question, *shown),
            StewardInput::Served(question) => self.conductor.paid(self.now, question.0),
            StewardInput::Obtained(result, are_here) => {
                self.conductor.obtained(self.now, &result, are_here);
            }
            StewardInput::Applied(applied, states) => {
                self.applying = false;
                self.past.holds(states);
                self.conductor.applied(self.now, applied);
            }
            StewardInput::States(states) => self.past.holds(states),
            StewardInput::Heard(accusation, ruling) => self.heard(&accusation, *ruling),
            StewardInput::Inspected(accusation, judgement) => self.inspected(&accusation, *judgement),
            StewardInput::Exhibited(owed, kept) => self.exhibited(owed, kept),
            StewardInput::PartsKept(owed, lost) => self.parts_kept(owed, lost),
            StewardInput::Measured(member, past) => self.measured(member, past),
            StewardInput::Proved(evidence) => {
                // A refused accusation is no news.
                let _ = self.accuse(self.identity.id(), *evidence);
            }
            StewardInput::Interrupt => {
                self.closing.interrupt(self.conductor.ledger().next_round());
                // A run that is over has no round to finish.
                if self.ledger().stage() != Stage::Closed {
                    self.tell(Bulletin::Stopping);
                }
            }
            StewardInput::Resumed => self.resume(),
            StewardInput::Tick => {}
        }
    }

    /// The next effect. The machine decides one thing at a time: an effect is performed while the ledger is
    /// the one by which it was decided.
    pub fn poll_effect(&mut self) -> Option<StewardEffect> {
        loop {
            if let Some(effect) = self.effects.pop_front() {
                return Some(effect);
            }
            if let Some(output) = self.conductor.poll_output() {
                self.stirred = true;
                self.conduct(output);
            } else if std::mem::take(&mut self.stirred) {
                self.turn();
            } else {
                return None;
            }
        }
    }

    /// When something follows from the time alone.
    pub fn poll_timeout(&self) -> Option<u64> {
        let ledger = self.ledger();
        let court = self.court.timeout(self.now).into_iter().chain(self.exhibits.timeout(self.now));
        let due = self.conductor.poll_timeout().into_iter().chain(self.board.docket().timeout(ledger));
        let due = due.chain(self.presence.timeout()).chain(court);
        let due = due.chain(self.past.timeout(ledger)).chain(self.closing.timeout(ledger));
        // What is overdue waits for an event: as a timer it would have the driver spin.
        due.filter(|due| *due > self.now).min()
    }

    /// How it ended, if it has; `deserted` says whether nobody has a connection.
    pub fn ending(&self, now: u64, deserted: bool) -> Option<HostingEnd> {
        if self.ledger().stage() == Stage::Closed {
            return (deserted || self.closing.has_said_farewell(now)).then_some(HostingEnd::Closed);
        }
        // Between two rounds nobody has work under way that a stop would throw away.
        let under_way =
            matches!(self.ledger().stage(), Stage::Computing | Stage::Exchanging | Stage::Reducing);
        let round = self.closing.stop_after()?;
        // A round that is held back before its Freeze loses nothing: what has a receipt is taken again.
        let held = self.conductor.paused_until().is_some() || self.conductor.awaits().is_some();
        let over = !under_way || held || self.ledger().next_round() > round;
        (over || self.is_deserted()).then_some(HostingEnd::Stopped)
    }

    /// Whether somebody wants it to stop.
    pub fn is_interrupted(&self) -> bool {
        self.closing.stop_after().is_some()
    }

    /// Does what follows from the time and from the members that are present.
    fn turn(&mut self) {
        // Absences come first: the conductor then decides for whom to wait.
        self.attend();
        // AUDIT-27: by what the board shows now, before a Freeze may be sealed.
        self.conductor.late(self.board.docket().late(self.conductor.ledger()));
        self.conductor.tick(self.now);
        self.show_results();
        let overdue = self.board.overdue(self.now, self.conductor.ledger());
        overdue.into_iter().for_each(|body| self.conductor.propose(body));
        self.pursue();
        self.conductor.measuring(self.now, self.past.at_stake(self.conductor.ledger()));
        // AUDIT-26: after everything that opens or closes cases in this turn. Until then the conductor opens
        // no round.
        let oldest = self.board.docket().oldest_open(self.conductor.ledger());
        self.conductor.cases(self.now, oldest);
        self.tell_held();
        self.tell_awaited();
    }

    /// Counts all members as present for a while: they have not found the way back yet, and a restart would
    /// cost them the round.
    fn expect_members(&mut self) {
        let members: Vec<MemberId> = self.ledger().members().iter().map(|member| member.id).collect();
        for member in members {
            // LEDGER-20: a restart must not make everybody fail the round.
            self.conductor.live(self.now, member, true);
            self.presence.expect(self.now, member);
        }
    }

    /// ROUND-38: goes on as after a restart, with everything still in memory. Connections may be gone, and no
    /// phase may end for something that nobody could hear.
    fn resume(&mut self) {
        self.conductor.resume(self.now);
        self.board.resume(self.now);
        self.expect_members();
        self.tell(Bulletin::Resumed);
    }

    /// Tells the conductor who is there.
    fn attend(&mut self) {
        let members: Vec<MemberId> = self.ledger().members().iter().map(|member| member.id).collect();
        for member in members {
            match self.presence.look(self.now, member, self.conductor.is_live(&member)) {
                Some(Move::Came) => self.conductor.live(self.now, member, true),
                Some(Move::Went) => {
                    self.conductor.live(self.now, member, false);
                    self.tell(Bulletin::Moved(member, "is not connected any more"));
                }
                None => {}
            }
        }
    }

    /// Says once a round what its Freeze waits for.
    fn tell_awaited(&mut self) {
        let awaited = self.conductor.awaits().map(|awaited| (self.ledger().next_round(), awaited));
        if let Some((round, awaited)) = self.told.awaited(awaited) {
            self.tell(Bulletin::Awaits(round, awaited));
        }
    }

    /// Says once a round which audit the next round waits for.
    fn tell_held(&mut self) {
        let ledger = self.conductor.ledger();
        let round = ledger.next_round();
        if !self.conductor.is_held() || self.told.has_held(round) {
            return;
        }
        // Before a Freeze only late members are waited for.
        let late = match ledger.stage() {
            Stage::Computing => Some(self.board.docket().late(ledger)),
            _ => None,
        };
        let awaited = |case: &OpenCase| {
            late.as_ref().is_none_or(|late| case.target.is_some_and(|target| late.contains(&target)))
        };
        let case = self.board.docket().open_cases(ledger).find(awaited);
        if let Some(case) = case {
            self.told.held(round);
            self.tell(Bulletin::Held(round, case));
        }
    }

    /// Does what the conductor asks for.
    fn conduct(&mut self, output: Output) {
        match output {
            Output::Seal(body) => self.seal(body),
            Output::Apply(results) => {
                self.applying = true;
                self.tell_stalling();
                self.effects.push_back(StewardEffect::Apply(results));
            }
            Output::Inspect(result) => self.inspect(result),
        }
    }

    /// Whether nobody is left who could end the round: without a single commitment no Freeze is sealed
    /// (ROUND-1).
    fn is_deserted(&self) -> bool {
        let seats = self.ledger().current().map(RoundView::seats).unwrap_or_default();
        !self.applying && !seats.iter().any(|seat| self.conductor.is_live(&seat.member))
    }

    /// Whether a verifier is there to judge anything.
    fn has_verifier(&self) -> bool {
        let mut members = self.ledger().members().iter();
        let active = |member: &Member| member.role == Role::Verifier && member.standing == Standing::Active;
        members.any(|member| active(member) && self.conductor.is_live(&member.id))
    }

    fn tell(&mut self, news: Bulletin) {
        self.effects.push_back(StewardEffect::Tell(Box::new(news)));
    }
}
