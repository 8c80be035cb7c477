//! Keeping ledger and state in step with the steward, believing only what checks.

mod catch_up;
mod error;
mod fetch;
mod prefetches;
mod proofs;
mod row_holders;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use muster_core::codec::encode;
use muster_core::error::Misuse;
use muster_core::ids::{Height, MemberId, Round};
use muster_core::ledger::{Event, Ledger, RoundView, Stage};
use muster_core::lock::lock;
use muster_core::messages::record::{Body, Outcome, Record};
use muster_core::messages::wire::{Follow, News, Notice, Request, Response};
use muster_core::sign::{Identity, Signed, Verified};
use muster_net::error::NetError;
use muster_net::swarm::Settings;
use muster_store::home::Home;
use muster_store::journal::Journal;
use tokio::sync::mpsc;

use self::catch_up::Pending;
pub use self::error::FollowError;
use self::prefetches::Prefetches;
use self::proofs::Shown;
use self::row_holders::RowHolders;
use crate::allowance::Allowance;
use crate::disk;
use crate::gossip::Gossiping;
use crate::hearsay::Misbehaviour;
use crate::peers::{Contact, PeerError, Peers, contact};
use crate::replica::{Keeps, Replica};
use crate::results::Results;
use crate::text::TextHolders;

/// Patience with a long poll: longer than the steward waits for news.
const POLL: Duration = Duration::from_secs(30);
/// How long an unreachable steward is tried again before the follower gives up.
const STEWARD_AWAY: Duration = Duration::from_secs(300);
/// How long it is away before others are asked where it went, and how long they may take.
const MOVED: Duration = Duration::from_secs(2);
const ASKING: Duration = Duration::from_secs(5);

/// The pause before a steward is tried again that has been away for as long; none where it is given up.
pub fn before_next_try(away: Duration) -> Option<Duration> {
    // Longer each time: not all members dial a steward all the time that is only restarting.
    let pause = Duration::from_millis(300).max(away / 4).min(Duration::from_secs(5));
    Some(pause).filter(|_| away < STEWARD_AWAY)
}

/// Is told each public notice as it is heard, to show it to people.
pub type NoticeListener = Box<dyn Fn(&Notice) + Send + Sync>;

/// A ledger and a replica that follow a steward.
pub struct Follower {
    peers: Peers,
    steward: Contact,
    ledger: Ledger,
    replica: Arc<Mutex<Replica>>,
    results: Results,
    /// The node whose row the replica keeps; none where it keeps all of them.
    owner: Option<MemberId>,
    journal: Option<Arc<Journal>>,
    /// What the disk may take, and what is written between two looks beside records.
    allowance: Option<(Allowance, u64)>,
    proofs: Option<Home>,
    shown: Vec<Shown>,
    board: u64,
    notice: u64,
    /// The height of the run when the steward last answered.
    newest: Height,
    /// Whether that is long ago: so much was taken in since that rounds have gone on.
    outpaced: bool,
    pending: VecDeque<Pending>,
    prefetches: Prefetches,
    row_holders: RowHolders,
    gossip: Option<Arc<Gossiping>>,
    findings: Option<mpsc::Receiver<Misbehaviour>>,
    listener: Option<NoticeListener>,
    /// Who gives text, and whom not to ask: this member.
    text: Option<(TextHolders, MemberId)>,
}

