//! What a run's records tell, kept in the form in which people ask for it.

mod audit;
mod member;
mod round;

use std::collections::{BTreeMap, VecDeque};

use muster_core::audit::roster::Counts;
use muster_core::ids::{Digest, MemberId, Round};
use muster_core::ledger::{Ledger, Stage, Standing};
use muster_core::manifest::Manifest;
use muster_core::messages::enrol::Role;
use muster_core::messages::record::{Ban, Body, Record};

use crate::words::counted;

pub use audit::{AuditState, AuditedBy, Audits};
pub use member::{MemberLine, Penalty};
pub use round::{Counted, Phases, RoundLine};

/// Happenings that are remembered; the ledger has all of them.
const HAPPENINGS: usize = 2_000;
/// Samples that are remembered, the newest ones.
const SAMPLES: usize = 64;
/// Rounds whose mean length tells how long the rest takes.
const RECENT: usize = 20;

/// A run so far.
#[derive(Default)]
pub struct Story {
    /// Records folded in.
    pub records: u64,
    /// How many there are, as far as is known: more while a long run is read.
    pub known: u64,
    /// What the run is doing, and what it waits for.
    pub stage: &'static str,
    /// The same in a sentence.
    pub waits: String,
    /// Whether the run is over.
    pub closed: bool,
    /// Root of the newest sealed state.
    pub state: String,
    /// Ended rounds, oldest first.
    pub rounds: Vec<RoundLine>,
    /// Members, in order of admission.
    pub members: Vec<MemberLine>,
    /// Audits.
    pub audits: Audits,
    /// Bans, oldest first.
    pub bans: Vec<BanLine>,
    /// What else happened, oldest first.
    pub happenings: VecDeque<Happening>,
    /// Who came back, or was started again, in which round; none stands for the steward, which the log tells of.
    pub restarts: Vec<(u32, Option<String>)>,
    /// Rounds in which the state went back, and to which.
    pub rewinds: Vec<(u32, u32)>,
    /// What a convict's contributions turned out to be when they were computed again, from the log.
    pub harm: Vec<HarmLine>,
    /// Verifiers' duties as the steward counts them, from the log.
    pub duties: BTreeMap<String, DutyLine>,
    /// Losses on the held-out text, by round, where somebody measured them.
    pub held_out: BTreeMap<u32, f64>,
    /// What the model wrote, by round; from the log.
    pub samples: BTreeMap<u32, SampleLine>,
    /// Losses of simple models on the held-out text.
    pub baselines: Option<Baselines>,
    /// The record that breaks a rule, and which: nothing after it is shown.
    pub broken: Option<String>,
    /// Why records cannot be read now, if they cannot.
    pub unread: Option<String>,
    /// Whether everything was read that was there at the beginning.
    pub caught_up: bool,
    index: BTreeMap<MemberId, usize>,
    /// What is known of the time of the round that goes on.
    pub(crate) current: Phases,
}

/// Losses on the held-out text, in nats a token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Baselines {
    /// Of frequencies of tokens.
    pub unigram: f64,
    /// Of frequencies of pairs.
    pub bigram: f64,
}

/// A text by the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SampleLine {
    /// What it was given; empty where it began a text.
    pub prompt: String,
    /// How it went on.
    pub text: String,
}

/// A ban.
#[derive(Clone, Debug, serde::Serialize)]
pub struct BanLine {
    /// Height of its record.
    pub height: u64,
    /// Who.
    pub member: String,
    /// Round of the offence.
    pub round: u32,
    /// First round without it.
    pub effective: u32,
    /// What was found.
    pub finding: &'static str,
    /// Name of the evidence.
    pub evidence: String,
    /// Who found it.
    pub accuser: String,
}

/// Something that is neither a round, an audit nor a ban.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Happening {
    /// Height of its record; none where only the log says it.
    pub height: Option<u64>,
    /// Round in which it happened.
    pub round: u32,
    /// Who it is about.
    pub member: Option<String>,
    /// In words.
    pub text: String,
}

