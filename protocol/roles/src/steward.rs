//! The steward: admits members, freezes rounds, has results applied and seals outcomes, examines what is found wrong, and
//! says what everybody sees on its board.
//!
//! The machine decides; whoever drives it writes, fetches, computes and speaks. A [`StewardEffect`] is performed before
//! the next one is asked for, so that what was promised is on the disk before the promise is out, and each record
//! before whatever follows from it.
//!
//! The way of a verdict to a ban: `requests` takes it in, `justice` has it wait in the `queue` and be examined,
//! [`hearing`] says who is wrong, `justice` proposes the ban or asks a `jury`, and here it is sealed. [`exhibits`] and
//! [`past`] are what follows from it.

pub mod accusation;
pub mod exhibits;
pub mod hearing;
pub mod past;

mod deliveries;
mod jury;
mod justice;
mod presence;
mod queue;
mod requests;
mod results;
mod sealing;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use muster_core::audit::Judgement;
use muster_core::audit::docket::{Docket, OpenCase};
use muster_core::audit::roster::Counts;
use muster_core::error::Reject;
use muster_core::ids::{Digest, MemberId, Part, Round};
use muster_core::ledger::{Ledger, Member, RoundView, Stage, Standing};
use muster_core::messages::audit::{AuditRequest, Finding, Recomputation};
use muster_core::messages::enrol::Role;
use muster_core::messages::evidence::Evidence;
use muster_core::messages::record::{Ban, Body, Idle, Record, Rewind};
use muster_core::messages::round::{PartResult, Receipt};
use muster_core::messages::wire::{InputQuery, Notice, PutBlocks, Request, Response};
use muster_core::round::{Awaited, ClaimedDelivery, Conductor, Output, ShownDelivery};
use muster_core::sign::{Identity, Signed, Verified};
use muster_core::state::StateRoots;

use accusation::Allegation;
use deliveries::Deliveries;
use exhibits::{OwedContribution, OwedPart, PartName};
use hearing::{Matter, Ruling};
use justice::Justice;
use past::PastRound;
use presence::Attendance;

use crate::keeper::Wanted;

/// How long a closed run is still served to those who are connected, members and observers.
const FAREWELL: u64 = 15_000;

/// A request that waits for its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Question(pub u64);

/// What a machine begins with: a new run, or one that was interrupted.
pub struct StewardSetup {
    /// All records that were sealed.
    pub ledger: Ledger,
    /// Who seals.
    pub identity: Arc<Identity>,
    /// The newest state.
    pub roots: StateRoots,
    /// States that a Rewind can go back to.
    pub states: BTreeSet<Digest>,
    /// ROLLBACK-4: bans whose past may still have to be looked into, and what they rest on, where that is at hand.
    pub bans: Vec<(Ban, Option<Evidence>)>,
    /// What members have said and no record may hold yet, in the order in which it was taken.
    pub kept: Vec<Request>,
}

/// What reaches the steward.
pub enum StewardInput {
    /// A member, or a stranger, has a connection now, or none any more.
    Connected(MemberId, bool),
    /// A request of a member or stranger.
    Asked {
        /// The name that its answer will carry.
        question: Question,
        /// The member or stranger that asks, as the handshake has shown.
        from: MemberId,
        /// The request.
        request: Box<Request>,
        /// Seconds since 1970.
        date: u64,
    },
    /// Blocks were stored, or why not; the receipt to sign once their part is whole.
    Stored(Question, Result<Option<Receipt>, Reject>),
    /// The signatures of a delivery's receipts were checked.
    DeliveryChecked(Question, Box<Result<ShownDelivery, Reject>>),
    /// Blocks were read and given, or could not be.
    Served(Question),
    /// The values of a prefetched result are here, or unavailable.
    Obtained(Box<PartResult>, bool),
    /// A round's results are applied, or the values of these parts are unavailable; and the states that a Rewind can go back to.
    Applied(Result<StateRoots, Vec<Part>>, BTreeSet<Digest>),
    /// The states that a Rewind can go back to, after one.
    States(BTreeSet<Digest>),
    /// An accusation was examined.
    Heard(Box<Allegation>, Box<Ruling>),
    /// A part that contributors object to was reduced again.
    Inspected(Box<Allegation>, Box<Judgement>),
    /// A contribution was fetched, or why not.
    Exhibited(OwedContribution, Result<(), String>),
    /// These parts were to be kept by value, and those among them could not be.
    PartsKept(Vec<OwedPart>, Vec<OwedPart>),
    /// The past of a convict was recomputed; empty where there is none.
    Measured(MemberId, Vec<PastRound>),
    /// Gossip proved something.
    Proved(Box<Evidence>),
    /// Somebody wants it to stop.
    Interrupt,
    /// This process did not run for a while, which its time leaves out: what others did meanwhile was not heard.
    Resumed,
    /// Time has passed.
    Tick,
}