impl Follower {
    /// From a replica at genesis and the records that the journal already holds.
    ///
    /// # Errors
    /// [`FollowError::Misconduct`] when the journal breaks a rule, [`FollowError::Store`] when it cannot be read.
    pub fn new(
        peers: Peers,
        steward: Contact,
        replica: Replica,
        journal: Option<Arc<Journal>>,
    ) -> Result<Self, FollowError> {
        peers.behind(steward.member);
        let results = Results::new(replica.layout().clone());
        let ledger = Ledger::new(replica.manifest().clone());
        let replica = Arc::new(Mutex::new(replica));
        let mut follower = Self {
            peers,
            steward,
            ledger,
            replica,
            results,
            owner: None,
            journal: None,
            allowance: None,
            proofs: None,
            shown: Vec::new(),
            board: 0,
            notice: 0,
            newest: Height::default(),
            outpaced: false,
            pending: VecDeque::new(),
            prefetches: Prefetches::default(),
            row_holders: RowHolders::default(),
            gossip: None,
            findings: None,
            listener: None,
            text: None,
        };
        if let Some(journal) = &journal {
            loop {
                let records = journal.records(follower.ledger.height(), 256).map_err(FollowError::Store)?;
                if records.is_empty() {
                    break;
                }
                for record in records {
                    // Checked like news: a journal that was damaged or exchanged is found out here.
                    follower.take(&record)?;
                }
            }
        }
        follower.journal = journal;
        follower.peers.know_relays(&follower.ledger);
        Ok(follower)
    }

    /// Keeps only what this node holds, once rows were dealt: the trunk and its row.
    pub fn hold_row_of(&mut self, node: MemberId) {
        self.owner = Some(node);
        self.keep_row();
    }

    /// From now on text is asked of the members that the ledger names, too; but not of this one.
    pub fn tell_text(&mut self, holders: TextHolders, me: MemberId) {
        holders.know(&self.ledger, &me);
        self.text = Some((holders, me));
    }

    fn keep_row(&self) {
        let Some(owner) = self.owner.filter(|_| self.ledger.has_dealt_rows()) else {
            return lock(&self.replica).keep(Keeps::Everything);
        };
        let holding = self.ledger.member(&owner).and_then(|member| member.holding);
        lock(&self.replica).keep(Keeps::Path(holding.map(|holding| holding.row)));
    }

    /// LIMIT-3: ends before it would write records beyond an allowance, where `growth` bytes of others may come as well.
    pub fn keep_within(&mut self, allowance: Allowance, growth: u64) {
        self.allowance = allowance.most().map(|_| (allowance, growth));
    }

    /// LIMIT-3: whether the records of an answer may be written, also while it catches up: a ledger that is made beforehand
    /// comes as fast as the line carries it.
    fn check_room(&self, records: &[Signed<Record>]) -> Result<(), Misuse> {
        let Some((allowance, growth)) = self.allowance.as_ref().filter(|_| !records.is_empty()) else {
            return Ok(());
        };
        let bytes: u64 = records.iter().map(|record| encode(record).len() as u64).sum();
        let records = bytes.saturating_mul(disk::PAGES);
        allowance.check(growth.saturating_add(records)).map(drop)
    }

    /// Joins the run's swarm, beginning with the peers met the last time and those that the steward's contact names.
    /// Following works without.
    ///
    /// # Errors
    /// As [`Gossiping::start`].
    pub fn join_swarm(&mut self, identity: &Identity, mut settings: Settings) -> Result<(), NetError> {
        // The contact came with the invitation: a newcomer has met nobody yet.
        settings.bootstrap.extend(self.steward.swarm_addresses());
        let (gossip, findings) = Gossiping::start(identity, &self.ledger, &settings, self.journal.clone())?;
        (self.gossip, self.findings) = (Some(Arc::new(gossip)), Some(findings));
        Ok(())
    }

    /// Tells somebody each public notice as it is heard.
    pub fn tell_notices(&mut self, listener: NoticeListener) {
        self.listener = Some(listener);
    }

    /// The swarm, if it was joined.
    pub fn gossip(&self) -> Option<&Arc<Gossiping>> {
        self.gossip.as_ref()
    }

    /// The ledger so far.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// The channels.
    pub fn peers(&self) -> &Peers {
        &self.peers
    }

    /// The steward.
    pub fn steward(&self) -> &Contact {
        &self.steward
    }

    /// Reduced blocks, to serve.
    pub fn results(&self) -> &Results {
        &self.results
    }

    /// The steward's board that the notices came from; another number is a new board, and 0 none yet.
    pub fn board(&self) -> u64 {
        self.board
    }

    /// The replica.
    pub fn replica(&self) -> &Arc<Mutex<Replica>> {
        &self.replica
    }

