//! Drives the steward's machine: what it decides is written, fetched, computed and said here, and nothing is decided.
//!
//! Requests reach it by turns ([`Asks`]), and everything else as an [`Inbound`] through a bounded queue. After each message
//! it performs the machine's effects in their order; what takes long runs in tasks that send their results back. It has a
//! thread of its own: whatever strangers have the shared threads do, it goes on.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use muster_core::codec::encode;
use muster_core::error::Reject;
use muster_core::ids::{Height, MemberId, Round};
use muster_core::ledger::{RoundView, Stage};
use muster_core::lock::lock;
use muster_core::messages::record::{Body, Record, Rewind};
use muster_core::messages::round::PartResult;
use muster_core::messages::wire::{InputQuery, PutBlocks, Response};
use muster_core::round::ClaimedDelivery;
use muster_core::sign::{Identity, Signed};
use muster_keeper::intake::Intake;
use muster_keeper::shares::{Places, Rank};
use muster_net::clock::now;
use muster_replica::exit::{Failure, Outcome};
use muster_replica::{Gossiping, HeldState, Results, WantedContribution, contact};
use muster_roles::keeper::Wanted;
use muster_roles::steward::accusation::Allegation;
use muster_roles::steward::exhibits::{Counted, OwedContribution, OwedPart, PartName, Purpose};
use muster_roles::steward::hearing::Matter;
use muster_roles::steward::{Bulletin, Dial, HostingEnd, Question, Steward, StewardEffect, StewardInput};
use muster_show::Shown;
use muster_store::error::StoreError;
use muster_store::journal::Journal;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};

use super::apply::{Applying, obtain, wanted_values};
use super::asks::{Ask, Asks};
use super::board::Board;
use super::clock::Clock;
use super::court::{Court, Wants};
use super::dial_back::DialBack;
use super::held_out::{HeldOut, HeldOutLoss};
use super::inbox::Inbox;
use super::presence::Connections;
use super::questions::Questions;
use super::recover::write_down;
use super::report::Reporter;
use super::retro::ConvictRound;
use super::stand_in::StandIn;
use super::status::{Watched, status};

/// Messages that wait for the driver at most; more of them wait at their senders.
pub(super) const QUEUE: usize = 256;
/// Longest sleep: the disk may have moved.
const TURN: u64 = 500;
/// Deliveries that are checked, and blocks that are proved at once, one of each member.
pub(super) const WORK: usize = 2;
/// How long a hearing waits for what it wants.
const PATIENCE: Duration = Duration::from_secs(60);

/// What reaches the driver.
pub(super) enum Inbound {
    /// An input of the machine: news, or work that is done.
    Input(StewardInput),
    /// The loss of a state on the held-out text.
    Measured(HeldOutLoss),
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
    /// Whose blocks may be proved, and whose receipts checked now.
    pub(super) work: Arc<Places>,
    pub(super) dial_back: Arc<DialBack>,
    /// The round that was last wanted by a task, with the height of the ledger.
    pub(super) view: Option<((Height, Round), Arc<RoundView>)>,
    pub(super) presence: Arc<Connections>,
    pub(super) inbox: Inbox,
    pub(super) report: Reporter,
    pub(super) gossip: Option<Gossiping>,
    /// Shows the run to browsers, if anybody wants to see it.
    pub(super) shown: Option<Shown>,
    /// Who wants to know what the steward does.
    pub(super) watched: Watched,
    /// Measures the loss on the held-out text.
    pub(super) held_out: HeldOut,
    /// Whether hosting ends with the run.
    pub(super) exit_when_done: bool,
    /// Writes that failed beside the driver.
    pub(super) failures: mpsc::Receiver<StoreError>,
    pub(super) asks: Arc<Asks>,
    pub(super) queue: mpsc::Receiver<Inbound>,
    pub(super) sender: mpsc::Sender<Inbound>,
    /// Where tasks run.
    pub(super) tasks: Handle,
    pub(super) clock: Clock,
    /// Requests that wait for their answers.
    pub(super) questions: Questions,
    /// Who had a connection when the machine was last told.
    pub(super) connected: BTreeSet<MemberId>,
    /// Held for as long as somebody waits for hearings.
    pub(super) _stop: StopHearings,
}

