//! The audits of one verifier, without sockets and threads: records and notices go in, messages and work come out.
//!
//! Everything is driven by levels: what to say and what to compute follows from the ledger, the steward's board and
//! what was found. Whatever is signed follows from the coins, so that a verifier that was killed reads the board
//! again, says the same, and goes on. What it must not do twice, showing a coin for two things, the journal prevents.

mod case;
mod steps;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use muster_core::audit::Judgement;
use muster_core::coins::{Coin, selects};
use muster_core::ids::{Digest, MemberId, Round, RunId, Slot};
use muster_core::ledger::{Ledger, RoundView, Standing};
use muster_core::manifest::Manifest;
use muster_core::messages::audit::{AuditRequest, Evidence, Reduction, Results};
use muster_core::messages::record::Body;
use muster_core::messages::wire::Notice;
use muster_core::sign::{Identity, Signed};
use muster_replica::Event;
use muster_store::error::StoreError;
use tracing::{debug, info, warn};

pub use case::Subject;
use case::{Case, Phase};

use crate::coins::Coins;

/// Round and slot of the audited contribution.
pub type Key = (Round, Slot);

/// What the steward is to be told.
#[derive(Clone, Debug)]
pub enum Message {
    /// A step of an audit.
    Notice(Key, Box<Notice>),
    /// Proof of guilt, until the ban is sealed.
    Accuse(Box<Evidence>),
}

/// What is to be computed, off the thread that follows.
#[derive(Clone, Debug)]
pub struct Work {
    /// About which contribution.
    pub subject: Arc<Subject>,
    /// What.
    pub kind: WorkKind,
}

/// Kinds of work.
#[derive(Clone, Debug)]
pub enum WorkKind {
    /// Recompute the leaves at these positions, drawn by a table with this seal. Answered by [`Done::Leaves`].
    Leaves(Digest, Vec<u32>),
    /// Fetch the committed integers, or else recompute them all. Answered by [`Done::Contribution`] or
    /// [`Done::Summed`].
    Contribution,
    /// Recompute all leaves. Answered by [`Done::Summed`].
    Everything,
    /// Judge this evidence on another code path. Answered by [`Done::Opinion`].
    SecondOpinion(Box<Evidence>, Option<Arc<Vec<i32>>>),
}

/// What came of work.
#[derive(Debug)]
pub enum Done {
    /// The recomputed leaves in order.
    Leaves(Results),
    /// The committed integers, proved against the commitment.
    Contribution(Vec<i32>),
    /// The sum of all recomputed leaves, and whether root and loss are those that were committed.
    Summed(Vec<i32>, bool),
    /// The second opinion.
    Opinion(Judgement),
    /// It could not be done; what is missing.
    Missing(String),
}

/// Why auditing must stop.
#[derive(Debug)]
pub enum Stop {
    /// The disk: no coin can be shown any more.
    Store(StoreError),
    /// Two code paths of this machine disagree; nobody is accused.
    Faulty(String),
}

impl From<StoreError> for Stop {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

/// What was found so far, by this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Audits that found all equal.
    pub passed: u64,
    /// Contributions found wrong.
    pub guilty: u64,
    /// Audits that could not be finished.
    pub undecided: u64,
}

/// All audits of one verifier.
pub struct Audits {
    run: RunId,
    manifest: Arc<Manifest>,
    identity: Arc<Identity>,
    coins: Coins,
    /// Of rounds that the ledger remembers: at most its rounds times the seats of one.
    cases: BTreeMap<Key, Case>,
    names: BTreeMap<Digest, Key>,
    surveyed: BTreeSet<(Round, bool)>,
    accusations: BTreeMap<Digest, Accusation>,
    tally: Tally,
}

struct Accusation {
    evidence: Box<Evidence>,
    culprit: MemberId,
    told: bool,
}

impl Audits {
    /// No audit yet, of a member with these coins.
    pub fn new(manifest: Arc<Manifest>, identity: Arc<Identity>, coins: Coins) -> Self {
        Self {
            run: manifest.run(),
            manifest,
            identity,
            coins,
            cases: BTreeMap::new(),
            names: BTreeMap::new(),
            surveyed: BTreeSet::new(),
            accusations: BTreeMap::new(),
            tally: Tally::default(),
        }
    }

