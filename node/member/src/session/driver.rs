//! Drives the node's machine: what it decides is computed, written, brought and said here, and nothing is decided.
//!
//! Whatever takes long runs in a task that sends its result back. What the member says of its own work goes through its
//! [`NodeConduct`] on the way, so that an attack lies around an honest machine.

use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use muster_compute::Backend;
use muster_core::ids::{Digest, MemberId, Part, Round, Row};
use muster_core::ledger::Ledger;
use muster_core::lock::lock;
use muster_core::manifest::Manifest;
use muster_core::messages::audit::TableOpening;
use muster_core::messages::enrol::Engagement;
use muster_core::messages::record::{Ban, Body};
use muster_core::messages::wire::{Notice, Request, Response};
use muster_core::round::Check;
use muster_organise::members::weight;
use muster_replica::{
    Contact, Event, Follower, Gossiping, Keeps, Peers, Phase, Replica, evidence_words, keep_evidence,
};
use muster_roles::node::{MembershipEnd, Milestone, Node, NodeEffect, NodeInput, Parcel, PartTask};
use muster_show::progress::ProgressDisplay;
use muster_store::dataset::Dataset;
use muster_store::error::StoreError;
use muster_store::home::Home;
use muster_store::journal::Journal;
use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;

use super::behind::Behind;
use super::dawdle::dawdle;
use super::disk;
use super::recall::newest_of;
use super::row::OwnRow;
use crate::check::compare_results;
use crate::conduct::{Delay, NodeConduct, Outside};
use crate::exchange::{bring, reduce_part};
use crate::keepers::Keepers;
use crate::pause::Watch;
use crate::server::NodeContext;
use crate::tell::{Uplink, tell};
use crate::{JoinError, JoinOptions};

/// Results of tasks that wait for the driver at most; more of them wait in their tasks.
pub(super) const QUEUE: usize = 64;
/// Longest sleep.
const TURN: u64 = 60_000;
/// Comparisons of results at once: each is of all results that the board has shown by then.
const COMPARISONS: usize = 8;

/// What comes back from a task.
pub(super) enum Completion {
    /// Something for the machine.
    Input(NodeInput),
    /// This machine cannot go on.
    Failed(JoinError),
}

/// The machine, and what it takes to do what it says.
pub(super) struct NodeDriver {
    pub(super) machine: Node,
    pub(super) options: JoinOptions,
    pub(super) conduct: Arc<dyn NodeConduct>,
    pub(super) home: Arc<Home>,
    pub(super) journal: Arc<Journal>,
    pub(super) shared: Arc<NodeContext>,
    pub(super) ledgers: watch::Sender<Arc<Ledger>>,
    pub(super) peers: Peers,
    /// The steward, where it was last found.
    pub(super) steward: Contact,
    pub(super) gossip: Option<Arc<Gossiping>>,
    pub(super) replica: Arc<Mutex<Replica>>,
    pub(super) arithmetic: Arc<Mutex<Box<dyn Backend>>>,
    pub(super) manifest: Arc<Manifest>,
    pub(super) dataset: Arc<Dataset>,
    pub(super) progress: ProgressDisplay,
    /// Where tasks send their results, and tell of writes that failed.
    pub(super) sender: mpsc::Sender<Completion>,
    pub(super) failed: mpsc::Sender<StoreError>,
    pub(super) began: Instant,
    pub(super) bringing: Bringing,
    /// Comparisons of results that wait for values.
    pub(super) comparing: Vec<(Round, AbortHandle)>,
    /// Where the evidence for this member's ban is, in words, once the steward was asked.
    pub(super) evidence: Arc<OnceLock<String>>,
    pub(super) told: ToldRows,
    pub(super) behind: Behind,
}

/// The row that others were told of.
#[derive(Default)]
pub(super) struct ToldRows {
    /// The volunteer.
    volunteer: Option<Row>,
    /// The swarm.
    swarm: Option<Row>,
}

