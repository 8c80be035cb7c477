//! Drives the verifier's machine: hands it what happens and performs what it says.

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use muster_core::ledger::Service;
use muster_core::limits;
use muster_core::lock::lock;
use muster_replica::archive::mean_loss;
use muster_replica::exit::Failure;
use muster_replica::{Event, FollowError, Follower, StopRequests, evidence_words};
use muster_roles::verifier::audits::{Tally, Work};
use muster_roles::verifier::{HaltCause, Integers, LedgerUpdate, Verifier, VerifierEffect, VerifierInput};
use muster_view::status::desk::Inquiry;
use muster_view::words::audits;
use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinHandle, JoinSet};
use tracing::info;

use super::fetch::{FetchPlan, Inspected};
use super::status::Seen;
use super::tools::{Contacts, Tools};
use crate::worker::AuditWorker;

/// The longest pause between two looks at the timers.
const TURN: Duration = Duration::from_secs(60);

/// How watching ended.
pub enum WatchEnd {
    /// The run is over: what this process found, and what the records say of this verifier.
    Closed(Tally, Service),
    /// Somebody asked it to stop.
    Interrupted,
}

/// The machine, and what its effects are performed with.
pub(super) struct VerifierDriver {
    machine: Verifier,
    tools: Arc<Tools>,
    worker: Arc<Mutex<AuditWorker>>,
    contacts: Contacts,
    /// What goes on beside the machine. It ends with the driver.
    tasks: JoinSet<Result<VerifierInput<'static>, Failure>>,
    /// What is being written down, one thing after the other. News wait for it, and nothing else does.
    writes: Option<JoinHandle<Result<(), Failure>>>,
    began: Instant,
    interrupted: bool,
    /// What the records say of this verifier.
    service: Service,
    /// Who wants to know what this program does, and what it has seen.
    asked: mpsc::Receiver<Inquiry>,
    seen: Seen,
}

type Step = Pin<Box<dyn Future<Output = (Follower, Result<Vec<Event>, FollowError>)>>>;

/// Follows until something has happened.
fn step(mut follower: Follower) -> Step {
    Box::pin(async move {
        let events = follower.step().await;
        (follower, events)
    })
}

impl VerifierDriver {
    pub(super) fn new(
        machine: Verifier,
        tools: Tools,
        worker: AuditWorker,
        asked: mpsc::Receiver<Inquiry>,
    ) -> Self {
        Self {
            machine,
            tools: Arc::new(tools),
            worker: Arc::new(Mutex::new(worker)),
            contacts: Contacts::default(),
            tasks: JoinSet::new(),
            writes: None,
            began: Instant::now(),
            interrupted: false,
            service: Service::default(),
            asked,
            seen: Seen::default(),
        }
    }

    /// Audits until the run closes or somebody asks it to stop; a second request does not wait for the work under way.
    ///
    /// # Errors
    /// [`Failure`]; negative when the steward breaks a rule.
    pub(super) async fn run(mut self, follower: Follower) -> Result<WatchEnd, Failure> {
        let mut following = step(follower);
        let mut stops = StopRequests::listen();
        loop {
            while let Some(effect) = self.machine.poll_effect() {
                if let Some(ended) = self.perform(effect).await? {
                    return Ok(ended);
                }
            }
            let pause = self.pause();
            tokio::select! {
                (follower, events) = &mut following, if !self.interrupted && self.writes.is_none() => {
                    self.news(&follower, &events?);
                    following = step(follower);
                }
                Some(done) = self.tasks.join_next() => self.take(done)?,
                Some(inquiry) = self.asked.recv() => {
                    inquiry.answer(self.seen.status(&self.tools.session, self.tasks.len()));
                }
                written = finished(&mut self.writes), if self.writes.is_some() => written?,
                () = stops.next() => {
                    if std::mem::replace(&mut self.interrupted, true) {
                        return Ok(WatchEnd::Interrupted);
                    }
                    info!("finishing the work under way, then leaving; Ctrl-C again leaves at once");
                    self.machine.handle(self.now(), VerifierInput::Stop);
                }
                () = tokio::time::sleep(pause) => self.machine.handle(self.now(), VerifierInput::Tick),
            }
        }
    }

    /// Milliseconds since it began.
    fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn pause(&self) -> Duration {
        let due = self.machine.poll_timeout().map(|due| due.saturating_sub(self.now()).max(1));
        due.map_or(TURN, Duration::from_millis).min(TURN)
    }

    fn news(&mut self, follower: &Follower, events: &[Event]) {
        let ledger = follower.ledger();
        self.seen.see(ledger);
        self.contacts = Contacts::of(ledger);
        let own = ledger.member(&self.tools.session.identity.id());
        self.service = own.map(|own| own.service).unwrap_or_default();
        // Before the news: what to ask follows from the states at hand.
        self.machine.handle(self.now(), VerifierInput::States(self.tools.states()));
        let (whole, in_step, board) = (is_whole(events), follower.in_step(), follower.board());
        self.machine
            .handle(self.now(), VerifierInput::News(LedgerUpdate { ledger, events, whole, in_step, board }));
        self.tell_applied(follower, events);
    }

    /// Shows which round was applied, for people.
    fn tell_applied(&self, follower: &Follower, events: &[Event]) {
        let applied = events.iter().rev().find_map(|event| match event {
            Event::Applied(round, _) => Some(*round),
            Event::Sealed(_) | Event::Notice(_) => None,
        });
        let Some(view) = applied.and_then(|round| follower.ledger().round(round)) else { return };
        info!("round {} is over: loss {:.4}; {}", view.round(), mean_loss(view), audits(&self.service));
    }