/// Work for a member in a thread for such work, once it is its turn.
async fn in_turn<T: Send + 'static>(
    places: Arc<Places>,
    rank: Rank,
    member: MemberId,
    work: impl FnOnce() -> Result<T, Reject> + Send + 'static,
) -> Result<T, Reject> {
    let done = places.work(rank, member, work).await;
    done.unwrap_or(Err(Reject::Stale("this steward is stopping")))
}

impl StewardDriver {
    /// Hosts until the run is over or an interrupted round has ended.
    ///
    /// # Errors
    /// [`Failure`] when this machine cannot go on.
    pub(super) async fn run(mut self) -> Outcome<HostingEnd> {
        let mut first = None;
        // What is due from the beginning comes before anybody is answered: a run that is not open admits nobody.
        self.handle(StewardInput::Tick)?;
        // An earlier process may have stopped before it was measured.
        self.measure_held_out();
        self.conclude();
        loop {
            if self.clock.turn(self.machine.poll_timeout()) {
                self.machine.handle(self.now(), StewardInput::Resumed);
            }
            if let Some(message) = first.take() {
                self.take(message)?;
            }
            self.take_waiting()?;
            self.clock.catch_up();
            // Also where nothing came: clocks run out on their own.
            self.handle(StewardInput::Tick)?;
            let ending = self.machine.ending(self.now(), self.presence.is_empty());
            if let Some(ending) = ending.filter(|ending| self.may_end(*ending)) {
                return Ok(ending);
            }
            self.report.gathering(self.machine.ledger());
            self.watched.pulse.at(self.machine.ledger());
            let pause = self.pause();
            first = tokio::select! {
                Some(message) = self.queue.recv() => Some(message),
                Some(error) = self.failures.recv() => return Err(error.into()),
                () = self.asks.come() => None,
                () = self.presence.changed() => None,
                Some(inquiry) = self.watched.next() => {
                    let (own, peers) = (self.identity.id(), &self.court.peers);
                    let pulse = &self.watched.pulse;
                    inquiry.answer(status(&self.machine, &own, peers, &self.connected, pulse));
                    None
                }
                () = tokio::time::sleep(pause) => None,
            };
        }
    }

    /// Whether nobody wants more of the steward: a run that is over is served until somebody stops it, or at least measured.
    fn may_end(&self, ending: HostingEnd) -> bool {
        let is_done = self.exit_when_done && !self.held_out.is_under_way();
        ending == HostingEnd::Stopped || self.machine.is_interrupted() || is_done
    }

    /// Has the newest state measured on the held-out text, if its round is one of those for that.
    fn measure_held_out(&mut self) {
        self.held_out.at(&self.court.replica, self.machine.ledger().next_round());
    }

    /// Says how the run ended, once it has and its last state is measured.
    fn conclude(&mut self) {
        if self.machine.ledger().stage() == Stage::Closed && !self.held_out.is_under_way() {
            let served = if self.shown.is_some() { "records, state and pages" } else { "records and state" };
            self.report.conclude(&self.court.manifest, (!self.exit_when_done).then_some(served));
        }
    }

    /// Takes in everything that waits. ROUND-37: also where a timer is over by now, what came before counts as in time.
    fn take_waiting(&mut self) -> Outcome<()> {
        for _ in 0..QUEUE {
            let Ok(message) = self.queue.try_recv() else { break };
            self.take(message)?;
        }
        // Those that are there: others wait for the next turn, or clocks would stand still for them.
        for _ in 0..self.asks.waiting() {
            let Some(Ask { peer, request, answer, .. }) = self.asks.take() else { break };
            let question = self.questions.ask(peer, answer);
            self.handle(StewardInput::Asked { question, from: peer, request, date: now() })?;
        }
        Ok(())
    }

    /// Milliseconds since it began.
    fn now(&self) -> u64 {
        self.clock.now()
    }