/// Parcels under way, since when there are any, and how those before were taken.
#[derive(Default)]
pub(super) struct Bringing {
    count: usize,
    since: Option<Instant>,
    keepers: Keepers,
}

impl Bringing {
    fn begun(&mut self) {
        self.count += 1;
        self.since.get_or_insert_with(Instant::now);
    }

    /// How long the last parcels took, once none is under way.
    fn over(&mut self) -> Option<Duration> {
        self.count = self.count.saturating_sub(1);
        self.since.take_if(|_| self.count == 0).map(|since| since.elapsed())
    }
}

impl NodeDriver {
    pub(super) fn me(&self) -> MemberId {
        self.shared.identity.id()
    }

    /// The way to the steward and the other members, for a task.
    pub(super) fn uplink(&self) -> Uplink {
        let (peers, steward, keepers) =
            (self.peers.clone(), self.steward.clone(), self.bringing.keepers.clone());
        Uplink { peers, steward, keepers }
    }

    /// What the conduct reaches the steward with.
    fn outside(&self) -> Outside {
        let NodeContext { identity, ledger, .. } = &*self.shared;
        Outside { identity: identity.clone(), steward: self.steward.clone(), ledger: ledger.clone() }
    }

    /// How long the machine can wait for the next message.
    pub(super) fn pause(&self) -> Duration {
        let now = self.now();
        let due = self.machine.poll_timeout().unwrap_or(now + TURN);
        Duration::from_millis(due.saturating_sub(now).clamp(1, TURN))
    }

    /// Milliseconds since it began.
    fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    pub(super) fn handle(&mut self, input: NodeInput) {
        self.machine.handle(self.now(), input);
    }

    /// Looks whether to pause, or to go on, while its channels have carried so many bytes.
    ///
    /// # Errors
    /// [`JoinError`] where the disk fails.
    pub(super) fn restrain(&mut self, watch: &mut Watch, carried: u64) -> Result<(), JoinError> {
        let changed = watch.look(carried);
        watch.keep(&self.home, false)?;
        if changed {
            let engagement = match watch.paused() {
                Some(paused) => {
                    self.progress.line(&format!(
                        "pausing: {}. It finishes the round, answers for what it has computed, and then closes everything",
                        paused.words()
                    ));
                    Engagement::Rests
                }
                None => {
                    self.progress.line("no pause any more: it goes on");
                    self.options.engagement
                }
            };
            self.handle(NodeInput::Engage(engagement));
        }
        Ok(())
    }

    /// Takes what a task sends.
    ///
    /// # Errors
    /// [`JoinError`] where this machine cannot go on.
    pub(super) fn take(&mut self, message: Completion) -> Result<(), JoinError> {
        match message {
            Completion::Failed(error) => return Err(error),
            Completion::Input(input) => {
                if let NodeInput::Brought(..) = input
                    && let Some(time) = self.bringing.over()
                {
                    self.shared.stopwatch.add(Phase::Exchange, time);
                }
                self.handle(input);
            }
        }
        Ok(())
    }

    /// Hands the machine the ledger as followed so far, and the events on the way there.
    pub(super) fn followed(&mut self, follower: &Follower, events: Vec<Event>) {
        let ledger = Arc::new(follower.ledger().clone());
        // The server first: what the machine says next makes others ask here.
        self.ledgers.send_replace(ledger.clone());
        self.shared.pieces.keep();
        self.announce_row(&ledger);
        self.progress.gathering(&ledger, |_, _| None);
        self.steward = follower.steward().clone();
        self.handle(NodeInput::Followed {
            ledger,
            in_step: follower.in_step(),
            complete: follower.is_complete(),
        });
        for event in events {
            match event {
                Event::Sealed(record) => self.handle(NodeInput::Sealed(Box::new(record.into_inner()))),
                Event::Notice(notice) => self.handle(NodeInput::Notice(notice)),
                Event::Applied(round, _) => {
                    self.shared.intake.over(round);
                    self.shared.early.over(round);
                    self.handle(NodeInput::Applied(round));
                    if !self.conduct.stays(round) {
                        self.handle(NodeInput::Leave);
                    }
                }
            }
        }
    }