    /// What was found so far.
    pub fn tally(&self) -> Tally {
        self.tally
    }

    /// Rounds whose states are still needed.
    pub fn unfinished_rounds(&self) -> BTreeSet<Round> {
        self.cases.iter().filter(|(_, case)| !case.is_over()).map(|((round, _), _)| *round).collect()
    }

    /// Takes in what happened; the ledger has taken the events already.
    ///
    /// # Errors
    /// [`StoreError`] when the node coin could not be written down.
    pub fn take(&mut self, ledger: &Ledger, events: &[Event]) -> Result<(), StoreError> {
        self.survey(ledger)?;
        for event in events {
            match event {
                Event::Sealed(record) => self.record(ledger, &record.body),
                Event::Notice(notice) => self.notice(notice),
                Event::Applied(..) => {}
            }
        }
        let banned = |member: &MemberId| {
            ledger.member(member).is_none_or(|member| member.standing == Standing::Banned)
        };
        self.accusations.retain(|_, accusation| !banned(&accusation.culprit));
        self.forget(ledger);
        Ok(())
    }

    /// Takes in a record that the ledger has taken.
    pub fn record(&mut self, ledger: &Ledger, body: &Body) {
        match body {
            Body::Silence(signed) => {
                if let Ok(request) = signed.verify(self.run) {
                    self.distrust(ledger, request.round, &request.target);
                }
            }
            Body::Ban(ban) => {
                info!(
                    "{} is banned from round {} on: {} in round {}",
                    ban.culprit,
                    ban.effective,
                    ban.finding.words(),
                    ban.round
                );
                self.accusations.retain(|_, accusation| accusation.culprit != ban.culprit);
                for case in self.cases.values_mut().filter(|case| case.subject.author == ban.culprit) {
                    (case.owed, case.distrusted) = (None, false);
                    if !matches!(case.phase, Phase::Over { .. }) {
                        case.phase = Phase::Over { passed: false };
                    }
                }
            }
            _ => {}
        }
    }

    /// The steward began a new board: what is not settled for good is said again, by the same words.
    pub fn board_changed(&mut self) {
        let manifest = &self.manifest;
        let last = manifest.training.rounds.saturating_sub(manifest.audit.final_rounds);
        for ((round, _), case) in &mut self.cases {
            match case.phase {
                Phase::Over { passed: true } if round.0 >= last => case.ask_again(),
                Phase::Over { .. } | Phase::Doubted(_) => {}
                _ => case.ask_again(),
            }
        }
        self.remind();
    }

    /// Repeats the accusations that no ban has followed yet.
    pub fn remind(&mut self) {
        self.accusations.values_mut().for_each(|accusation| accusation.told = false);
    }

    /// Accuses until the ban is sealed; evidence of an earlier process that proves nothing here is left out.
    pub fn accuse(&mut self, ledger: &Ledger, evidence: Box<Evidence>) {
        let culprit = match &*evidence {
            Evidence::Audit(transcript) => {
                transcript.request.verify(self.run).ok().map(|request| request.target)
            }
            Evidence::Total(total) => Some(total.culprit),
            Evidence::Aggregation(part) => part.result.verify(self.run).ok().map(|result| result.author()),
            Evidence::Equivocation(_) | Evidence::Results(_) => None,
        };
        let Some(culprit) = culprit else { return };
        if ledger.member(&culprit).is_some_and(|member| member.standing != Standing::Banned) {
            self.accusations.insert(evidence.digest(), Accusation { evidence, culprit, told: false });
        }
    }

    /// A round's node coin, kept to ourselves.
    pub fn node_coin(&self, round: Round) -> Option<Coin> {
        self.coins.node(round)
    }

