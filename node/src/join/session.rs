//! One membership, from the invitation to the end of the run.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use muster_compute::Exact;
use muster_core::codec::{List, Text, decode, encode};
use muster_core::contribution::Commitment;
use muster_core::ids::{Block, MemberId, Round, Slot};
use muster_core::ledger::{Ledger, Stage, Standing};
use muster_core::manifest::Manifest;
use muster_core::messages::audit::AuditRequest;
use muster_core::messages::enrol::{Addresses, Enrol, Return, Role};
use muster_core::messages::record::Body;
use muster_core::messages::round::{Commit, Echo};
use muster_core::messages::wire::{Notice, Request, Response};
use muster_core::round::{Duties, Duty};
use muster_core::sign::{Identity, Signed};
use muster_net::endpoint::Endpoint;
use muster_net::listener::{Admission, Listener};
use muster_net::serve::serve;
use muster_replica::{Contact, Event, Follower, Peers, Replica, fetch_dataset, fetch_manifest};
use muster_store::dataset::Dataset;
use muster_store::home::Home;
use muster_store::journal::Journal;
use tokio::sync::{oneshot, watch};

use super::answers::Answers;
use super::compute::{Honest, Labour, LeafSum, Summed, Work};
use super::exchange::{deliver, reassemble, reduce_part};
use super::intake::Intake;
use super::own::{Contribution, Own};
use super::server::Shared;
use super::{End, JoinError, Options};
use crate::progress::Progress;

/// Label under which a member keeps its own contribution.
const OWN_PART: u16 = u16::MAX;

/// Takes part until the run is over, the member is banned, or someone presses Ctrl-C.
///
/// # Errors
/// [`JoinError`], with an exit code.
pub async fn join(options: Options) -> Result<End, JoinError> {
    join_as(options, Arc::new(Honest)).await
}

/// [`join`] with another way to come by contributions.
///
/// # Errors
/// [`JoinError`], with an exit code.
pub async fn join_as(options: Options, labour: Arc<dyn Labour>) -> Result<End, JoinError> {
    let mut session = Session::open(options, labour).await?;
    session.enrol().await?;
    session.follow().await
}

struct Session {
    options: Options,
    labour: Arc<dyn Labour>,
    home: Arc<Home>,
    journal: Arc<Journal>,
    shared: Arc<Shared>,
    ledgers: watch::Sender<Arc<Ledger>>,
    follower: Follower,
    duties: Duties,
    answers: Arc<Answers>,
    arithmetic: Arc<Mutex<Exact>>,
    manifest: Arc<Manifest>,
    dataset: Arc<Dataset>,
    addresses: Addresses,
    progress: Progress,
    leaves: u64,
    /// Stops the server when the session ends.
    _server: Option<oneshot::Sender<()>>,
}

impl Session {
    async fn open(options: Options, labour: Arc<dyn Labour>) -> Result<Self, JoinError> {
        let home = Arc::new(Home::open(&options.data_dir)?);
        home.write_file("ticket", options.ticket.to_line().as_bytes())?;
        let identity = Arc::new(home.identity()?);
        let run = options.ticket.run;
        let endpoint = Endpoint::new(run, identity.clone());
        let peers = Peers::new(endpoint.clone());
        let steward = Contact {
            member: options.ticket.steward,
            addresses: options.ticket.addresses.iter().map(|address| address.to_string()).collect(),
        };
        let progress = Progress::new(options.progress);
        let manifest = fetch_manifest(&peers, &steward, run).await?;
        check_disk(&options, &manifest)?;
        let bytes = manifest.data.bytes + manifest.data.held_out_bytes;
        let bar = progress.bytes("text", bytes);
        let folder = options.data_dir.join("data");
        let dataset =
            fetch_dataset(&peers, &steward, &manifest.data, &folder, &mut |done| bar.set_position(done))
                .await?;
        bar.finish_and_clear();
        let (arithmetic, replica) = prepare(&options, &manifest, &dataset).await?;
        let journal = Arc::new(Journal::open(&home)?);
        let follower = Follower::new(peers, steward, replica, Some(journal.clone()))?;
        let (ledgers, ledger) = watch::channel(Arc::new(follower.ledger().clone()));
        let layout = follower.ledger().layout().clone();
        let keep = manifest.retention.states.min(manifest.retention.contributions) as usize;
        let shared = Arc::new(Shared {
            identity: identity.clone(),
            ledger,
            intake: Intake::new(layout, home.clone()),
            own: Own::new(keep),
            results: follower.results().clone(),
        });
        let (addresses, server) = listen(&options, &journal, endpoint, shared.clone()).await?;
        let answers = Arc::new(Answers::new(run, *home.secret("salt")?));
        let duties = Duties::new(identity.id());
        let arithmetic = Arc::new(Mutex::new(arithmetic));
        let leaves = 0;
        Ok(Self {
            options,
            labour,
            home,
            journal,
            shared,
            ledgers,
            follower,
            duties,
            answers,
            arithmetic,
            manifest,
            dataset,
            addresses,
            progress,
            leaves,
            _server: server,
        })
    }

