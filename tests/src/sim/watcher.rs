//! A verifier: the product's machine decides, the product's worker computes; here is how long that takes, and what fails.

use std::collections::BTreeSet;
use std::sync::Arc;

use muster_core::audit::Judgement;
use muster_core::coins::{CoinTerms, CoinTree, drawn_leaves};
use muster_core::ids::{MemberId, Round};
use muster_core::ledger::{Event as Happening, Ledger};
use muster_core::manifest::Manifest;
use muster_core::messages::audit::Finding;
use muster_core::messages::wire::{Notice, Request};
use muster_core::sign::Identity;
use muster_replica::{Brought, Exhibited};
use muster_roles::verifier::audits::{Conduct, Done, Honest, Message, Subject, Tally, Work, WorkKind};
use muster_roles::verifier::coins::Coins;
use muster_roles::verifier::parts::Seen;
use muster_roles::verifier::{
    Answer, HaltCause, Integers, LedgerUpdate, Verifier, VerifierEffect, VerifierInput, VerifierSetup,
};
use muster_store::journal::Journal;
use muster_verifier::Journaled;

use super::clock::Event;
use super::node::LEAF;
use super::plan::Temper;
use super::{Plan, Sim};

/// A verifier.
pub(super) struct Watcher {
    pub(super) identity: Arc<Identity>,
    pub(super) terms: CoinTerms,
    machine: Verifier,
    /// Whether it is in league with the cheats.
    pub(super) friend: bool,
    /// How reliable it is.
    temper: Temper,
    /// What its disk has.
    journal: Arc<Journal>,
    secret: [u8; 32],
    /// Records and notices that it has read.
    read: (usize, usize),
    woken: bool,
    /// When it looks at its timers.
    alarm: Option<u64>,
    /// Which of its processes runs: what an earlier one computed is lost.
    process: u32,
}

/// Audits as it should, and passes whatever it has found.
struct Accomplice;

impl Conduct for Accomplice {
    fn says(&self, _: Finding) -> Finding {
        Finding::Pass
    }

    fn weighs(&self, _: Judgement, _: MemberId) -> Judgement {
        Judgement::Undecided("it looks away".into())
    }
}

impl Watcher {
    pub(super) fn new(plan: &Plan, ledger: &Ledger, number: u16) -> Self {
        let identity = Arc::new(Identity::from_secret(&plan.secret(6, usize::from(number))));
        let (secret, seats) = (plan.secret(5, usize::from(number)), plan.players.len() as u16);
        // DUTY-7: coins of rounds past the last one draw rechecks.
        let rounds = plan.rounds + ledger.manifest().retention.contributions + 2;
        let tree = CoinTree::new(secret, Round(0), rounds, seats).expect("coins within their bounds");
        let journal = Arc::new(Journal::in_memory().expect("memory"));
        let friend = number < plan.friends;
        let reliable = usize::from(number.saturating_sub(plan.friends));
        let temper = plan.tempers.get(reliable).copied().filter(|_| !friend).unwrap_or_default();
        let terms = tree.terms();
        let machine = machine(ledger, identity.clone(), &journal, tree, friend);
        let (read, woken, alarm, process) = ((0, 0), false, None, 0);
        Self { identity, terms, machine, friend, temper, journal, secret, read, woken, alarm, process }
    }

    /// The steward's board is another one.
    pub(super) fn reread(&mut self) {
        self.read.1 = 0;
    }

    /// Whether it does all that it should, in time.
    pub(super) fn is_honest(&self) -> bool {
        !self.friend && self.temper == Temper::default()
    }

    /// What its process has found.
    pub(super) fn tally(&self) -> Tally {
        self.machine.tally()
    }

    /// Its process was killed and starts again: it reads everything once more.
    fn restart(&mut self, manifest: &Arc<Manifest>) {
        let CoinTerms { first_round, rounds, leaf_coins, .. } = self.terms;
        let tree = CoinTree::new(self.secret, first_round, rounds, leaf_coins).expect("as before");
        let empty = Ledger::new(manifest.clone());
        self.machine = machine(&empty, self.identity.clone(), &self.journal, tree, self.friend);
        self.process += 1;
        (self.read, self.alarm) = ((0, 0), None);
    }
}

/// A process that has read nothing yet.
fn machine(
    ledger: &Ledger,
    identity: Arc<Identity>,
    journal: &Arc<Journal>,
    tree: CoinTree,
    friend: bool,
) -> Verifier {
    Verifier::new(VerifierSetup {
        ledger,
        manifest: ledger.manifest().clone(),
        identity,
        coins: Coins::new(tree, Arc::new(Journaled::new(journal.clone()))),
        conduct: if friend { Arc::new(Accomplice) } else { Arc::new(Honest) },
        silences: Vec::new(),
        accusations: Vec::new(),
        kept: BTreeSet::new(),
    })
}

impl Sim {
    /// Something is new for every verifier.
    pub(super) fn wake_all(&mut self) {
        for number in 0..self.watchers.len() {
            if !std::mem::replace(&mut self.watchers[number].woken, true) {
                self.clock.after(5, 40, Event::Watch(number));
            }
        }
    }

    /// A verifier reads what is new.
    pub(super) fn watch(&mut self, number: usize) {
        let ledger = self.book.newest();
        let crashes = self.watchers[number].temper.crashes;
        let killed = crashes > 0 && self.clock.draw(1_000_000) < u64::from(crashes);
        let watcher = &mut self.watchers[number];
        if killed {
            watcher.restart(&self.manifest);
        }
        watcher.woken = false;
        let records = self.book.records()[watcher.read.0..].iter();
        let notices = self.board[watcher.read.1..].iter();
        let records = records.map(|record| Happening::Sealed(Box::new(record.clone())));
        let notices = notices.map(|notice| Happening::Notice(Box::new(notice.clone())));
        let events: Vec<Happening> = records.chain(notices).collect();
        watcher.read = (self.book.records().len(), self.board.len());
        let board = 1 + self.report.restarts as u64;
        let news = LedgerUpdate { ledger: &ledger, events: &events, whole: true, in_step: true, board };
        self.give(number, VerifierInput::News(news));
    }

