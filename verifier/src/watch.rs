//! `watch`: follows the run and audits it until it closes.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use muster_compute::Machine;
use muster_core::ids::{Digest, Round};
use muster_core::ledger::{Ledger, Stage, Standing};
use muster_core::limits;
use muster_core::manifest::Profile;
use muster_core::messages::enrol::Return;
use muster_core::messages::record::{Ban, Body};
use muster_core::messages::wire::{Notice, Request};
use muster_core::state::State;
use muster_net::swarm::Settings;
use muster_replica::archive::mean_loss;
use muster_replica::{
    Brought, Contact, Event, Exhibited, Follower, PeerError, Replica, Results, evidence_words, keep_evidence,
};
use muster_store::journal::Journal;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tracing::{debug, info, warn};

use crate::audits::{Audits, Conduct, Done, Message, Stop, Subject, Tally, Work, WorkKind};
use crate::coins::Coins;
use crate::enroll;
use crate::failure::{self, Failure};
use crate::parts::{self, Drawn, Parts, Seen};
use crate::session::{Session, Target, optional_file};
use crate::spent::Spent;
use crate::worker::Worker;

/// How long an accusation is left alone before it is repeated.
const REMINDER: Duration = Duration::from_secs(20);
/// Rounds after which the whole state is written down again, fewer than those whose results are kept. A process that was
/// killed goes on from there, by the results that others still have, or fetches the state; one that finds a wrong root has
/// the state before it from there.
const STATE_ROUNDS: u32 = 4;
/// Pause after the steward could not be reached.
const PAUSE: Duration = Duration::from_secs(1);

/// How to audit.
pub struct Options {
    /// The directory that `enroll` made.
    pub directory: PathBuf,
    /// What computes, the first time.
    pub machine: Machine,
    /// Where to gossip; none to go without.
    pub gossip: Option<Settings>,
    /// From what is found to what is said.
    pub conduct: Arc<dyn Conduct>,
}

/// How watching ended.
pub enum Ended {
    /// The run is over.
    Closed(Tally),
    /// Somebody pressed Ctrl-C.
    Interrupted,
}

/// Audits until the run closes or somebody presses Ctrl-C; a second Ctrl-C does not wait for the work under way.
///
/// # Errors
/// [`Failure`]; negative when the steward breaks a rule.
pub async fn watch(options: Options) -> Result<Ended, Failure> {
    let (watcher, mut follower, worker) = open(&options).await?;
    let (following, telling, working) = (watcher.follow(&mut follower), watcher.tell(), watcher.work(worker));
    // Who lets one wait for an answer holds up as many looks as it lets wait, not all.
    let inspecting = async { tokio::try_join!(watcher.inspect(), watcher.inspect(), watcher.inspect()) };
    tokio::pin!(following, telling, working, inspecting);
    tokio::select! {
        ended = &mut following => ended?,
        failed = &mut telling => failed?,
        failed = &mut working => failed?,
        failed = &mut inspecting => drop(failed?),
        _ = tokio::signal::ctrl_c() => {
            info!("finishing the work under way, then leaving; Ctrl-C again leaves at once");
            watcher.stop();
            let finished = async { tokio::join!(working, telling) };
            tokio::select! {
                (worked, told) = finished => worked.and(told)?,
                _ = tokio::signal::ctrl_c() => {}
            }
            // No state is written down here: one whose root was not yet compared would be believed the next time.
            return Ok(Ended::Interrupted);
        }
    }
    watcher.save_state().await?;
    watcher.write_result()?;
    let tally = lock(&watcher.audits).tally();
    Ok(Ended::Closed(tally))
}

struct Watcher {
    session: Session,
    audits: Mutex<Audits>,
    replica: Arc<Mutex<Replica>>,
    /// Parameters that an earlier process of this directory was computing on.
    states: BTreeMap<Digest, Arc<State>>,
    /// Rounds whose parameters are on the disk.
    kept: Mutex<BTreeSet<Round>>,
    /// Something may be to tell.
    tell: Notify,
    /// Something may be to compute.
    work: Notify,
    /// Drawn blocks of aggregated parts.
    parts: Mutex<Parts>,
    /// Some may have been drawn.
    drawn: Notify,
    /// The values that were applied.
    results: Results,
    spent: Mutex<Spent>,
    /// Whether the board was read to its end once: what is on it need not be said again.
    caught_up: AtomicBool,
    stopping: AtomicBool,
}

