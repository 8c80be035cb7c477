//! A steward over loopback, talked to by real clients.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use muster_compute::Machine;
use muster_core::codec::List;
use muster_core::ids::{Digest, Height, MemberId, Round};
use muster_core::ledger::{Ledger, Stage, Standing};
use muster_core::messages::enrol::{Enrol, Leave, Pass, Role, Ticket};
use muster_core::messages::evidence::{Equivocation, Evidence};
use muster_core::messages::round::{Commit, Echo};
use muster_core::messages::wire::{Follow, Notice, Request, Response};
use muster_core::sign::{Identity, Signed};
use muster_member::{End, JoinOptions, Listen, join};
use muster_net::endpoint::Endpoint;
use muster_net::swarm::Settings;
use muster_organise::create::{CreateOptions, create};
use muster_organise::invite::{InviteOptions, invite};
use muster_organise::pack::{PackOptions, pack};
use muster_replica::archive::Archive;
use muster_replica::exit::Exit;
use muster_replica::{Contact, PeerError, Peers, Replica};
use muster_show::ShowOptions;
use muster_view::event::LogEvent;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::*;

const SETTINGS: &str = "
    [model]\nwidth = 16\nlayers = 1\nheads = 2\nkey_value_heads = 2\nhidden = 24\nsequence = 32
    [training]\nrounds = 4\nleaves = 4\nleaf_windows = 1
    [audit]\nfinal_rounds = 2
    [admission]\nstart_nodes = 2\nstart_verifiers = 0\nmost_members = 3
";

/// A run of four rounds that begins with two nodes.
pub(super) fn new_run(directory: &Path) -> PathBuf {
    new_run_with(directory, SETTINGS)
}

fn new_run_with(directory: &Path, settings: &str) -> PathBuf {
    let at = |name: &str| directory.join(name);
    fs::write(at("text.txt"), "To be, or not to be: that is the question. ".repeat(100)).unwrap();
    fs::write(at("run.toml"), settings).unwrap();
    let (text, corpus) = (vec![at("text.txt")], at("corpus"));
    let options = PackOptions { text, out: corpus.clone(), ..PackOptions::default() };
    pack(&options, &mut |_, _| ()).unwrap();
    create(&CreateOptions {
        config: at("run.toml"),
        data: corpus,
        calibration: None,
        init: None,
        organiser_key: None,
        out: at("run"),
    })
    .unwrap();
    at("run")
}

/// Gossip on any port.
fn beside() -> Settings {
    Settings { listen: vec!["127.0.0.1:0".into()], ..Settings::default() }
}

fn options(folder: &Path) -> HostOptions {
    let listen = vec!["127.0.0.1:0".to_owned()];
    HostOptions {
        per_address: CONNECTIONS,
        relay_rate: 32_000_000,
        equal_parts: false,
        keep_aggregates: true,
        exit_when_done: true,
        folder: folder.to_owned(),
        listen,
        advertise: vec![],
        show: ShowOptions::default(),
        gossip: Some(beside()),
        machine: Machine::new(1, None),
        progress: false,
    }
}

async fn start(folder: &Path) -> (JoinHandle<Outcome<HostingEnd>>, Ready) {
    start_with(options(folder)).await
}

async fn start_with(options: HostOptions) -> (JoinHandle<Outcome<HostingEnd>>, Ready) {
    let (tell, told) = oneshot::channel();
    let hosting = tokio::spawn(host(options, move |ready: &Ready| {
        let _ = tell.send(ready.clone());
    }));
    match told.await {
        Ok(ready) => (hosting, ready),
        Err(_) => panic!("{:?}", hosting.await),
    }
}

/// As `kill -9` does it, as far as one process can.
async fn kill(hosting: JoinHandle<Outcome<HostingEnd>>, folder: &Path) {
    hosting.abort();
    let _ = hosting.await;
    // Tasks that the host had started may hold the folder a moment longer.
    while muster_store::home::Home::open(folder).is_err() {
        tokio::task::yield_now().await;
    }
}

fn ticket(folder: &Path, uses: u32, valid_for: u64) -> Ticket {
    let (addresses, organiser_key) = (vec![], None);
    let (folder, role) = (folder.to_owned(), Some(Role::Node));
    let options = InviteOptions { folder, role, founder: false, uses, valid_for, addresses, organiser_key };
    invite(&options).unwrap()
}

