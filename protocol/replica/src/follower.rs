//! Keeping ledger and state in step with the steward, believing only what checks.

mod proofs;

use std::collections::VecDeque;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use muster_core::error::Reject;
use muster_core::ids::{Block, Digest, Height, Part, Round};
use muster_core::ledger::{Event, Ledger, Stage};
use muster_core::lock::lock;
use muster_core::messages::record::{Body, Outcome, Record};
use muster_core::messages::round::PartResult;
use muster_core::messages::wire::{
    BULK_BYTES, Follow, News, Notice, Request, Response, StateOffer, StateQuery,
};
use muster_core::sign::{Identity, Signed, Verified};
use muster_core::state::{State, StateRoots, Update, reals};
use muster_net::error::NetError;
use muster_net::swarm::Settings;
use muster_store::error::StoreError;
use muster_store::home::Home;
use muster_store::journal::Journal;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use self::proofs::{Shown, advise};
use crate::gossip::Gossiping;
use crate::hearsay::{Misbehaviour, SplitView};
use crate::peers::{Contact, PeerError, Peers};
use crate::replica::Replica;
use crate::results::{Results, WantedValues};
use crate::stopwatch::Phase;

/// Patience with a long poll: longer than the steward waits for news.
const POLL: Duration = Duration::from_secs(30);
/// How long an unreachable steward is tried again before the follower gives up.
const STEWARD_AWAY: Duration = Duration::from_secs(300);
/// How long it is away before others are asked where it went, and how long they may take.
const MOVED: Duration = Duration::from_secs(2);
const ASKING: Duration = Duration::from_secs(5);

/// Tries to fetch a part's values before its round is over, and the pause between two: the steward may have them later.
const FETCHES: u32 = 10;
const AGAIN: Duration = Duration::from_millis(500);

/// Why following ended.
#[derive(Debug)]
pub enum FollowError {
    /// The steward cannot be reached or does not answer.
    Steward(PeerError),
    /// The steward sealed something that breaks a rule: members halt. Where the proof is, if there is one.
    Misconduct(Reject, Option<PathBuf>),
    /// The steward shows others another ledger: members halt. Where the proof is, if there is one.
    SplitView(SplitView, Option<PathBuf>),
    /// The steward broke a promise: members halt.
    Convicted {
        /// What it did.
        why: String,
        /// Where the proof is, unless the disk did not take it.
        proof: Option<PathBuf>,
    },
    /// The sealed root is not the one that the sealed results give: the steward is wrong, or this machine.
    Diverged {
        /// Of which round.
        round: Round,
        /// What this replica computed.
        computed: Digest,
        /// What was sealed.
        sealed: Digest,
        /// Where the proof is, if there is one.
        proof: Option<PathBuf>,
    },
    /// This machine's disk.
    Store(StoreError),
    /// The initial state differs from the sealed one: another text, or a broken machine.
    Genesis,
}

impl fmt::Display for FollowError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Steward(error) => write!(f, "the steward: {error}"),
            Self::Misconduct(reject, proof) => {
                write!(f, "the steward sealed a record that breaks a rule, halting: {reject}")?;
                advise(f, proof.as_deref())
            }
            Self::SplitView(split, proof) => {
                write!(f, "{split}; halting")?;
                advise(f, proof.as_deref())
            }
            Self::Convicted { why, proof } => {
                write!(f, "the steward broke its word, halting: {why}")?;
                advise(f, proof.as_deref())
            }
            Self::Diverged { round, computed, sealed, proof } => {
                write!(f, "round {round} gives state {computed}, but {sealed} was sealed; halting")?;
                advise(f, proof.as_deref())
            }
            Self::Store(error) => error.fmt(f),
            Self::Genesis => write!(f, "the initial state computed here is not the sealed one; halting"),
        }
    }
}

impl std::error::Error for FollowError {}

impl From<PeerError> for FollowError {
    fn from(error: PeerError) -> Self {
        Self::Steward(error)
    }
}