async fn open(options: &Options) -> Result<(Watcher, Follower, Worker), Failure> {
    let directory = &options.directory;
    let place = directory.display();
    if !directory.exists() {
        return Err(Failure::Usage(format!(
            "{place} does not exist: run `muster-verifier enroll INVITATION --data-dir {place}` first"
        )));
    }
    let target = target(options)?;
    let session = Session::open(directory, target).await?;
    let coins = enroll::coins(&session.home)?;
    let journal = Arc::new(Journal::open(&session.home)?);
    let (manifest, machine) = (session.manifest.clone(), options.machine);
    let worker = tokio::task::spawn_blocking(move || Worker::new(manifest, &machine)).await;
    let worker =
        worker.map_err(|error| Failure::Environment(error.to_string()))?.map_err(failure::arithmetic)?;
    let follower = session.follower(journal.clone(), machine.threads, options.gossip.clone()).await?;
    let coins = Coins::new(coins, journal.clone());
    let audits = Audits::new(session.manifest.clone(), session.identity.clone(), coins);
    let mut audits = audits.conducted(options.conduct.clone());
    recall(&session, &journal, &follower, &mut audits)?;
    let (mut states, mut kept) = (BTreeMap::new(), BTreeSet::new());
    for round in session.home.parameters()? {
        if let Ok((state, roots)) = session.home.load_parameters(round) {
            states.insert(roots.root(), Arc::new(state));
            kept.insert(round);
        }
    }
    let watcher = Watcher {
        audits: Mutex::new(audits),
        replica: follower.replica().clone(),
        states,
        kept: Mutex::new(kept),
        session,
        tell: Notify::new(),
        work: Notify::new(),
        parts: Mutex::default(),
        spent: Mutex::default(),
        drawn: Notify::new(),
        results: follower.results().clone(),
        caught_up: AtomicBool::new(false),
        stopping: AtomicBool::new(false),
    };
    Ok((watcher, follower, worker))
}

fn target(options: &Options) -> Result<Target, Failure> {
    let place = options.directory.display();
    let home = muster_store::home::Home::open(&options.directory)?;
    let line = optional_file(&home, enroll::TICKET)?.and_then(|bytes| String::from_utf8(bytes).ok());
    let unknown = || {
        Failure::Usage(format!(
            "{place} is not enrolled: run `muster-verifier enroll INVITATION --data-dir {place}` first"
        ))
    };
    Target::parse(&line.ok_or_else(unknown)?)
        .map_err(|misuse| Failure::Environment(format!("{place}/{}: {misuse}", enroll::TICKET)))
}

/// What an earlier process of this directory was about: silences that the journal holds, accusations that it made.
fn recall(
    session: &Session,
    journal: &Journal,
    follower: &Follower,
    audits: &mut Audits,
) -> Result<(), Failure> {
    let ledger = follower.ledger();
    let (mut height, mut sealed) = (muster_core::ids::Height(0), BTreeSet::new());
    loop {
        let records = journal.records(height, limits::PULL_RECORDS)?;
        for signed in &records {
            height = height.next();
            match signed.verify(ledger.run()).map(|record| record.body.clone()) {
                Ok(body @ Body::Silence(_)) => audits.record(ledger, &body),
                Ok(Body::Ban(ban)) => drop(sealed.insert(ban.evidence)),
                _ => {}
            }
        }
        if records.is_empty() {
            break;
        }
    }
    // What a sealed ban names is the steward's word, whomever it is about: it is kept to be judged, not to accuse by.
    for digest in session.home.evidence()?.into_iter().filter(|digest| !sealed.contains(digest)) {
        audits.accuse(ledger, Box::new(session.home.load_evidence(&digest)?));
    }
    Ok(())
}