/// A member as the steward sees it.
struct Caller {
    identity: Arc<Identity>,
    peers: Peers,
    steward: Contact,
    ticket: Ticket,
}

impl Caller {
    fn new(secret: u8, ticket: Ticket) -> Self {
        let identity = Arc::new(Identity::from_secret(&[secret; 32]));
        let addresses = ticket.addresses.iter().map(|address| address.to_string()).collect();
        let steward = Contact { member: ticket.steward, addresses };
        let peers = Peers::new(Endpoint::new(ticket.run, identity.clone()));
        Self { identity, peers, steward, ticket }
    }

    fn id(&self) -> MemberId {
        self.identity.id()
    }

    async fn ask(&self, request: Request) -> Result<Response, PeerError> {
        self.peers.ask(&self.steward, &request).await
    }

    fn enrolment(&self) -> Signed<Enrol> {
        let addresses = List::new(vec![]).unwrap();
        let invitation = self.ticket.present(self.id());
        self.identity.sign(
            self.ticket.run,
            &Enrol {
                invitation,
                addresses,
                coins: None,
                name: Default::default(),
                engagement: Default::default(),
            },
        )
    }

    async fn enrol(&self) -> Result<Response, PeerError> {
        self.ask(Request::Enrol(self.enrolment())).await
    }

    /// The ledger as it is shown, checked.
    async fn ledger(&self, folder: &Path) -> Ledger {
        let manifest = Arc::new(muster_organise::invite::read_manifest(folder).unwrap());
        let mut ledger = Ledger::new(manifest);
        loop {
            let follow = Follow { height: ledger.height(), board: 0, notice: 0 };
            let Ok(Response::News(news)) = self.ask(Request::Follow(follow)).await else { panic!("no news") };
            for record in &news.records {
                ledger.apply(record).unwrap();
            }
            if ledger.height() > news.newest {
                return ledger;
            }
        }
    }
}

impl Caller {
    /// A commitment for the round being computed, to whatever `root` says.
    fn commit(&self, ledger: &Ledger, root: u8) -> Signed<Commit> {
        let view = ledger.current().unwrap();
        let slot = view.slot_of(&self.id()).unwrap();
        self.identity.sign(
            ledger.run(),
            &Commit {
                round: view.round(),
                head: view.head(),
                state: view.state().root(),
                slot,
                seats: view.seats().len() as u16,
                route: None,
                leaves: 1,
                profile: ledger.manifest().profile,
                loss: 0,
                root: Digest([root; 32]),
            },
        )
    }