    fn identity(&self) -> &Identity {
        &self.shared.identity
    }

    fn me(&self) -> MemberId {
        self.identity().id()
    }

    /// Catches up, then asks for admission unless it was given before.
    async fn enrol(&mut self) -> Result<(), JoinError> {
        let me = self.me();
        while self.follower.ledger().stage() == Stage::Empty || self.follower.ledger().height().0 == 0 {
            self.follower.step().await?;
        }
        if self.follower.ledger().member(&me).is_some() {
            return Ok(());
        }
        let enrol = Enrol {
            invitation: self.options.ticket.invitation.clone(),
            addresses: self.addresses.clone(),
            coins: None,
        };
        let signed = self.identity().sign(self.options.ticket.run, &enrol);
        let answer = self.follower.peers().ask(self.follower.steward(), &Request::Enrol(signed)).await;
        match answer {
            Ok(Response::Done) => {}
            Ok(_) => return Err(JoinError::Refused("an unexpected answer".into())),
            // A member that enrolled just before a crash is told so; the ledger decides.
            Err(muster_replica::PeerError::Refused(why)) => {
                self.follower.step().await?;
                if self.follower.ledger().member(&me).is_none() {
                    return Err(JoinError::Refused(why));
                }
            }
            Err(error) => return Err(muster_replica::FollowError::Steward(error).into()),
        }
        self.progress.line(&format!("admitted as {} {me}", Role::Node.word()));
        Ok(())
    }

    async fn follow(&mut self) -> Result<End, JoinError> {
        let mut interrupted = false;
        loop {
            let events = if interrupted {
                self.follower.step().await?
            } else {
                tokio::select! {
                    events = self.follower.step() => events?,
                    _ = tokio::signal::ctrl_c() => {
                        interrupted = true;
                        crate::progress::abort_on_second_interrupt();
                        self.progress.line("finishing the round, then leaving (Ctrl-C again aborts)");
                        if self.idle() {
                            return Ok(End::Interrupted);
                        }
                        continue;
                    }
                }
            };
            self.ledgers.send_replace(Arc::new(self.follower.ledger().clone()));
            for event in events {
                if let Some(end) = self.event(event, interrupted).await? {
                    return Ok(end);
                }
            }
            self.come_back().await;
            self.work();
        }
    }

    /// Whether no round is under way that this member has a part in.
    fn idle(&self) -> bool {
        let ledger = self.follower.ledger();
        let under_way = matches!(ledger.stage(), Stage::Computing | Stage::Exchanging | Stage::Reducing);
        !under_way || ledger.current().is_none_or(|view| view.slot_of(&self.me()).is_none())
    }

    async fn event(&mut self, event: Event, interrupted: bool) -> Result<Option<End>, JoinError> {
        match event {
            Event::Applied(round, _) => {
                self.count(round);
                let horizon = round.0.saturating_sub(self.manifest.retention.contributions);
                if let Err(error) = self.home.prune_contributions(Round(horizon)) {
                    tracing::warn!("old contributions could not be removed: {error}");
                }
                return Ok(interrupted.then_some(End::Interrupted));
            }
            Event::Notice(notice) => self.notice(*notice),
            Event::Sealed(record) => match &record.body {
                Body::Ban(ban) if ban.culprit == self.me() => {
                    let (round, finding, accuser) = (ban.round, ban.finding.words(), ban.accuser);
                    return Err(JoinError::Banned { round, finding, accuser });
                }
                Body::Leave(leave) if leave.claimed_signer() == self.me() => return Ok(Some(End::Left)),
                Body::Close(_) => {
                    self.progress.finish();
                    return Ok(Some(End::Closed { leaves: self.leaves }));
                }
                _ => {}
            },
        }
        Ok(None)
    }