    /// Whether the replica holds the newest sealed state, as far as the steward said just now.
    pub fn in_step(&self) -> bool {
        let replica = lock(&self.replica);
        self.pending.is_empty()
            && !self.outpaced
            && replica.round() == self.ledger.next_round()
            && self.ledger.stage() != Stage::Empty
    }

    /// Whether the replica has every shard that it is to hold.
    pub fn is_complete(&self) -> bool {
        lock(&self.replica).is_complete()
    }

    /// Whether every record is here that the steward had when it last answered.
    pub fn is_current(&self) -> bool {
        self.ledger.height() >= self.newest
    }

    /// Waits for news and takes it in. While the steward is away it keeps trying for some minutes.
    ///
    /// # Errors
    /// [`FollowError`]: nothing more can be followed.
    pub async fn step(&mut self) -> Result<Vec<Event>, FollowError> {
        let news = self.poll().await?;
        let mut events = Vec::new();
        self.check_room(&news.records).map_err(|Misuse(why)| FollowError::Room(why))?;
        let (taken, broken) = self.take_all(&news.records);
        // Also before one that breaks a rule: others must hear of what a steward shows here.
        for (signed, record) in news.records.iter().zip(taken) {
            self.weigh_shown()?;
            self.spread(signed, &record, news.newest)?;
            events.push(Event::Sealed(Box::new(record)));
        }
        broken?;
        if !events.is_empty() {
            self.peers.know_relays(&self.ledger);
        }
        for notice in news.notices.into_inner() {
            self.prefetch(&notice);
            if let Some(listener) = &self.listener {
                listener(&notice);
            }
            events.push(Event::Notice(Box::new(notice)));
        }
        // Behind by many records, states in between would be computed, or fetched, for nothing.
        (self.newest, self.outpaced) = (news.newest, false);
        if self.is_current() {
            self.catch_up(&mut events).await?;
        }
        Ok(events)
    }

    async fn poll(&mut self) -> Result<News, FollowError> {
        let mut away = Duration::ZERO;
        loop {
            let request = Request::Follow(Follow {
                height: self.ledger.height(),
                board: self.board,
                notice: self.notice,
            });
            let answer = tokio::select! {
                answer = self.peers.poll(&self.steward, &request, POLL) => answer,
                finding = heard(&mut self.findings) => {
                    self.act(finding)?;
                    continue;
                }
            };
            let error = match answer {
                Ok(Response::News(news)) => {
                    self.board = news.board;
                    self.notice = news.first_notice.saturating_add(news.notices.len() as u64);
                    return Ok(news);
                }
                Ok(_) => PeerError::Unexpected,
                Err(error) => error,
            };
            let Some(pause) = before_next_try(away) else { return Err(error.into()) };
            // Once while it is away: it is tried many times a minute.
            if away.is_zero() {
                tracing::warn!("the steward does not answer ({error}); trying again until it does");
            }
            tokio::time::sleep(pause).await;
            away += pause;
            // A short break is a restart as a rule; the swarm is asked only afterwards.
            if away >= MOVED {
                self.look_for_steward().await;
            }
        }
    }

    /// Asks the swarm where the steward can be dialled now.
    async fn look_for_steward(&mut self) {
        let Some(gossip) = &self.gossip else { return };
        let Some(addresses) = gossip.find(self.steward.member, ASKING).await else { return };
        if !addresses.is_empty() && addresses != self.steward.addresses {
            tracing::info!("the steward is now at {}", addresses.join(", "));
            self.steward.addresses = addresses;
            self.peers.moved(self.steward.clone());
        }
    }

    /// Spreads a record that the ledger has taken, and compares it with what was heard.
    fn spread(
        &self,
        signed: &Signed<Record>,
        record: &Verified<Record>,
        newest: Height,
    ) -> Result<(), FollowError> {
        let Some(gossip) = &self.gossip else { return Ok(()) };
        gossip
            .sealed(&self.ledger, signed, record, newest)
            .into_iter()
            .try_for_each(|finding| self.act(finding))
    }

