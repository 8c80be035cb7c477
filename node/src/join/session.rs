//! One membership, from the invitation to the end of the run.

mod audit;
mod commit;
mod disk;
mod listen;
mod prepare;

use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use muster_compute::Backend;
use muster_core::codec::List;
use muster_core::ids::{Digest, MemberId, Round};
use muster_core::ledger::{Ledger, Stage, Standing};
use muster_core::lock::lock;
use muster_core::manifest::Manifest;
use muster_core::messages::enrol::{Addresses, Enrol, Leave, Return, Role, Ticket};
use muster_core::messages::record::{Ban, Body};
use muster_core::messages::round::{Delivered, Echo};
use muster_core::messages::wire::{Notice, Request, Response};
use muster_core::round::{Checks, Duties, Duty};
use muster_core::sign::Identity;
use muster_net::endpoint::Endpoint;
use muster_replica::{
    Contact, Event, FollowError, Follower, PeerError, Peers, Phase, evidence_words, fetch_dataset,
    keep_evidence,
};
use muster_store::dataset::Dataset;
use muster_store::error::StoreError;
use muster_store::home::Home;
use muster_store::journal::Journal;
use tokio::sync::{mpsc, oneshot, watch};

use self::listen::listen;
use self::prepare::{join_swarm, prepare, reach};
use super::answers::Answers;
use super::check::check_results;
use super::conduct::{Conduct, Honest};
use super::exchange::{Delivering, Echoed, deliver, reduce_part, say_delivered};
use super::own::Own;
use super::pledges::Pledges;
use super::report::Report;
use super::server::Shared;
use super::tell::tell;
use super::{End, JoinError, Options};
use crate::intake::Intake;
use crate::members::weight;
use crate::organise::MANIFEST;
use crate::progress::Progress;

/// How long a convict still serves after its last round.
const LINGER: Duration = Duration::from_secs(10);

/// Takes part until the run is over, the member is banned, or someone presses Ctrl-C.
///
/// # Errors
/// [`JoinError`], with an exit code.
pub async fn join(options: Options) -> Result<End, JoinError> {
    join_as(options, Arc::new(Honest)).await
}

/// [`join`] with another conduct.
///
/// # Errors
/// [`JoinError`], with an exit code.
pub async fn join_as(options: Options, conduct: Arc<dyn Conduct>) -> Result<End, JoinError> {
    let mut session = Session::open(options, conduct).await?;
    session.enrol().await?;
    let end = session.follow().await;
    // A disk that failed is told of once.
    if !matches!(end, Err(JoinError::Store(_) | JoinError::Follow(FollowError::Store(_)))) {
        session.report();
    }
    end
}

/// The rest of a convict's membership.
struct Dismissal {
    ban: Ban,
    /// Since when it has no seat any more.
    served: Option<Instant>,
    /// Where the evidence is, in words, once the steward was asked.
    evidence: Arc<OnceLock<String>>,
}

impl Dismissal {
    fn verdict(&self) -> JoinError {
        let Ban { round, finding, accuser, evidence, .. } = self.ban;
        let nothing = || format!("the steward has not shown the evidence {evidence}");
        let evidence = self.evidence.get().cloned().unwrap_or_else(nothing);
        JoinError::Banned { round, finding: finding.words(), accuser, evidence }
    }
}

/// Ends the membership from a task in the background.
struct Alarm {
    ring: mpsc::Sender<JoinError>,
    rung: mpsc::Receiver<JoinError>,
}

impl Default for Alarm {
    fn default() -> Self {
        let (ring, rung) = mpsc::channel(1);
        Self { ring, rung }
    }
}

struct Session {
    options: Options,
    conduct: Arc<dyn Conduct>,
    home: Arc<Home>,
    journal: Arc<Journal>,
    shared: Arc<Shared>,
    ledgers: watch::Sender<Arc<Ledger>>,
    follower: Follower,
    duties: Duties,
    checks: Checks,
    answers: Arc<Answers>,
    arithmetic: Arc<Mutex<Box<dyn Backend>>>,
    manifest: Arc<Manifest>,
    dataset: Arc<Dataset>,
    addresses: Addresses,
    progress: Progress,
    endpoint: Endpoint,
    leaves: u64,
    /// Whether the steward has taken the last echo.
    echoed: Echoed,
    dismissal: Option<Dismissal>,
    /// How it ends once the round under way is over.
    leaving: Option<End>,
    /// Writes that failed in the background.
    failures: mpsc::Receiver<StoreError>,
    failed: mpsc::Sender<StoreError>,
    /// Rings when this machine cannot be trusted any more.
    alarm: Alarm,
    /// Stops the server when the session ends.
    _server: Option<oneshot::Sender<()>>,
}