    fn pause(&self) -> Duration {
        let now = self.clock.real();
        let due = self.machine.poll_timeout().unwrap_or(now + TURN);
        Duration::from_millis(due.saturating_sub(now).clamp(1, TURN))
    }

    fn take(&mut self, message: Inbound) -> Outcome<()> {
        match message {
            Inbound::Input(input) => self.handle(input),
            Inbound::Measured(measured) => {
                self.held_out.done();
                self.report.measured(measured);
                self.conclude();
                Ok(())
            }
            Inbound::Failed(failure) => Err(failure),
        }
    }

    /// Has the machine take something in, and does what it says.
    fn handle(&mut self, input: StewardInput) -> Outcome<()> {
        // Whoever asks is there.
        self.attend();
        self.machine.handle(self.now(), input);
        while let Some(effect) = self.machine.poll_effect() {
            self.perform(effect)?;
        }
        self.clock.see();
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
            StewardEffect::Store(question, sender, put) => self.store(question, sender, *put),
            StewardEffect::DialBack(question, dial) => self.dial(question, dial),
            StewardEffect::CheckDelivery(question, claimed) => self.check_delivery(question, *claimed),
            StewardEffect::Read(question, query, wanted) => self.read(question, query, wanted),
            StewardEffect::Apply(results) => {
                self.report.reached("results");
                self.apply(&results);
            }
            StewardEffect::Prefetch(result, author) => self.prefetch(*result, author),
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
                self.court.keep_evidence(&evidence, exhibit)?;
            }
            StewardEffect::Exhibit(owed) => self.exhibit(owed),
            StewardEffect::KeepParts { parts, at_once } => self.keep_parts(parts, at_once),
            StewardEffect::DropParts(parts) => self.drop_parts(&parts)?,
            StewardEffect::Measure(convict) => self.measure(convict),
            StewardEffect::GoBack(rewind) => return self.go_back(&rewind),
            StewardEffect::Prune(horizon) => {
                self.inbox.prune(horizon)?;
                self.court.home.prune_contributions(horizon)?;
                self.write_down();
            }
            StewardEffect::Archive => return self.archive(),
            StewardEffect::Tell(news) => {
                self.report.tell(&news, self.machine.ledger(), self.machine.duties());
                match *news {
                    Bulletin::Ended(..) => self.measure_held_out(),
                    Bulletin::Closed(_) => self.conclude(),
                    _ => {}
                }
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
        self.presence.sealed(&record.body);
        self.board.seal(signed);
        self.asks.learn(self.machine.ledger());
        match &record.body {
            Body::Return(back) => {
                let found = contact(self.machine.ledger(), &back.claimed_signer());
                found.inspect(|found| self.court.peers.returned(found));
            }
            Body::Freeze(_) => self.report.reached("freeze"),
            Body::Inputs(_) => self.report.reached("inputs"),
            Body::Outcome(outcome) => self.intake.over(outcome.round),
            _ => {}
        }
        Ok(())
    }

    /// Proves blocks and keeps them, beside the driver.
    fn store(&mut self, question: Question, from: MemberId, put: PutBlocks) {
        let Some(view) = self.view(put.round) else {
            let stored = Err(Reject::Stale("the round is not remembered"));
            return self.machine.handle(self.now(), StewardInput::Stored(question, stored));
        };
        let (intake, me) = (self.intake.clone(), self.identity.id());
        // ROUND-35: whoever brings what is over has its turns behind those that the round waits for.
        let open = self.machine.ledger().current().is_some_and(|view| view.round() == put.round);
        let rank = if open { Rank::Round } else { Rank::Member };
        let take = move || intake.take(&view, &me, &from, put);
        let (work, sender) = (in_turn(self.work.clone(), rank, from, take), self.sender.clone());
        self.tasks.spawn(async move {
            let stored = StewardInput::Stored(question, work.await);
            let _ = sender.send(Inbound::Input(stored)).await;
        });
    }

    /// A round as it is now, shared by all tasks that want it.
    fn view(&mut self, round: Round) -> Option<Arc<RoundView>> {
        let ledger = self.machine.ledger();
        let name = (ledger.height(), round);
        if let Some((_, view)) = self.view.as_ref().filter(|(of, _)| *of == name) {
            return Some(view.clone());
        }
        let view = Arc::new(ledger.round(round)?.clone());
        self.view = Some((name, view.clone()));
        Some(view)
    }