    /// Halts on a steward that shows two ledgers; accuses a member that committed twice.
    fn act(&self, finding: Misbehaviour) -> Result<(), FollowError> {
        let evidence = match finding {
            Misbehaviour::SplitView(split) => {
                let evidence = self.gossip.as_ref().and_then(|gossip| gossip.proof(&split));
                return Err(FollowError::SplitView(split, self.keep_proof(evidence.as_ref())));
            }
            Misbehaviour::Equivocation(evidence) => evidence,
        };
        tracing::warn!("a member committed twice in one round; telling the steward");
        let (peers, steward) = (self.peers.clone(), self.steward.clone());
        // Beside following: the steward may be slow to take it, and rounds go on.
        tokio::spawn(async move {
            if let Err(error) = peers.ask(&steward, &Request::Accuse(evidence)).await {
                tracing::warn!("the steward did not take the accusation: {error}");
            }
        });
        Ok(())
    }

    /// Takes in records and writes them down: once the ledger has taken them, so that the journal never holds a record that breaks
    /// a rule, and all at once, since a disk may take longer for each write than the ledger for hundreds of records. Gives those
    /// before the first that breaks a rule, and what that is.
    fn take_all(&mut self, records: &[Signed<Record>]) -> (Vec<Verified<Record>>, Result<(), FollowError>) {
        let mut taken = Vec::new();
        let mut broken =
            records.iter().try_for_each(|signed| self.take(signed).map(|record| taken.push(record)));
        let written = match (&self.journal, taken.first()) {
            (Some(journal), Some(first)) => journal.append_all(first.height, &records[..taken.len()]),
            _ => Ok(()),
        };
        // AUDIT-13: kept before halting, so that this member does not follow again after a restart. Another seal of its height may
        // have come just before it, and is in the journal by now.
        if let Err(FollowError::Misconduct(_, proof)) = &mut broken {
            *proof = self.keep_proof(self.proof_of(&records[taken.len()]).as_ref());
        }
        if written.is_err() {
            // Nothing is shown of what a crash would undo.
            taken.clear();
        }
        (taken, broken.and(written.map_err(FollowError::Store)))
    }

    fn take(&mut self, signed: &Signed<Record>) -> Result<Verified<Record>, FollowError> {
        let record = match self.ledger.apply(signed) {
            Ok(record) => record,
            Err(reject) => return Err(FollowError::Misconduct(reject, None)),
        };
        self.keep_row();
        match &record.body {
            Body::Open(roots) if lock(&self.replica).round() == Round(0) => {
                let ours = lock(&self.replica).roots().clone();
                if ours != *roots {
                    return Err(FollowError::Genesis);
                }
            }
            Body::Outcome(Outcome { round, state, .. }) => {
                let rounds = self.ledger.rounds().map(RoundView::round);
                self.results.need(rounds.filter(|round| self.ledger.waits(*round)));
                // The results of a round that is forgotten are applied no more: whoever is so far behind takes a whole state.
                let ledger = &self.ledger;
                self.pending.retain(|step| step.round().is_none_or(|round| ledger.round(round).is_some()));
                self.pending.push_back(Pending::Outcome(*round, state.clone(), record.height));
            }
            // CHAN-24: the steward has found it there.
            Body::Return(back) => {
                contact(&self.ledger, &back.claimed_signer()).inspect(|contact| self.peers.returned(contact));
            }
            Body::Freeze(_) => {
                self.text.iter().for_each(|(holders, me)| holders.know(&self.ledger, me));
            }
            Body::Rewind(rewind) => {
                self.pending.push_back(Pending::Rewind(self.ledger.next_round(), rewind.state.clone()));
            }
            _ => {}
        }
        Ok(record)
    }
}

/// The next finding; pending without end where there is no gossip.
async fn heard(findings: &mut Option<mpsc::Receiver<Misbehaviour>>) -> Misbehaviour {
    if let Some(receiver) = findings
        && let Some(finding) = receiver.recv().await
    {
        return finding;
    }
    std::future::pending().await
}