    /// Shows the volunteer what counted.
    fn count(&mut self, round: Round) {
        let Some(view) = self.follower.ledger().round(round) else { return };
        let mine = view
            .slot_of(&self.me())
            .filter(|slot| view.counted(*slot))
            .and_then(|slot| view.commitment(slot));
        let counted = mine.map_or(0, |c| c.commit.leaves);
        self.leaves += u64::from(counted);
        let loss = muster_replica::archive::mean_loss(view);
        let total = u64::from(self.manifest.training.rounds);
        let text = format!("loss {loss:.3}, {counted} of your leaves counted, {} in all", self.leaves);
        self.progress.round(u64::from(round.0) + 1, total, &text);
    }

    /// Says that it is back when the ledger has it away.
    async fn come_back(&self) {
        let ledger = self.follower.ledger();
        let Some(member) = ledger.member(&self.me()) else { return };
        let moved = member.addresses != self.addresses && member.standing == Standing::Active;
        if !(member.standing == Standing::Away || moved)
            || !self.follower.in_step()
            || member.since >= ledger.height()
        {
            return;
        }
        let back = Return { height: ledger.height(), addresses: self.addresses.clone() };
        let notice = Notice::Return(self.identity().sign(ledger.run(), &back));
        if let Err(error) = self.follower.peers().ask(self.follower.steward(), &Request::Notice(notice)).await
        {
            tracing::debug!("the return was not taken: {error}");
        }
    }

    /// Takes on what is owed.
    fn work(&mut self) {
        let stage = self.follower.ledger().stage();
        if stage == Stage::Computing && !self.follower.in_step() {
            return;
        }
        let ledger = self.ledgers.borrow().clone();
        let way = (self.follower.peers().clone(), self.follower.steward().clone());
        for duty in self.duties.due(&ledger) {
            match duty {
                Duty::Compute { round, slot, quota } => self.compute(&ledger, round, slot, quota),
                Duty::Echo { round, freeze } => {
                    let echo = self.identity().sign(ledger.run(), &Echo { round, freeze });
                    let once = self.journal.put_vote("echo", round, &freeze.0);
                    if once.is_ok_and(|first| first == freeze.0) {
                        post(&way, Request::Notice(Notice::Echo(echo)));
                    }
                }
                Duty::Deliver { round, attempt, parts } => {
                    let Some(contribution) = self.contribution(&ledger, round) else {
                        tracing::warn!("the contribution to round {round} is not here any more");
                        continue;
                    };
                    tokio::spawn(deliver(
                        self.shared.clone(),
                        way.clone(),
                        ledger.clone(),
                        contribution,
                        (round, attempt, parts),
                    ));
                }
                Duty::Reduce { round, part, attempt, inputs } => {
                    tokio::spawn(reduce_part(
                        self.shared.clone(),
                        way.clone(),
                        ledger.clone(),
                        (round, part, attempt, inputs),
                    ));
                }
            }
        }
    }

    /// This member's contribution, from memory or, after a restart, from disk.
    fn contribution(&self, ledger: &Ledger, round: Round) -> Option<Arc<Contribution>> {
        if let Some(held) = self.shared.own.round(round) {
            return Some(held);
        }
        let commit: Signed<Commit> = decode(&self.journal.vote("commit", round).ok()??).ok()?;
        let commit = commit.verify(ledger.run()).ok()?.into_inner();
        let kept = self.home.load_contribution(round, &self.me()).ok()?;
        let q = reassemble(ledger, &commit.root, &kept)?;
        let tree = Commitment::new(ledger.layout(), &q);
        self.shared.own.put(Contribution { commit, q, tree, state: None, leaves: Mutex::new(None) });
        self.shared.own.round(round)
    }

    fn compute(&self, ledger: &Arc<Ledger>, round: Round, slot: Slot, quota: u32) {
        let Some(view) = ledger.round(round) else { return };
        let (root, state) = self.follower.replica().lock().unwrap_or_else(PoisonError::into_inner).snapshot();
        if root != view.state().root() {
            tracing::warn!("round {round} is on another state than this member's");
            return;
        }
        let patience = Duration::from_millis(u64::from(self.manifest.timers.commit)) * 7 / 10;
        let work = Work {
            manifest: self.manifest.clone(),
            dataset: self.dataset.clone(),
            round,
            seed: view.seed(),
            root,
            state,
            slot,
            seats: view.seats().len() as u16,
            quota,
            deadline: Instant::now() + patience,
        };
        let task = Committing {
            labour: self.labour.clone(),
            arithmetic: self.arithmetic.clone(),
            shared: self.shared.clone(),
            home: self.home.clone(),
            journal: self.journal.clone(),
            ledger: ledger.clone(),
        };
        let way = (self.follower.peers().clone(), self.follower.steward().clone());
        tokio::spawn(async move {
            let commit = tokio::task::spawn_blocking(move || task.commit(work)).await;
            match commit {
                Ok(Ok(commit)) => post(&way, Request::Commit(commit)),
                Ok(Err(why)) => tracing::error!("round {round}: {why}"),
                Err(error) => tracing::error!("round {round}: computing failed: {error}"),
            }
        });
    }

