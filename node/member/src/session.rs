//! One membership, from the invitation to the end of the run.

mod audit;
mod behind;
mod commit;
mod dawdle;
pub(super) mod disk;
mod driver;
mod line;
mod listen;
mod prepare;
mod recall;
mod row;
mod status;

use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;

use muster_compute::Path as KernelPath;
use muster_core::codec::decode;
use muster_core::ids::{MemberId, Round};
use muster_core::ledger::{Stage, Standing};
use muster_core::lock::lock;
use muster_core::manifest::Manifest;
use muster_core::messages::enrol::{Addresses, Engagement, Enrol, Role};
use muster_core::messages::record::Ban;
use muster_core::messages::wire::{Request, Response};
use muster_core::sign::Identity;
use muster_keeper::intake::Intake;
use muster_net::endpoint::Endpoint;
use muster_net::shares::Turns;
use muster_organise::MANIFEST;
use muster_replica::text::{TextHolders, fetch_ahead};
use muster_replica::{
    FollowError, Follower, HeldState, Offers, PeerError, Peers, Stopwatch, fetch_dataset, measure_held_out,
};
use muster_roles::node::{MembershipEnd, Node, NodeInput, NodeSetup};
use muster_show::Shown;
use muster_show::progress::{ProgressDisplay, interrupted};
use muster_store::dataset::Dataset;
use muster_store::error::StoreError;
use muster_store::home::Home;
use muster_store::journal::Journal;
use muster_store::rows::RowFiles;
use muster_view::status::Status;
use muster_view::status::window::METRICS;
use muster_view::{Source, View};
use tokio::sync::{mpsc, watch};

use self::behind::Behind;
use self::driver::{Bringing, Completion, NodeDriver, QUEUE, ToldRows};
pub(super) use self::line::Line;
use self::line::carried;
use self::listen::{Served, listen};
use self::prepare::{join_swarm, prepare, reach};
use self::status::Seen;
use super::calls::{Calls, Holder};
use super::conduct::NodeConduct;
use super::early::Early;
use super::own::Own;
use super::pause::Watch;
use super::pieces::Pieces;
use super::report::ResultFile;
use super::server::{NodeContext, READERS};
use super::{End, JoinError, JoinOptions};

/// How often admission is asked for where the steward does not answer.
const TRIES: usize = 5;
/// STATE-14: how many answers of the steward a newcomer takes in to catch up. After that nobody gives it a state, or rounds are
/// too short for its line; they wait for members.
const STEPS: usize = 8;

pub(super) struct Session {
    driver: NodeDriver,
    follower: Follower,
    addresses: Addresses,
    endpoint: Endpoint,
    /// What tasks send.
    queue: mpsc::Receiver<Completion>,
    /// Writes that failed in the background.
    failures: mpsc::Receiver<StoreError>,
    seen: Seen,
    /// The server, which ends with the session.
    _served: Served,
}

/// The committed files, from disk or from others, as far as they are needed at first.
async fn fetch_text(
    options: &JoinOptions,
    holders: &TextHolders,
    manifest: &Manifest,
    progress: &ProgressDisplay,
) -> Result<Arc<Dataset>, JoinError> {
    let bar = progress.bytes("the run's files", manifest.data.all_bytes());
    let folder = options.data_dir.join("data");
    let mut told = |done| bar.set_position(done);
    let room = disk::room_for_text(options, manifest);
    let dataset = fetch_dataset(holders, &manifest.data, &folder, room, &mut told).await?;
    bar.finish_and_clear();
    fetch_ahead(&dataset);
    Ok(dataset)
}

/// Tells the follower of a member whose row and text it keeps, and what it may take of the disk.
fn instruct(
    follower: &mut Follower,
    options: &JoinOptions,
    home: &Home,
    holders: TextHolders,
    me: MemberId,
) -> Result<(), JoinError> {
    follower.hold_row_of(me);
    follower.tell_text(holders, me);
    follower.keep_proofs(home.clone())?;
    disk::keep_within(options, follower);
    Ok(())
}

