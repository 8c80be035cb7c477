//! The one task that decides: it owns the conductor and the docket, seals records, and answers what needs either.
//!
//! Everything reaches it as a [`Message`] through one bounded queue. After each message it drains the conductor; what
//! takes long (fetching, applying, judging) runs in tasks that send their results back.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use muster_core::audit::Judgement;
use muster_core::audit::docket::Docket;
use muster_core::codec::encode;
use muster_core::ids::{Block, Digest, MemberId, Part, Round};
use muster_core::ledger::{Ledger, Member, RoundView, Stage, Standing};
use muster_core::messages::enrol::Role;
use muster_core::messages::evidence::Evidence;
use muster_core::messages::record::{Body, Record, Rewind};
use muster_core::messages::round::PartResult;
use muster_core::messages::wire::{Request, Response};
use muster_core::round::{Conductor, Output};
use muster_core::sign::{Identity, Signed};
use muster_core::state::StateRoots;
use muster_replica::{Gossiping, PeerError, Results, contact, patience};
use muster_store::error::StoreError;
use muster_store::journal::Journal;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::board::Board;
use super::court::{Accusation, Court};
use super::exhibits::{Owed, OwedPart};
use super::hearing::Ruling;
use super::inbox::Inbox;
use super::justice::Justice;
use super::presence::Presence;
use super::recover::write_down;
use super::report::Report;
use super::retro::Past;
use super::server::refused;
use crate::exit::{Failure, Outcome};
use crate::intake::Intake;

/// Messages that wait for the actor at most; more of them wait at their senders.
pub(super) const QUEUE: usize = 256;
/// How long a member whose last connection broke still counts as present: it may only be dialling again.
const ABSENCE: u64 = 3_000;
/// How long members have to find a steward that was restarted.
const RESTART: u64 = 15_000;
/// How long a closed run is still served to those who are connected, members and observers.
const FAREWELL: u64 = 15_000;
/// Longest sleep: members' clocks and the disk may have moved.
const TURN: u64 = 500;
/// Refused records of a round's own in a row that mean a bug.
const REFUSALS: u32 = 16;

/// What reaches the actor.
pub(super) enum Message {
    /// A request of a member or stranger.
    Ask {
        /// Who asks, by the handshake.
        peer: MemberId,
        /// What.
        request: Box<Request>,
        /// Where the answer goes.
        answer: oneshot::Sender<Response>,
    },
    /// A round's results are applied, or these parts could not be had.
    Applied(Outcome<Result<StateRoots, Vec<Part>>>),
    /// An accusation was examined.
    Examined(Box<Accusation>, Box<Outcome<Ruling>>),
    /// A part that contributors object to was reduced again.
    Inspected(Box<Accusation>, Outcome<Judgement>),
    /// A contribution was kept, or why not.
    Exhibited(Owed, Result<(), String>),
    /// Parts were kept by value; these could not be.
    PartsExhibited(Vec<OwedPart>, Vec<OwedPart>),
    /// The past of a convict was recomputed.
    Measured(MemberId, Vec<Past>),
    /// What a round leaves on the disk is written.
    Written(Outcome<()>),
    /// Gossip proved something.
    Heard(Box<Evidence>),
    /// Somebody pressed Ctrl-C.
    Interrupt,
}

/// How hosting ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The run is over.
    Closed,
    /// Interrupted: between two rounds, or in one that everybody has left.
    Stopped,
}

/// The steward's state.
pub(super) struct Actor {
    pub(super) conductor: Conductor,
    pub(super) docket: Docket,
    pub(super) board: Arc<Board>,
    pub(super) journal: Arc<Journal>,
    pub(super) identity: Arc<Identity>,
    pub(super) court: Arc<Court>,
    pub(super) results: Results,
    pub(super) intake: Arc<Intake>,
    pub(super) presence: Arc<Presence>,
    pub(super) inbox: Inbox,
    pub(super) report: Report,
    pub(super) gossip: Option<Gossiping>,
    /// Writes that failed beside the actor.
    pub(super) failures: mpsc::Receiver<StoreError>,
    pub(super) queue: mpsc::Receiver<Message>,
    pub(super) sender: mpsc::Sender<Message>,
    pub(super) justice: Justice,
    pub(super) state: Doing,
}