impl Watcher {
    async fn follow(&self, follower: &mut Follower) -> Result<(), Failure> {
        let mut board = 0;
        loop {
            let events = follower.step().await?;
            let ledger = follower.ledger();
            {
                let mut audits = lock(&self.audits);
                if board != 0 && board != follower.board() {
                    info!("the steward was restarted; open audits are asked again");
                    audits.board_changed();
                }
                audits.take(ledger, &events)?;
                let me = self.session.identity.id();
                lock(&self.parts).survey(ledger, &me, |round| audits.node_coin(round));
            }
            self.drawn.notify_one();
            board = follower.board();
            self.keep_states(ledger).await?;
            self.applied(follower, &events).await?;
            self.keep_evidence(&events).await?;
            self.stand(follower).await?;
            if is_whole(&events) && !self.caught_up.swap(true, Ordering::Relaxed) {
                let me = self.session.identity.id();
                if ledger.member(&me).is_none() {
                    return Err(Failure::Usage(format!(
                        "{me} is no member of this run: run `muster-verifier enroll` again"
                    )));
                }
                info!("watching run {} as verifier {me}", ledger.run());
            }
            self.tell.notify_one();
            self.work.notify_one();
            if ledger.stage() == Stage::Closed {
                return Ok(());
            }
        }
    }

    /// Has on the disk what open audits compute on, and nothing else of it. Which are open is known once the news are read
    /// to their end.
    async fn keep_states(&self, ledger: &Ledger) -> Result<(), Failure> {
        if !self.caught_up.load(Ordering::Relaxed) {
            return Ok(());
        }
        let wanted = lock(&self.audits).unfinished_rounds();
        let mut fresh = Vec::new();
        {
            let kept = lock(&self.kept);
            for round in wanted.difference(&kept) {
                let Some(roots) = ledger.round(*round).map(|view| *view.state()) else { continue };
                fresh.extend(self.state(&roots.root()).map(|state| (*round, state, roots)));
            }
            if fresh.is_empty() && kept.is_subset(&wanted) {
                return Ok(());
            }
        }
        let home = self.session.home.clone();
        let kept = tokio::task::spawn_blocking(move || {
            for (round, state, roots) in fresh {
                home.save_parameters(round, &state, &roots)?;
            }
            home.prune_parameters(&|round| wanted.contains(&round))?;
            home.parameters()
        });
        let kept = kept.await.map_err(|error| Failure::Environment(error.to_string()))??;
        *lock(&self.kept) = kept.into_iter().collect();
        Ok(())
    }

    /// Writes the whole state down, to go on from.
    async fn save_state(&self) -> Result<(), Failure> {
        let (replica, home) = (self.replica.clone(), self.session.home.clone());
        let saved = tokio::task::spawn_blocking(move || {
            let (round, state, roots) = {
                let replica = lock(&replica);
                (replica.round(), replica.state().clone(), *replica.roots())
            };
            home.save_state(round, &state, &roots)?;
            home.prune_states(&|kept| kept == round)
        });
        Ok(saved.await.map_err(|error| Failure::Environment(error.to_string()))??)
    }

    /// Shows what was applied, and writes the state down now and then.
    async fn applied(&self, follower: &Follower, events: &[Event]) -> Result<(), Failure> {
        let applied = events
            .iter()
            .rev()
            .find_map(|event| if let Event::Applied(round, _) = event { Some(*round) } else { None });
        let Some(round) = applied else { return Ok(()) };
        let (tally, duty) = {
            let audits = lock(&self.audits);
            (audits.tally(), audits.duty())
        };
        if let Some(view) = follower.ledger().round(round) {
            info!(
                "round {round} is over: loss {:.4}; {} audits passed, {} found guilty; {duty}",
                mean_loss(view),
                tally.passed,
                tally.guilty
            );
        }
        if round.next().0.is_multiple_of(STATE_ROUNDS) { self.save_state().await } else { Ok(()) }
    }