/// What is to be done, in this order.
pub enum StewardEffect {
    /// Write the record behind the last one; then show it to everybody.
    Seal(Box<Signed<Record>>, Box<Verified<Record>>),
    /// Show this on the board.
    Post(Notice),
    /// Answer.
    Answer(Question, Response),
    /// Keep a request that was taken in a round, until a record holds it. What follows must not happen before it is kept.
    Keep(Round, Box<Request>),
    /// Take blocks from their author, and say [`StewardInput::Stored`].
    Store(Question, MemberId, Box<PutBlocks>),
    /// Check the signatures of these receipts, beside everything else, and say [`StewardInput::DeliveryChecked`].
    CheckDelivery(Question, Box<ClaimedDelivery>),
    /// Answer with blocks of a contribution, those of [`Wanted::Now`] first, and say [`StewardInput::Served`].
    Read(Question, InputQuery, Wanted),
    /// Fetch the values of these results and apply them: [`StewardInput::Applied`].
    Apply(Vec<Option<Signed<PartResult>>>),
    /// Fetch the values of this result, for as long as ROUND-7 has it: [`StewardInput::Obtained`].
    Prefetch(Box<PartResult>, MemberId),
    /// Examine: [`StewardInput::Heard`].
    Hear(Box<Allegation>, Box<Matter>),
    /// Reduce a part again, in as long as its timer says: [`StewardInput::Inspected`].
    Inspect(Box<Allegation>, Box<Matter>),
    /// Keep what a ban rests on for good, with the contribution that it is about where that was at hand.
    KeepEvidence(Box<Evidence>, Option<KeptContribution>),
    /// Fetch a contribution: [`StewardInput::Exhibited`].
    Exhibit(OwedContribution),
    /// Keep the values of these parts: [`StewardInput::PartsKept`]. Where `at_once`, before the next effect.
    KeepParts {
        /// The parts, with their rounds and blocks.
        parts: Vec<OwedPart>,
        /// Whether the next record makes their rounds forgotten.
        at_once: bool,
    },
    /// Drop the values of these parts, which replay does not need after all.
    DropParts(Vec<PartName>),
    /// Recompute what a convict contributed to the rounds that are remembered, and which parts it signed:
    /// [`StewardInput::Measured`].
    Measure(MemberId),
    /// Bring the state back to where the ledger is.
    GoBack(Box<Rewind>),
    /// Drop what was said and contributed before this round, and write down what the last one leaves.
    Prune(Round),
    /// Write all records into one file: the run is over.
    Archive,
    /// For people.
    Tell(Box<Bulletin>),
    /// The steward cannot go on.
    Halt(String),
}

/// A contribution that stays for good.
pub struct KeptContribution {
    /// The round that it was contributed to.
    pub round: Round,
    /// Its author.
    pub member: MemberId,
    /// Its integers.
    pub q: Vec<i32>,
}

/// What happened, for people.
#[derive(Debug)]
pub enum Bulletin {
    /// A member was admitted.
    Admitted(MemberId),
    /// The first round begins.
    Began,
    /// A round is over; for how many milliseconds the next one is held back.
    Ended(Round, Option<u64>),
    /// The next round waits for an audit.
    Held(Round, OpenCase),
    /// The Freeze of this round waits for something.
    Awaits(Round, Awaited),
    /// A member was expelled.
    Banned(Ban),
    /// A verifier did not do its duty in time.
    Idle(Idle),
    /// A member came, went, or fell silent.
    Moved(MemberId, &'static str),
    /// The organiser has closed a member's tree of invitations.
    TreeClosed(MemberId),
    /// The state went back; the round with which the run goes on.
    WentBack(Rewind, Round),
    /// Somebody audits; the digest names the signed request.
    Requested(Digest, AuditRequest, MemberId),
    /// The audit of this request has its verdict; how many leaves were recomputed, and what was found.
    Judged(Digest, usize, Finding),
    /// Somebody has recomputed all leaves of a member that did not answer.
    Recomputed(Recomputation, MemberId),
    /// An accusation came to nothing.
    Dismissed {
        /// The member that accused.
        accuser: MemberId,
        /// The member that was accused.
        culprit: MemberId,
        /// Why the accusation does not stand.
        why: String,
    },
    /// Contributors objected to a part, and nobody was convicted.
    Inspected(PartResult, bool, Judgement),
    /// What a convict contributed and reduced before was computed again.
    Past(MemberId, Vec<PastRound>),
    /// A contribution that replay needs is unavailable, and why.
    Lost(Round, MemberId, String),
    /// What a convict did is beyond the limit of rollback, and no round of it is within reach.
    OutOfReach(MemberId),
    /// This process did not run for a while; the phase has begun anew.
    Resumed,
    /// The steward stops after this round.
    Stopping,
    /// The run is over.
    Closed(Digest),
}

/// How hosting ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostingEnd {
    /// The run is over.
    Closed,
    /// Interrupted: between two rounds, or in one that everybody has left.
    Stopped,
}