/// What a convict's contribution or part of a round turned out to be.
#[derive(Clone, Debug, serde::Serialize)]
pub struct HarmLine {
    /// Whose.
    pub member: String,
    /// The round.
    pub round: u32,
    /// What was false: its contribution, a part.
    pub wrong: String,
    /// By how much it moved the round's aggregate; none where that was not measured.
    pub moved: Option<f64>,
}

/// A verifier's duty, as the steward counts it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct DutyLine {
    /// Rounds in which it had one.
    pub rounds: u64,
    /// Coins that it showed.
    pub coins: u64,
    /// Audits due.
    pub due: u64,
    /// Audits done.
    pub done: u64,
    /// Audits left undone.
    pub overdue: u64,
    /// Verdicts of others that it re-executed.
    pub rechecks: u64,
}

impl From<&Counts> for DutyLine {
    fn from(counts: &Counts) -> Self {
        let Counts { rounds, coins, due, done, overdue, rechecks } = *counts;
        Self { rounds, coins, due, done, overdue, rechecks }
    }
}

impl Story {
    /// Adds members that no record admits, for a story that is told.
    pub fn enlist(&mut self, members: Vec<MemberLine>) {
        for member in members {
            if let Some(id) = muster_core::ids::unhex::<32>(&member.id) {
                self.index.insert(MemberId(id), self.members.len());
            }
            self.members.push(member);
        }
    }

    /// Takes in a record; `ledger` has taken it just before. `now` is the time, where it is sealed just now.
    pub fn seal(&mut self, record: &Record, ledger: &Ledger, now: Option<f64>) {
        let height = record.height.0;
        let round = ledger.next_round().0;
        match &record.body {
            Body::Admit(enrol) => self.admit(enrol.claimed_signer(), height, ledger),
            Body::Freeze(_) => self.current.frozen(now),
            Body::Inputs(_) => self.current.exchanged(now),
            Body::Begin(_) => self.current = Phases::begun(now),
            Body::Outcome(outcome) => {
                self.end_round(outcome.round, height, ledger, now);
                outcome.credits.iter().for_each(|credit| self.audits.credit(credit));
            }
            Body::Ban(ban) => self.ban(ban, height),
            Body::Silence(request) => {
                let Ok(request) = request.verify(ledger.run()) else { return };
                self.audits.silent(&request, request.author());
                let text = format!("did not answer an audit of round {} in time", request.round);
                self.happen(Some(height), round, Some(&request.target), text);
            }
            Body::Idle(idle) => {
                let text = format!("left its duty of round {} undone", idle.round);
                self.happen(Some(height), round, Some(&idle.verifier), text);
            }
            Body::Late(_) => {
                for member in ledger.newly_late() {
                    let text = "lets its audits wait: its work counts again once it has answered them";
                    self.happen(Some(height), round, Some(&member), text);
                }
            }
            Body::Return(back) => self.returned(&back.claimed_signer(), height, round),
            Body::Leave(leave) => {
                self.happen(Some(height), round, Some(&leave.claimed_signer()), "left for good");
            }
            Body::Rewind(rewind) => {
                let text = format!(
                    "the state went back to that before round {}, for evidence {}",
                    rewind.to, rewind.evidence
                );
                self.happen(Some(height), round, None, text);
                self.rewinds.push((round, rewind.to.0));
                self.take_back(rewind.to);
            }
            Body::CloseTree(order) => {
                let Ok(order) = order.verify(ledger.run()) else { return };
                let text = "the organiser closed its tree: its invitations admit nobody any more";
                self.happen(Some(height), round, Some(&order.member), text);
            }
            Body::Open(_)
            | Body::Reassign(_)
            | Body::Shares(_)
            | Body::Answered(_)
            | Body::Ready(_)
            | Body::Close(_) => {}
        }
    }

    fn admit(&mut self, id: MemberId, height: u64, ledger: &Ledger) {
        let Some(member) = ledger.member(&id) else { return };
        self.index.insert(id, self.members.len());
        self.members.push(MemberLine::admitted(member, height));
    }

