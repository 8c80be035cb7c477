//! The steward: hosts a run's folder. It admits members, freezes rounds, applies and seals outcomes, examines
//! accusations, and serves whoever follows.
//!
//! A machine decides ([`muster_roles::steward`]), and one thread drives it (`driver`); a server answers bulk requests beside
//! it. What was sealed is in the journal before anybody sees it, and what members have said is kept until a record holds it,
//! so that a killed steward goes on without a fork.

mod apart;
mod apply;
mod asks;
mod board;
mod clock;
mod court;
mod dial_back;
mod driver;
mod exhibits;
mod hearing;
mod held_out;
mod inbox;
mod listen;
mod options;
mod origins;
mod presence;
mod questions;
mod recover;
mod report;
mod retro;
mod sample;
mod second;
mod server;
mod show;
mod stand_in;
mod status;
mod swarm;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use muster_core::ids::{Round, RunId};
use muster_core::ledger::{Ledger, Stage};
use muster_core::lock::lock;
use muster_core::manifest::Manifest;
use muster_core::messages::record::Ban;
use muster_core::messages::wire::Request;
use muster_core::sign::Identity;
use muster_keeper::intake::Intake;
use muster_keeper::shares::Places;
use muster_net::capacity::Capacity;
use muster_net::clock::{REMEDY, implausible, now};
use muster_net::endpoint::Endpoint;
use muster_net::listener::Listener;
use muster_net::relay::Relay;
use muster_net::serve::serve;
use muster_net::shares::Turns;
use muster_organise::prospect::warnings;
use muster_replica::exit::{Failure, Outcome};
use muster_replica::memory::shown;
use muster_replica::{Allowance, Offers, Peers, Replica, Results, disk};
use muster_roles::steward::{Steward, StewardInput, StewardSetup};
use muster_store::journal::Journal;
use muster_store::rows::RowFiles;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::JoinSet;

pub use listen::CONNECTIONS;
pub use muster_roles::steward::HostingEnd;
pub use options::HostOptions;

use asks::Asks;
use board::Board;
use clock::Clock;
use court::{Court, HOARD, SHOWING};
use dial_back::DialBack;
use driver::{Inbound, QUEUE, StewardDriver, StopHearings, WORK};
use held_out::HeldOut;
use inbox::Inbox;
use listen::Listening;
use origins::Origins;
use presence::Connections;
use questions::Questions;
use recover::{Recovered, recover};
use report::Reporter;
use sample::Sampler;
use server::{MAKERS, Server};
use status::Watched;

/// What the line begins with that says where a browser sees the run.
pub const PAGE: &str = "the run as web pages: ";

/// What is known once the steward listens.
#[derive(Clone, Debug)]
pub struct Ready {
    /// The run.
    pub run: RunId,
    /// Where it can be dialled.
    pub addresses: Vec<String>,
    /// Where a browser sees it, if it is shown.
    pub page: Option<String>,
    /// Where monitoring systems see what the steward does, if they are to.
    pub metrics: Option<String>,
    /// Whether it is over: there is nothing to join.
    pub is_over: bool,
}