/// The steward, where the invitation says it is.
fn steward_of(ticket: &Ticket) -> Contact {
    let addresses = ticket.addresses.iter().map(|address| address.to_string()).collect();
    Contact { member: ticket.steward, addresses }
}

/// The committed files, from disk or from the steward.
async fn fetch_text(
    options: &Options,
    (peers, steward): (&Peers, &Contact),
    manifest: &Manifest,
    progress: &Progress,
) -> Result<Arc<Dataset>, JoinError> {
    let bar = progress.bytes("the run's files", manifest.data.all_bytes());
    let folder = options.data_dir.join("data");
    let mut told = |done| bar.set_position(done);
    let dataset = fetch_dataset(peers, steward, &manifest.data, &folder, &mut told).await?;
    bar.finish_and_clear();
    Ok(dataset)
}

impl Session {
    async fn open(options: Options, conduct: Arc<dyn Conduct>) -> Result<Self, JoinError> {
        let home = Arc::new(Home::open(&options.data_dir)?);
        home.write_secret("ticket", options.ticket.to_line().as_bytes())?;
        let identity = Arc::new(home.identity()?);
        let endpoint = Endpoint::new(options.ticket.run, identity.clone());
        let peers = Peers::new(endpoint.clone());
        let steward = steward_of(&options.ticket);
        let progress = Progress::new(options.progress);
        let journal = Arc::new(Journal::open(&home)?);
        let (steward, manifest) = reach(&options, &identity, &peers, steward, &journal).await?;
        disk::check_run(&options, &manifest)?;
        let dataset = fetch_text(&options, (&peers, &steward), &manifest, &progress).await?;
        let (arithmetic, replica) = prepare(&options, &manifest, &dataset).await?;
        let mut follower = Follower::new(peers, steward, replica, Some(journal.clone()))?;
        follower.keep_proofs(Home::clone(&home))?;
        let (ledgers, ledger) = watch::channel(Arc::new(follower.ledger().clone()));
        let keep = manifest.retention.states.min(manifest.retention.contributions) as usize;
        let (failed, failures) = mpsc::channel(1);
        let layout = follower.ledger().layout().clone();
        let shared = Arc::new(Shared {
            identity: identity.clone(),
            ledger,
            conduct: conduct.clone(),
            intake: Arc::new(Intake::new(layout, home.clone(), failed.clone())),
            own: Own::new(keep),
            results: follower.results().clone(),
            pledges: Pledges::default(),
            stopwatch: lock(follower.replica()).stopwatch().clone(),
        });
        let (addresses, server) = listen(&options, &journal, endpoint.clone(), shared.clone()).await?;
        join_swarm((&options, &endpoint), &identity, &mut follower, &addresses);
        let answers = Arc::new(Answers::new(options.ticket.run, *home.secret("salt")?));
        Ok(Self {
            duties: Duties::new(identity.id()),
            checks: Checks::new(identity.id()),
            options,
            conduct,
            home,
            journal,
            shared,
            ledgers,
            follower,
            answers,
            arithmetic: Arc::new(Mutex::new(arithmetic)),
            manifest,
            dataset,
            addresses,
            progress,
            endpoint,
            leaves: 0,
            echoed: Echoed(watch::channel(true).1),
            dismissal: None,
            leaving: None,
            failures,
            failed,
            alarm: Alarm::default(),
            _server: server,
        })
    }

    /// Writes down what came of it, for the member and for programs, and the model as it is now.
    fn report(&self) {
        let replica = lock(self.follower.replica());
        let report =
            Report::new(self.me(), self.leaves, &replica, self.endpoint.bytes_sent(), &self.shared.stopwatch);
        let kept = [
            self.home.write_file("result.json", report.json().as_bytes()),
            self.home.write_file(MANIFEST, &self.manifest.bytes()),
            self.home.save_state(replica.round(), replica.state(), replica.roots()),
            // The one before may be what shows a wrong root (AUDIT-13).
            self.home.prune_states(&|round| round == replica.round() || round.next() == replica.round()),
        ];
        for error in kept.into_iter().filter_map(Result::err) {
            tracing::warn!("{error}");
        }
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
        if let Some(member) = self.follower.ledger().member(&me) {
            return match member.standing {
                Standing::Left => Err(JoinError::Over("left the run for good")),
                Standing::Banned => Err(JoinError::Over("was banned from the run")),
                Standing::Active | Standing::Away | Standing::Silent(_) => Ok(()),
            };
        }
        let enrol = Enrol {
            invitation: self.options.ticket.present(me),
            addresses: self.addresses.clone(),
            coins: None,
        };
        let signed = self.identity().sign(self.options.ticket.run, &enrol);
        let answer = self.follower.peers().ask(self.follower.steward(), &Request::Enrol(signed)).await;
        match answer {
            Ok(Response::Done) => {}
            Ok(_) => return Err(JoinError::Refused("an unexpected answer".into())),
            // A member that enrolled just before a crash is told so; the ledger decides.
            Err(PeerError::Refused(why)) => {
                self.follower.step().await?;
                if self.follower.ledger().member(&me).is_none() {
                    return Err(JoinError::Refused(why));
                }
            }
            Err(error) => return Err(FollowError::Steward(error).into()),
        }
        self.progress.line(&format!("admitted as {} {me}", Role::Node.word()));
        Ok(())
    }

