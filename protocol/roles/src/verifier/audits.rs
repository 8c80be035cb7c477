//! The audits of one verifier, without sockets and threads: records and notices go in, messages and work come out.
//!
//! Everything is driven by levels: what to say and what to compute follows from the ledger, the steward's board and
//! what was found. Whatever is signed follows from the coins, so that a verifier that was killed reads the board
//! again, says the same, and goes on. What it must not do twice, showing a coin for two things, the journal prevents.

mod case;
mod conduct;
mod drift;
mod jury;
mod messages;
mod rechecks;
mod schedule;
mod steps;
mod subject;
mod survey;
mod work;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use muster_core::audit::Judgement;
use muster_core::audit::roster::Counts;
use muster_core::bug;
use muster_core::coins::Coin;
use muster_core::contribution::PackedContribution;
use muster_core::ids::{Digest, Round, RunId, Slot};
use muster_core::ledger::{Event, Ledger, RoundView};
use muster_core::manifest::Manifest;
use muster_core::messages::audit::{Finding, FindingKind, Recomputation};
use muster_core::messages::evidence::{Evidence, Reduction};
use muster_core::messages::record::Body;
use muster_core::messages::wire::Notice;
use muster_core::sign::Identity;
use tracing::{info, warn};

use case::Case;
pub use conduct::{Conduct, Honest};
use drift::Drifts;
use jury::Charges;
pub use messages::Message;
use messages::{Accusation, Saying};
use rechecks::Others;
pub use subject::{Source, Subject};
pub use work::{Done, DrawnLeaves, Work, WorkKind};

use super::coins::{Coins, Unwritten};

/// Round and slot of the audited contribution.
pub type Key = (Round, Slot);

/// Why auditing must stop.
#[derive(Debug)]
pub enum Stop {
    /// The disk: no coin can be shown any more.
    Store(Unwritten),
    /// Two code paths of this machine disagree; nobody is accused.
    Faulty(String),
}

