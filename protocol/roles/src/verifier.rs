//! The verifier: audits contributions and drawn blocks, rechecks verdicts, and serves as a juror.
//!
//! The machine decides; whoever drives it follows the run, fetches, computes and speaks. A [`VerifierEffect`] is
//! performed before the next one is asked for. What takes long goes on beside the machine and comes back as a
//! [`VerifierInput`]; each effect says by which.
//!
//! [`audits`] says what to ask, to compute and to say; `fetches` what computing waits for; [`parts`] which blocks to reduce
//! again, and `looks` what follows from them; `news` what follows from each batch of news. [`coins`] are written down before
//! they are shown.

pub mod audits;
pub mod coins;
pub mod parts;

mod fetches;
mod looks;
mod news;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use muster_core::audit::Judgement;
use muster_core::audit::roster::Counts;
use muster_core::ids::{Digest, MemberId, Round};
use muster_core::ledger::{Event, Ledger};
use muster_core::manifest::{Manifest, Profile};
use muster_core::messages::evidence::{Evidence, Reduction};
use muster_core::messages::record::{Ban, Body};
use muster_core::messages::wire::Notice;
use muster_core::sign::Identity;
use muster_core::state::StateRoots;

use audits::{Audits, Conduct, Done, Key, Message, Stop, Subject, Tally, Work, WorkKind};
use coins::Coins;
use fetches::{Fetches, wants};
use parts::{DrawnBlocks, Parts, Seen};

pub use fetches::{Found, Integers};

/// Milliseconds for which an accusation is left alone before it is repeated.
const REMINDER: u64 = 20_000;
/// Works that are looked at for the first one that can be done.
const WORKS: usize = 64;
/// Milliseconds of pause after the steward could not be reached.
const PAUSE: u64 = 1_000;

/// What a machine begins with: a new member, or one whose process was killed.
pub struct VerifierSetup<'a> {
    /// All records that were taken in.
    pub ledger: &'a Ledger,
    /// The agreement.
    pub manifest: Arc<Manifest>,
    /// Who audits.
    pub identity: Arc<Identity>,
    /// Its coins.
    pub coins: Coins,
    /// How findings become words: honest, or a lie of the rehearsal.
    pub conduct: Arc<dyn Conduct>,
    /// The sealed silences: whoever was silent has all its leaves recomputed.
    pub silences: Vec<Body>,
    /// What an earlier process accused members of. What a sealed ban names is the steward's word, whomever it is about, and
    /// no accusation.
    pub accusations: Vec<Evidence>,
    /// Rounds whose states are on the disk.
    pub kept: BTreeSet<Round>,
}

/// What the run has come to.
pub struct LedgerUpdate<'a> {
    /// The ledger, which has taken the events.
    pub ledger: &'a Ledger,
    /// What happened.
    pub events: &'a [Event],
    /// Whether nothing more has happened yet, as far as the steward says.
    pub whole: bool,
    /// Whether the newest sealed state is at hand.
    pub in_step: bool,
    /// The steward's board that the notices are from; 0 is none yet.
    pub board: u64,
}

/// What reaches the verifier.
pub enum VerifierInput<'a> {
    /// The run went on.
    News(LedgerUpdate<'a>),
    /// The states that are at hand, of memory and disk. Said before the news by which they came.
    States(BTreeSet<Digest>),
    /// What the steward answered.
    Told(Box<Message>, Answer),
    /// The result of the work.
    Worked(Box<Work>, Done),
    /// The state that the work needs is not at hand any more, and these are: it waits.
    Lacking(Box<Work>, BTreeSet<Digest>),
    /// The integers of a contribution, each proved against its commitment, or the parts that nobody shows.
    Fetched(Key, Found),
    /// What a look at drawn blocks gave.
    Looked(Box<DrawnBlocks>, Seen),
    /// A whole part was reduced again.
    Judged {
        /// The part.
        drawn: Box<DrawnBlocks>,
        /// What was judged.
        evidence: Box<Reduction>,
        /// The judgement, or why its inputs are unavailable.
        judgement: Result<Judgement, String>,
    },
    /// Somebody wants it to stop: it finishes what it computes, says what it has to say, and ends.
    Stop,
    /// Time has passed.
    Tick,
}

/// The steward's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It was taken.
    Taken,
    /// It was not.
    Refused,
    /// There is none.
    Unreached,
}

