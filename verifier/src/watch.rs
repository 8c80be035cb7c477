//! `watch`: follows the run and audits it until it closes.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use muster_compute::Machine;
use muster_core::ids::{Block, Digest, MemberId, Round};
use muster_core::ledger::{Ledger, RoundView, Stage, Standing};
use muster_core::limits;
use muster_core::lock::lock;
use muster_core::manifest::Profile;
use muster_core::messages::enrol::Return;
use muster_core::messages::evidence::Evidence;
use muster_core::messages::record::{Ban, Body};
use muster_core::messages::wire::{Notice, Request};
use muster_core::state::State;
use muster_net::swarm::Settings;
use muster_replica::archive::mean_loss;
use muster_replica::exit::Failure;
use muster_replica::{
    Brought, Contact, Event, Exhibited, Follower, PartInputs, PeerError, Replica, Results, contact,
    evidence_words, keep_evidence, patience,
};
use muster_roles::verifier::audits::{
    Audits, Conduct, Done, Key, Message, Source, Stop, Subject, Tally, Work, WorkKind,
};
use muster_roles::verifier::coins::Coins;
use muster_roles::verifier::parts::{Drawn, Parts, Seen};
use muster_store::error::Kind;
use muster_store::journal::Journal;
use muster_store::secrets;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tracing::{debug, info, warn};

use crate::enroll;
use crate::notes::Journaled;
use crate::parts;
use crate::session::{Session, Target};
use crate::spent::Spent;
use crate::worker::Worker;

