//! Drives the steward's machine: what it decides is written, fetched, computed and said here, and nothing is decided.
//!
//! Everything reaches it as an [`Inbound`] through one bounded queue. After each message it performs the machine's
//! effects in their order; what takes long runs in tasks that send their results back.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use muster_core::codec::encode;
use muster_core::error::Reject;
use muster_core::ids::{Height, MemberId};
use muster_core::lock::lock;
use muster_core::messages::record::{Body, Record, Rewind};
use muster_core::messages::round::PartResult;
use muster_core::messages::wire::{PutBlocks, Request, Response};
use muster_core::sign::{Identity, Signed};
use muster_replica::{Gossiping, HeldState, Results, WantedContribution, WantedValues, contact};
use muster_roles::steward::accusation::Allegation;
use muster_roles::steward::exhibits::{Counted, OwedContribution, OwedPart, Purpose};
use muster_roles::steward::hearing::Matter;
use muster_roles::steward::{HostingEnd, KeptContribution, Question, Steward, StewardEffect, StewardInput};
use muster_store::error::StoreError;
use muster_store::journal::Journal;
use tokio::sync::{mpsc, oneshot, watch};

use super::apply::Applying;
use super::board::Board;
use super::court::{Court, Wants};
use super::inbox::Inbox;
use super::presence::Connections;
use super::recover::write_down;
use super::report::Reporter;
use super::retro::ConvictRound;
use crate::exit::{Failure, Outcome};
use crate::intake::Intake;
use crate::organise::invite;
use crate::show::Shown;

/// Messages that wait for the driver at most; more of them wait at their senders.
pub(super) const QUEUE: usize = 256;
/// Longest sleep: the disk may have moved.
const TURN: u64 = 500;
/// How long a hearing waits for what it wants.
const PATIENCE: Duration = Duration::from_secs(60);

/// What reaches the driver.
pub(super) enum Inbound {
    /// A request of a member or stranger.
    Ask {
        /// Who asks, by the handshake.
        peer: MemberId,
        /// What.
        request: Box<Request>,
        /// Where the answer goes.
        answer: oneshot::Sender<Response>,
    },
    /// An input of the machine: news, or work that is done.
    Input(StewardInput),
    /// This machine cannot go on.
    Failed(Failure),
}

/// Tells hearings, when it is dropped, that nobody waits for them any more.
pub(super) struct StopHearings(pub(super) watch::Sender<bool>);

impl Drop for StopHearings {
    fn drop(&mut self) {
        self.0.send_replace(true);
    }
}

/// The machine, and what it takes to do what it says.
pub(super) struct StewardDriver {
    pub(super) machine: Steward,
    pub(super) board: Arc<Board>,
    pub(super) journal: Arc<Journal>,
    pub(super) identity: Arc<Identity>,
    pub(super) court: Arc<Court>,
    pub(super) results: Results,
    pub(super) intake: Arc<Intake>,
    pub(super) presence: Arc<Connections>,
    pub(super) inbox: Inbox,
    pub(super) report: Reporter,
    pub(super) gossip: Option<Gossiping>,
    /// Shows the run to browsers, if anybody wants to see it.
    pub(super) shown: Option<Shown>,
    /// Writes that failed beside the driver.
    pub(super) failures: mpsc::Receiver<StoreError>,
    pub(super) queue: mpsc::Receiver<Inbound>,
    pub(super) sender: mpsc::Sender<Inbound>,
    pub(super) began: Instant,
    /// Requests that wait for their answers.
    pub(super) questions: Questions,
    /// Who had a connection when the machine was last told.
    pub(super) connected: BTreeSet<MemberId>,
    /// Held for as long as somebody waits for hearings.
    pub(super) _stop: StopHearings,
}

/// Requests that wait for their answers, numbered as they come.
#[derive(Default)]
pub(super) struct Questions {
    next: u64,
    open: BTreeMap<Question, oneshot::Sender<Response>>,
}

impl Questions {
    fn ask(&mut self, answer: oneshot::Sender<Response>) -> Question {
        let question = Question(self.next);
        self.next += 1;
        self.open.insert(question, answer);
        question
    }