/// What is to be done, in this order.
pub enum VerifierEffect {
    /// Tell the steward: [`VerifierInput::Told`]. An accusation is kept first: a process that is killed goes on with it.
    Tell(Box<Message>),
    /// Compute, with the integers where they are at hand: [`VerifierInput::Worked`], or [`VerifierInput::Lacking`].
    Compute(Box<Work>, Integers),
    /// Fetch the integers of a contribution: [`VerifierInput::Fetched`].
    Fetch(Arc<Subject>),
    /// Reduce drawn blocks again and compare them with what was applied: [`VerifierInput::Looked`].
    Look(Box<DrawnBlocks>),
    /// Reduce the whole part again, from inputs that are fetched anew: [`VerifierInput::Judged`].
    Doubt(Box<DrawnBlocks>, Box<Reduction>),
    /// Have the parameters of these states on the disk before the next news are handed over; all else goes on meanwhile.
    KeepStates {
        /// Rounds of all that are to be there; others go.
        wanted: BTreeSet<Round>,
        /// Those that are not there yet.
        fresh: BTreeMap<Round, StateRoots>,
    },
    /// Write the newest whole state down, to go on from: likewise before the next news.
    SaveState,
    /// Keep what a ban of somebody else rests on.
    KeepEvidence(Box<Ban>),
    /// The verifier cannot go on.
    Halt(HaltCause),
    /// The run is over, or everything is done that was to be done before stopping.
    End,
}

/// Why a verifier cannot go on.
#[derive(Debug)]
pub enum HaltCause {
    /// No coin can be shown any more: the disk.
    Unwritten(String),
    /// Two code paths of this machine disagree; nobody is accused.
    Faulty(String),
    /// It was expelled: now, by this ban, or before.
    Banned(Option<Box<Ban>>),
    /// The run has no such member.
    Stranger,
}

impl From<Stop> for HaltCause {
    fn from(stop: Stop) -> Self {
        match stop {
            Stop::Store(why) => Self::Unwritten(why.0),
            Stop::Faulty(why) => Self::Faulty(why),
        }
    }
}

/// The verifier's machine.
pub struct Verifier {
    me: MemberId,
    identity: Arc<Identity>,
    profile: Profile,
    audits: Audits,
    fetches: Fetches,
    parts: Parts,
    /// States at hand.
    states: BTreeSet<Digest>,
    /// Rounds whose states are on the disk.
    kept: BTreeSet<Round>,
    effects: VecDeque<VerifierEffect>,
    now: u64,
    board: u64,
    /// Whether the board was read to its end once: what is on it need not be said again.
    caught_up: bool,
    /// That it is back, when the ledger has it away.
    back: Option<Notice>,
    /// Whether the steward is being told that.
    returning: bool,
    /// Whether the steward is being told something.
    telling: bool,
    /// When the steward may be told something again.
    quiet_until: u64,
    reminded: u64,
    /// About which contribution it computes.
    computing: Option<Key>,
    /// Whether there may be something else to compute or to fetch.
    stirred: bool,
    /// Drawn parts that are being looked at.
    looks: usize,
    stopping: bool,
    over: bool,
}

impl Verifier {
    /// A machine at time 0.
    pub fn new(setup: VerifierSetup<'_>) -> Self {
        let VerifierSetup { ledger, manifest, identity, coins, conduct, silences, accusations, kept } = setup;
        let profile = manifest.profile;
        let mut audits = Audits::new(manifest, identity.clone(), coins).conducted(conduct);
        // Before the board is read: what is asked there again may be about somebody who was silent to an earlier
        // process.
        silences.iter().for_each(|body| audits.record(ledger, body));
        accusations.into_iter().for_each(|evidence| audits.accuse(ledger, Box::new(evidence)));
        Self {
            me: identity.id(),
            identity,
            profile,
            audits,
            fetches: Fetches::of(ledger.layout().coefficients()),
            parts: Parts::default(),
            states: BTreeSet::new(),
            kept,
            effects: VecDeque::new(),
            now: 0,
            board: 0,
            caught_up: false,
            back: None,
            returning: false,
            telling: false,
            quiet_until: 0,
            reminded: 0,
            computing: None,
            stirred: false,
            looks: 0,
            stopping: false,
            over: false,
        }
    }

    /// What was found so far, by this process.
    pub fn tally(&self) -> Tally {
        self.audits.tally()
    }

    /// What was due by this process, and what of it is done.
    pub fn duty(&self) -> Counts {
        self.audits.duty()
    }

    /// Takes something in. Time never goes back.
    pub fn handle(&mut self, now: u64, input: VerifierInput<'_>) {
        self.now = self.now.max(now);
        if self.over {
            return;
        }
        match input {
            VerifierInput::News(news) => self.news(&news),
            VerifierInput::States(states) => self.states = states,
            VerifierInput::Told(message, answer) => self.told(&message, answer),
            VerifierInput::Worked(work, done) => self.worked(&work, done),
            VerifierInput::Lacking(work, states) => self.lacking(&work, states),
            VerifierInput::Fetched(key, found) => {
                self.fetches.end(key, found, self.profile);
                self.stirred = true;
            }
            VerifierInput::Looked(drawn, seen) => self.looked(drawn, seen),
            VerifierInput::Judged { drawn, evidence, judgement } => self.judged(*drawn, *evidence, judgement),
            VerifierInput::Stop => self.stopping = true,
            VerifierInput::Tick => {}
        }
    }