/// Hosts a run until an interrupted round has ended or everybody has left it, or the run is over. What is left of a run that is over
/// is served until an interrupt, unless the options say otherwise. `ready` is told once members can come.
///
/// # Errors
/// [`Failure`]: the folder is no run, is held by another process, or damaged; the port is busy; the disk is full.
pub async fn host(options: HostOptions, ready: impl FnOnce(&Ready)) -> Outcome<HostingEnd> {
    let (folder, machine) = (options.folder.clone(), options.machine);
    let recovered = tokio::task::spawn_blocking(move || recover(folder, machine)).await;
    let recovered =
        recovered.map_err(|error| Failure::environment(format!("opening the run failed: {error}")))??;
    let (inbox, kept) = Inbox::open(&options.folder)?;
    let mut report = Reporter::open(&options.folder, options.progress)?;
    report.started(recovered.ledger.next_round());
    warn(&report, &recovered.manifest, &options);
    let listening = Listening::bind(&recovered.home, &options).await?;
    let origins = Origins::recall(&recovered.home, &recovered.ledger, listening.shares.clone());
    let (gossip, findings, swarm) = match swarm::join(&recovered, options.gossip.as_ref()).await {
        Some((gossip, findings, own)) => (Some(gossip), Some(findings), own),
        None => (None, None, Vec::new()),
    };
    listening.tell(&recovered.home, &swarm)?;
    if let Some(gossip) = &gossip {
        gossip.announce(&recovered.identity, swarm::whereabouts(&listening.addresses));
    }
    let (run, is_over) = (recovered.manifest.run(), recovered.ledger.stage() == Stage::Closed);
    let endpoint = Endpoint::new(run, recovered.identity.clone());
    let relay = listening.relay.clone();
    endpoint.meet_here(relay.clone());
    let dial_back =
        DialBack::new(&endpoint, &listening.addresses, listening.shares.clone(), Capacity::of_process());
    let files = RunFiles { inbox, kept, report, origins };
    let peers = Peers::new(endpoint.clone());
    let (mut driver, server) =
        assemble(recovered, peers, Arc::new(dial_back), relay.clone(), files, &options)?;
    driver.gossip = gossip;
    driver.shown = show::show(&options, &driver.journal, &driver.court).await?;
    let (window, asked) = status::open(&options).await?;
    driver.watched.asked = Some(asked);
    let (stop, mut servers) = serve_at(listening.listeners, &endpoint, &server);
    if let Some(findings) = findings {
        servers.spawn(swarm::listen(findings, server.driver.clone()));
    }
    let sender = server.driver.clone();
    servers.spawn(async move {
        muster_show::progress::interrupted().await;
        let _ = sender.send(Inbound::Input(StewardInput::Interrupt)).await;
        std::future::pending::<()>().await;
    });
    let page = driver.shown.as_ref().and_then(|shown| shown.page()).map(str::to_owned);
    let metrics = window.metrics().map(str::to_owned);
    ready(&Ready { run, addresses: listening.addresses.clone(), page, metrics, is_over });
    if let Some(shown) = driver.shown.as_mut().filter(|_| options.show.board) {
        shown.open_board("hosting", listening.addresses).map_err(Failure::environment)?;
    }
    let ending = apart::run(driver).await;
    tell_carried(relay.carried());
    drop(stop);
    servers.shutdown().await;
    ending
}

/// Serves on these ports until the sender is dropped.
fn serve_at(
    listeners: Vec<Listener>,
    endpoint: &Endpoint,
    server: &Arc<Server>,
) -> (watch::Sender<()>, JoinSet<()>) {
    let (stop, stopped) = watch::channel(());
    // Dropped with whoever hosts, so that a host that is given up leaves no server behind.
    let mut servers = JoinSet::new();
    for listener in listeners {
        let mut stopped = stopped.clone();
        let shutdown = async move {
            let _ = stopped.changed().await;
        };
        servers.spawn(serve(listener, endpoint.clone(), server.clone(), shutdown));
    }
    (stop, servers)
}

/// Says how much of its line others' bytes took.
fn tell_carried(carried: u64) {
    if carried > 0 {
        tracing::info!(
            "{} went through the relay for members that reach each other by no other way",
            shown(carried)
        );
    }
}

/// Says what may go wrong with the run on this machine.
fn warn(report: &Reporter, manifest: &Manifest, options: &HostOptions) {
    let care = warnings(manifest).into_iter().chain(short_disk(manifest, options)).chain(wrong_clock());
    care.for_each(|warning| report.line(&format!("warning: {warning}")));
}

/// What is wrong with the clock, by which members and invitations are judged, in words.
fn wrong_clock() -> Option<String> {
    let found = implausible(now())?;
    Some(format!("the clock says {found}: nobody else will be able to connect; {REMEDY}"))
}

/// What is missing of the disk that the run will take, in words. A steward hosts all the same: everybody waits for it, and it
/// stops before anything is lost.
fn short_disk(manifest: &Manifest, options: &HostOptions) -> Option<String> {
    let archived = if options.keep_aggregates { manifest.training.rounds } else { 0 };
    let need = disk::hosting(manifest, archived);
    let (more, free) = Allowance::new(&options.folder, None).lacking(&need)?;
    Some(format!(
        "{}: until its last round the run takes about {} more of disk ({}), {} are free there; make room in time: on a full disk the \
         steward stops, and everybody waits",
        options.folder.display(),
        shown(more),
        need.because(),
        shown(free)
    ))
}

/// What the run's folder has beside what was recovered.
struct RunFiles {
    inbox: Inbox,
    kept: Vec<Request>,
    report: Reporter,
    origins: Origins,
}