    /// A part of which a drawn block is wrong was judged: accuses its aggregator until the ban is sealed.
    ///
    /// # Errors
    /// [`Stop::Faulty`] when the whole part is right, so that this machine computes wrongly.
    pub fn judged_part(&mut self, part: Reduction, judgement: Judgement) -> Result<(), Stop> {
        match judgement {
            Judgement::Guilty { culprit, round, finding, detail } => {
                warn!("round {round}: {culprit} is guilty, {}: {detail}", finding.words());
                self.tally.guilty += 1;
                let evidence = Box::new(Evidence::Aggregation(part));
                let accusation = Accusation { culprit, told: false, evidence };
                self.accusations.insert(accusation.evidence.digest(), accusation);
                Ok(())
            }
            Judgement::NotGuilty(why) => Err(Stop::Faulty(format!(
                "a drawn block is wrong and its whole part is not ({why}): this machine computes wrongly, and nobody is \
                 accused"
            ))),
            other => {
                warn!("a wrong part stays undecided: {other:?}");
                self.tally.undecided += 1;
                Ok(())
            }
        }
    }

    /// The next thing to tell the steward. `have` says whether a state is at hand: nobody is asked what cannot be
    /// followed up.
    pub fn next_message(&self, have: &dyn Fn(&Digest) -> bool) -> Option<Message> {
        let ready =
            |case: &&Case| !matches!(case.owed, Some(Notice::Request(_))) || have(&case.subject.commit.state);
        let mut owed = self.cases.iter().filter(|(_, case)| case.owed.is_some() && ready(case));
        let notice = owed.find_map(|(key, case)| Some(Message::Notice(*key, Box::new(case.owed.clone()?))));
        notice.or_else(|| {
            let accusation = self.accusations.values().find(|accusation| !accusation.told)?;
            Some(Message::Accuse(accusation.evidence.clone()))
        })
    }

    /// The steward was told, whatever it answered.
    pub fn told(&mut self, message: &Message) {
        match message {
            Message::Notice(key, notice) => {
                if let Some(case) = self.cases.get_mut(key)
                    && case.owed.as_ref() == Some(notice)
                {
                    case.owed = None;
                }
            }
            Message::Accuse(evidence) => {
                if let Some(accusation) = self.accusations.get_mut(&evidence.digest()) {
                    accusation.told = true;
                }
            }
        }
    }

    /// The next thing to compute, the oldest contribution first. `have` says whether a state is at hand.
    pub fn next_work(&self, have: &dyn Fn(&Digest) -> bool) -> Option<Work> {
        self.cases.values().filter(|case| have(&case.subject.commit.state)).find_map(|case| {
            let kind = match &case.phase {
                Phase::Drawn(drawn) => WorkKind::Leaves(drawn.seal, drawn.positions.clone()),
                Phase::Opened(_) => WorkKind::Contribution,
                Phase::Doubted(doubt) => WorkKind::SecondOpinion(doubt.evidence.clone(), doubt.q.clone()),
                _ if case.distrusted => WorkKind::Everything,
                _ => return None,
            };
            Some(Work { subject: case.subject.clone(), kind })
        })
    }

    /// Takes in what came of the work.
    ///
    /// # Errors
    /// [`Stop`]: nothing more may be said.
    pub fn worked(&mut self, work: &Work, done: Done) -> Result<(), Stop> {
        let key = work.subject.key();
        let Some(case) = self.cases.get_mut(&key) else { return Ok(()) };
        match (&work.kind, done) {
            (WorkKind::Leaves(seal, _), Done::Leaves(results)) => {
                case.recomputed = Some((*seal, results));
                self.seal_results(key);
            }
            (WorkKind::Contribution, Done::Contribution(q) | Done::Summed(q, true)) => {
                self.conclude(key, q)?
            }
            (WorkKind::Everything, Done::Summed(_, true)) => {
                case.distrusted = false;
                info!(
                    "round {}: all leaves of {}, who did not answer, were recomputed and are right",
                    key.0, case.subject.author
                );
            }
            (WorkKind::Contribution | WorkKind::Everything, Done::Summed(q, false)) => {
                self.doubt_total(key, q)?
            }
            (WorkKind::SecondOpinion(..), Done::Opinion(judgement)) => self.decide(key, judgement)?,
            (_, Done::Missing(what)) => {
                warn!("round {}: the audit of {} stays undecided: {what}", key.0, case.subject.author);
                case.phase = Phase::Over { passed: false };
                case.distrusted = false;
                self.tally.undecided += 1;
            }
            (kind, done) => debug!("an answer that fits no question: {kind:?}, {done:?}"),
        }
        Ok(())
    }