    async fn follow(&mut self) -> Result<End, JoinError> {
        let mut interrupt = Box::pin(crate::progress::interrupted());
        let mut interrupted = false;
        loop {
            let idle = self.idle();
            let events = {
                let step = self.follower.step();
                tokio::pin!(step);
                loop {
                    tokio::select! {
                        events = &mut step => break events?,
                        Some(error) = self.failures.recv() => return Err(error.into()),
                        Some(error) = self.alarm.rung.recv() => return Err(error),
                        () = &mut interrupt, if !interrupted => {
                            self.progress.line("finishing the round, then leaving (Ctrl-C again aborts)");
                            interrupted = true;
                            self.leaving.get_or_insert(End::Interrupted);
                            if idle {
                                return Ok(End::Interrupted);
                            }
                        }
                    }
                }
            };
            self.ledgers.send_replace(Arc::new(self.follower.ledger().clone()));
            self.progress.gathering(self.follower.ledger());
            if let Some((evidence, why)) = self.shared.pledges.broken(self.follower.ledger(), &self.journal) {
                return Err(self.follower.convict(&evidence, why).into());
            }
            let mut applied = false;
            for event in events {
                applied |= matches!(event, Event::Applied(..));
                self.event(event)?;
            }
            if let Some(end) = self.leaving.filter(|_| applied || self.idle()) {
                return Ok(end);
            }
            self.come_back().await;
            self.work();
            self.leave_if_dismissed()?;
            // The outcome of the last round may come together with the end.
            if self.follower.ledger().stage() == Stage::Closed && self.follower.in_step() {
                self.progress.finish();
                self.dismissal.as_ref().map_or(Ok(()), |dismissal| Err(dismissal.verdict()))?;
                return Ok(End::Closed { leaves: self.leaves });
            }
        }
    }

    /// Ends the membership of a convict once the round in which it still has a seat is over, and its contributions
    /// could be fetched: others need what it holds.
    fn leave_if_dismissed(&mut self) -> Result<(), JoinError> {
        let ledger = self.follower.ledger();
        let Some(dismissal) = &mut self.dismissal else { return Ok(()) };
        if ledger.next_round() >= dismissal.ban.effective
            && dismissal.served.get_or_insert_with(Instant::now).elapsed() >= LINGER
        {
            return Err(dismissal.verdict());
        }
        Ok(())
    }

    /// Whether no round is under way that this member has a part in.
    fn idle(&self) -> bool {
        let ledger = self.follower.ledger();
        let under_way = matches!(ledger.stage(), Stage::Computing | Stage::Exchanging | Stage::Reducing);
        !under_way || ledger.current().is_none_or(|view| view.slot_of(&self.me()).is_none())
    }

    fn event(&mut self, event: Event) -> Result<(), JoinError> {
        match event {
            Event::Applied(round, _) => {
                self.count(round);
                if !self.conduct.stays(round) {
                    self.leave();
                }
                let horizon = round.0.saturating_sub(self.manifest.retention.contributions);
                if let Err(error) = self.home.prune_contributions(Round(horizon)) {
                    tracing::warn!("old contributions could not be removed: {error}");
                }
                disk::check_round(&self.options, &self.manifest)?;
            }
            Event::Notice(notice) => {
                if let Notice::Result(result) = &*notice
                    && let Err(reject) = self.checks.saw(self.follower.ledger(), result)
                {
                    tracing::debug!("a result on the board: {reject}");
                }
                self.notice(*notice);
            }
            Event::Sealed(record) => match &record.body {
                Body::Ban(ban) if ban.culprit == self.me() => {
                    self.progress.line("banned: serving what this member still holds, then leaving");
                    self.dismissal = Some(self.dismissed(ban));
                }
                Body::Leave(leave) if leave.claimed_signer() == self.me() => {
                    self.progress.line("finishing the round, then leaving for good");
                    self.leaving = Some(End::Left);
                }
                Body::Freeze(freeze) => self.tabulate(freeze.round),
                _ => {}
            },
        }
        Ok(())
    }