/// What is under way.
pub(super) struct Doing {
    pub(super) began: Instant,
    /// Members whose connections are gone, and when they count as absent.
    pub(super) absent: BTreeMap<MemberId, u64>,
    /// Proposals whose authors wait for the seal, by the encoding of the body.
    pub(super) waiting: Vec<(Vec<u8>, oneshot::Sender<Response>)>,
    /// Results of the round that are on the board, with their attempts.
    pub(super) shown: BTreeMap<Part, (Digest, u8)>,
    /// Parts that senders brought here in an attempt because an aggregator did not take them.
    pub(super) relayed: BTreeMap<(MemberId, u8), BTreeSet<Part>>,
    pub(super) applying: bool,
    /// Deliveries of the round that have a receipt.
    pub(super) delivered: BTreeMap<MemberId, BTreeSet<Digest>>,
    /// Members of which was said that they did not check results.
    pub(super) stalling: BTreeSet<MemberId>,
    refusals: u32,
    /// The round of which was said that it waits for an audit.
    told_held: Option<Round>,
    /// Interrupted while this round was next.
    stop_after: Option<Round>,
    closed_at: Option<u64>,
    /// Whether it takes again what an earlier process took.
    pub(super) replaying: bool,
    /// Something that makes going on impossible.
    pub(super) failed: Option<Failure>,
}

impl Doing {
    /// Nothing yet.
    pub(super) fn new() -> Self {
        Self {
            began: Instant::now(),
            absent: BTreeMap::new(),
            waiting: Vec::new(),
            shown: BTreeMap::new(),
            relayed: BTreeMap::new(),
            applying: false,
            delivered: BTreeMap::new(),
            stalling: BTreeSet::new(),
            refusals: 0,
            told_held: None,
            stop_after: None,
            closed_at: None,
            replaying: false,
            failed: None,
        }
    }
}