    fn ban(&mut self, ban: &Ban, height: u64) {
        self.audits.convict(ban);
        self.bans.push(BanLine {
            height,
            member: full(&ban.culprit),
            round: ban.round.0,
            effective: ban.effective.0,
            finding: ban.finding.words(),
            evidence: format!("{:#}", ban.evidence),
            accuser: full(&ban.accuser),
        });
    }

    fn returned(&mut self, member: &MemberId, height: u64, round: u32) {
        let name = self.member(&full(member)).map_or_else(String::new, |line| line.called().to_owned());
        self.restarted(round, Some(name));
        self.happen(Some(height), round, Some(member), "is back");
    }

    fn end_round(&mut self, round: Round, height: u64, ledger: &Ledger, now: Option<f64>) {
        let phases = std::mem::replace(&mut self.current, Phases::begun(now));
        let Some(view) = ledger.round(round) else { return };
        let line = RoundLine::ended(view, height, ledger, phases.ended(now), &self.index);
        for share in &line.counted {
            if let Some(member) = self.members.get_mut(share.member as usize) {
                member.rounds += 1;
                member.leaves += u64::from(share.leaves);
            }
        }
        self.rounds.push(line);
    }

    /// What counted from this round on is in no state any more.
    fn take_back(&mut self, to: Round) {
        for line in self.rounds.iter_mut().rev().take_while(|line| line.round >= to.0) {
            if !std::mem::replace(&mut line.taken_back, true) {
                for share in &line.counted {
                    if let Some(member) = self.members.get_mut(share.member as usize) {
                        member.rounds -= 1;
                        member.leaves -= u64::from(share.leaves);
                    }
                }
            }
        }
    }

    pub(crate) fn happen(
        &mut self,
        height: Option<u64>,
        round: u32,
        member: Option<&MemberId>,
        text: impl Into<String>,
    ) {
        let member = member.map(full);
        // In order of rounds: the log is read after the records that it speaks of.
        let place =
            self.happenings.iter().rposition(|before| before.round <= round).map_or(0, |place| place + 1);
        self.happenings.insert(place, Happening { height, round, member, text: text.into() });
        if self.happenings.len() > HAPPENINGS {
            self.happenings.pop_front();
        }
    }

    /// A program was started again, or a member came back.
    pub(crate) fn restarted(&mut self, round: u32, who: Option<String>) {
        if self.restarts.len() < HAPPENINGS {
            self.restarts.push((round, who));
        }
    }

    pub(crate) fn sample(&mut self, round: u32, sample: SampleLine) {
        self.samples.insert(round, sample);
        if self.samples.len() > SAMPLES {
            self.samples.pop_first();
        }
    }

    /// Forgets what only the log told: it was begun anew.
    pub(crate) fn forget_log(&mut self) {
        self.harm.clear();
        self.samples.clear();
        self.restarts.retain(|(_, who)| who.is_some());
        self.happenings.retain(|happening| happening.height.is_some());
    }

    /// Takes over what follows from the whole ledger: standing, weight, what the run waits for.
    pub fn stand(&mut self, ledger: &Ledger) {
        let counted: u32 =
            self.rounds.last().map_or(0, |round| round.counted.iter().map(|share| share.weight).sum());
        for (line, member) in self.members.iter_mut().zip(ledger.members()) {
            line.stand(ledger, member);
            line.share = None;
        }
        let last = self.rounds.last().map(|round| round.counted.clone()).unwrap_or_default();
        for share in last {
            if let Some(member) = self.members.get_mut(share.member as usize) {
                member.share = Some(f64::from(share.weight) / f64::from(counted.max(1)));
            }
        }
        self.state = format!("{:#}", ledger.state().root());
        self.closed = ledger.stage() == Stage::Closed;
        (self.stage, self.waits) = waits(ledger);
    }

    /// What has to be known before anything else, if the records cannot be read or break a rule.
    pub fn alarm(&self) -> Option<String> {
        let unread = || Some(format!("The records cannot be read: {}", self.unread.as_ref()?));
        let broken = self.broken.as_ref();
        let broken = broken
            .map(|broken| format!("{broken}. The steward broke its promise; what follows is not shown."));
        broken.or_else(unread)
    }