    /// CHAN-27: opens a way through this member's router, once, if nobody can dial it.
    pub(super) fn look_for_way(&mut self) {
        if self.options.engagement != Engagement::Rests
            && self.machine.lacks_address()
            && let Some(met) = self.behind.open(&self.shared)
        {
            self.progress.line(
                "nobody can dial this machine, as behind most home routers: it goes through the router by hole punching, and \
                 where that fails over a relay, of another member or the steward",
            );
            self.spawn(async move { met.await.ok().map(NodeInput::Met) });
        }
    }

    /// Says in the swarm's table which row this member serves, once that changes. A hint: whoever fetches it tries this member
    /// first.
    fn announce_row(&mut self, ledger: &Ledger) {
        let me = ledger.member(&self.me()).filter(|member| !member.addresses.is_empty());
        let holding = me.and_then(|member| member.holding).filter(|holding| holding.ready);
        let row = holding.map(|holding| holding.row);
        if row != self.told.swarm
            && let Some(gossip) = &self.gossip
        {
            gossip.hold(row);
            self.told.swarm = row;
        }
    }

    /// Performs the machine's effects; returns how the membership ends, if it does.
    ///
    /// # Errors
    /// [`JoinError`] where this machine cannot go on.
    pub(super) fn drain(&mut self) -> Result<Option<MembershipEnd>, JoinError> {
        while let Some(effect) = self.machine.poll_effect() {
            if let NodeEffect::End(ending) = effect {
                return Ok(Some(ending));
            }
            self.perform(effect)?;
        }
        Ok(None)
    }

    fn perform(&mut self, effect: NodeEffect) -> Result<(), JoinError> {
        match effect {
            NodeEffect::Compute { round, slot, quota } => self.compute(round, slot, quota),
            NodeEffect::Foresee(view, slot) => self.foresee(&view, slot),
            NodeEffect::WriteEcho(round, freeze) => return self.write_echo(round, freeze),
            NodeEffect::Prepare { round, attempt, parts } => self.prepare(round, attempt, parts),
            NodeEffect::Bring(parcel) => self.bring(parcel),
            NodeEffect::Reduce(task) => self.reduce(task),
            NodeEffect::Compare(check) => self.compare(check),
            NodeEffect::Tabulate(round) => self.tabulate(round),
            NodeEffect::MakeRows(request) => self.make_rows(*request),
            NodeEffect::Open(round, opening) => self.open(round, *opening),
            NodeEffect::Say(requests) => self.say_after(std::future::ready(()), requests),
            NodeEffect::Recall(promise) => {
                let newest =
                    |wanted: &dyn Fn(&Body) -> bool| newest_of(self.machine.ledger(), &self.journal, wanted);
                let inputs = newest(&|body| promise.is_settled_by(body));
                let reassign = promise.is_second().then(|| newest(&|body| promise.follows(body))).flatten();
                self.handle(NodeInput::Recalled { promise, inputs, reassign });
            }
            NodeEffect::Prune(horizon) => {
                // What cannot be removed costs room and no promise; whether there is room is looked at next.
                if let Err(error) = self.home.prune_contributions(horizon) {
                    tracing::warn!("old contributions could not be removed: {error}");
                }
                let left = disk::check_round(&self.options, &self.manifest)?;
                self.shared.intake.quota().allow(left);
            }
            NodeEffect::FetchEvidence(ban) => self.fetch_evidence(*ban),
            NodeEffect::Tell(news) => self.tell(news),
            // `drain` has taken it.
            NodeEffect::End(_) => {}
        }
        Ok(())
    }