    fn answer(&mut self, question: Question, response: Response) {
        if let Some(answer) = self.open.remove(&question) {
            let _ = answer.send(response);
        }
    }
}

impl StewardDriver {
    /// Hosts until the run is over or an interrupted round has ended.
    ///
    /// # Errors
    /// [`Failure`] when this machine cannot go on.
    pub(super) async fn run(mut self) -> Outcome<HostingEnd> {
        loop {
            self.attend();
            // Also where nothing came: clocks run out on their own.
            self.machine.handle(self.now(), StewardInput::Tick);
            while let Some(effect) = self.machine.poll_effect() {
                self.perform(effect)?;
            }
            if let Some(ending) = self.machine.ending(self.now(), self.presence.is_empty()) {
                return Ok(ending);
            }
            let pause = self.pause();
            tokio::select! {
                Some(message) = self.queue.recv() => self.take(message)?,
                Some(error) = self.failures.recv() => return Err(error.into()),
                () = self.presence.changed() => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// Milliseconds since it began.
    fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn pause(&self) -> Duration {
        let now = self.now();
        let due = self.machine.poll_timeout().unwrap_or(now + TURN);
        Duration::from_millis(due.saturating_sub(now).clamp(1, TURN))
    }

    fn take(&mut self, message: Inbound) -> Outcome<()> {
        let input = match message {
            Inbound::Ask { peer, request, answer } => {
                let question = self.questions.ask(answer);
                StewardInput::Asked { question, from: peer, request, date: invite::now() }
            }
            Inbound::Input(input) => input,
            Inbound::Failed(failure) => return Err(failure),
        };
        // Whoever asks is there.
        self.attend();
        self.machine.handle(self.now(), input);
        Ok(())
    }

    /// Tells the machine who came and who went.
    fn attend(&mut self) {
        let Some(connected) = self.presence.since(&self.connected) else { return };
        let now = self.now();
        for member in connected.difference(&self.connected) {
            self.machine.handle(now, StewardInput::Connected(*member, true));
        }
        for member in self.connected.difference(&connected) {
            self.machine.handle(now, StewardInput::Connected(*member, false));
        }
        self.connected = connected;
    }

    fn perform(&mut self, effect: StewardEffect) -> Outcome<()> {
        match effect {
            StewardEffect::Seal(signed, record) => return self.seal(*signed, &record),
            StewardEffect::Post(notice) => {
                if let Some(shown) = &self.shown {
                    shown.view.hear(&notice);
                }
                self.board.post(notice);
            }
            StewardEffect::Answer(question, response) => self.questions.answer(question, response),
            // ROUND-16: the receipt is a later effect, so that what has one is on the disk.
            StewardEffect::Keep(round, request) => return self.inbox.keep(round, &request),
            StewardEffect::Store(question, sender, put) => self.store(question, &sender, *put),
            // In a task: the driver must not wait for the disk, however much is asked for.
            StewardEffect::Read(question, query, root) => {
                let Some(answer) = self.questions.open.remove(&question) else { return Ok(()) };
                let read = self.intake.clone().answer(query, root);
                tokio::spawn(async move {
                    let refused = |reject: Reject| Response::refused(&reject.to_string());
                    let _ = answer.send(read.await.unwrap_or_else(refused));
                });
            }
            StewardEffect::Apply(results) => {
                self.report.reached("results");
                self.apply(&results);
            }
            StewardEffect::Prefetch(result) => self.prefetch(&result),
            StewardEffect::Hear(accusation, matter) => {
                self.hear(*accusation, *matter, PATIENCE, |accusation, ruling| {
                    StewardInput::Heard(Box::new(accusation), Box::new(ruling))
                });
            }
            StewardEffect::Inspect(accusation, matter) => {
                // The round waits for this, so that holders who never answer must not hold it up for longer than its timer.
                let patience = Duration::from_millis(self.court.manifest.timers.result.into());
                self.hear(*accusation, *matter, patience, |accusation, ruling| {
                    StewardInput::Inspected(Box::new(accusation), Box::new(ruling.judgement))
                });
            }
            StewardEffect::KeepEvidence(evidence, exhibit) => {
                if let Some(KeptContribution { round, member, q }) = exhibit {
                    self.court.home.save_exhibit(round, &member, &q)?;
                }
                self.court.home.save_evidence(&evidence)?;
            }
            StewardEffect::Exhibit(owed) => self.exhibit(owed),
            StewardEffect::KeepParts { parts, at_once } => self.keep_parts(parts, at_once),
            StewardEffect::Measure(convict) => self.measure(convict),
            StewardEffect::GoBack(rewind) => return self.go_back(&rewind),
            StewardEffect::Prune(horizon) => {
                self.inbox.prune(horizon)?;
                self.court.home.prune_contributions(horizon)?;
                self.write_down();
            }
            StewardEffect::Archive => return self.archive(),
            StewardEffect::Tell(news) => {
                self.report.tell(&news, self.machine.ledger(), self.machine.duties())
            }
            StewardEffect::Halt(why) => return Err(Failure::environment(why)),
        }
        Ok(())
    }

    fn seal(&mut self, signed: Signed<Record>, record: &Record) -> Outcome<()> {
        // LEDGER-3: durable before gossip, the board or an answer shows it.
        self.journal.append(record.height, &signed)?;
        if let Some(gossip) = &self.gossip {
            gossip.seal(&self.identity, self.machine.ledger(), &signed, record);
        }
        self.board.seal(signed);
        match &record.body {
            Body::Return(back) => {
                let found = contact(self.machine.ledger(), &back.claimed_signer());
                found.inspect(|found| self.court.peers.returned(found));
            }
            Body::Freeze(_) => self.report.reached("freeze"),
            Body::Inputs(_) => self.report.reached("inputs"),
            _ => {}
        }
        self.report.gathering(self.machine.ledger());
        Ok(())
    }

    fn store(&mut self, question: Question, sender: &MemberId, put: PutBlocks) {
        let view = self.machine.ledger().round(put.round);
        let stored = view
            .ok_or(Reject::Stale("the round is not remembered"))
            .and_then(|view| self.intake.take(view, &self.identity.id(), sender, put));
        self.machine.handle(self.now(), StewardInput::Stored(question, stored));
    }

    /// Fetches a round's results and applies them, in a task.
    fn apply(&self, sealed: &[Option<Signed<PartResult>>]) {
        let task = Applying::of(self.machine.ledger(), sealed, self.court.clone(), self.results.clone());
        let Some(task) = task else { return };
        let (court, sender) = (self.court.clone(), self.sender.clone());
        tokio::spawn(async move {
            match task.run().await {
                Ok(applied) => {
                    let _ = sender
                        .send(Inbound::Input(StewardInput::Applied(applied, court.kept_states())))
                        .await;
                }
                Err(failure) => {
                    let _ = sender.send(Inbound::Failed(failure)).await;
                }
            }
        });
    }

    /// Fetches a part's values while contributors look at them.
    fn prefetch(&self, signed: &Signed<PartResult>) {
        let ledger = self.machine.ledger();
        let Ok(result) = signed.verify(ledger.run()) else { return };
        let author = result.author();
        let wanted = WantedValues::of(ledger, result.into_inner(), std::iter::once(author));
        let Some(wanted) = wanted.filter(|wanted| !wanted.holders.is_empty()) else { return };
        let (results, court) = (self.results.clone(), self.court.clone());
        tokio::spawn(async move {
            if let Err(error) = results.fetch(&court.peers, &wanted).await {
                let PartResult { round, part, .. } = wanted.result;
                tracing::debug!("part {part} of round {round} is not there yet: {error}");
            }
        });
    }

    fn hear(
        &self,
        accusation: Allegation,
        matter: Matter,
        patience: Duration,
        input: impl FnOnce(Allegation, muster_roles::steward::hearing::Ruling) -> StewardInput + Send + 'static,
    ) {
        let wants = Wants::of(self.machine.ledger(), &accusation.evidence, &accusation.claim);
        let (court, sender) = (self.court.clone(), self.sender.clone());
        tokio::spawn(async move {
            let message = match court.hear(matter, wants, patience).await {
                Ok(ruling) => Inbound::Input(input(accusation, ruling)),
                Err(failure) => Inbound::Failed(failure),
            };
            let _ = sender.send(message).await;
        });
    }

    fn exhibit(&self, owed: OwedContribution) {
        let OwedContribution { round, member, purpose } = owed;
        let ledger = self.machine.ledger();
        let exact = self.court.is_exact();
        let counted = ledger.round(round).map(|view| Counted::of(ledger, view, &member));
        let (wanted, court, sender) =
            (WantedContribution::of(ledger, round, member), self.court.clone(), self.sender.clone());
        tokio::spawn(async move {
            let kept = match (wanted, counted, purpose) {
                (Some(wanted), Some(counted), Purpose::Suspect | Purpose::Convict) if exact => {
                    court.exhibit_blocks(&wanted, &counted, purpose == Purpose::Convict).await
                }
                // TOL-6: with a tolerance, whole contributions are compared.
                (Some(wanted), _, Purpose::Convict) => court.exhibit(&wanted).await,
                (Some(wanted), _, _) => court.obtain(&wanted).await,
                (None, ..) => Err("its round is forgotten".to_owned()),
            };
            let _ = sender.send(Inbound::Input(StewardInput::Exhibited(owed, kept))).await;
        });
    }

    fn keep_parts(&mut self, parts: Vec<OwedPart>, at_once: bool) {
        if at_once {
            let lost = self.court.exhibit_parts(parts.clone());
            return self.machine.handle(self.now(), StewardInput::PartsKept(parts, lost));
        }
        let (court, sender) = (self.court.clone(), self.sender.clone());
        tokio::spawn(async move {
            let of_all = parts.clone();
            let lost = tokio::task::spawn_blocking(move || court.exhibit_parts(of_all)).await;
            // A task that fails has kept nothing, as far as anybody knows.
            let lost = lost.unwrap_or_else(|_| parts.clone());
            let _ = sender.send(Inbound::Input(StewardInput::PartsKept(parts, lost))).await;
        });
    }

    fn measure(&self, convict: MemberId) {
        let jobs = ConvictRound::of(self.machine.ledger(), &convict);
        let (court, sender) = (self.court.clone(), self.sender.clone());
        tokio::spawn(async move {
            let past = court.retro_all(jobs).await;
            let _ = sender.send(Inbound::Input(StewardInput::Measured(convict, past))).await;
        });
    }

    /// Takes the replica back to the state of the ledger, and writes it down, so that a restart finds it.
    fn go_back(&mut self, rewind: &Rewind) -> Outcome<()> {
        let round = self.machine.ledger().next_round();
        let HeldState { state, rows, roots } = {
            let mut replica = lock(&self.court.replica);
            // The machine was told which states are kept: without this one, what follows would be of another
            // state.
            if !replica.rewind(&rewind.state, round) {
                return Err(Failure::environment("the state to go back to is not kept; start again"));
            }
            replica.held_state().clone()
        };
        self.court.home.save_state_and_rows(round, &state, &rows, &roots)?;
        self.court.home.prune_states(&|kept| kept <= rewind.to || kept == round)?;
        // STATE-10: what was kept for others before is of rounds that were taken back.
        self.court.offers.keep_now()?;
        self.machine.handle(self.now(), StewardInput::States(self.court.kept_states()));
        Ok(())
    }

    fn write_down(&self) {
        let (court, sender) = (self.court.clone(), self.sender.clone());
        tokio::spawn(async move {
            let written = tokio::task::spawn_blocking(move || write_down(&court)).await;
            if let Ok(Err(failure)) = written {
                let _ = sender.send(Inbound::Failed(failure)).await;
            }
        });
    }

    /// Writes the records into one file, so that the folder is an archive.
    fn archive(&self) -> Outcome<()> {
        let mut bytes = Vec::new();
        let mut height = Height(0);
        while height < self.machine.ledger().height() {
            for record in self.journal.records(height, 256)? {
                let record = encode(&record);
                bytes.extend((record.len() as u32).to_le_bytes());
                bytes.extend(record);
                height = height.next();
            }
        }
        Ok(self.court.home.write_file("ledger.bin", &bytes)?)
    }
}