    /// What is to be done next.
    pub fn poll_effect(&mut self) -> Option<VerifierEffect> {
        if let Some(effect) = self.effects.pop_front() {
            return Some(effect);
        }
        if self.over {
            return None;
        }
        if let Some(drawn) = self.next_look() {
            return Some(VerifierEffect::Look(drawn));
        }
        if let Some(message) = self.next_message() {
            return Some(VerifierEffect::Tell(Box::new(message)));
        }
        self.next_work().or_else(|| {
            self.over = self.stopping && self.computing.is_none() && !self.telling;
            self.over.then_some(VerifierEffect::End)
        })
    }

    /// When something follows from the time alone.
    pub fn poll_timeout(&self) -> Option<u64> {
        let reminder = self.audits.is_accusing().then_some(self.reminded + REMINDER);
        let look = self.parts.timeout().filter(|_| self.may_look());
        let due = [reminder, look, Some(self.quiet_until)].into_iter().flatten();
        due.filter(|due| *due > self.now && !self.over).min()
    }

    /// The next thing to tell the steward, one after the other.
    fn next_message(&mut self) -> Option<Message> {
        // Until the board is read to its end, what an earlier process said would be said twice.
        if !self.caught_up || self.telling || self.now < self.quiet_until {
            return None;
        }
        if self.now >= self.reminded + REMINDER {
            self.reminded = self.now;
            self.audits.remind();
        }
        // Before everything else: while it is away the steward takes no step of it (DUTY-5).
        let back = self.back.take().map(|notice| Message::Say(Box::new(notice)));
        self.returning = back.is_some();
        let message = back.or_else(|| self.audits.next_message(&|root| self.states.contains(root)))?;
        self.telling = true;
        Some(message)
    }

    fn told(&mut self, message: &Message, answer: Answer) {
        self.telling = false;
        let returned = std::mem::take(&mut self.returning);
        match answer {
            Answer::Taken if returned => {
                tracing::info!("back again: audits of the next rounds are shared with this verifier");
            }
            Answer::Taken => {}
            Answer::Refused => self.audits.refused(message),
            Answer::Unreached => {
                // Not counted as said: the same message is sent again.
                self.quiet_until = self.now + PAUSE;
                return;
            }
        }
        self.audits.told(message);
    }

    /// What is to be fetched for work, then the first work that can be done.
    fn next_work(&mut self) -> Option<VerifierEffect> {
        // Orders all works anew: only when something has changed.
        if self.stopping || !std::mem::take(&mut self.stirred) {
            return None;
        }
        let states = &self.states;
        let have = |root: &Digest| states.contains(root);
        // What is being computed has what it needs.
        let others = self.audits.works(&have).filter(|work| self.computing != Some(work.subject.key()));
        let works: Vec<Work> = others.take(WORKS).collect();
        let wanting = works.iter().filter(|work| wants(work, self.profile));
        self.fetches.want(wanting.map(|work| work.subject.clone()).collect());
        if let Some(subject) = self.fetches.begin() {
            self.stirred = true;
            return Some(VerifierEffect::Fetch(subject));
        }
        // Fetching goes on beside it: the network is idle while leaves are computed.
        if self.computing.is_some() {
            return None;
        }
        let ready = |work: &Work| !wants(work, self.profile) || self.fetches.is_done(&work.subject);
        let work = works.into_iter().find(ready)?;
        // A second path judges by the integers of the first one, which the member may refuse to show again (DUTY-8).
        let q = match &work.kind {
            WorkKind::SecondOpinion(_, Some(q)) | WorkKind::SecondRecheck(_, Some(q)) => Some(q.clone()),
            _ if wants(&work, self.profile) => self.fetches.take(work.subject.key()),
            _ => None,
        };
        self.computing = Some(work.subject.key());
        // Another one may be fetched now.
        self.stirred = true;
        Some(VerifierEffect::Compute(Box::new(work), q))
    }

    fn worked(&mut self, work: &Work, done: Done) {
        (self.computing, self.stirred) = (None, true);
        if let Err(stop) = self.audits.worked(work, done) {
            self.halt(stop.into());
        }
    }

    /// It is offered again once its state is there: it is not over.
    fn lacking(&mut self, work: &Work, states: BTreeSet<Digest>) {
        tracing::warn!("the state of round {} is not at hand: its audits wait", work.subject.commit.round);
        (self.states, self.computing, self.stirred) = (states, None, true);
    }

    /// What was decided before is performed still, nothing after.
    fn halt(&mut self, cause: HaltCause) {
        // An audit on a machine that computes wrongly, or without notes of its coins, does more harm than none.
        self.over = true;
        self.effects.push_back(VerifierEffect::Halt(cause));
    }
}

#[cfg(test)]
mod tests;