    fn take(
        &mut self,
        done: Result<Result<VerifierInput<'static>, Failure>, JoinError>,
    ) -> Result<(), Failure> {
        let done = done.map_err(|error| Failure::environment(format!("computing failed: {error}")))??;
        self.machine.handle(self.now(), done);
        Ok(())
    }

    async fn perform(&mut self, effect: VerifierEffect) -> Result<Option<WatchEnd>, Failure> {
        let tools = self.tools.clone();
        match effect {
            VerifierEffect::Tell(message) => {
                self.tasks.spawn(async move {
                    let answer = tools.tell(&message).await?;
                    Ok(VerifierInput::Told(message, answer))
                });
            }
            VerifierEffect::Compute(work, q) => self.compute(work, q),
            VerifierEffect::Fetch(subject) => {
                let wanted = FetchPlan::of(subject, &self.contacts, &tools.session.target.steward);
                self.tasks.spawn(async move {
                    let found = tools.fetch_in_time(&wanted).await.map(Arc::new);
                    Ok(VerifierInput::Fetched(wanted.subject.key(), found))
                });
            }
            VerifierEffect::Look(drawn) => {
                let part = Inspected::of(drawn, &self.contacts);
                self.tasks.spawn(async move {
                    let seen = tools.look(&part).await;
                    Ok(VerifierInput::Looked(part.drawn, seen))
                });
            }
            VerifierEffect::Doubt(drawn, evidence) => {
                let part = Inspected::of(drawn, &self.contacts);
                self.tasks.spawn(async move {
                    let judgement = tools.doubt(&part, (*evidence).clone()).await?;
                    Ok(VerifierInput::Judged { drawn: part.drawn, evidence, judgement })
                });
            }
            VerifierEffect::KeepStates { wanted, fresh } => {
                self.write(async move { tools.keep_states(wanted, fresh).await });
            }
            VerifierEffect::SaveState => self.write(async move { tools.save_state().await }),
            VerifierEffect::KeepEvidence(ban) => {
                tokio::spawn(async move {
                    info!(
                        "of the ban of {}: {}",
                        ban.culprit,
                        evidence_words(&tools.keep_evidence(&ban).await)
                    );
                });
            }
            VerifierEffect::Halt(cause) => return Err(self.failure(cause).await),
            // No state is written down here: one whose root was not yet compared would be believed the next time.
            VerifierEffect::End if self.interrupted => return Ok(Some(WatchEnd::Interrupted)),
            VerifierEffect::End => {
                // Writes go in order: the last state must not be overtaken by an earlier one.
                finished(&mut self.writes).await?;
                let tally = self.machine.tally();
                tools.save_state().await?;
                tools.write_result(&tally)?;
                return Ok(Some(WatchEnd::Closed(tally, self.service)));
            }
        }
        Ok(None)
    }

    fn compute(&mut self, work: Box<Work>, q: Integers) {
        let (tools, worker) = (self.tools.clone(), self.worker.clone());
        self.tasks.spawn_blocking(move || {
            // The run goes on meanwhile, and states are dropped.
            let Some(state) = tools.kept(&work.subject.commit.state) else {
                return Ok(VerifierInput::Lacking(work, tools.states()));
            };
            let mut witness = tools.witness(&work, state, q);
            let begun = Instant::now();
            let done = lock(&worker).perform(&work, &mut witness);
            lock(&tools.spent).computed(&work.kind, begun.elapsed());
            Ok(VerifierInput::Worked(work, done))
        });
    }

    /// Writes something down after all that was to be written before it: the oldest whole state goes only when the
    /// parameters that it would be needed for are there.
    fn write(&mut self, writing: impl Future<Output = Result<(), Failure>> + Send + 'static) {
        let mut before = self.writes.take();
        self.writes = Some(tokio::spawn(async move {
            finished(&mut before).await?;
            writing.await
        }));
    }

    /// What a person reads.
    async fn failure(&self, cause: HaltCause) -> Failure {
        let me = self.tools.session.identity.id();
        match cause {
            HaltCause::Unwritten(why) | HaltCause::Faulty(why) => Failure::environment(why),
            HaltCause::Banned(Some(ban)) => {
                let words = ban.finding.words();
                let where_it_is = evidence_words(&self.tools.keep_evidence(&ban).await);
                Failure::negative(format!(
                    "this verifier was banned for a {words} in round {}, found by {}; {where_it_is}",
                    ban.round, ban.accuser
                ))
            }
            HaltCause::Banned(None) => {
                Failure::negative("this verifier was banned; it audits nothing any more")
            }
            HaltCause::Stranger => {
                Failure::usage(format!("{me} is no member of this run: run `muster-verifier enroll` again"))
            }
        }
    }
}

/// Waits for what is being written down.
async fn finished(writes: &mut Option<JoinHandle<Result<(), Failure>>>) -> Result<(), Failure> {
    let Some(task) = writes else { return Ok(()) };
    let written = task.await;
    *writes = None;
    written.map_err(|error| Failure::environment(format!("writing a state failed: {error}")))?
}

/// Whether a batch of news was not cut off.
fn is_whole(events: &[Event]) -> bool {
    let count = |kind: fn(&Event) -> bool| events.iter().filter(|event| kind(event)).count();
    count(|event| matches!(event, Event::Notice(_))) < limits::PULL_NOTICES
        && count(|event| matches!(event, Event::Sealed(_))) < limits::PULL_RECORDS
}