    /// Keeps what bans rest on, beside what it accuses itself of; ends, with the reason, when it was expelled.
    async fn keep_evidence(&self, events: &[Event]) -> Result<(), Failure> {
        let me = self.session.identity.id();
        for event in events {
            let Event::Sealed(record) = event else { continue };
            let Body::Ban(ban) = &record.body else { continue };
            let (peers, steward) = (self.session.peers.clone(), self.session.target.steward.clone());
            let (home, manifest, ban) =
                (self.session.home.clone(), self.session.manifest.clone(), ban.clone());
            let Ban { culprit, round, finding, accuser, .. } = ban;
            let keeping = async move { keep_evidence(&peers, &steward, &home, (&manifest, &ban)).await };
            if culprit == me {
                let (words, where_it_is) = (finding.words(), evidence_words(&keeping.await));
                return Err(Failure::Negative(format!(
                    "this verifier was banned for a {words} in round {round}, found by {accuser}; {where_it_is}"
                )));
            }
            tokio::spawn(async move { info!("of the ban of {culprit}: {}", evidence_words(&keeping.await)) });
        }
        Ok(())
    }

    /// Says that it is back when the ledger has it away; ends when it was expelled.
    async fn stand(&self, follower: &Follower) -> Result<(), Failure> {
        let (ledger, me) = (follower.ledger(), self.session.identity.id());
        let Some(member) = ledger.member(&me) else { return Ok(()) };
        if member.standing == Standing::Banned {
            return Err(Failure::Negative("this verifier was banned; it audits nothing any more".into()));
        }
        if member.standing != Standing::Away || !follower.in_step() || member.since >= ledger.height() {
            return Ok(());
        }
        let back = Return { height: ledger.height(), addresses: member.addresses.clone() };
        let back = Notice::Return(self.session.identity.sign(ledger.run(), &back));
        match self.session.peers.ask(&self.session.target.steward, &Request::Notice(back)).await {
            Ok(_) => info!("back again: audits of the next rounds are shared with this verifier"),
            Err(error) => debug!("the return was not taken: {error}"),
        }
        Ok(())
    }

    /// Tells the steward what it is to be told; ends only when this process is leaving.
    async fn tell(&self) -> Result<(), Failure> {
        let mut reminded = Instant::now();
        loop {
            if reminded.elapsed() >= REMINDER {
                reminded = Instant::now();
                lock(&self.audits).remind();
            }
            let message = if self.caught_up.load(Ordering::Relaxed) { self.next_message() } else { None };
            let Some(message) = message else {
                if self.stopping.load(Ordering::Relaxed) {
                    return Ok(());
                }
                let _ = tokio::time::timeout(REMINDER, self.tell.notified()).await;
                continue;
            };
            if let Message::Accuse(evidence) = &message {
                self.session.home.save_evidence(evidence)?;
            }
            match self.session.peers.ask(&self.session.target.steward, &request(&message)).await {
                Ok(_) => {}
                Err(PeerError::Refused(why)) => debug!("the steward did not take {}: {why}", words(&message)),
                Err(error) => {
                    debug!("the steward could not be told: {error}");
                    tokio::time::sleep(PAUSE).await;
                    if self.stopping.load(Ordering::Relaxed) {
                        return Ok(());
                    }
                    continue;
                }
            }
            lock(&self.audits).told(&message);
        }
    }

    /// Computes what is to be computed; ends only when this process is leaving.
    async fn work(&self, mut worker: Worker) -> Result<(), Failure> {
        while !self.stopping.load(Ordering::Relaxed) {
            let Some(work) = self.next_work() else {
                self.work.notified().await;
                continue;
            };
            let mut witness = self.witness(&work).await;
            let performed = tokio::task::spawn_blocking(move || {
                let begun = Instant::now();
                let done = worker.perform(&work, &mut witness);
                (worker, work, done, begun.elapsed())
            });
            let (back, work, done, took): (Worker, Work, Done, Duration) = performed
                .await
                .map_err(|error| Failure::Environment(format!("computing failed: {error}")))?;
            worker = back;
            lock(&self.spent).computed(&work.kind, took);
            lock(&self.audits).worked(&work, done).map_err(stopped)?;
            self.tell.notify_one();
        }
        Ok(())
    }