    fn notice(&self, notice: Notice) {
        let way = (self.follower.peers().clone(), self.follower.steward().clone());
        match notice {
            Notice::Request(request) => self.answer(way, request),
            Notice::Results(results) => {
                if let Some(opening) = self.answers.open(self.identity(), &results) {
                    post(&way, Request::Notice(Notice::Opening(opening)));
                }
            }
            _ => {}
        }
    }

    /// Seals a table for a request that is due, recomputing the leaves if they were not kept.
    fn answer(&self, way: (Peers, Contact), signed: Signed<AuditRequest>) {
        let ledger = self.follower.ledger();
        let Ok(request) = ledger.check_request(&signed) else { return };
        if request.target != self.me() {
            return;
        }
        let Some(held) = self.shared.own.round(request.round) else {
            tracing::warn!("asked about round {}, which is not kept here any more", request.round);
            return;
        };
        let (manifest, dataset, arithmetic) =
            (self.manifest.clone(), self.dataset.clone(), self.arithmetic.clone());
        let (answers, shared) = (self.answers.clone(), self.shared.clone());
        let seed = muster_core::assign::round_seed(ledger.run(), request.round, &held.commit.state);
        tokio::spawn(async move {
            let table = tokio::task::spawn_blocking(move || {
                let rows = {
                    let kept = held.leaves.lock().unwrap_or_else(PoisonError::into_inner);
                    kept.as_ref().and_then(|leaves| Answers::rows(&request.freeze, leaves))
                };
                let rows = rows.or_else(|| {
                    let leaves = recompute(&held, manifest, dataset, seed, &arithmetic)?;
                    Answers::rows(&request.freeze, &leaves)
                })?;
                Some(answers.seal(&shared.identity, &signed, &request, held.commit.root, rows))
            });
            if let Ok(Some(table)) = table.await {
                post(&way, Request::Notice(Notice::Table(table)));
            }
        });
    }
}

fn recompute(
    held: &Contribution,
    manifest: Arc<Manifest>,
    dataset: Arc<Dataset>,
    seed: muster_core::ids::Digest,
    arithmetic: &Mutex<Exact>,
) -> Option<Vec<LeafSum>> {
    let commit = &held.commit;
    let work = Work {
        manifest,
        dataset,
        round: commit.round,
        seed,
        root: commit.state,
        state: held.state.clone()?,
        slot: commit.slot,
        seats: commit.seats,
        quota: commit.leaves,
        deadline: Instant::now(),
    };
    let mut arithmetic = arithmetic.lock().unwrap_or_else(PoisonError::into_inner);
    Some((0..commit.leaves).map(|position| work.leaf(&mut arithmetic, position)).collect())
}

/// What a commitment needs besides the work.
struct Committing {
    labour: Arc<dyn Labour>,
    arithmetic: Arc<Mutex<Exact>>,
    shared: Arc<Shared>,
    home: Arc<Home>,
    journal: Arc<Journal>,
    ledger: Arc<Ledger>,
}