    /// Runs a task that sends its outcome back.
    pub(super) fn spawn(&self, task: impl Future<Output = Option<NodeInput>> + Send + 'static) {
        let sender = self.sender.clone();
        tokio::spawn(async move {
            if let Some(input) = task.await {
                let _ = sender.send(Completion::Input(input)).await;
            }
        });
    }

    fn write_echo(&mut self, round: Round, freeze: Digest) -> Result<(), JoinError> {
        if !self.conduct.echoes(round) {
            self.handle(NodeInput::EchoWritten(round, None));
            return Ok(());
        }
        // ROUND-2: one R_t a round, also after a crash. What stands in the journal is said, whatever was to
        // be written now.
        let said = self.journal.put_vote("echo", round, &freeze.0)?;
        let said = said.try_into().ok().map(Digest);
        let stopwatch = self.shared.stopwatch.clone();
        stopwatch.time(Phase::Signing, || self.handle(NodeInput::EchoWritten(round, said)));
        Ok(())
    }

    fn prepare(&mut self, round: Round, attempt: u8, parts: Vec<(Part, MemberId)>) {
        self.conduct.besides(round, &self.outside());
        let parts = if self.contribution(round).is_some() {
            self.conduct.deliver(round, parts)
        } else {
            tracing::warn!("the contribution to round {round} is not here any more");
            // Nobody need wait for it.
            Some(Vec::new())
        };
        if let Some(parts) = parts {
            self.handle(NodeInput::Prepared { round, attempt, parts });
        }
    }

    fn bring(&mut self, parcel: Parcel) {
        let Some(contribution) = self.contribution(parcel.round) else {
            return self.handle(NodeInput::Brought(parcel, None));
        };
        self.bringing.begun();
        let (uplink, ledger) = (self.uplink(), self.machine.ledger().clone());
        self.spawn(async move {
            let name = parcel.clone();
            // In a task of its own, whose panic is an error here.
            let brought = tokio::spawn(async move { bring(uplink, ledger, contribution, &name).await });
            // The delivery waits for each of its parcels, also for one whose task fails.
            Some(NodeInput::Brought(parcel, brought.await.ok().flatten()))
        });
    }

    fn reduce(&self, task: PartTask) {
        let (uplink, ledger) = (self.uplink(), self.machine.ledger().clone());
        let reduced = reduce_part(self.shared.clone(), uplink, ledger, self.conduct.clone(), task);
        self.spawn(async move { Some(NodeInput::Reduced(task, reduced.await)) });
    }

    fn compare(&mut self, check: Check) {
        let Some(contribution) = self.contribution(check.round) else { return };
        let ledger = self.machine.ledger().clone();
        // A round that is over needs no words, and its contribution is as large as the model.
        self.comparing.retain(|(round, task)| {
            let goes_on = *round >= check.round;
            if !goes_on {
                task.abort();
            }
            goes_on
        });
        // CHAN-26: a board that shows other results again and again has the newest ones compared.
        let old = self.comparing.len().saturating_sub(COMPARISONS - 1);
        self.comparing.drain(..old).for_each(|(_, task)| task.abort());
        let (round, sender) = (check.round, self.sender.clone());
        let said = move |(check, objections)| {
            let sender = sender.clone();
            async move {
                let _ = sender.send(Completion::Input(NodeInput::Compared(check, objections))).await;
            }
        };
        let task = tokio::spawn(compare_results(self.shared.clone(), ledger, contribution, check, said));
        self.comparing.push((round, task.abort_handle()));
    }

    fn open(&self, round: Round, opening: TableOpening) {
        let TableOpening { request, results, salt, rows } = opening;
        let Some(rows) = self.conduct.open(round, rows) else { return };
        let opening = TableOpening { request, results, salt, rows };
        let signed = self.shared.identity.sign(self.options.ticket.run, &opening);
        // Nothing for an honest member.
        let pause = self.conduct.lingers(Delay::Audit, &self.manifest);
        let dawdles = self.conduct.dawdles(round).then(|| dawdle(self.shared.ledger.clone()));
        let wait = async move {
            if !pause.is_zero() {
                tokio::time::sleep(pause).await;
            }
            if let Some(dawdles) = dawdles {
                dawdles.await;
            }
        };
        self.say_after(wait, vec![Request::Notice(Notice::Opening(signed))]);
    }