    /// The ledger once it satisfies a condition.
    async fn ledger_when(&self, folder: &Path, reached: impl Fn(&Ledger) -> bool) -> Ledger {
        loop {
            let ledger = self.ledger(folder).await;
            if reached(&ledger) {
                return ledger;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

fn refusal(answer: Result<Response, PeerError>) -> String {
    match answer {
        Err(PeerError::Refused(why)) => why,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn invitations_admit_as_often_as_they_say_and_not_later() {
    let directory = tempfile::tempdir().unwrap();
    let folder = new_run(directory.path());
    let (hosting, ready) = start(&folder).await;
    let once = ticket(&folder, 1, 3600);
    assert_eq!(once.run, ready.run);
    let first = Caller::new(1, once.clone());
    assert_eq!(first.enrol().await.unwrap(), Response::Done);
    assert_eq!(first.enrol().await.unwrap(), Response::Done, "asking twice does no harm");
    let second = Caller::new(2, once.clone());
    assert!(refusal(second.enrol().await).contains("used up"));
    let late = Caller::new(3, Ticket { pass: ticket(&folder, 1, 0).pass, ..once.clone() });
    tokio::time::sleep(Duration::from_millis(1100)).await;
    assert!(refusal(late.enrol().await).contains("expired"));
    let genuine = once.pass.clone().unwrap();
    let invitation = genuine.verify(once.run).unwrap().into_inner();
    let forged = Some(Pass { invitation: late.identity.sign(once.run, &invitation), ..genuine });
    let forger = Caller::new(4, Ticket { pass: forged, ..once.clone() });
    // STAND-5: an invitation is the organiser's or a member's; a newcomer's own signature brings it nowhere.
    assert!(refusal(forger.enrol().await).contains("only the organiser"));
    let stranger = refusal(
        second
            .ask(Request::Notice(Notice::Leave(second.identity.sign(once.run, &Leave { height: Height(1) }))))
            .await,
    );
    // CHAN-10: who is no member takes part in nothing, but reads what is public: the manifest and the ledger.
    assert!(stranger.contains("no member"), "{stranger}");
    assert!(matches!(second.ask(Request::Manifest).await, Ok(Response::Manifest(_))));
    assert_eq!(second.ledger(&folder).await.head(), first.ledger(&folder).await.head());
    let ledger = first.ledger(&folder).await;
    assert_eq!(ledger.members().iter().map(|m| m.id).collect::<Vec<_>>(), [first.id()]);
    kill(hosting, &folder).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_steward_comes_back_where_it_was() {
    let directory = tempfile::tempdir().unwrap();
    let folder = new_run(directory.path());
    let (hosting, ready) = start(&folder).await;
    let member = Caller::new(1, ticket(&folder, 3, 3600));
    member.enrol().await.unwrap();
    let before = member.ledger(&folder).await;
    let second = host(options(&folder), |_: &Ready| ()).await.unwrap_err();
    assert_eq!(second.exit, Exit::Environment);
    assert!(second.message.contains("another process is using this directory"), "{second}");
    kill(hosting, &folder).await;
    let (hosting, again) = start(&folder).await;
    assert_eq!(again.addresses, ready.addresses, "members find it where it was");
    let after = member.ledger(&folder).await;
    assert_eq!(after.head(), before.head());
    assert_eq!(after.stage(), Stage::Gathering);
    kill(hosting, &folder).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_busy_port_a_wrong_backend_and_a_folder_that_is_no_run_are_named() {
    let directory = tempfile::tempdir().unwrap();
    let folder = new_run(directory.path());
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = vec![taken.local_addr().unwrap().to_string()];
    let failure = host(HostOptions { listen, ..options(&folder) }, |_: &Ready| ()).await.unwrap_err();
    assert_eq!(failure.exit, Exit::Environment);
    assert!(failure.message.contains("the port is busy"), "{failure}");
    let failure = host(options(directory.path()), |_: &Ready| ()).await.unwrap_err();
    assert!(failure.message.contains("manifest.bin: cannot be read"), "{failure}");
    assert!(!directory.path().join("lock").exists(), "nothing is made in a foreign folder");
    let machine = Machine { library: Some(muster_compute::Library::Tch), ..Machine::new(1, None) };
    let failure = host(HostOptions { machine, ..options(&folder) }, |_: &Ready| ()).await.unwrap_err();
    assert!(failure.message.contains("leave out --backend tch"), "{failure}");
    fs::write(folder.join("manifest.bin"), b"half").unwrap();
    let failure = host(options(&folder), |_: &Ready| ()).await.unwrap_err();
    assert!(failure.message.contains("manifest.bin: is damaged"), "{failure}");
}

fn volunteer(directory: &Path, number: u8, ticket: Ticket) -> JoinOptions {
    JoinOptions {
        ticket,
        data_dir: directory.join(format!("node{number}")),
        name: Default::default(),
        listen: Listen::At("127.0.0.1:0".into()),
        advertise: None,
        relay: true,
        show: ShowOptions::default(),
        gossip: Some(beside()),
        machine: Machine::new(1, None),
        bounds: Default::default(),
        restraint: Default::default(),
        engagement: Default::default(),
        progress: false,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_volunteers_train_and_the_folder_replays() {
    let directory = tempfile::tempdir().unwrap();
    let folder = new_run(directory.path());
    let (hosting, _) = start(&folder).await;
    let ticket = ticket(&folder, 2, 3600);
    let first = tokio::spawn(join(volunteer(directory.path(), 1, ticket.clone())));
    let second = tokio::spawn(join(volunteer(directory.path(), 2, ticket)));
    assert_eq!(hosting.await.unwrap().unwrap(), HostingEnd::Closed);
    for joined in [first, second] {
        assert_eq!(joined.await.unwrap().unwrap(), End::Closed { leaves: 8 });
    }
    let log = fs::read_to_string(folder.join("log.jsonl")).unwrap();
    assert_eq!(log.matches("\"event\":\"round\"").count(), 4, "{log}");
    let archive = Archive::open(&folder).unwrap();
    let replica = Replica::genesis(archive.manifest.clone(), archive.dataset.clone(), 1, None).unwrap();
    let replayed = archive.replay(replica, &mut |_| ()).unwrap();
    assert!(log.contains(&format!("\"event\":\"close\",\"root\":\"{:#}\"", replayed.root)), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_is_measured_at_fixed_rounds_and_served_when_it_is_over() {
    let directory = tempfile::tempdir().unwrap();
    let folder = new_run(directory.path());
    let serving = HostOptions { exit_when_done: false, ..options(&folder) };
    let (hosting, ready) = start_with(serving.clone()).await;
    assert!(!ready.is_over);
    let line = ticket(&folder, 3, 3600);
    let nodes = [1, 2].map(|number| tokio::spawn(join(volunteer(directory.path(), number, line.clone()))));
    for node in nodes {
        assert!(matches!(node.await.unwrap().unwrap(), End::Closed { .. }));
    }
    let measured = || -> BTreeMap<u32, f64> {
        let log = fs::read_to_string(folder.join("log.jsonl")).unwrap();
        let events = log.lines().filter_map(|line| LogEvent::parse(line.as_bytes()).ok());
        let held_out =
            |event| if let LogEvent::HeldOut { round, loss } = event { Some((round, loss)) } else { None };
        events.filter_map(held_out).collect()
    };
    while !measured().contains_key(&4) {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    let losses = measured();
    assert!(losses.keys().eq([0, 1, 2, 3, 4].iter()), "without pages, too: {losses:?}");
    // Nobody is connected any more, and a newcomer finds everything all the same.
    let observer = Caller::new(9, line);
    let over = |ledger: &Ledger| ledger.stage() == Stage::Closed;
    let ledger = observer.ledger_when(&folder, over).await;
    assert!(matches!(observer.ask(Request::StateOffer).await.unwrap(), Response::State(_)));
    assert!(!hosting.is_finished());
    kill(hosting, &folder).await;
    let (hosting, ready) = start_with(serving).await;
    assert!(ready.is_over);
    assert_eq!(observer.ledger(&folder).await.head(), ledger.head());
    assert_eq!(measured(), losses, "a restart loses no measurement and changes none");
    kill(hosting, &folder).await;
    // One that ends with the run says so at once.
    let (hosting, _) = start(&folder).await;
    assert_eq!(hosting.await.unwrap().unwrap(), HostingEnd::Closed);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receipted_commitment_survives_the_steward_and_a_second_one_convicts() {
    let directory = tempfile::tempdir().unwrap();
    let folder = new_run(directory.path());
    let (hosting, _) = start(&folder).await;
    let line = ticket(&folder, 2, 3600);
    let (first, second) = (Caller::new(1, line.clone()), Caller::new(2, line));
    first.enrol().await.unwrap();
    second.enrol().await.unwrap();
    let ledger = first.ledger_when(&folder, |ledger| ledger.stage() == Stage::Computing).await;
    let kept = first.commit(&ledger, 7);
    let answer = first.ask(Request::Commit(kept.clone())).await.unwrap();
    assert!(matches!(answer, Response::Committed(_)), "{answer:?}");
    kill(hosting, &folder).await;
    let (hosting, _) = start(&folder).await;
    // ROUND-16: the commitment was taken in again, so that another one is a second one. COMMIT-2: one in a round.
    let other = refusal(first.ask(Request::Commit(first.commit(&ledger, 8))).await);
    assert!(other.contains("commits once in a round"), "{other}");
    second.ask(Request::Commit(second.commit(&ledger, 9))).await.unwrap();
    let banned = |ledger: &Ledger| ledger.member(&first.id()).map(|m| m.standing) == Some(Standing::Banned);
    let frozen = |ledger: &Ledger| ledger.current().unwrap().freeze().is_some();
    let ledger = second.ledger_when(&folder, |ledger| banned(ledger) && frozen(ledger)).await;
    let view = ledger.round(Round(0)).unwrap();
    let roots: Vec<Digest> = view.commitments().map(|(_, c)| c.commit.root).collect();
    // COMMIT-4: the first one, which has a receipt, is frozen, and the second did not replace it.
    assert_eq!(roots, [Digest([7; 32]), Digest([9; 32])]);
    let kept = fs::read_dir(folder.join("evidence")).unwrap().map(|entry| entry.unwrap().path());
    assert_eq!(kept.filter(|path| path.extension().is_some_and(|ending| ending == "evidence")).count(), 1);
    assert!(ledger.member(&second.id()).unwrap().standing != Standing::Banned);
    kill(hosting, &folder).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_steward_killed_again_and_again_forks_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let folder = new_run_with(directory.path(), &SETTINGS.replace("rounds = 4", "rounds = 12"));
    let (mut hosting, _) = start(&folder).await;
    let observer = Caller::new(9, ticket(&folder, 1, 3600));
    let line = ticket(&folder, 2, 3600);
    let nodes = [1, 2].map(|number| tokio::spawn(join(volunteer(directory.path(), number, line.clone()))));
    let mut head = None;
    for round in [2, 5, 9] {
        let reached = |ledger: &Ledger| ledger.next_round().0 >= round;
        let before = observer.ledger_when(&folder, reached).await;
        kill(hosting, &folder).await;
        hosting = start(&folder).await.0;
        let after = observer.ledger(&folder).await;
        assert!(after.height() >= before.height(), "what was shown stays sealed");
        head = Some((before.height(), before.head()));
    }
    assert_eq!(hosting.await.unwrap().unwrap(), HostingEnd::Closed);
    for node in nodes {
        assert!(matches!(node.await.unwrap().unwrap(), End::Closed { .. }));
    }
    let archive = Archive::open(&folder).unwrap();
    let mut ledger = Ledger::new(archive.manifest.clone());
    for record in &archive.records {
        if let Some((_, shown)) = head.filter(|(height, _)| *height == ledger.height()) {
            assert_eq!(ledger.head(), shown);
        }
        ledger.apply(record).unwrap();
    }
    let replica = Replica::genesis(archive.manifest.clone(), archive.dataset.clone(), 1, None).unwrap();
    assert_eq!(archive.replay(replica, &mut |_| ()).unwrap().root, ledger.state().root());
}

#[tokio::test(flavor = "multi_thread")]
async fn members_find_a_steward_that_moved() {
    let directory = tempfile::tempdir().unwrap();
    let folder = new_run_with(directory.path(), &SETTINGS.replace("rounds = 4", "rounds = 40"));
    let (hosting, before) = start(&folder).await;
    let ticket = ticket(&folder, 2, 3600);
    assert!(ticket.addresses.iter().any(|address| address.starts_with("/ip4/127.0.0.1/tcp/")), "{ticket:?}");
    let first = tokio::spawn(join(volunteer(directory.path(), 1, ticket.clone())));
    let second = tokio::spawn(join(volunteer(directory.path(), 2, ticket)));
    let met = || {
        let log = fs::read_to_string(folder.join("log.jsonl")).unwrap_or_default();
        log.matches("\"event\":\"round\"").count() >= 3
    };
    while !met() {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    kill(hosting, &folder).await;
    let (tell, told) = oneshot::channel();
    let elsewhere = HostOptions { listen: vec!["127.0.0.2:0".into()], ..options(&folder) };
    let hosting = tokio::spawn(host(elsewhere, move |ready: &Ready| {
        let _ = tell.send(ready.clone());
    }));
    let after = told.await.unwrap();
    assert!(after.addresses.iter().all(|address| !before.addresses.contains(address)));
    assert_eq!(hosting.await.unwrap().unwrap(), HostingEnd::Closed);
    for joined in [first, second] {
        assert!(matches!(joined.await.unwrap().unwrap(), End::Closed { .. }));
    }
}

/// Two callers whose commitments were frozen; before them somebody came and left again.
async fn frozen(folder: &Path) -> ([Caller; 2], Ledger) {
    let line = ticket(folder, 3, 3600);
    let [gone, first, second] = [3, 1, 2].map(|secret| Caller::new(secret, line.clone()));
    gone.enrol().await.unwrap();
    let height = gone.ledger(folder).await.height();
    let leave = gone.identity.sign(line.run, &Leave { height });
    gone.ask(Request::Notice(Notice::Leave(leave))).await.unwrap();
    first.enrol().await.unwrap();
    second.enrol().await.unwrap();
    let ledger = first.ledger_when(folder, |ledger| ledger.stage() == Stage::Computing).await;
    for caller in [&first, &second] {
        caller.ask(Request::Commit(caller.commit(&ledger, 7))).await.unwrap();
    }
    let ledger = first.ledger_when(folder, |ledger| ledger.stage() == Stage::Exchanging).await;
    ([first, second], ledger)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_steward_that_comes_back_waits_for_members_before_it_seals_their_inputs() {
    let directory = tempfile::tempdir().unwrap();
    let folder = new_run(directory.path());
    let (hosting, _) = start(&folder).await;
    let ([first, _second], before) = frozen(&folder).await;
    kill(hosting, &folder).await;
    let (hosting, _) = start(&folder).await;
    let after = first.ledger(&folder).await;
    assert_eq!((after.stage(), after.height()), (Stage::Exchanging, before.height()));
    kill(hosting, &folder).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_said_again_takes_no_room() {
    let directory = tempfile::tempdir().unwrap();
    let folder = new_run(directory.path());
    let (hosting, _) = start(&folder).await;
    let ([first, _second], ledger) = frozen(&folder).await;
    let view = ledger.current().unwrap();
    let echo = Echo { round: view.round(), freeze: view.freeze_digest().unwrap() };
    let echo = Request::Notice(Notice::Echo(first.identity.sign(ledger.run(), &echo)));
    let kept = || fs::metadata(folder.join("inbox/0")).unwrap().len();
    let none = kept();
    first.ask(echo.clone()).await.unwrap();
    let once = kept();
    for _ in 0..3 {
        first.ask(echo.clone()).await.unwrap();
    }
    // ROUND-9: what arrives twice changes nothing.
    assert!(none < once && kept() == once);
    kill(hosting, &folder).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn round_27_echoes_are_shown_to_nobody_before_the_outcome() {
    let directory = tempfile::tempdir().unwrap();
    let folder = new_run(directory.path());
    let (hosting, _) = start(&folder).await;
    let ([first, second], ledger) = frozen(&folder).await;
    let view = ledger.current().unwrap();
    let echo = Echo { round: view.round(), freeze: view.freeze_digest().unwrap() };
    let echo = Notice::Echo(first.identity.sign(ledger.run(), &echo));
    first.ask(Request::Notice(echo.clone())).await.unwrap();
    let follow = Request::Follow(Follow { height: ledger.height(), board: 0, notice: 0 });
    let Ok(Response::News(news)) = second.ask(follow).await else { panic!("no news") };
    assert!(!news.notices.iter().any(|notice| matches!(notice, Notice::Echo(_))));
    kill(hosting, &folder).await;
    // Whoever posts one by mistake.
    let home = muster_store::home::Home::open(&directory.path().join("board")).unwrap();
    let journal = muster_store::journal::Journal::open(&home).unwrap();
    let board = Board::new(Arc::new(journal), Height(0), 1);
    board.post(echo);
    let page =
        board.page(&Follow { height: Height(0), board: 0, notice: 0 }, muster_net::shares::Role::Member);
    let news = board.news(page).unwrap();
    assert!(news.notices.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn contradictions_about_rounds_to_come_do_not_stop_the_steward() {
    let directory = tempfile::tempdir().unwrap();
    let folder = new_run(directory.path());
    let (hosting, _) = start(&folder).await;
    let ([first, _second], ledger) = frozen(&folder).await;
    let view = ledger.current().unwrap();
    let commit = |round, root| {
        let (head, state) = (view.head(), view.state().root());
        let (slot, seats, profile) = (muster_core::ids::Slot(0), 2, ledger.manifest().profile);
        let root = Digest([root; 32]);
        let (round, route, leaves, loss) = (Round(round), None, 1, 0);
        let commit = Commit { round, head, state, slot, seats, route, leaves, profile, loss, root };
        first.identity.sign(ledger.run(), &commit)
    };
    for round in 1000..1040 {
        let contradiction = Equivocation { first: commit(round, 1), second: commit(round, 2) };
        let why = refusal(first.ask(Request::Accuse(Evidence::Equivocation(contradiction))).await);
        assert!(why.contains("still to come"), "{why}");
    }
    // ROUND-9: what arrives early is refused and costs its sender nothing more.
    assert_eq!(first.ledger(&folder).await.stage(), Stage::Exchanging);
    assert!(
        !folder.join("evidence").exists() || fs::read_dir(folder.join("evidence")).unwrap().next().is_none()
    );
    kill(hosting, &folder).await;
}