impl Actor {
    /// Hosts until the run is over or an interrupted round has ended.
    ///
    /// # Errors
    /// [`Failure`] when this machine cannot go on.
    pub(super) async fn run(mut self, kept: Vec<Request>) -> Outcome<Ending> {
        self.begin(kept);
        loop {
            self.turn();
            while self.drain()? {
                self.turn();
            }
            if let Some(failure) = self.state.failed.take() {
                return Err(failure);
            }
            if let Some(ending) = self.ending() {
                return Ok(ending);
            }
            let pause = self.pause();
            tokio::select! {
                Some(message) = self.queue.recv() => self.take(message),
                Some(error) = self.failures.recv() => self.state.failed = Some(error.into()),
                () = self.presence.changed() => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// Milliseconds since the actor began.
    pub(super) fn now(&self) -> u64 {
        u64::try_from(self.state.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// The ledger so far.
    pub(super) fn ledger(&self) -> &Ledger {
        self.conductor.ledger()
    }

    fn begin(&mut self, kept: Vec<Request>) {
        if self.ledger().stage() == Stage::Closed {
            // It may have been interrupted before the folder was an archive.
            self.state.failed = self.archive().err();
        }
        if self.ledger().stage() == Stage::Empty {
            let replica = self.court.replica.lock().unwrap_or_else(PoisonError::into_inner);
            let roots = replica.state().roots();
            drop(replica);
            self.conductor.propose(Body::Open(roots));
            return self.conductor.start();
        }
        // Members have not found the way back yet: without this, a restart would cost them the round.
        let members: Vec<MemberId> = self.ledger().members().iter().map(|member| member.id).collect();
        for member in members {
            self.conductor.live(0, member, true);
            self.state.absent.insert(member, RESTART);
        }
        self.replay(kept);
        self.examine_acquitted();
        self.conductor.start();
    }

    fn take(&mut self, message: Message) {
        match message {
            Message::Ask { peer, request, answer } => self.answer(peer, *request, answer),
            Message::Applied(applied) => {
                self.state.applying = false;
                match applied {
                    Ok(applied) => self.conductor.applied(self.now(), applied),
                    Err(failure) => self.state.failed = Some(failure),
                }
            }
            Message::Examined(accusation, ruling) => self.judged(&accusation, *ruling),
            Message::Inspected(accusation, judgement) => self.inspected(&accusation, judgement),
            Message::Exhibited(owed, kept) => self.exhibited(owed, kept),
            Message::PartsExhibited(owed, lost) => self.parts_exhibited(owed, lost),
            Message::Measured(member, past) => self.measured(member, &past),
            Message::Written(Err(failure)) => self.state.failed = Some(failure),
            Message::Written(Ok(())) => {}
            Message::Heard(evidence) => {
                let _ = self.accuse(self.identity.id(), *evidence);
            }
            Message::Interrupt => {
                self.state.stop_after = Some(self.ledger().next_round());
                self.report.line("finishing the round, then stopping (Ctrl-C again aborts)");
            }
        }
    }

    /// What follows from the time and from who is there.
    fn turn(&mut self) {
        let now = self.now();
        self.attend(now);
        self.conductor.tick(now);
        self.show_results();
        let silences = self.docket.silences(now, self.conductor.ledger());
        let idles = self.docket.idles(now, self.conductor.ledger());
        silences.into_iter().chain(idles).for_each(|body| self.conductor.propose(body));
        self.pursue(now);
        let oldest = self.docket.oldest_open(self.conductor.ledger());
        self.conductor.cases(now, oldest);
        self.tell_held();
    }

    /// Says once a round for what the next one waits.
    fn tell_held(&mut self) {
        let ledger = self.conductor.ledger();
        let round = ledger.next_round();
        if !self.conductor.is_held() || self.state.told_held == Some(round) {
            return;
        }
        if let Some(case) = self.docket.open_cases(ledger).next() {
            self.state.told_held = Some(round);
            self.report.held(round, &case);
        }
    }

    fn attend(&mut self, now: u64) {
        let members: Vec<MemberId> = self.ledger().members().iter().map(|member| member.id).collect();
        for member in members {
            let live = self.conductor.is_live(&member);
            if self.presence.has(&member) {
                self.state.absent.remove(&member);
                if !live {
                    self.conductor.live(now, member, true);
                }
            } else if live && *self.state.absent.entry(member).or_insert(now + ABSENCE) <= now {
                self.state.absent.remove(&member);
                self.conductor.live(now, member, false);
                self.report.moved(member, "is not connected any more");
            }
        }
    }

    fn pause(&self) -> Duration {
        let now = self.now();
        let phase = self.conductor.poll_timeout();
        let due = phase
            .into_iter()
            .chain(self.docket.timeout(self.ledger()))
            .chain(self.state.absent.values().copied());
        let next = due.filter(|due| *due > now).min().unwrap_or(now + TURN);
        Duration::from_millis((next - now).clamp(1, TURN))
    }

    /// Does what the conductor asks for, until it asks for nothing more; whether there was something.
    fn drain(&mut self) -> Outcome<bool> {
        let mut some = false;
        while let Some(output) = self.conductor.poll_output() {
            some = true;
            match output {
                Output::Seal(body) => self.seal(body)?,
                Output::Apply(results) => self.apply(&results),
                Output::Inspect(result) => self.inspect(result),
            }
        }
        Ok(some)
    }

    fn seal(&mut self, mut body: Body) -> Outcome<()> {
        if let Body::Ban(ban) = &mut body {
            ban.effective = self.ledger().first_round_without();
        }
        self.exhibit_before(&body);
        let (name, of_round) = (encode(&body), is_of_round(&body));
        let record = self.ledger().record(body);
        let signed = self.identity.sign(self.ledger().run(), &record);
        let sealed = self.conductor.sealed(self.now(), &signed);
        let answer = match &sealed {
            Ok(_) => {
                self.journal.append(record.height, &signed)?;
                if let Some(gossip) = &self.gossip {
                    gossip.seal(&self.identity, self.ledger(), &signed, &record);
                }
                self.board.seal(signed);
                self.state.refusals = 0;
                self.sealed(&record)?;
                Response::Done
            }
            Err(reject) => {
                tracing::debug!("a proposed record was not sealed: {reject}");
                // What members bring about is no fault of this steward, however often it is refused.
                self.state.refusals += u32::from(of_round);
                if self.state.refusals >= REFUSALS {
                    let why = format!(
                        "the round cannot go on, its record is refused: {reject}; please report this"
                    );
                    return Err(Failure::environment(why));
                }
                refused(&reject.to_string())
            }
        };
        let waits = self.state.waiting.iter().position(|(waiting, _)| *waiting == name);
        if let Some(place) = waits {
            let _ = self.state.waiting.swap_remove(place).1.send(answer);
        }
        Ok(())
    }

    /// What follows from a record.
    fn sealed(&mut self, record: &Record) -> Outcome<()> {
        if matches!(record.body, Body::Freeze(_) | Body::Inputs(_) | Body::Outcome(_)) {
            self.tell_failures(record.height);
        }
        match &record.body {
            Body::Admit(enrol) => self.report.admit(self.conductor.ledger(), enrol.claimed_signer()),
            Body::Begin(_) => self.report.begin(),
            // A member that had read of a Reassign could not take in what was shown just before it.
            Body::Inputs(_) => self.state.shown.clear(),
            Body::Outcome(outcome) => {
                self.state.shown.clear();
                self.state.relayed.clear();
                self.state.delivered.clear();
                self.justice.forget(self.conductor.ledger());
                self.forget_exhibits();
                self.report.duties(self.docket.counts());
                self.report.round(self.conductor.ledger(), outcome.round);
                let pause = self.conductor.paused_until().map(|until| until.saturating_sub(self.now()));
                self.report.barren(self.conductor.ledger(), outcome.round, pause);
                let keep = self.ledger().manifest().retention.contributions.saturating_add(2);
                let horizon = Round(outcome.round.0.saturating_sub(keep));
                self.inbox.prune(horizon)?;
                self.court.home.prune_contributions(horizon)?;
                self.write_down();
            }
            Body::Silence(request) => {
                if let Ok(request) = request.verify(self.ledger().run()) {
                    self.justice.exhibits.suspect(request.round, request.target);
                    self.report.moved(request.target, "did not answer an audit");
                }
            }
            Body::Ban(ban) => {
                self.justice.exhibits.banned(&ban.culprit);
                self.report.ban(ban);
                self.examine_past(ban);
            }
            Body::Idle(idle) => {
                self.report.idle(idle);
            }
            Body::Return(back) => self.report.moved(back.claimed_signer(), "is back"),
            Body::Leave(leave) => {
                self.report.moved(leave.claimed_signer(), "left");
            }
            Body::CloseTree(order) => {
                let order = order.verify(self.ledger().run());
                order.into_iter().for_each(|order| self.report.close_tree(order.member));
            }
            Body::Close(root) => {
                self.archive()?;
                self.report.duties(self.docket.counts());
                self.report.close(*root);
                self.state.closed_at = Some(self.now());
            }
            Body::Open(_) | Body::Freeze(_) | Body::Reassign(_) | Body::Answered(_) => {}
            Body::Rewind(rewind) => self.went_back(rewind)?,
        }
        Ok(())
    }

    /// Brings the replica back to where the ledger is, and onto the disk: a restart finds it there.
    fn went_back(&mut self, rewind: &Rewind) -> Outcome<()> {
        let round = self.ledger().next_round();
        let (state, roots) = {
            let mut replica = self.court.replica.lock().unwrap_or_else(PoisonError::into_inner);
            if !replica.rewind(&rewind.state.root(), round) {
                return Err(Failure::environment("the state to go back to is not kept; start again"));
            }
            (replica.state().clone(), *replica.roots())
        };
        self.court.home.save_state(round, &state, &roots)?;
        self.court.home.prune_states(&|kept| kept <= rewind.to || kept == round)?;
        self.justice.went_back(&rewind.evidence);
        self.report.rewind(rewind, round);
        Ok(())
    }

    fn write_down(&self) {
        let (court, sender) = (self.court.clone(), self.sender.clone());
        tokio::spawn(async move {
            let written = tokio::task::spawn_blocking(move || write_down(&court)).await;
            let _ = sender.send(Message::Written(written.unwrap_or(Ok(())))).await;
        });
    }

    /// Writes the records into one file, so that the folder is an archive.
    fn archive(&self) -> Outcome<()> {
        let mut bytes = Vec::new();
        let mut height = muster_core::ids::Height(0);
        while height < self.ledger().height() {
            for record in self.journal.records(height, 256)? {
                let record = encode(&record);
                bytes.extend((record.len() as u32).to_le_bytes());
                bytes.extend(record);
                height = height.next();
            }
        }
        Ok(self.court.home.write_file("ledger.bin", &bytes)?)
    }

    fn ending(&self) -> Option<Ending> {
        if self.ledger().stage() == Stage::Closed {
            let since = self.state.closed_at.unwrap_or(0);
            return (self.presence.is_empty() || self.now() >= since + FAREWELL).then_some(Ending::Closed);
        }
        let under_way =
            matches!(self.ledger().stage(), Stage::Computing | Stage::Exchanging | Stage::Reducing);
        let round = self.state.stop_after?;
        // A round that is held back before its Freeze loses nothing: what has a receipt is taken again.
        let held = self.conductor.paused_until().is_some();
        let over = !under_way || held || self.ledger().next_round() > round;
        (over || self.is_deserted()).then_some(Ending::Stopped)
    }

    /// Whether nobody is there who could end the round: without a single commitment it waits for one, for ever.
    fn is_deserted(&self) -> bool {
        let seats = self.ledger().current().map(RoundView::seats).unwrap_or_default();
        !self.state.applying && !seats.iter().any(|seat| self.conductor.is_live(&seat.member))
    }

    /// Fetches a round's results and applies them, in a task.
    fn apply(&mut self, sealed: &[Option<Signed<PartResult>>]) {
        self.state.applying = true;
        self.tell_stalling();
        let ledger = self.ledger();
        let Some(view) = ledger.current() else { return };
        let wanted = sealed.iter().flatten().filter_map(|signed| {
            let result = signed.verify(ledger.run()).ok()?;
            let blocks = view.parts().get(result.part.index())?.blocks.clone();
            let others = view.reducers(result.part, result.attempt).filter(|other| *other != result.author());
            let holders = std::iter::once(result.author()).chain(others);
            let holders = holders.filter_map(|holder| contact(ledger, &holder)).collect();
            Some(WantedPart { result: result.into_inner(), blocks, holders })
        });
        let task = Applying {
            round: view.round(),
            wanted: wanted.collect(),
            court: self.court.clone(),
            results: self.results.clone(),
        };
        let sender = self.sender.clone();
        tokio::spawn(async move {
            let applied = task.run().await;
            let _ = sender.send(Message::Applied(applied)).await;
        });
    }

    /// Whether a verifier is there to judge anything.
    pub(super) fn verified(&self) -> bool {
        let mut members = self.ledger().members().iter();
        let active = |member: &Member| member.role == Role::Verifier && member.standing == Standing::Active;
        members.any(|member| active(member) && self.conductor.is_live(&member.id))
    }
}

/// Whether the round itself asks for a record, and cannot go on without.
fn is_of_round(body: &Body) -> bool {
    matches!(body, Body::Begin(_) | Body::Freeze(_) | Body::Inputs(_) | Body::Reassign(_) | Body::Outcome(_))
}

struct WantedPart {
    result: PartResult,
    blocks: Vec<Block>,
    holders: Vec<muster_replica::Contact>,
}

/// The values of a round on their way into the state.
struct Applying {
    round: Round,
    wanted: Vec<WantedPart>,
    court: Arc<Court>,
    results: Results,
}

impl Applying {
    /// The next state's roots, or the parts that could not be had. The aggregate is on the disk before it is applied.
    async fn run(self) -> Outcome<Result<StateRoots, Vec<Part>>> {
        let mut missing = self.fetch().await;
        // ROUND-23: no rule gives a value that is no finite number; nothing can be done with one.
        let defined = |part: &&WantedPart| part.blocks.iter().all(|block| self.is_finite(part, *block));
        missing.extend(self.wanted.iter().filter(|part| !defined(part)).map(|part| part.result.part));
        if !missing.is_empty() {
            return Ok(Err(missing));
        }
        let named = |part: &WantedPart| (part.result.part, part.blocks.clone(), part.result.digest);
        let parts: Vec<_> = self.wanted.iter().map(named).collect();
        let update = match self.results.update(self.round, &parts) {
            Ok(update) => update,
            Err(missing) => return Ok(Err(missing)),
        };
        let court = self.court.clone();
        let round = self.round;
        let applied = tokio::task::spawn_blocking(move || {
            court.home.save_update(round, &update)?;
            let mut replica = court.replica.lock().unwrap_or_else(PoisonError::into_inner);
            Ok::<_, Failure>(replica.apply(&update))
        });
        let applied = applied
            .await
            .map_err(|error| Failure::environment(format!("applying a round failed: {error}")))?;
        applied.map(Ok)
    }

    /// Fetches the values of all parts at once; those that could not be had. Who has said what came of a part has as long to
    /// show it as it had to say it.
    async fn fetch(&self) -> Vec<Part> {
        let mut tasks = JoinSet::new();
        let least = Duration::from_millis(self.court.manifest.timers.result.into());
        for WantedPart { result, blocks, holders } in &self.wanted {
            if self.results.has(self.round, blocks, &result.digest) {
                continue;
            }
            let (court, results) = (self.court.clone(), self.results.clone());
            let (round, part, digest) = (self.round, result.part, result.digest);
            let (blocks, holders) = (blocks.clone(), holders.clone());
            tasks.spawn(async move {
                let limit = least.max(patience(&court.layout, &blocks));
                let values = court.peers.values(&holders, &court.layout, round, &blocks, &digest);
                let values = timeout(limit, values).await.unwrap_or(Err(PeerError::Late));
                match values {
                    Ok(values) => results.put(round, &blocks, &digest, values),
                    Err(error) => {
                        tracing::warn!("part {part} of round {round} is not to be had: {error}");
                        return Some(part);
                    }
                }
                None
            });
        }
        let mut missing = Vec::new();
        while let Some(done) = tasks.join_next().await {
            missing.extend(done.ok().flatten());
        }
        missing
    }

    fn is_finite(&self, part: &WantedPart, block: Block) -> bool {
        let values = self.results.block(self.round, block, &part.result.digest);
        values.is_none_or(|values| values.iter().all(|value| value.is_finite()))
    }
}