/// How long an accusation is left alone before it is repeated.
const REMINDER: Duration = Duration::from_secs(20);
/// Rounds after which the whole state is written down again, fewer than those whose results are kept. A process that was
/// killed goes on from there, by the results that others still have, or fetches the state; one that finds a wrong root has
/// the state before it from there.
const STATE_ROUNDS: u32 = 4;
/// Works that are looked at for the first one that can be done.
const WORKS: usize = 64;
/// Fetched contributions that wait for their work at most.
const FETCHED: usize = 4;
/// Holders of something that may each let this verifier wait before it does without: all leaves stand for a contribution, and
/// other drawn blocks come first.
const HOLDERS: u32 = 2;
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
    // Who lets one wait for an answer holds up as many looks and fetches as it lets wait, not all, and no computation.
    let inspecting = async { tokio::try_join!(watcher.inspect(), watcher.inspect(), watcher.inspect()) };
    let fetching = async { tokio::join!(watcher.bring(), watcher.bring(), watcher.bring(), watcher.bring()) };
    tokio::pin!(following, telling, working, inspecting, fetching);
    tokio::select! {
        ended = &mut following => ended?,
        failed = &mut telling => failed?,
        failed = &mut working => failed?,
        failed = &mut inspecting => drop(failed?),
        _ = &mut fetching => {}
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
    /// Contributions that work waits for.
    fetches: Mutex<Fetches>,
    /// One of them may be to fetch.
    fetch: Notify,
    /// Drawn blocks of aggregated parts.
    parts: Mutex<Parts>,
    /// Some may have been drawn.
    drawn: Notify,
    /// Where members can be reached.
    contacts: Mutex<BTreeMap<MemberId, Contact>>,
    began: Instant,
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
        return Err(Failure::usage(format!(
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
        worker.map_err(|error| Failure::environment(error.to_string()))?.map_err(Failure::arithmetic)?;
    let follower = session.follower(journal.clone(), machine.threads, options.gossip.clone()).await?;
    let coins = Coins::new(coins, Arc::new(Journaled::new(journal.clone())));
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
        fetches: Mutex::default(),
        fetch: Notify::new(),
        parts: Mutex::default(),
        spent: Mutex::default(),
        drawn: Notify::new(),
        contacts: Mutex::default(),
        began: Instant::now(),
        results: follower.results().clone(),
        caught_up: AtomicBool::new(false),
        stopping: AtomicBool::new(false),
    };
    Ok((watcher, follower, worker))
}

fn target(options: &Options) -> Result<Target, Failure> {
    let place = options.directory.display();
    let home = muster_store::home::Home::open(&options.directory)?;
    let line = match secrets::text(&home.path().join(enroll::TICKET)) {
        Err(error) if error.kind() == Kind::Missing => None,
        line => Some(line?),
    };
    let unknown = || {
        Failure::usage(format!(
            "{place} is not enrolled: run `muster-verifier enroll INVITATION --data-dir {place}` first"
        ))
    };
    Target::parse(&line.ok_or_else(unknown)?)
        .map_err(|misuse| Failure::environment(format!("{place}/{}: {misuse}", enroll::TICKET)))
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
                    audits.board_changed(ledger);
                }
                audits.take(ledger, &events).map_err(|why| Failure::environment(why.0))?;
                let me = self.session.identity.id();
                let members = ledger.members().iter().map(|member| member.id);
                *lock(&self.contacts) =
                    members.filter_map(|member| Some((member, contact(ledger, &member)?))).collect();
                lock(&self.parts).survey(self.now(), ledger, &me, |round| audits.node_coin(round));
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
                    return Err(Failure::usage(format!(
                        "{me} is no member of this run: run `muster-verifier enroll` again"
                    )));
                }
                info!("watching run {} as verifier {me}", ledger.run());
            }
            drop(self.works());
            self.tell.notify_one();
            self.work.notify_one();
            if ledger.stage() == Stage::Closed {
                return Ok(());
            }
        }
    }

    /// Has on the disk what audits compute on that are open, or may yet fall to this verifier when another one goes, and
    /// nothing else of it. Which are open is known once the news are read to their end.
    async fn keep_states(&self, ledger: &Ledger) -> Result<(), Failure> {
        if !self.caught_up.load(Ordering::Relaxed) {
            return Ok(());
        }
        let mut wanted = lock(&self.audits).unfinished_rounds();
        let due = ledger.rounds().filter(|view| view.auditable() && ledger.is_answerable(view.round()));
        wanted.extend(due.map(RoundView::round));
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
        let kept = kept.await.map_err(|error| Failure::environment(error.to_string()))??;
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
        Ok(saved.await.map_err(|error| Failure::environment(error.to_string()))??)
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
                return Err(Failure::negative(format!(
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
            return Err(Failure::negative("this verifier was banned; it audits nothing any more"));
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
                let _ = timeout(REMINDER, self.tell.notified()).await;
                continue;
            };
            if let Message::Accuse(evidence) = &message {
                self.session.home.save_evidence(evidence)?;
            }
            match self.session.peers.ask(&self.session.target.steward, &request(&message)).await {
                Ok(_) => {}
                Err(PeerError::Refused(why)) => {
                    debug!("the steward did not take {}: {why}", words(&message));
                    lock(&self.audits).refused(&message);
                }
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
            let Some((work, q)) = self.next_work() else {
                self.work.notified().await;
                continue;
            };
            let mut witness = self.witness(&work, q);
            let performed = tokio::task::spawn_blocking(move || {
                let begun = Instant::now();
                let done = worker.perform(&work, &mut witness);
                (worker, work, done, begun.elapsed())
            });
            let (back, work, done, took): (Worker, Work, Done, Duration) = performed
                .await
                .map_err(|error| Failure::environment(format!("computing failed: {error}")))?;
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
            let drawn = lock(&self.parts).pop(self.now());
            let Some(drawn) = drawn else {
                // One that was not to be had may be tried again by then.
                let _ = timeout(PAUSE, self.drawn.notified()).await;
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
                    if !lock(&self.parts).again(self.now(), drawn) {
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
        let limit = |blocks: &[Block]| HOLDERS * patience(&layout, blocks);
        let late = |_| Err("who has the values takes too long".to_owned());
        let values = timeout(limit(&drawn.part), self.values(drawn)).await;
        if let Err(why) = values.unwrap_or_else(late) {
            return Ok(Seen::Missing(why));
        }
        let Some(inputs) = self.inputs(drawn) else { return Ok(Seen::Missing("no such part".to_owned())) };
        let from = (Some(&target.steward), false);
        let inputs = inputs.fetch(peers, &layout, &drawn.blocks, from, BTreeMap::new());
        let inputs = timeout(limit(&drawn.blocks), inputs).await;
        Ok(match inputs.unwrap_or_else(|_| Err("whose inputs they are takes too long".to_owned())) {
            Ok(inputs) => {
                let begun = Instant::now();
                let seen = parts::look(drawn, manifest, &layout, &self.results, &inputs);
                let data = inputs.values().map(|(data, _)| data);
                lock(&self.spent).looked(drawn.blocks.len(), data, begun.elapsed());
                seen
            }
            Err(why) => Seen::Missing(why),
        })
    }

    /// The values that were applied, from what this replica fetched, else from the aggregator or the steward.
    async fn values(&self, drawn: &Drawn) -> Result<(), String> {
        let layout = lock(&self.replica).layout().clone();
        let (round, digest, blocks) = (drawn.result.round, &drawn.result.digest, &drawn.part);
        if self.results.has(round, blocks, digest) {
            return Ok(());
        }
        let mut holders = self.contacts(&drawn.holders);
        holders.push(self.session.target.steward.clone());
        let values = self.session.peers.values(&holders, &layout, round, blocks, digest).await;
        self.results.put(round, blocks, digest, values.map_err(|error| error.to_string())?);
        Ok(())
    }

    fn inputs(&self, drawn: &Drawn) -> Option<PartInputs> {
        let known = lock(&self.contacts);
        PartInputs::held_by(&drawn.view, &drawn.result, |member| known.get(member).cloned())
    }

    /// Has the whole part reduced again before its aggregator is accused.
    async fn doubt(&self, drawn: Drawn) -> Result<(), Failure> {
        let Session { peers, manifest, target, dataset, .. } = &self.session;
        let layout = lock(&self.replica).layout().clone();
        let Some(evidence) = drawn.evidence() else { return Ok(()) };
        let Some(inputs) = self.inputs(&drawn) else { return Ok(()) };
        let from = (Some(&target.steward), true);
        // Other drawn blocks wait for it.
        let limit = HOLDERS * patience(&layout, &drawn.part);
        let inputs = inputs.fetch(peers, &layout, &drawn.part, from, BTreeMap::new());
        let late = |_| Err("who holds its inputs takes too long".to_owned());
        let inputs = match timeout(limit, inputs).await.unwrap_or_else(late) {
            Ok(inputs) => inputs,
            Err(why) => {
                warn!(
                    "round {}: part {} is wrong, but not to be proved: {why}",
                    drawn.result.round, drawn.result.part
                );
                lock(&self.parts).again(self.now(), drawn);
                return Ok(());
            }
        };
        let (manifest, dataset) = (manifest.clone(), dataset.clone());
        let judged = tokio::task::spawn_blocking(move || {
            let judgement = parts::second_opinion(&drawn, &manifest, dataset, &evidence, inputs);
            (evidence, judgement)
        });
        let (evidence, judgement) =
            judged.await.map_err(|error| Failure::environment(format!("reducing a part failed: {error}")))?;
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

    /// Milliseconds since it began.
    fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn contacts(&self, members: &[MemberId]) -> Vec<Contact> {
        let known = lock(&self.contacts);
        members.iter().filter_map(|member| known.get(member).cloned()).collect()
    }

    fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
        self.tell.notify_one();
        self.work.notify_one();
        self.fetch.notify_waiters();
        self.drawn.notify_one();
    }

    fn state(&self, root: &Digest) -> Option<Arc<State>> {
        lock(&self.replica).state_at(root).or_else(|| self.states.get(root).cloned())
    }

    fn next_message(&self) -> Option<Message> {
        lock(&self.audits).next_message(&|root| self.state(root).is_some())
    }

    /// The first work that can be done now, with the contribution that it needs; what others need is fetched meanwhile.
    fn next_work(&self) -> Option<(Work, Option<Arc<Vec<i32>>>)> {
        let works = self.works();
        let mut fetches = lock(&self.fetches);
        let ready = |work: &Work| !self.wants_fetching(work) || fetches.is_done(&work.subject);
        let found = works.into_iter().find(ready);
        found.map(|work| {
            let brought = match &work.kind {
                WorkKind::SecondOpinion(_, Some(q)) | WorkKind::SecondRecheck(_, Some(q)) => Some(q.clone()),
                _ if self.wants_fetching(&work) => fetches.take(&work.subject),
                _ => None,
            };
            (work, brought)
        })
    }

    /// What there is to compute first, in order. What of it needs a contribution has that fetched from now on.
    fn works(&self) -> Vec<Work> {
        let have = |root: &Digest| self.state(root).is_some();
        let works: Vec<Work> = lock(&self.audits).works(&have).take(WORKS).collect();
        let wanting = works.iter().filter(|work| self.wants_fetching(work));
        lock(&self.fetches).want(wanting.map(|work| work.subject.clone()));
        self.fetch.notify_one();
        works
    }

    /// Whether work needs the committed integers, and does not have them.
    fn wants_fetching(&self, work: &Work) -> bool {
        let tolerant = self.session.manifest.profile != Profile::Exact;
        match &work.kind {
            WorkKind::Contribution | WorkKind::Opinion(_) => true,
            WorkKind::Recheck(evidence) => !matches!(**evidence, Evidence::Recomputation(_)),
            // Where leaves need not be equal, a total is compared by its integers.
            WorkKind::SecondOpinion(_, None) | WorkKind::Everything => tolerant,
            // Nor may a second path have others than the first one had.
            WorkKind::SecondOpinion(_, Some(_)) | WorkKind::SecondRecheck(..) | WorkKind::Leaves(..) => false,
        }
    }

    /// The state of the work's round, the text, and the contribution.
    fn witness(&self, work: &Work, q: Option<Arc<Vec<i32>>>) -> Exhibited {
        let subject = &work.subject;
        let root = subject.commit.state;
        let states = self.state(&root).map(|state| (root, state)).into_iter().collect();
        let name = (subject.commit.round, subject.author);
        let contributions = q.map(|q| (name, Arc::unwrap_or_clone(q))).into_iter().collect();
        let brought = Brought { contributions, ..Brought::default() };
        Exhibited::new(states, self.session.dataset.clone(), &self.session.manifest, brought)
    }

    /// Fetches contributions that work waits for, one after the other; ends only when this process is leaving.
    async fn bring(&self) {
        while !self.stopping.load(Ordering::Relaxed) {
            let begun = lock(&self.fetches).begin();
            let Some(subject) = begun else {
                let _ = timeout(PAUSE, self.fetch.notified()).await;
                continue;
            };
            // There may be another one for another fetch.
            self.fetch.notify_one();
            let q = self.fetch_in_time(&subject).await;
            let exact = self.session.manifest.profile == Profile::Exact;
            lock(&self.fetches).end(&subject, q.map(Arc::new), exact);
            self.work.notify_one();
        }
    }

    /// The committed integers. In `exact` nobody waits for them any longer than it takes to have them of somebody else: the
    /// leaves, all recomputed, stand for them.
    async fn fetch_in_time(&self, subject: &Subject) -> Option<Vec<i32>> {
        if self.session.manifest.profile != Profile::Exact {
            return self.fetch(subject).await;
        }
        let layout = lock(&self.replica).layout().clone();
        let blocks: Vec<Block> = subject.sources.iter().flat_map(|source| &source.blocks).copied().collect();
        // The verdict has its own clock (DUTY-4), and all leaves take time, too.
        let most = Duration::from_millis(self.session.manifest.timers.audit.into()) / 2;
        let limit = (HOLDERS * patience(&layout, &blocks)).min(most);
        timeout(limit, self.fetch(subject)).await.ok().flatten()
    }

    /// The committed integers, every chunk proved; `None` when a part is not to be had.
    async fn fetch(&self, subject: &Subject) -> Option<Vec<i32>> {
        let layout = lock(&self.replica).layout().clone();
        let mut q = vec![0; layout.parameters()];
        let name = (subject.commit.round, subject.author, subject.commit.root);
        let mut tasks = JoinSet::new();
        for Source { blocks, holders } in subject.sources.clone() {
            let mut contacts = self.contacts(&holders);
            // The steward keeps what an aggregator would otherwise keep of itself alone.
            contacts.push(self.session.target.steward.clone());
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
                    let (round, who) = (name.0, name.1);
                    info!(
                        "round {round}: the contribution of {who} is unavailable ({error}); its leaves are recomputed"
                    );
                    return None;
                }
            }
        }
        Some(q)
    }
}

/// Contributions that work waits for: nobody waits for them but that work.
#[derive(Default)]
struct Fetches {
    wanted: VecDeque<Arc<Subject>>,
    running: BTreeSet<Key>,
    done: BTreeMap<Key, Option<Arc<Vec<i32>>>>,
    /// Members whose integers could not be had once: where all leaves stand for them, they are not asked for again.
    withheld: BTreeSet<MemberId>,
}

impl Fetches {
    /// These are wanted, in this order, and no others any more.
    fn want(&mut self, subjects: impl Iterator<Item = Arc<Subject>>) {
        let subjects: Vec<Arc<Subject>> = subjects.collect();
        self.done.retain(|key, _| subjects.iter().any(|subject| subject.key() == *key));
        self.wanted = subjects.into_iter().collect();
    }

    /// The next one to fetch. As many wait for their work at most as are fetched at once.
    fn begin(&mut self) -> Option<Arc<Subject>> {
        if self.done.len() >= FETCHED {
            return None;
        }
        let Self { running, done, withheld, .. } = &*self;
        let fresh = |subject: &Arc<Subject>| {
            let key = subject.key();
            !running.contains(&key) && !done.contains_key(&key) && !withheld.contains(&subject.author)
        };
        let subject = self.wanted.iter().find(|subject| fresh(subject))?.clone();
        self.running.insert(subject.key());
        Some(subject)
    }

    fn end(&mut self, subject: &Subject, q: Option<Arc<Vec<i32>>>, exact: bool) {
        self.running.remove(&subject.key());
        if q.is_none() && exact {
            self.withheld.insert(subject.author);
        }
        self.done.insert(subject.key(), q);
    }

    fn is_done(&self, subject: &Subject) -> bool {
        self.done.contains_key(&subject.key()) || self.withheld.contains(&subject.author)
    }

    fn take(&mut self, subject: &Subject) -> Option<Arc<Vec<i32>>> {
        self.done.remove(&subject.key()).flatten()
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
        Stop::Store(why) => Failure::environment(why.0),
        Stop::Faulty(why) => Failure::environment(why),
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
