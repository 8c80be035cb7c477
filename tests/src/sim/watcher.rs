//! A verifier: the product's audits and worker, and how long they take.

use std::sync::Arc;

use muster_core::audit::Judgement;
use muster_core::coins::{CoinTerms, CoinTree, drawn_leaves};
use muster_core::ids::{Digest, MemberId, Round};
use muster_core::ledger::Ledger;
use muster_core::manifest::Manifest;
use muster_core::messages::audit::Finding;
use muster_core::messages::wire::Request;
use muster_core::sign::Identity;
use muster_replica::{Brought, Event as News, Exhibited};
use muster_roles::verifier::audits::{Audits, Conduct, Done, Message, Subject, Work, WorkKind};
use muster_roles::verifier::coins::Coins;
use muster_roles::verifier::parts::Parts;
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
    pub(super) audits: Audits,
    pub(super) parts: Parts,
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
    busy: bool,
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
    pub(super) fn new(plan: &Plan, manifest: &Arc<Manifest>, number: u16) -> Self {
        let identity = Arc::new(Identity::from_secret(&plan.secret(6, usize::from(number))));
        let (secret, seats) = (plan.secret(5, usize::from(number)), plan.players.len() as u16);
        // DUTY-7: coins of rounds past the last one draw rechecks.
        let rounds = plan.rounds + manifest.retention.contributions + 2;
        let tree = CoinTree::new(secret, Round(0), rounds, seats).expect("coins within their bounds");
        let journal = Arc::new(Journal::in_memory().expect("memory"));
        let friend = number < plan.friends;
        let reliable = usize::from(number.saturating_sub(plan.friends));
        let temper = plan.tempers.get(reliable).copied().filter(|_| !friend).unwrap_or_default();
        let terms = tree.terms();
        let audits = audits(manifest, (&identity, &journal), tree, friend);
        let parts = Parts::default();
        let (read, woken, busy) = ((0, 0), false, false);
        Self { identity, terms, audits, parts, friend, temper, journal, secret, read, woken, busy }
    }

    /// The steward's board is another one.
    pub(super) fn reread(&mut self, ledger: &Ledger) {
        self.read.1 = 0;
        self.audits.board_changed(ledger);
    }

    /// Whether it does all that it should, in time.
    pub(super) fn is_honest(&self) -> bool {
        !self.friend && self.temper == Temper::default()
    }

    /// Its process was killed and starts again: it reads everything once more.
    fn restart(&mut self, manifest: &Arc<Manifest>) {
        let CoinTerms { first_round, rounds, leaf_coins, .. } = self.terms;
        let tree = CoinTree::new(self.secret, first_round, rounds, leaf_coins).expect("as before");
        self.audits = audits(manifest, (&self.identity, &self.journal), tree, self.friend);
        (self.parts, self.read) = (Parts::default(), (0, 0));
    }
}

fn audits(
    manifest: &Arc<Manifest>,
    (identity, journal): (&Arc<Identity>, &Arc<Journal>),
    tree: CoinTree,
    friend: bool,
) -> Audits {
    let audits = Audits::new(
        manifest.clone(),
        identity.clone(),
        Coins::new(tree, Arc::new(Journaled::new(journal.clone()))),
    );
    if friend { audits.conducted(Arc::new(Accomplice)) } else { audits }
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
        let records = records.map(|record| News::Sealed(Box::new(record.clone())));
        let notices = notices.map(|notice| News::Notice(Box::new(notice.clone())));
        let news: Vec<News> = records.chain(notices).collect();
        watcher.read = (self.book.records().len(), self.board.len());
        watcher.audits.take(&ledger, &news).expect("a journal in memory");
        if !watcher.friend {
            self.look_at_blocks(number);
        }
        self.go_on(number);
    }

    /// A verifier has computed something.
    pub(super) fn worked(&mut self, number: usize, work: &Work, done: Done) {
        let watcher = &mut self.watchers[number];
        watcher.busy = false;
        if let Err(stop) = watcher.audits.worked(work, done) {
            panic!("seed {}: a verifier stops: {stop:?}", self.plan.seed);
        }
        self.go_on(number);
    }

    /// A verifier says what it has to say, and begins what it has to compute.
    fn go_on(&mut self, number: usize) {
        let have = |root: &Digest| self.replica.state_at(root).is_some();
        let mut said = Vec::new();
        let watcher = &mut self.watchers[number];
        while let Some(message) = watcher.audits.next_message(&have) {
            watcher.audits.told(&message);
            said.push(message);
        }
        let work = if watcher.busy { None } else { watcher.audits.next_work(&have) };
        for message in said {
            self.say(number, message);
        }
        let Some(work) = work else { return };
        let mut witness = self.witness(&work.subject);
        let done = self.worker.perform(&work, &mut witness);
        let leaves = match &work.kind {
            WorkKind::Leaves(drawn) => drawn.positions.len() as u64,
            WorkKind::Contribution => 1,
            WorkKind::Recheck(_) | WorkKind::SecondRecheck(..) | WorkKind::Opinion(_) => {
                u64::from(drawn_leaves(work.subject.commit.leaves, self.manifest.audit.leaves))
            }
            WorkKind::Everything | WorkKind::SecondOpinion(..) => u64::from(work.subject.commit.leaves),
        };
        let watcher = &mut self.watchers[number];
        watcher.busy = true;
        self.clock.after(
            LEAF * leaves * watcher.temper.slow.max(1),
            40,
            Event::Worked(number, work, Box::new(done)),
        );
    }

    fn say(&mut self, number: usize, message: Message) {
        let watcher = &self.watchers[number];
        match message {
            Message::Notice(_, notice) | Message::Say(notice) => {
                let (me, temper) = (watcher.identity.id(), watcher.temper);
                self.say_with(me, temper, (5, 40), *notice);
            }
            Message::Accuse(_) if watcher.friend => {}
            Message::Accuse(evidence) => {
                let accuser = watcher.identity.id();
                self.clock.after(5, 40, Event::Ask(accuser, Box::new(Request::Accuse(*evidence))));
            }
        }
    }

    fn witness(&self, subject: &Subject) -> Exhibited {
        let commit = &subject.commit;
        let states = self.replica.state_at(&commit.state).map(|state| (commit.state, state));
        let key = (commit.round, subject.author);
        let q = self.to_be_had(&key, false).map(|q| (key, Vec::clone(q)));
        let brought = Brought { contributions: q.into_iter().collect(), ..Brought::default() };
        Exhibited::new(states.into_iter().collect(), self.dataset.clone(), &self.manifest, brought)
    }
}