/// The machine of a membership, with what its disk has: the secret for tables, and the newest commitments.
fn begin(
    shared: &NodeContext,
    home: &Home,
    journal: &Journal,
    addresses: Addresses,
    engagement: Engagement,
) -> Result<Node, StoreError> {
    let (ledger, identity) = (shared.ledger.borrow().clone(), shared.identity.clone());
    let (next, mut committed) = (ledger.next_round().0, Vec::new());
    // COMMIT-8: records of these rounds may still be to come.
    for round in (next.saturating_sub(1)..=next).map(Round) {
        let written = journal.vote("commit", round)?;
        committed.extend(written.and_then(|bytes| decode(&bytes).ok()));
    }
    let secret = *home.secret("salt")?;
    Ok(Node::new(NodeSetup { ledger, identity, addresses, engagement, secret, committed }))
}

/// What this member answers calls with.
fn holder(
    identity: &Arc<Identity>,
    conduct: &Arc<dyn NodeConduct>,
    follower: &Follower,
    path: Option<KernelPath>,
) -> Holder {
    let (identity, conduct, states) = (identity.clone(), conduct.clone(), follower.replica().clone());
    let manifest = lock(&states).manifest().clone();
    Holder { identity, conduct, manifest, states, path }
}

/// The states that this member keeps for others.
fn pieces(files: RowFiles, conduct: &Arc<dyn NodeConduct>, follower: &Follower) -> Pieces {
    Pieces::new(Offers::new(files, follower.replica().clone()), conduct.clone())
}

/// Where the replica counts its time. Apart, so that the replica is not locked until a whole context is made.
/// The channels, of which `line` is told.
fn endpoint(
    options: &JoinOptions,
    identity: &Arc<Identity>,
    line: &OnceLock<Line>,
    home: &Arc<Home>,
) -> Endpoint {
    let endpoint = Endpoint::new(options.ticket.run, identity.clone()).with_rates(options.bounds.rates);
    Line::begin(line, &endpoint, home);
    endpoint
}

/// What is taken in, what this member contributes itself, and what is reduced of both early.
fn early(
    options: &JoinOptions,
    me: MemberId,
    follower: &Follower,
    home: &Arc<Home>,
    failed: &mpsc::Sender<StoreError>,
) -> Result<Arc<Early>, JoinError> {
    let ledger = follower.ledger();
    let intake = Arc::new(Intake::new(ledger.layout().clone(), home.clone(), failed.clone()));
    // Before anybody may bring anything.
    intake.quota().allow(disk::check_round(options, ledger.manifest())?);
    let own = Arc::new(Own::new(own_rounds(ledger.manifest())));
    Ok(Arc::new(Early::new(me, intake, own, stopwatch(follower))))
}

fn stopwatch(follower: &Follower) -> Arc<Stopwatch> {
    lock(follower.replica()).stopwatch().clone()
}

/// For how many rounds a member keeps what it has contributed. Without the state no leaf can be computed again, and without
/// the blocks nobody can ask: the shorter one counts.
fn own_rounds(manifest: &Manifest) -> usize {
    manifest.retention.states.min(manifest.retention.contributions) as usize
}

/// Keeps what the run is, which says how much disk it takes. Before the text is fetched, which is most of that.
fn keep(manifest: &Manifest, home: &Home, options: &JoinOptions) -> Result<(), JoinError> {
    home.write_file(MANIFEST, &manifest.bytes())?;
    disk::check_run(options, manifest)
}