/// The steward's machine.
pub struct Steward {
    conductor: Conductor,
    docket: Docket,
    justice: Justice,
    presence: Attendance,
    identity: Arc<Identity>,
    states: BTreeSet<Digest>,
    effects: VecDeque<StewardEffect>,
    now: u64,
    /// Whether something has happened since the last turn.
    stirred: bool,
    /// Proposals whose authors wait for the seal, by the encoding of the body.
    waiting: Vec<(Vec<u8>, Question)>,
    /// Results of the round that are on the board, with their attempts.
    shown: BTreeMap<Part, (Digest, u8)>,
    /// Parts that senders brought here in an attempt because an aggregator did not take them.
    relayed: BTreeMap<(MemberId, u8), BTreeSet<Part>>,
    /// Those that are being stored.
    storing: BTreeMap<Question, (MemberId, u8, Part)>,
    applying: bool,
    deliveries: Deliveries,
    /// Blocks that aggregators of the open round have asked for, by whoever asked and whose blocks they are.
    asked: BTreeMap<(MemberId, MemberId), usize>,
    /// Members already reported for not checking results.
    stalling: BTreeSet<MemberId>,
    refusals: u32,
    /// The round already reported as waiting for an audit.
    told_held: Option<Round>,
    /// What the open round was last reported to wait for.
    told_awaited: Option<(Round, Awaited)>,
    /// Interrupted while this round was next.
    stop_after: Option<Round>,
    closed_at: Option<u64>,
    /// Whether it takes again what an earlier process took.
    replaying: bool,
}

impl Steward {
    /// A machine at time 0.
    pub fn new(setup: StewardSetup) -> Self {
        let StewardSetup { ledger, identity, roots, states, bans, kept } = setup;
        let mut steward = Self {
            conductor: Conductor::new(ledger, 0),
            docket: Docket::default(),
            justice: Justice::new(bans.iter().map(|(ban, _)| ban.clone())),
            presence: Attendance::default(),
            identity,
            states,
            effects: VecDeque::new(),
            now: 0,
            stirred: true,
            waiting: Vec::new(),
            shown: BTreeMap::new(),
            relayed: BTreeMap::new(),
            storing: BTreeMap::new(),
            applying: false,
            deliveries: Deliveries::default(),
            asked: BTreeMap::new(),
            stalling: BTreeSet::new(),
            refusals: 0,
            told_held: None,
            told_awaited: None,
            stop_after: None,
            closed_at: None,
            replaying: false,
        };
        steward.begin(&roots, &bans, kept);
        steward
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
        self.conductor.measuring(self.now, self.past_at_stake());
        self.conductor.start();
    }

    /// The ledger so far.
    pub fn ledger(&self) -> &Ledger {
        self.conductor.ledger()
    }

    /// The audits so far.
    pub fn docket(&self) -> &Docket {
        &self.docket
    }