    /// A member by the full name of its key.
    pub fn member(&self, id: &str) -> Option<&MemberLine> {
        self.members.get(self.place(id)?)
    }

    fn place(&self, id: &str) -> Option<usize> {
        self.index.get(&MemberId(muster_core::ids::unhex::<32>(id)?)).copied()
    }

    /// Seconds that so many more rounds take, by the mean of the last ones.
    pub fn rest(&self, rounds: u32) -> Option<f64> {
        let recent = self.rounds.iter().rev().take(RECENT).filter_map(|round| round.phases.seconds);
        let (seconds, count) = recent.fold((0.0, 0.0), |(sum, count), seconds| (sum + seconds, count + 1.0));
        (count > 0.0).then(|| seconds / count * f64::from(rounds))
    }

    /// The first round of each convict's that is known to be false, with its place in the order of admission.
    pub fn first_false(&self) -> BTreeMap<usize, u32> {
        let bans = self.bans.iter().map(|ban| (&ban.member, ban.round));
        let harm = self.harm.iter().map(|harm| (&harm.member, harm.round));
        let mut first = BTreeMap::new();
        for (member, round) in bans.chain(harm) {
            if let Some(place) = self.place(member) {
                let known = first.entry(place).or_insert(round);
                *known = round.min(*known);
            }
        }
        first
    }

    /// Seconds of the ended rounds whose length is known, and how many these are.
    pub fn timed(&self) -> (f64, usize) {
        let seconds = self.rounds.iter().filter_map(|round| round.phases.seconds);
        seconds.fold((0.0, 0), |(sum, count), seconds| (sum + seconds, count + 1))
    }
}

/// A key in full.
pub(crate) fn full(member: &MemberId) -> String {
    format!("{member:#}")
}

/// What the run is doing, and what it waits for, in words.
fn waits(ledger: &Ledger) -> (&'static str, String) {
    let manifest: &Manifest = ledger.manifest();
    let seconds = |timer: u32| f64::from(timer) / 1000.0;
    let seats = ledger.current().map_or(0, |view| view.seats().len());
    let active = |role| {
        let members = ledger.members().iter();
        members.filter(|member| member.role == role && member.standing == Standing::Active).count()
    };
    let round = ledger.current().map_or(0, |view| view.round().0);
    match ledger.stage() {
        Stage::Empty => ("not open yet", "The steward has sealed nothing yet.".into()),
        Stage::Gathering => {
            let (nodes, verifiers) = (ledger.turnout(Role::Node), ledger.turnout(Role::Verifier));
            let text = format!(
                "Rounds begin when enough members are here: {} of {}, {} of {}.",
                nodes.here,
                counted(nodes.wanted, "node"),
                verifiers.here,
                counted(verifiers.wanted, "verifier")
            );
            ("gathering", text)
        }
        Stage::Computing => (
            "computing",
            format!(
                "Round {round}: the commitments of {} are awaited for at most {:.0} s.",
                counted(seats, "seat"),
                seconds(manifest.timers.commit)
            ),
        ),
        Stage::Exchanging => (
            "exchanging",
            format!(
                "Round {round}: contributions go to those that combine them, for at most {:.0} s.",
                seconds(manifest.timers.part)
            ),
        ),
        Stage::Reducing => (
            "reducing",
            format!(
                "Round {round}: parts are combined, compared and applied, for at most {:.0} s a try.",
                seconds(manifest.timers.result)
            ),
        ),
        Stage::Auditing => (
            "last audits",
            format!(
                "The rounds are over. {} may audit the last ones for at most {:.0} s.",
                counted(active(Role::Verifier), "verifier"),
                seconds(manifest.timers.final_audit)
            ),
        ),
        Stage::Closed => ("over", "The run is over.".into()),
    }
}

/// A digest in full.
pub(crate) fn digest(digest: &Digest) -> String {
    format!("{digest:#}")
}