impl Session {
    /// Opens a membership with all that it needs at first. `line` gets its channels as soon as there are any.
    pub(super) async fn open(
        options: JoinOptions,
        conduct: Arc<dyn NodeConduct>,
        line: &OnceLock<Line>,
    ) -> Result<Self, JoinError> {
        let home = Arc::new(Home::open(&options.data_dir)?);
        // First: the directory belongs to this run from now on, even if what follows fails.
        home.write_secret("ticket", options.ticket.to_line().as_bytes())?;
        let (identity, journal) = (Arc::new(home.identity()?), Arc::new(Journal::open(&home)?));
        let endpoint = endpoint(&options, &identity, line, &home);
        let (peers, progress) = (Peers::new(endpoint.clone()), ProgressDisplay::new(options.progress));
        let (steward, manifest) = reach(&options, &identity, &peers, &journal).await?;
        keep(&manifest, &home, &options)?;
        let (holders, files) = (TextHolders::new(peers.clone(), steward.clone()), home.row_files()?);
        let dataset = fetch_text(&options, &holders, &manifest, &progress).await?;
        let (arithmetic, replica) = prepare(&options, &manifest, &dataset, files.clone()).await?;
        let mut follower = Follower::new(peers, steward, replica, Some(journal.clone()))?;
        instruct(&mut follower, &options, &home, holders, identity.id())?;
        let (ledgers, ledger) = watch::channel(Arc::new(follower.ledger().clone()));
        // One failed write ends the membership: there is room for it, and the next ones are dropped.
        let ((failed, failures), (sender, queue)) = (mpsc::channel(1), mpsc::channel(QUEUE));
        let early = early(&options, identity.id(), &follower, &home, &failed)?;
        let shared = Arc::new(NodeContext {
            identity: identity.clone(),
            ledger,
            conduct: conduct.clone(),
            intake: early.intake.clone(),
            own: early.own.clone(),
            early,
            results: follower.results().clone(),
            stopwatch: stopwatch(&follower),
            calls: Calls::new(holder(&identity, &conduct, &follower, options.machine.path)),
            pieces: pieces(files, &conduct, &follower),
            turns: Turns::new(READERS),
            text: dataset.clone(),
            relay: OnceLock::new(),
        });
        let (addresses, _served) = listen(&options, &journal, &endpoint, &shared, follower.peers()).await?;
        join_swarm(&options, &endpoint, &identity, &mut follower, &addresses);
        let driver = NodeDriver {
            machine: begin(&shared, &home, &journal, addresses.clone(), options.engagement)?,
            options,
            conduct,
            home,
            journal,
            shared,
            ledgers,
            peers: follower.peers().clone(),
            steward: follower.steward().clone(),
            gossip: follower.gossip().cloned(),
            replica: follower.replica().clone(),
            arithmetic: Arc::new(Mutex::new(arithmetic)),
            manifest,
            dataset,
            progress,
            sender,
            failed,
            began: Instant::now(),
            bringing: Bringing::default(),
            comparing: Vec::new(),
            evidence: Arc::default(),
            told: ToldRows::default(),
            behind: Behind::new(endpoint.clone(), &_served),
        };
        Ok(Self { driver, follower, addresses, endpoint, queue, failures, seen: Seen::default(), _served })
    }

    /// Takes part until the membership ends; none where it pauses.
    pub(super) async fn attend(&mut self, watch: &mut Watch) -> Result<Option<End>, JoinError> {
        let end = self.follow(watch).await;
        // A disk that failed is told of once.
        if !matches!(end, Err(JoinError::Store(_) | JoinError::Follow(FollowError::Store(_)))) {
            watch.look(carried(&self.endpoint));
            watch.keep(&self.driver.home, true)?;
            self.report();
        }
        end
    }

    /// What the membership says of itself.
    pub(super) fn status(&self, watch: &Watch) -> Status {
        self.seen.status(&self.driver, watch.paused())
    }

    /// Shows the membership, and has the member admitted.
    pub(super) async fn begin(&mut self) -> Result<(), JoinError> {
        self.show().await?;
        self.enrol().await
    }

    /// Shows what this program does and, if the volunteer wants to see it, the run.
    async fn show(&mut self) -> Result<(), JoinError> {
        let NodeDriver { options, manifest, journal, dataset, progress, .. } = &self.driver;
        if let Some(address) = self.seen.open(options).await? {
            progress.line(&format!("{METRICS}{address}metrics"));
        }
        if !options.show.is_wanted() {
            return Ok(());
        }
        let (source, folder) = (Source::Own(journal.clone()), Some(options.data_dir.clone()));
        let view = View::start(manifest.clone(), source, folder, Some(self.me()));
        view.compare(dataset.clone());
        let replica = self.follower.replica().clone();
        view.measure(move || measure_held_out(&replica));
        let shown = Shown::open(view.clone(), &options.show).await.map_err(JoinError::Environment)?;
        if let Some(page) = shown.page() {
            progress.line(&format!("the run as web pages: {page}"));
        }
        self.seen.run = Some(shown);
        self.follower.tell_notices(Box::new(move |notice| view.hear(notice)));
        Ok(())
    }