    /// What the verifiers were to do, and have done.
    pub fn duties(&self) -> &BTreeMap<MemberId, Counts> {
        self.docket.counts()
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
            StewardInput::DeliveryChecked(question, shown) => self.delivery_checked(question, *shown),
            StewardInput::Served(question) => self.conductor.paid(self.now, question.0),
            StewardInput::Obtained(result, are_here) => {
                self.conductor.obtained(self.now, &result, are_here);
            }
            StewardInput::Applied(applied, states) => {
                (self.applying, self.states) = (false, states);
                self.conductor.applied(self.now, applied);
            }
            StewardInput::States(states) => self.states = states,
            StewardInput::Heard(accusation, ruling) => self.judged(&accusation, *ruling),
            StewardInput::Inspected(accusation, judgement) => self.inspected(&accusation, *judgement),
            StewardInput::Exhibited(owed, kept) => self.exhibited(owed, kept),
            StewardInput::PartsKept(owed, lost) => self.parts_kept(owed, lost),
            StewardInput::Measured(member, past) => self.measured(member, past),
            StewardInput::Proved(evidence) => {
                // One that is refused is no news.
                let _ = self.accuse(self.identity.id(), *evidence);
            }
            StewardInput::Interrupt => {
                self.stop_after = Some(self.ledger().next_round());
                self.tell(Bulletin::Stopping);
            }
            StewardInput::Resumed => self.resume(),
            StewardInput::Tick => {}
        }
    }

    /// What is to be done next. Only one thing is decided at a time: whoever performs effects has the ledger before it that
    /// they are of.
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
        let audits = self.docket.timeout(ledger).into_iter();
        let due = self.conductor.poll_timeout().into_iter().chain(audits);
        let due = due.chain(self.presence.timeout()).chain(self.justice.timeout(ledger, self.now));
        // What is overdue waits for an event: as a timer it would have the driver spin.
        due.filter(|due| *due > self.now).min()
    }

    /// How it ended, if it has; `deserted` says whether nobody has a connection.
    pub fn ending(&self, now: u64, deserted: bool) -> Option<HostingEnd> {
        if self.ledger().stage() == Stage::Closed {
            let since = self.closed_at.unwrap_or(0);
            return (deserted || now >= since + FAREWELL).then_some(HostingEnd::Closed);
        }
        // Between two rounds nobody has work under way that a stop would throw away.
        let under_way =
            matches!(self.ledger().stage(), Stage::Computing | Stage::Exchanging | Stage::Reducing);
        let round = self.stop_after?;
        // A round that is held back before its Freeze loses nothing: what has a receipt is taken again.
        let held = self.conductor.paused_until().is_some() || self.conductor.awaits().is_some();
        let over = !under_way || held || self.ledger().next_round() > round;
        (over || self.is_deserted()).then_some(HostingEnd::Stopped)
    }

    /// What follows from the time and from who is there.
    fn turn(&mut self) {
        // Who is gone is known before the conductor looks for whom to wait.
        self.attend();
        // AUDIT-27: by what the board shows now, before a Freeze may be sealed.
        self.conductor.late(self.docket.late(self.conductor.ledger()));
        self.conductor.tick(self.now);
        self.show_results();
        let silences = self.docket.silences(self.now, self.conductor.ledger());
        let idles = self.docket.idles(self.now, self.conductor.ledger());
        silences.into_iter().chain(idles).for_each(|body| self.conductor.propose(body));
        self.pursue();
        self.conductor.measuring(self.now, self.past_at_stake());
        // AUDIT-26: after all that opens or closes cases in this turn; until it is said, the conductor opens no round.
        let oldest = self.docket.oldest_open(self.conductor.ledger());
        self.conductor.cases(self.now, oldest);
        self.tell_held();
        self.tell_awaited();
    }

    /// Says once a round what its Freeze waits for.
    fn tell_awaited(&mut self) {
        let awaited = self.conductor.awaits().map(|awaited| (self.ledger().next_round(), awaited));
        if awaited == self.told_awaited {
            return;
        }
        self.told_awaited = awaited;
        if let Some((round, awaited)) = awaited {
            self.tell(Bulletin::Awaits(round, awaited));
        }
    }

    /// Says once a round for what the next one waits.
    fn tell_held(&mut self) {
        let ledger = self.conductor.ledger();
        let round = ledger.next_round();
        if !self.conductor.is_held() || self.told_held == Some(round) {
            return;
        }
        // Before a Freeze only those that are late are waited for.
        let late = match ledger.stage() {
            Stage::Computing => Some(self.docket.late(ledger)),
            _ => None,
        };
        let awaited = |case: &OpenCase| {
            late.as_ref().is_none_or(|late| case.target.is_some_and(|target| late.contains(&target)))
        };
        let case = self.docket.open_cases(ledger).find(awaited);
        if let Some(case) = case {
            self.told_held = Some(round);
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

    /// Whether nobody is left who could end the round: without a single commitment no Freeze is sealed (ROUND-1).
    fn is_deserted(&self) -> bool {
        let seats = self.ledger().current().map(RoundView::seats).unwrap_or_default();
        !self.applying && !seats.iter().any(|seat| self.conductor.is_live(&seat.member))
    }

    /// Whether a verifier is there to judge anything.
    fn verified(&self) -> bool {
        let mut members = self.ledger().members().iter();
        let active = |member: &Member| member.role == Role::Verifier && member.standing == Standing::Active;
        members.any(|member| active(member) && self.conductor.is_live(&member.id))
    }

    fn tell(&mut self, news: Bulletin) {
        self.effects.push_back(StewardEffect::Tell(Box::new(news)));
    }
}