    /// Asks, beside everything else, for what this member is banned for.
    fn dismissed(&self, ban: &Ban) -> Dismissal {
        let evidence = Arc::new(OnceLock::new());
        let (peers, steward) = (self.follower.peers().clone(), self.follower.steward().clone());
        let (home, manifest, told) = (self.home.clone(), self.manifest.clone(), evidence.clone());
        let named = ban.clone();
        tokio::spawn(async move {
            let kept = keep_evidence(&peers, &steward, &home, (&manifest, &named)).await;
            let _ = told.set(evidence_words(&kept));
        });
        Dismissal { ban: ban.clone(), served: None, evidence }
    }

    /// Asks to be let go for good.
    fn leave(&self) {
        let ledger = self.follower.ledger();
        let leave = Leave { height: ledger.height() };
        let way = (self.follower.peers().clone(), self.follower.steward().clone());
        post(&way, Request::Notice(Notice::Leave(self.identity().sign(ledger.run(), &leave))));
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
        let mut text = format!("loss {loss:.3}, {counted} of your leaves counted, {} in all", self.leaves);
        let ledger = self.follower.ledger();
        if let Some(newcomer) = ledger.member(&self.me()).filter(|member| !ledger.weighs(member)) {
            text += &format!("; {}", weight(ledger, newcomer));
        }
        self.progress.round(u64::from(round.0) + 1, total, &text);
    }

    /// Says that it is back when the ledger has it away.
    async fn come_back(&self) {
        let ledger = self.follower.ledger();
        let Some(member) = ledger.member(&self.me()) else { return };
        let moved = member.addresses != self.addresses && member.standing == Standing::Active;
        let barred = member.standing == Standing::Away && ledger.is_barred(member.barred);
        let silent = matches!(member.standing, Standing::Silent(_)) && ledger.stage() == Stage::Gathering;
        if !(member.standing == Standing::Away || silent || moved)
            || barred
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
                Duty::Echo { round, freeze } => self.echo(&ledger, round, freeze),
                Duty::Deliver { round, attempt, parts } => {
                    let Some(contribution) = self.contribution(&ledger, round) else {
                        tracing::warn!("the contribution to round {round} is not here any more");
                        // Nobody need wait for it.
                        let receipts = List::new(Vec::new()).expect("none is within every bound");
                        let delivered = Delivered { round, attempt, receipts };
                        tokio::spawn(say_delivered(
                            self.shared.clone(),
                            way.clone(),
                            ledger.clone(),
                            self.echoed.clone(),
                            delivered,
                        ));
                        continue;
                    };
                    let Some(parts) = self.conduct.deliver(round, parts) else { continue };
                    tokio::spawn(deliver(
                        self.shared.clone(),
                        way.clone(),
                        ledger.clone(),
                        contribution,
                        Delivering { round, attempt, parts, echoed: self.echoed.clone() },
                    ));
                }
                Duty::Reduce { round, part, attempt, inputs } => {
                    tokio::spawn(reduce_part(
                        self.shared.clone(),
                        way.clone(),
                        ledger.clone(),
                        self.conduct.clone(),
                        (round, part, attempt, inputs),
                    ));
                }
            }
        }
        if let Some(check) = self.checks.due(&ledger)
            && let Some(contribution) = self.contribution(&ledger, check.round)
        {
            tokio::spawn(check_results(self.shared.clone(), way, ledger, contribution, check));
        }
    }

    /// Says which freeze it has seen. ROUND-5: what it delivers it reports once the steward has taken that.
    fn echo(&mut self, ledger: &Ledger, round: Round, freeze: Digest) {
        let (told, echoed) = watch::channel(false);
        self.echoed = Echoed(echoed);
        if !self.conduct.echoes(round) {
            return;
        }
        let sign = || self.identity().sign(ledger.run(), &Echo { round, freeze });
        let echo = self.shared.stopwatch.time(Phase::Signing, sign);
        match self.journal.put_vote("echo", round, &freeze.0) {
            Ok(first) if first == freeze.0 => {}
            Ok(_) => return,
            Err(error) => return drop(self.failed.try_send(error)),
        }
        let way = (self.follower.peers().clone(), self.follower.steward().clone());
        tokio::spawn(async move {
            tell(&way, &Request::Notice(Notice::Echo(echo))).await;
            told.send_replace(true);
        });
    }
}

/// Tells the steward something, in the background.
fn post(way: &(Peers, Contact), request: Request) {
    let way = way.clone();
    tokio::spawn(async move { drop(tell(&way, &request).await) });
}