    /// Looks for somebody where it says that it is, beside the driver.
    fn dial(&self, question: Question, dial: Dial) {
        let (dial_back, sender) = (self.dial_back.clone(), self.sender.clone());
        self.tasks.spawn(async move {
            let found = StewardInput::DialledBack(question, dial_back.find(dial).await);
            let _ = sender.send(Inbound::Input(found)).await;
        });
    }

    /// Checks the signatures of a delivery's receipts, beside the driver.
    fn check_delivery(&self, question: Question, claimed: ClaimedDelivery) {
        let (author, sender) = (claimed.author(), self.sender.clone());
        let work = in_turn(self.work.clone(), Rank::Round, author, move || claimed.check());
        self.tasks.spawn(async move {
            let checked = StewardInput::DeliveryChecked(question, Box::new(work.await));
            let _ = sender.send(Inbound::Input(checked)).await;
        });
    }

    /// Answers with blocks, in a task: the driver must not wait for the disk, however much is asked for.
    fn read(&mut self, question: Question, query: InputQuery, wanted: Wanted) {
        let Some((from, answer)) = self.questions.take(question) else {
            return tracing::error!("a bug: blocks were to be read that nobody asked for");
        };
        let (read, sender) = (self.intake.clone().answer(from, query, wanted), self.sender.clone());
        self.tasks.spawn(async move {
            let refused = |reject: Reject| Response::refused(&reject.to_string());
            let _ = answer.send(read.await.unwrap_or_else(refused));
            let _ = sender.send(Inbound::Input(StewardInput::Served(question))).await;
        });
    }

    /// Fetches a round's results and applies them, in a task.
    fn apply(&self, sealed: &[Option<Signed<PartResult>>]) {
        let task = Applying::of(
            self.machine.ledger(),
            sealed,
            self.court.clone(),
            self.results.clone(),
            &self.intake,
        );
        let Some(task) = task else { return };
        let (court, sender) = (self.court.clone(), self.sender.clone());
        self.tasks.spawn(async move {
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

    /// Fetches a part's values while contributors look at them, and says whether they came in time.
    fn prefetch(&self, result: PartResult, author: MemberId) {
        let ledger = self.machine.ledger();
        let wanted = wanted_values(ledger, result.clone(), author);
        let stand_in = StandIn::of(ledger, &self.intake);
        let (results, court, sender) = (self.results.clone(), self.court.clone(), self.sender.clone());
        self.tasks.spawn(async move {
            let are_here = match wanted {
                Some(wanted) => obtain(&court, &results, &wanted, stand_in.as_ref()).await,
                None => false,
            };
            let _ = sender.send(Inbound::Input(StewardInput::Obtained(Box::new(result), are_here))).await;
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
        self.tasks.spawn(async move {
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
        self.tasks.spawn(async move {
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
        self.tasks.spawn(async move {
            let of_all = parts.clone();
            let lost = tokio::task::spawn_blocking(move || court.exhibit_parts(of_all)).await;
            // A task that fails has kept nothing, as far as anybody knows.
            let lost = lost.unwrap_or_else(|_| parts.clone());
            let _ = sender.send(Inbound::Input(StewardInput::PartsKept(parts, lost))).await;
        });
    }

    fn drop_parts(&self, parts: &[PartName]) -> Outcome<()> {
        let mut parts = parts.iter();
        Ok(parts.try_for_each(|(round, part)| self.court.home.drop_part_exhibit(*round, *part))?)
    }

    fn measure(&self, convict: MemberId) {
        // Now, with the states: rounds may go on while the past is computed again, and the replica forgets.
        let jobs = ConvictRound::of(self.machine.ledger(), &convict, &lock(&self.court.replica));
        let (court, sender) = (self.court.clone(), self.sender.clone());
        self.tasks.spawn(async move {
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
            if !replica.rewind(&rewind.state, round)? {
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
        self.tasks.spawn(async move {
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