impl From<Unwritten> for Stop {
    fn from(error: Unwritten) -> Self {
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
    others: Others,
    /// Coins and rechecks, of rounds that the ledger remembers.
    sayings: Vec<Saying>,
    conduct: Arc<dyn Conduct>,
    tally: Tally,
    duty: Counts,
    drifts: Drifts,
    charges: Charges,
    /// Words that the steward did not take: the next record may make them due.
    refused: BTreeMap<Key, Notice>,
    /// Whether it is a recheck's turn, if one presses: whoever has a lot audited does not put them off for ever.
    alternates: bool,
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
            others: Others::default(),
            sayings: Vec::new(),
            conduct: Arc::new(Honest),
            tally: Tally::default(),
            duty: Counts::default(),
            drifts: Drifts::default(),
            charges: Charges::default(),
            refused: BTreeMap::new(),
            alternates: false,
        }
    }

    /// The same with another conduct.
    #[must_use]
    pub fn conducted(mut self, conduct: Arc<dyn Conduct>) -> Self {
        self.conduct = conduct;
        self
    }

    /// What was due by this process, and what of it is done.
    pub fn duty(&self) -> Counts {
        self.duty
    }

    /// What was found so far.
    pub fn tally(&self) -> Tally {
        self.tally
    }

    /// Contributions whose authors it has asked, and whether that audit is over.
    pub fn asked(&self) -> impl Iterator<Item = (Key, bool)> {
        let asked = self.cases.iter().filter(|(_, case)| case.asked().is_some());
        asked.map(|(key, case)| (*key, case.has_ended()))
    }

    /// Rounds whose states are still needed.
    pub fn unfinished_rounds(&self) -> BTreeSet<Round> {
        let own = self.cases.iter().filter(|(_, case)| !case.is_over()).map(|((round, _), _)| *round);
        own.chain(self.others.rounds()).chain(self.charges.rounds()).collect()
    }

    /// Takes in what happened; the ledger has taken the events already.
    ///
    /// # Errors
    /// [`Unwritten`] when the node coin could not be written down.
    pub fn take(&mut self, ledger: &Ledger, events: &[Event]) -> Result<(), Unwritten> {
        let sealed = |event: &Event| matches!(event, Event::Sealed(record) if moves_duties(&record.body));
        // DUTY-6: what one verifier was to inspect may be due from this one now, so every round is looked at anew.
        if events.iter().any(sealed) {
            self.surveyed.clear();
        }
        // What others have passed is nobody's to ask about.
        for event in events {
            if let Event::Notice(notice) = event {
                self.overhear(ledger, notice);
            }
        }
        if events.iter().any(|event| matches!(event, Event::Sealed(_))) {
            self.say_again(ledger);
        }
        // Before the events: a notice may answer an audit that opens only now.
        self.survey(ledger)?;
        for event in events {
            match event {
                Event::Sealed(record) => self.record(ledger, &record.body),
                Event::Notice(notice) => {
                    self.notice(ledger, notice);
                    if let Notice::Charge(evidence) = &**notice {
                        self.charged(ledger, evidence);
                    }
                }
                Event::Applied(..) => {}
            }
        }
        self.accusations.retain(|_, accusation| !ledger.is_banned(&accusation.culprit));
        self.charges.draw(ledger, &self.identity.id());
        self.forget(ledger);
        Ok(())
    }

    /// Takes in a record that the ledger has taken.
    pub fn record(&mut self, ledger: &Ledger, body: &Body) {
        match body {
            Body::Silence(signed) => {
                if let Ok(request) = signed.verify(self.run) {
                    self.silenced(ledger, request.round, &request.target);
                }
            }
            // AUDIT-8: whoever leaves gives no table any more; all its leaves decide.
            Body::Leave(signed) => self.abandoned(&signed.claimed_signer()),
            Body::Idle(idle) if idle.verifier == self.identity.id() => {
                warn!("sealed as idle in round {}: others audit what was left undone", idle.round);
                self.retire();
            }
            Body::Idle(idle) => info!("{} left its duty of round {} undone", idle.verifier, idle.round),
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
                    case.is_settled();
                }
            }
            _ => {}
        }
    }

    /// The steward began a new board: what is not settled for good is said again, by the same words.
    pub fn board_changed(&mut self, ledger: &Ledger) {
        let manifest = &self.manifest;
        let last = manifest.training.rounds.saturating_sub(manifest.audit.final_rounds);
        for ((round, _), case) in &mut self.cases {
            // Over and sealed, or about to be said with evidence of its own: neither begins anew.
            let settled = case.has_ended() || case.is_doubted();
            if settled && !(case.has_passed() && round.0 >= last) {
                continue;
            }
            case.ask_again();
            // AUDIT-8: what was taken over stays so, whatever the new board shows.
            case.distrust_if(ledger.is_taken_over(*round, &case.subject.author));
        }
        self.sayings.iter_mut().for_each(|saying| saying.told = false);
        self.remind();
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
                // AUDIT-20: accused only after the whole part, from inputs fetched anew, has confirmed the block.
                self.tally.guilty += 1;
                self.accuse_of(culprit, Box::new(Evidence::Aggregation(part)));
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

    /// Takes in what came of the work.
    ///
    /// # Errors
    /// [`Stop`]: nothing more may be said.
    pub fn worked(&mut self, work: &Work, done: Done) -> Result<(), Stop> {
        match &work.kind {
            WorkKind::Recheck(..) | WorkKind::SecondRecheck(..) => {
                self.alternates = false;
                return self.rechecked(work, done);
            }
            WorkKind::Opinion(evidence) => {
                self.opined(evidence, done);
                return Ok(());
            }
            _ => {}
        }
        self.alternates = true;
        let worked =
            self.with_case(work.subject.key(), |audits, case| audits.advance(case, &work.kind, done));
        // The round may have been forgotten meanwhile, and its cases with it.
        worked.unwrap_or(Ok(()))
    }

    /// Takes in what came of the work on a case of its own.
    fn advance(&mut self, case: &mut Case, kind: &WorkKind, done: Done) -> Result<(), Stop> {
        match (kind, done) {
            (WorkKind::Leaves(drawn), Done::Leaves(results)) => {
                // With its seal: meanwhile a steward that was restarted may have had another table sealed.
                case.leaves_are(drawn.seal, results);
                self.seal_results(case);
            }
            (WorkKind::Contribution, Done::Contribution(q) | Done::Summed(q, true)) => {
                self.conclude(case, Some(q), false)?
            }
            (WorkKind::Contribution, Done::Withheld) => self.conclude(case, None, false)?,
            (WorkKind::Everything, Done::Summed(q, right)) => self.summed(case, q, right)?,
            (WorkKind::Contribution, Done::Summed(q, false)) => self.doubt_total(case, &q)?,
            (WorkKind::SecondOpinion(..), Done::Opinion(judgement)) => self.decide(case, judgement)?,
            (kind, Done::Missing(what)) => {
                let (round, author) = (case.subject.commit.round, case.subject.author);
                warn!("round {round}: the audit of {author} stays undecided: {what}");
                // Its author may answer yet, and then it is this verifier's turn.
                if !matches!(kind, WorkKind::Everything) {
                    case.give_up();
                }
                case.trust();
                self.tally.undecided += 1;
            }
            (kind, done) => bug!("an answer that fits its question {kind:?}; found: {done:?}"),
        }
        Ok(())
    }

    /// All leaves of a contribution were recomputed: that they are right is said where it stands for a verdict (AUDIT-25),
    /// that they are not after a second opinion.
    fn summed(&mut self, case: &mut Case, q: Arc<PackedContribution>, right: bool) -> Result<(), Stop> {
        let found = if right { Finding::Pass } else { Finding::Guilty(FindingKind::TotalMismatch) };
        // Not said yet: a second code path must find the same before anybody is accused (AUDIT-25).
        if self.conduct.says(found) != Finding::Pass {
            return self.doubt_total(case, &q);
        }
        case.trust();
        let (round, author) = (case.subject.commit.round, case.subject.author);
        info!("round {round}: all leaves of {author} were recomputed and are right");
        if self.manifest.profile.leaves_stand_for_integers() && case.opened().is_some() {
            return self.conclude(case, Some(q), true);
        }
        if self.manifest.profile.leaves_stand_for_integers() && !case.has_passed() {
            let said = recomputation(&case.subject, Finding::Pass);
            case.pass(Notice::Recomputation(self.identity.sign(self.run, &said)));
            self.tally.passed += 1;
            self.duty.done += 1;
        }
        Ok(())
    }

    fn forget(&mut self, ledger: &Ledger) {
        // Before the first round there is nothing to forget.
        let Some(oldest) = ledger.rounds().next().map(RoundView::round) else { return };
        let kept = self.cases.split_off(&(oldest, Slot(0)));
        for (key, case) in std::mem::replace(&mut self.cases, kept) {
            if !case.is_over() {
                warn!(
                    "round {}: the audit of {} was not finished before the round was forgotten",
                    key.0, case.subject.author
                );
                self.tally.undecided += 1;
                // Counted, since nothing else is left of it: nobody can finish an audit of a forgotten round.
                self.duty.overdue += 1;
            }
        }
        self.names.retain(|_, key| key.0 >= oldest);
        self.refused.retain(|key, _| key.0 >= oldest);
        self.sayings.retain(|saying| saying.round >= oldest);
        self.others.forget(oldest, ledger);
        self.charges.forget(oldest);
        self.surveyed.retain(|(round, _)| *round >= oldest);
    }
}

/// What all recomputed leaves of a contribution give.
fn recomputation(subject: &Subject, finding: Finding) -> Recomputation {
    Recomputation { round: subject.commit.round, freeze: subject.freeze, target: subject.author, finding }
}

/// Whether a record may change who inspects what.
fn moves_duties(body: &Body) -> bool {
    matches!(body, Body::Idle(_) | Body::Ban(_) | Body::Leave(_) | Body::Return(_))
}