impl Committing {
    /// Computes, writes down what will be said, and signs it. What was said before a crash is said again.
    fn commit(&self, mut work: Work) -> Result<Signed<Commit>, String> {
        let run = self.ledger.run();
        let voted = self.journal.vote("commit", work.round).map_err(|error| error.to_string())?;
        let voted: Option<Signed<Commit>> =
            voted.map(|bytes| decode(&bytes)).transpose().map_err(|r| r.to_string())?;
        if let Some(signed) = &voted {
            let said = signed.verify(run).map_err(|reject| reject.to_string())?;
            work.quota = said.leaves;
            work.deadline += Duration::from_secs(3600);
        }
        let Summed { q, loss, leaves } = {
            let mut arithmetic = self.arithmetic.lock().unwrap_or_else(PoisonError::into_inner);
            self.labour.contribute(&work, &mut arithmetic)
        };
        let layout = self.ledger.layout();
        let tree = Commitment::new(layout, &q);
        let head = self.ledger.round(work.round).map(|view| view.head()).ok_or("the round is over")?;
        let commit = Commit {
            round: work.round,
            head,
            state: work.root,
            slot: work.slot,
            seats: work.seats,
            leaves: leaves.len() as u32,
            profile: work.manifest.profile,
            loss,
            root: tree.root(),
        };
        let me = &self.shared.identity;
        let blocks =
            (0..layout.blocks().len() as u32).filter_map(|block| tree.block(layout, &q, Block(block)));
        self.home
            .save_contribution(work.round, &me.id(), OWN_PART, &blocks.collect::<Vec<_>>())
            .map_err(|e| e.to_string())?;
        let signed = me.sign(run, &commit);
        let first = self
            .journal
            .put_vote("commit", work.round, &encode(&signed))
            .map_err(|error| error.to_string())?;
        let signed: Signed<Commit> = decode(&first).map_err(|reject| reject.to_string())?;
        let leaves = Mutex::new(Some(leaves));
        self.shared.own.put(Contribution { commit, q, tree, state: Some(work.state), leaves });
        Ok(signed)
    }
}

/// Tells the steward something, in the background.
fn post((peers, steward): &(Peers, Contact), request: Request) {
    let (peers, steward) = (peers.clone(), steward.clone());
    tokio::spawn(async move {
        if let Err(error) = peers.ask(&steward, &request).await {
            tracing::debug!("the steward did not take it: {error}");
        }
    });
}

fn check_disk(options: &Options, manifest: &Manifest) -> Result<(), JoinError> {
    let Some(most) = options.max_disk else { return Ok(()) };
    let kept = u64::from(manifest.retention.contributions + 2) * manifest.model.parameters() * 4 * 2;
    let need = manifest.data.bytes + manifest.data.held_out_bytes + kept;
    if need > most << 30 {
        let need = need.div_ceil(1 << 30);
        return Err(JoinError::Environment(format!(
            "this run takes about {need} GiB of disk, --max-disk allows {most}"
        )));
    }
    Ok(())
}

/// The arithmetic, proved by its known answers, and the initial state.
async fn prepare(
    options: &Options,
    manifest: &Arc<Manifest>,
    dataset: &Arc<Dataset>,
) -> Result<(Exact, Replica), JoinError> {
    let (manifest, dataset, threads, path) =
        (manifest.clone(), dataset.clone(), options.threads, options.path);
    let made = tokio::task::spawn_blocking(move || {
        let mut arithmetic = Exact::new(threads, path)?;
        arithmetic.self_test()?;
        Ok((arithmetic, Replica::genesis(manifest, dataset, threads, path)?))
    });
    let made =
        made.await.map_err(|error| JoinError::Environment(format!("the arithmetic failed: {error}")))?;
    made.map_err(|misuse: muster_core::error::Misuse| JoinError::Environment(misuse.to_string()))
}

type Served = (Addresses, Option<oneshot::Sender<()>>);

/// Listens if asked to; after a restart on the same port as before, so that others still find it.
async fn listen(
    options: &Options,
    journal: &Journal,
    endpoint: Endpoint,
    shared: Arc<Shared>,
) -> Result<Served, JoinError> {
    let none = || List::new(Vec::new()).map_err(|misuse| JoinError::Environment(misuse.to_string()));
    let Some(wanted) = &options.listen else { return Ok((none()?, None)) };
    let before = journal.note("listened")?.and_then(|bytes| String::from_utf8(bytes).ok());
    let again = before.filter(|_| wanted.ends_with(":0"));
    let mut bound = None;
    if let Some(address) = &again {
        bound = Listener::bind(address, Admission::default()).await.ok();
    }
    let listener = match bound {
        Some(listener) => listener,
        None => Listener::bind(wanted, Admission::default()).await.map_err(|error| {
            JoinError::Environment(format!(
                "cannot listen on {wanted}: {error}; give another address with --listen"
            ))
        })?,
    };
    let address = listener.local_addr();
    journal.put_note("listened", address.to_string().as_bytes())?;
    let advertised = options.advertise.clone().unwrap_or_else(|| address.to_string());
    let text =
        Text::new(advertised).map_err(|misuse| JoinError::Environment(format!("--advertise: {misuse}")))?;
    let (stop, stopped) = oneshot::channel::<()>();
    tokio::spawn(serve(listener, endpoint, shared, async move {
        let _ = stopped.await;
    }));
    let addresses = List::new(vec![text]).map_err(|misuse| JoinError::Environment(misuse.to_string()))?;
    Ok((addresses, Some(stop)))
}