    /// Shows the run on the terminal, if the volunteer wants to see it there.
    fn open_board(&mut self) -> Result<(), JoinError> {
        let wanted = self.driver.options.show.board;
        let Some(shown) = self.seen.run.as_mut().filter(|_| wanted) else { return Ok(()) };
        let addresses = self.addresses.iter().map(|address| String::from(&**address)).collect();
        // Until now a bar showed what was fetched.
        self.driver.progress = ProgressDisplay::new(false);
        shown.open_board("taking part", addresses).map_err(JoinError::Environment)
    }

    /// Writes down the outcome of the membership, for the member and for programs, and the model as it is now.
    fn report(&self) {
        let NodeDriver { machine, home, shared, .. } = &self.driver;
        let replica = lock(self.follower.replica());
        let HeldState { state, rows, roots } = replica.held_state();
        let (sent, ahead) = (self.endpoint.bytes_sent(), shared.own.ahead().used());
        let report = ResultFile::new(self.me(), machine.leaves(), &replica, sent, ahead, &shared.stopwatch);
        let kept = [
            home.write_file("result.json", report.json().as_bytes()),
            home.save_state_and_rows(replica.round(), state, rows, roots),
            // The one before may be what shows a wrong root (AUDIT-13).
            home.prune_states(&|round| round == replica.round() || round.next() == replica.round()),
        ];
        shared.pieces.clear();
        for error in kept.into_iter().filter_map(Result::err) {
            tracing::warn!("{error}");
        }
        let carried = self.endpoint.bytes_relayed();
        if carried > 0 {
            let carried = muster_replica::memory::shown(carried);
            tracing::info!(
                "{carried} went through this member's relay, for members that reach each other by no other way"
            );
        }
    }

    fn me(&self) -> MemberId {
        self.driver.me()
    }

    /// Catches up, then asks for admission unless this key was admitted before.
    async fn enrol(&mut self) -> Result<(), JoinError> {
        let me = self.me();
        // Caught up first. The ledger alone says whether this key was admitted, has left or was banned; and a round waits for
        // whoever has a seat in it, also while that one still reads the rounds before.
        // STATE-14.
        let mut left = STEPS;
        loop {
            let follower = &mut self.follower;
            let begun = follower.ledger().stage() != Stage::Empty && follower.ledger().height().0 > 0;
            if begun && follower.is_current() {
                if follower.in_step() || follower.ledger().member(&me).is_some() || left == 0 {
                    break;
                }
                left -= 1;
            }
            follower.step().await?;
        }
        if let Some(member) = self.follower.ledger().member(&me) {
            return match member.standing {
                Standing::Left => Err(JoinError::Over("left the run for good")),
                Standing::Banned => Err(JoinError::Over("was banned from the run")),
                Standing::Active | Standing::Away | Standing::Silent(_) => Ok(()),
            };
        }
        let mut answer = self.ask_in().await?;
        // CHAN-24: the steward seals no address at which it cannot reach this member. Without one it is a member that only
        // dials out.
        if let Err(PeerError::Refused(why)) = &answer
            && !self.addresses.is_empty()
        {
            let alone = std::mem::take(&mut self.addresses);
            let without = self.ask_in().await?;
            if matches!(without, Ok(Response::Done)) {
                let said: Vec<&str> = alone.iter().map(|address| &**address).collect();
                tracing::warn!(
                    "{why}: this member only dials out until it is met behind its router, or until the steward finds it at {}, \
                     which it asks for again from time to time; to be dialled without the router's help give an address that \
                     others can reach with --listen or --advertise; to be dialled by nobody say --no-listen",
                    said.join(", ")
                );
                self.driver.machine.only_dials();
            }
            answer = without;
        }
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
        self.driver.progress.line(&format!("admitted as {} {me}", Role::Node.word()));
        Ok(())
    }