    /// A verifier has computed something, unless it was killed meanwhile.
    pub(super) fn worked(&mut self, number: usize, process: u32, work: Box<Work>, done: Done) {
        if self.watchers[number].process == process {
            self.give(number, VerifierInput::Worked(work, done));
        }
    }

    /// A verifier looks at its timers.
    pub(super) fn alarm(&mut self, number: usize) {
        if self.watchers[number].alarm.is_some_and(|alarm| alarm <= self.clock.now()) {
            self.watchers[number].alarm = None;
            self.give(number, VerifierInput::Tick);
        }
    }

    /// Something reaches a verifier, and it does what follows.
    fn give(&mut self, number: usize, input: VerifierInput) {
        let (now, states) = (self.clock.now(), self.replica.states_at_hand().collect());
        let machine = &mut self.watchers[number].machine;
        machine.handle(now, VerifierInput::States(states));
        machine.handle(now, input);
        while let Some(effect) = self.watchers[number].machine.poll_effect() {
            if let Some(input) = self.watcher_does(number, effect) {
                self.watchers[number].machine.handle(now, input);
            }
        }
        let watcher = &mut self.watchers[number];
        if let Some(due) = watcher.machine.poll_timeout()
            && watcher.alarm.is_none_or(|alarm| due < alarm)
        {
            watcher.alarm = Some(due);
            self.clock.at(due, Event::Alarm(number));
        }
    }

    /// Performs an effect; what is there at once is the answer.
    fn watcher_does(&mut self, number: usize, effect: VerifierEffect) -> Option<VerifierInput<'static>> {
        match effect {
            VerifierEffect::Tell(message) => {
                self.say(number, &message);
                Some(VerifierInput::Told(message, Answer::Taken))
            }
            VerifierEffect::Compute(work, q) => {
                self.compute(number, work, q);
                None
            }
            VerifierEffect::Fetch(subject) => {
                let q = self.to_be_had(subject.commit.round, &subject.author, false);
                let lacking = || subject.sources.iter().map(|source| source.part).collect();
                let found = q.and_then(|q| self.packed(q)).ok_or_else(lacking);
                Some(VerifierInput::Fetched(subject.key(), found))
            }
            VerifierEffect::Look(drawn) => {
                let seen = if self.watchers[number].friend { Seen::Right } else { self.look_at(&drawn) };
                Some(VerifierInput::Looked(drawn, seen))
            }
            VerifierEffect::Doubt(drawn, evidence) => {
                let judgement = Ok(self.doubt(&drawn, &evidence));
                Some(VerifierInput::Judged { drawn, evidence, judgement })
            }
            // The one state that all share is at hand.
            VerifierEffect::KeepStates { .. }
            | VerifierEffect::SaveState
            | VerifierEffect::KeepEvidence(_) => None,
            VerifierEffect::Halt(HaltCause::Banned(_)) | VerifierEffect::End => None,
            VerifierEffect::Halt(cause) => panic!("seed {}: a verifier stops: {cause:?}", self.plan.seed),
        }
    }

    fn compute(&mut self, number: usize, work: Box<Work>, q: Integers) {
        let mut witness = self.witness(&work.subject, q);
        let done = self.worker.perform(&work, &mut witness);
        let leaves = match &work.kind {
            WorkKind::Leaves(drawn) => drawn.positions.len() as u64,
            WorkKind::Contribution => 1,
            WorkKind::Recheck(_) | WorkKind::SecondRecheck(..) | WorkKind::Opinion(_) => {
                u64::from(drawn_leaves(work.subject.commit.leaves, self.manifest.audit.leaves))
            }
            WorkKind::Everything | WorkKind::SecondOpinion(..) => u64::from(work.subject.commit.leaves),
        };
        let watcher = &self.watchers[number];
        let (process, slow) = (watcher.process, watcher.temper.slow.max(1));
        self.clock.after(LEAF * leaves * slow, 40, Event::Worked(number, process, work, Box::new(done)));
    }

    fn say(&mut self, number: usize, message: &Message) {
        let watcher = &self.watchers[number];
        match message {
            // Rounds wait for a verifier: whoever looks after the last one sees to it that it comes back.
            Message::Say(notice) if matches!(**notice, Notice::Return(_)) => {
                self.clock.after(5, 40, Event::notice(watcher.identity.id(), (**notice).clone()));
            }
            Message::Notice(_, notice) | Message::Say(notice) => {
                let (me, temper) = (watcher.identity.id(), watcher.temper);
                self.say_with(me, temper, 5, 40, (**notice).clone());
            }
            Message::Accuse(_) if watcher.friend => {}
            Message::Accuse(evidence) => {
                let accuser = watcher.identity.id();
                self.clock.after(5, 40, Event::Ask(accuser, Box::new(Request::Accuse((**evidence).clone()))));
            }
        }
    }

    fn witness(&self, subject: &Subject, q: Integers) -> Exhibited {
        let commit = &subject.commit;
        let states = self.replica.state_at(&commit.state);
        let q = q.map(|q| ((commit.round, subject.author), q));
        let brought = Brought { contributions: q.into_iter().collect(), ..Brought::default() };
        Exhibited::new(states.into_iter().collect(), self.dataset.clone(), &self.manifest, brought)
    }
}