/// A sealed step of the state that the replica has not taken yet.
#[derive(Clone, Copy)]
enum Pending {
    /// By a round's results to this state, in the record of this height.
    Outcome(Round, StateRoots, Height),
    /// Back to this state; rounds go on with this one.
    Rewind(Round, StateRoots),
}

/// A ledger and a replica that follow a steward.
pub struct Follower {
    peers: Peers,
    steward: Contact,
    ledger: Ledger,
    replica: Arc<Mutex<Replica>>,
    results: Results,
    journal: Option<Arc<Journal>>,
    proofs: Option<Home>,
    shown: Vec<Shown>,
    board: u64,
    notice: u64,
    pending: VecDeque<Pending>,
    gossip: Option<Arc<Gossiping>>,
    findings: Option<mpsc::Receiver<Misbehaviour>>,
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
        let results = Results::new(replica.layout().clone());
        let ledger = Ledger::new(replica.manifest().clone());
        let replica = Arc::new(Mutex::new(replica));
        let mut follower = Self {
            peers,
            steward,
            ledger,
            replica,
            results,
            journal: None,
            proofs: None,
            shown: Vec::new(),
            board: 0,
            notice: 0,
            pending: VecDeque::new(),
            gossip: None,
            findings: None,
        };
        if let Some(journal) = &journal {
            loop {
                let records = journal.records(follower.ledger.height(), 256).map_err(FollowError::Store)?;
                if records.is_empty() {
                    break;
                }
                for record in records {
                    follower.take(&record)?;
                }
            }
        }
        follower.journal = journal;
        Ok(follower)
    }

    /// Joins the run's swarm, beginning with the peers met the last time and those that the steward's contact names.
    /// Following works without.
    ///
    /// # Errors
    /// As [`Gossiping::start`].
    pub fn join_swarm(&mut self, identity: &Identity, mut settings: Settings) -> Result<(), NetError> {
        settings.bootstrap.extend(self.steward.swarm_addresses());
        let (gossip, findings) = Gossiping::start(identity, &self.ledger, &settings, self.journal.clone())?;
        (self.gossip, self.findings) = (Some(Arc::new(gossip)), Some(findings));
        Ok(())
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

    /// Whether the replica holds the newest sealed state.
    pub fn in_step(&self) -> bool {
        let replica = lock(&self.replica);
        self.pending.is_empty()
            && replica.round() == self.ledger.next_round()
            && self.ledger.stage() != Stage::Empty
    }

    /// Waits for news and takes it in. While the steward is away it keeps trying for some minutes.
    ///
    /// # Errors
    /// [`FollowError`]: nothing more can be followed.
    pub async fn step(&mut self) -> Result<Vec<Event>, FollowError> {
        let news = self.poll().await?;
        let mut events = Vec::new();
        for signed in &news.records {
            let record = self.take(signed)?;
            if let Some(journal) = &self.journal {
                journal.append(record.height, signed).map_err(FollowError::Store)?;
            }
            self.weigh_shown()?;
            self.spread(signed, &record)?;
            events.push(Event::Sealed(Box::new(record)));
        }
        for notice in news.notices.into_inner() {
            self.prefetch(&notice);
            events.push(Event::Notice(Box::new(notice)));
        }
        if self.ledger.height() >= news.newest {
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
            if away >= STEWARD_AWAY {
                return Err(error.into());
            }
            tracing::warn!("the steward does not answer ({error}); trying again");
            let pause = Duration::from_millis(300).max(away / 4).min(Duration::from_secs(5));
            tokio::time::sleep(pause).await;
            away += pause;
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
    fn spread(&self, signed: &Signed<Record>, record: &Verified<Record>) -> Result<(), FollowError> {
        let Some(gossip) = &self.gossip else { return Ok(()) };
        gossip.sealed(&self.ledger, signed, record).into_iter().try_for_each(|finding| self.act(finding))
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
        tokio::spawn(async move {
            if let Err(error) = peers.ask(&steward, &Request::Accuse(evidence)).await {
                tracing::warn!("the steward did not take the accusation: {error}");
            }
        });
        Ok(())
    }

    fn take(&mut self, signed: &Signed<Record>) -> Result<Verified<Record>, FollowError> {
        let record = match self.ledger.apply(signed) {
            Ok(record) => record,
            Err(reject) => {
                let proof = self.keep_proof(self.proof_of(signed).as_ref());
                return Err(FollowError::Misconduct(reject, proof));
            }
        };
        match &record.body {
            Body::Open(roots) if lock(&self.replica).round() == Round(0) => {
                let ours = lock(&self.replica).state().roots();
                if ours != *roots {
                    return Err(FollowError::Genesis);
                }
            }
            Body::Outcome(Outcome { round, state, .. }) => {
                self.pending.push_back(Pending::Outcome(*round, *state, record.height));
            }
            Body::Rewind(rewind) => {
                self.pending.push_back(Pending::Rewind(self.ledger.next_round(), rewind.state));
            }
            _ => {}
        }
        Ok(record)
    }

    /// Starts fetching a part's values before the outcome is sealed.
    fn prefetch(&self, notice: &Notice) {
        let Notice::Result(signed) = notice else { return };
        let Ok(result) = self.ledger.check_result(signed) else { return };
        let Some(wanted) = self.wanted(&result) else { return };
        let results = self.results.clone();
        let peers = self.peers.clone();
        let stopwatch = lock(&self.replica).stopwatch().clone();
        tokio::spawn(async move {
            for _ in 0..FETCHES {
                let begun = Instant::now();
                match results.fetch(&peers, &wanted).await {
                    Ok(()) => return stopwatch.add(Phase::Exchange, begun.elapsed()),
                    Err(error) => {
                        let PartResult { round, part, .. } = wanted.result;
                        tracing::debug!("part {part} of round {round} could not be fetched yet: {error}");
                        tokio::time::sleep(AGAIN).await;
                    }
                }
            }
        });
    }

    fn wanted(&self, result: &PartResult) -> Option<WantedValues> {
        let view = self.ledger.round(result.round)?;
        let holders = view.reducers(result.part, result.attempt);
        let mut wanted = WantedValues::of(&self.ledger, result.clone(), holders)?;
        wanted.holders.push(self.steward.clone());
        Some(wanted)
    }

    /// Applies what is pending, or fetches a state when that is not possible any more.
    async fn catch_up(&mut self, events: &mut Vec<Event>) -> Result<(), FollowError> {
        while let Some(next) = self.pending.front().copied() {
            let at = lock(&self.replica).round();
            let (round, sealed, height) = match next {
                Pending::Outcome(round, sealed, height) => (round, sealed, height),
                Pending::Rewind(round, sealed) if at < round => {
                    let gone = lock(&self.replica).rewind(&sealed.root(), round);
                    if gone || self.fetch_state().await? {
                        continue;
                    }
                    return Ok(());
                }
                Pending::Rewind(..) => {
                    self.pending.pop_front();
                    continue;
                }
            };
            if at > round {
                self.pending.pop_front();
                continue;
            }
            if at < round || !self.fetch_results(round).await {
                if !self.fetch_state().await? {
                    return Ok(());
                }
                continue;
            }
            let roots = self.apply(round).await;
            match roots {
                Some(roots) if roots == sealed => {
                    self.pending.pop_front();
                    events.push(Event::Applied(round, roots));
                }
                Some(roots) => {
                    let proof = self.prove_root(round, height);
                    return Err(FollowError::Diverged {
                        round,
                        computed: roots.root(),
                        sealed: sealed.root(),
                        proof,
                    });
                }
                None => return Ok(()),
            }
        }
        Ok(())
    }

    /// Fetches what is not there of a round's sealed results, all parts at once; whether all of it is.
    async fn fetch_results(&self, round: Round) -> bool {
        let Some(view) = self.ledger.round(round) else { return false };
        let mut tasks = JoinSet::new();
        for result in view.results().iter().flat_map(|results| results.iter().flatten()) {
            let Some(wanted) = self.wanted(result) else { return false };
            let (peers, results) = (self.peers.clone(), self.results.clone());
            tasks.spawn(async move {
                // It may be fetched ahead at the same time.
                let fetched = results.fetch(&peers, &wanted).await;
                let unavailable = |error: &PeerError| {
                    tracing::info!("part {} of round {round} is unavailable ({error})", wanted.result.part);
                };
                fetched.inspect_err(unavailable).is_ok()
            });
        }
        while let Some(done) = tasks.join_next().await {
            if !done.unwrap_or(false) {
                return false;
            }
        }
        true
    }

    async fn apply(&self, round: Round) -> Option<StateRoots> {
        let (replica, update) = (self.replica.clone(), self.update(round)?);
        tokio::task::spawn_blocking(move || lock(&replica).apply(&update)).await.ok()
    }

    /// The aggregate of a round, whose values are there.
    fn update(&self, round: Round) -> Option<Update> {
        let view = self.ledger.round(round)?;
        let plans = view.parts().iter().zip(view.results()?).enumerate();
        let parts: Vec<(Part, Vec<Block>, Digest)> = plans
            .filter_map(|(part, (plan, result))| {
                Some((Part(part as u16), plan.blocks.clone(), result.as_ref()?.digest))
            })
            .collect();
        self.results.update(round, &parts).ok()
    }

    /// Fetches the state that the steward offers; `false` when the ledger must move on first.
    async fn fetch_state(&mut self) -> Result<bool, FollowError> {
        let offer = match self.peers.ask(&self.steward, &Request::StateOffer).await {
            Ok(Response::State(offer)) => offer,
            Ok(_) => return Err(PeerError::Unexpected.into()),
            Err(error) => return later(error),
        };
        let sealed = match self.ledger.round(offer.round) {
            Some(view) => Some(*view.state()),
            None if offer.round == self.ledger.next_round() => Some(*self.ledger.state()),
            None => None,
        };
        if sealed != Some(offer.roots) || offer.round <= lock(&self.replica).round() {
            return Ok(false);
        }
        tracing::info!("fetching the state before round {}", offer.round);
        let state = match self.download(&offer).await {
            Ok(state) => state,
            Err(error) => return later(error),
        };
        // STATE-4: nothing of a fetched state is used before all its roots are the sealed ones.
        if state.roots() != offer.roots {
            return Err(PeerError::Reject(Reject::BadProof("the offered state")).into());
        }
        lock(&self.replica).replace(state, offer.round);
        Ok(true)
    }

    async fn download(&self, offer: &StateOffer) -> Result<State, PeerError> {
        let length = self.ledger.layout().parameters();
        let mut vectors: [Vec<f32>; 3] = Default::default();
        for (vector, values) in (0u8..).zip(&mut vectors) {
            while values.len() < length {
                let count = (length - values.len()).min(BULK_BYTES / 4) as u32;
                let first = values.len() as u64;
                let query = StateQuery { round: offer.round, root: offer.roots.root(), vector, first, count };
                let Response::Bytes(bytes) = self.peers.ask(&self.steward, &Request::State(query)).await?
                else {
                    return Err(PeerError::Unexpected);
                };
                if bytes.len() != count as usize * 4 {
                    return Err(PeerError::Unexpected);
                }
                values.extend(reals(&bytes));
            }
        }
        let [parameters, first, second] = vectors;
        Ok(State {
            step: offer.roots.step,
            beta_powers: offer.roots.beta_powers.map(f64::from_bits),
            exponents: offer.exponents.to_vec(),
            parameters,
            first,
            second,
        })
    }
}

/// A steward that is away, or that offers this state no more, is asked again with the next news.
fn later(error: PeerError) -> Result<bool, FollowError> {
    match error {
        PeerError::Net(_) | PeerError::Refused(_) | PeerError::Unreachable => {
            tracing::info!("the state is not to be had now ({error}); trying again");
            Ok(false)
        }
        error => Err(error.into()),
    }
}

/// The next finding; waits for ever when there will be none.
async fn heard(findings: &mut Option<mpsc::Receiver<Misbehaviour>>) -> Misbehaviour {
    if let Some(receiver) = findings
        && let Some(finding) = receiver.recv().await
    {
        return finding;
    }
    std::future::pending().await
}