    /// Says these to the steward one after the other, once it has waited.
    fn say_after(&self, wait: impl Future<Output = ()> + Send + 'static, requests: Vec<Request>) {
        let (uplink, sender, gossip) = (self.uplink(), self.sender.clone(), self.gossip.clone());
        tokio::spawn(async move {
            wait.await;
            for request in requests {
                let answer = tell(&uplink, &request).await;
                // COMMIT-8: only now. Where another machine runs with the same key, and the steward holds what that one said,
                // this one has said nothing to anybody else.
                if let (Some(gossip), Request::Commit(commit)) = (&gossip, &request)
                    && matches!(answer, Some(Response::Committed(_)))
                {
                    gossip.committed(commit);
                }
                let _ = sender.send(Completion::Input(NodeInput::Told(Box::new(request), answer))).await;
            }
        });
    }

    /// Fetches, in a task, the evidence for which this member is banned.
    fn fetch_evidence(&self, ban: Ban) {
        let (Uplink { peers, steward, .. }, told) = (self.uplink(), self.evidence.clone());
        let (home, manifest) = (self.home.clone(), self.manifest.clone());
        tokio::spawn(async move {
            let kept = keep_evidence(&peers, &steward, &home, &manifest, &ban).await;
            let _ = told.set(evidence_words(&kept));
        });
    }

    fn tell(&self, news: Milestone) {
        match news {
            Milestone::Over(round, counted) => self.tell_round(round, counted),
            Milestone::Banned => {
                self.progress.line("banned: serving what this member still holds, then leaving")
            }
            Milestone::Unwatched => self.progress.line(
                "no verifier is active: the run waits for one, since nothing of its rounds would be audited",
            ),
            Milestone::Leaving => self.progress.line("finishing the round, then leaving for good"),
            Milestone::Stopping => {
                self.progress.line("finishing the round, then leaving (Ctrl-C again aborts)")
            }
        }
    }

    /// Shows the volunteer which row it has, what that is of the model, and what is fetched for it.
    pub(super) fn tell_row(&mut self, keeps: Keeps) {
        let row = if let Keeps::Path(row) = keeps { row } else { None };
        let told = std::mem::replace(&mut self.told.volunteer, row);
        let Some(row) = row.filter(|row| told != Some(*row)) else { return };
        let lines = {
            let replica = lock(&self.replica);
            // A member that comes back begins with the model as it was before the first round.
            let behind = replica.round().next() < self.machine.ledger().next_round();
            let fetched = behind || !replica.is_complete();
            OwnRow { model: &self.manifest.model, layout: replica.layout(), row, fetched }.lines()
        };
        lines.iter().for_each(|line| self.progress.line(line));
    }

    /// Shows the volunteer what counted.
    fn tell_round(&self, round: Round, counted: u32) {
        let (ledger, leaves) = (self.machine.ledger(), self.machine.leaves());
        let Some(view) = ledger.round(round) else { return };
        let loss = muster_replica::archive::mean_loss(view);
        let total = u64::from(self.manifest.training.rounds);
        let mut text = format!("loss {loss:.3}, {counted} of your leaves counted, {leaves} in all");
        if let Some(newcomer) = ledger.member(&self.me()).filter(|member| !ledger.weighs(member)) {
            text += &format!("; {}", weight(ledger, newcomer));
        }
        if view.slot_of(&self.me()).is_some_and(|slot| view.late().contains(slot)) {
            text +=
                "; audits of this member wait for its answers: its work counts again once it has given them";
        }
        self.progress.round(u64::from(round.0) + 1, total, &text);
    }
}