    /// Asks for admission, with the addresses that this member has now. A steward that is restarting is waited for, some times
    /// at most.
    async fn ask_in(&mut self) -> Result<Result<Response, PeerError>, FollowError> {
        let NodeDriver { options, shared, .. } = &self.driver;
        let enrol = Enrol {
            invitation: options.ticket.present(self.me()),
            addresses: self.addresses.clone(),
            coins: None,
            name: options.name.clone(),
            engagement: options.engagement,
        };
        let request = Request::Enrol(shared.identity.sign(options.ticket.run, &enrol));
        let mut left = TRIES;
        loop {
            left -= 1;
            match self.follower.peers().ask(self.follower.steward(), &request).await {
                Err(PeerError::Net(error)) if left > 0 => {
                    tracing::warn!("the steward does not answer ({error}); trying again");
                    self.follower.step().await?;
                }
                answer => return Ok(answer),
            }
        }
    }

    async fn follow(&mut self, watch: &mut Watch) -> Result<Option<End>, JoinError> {
        let mut interrupt = Box::pin(interrupted());
        let mut interrupted = false;
        // Once the signal of a key is listened for.
        tokio::select! {
            biased;
            () = &mut interrupt => return Ok(Some(End::Interrupted)),
            () = std::future::ready(()) => self.open_board()?,
        }
        let mut keeping = lock(self.follower.replica()).keeping();
        self.driver.tell_row(*keeping.borrow_and_update());
        loop {
            let followed = {
                let step = self.follower.step();
                // One step across all messages: a call that is dropped breaks its channel, and each message
                // would cost a new handshake.
                tokio::pin!(step);
                loop {
                    tokio::select! {
                        events = &mut step => break Ok(events?),
                        Some(message) = self.queue.recv() => self.driver.take(message)?,
                        Some(error) = self.failures.recv() => return Err(error.into()),
                        Some(inquiry) = self.seen.next() => inquiry.answer(self.seen.status(&self.driver, watch.paused())),
                        () = watch.due() => self.driver.restrain(watch, carried(&self.endpoint))?,
                        // Before the step is over, which fetches what is not here of the row.
                        Ok(()) = keeping.changed() => self.driver.tell_row(*keeping.borrow_and_update()),
                        () = &mut interrupt, if !interrupted => {
                            interrupted = true;
                            self.driver.handle(NodeInput::Interrupt);
                        }
                        () = tokio::time::sleep(self.driver.pause()) => self.driver.handle(NodeInput::Tick),
                    }
                    if let Some(ending) = self.driver.drain()? {
                        break Err(ending);
                    }
                }
            };
            let ending = match followed {
                Ok(events) => {
                    self.seen.pulse.at(self.follower.ledger());
                    self.driver.followed(&self.follower, events);
                    self.driver.look_for_way();
                    self.driver.drain()?
                }
                Err(ending) => Some(ending),
            };
            if let Some(ending) = ending {
                return self.ended(ending);
            }
        }
    }

    /// The outcome of the membership for the caller of [`join`]; none where it pauses.
    fn ended(&self, ending: MembershipEnd) -> Result<Option<End>, JoinError> {
        if self.follower.ledger().stage() == Stage::Closed {
            self.driver.progress.finish();
        }
        match ending {
            MembershipEnd::Closed => Ok(Some(End::Closed { leaves: self.driver.machine.leaves() })),
            MembershipEnd::Left => Ok(Some(End::Left)),
            MembershipEnd::Interrupted => Ok(Some(End::Interrupted)),
            MembershipEnd::Resting => Ok(None),
            MembershipEnd::Elsewhere(addresses) => {
                let there: Vec<&str> = addresses.iter().map(|address| &**address).collect();
                Err(JoinError::Elsewhere(there.join(", ")))
            }
            MembershipEnd::Twice(round) => Err(JoinError::Twice(round)),
            MembershipEnd::Convicted(evidence, why) => Err(self.follower.convict(&evidence, why).into()),
            MembershipEnd::Banned(ban) => {
                let Ban { round, finding, accuser, evidence, .. } = *ban;
                let nothing = || format!("the steward has not shown the evidence {evidence}");
                let evidence = self.driver.evidence.get().cloned().unwrap_or_else(nothing);
                Err(JoinError::Banned { round, finding: finding.words(), accuser, evidence })
            }
        }
    }
}