    /// Looks at drawn blocks; ends only when this process is leaving.
    async fn inspect(&self) -> Result<(), Failure> {
        while !self.stopping.load(Ordering::Relaxed) {
            let drawn = lock(&self.parts).pop();
            let Some(drawn) = drawn else {
                // One that was not to be had may be tried again by then.
                let _ = tokio::time::timeout(parts::PAUSE, self.drawn.notified()).await;
                continue;
            };
            let (round, part, author) = (drawn.result.round, drawn.result.part, drawn.author);
            match self.look(&drawn).await? {
                Seen::Right => {
                    let count = drawn.blocks.len();
                    debug!("round {round}: part {part} of {author} passes: {count} drawn blocks are right");
                }
                Seen::Wrong(block) => {
                    warn!("round {round}: block {block} of part {part} is not what the rule gives");
                    self.doubt(drawn).await?;
                }
                Seen::Missing(what) => {
                    if !lock(&self.parts).again(drawn) {
                        warn!("round {round}: part {part} of {author} stays undecided: {what}");
                    }
                }
            }
        }
        Ok(())
    }

    async fn look(&self, drawn: &Drawn) -> Result<Seen, Failure> {
        let Session { peers, manifest, target, .. } = &self.session;
        let layout = lock(&self.replica).layout().clone();
        if let Err(why) = drawn.values(&self.results, (peers, &layout, &target.steward)).await {
            return Ok(Seen::Missing(why));
        }
        let from = (Some(&target.steward), false);
        let inputs = drawn.inputs.fetch(peers, &layout, &drawn.blocks, from, BTreeMap::new()).await;
        Ok(match inputs {
            Ok(inputs) => {
                let begun = Instant::now();
                let seen = drawn.look(manifest, &layout, &self.results, &inputs);
                let data = inputs.values().map(|(data, _)| data);
                lock(&self.spent).looked(drawn.blocks.len(), data, begun.elapsed());
                seen
            }
            Err(why) => Seen::Missing(why),
        })
    }

    /// Has the whole part reduced again before its aggregator is accused.
    async fn doubt(&self, drawn: Drawn) -> Result<(), Failure> {
        let Session { peers, manifest, target, dataset, .. } = &self.session;
        let layout = lock(&self.replica).layout().clone();
        let Some(evidence) = drawn.evidence() else { return Ok(()) };
        let from = (Some(&target.steward), true);
        let inputs = drawn.inputs.fetch(peers, &layout, &drawn.inputs.blocks, from, BTreeMap::new()).await;
        let inputs = match inputs {
            Ok(inputs) => inputs,
            Err(why) => {
                warn!(
                    "round {}: part {} is wrong, but not to be proved: {why}",
                    drawn.result.round, drawn.result.part
                );
                lock(&self.parts).again(drawn);
                return Ok(());
            }
        };
        let (manifest, dataset) = (manifest.clone(), dataset.clone());
        let judged = tokio::task::spawn_blocking(move || {
            let judgement = drawn.second_opinion(&manifest, dataset, &evidence, inputs);
            (evidence, judgement)
        });
        let (evidence, judgement) =
            judged.await.map_err(|error| Failure::Environment(format!("reducing a part failed: {error}")))?;
        lock(&self.audits).judged_part(evidence, judgement).map_err(stopped)?;
        self.tell.notify_one();
        Ok(())
    }

    /// Writes down with which state the run ended and what watching cost, for programs.
    fn write_result(&self) -> Result<(), Failure> {
        let (id, endpoint) = (self.session.identity.id(), &self.session.endpoint);
        let (root, rounds) = {
            let replica = lock(&self.replica);
            (replica.snapshot().0, replica.round().0)
        };
        let traffic = (endpoint.bytes_sent(), endpoint.bytes_received());
        let spent = lock(&self.spent).json(&lock(&self.audits).tally(), rounds, traffic);
        let text = format!(
            "{{\"id\":\"{id:#}\",\"role\":\"verifier\",\"leaves_counted\":0,\"final_state_root\":\"{root:#}\",{spent}}}\n"
        );
        Ok(self.session.home.write_file("result.json", text.as_bytes())?)
    }

    fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
        self.tell.notify_one();
        self.work.notify_one();
        self.drawn.notify_one();
    }

    fn state(&self, root: &Digest) -> Option<Arc<State>> {
        lock(&self.replica).state_at(root).or_else(|| self.states.get(root).cloned())
    }

    fn next_message(&self) -> Option<Message> {
        lock(&self.audits).next_message(&|root| self.state(root).is_some())
    }

    fn next_work(&self) -> Option<Work> {
        lock(&self.audits).next_work(&|root| self.state(root).is_some())
    }

    /// The state of the work's round, the text, and the contribution where it is needed and can be had.
    async fn witness(&self, work: &Work) -> Exhibited {
        let subject = &work.subject;
        let root = subject.commit.state;
        let states = self.state(&root).map(|state| (root, state)).into_iter().collect();
        let tolerant = self.session.manifest.profile != Profile::Exact;
        let q = match &work.kind {
            WorkKind::Contribution | WorkKind::Recheck(..) | WorkKind::Opinion(_) => {
                self.fetch(subject).await
            }
            WorkKind::SecondOpinion(_, Some(q)) => Some(q.to_vec()),
            // Where leaves need not be equal, a total is compared by its integers.
            WorkKind::SecondOpinion(_, None) | WorkKind::Everything if tolerant => self.fetch(subject).await,
            WorkKind::SecondOpinion(_, None) | WorkKind::Leaves(..) | WorkKind::Everything => None,
        };
        let contributions = q.map(|q| ((subject.commit.round, subject.author), q)).into_iter().collect();
        let brought = Brought { contributions, ..Brought::default() };
        Exhibited::new(states, self.session.dataset.clone(), &self.session.manifest, brought)
    }

    /// The committed integers, every chunk proved; `None` when a part is not to be had.
    async fn fetch(&self, subject: &Subject) -> Option<Vec<i32>> {
        let layout = lock(&self.replica).layout().clone();
        let mut q = vec![0; layout.parameters()];
        let name = (subject.commit.round, subject.author, subject.commit.root);
        let mut tasks = JoinSet::new();
        for (blocks, contacts) in subject.sources.clone() {
            // The steward keeps what an aggregator would otherwise keep of itself alone.
            let contacts: Vec<Contact> =
                contacts.into_iter().chain([self.session.target.steward.clone()]).collect();
            let (peers, layout) = (self.session.peers.clone(), layout.clone());
            tasks.spawn(async move { peers.contribution(&contacts, &layout, name, &blocks).await });
        }
        while let Some(done) = tasks.join_next().await {
            match done.unwrap_or(Err(PeerError::Unexpected)) {
                Ok(found) => {
                    lock(&self.spent).fetched(found.iter().map(|(data, _)| data));
                    for (data, values) in found {
                        q.get_mut(layout.block(data.block)?.range.clone())?.copy_from_slice(&values);
                    }
                }
                Err(error) => {
                    info!(
                        "round {}: the contribution of {} is not to be had ({error}); recomputing all of it",
                        name.0, name.1
                    );
                    return None;
                }
            }
        }
        Some(q)
    }
}

/// Whether a batch of news was not cut off.
fn is_whole(events: &[Event]) -> bool {
    let count = |kind: fn(&Event) -> bool| events.iter().filter(|event| kind(event)).count();
    count(|event| matches!(event, Event::Notice(_))) < limits::PULL_NOTICES
        && count(|event| matches!(event, Event::Sealed(_))) < limits::PULL_RECORDS
}

fn stopped(stop: Stop) -> Failure {
    match stop {
        Stop::Store(error) => error.into(),
        Stop::Faulty(why) => Failure::Environment(why),
    }
}

fn request(message: &Message) -> Request {
    match message {
        Message::Notice(_, notice) | Message::Say(notice) => Request::Notice((**notice).clone()),
        Message::Accuse(evidence) => Request::Accuse((**evidence).clone()),
    }
}

fn words(message: &Message) -> String {
    match message {
        Message::Notice((round, slot), _) => format!("a step of the audit of round {round}, slot {slot}"),
        Message::Say(_) => "a coin or a recheck".into(),
        Message::Accuse(evidence) => format!("the accusation {}", evidence.digest()),
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