/// The driver with its machine, and the server beside it.
fn assemble(
    recovered: Recovered,
    peers: Peers,
    dial_back: Arc<DialBack>,
    relay: Arc<Relay>,
    files: RunFiles,
    options: &HostOptions,
) -> Outcome<(StewardDriver, Arc<Server>)> {
    let Recovered { home, row_files, identity, manifest, dataset, journal, ledger, bans, .. } = recovered;
    let Recovered { replica, arithmetic, second, .. } = recovered;
    let layout = ledger.layout().clone();
    let (failed, failures) = mpsc::channel(1);
    let intake = Arc::new(Intake::new(layout.clone(), Arc::new(home.clone()), failed).lean());
    let presence = Arc::new(Connections::new(&ledger));
    let (stop, stopped) = watch::channel(false);
    let replica = Arc::new(Mutex::new(replica));
    let offers = offers(row_files, &replica, &ledger)?;
    peers.behind(identity.id());
    let court = Arc::new(Court {
        manifest,
        layout,
        home,
        journal: journal.clone(),
        shelf: intake.shelf().clone(),
        keep_aggregates: options.keep_aggregates,
        peers,
        dataset,
        replica,
        offers,
        origins: files.origins,
        arithmetic,
        second,
        hoard: Arc::new(Semaphore::new(HOARD)),
        showing: Semaphore::new(SHOWING),
        stopped,
    });
    let (sender, queue) = mpsc::channel(QUEUE);
    let driver = StewardDriver {
        board: board(&journal, &ledger)?,
        asks: Asks::new(&ledger),
        held_out: held_out(&court, options, sender.clone())?,
        machine: machine(&court, ledger, identity.clone(), bans, files.kept, options.equal_parts),
        journal,
        identity,
        results: Results::new(court.layout.clone()).with_disk(court.home.clone()),
        court,
        intake,
        work: Places::new(WORK, 0),
        dial_back,
        view: None,
        presence,
        inbox: files.inbox,
        report: files.report,
        gossip: None,
        shown: None,
        watched: Watched::default(),
        exit_when_done: options.exit_when_done,
        failures,
        queue,
        sender,
        tasks: Handle::current(),
        clock: Clock::start(),
        questions: Questions::default(),
        connected: BTreeSet::new(),
        _stop: StopHearings(stop),
    };
    let server = Arc::new(server(&driver, relay));
    Ok((driver, server))
}

/// What measures the loss on the held-out text, and has the model write where somebody looks; it tells the driver.
fn held_out(court: &Court, options: &HostOptions, driver: mpsc::Sender<Inbound>) -> Outcome<HeldOut> {
    let sampler = options.show.is_wanted().then(|| Sampler::of(court, &options.folder)).flatten();
    HeldOut::start(&court.manifest, court.dataset.clone(), sampler, move |measured| {
        // Nobody waits for it where the steward has stopped.
        let _ = driver.blocking_send(Inbound::Measured(measured));
    })
}

/// The server beside a driver.
fn server(driver: &StewardDriver, relay: Arc<Relay>) -> Server {
    let court = &driver.court;
    Server {
        manifest: court.manifest.clone(),
        dataset: court.dataset.clone(),
        home: court.home.clone(),
        board: driver.board.clone(),
        results: driver.results.clone(),
        presence: driver.presence.clone(),
        driver: driver.sender.clone(),
        asks: driver.asks.clone(),
        offers: court.offers.clone(),
        turns: Turns::new(MAKERS),
        relay,
    }
}

/// What others may fetch of the state. STATE-10: after a restart its state is among it, since the results that lead there
/// from an earlier one are gone.
fn offers(files: RowFiles, replica: &Arc<Mutex<Replica>>, ledger: &Ledger) -> Outcome<Arc<Offers>> {
    let offers = Offers::new(files, replica.clone());
    if ledger.next_round() > Round(0) {
        offers.keep_now()?;
    }
    Ok(Arc::new(offers))
}

/// The board, under a name by which followers tell that its notices are numbered anew.
fn board(journal: &Arc<Journal>, ledger: &Ledger) -> Outcome<Arc<Board>> {
    let mut name = [0; 8];
    getrandom::fill(&mut name)
        .map_err(|error| Failure::environment(format!("the system gives no randomness ({error})")))?;
    Ok(Arc::new(Board::new(journal.clone(), ledger.height(), u64::from_le_bytes(name))))
}

/// The steward's machine, with what the folder has of the run.
fn machine(
    court: &Court,
    ledger: Ledger,
    identity: Arc<Identity>,
    bans: Vec<Ban>,
    kept: Vec<Request>,
    equal_parts: bool,
) -> Steward {
    let evidence = |ban: &Ban| court.home.load_evidence(&ban.evidence).ok();
    let bans = bans.into_iter().map(|ban| (ban.clone(), evidence(&ban))).collect();
    let roots = lock(&court.replica).roots().clone();
    let machine =
        Steward::new(StewardSetup { ledger, identity, roots, states: court.kept_states(), bans, kept });
    if equal_parts { machine.with_equal_parts() } else { machine }
}