    /// Opens the audits of every round that is over and was echoed.
    fn survey(&mut self, ledger: &Ledger) -> Result<(), StoreError> {
        for view in ledger.rounds() {
            let all = ledger.in_final_audit(view.round());
            let due =
                view.results().is_some() && view.echoed() && !self.surveyed.contains(&(view.round(), all));
            if !due {
                continue;
            }
            for (slot, commitment) in view.commitments() {
                let coin = self.coins.node(view.round());
                let drawn = |coin: Coin, freeze| {
                    selects(&coin, &freeze, &commitment.author, self.manifest.audit.node_ppm)
                };
                let selected =
                    coin.zip(view.freeze_digest()).is_some_and(|(coin, freeze)| drawn(coin, freeze));
                if selected || all {
                    self.open(ledger, view, slot, selected)?;
                }
            }
            self.surveyed.insert((view.round(), all));
        }
        Ok(())
    }

    fn open(
        &mut self,
        ledger: &Ledger,
        view: &RoundView,
        slot: Slot,
        selected: bool,
    ) -> Result<(), StoreError> {
        let key = (view.round(), slot);
        let Some(subject) = Subject::of(ledger, view, slot) else { return Ok(()) };
        let standing = ledger.member(&subject.author).map(|member| member.standing);
        let distrusted = matches!(standing, Some(Standing::Silent(_) | Standing::Left));
        let ask = !matches!(standing, Some(Standing::Left)) && self.coins.leaf(view.round(), slot).is_some();
        let busy = |case: &Case| case.request.is_some() || !matches!(case.phase, Phase::Over { .. });
        if matches!(standing, None | Some(Standing::Banned)) || self.cases.get(&key).is_some_and(busy) {
            return Ok(());
        }
        let request = if ask { self.request(&subject, selected)? } else { None };
        let case = self.cases.entry(key).or_insert_with(|| fresh(subject, distrusted));
        if let Some(request) = request {
            let name = request.digest();
            case.request = Some((request, name));
            case.ask_again();
            self.names.insert(name, key);
        }
        Ok(())
    }

    fn request(&self, subject: &Subject, selected: bool) -> Result<Option<Signed<AuditRequest>>, StoreError> {
        let round = subject.commit.round;
        let coin = if selected { self.coins.show_node(round, &subject.freeze)? } else { None };
        if selected && coin.is_none() {
            warn!("round {round}: its node coin was shown with another freeze; nobody is asked");
            return Ok(None);
        }
        let request = AuditRequest { round, freeze: subject.freeze, target: subject.author, coin };
        Ok(Some(self.identity.sign(self.run, &request)))
    }

    /// Has all leaves of a contribution recomputed.
    fn distrust(&mut self, ledger: &Ledger, round: Round, member: &MemberId) {
        let Some(view) = ledger.round(round) else { return };
        let subject = view.slot_of(member).and_then(|slot| Subject::of(ledger, view, slot));
        let banned = ledger.member(member).is_some_and(|member| member.standing == Standing::Banned);
        let Some(subject) = subject.filter(|_| !banned) else { return };
        info!("round {round}: {member} did not answer an audit in time; all its leaves are recomputed");
        let case = self.cases.entry(subject.key()).or_insert_with(|| fresh(subject, true));
        case.distrusted = !matches!(case.phase, Phase::Over { passed: true } | Phase::Doubted(_));
    }

    fn forget(&mut self, ledger: &Ledger) {
        let Some(oldest) = ledger.rounds().next().map(RoundView::round) else { return };
        let kept = self.cases.split_off(&(oldest, Slot(0)));
        for (key, case) in std::mem::replace(&mut self.cases, kept) {
            if !case.is_over() {
                warn!(
                    "round {}: the audit of {} was not finished before the round was forgotten",
                    key.0, case.subject.author
                );
                self.tally.undecided += 1;
            }
        }
        self.names.retain(|_, key| key.0 >= oldest);
        self.surveyed.retain(|(round, _)| *round >= oldest);
    }
}

fn fresh(subject: Subject, distrusted: bool) -> Case {
    Case {
        subject: Arc::new(subject),
        request: None,
        phase: Phase::Over { passed: false },
        owed: None,
        early: None,
        recomputed: None,
        distrusted,
    }
}

#[cfg(test)]
mod tests;
