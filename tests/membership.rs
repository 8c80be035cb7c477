//! Members that leave, are interrupted, give way or keep to a disk, as real processes: the run goes on without them,
//! and with them again.

use std::fs;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use e2e::processes::{Process, Run, wait_for};
use e2e::programs;
use e2e::settings::Settings;
use muster_core::codec::List;
use muster_core::coins::CoinTree;
use muster_core::ids::{Height, MemberId, Round};
use muster_core::ledger::Ledger;
use muster_core::messages::enrol::{Enrol, InvitationSecret, Presented, Ticket};
use muster_core::messages::record::Body;
use muster_core::messages::wire::{Follow, Request, Response};
use muster_core::sign::Identity;
use muster_net::endpoint::Endpoint;
use muster_replica::archive::Archive;
use muster_replica::{Contact, PeerError, Peers};
use muster_store::home::Home;

fn settings(rounds: u32, nodes: u32) -> Settings {
    Settings { rounds, nodes, ..Settings::default() }
}

#[test]
fn a_member_that_leaves_finishes_its_round_and_the_run_goes_on() {
    let run = Run::new(programs!(), &settings(40, 3));
    let mut steward = run.host();
    let nodes = run.invite("node", 3);
    let mut first = run.join("first", &nodes, &[]);
    let mut second = run.join("second", &nodes, &[]);
    let mut third = run.join("third", &nodes, &[]);
    run.wait_round(3);
    let home = run.at("third");
    let id = run.good(&["id", "--data-dir", &home]).trim().to_owned();
    assert!(run.good(&["leave", "--data-dir", &home]).contains("you have left the run"));
    assert_eq!(third.wait(), 0, "{}", third.log());
    assert!(third.log().contains("you have left the run"), "{}", third.log());
    let (code, output) = run.muster(&["leave", "--data-dir", &home]);
    assert!(code == 1 && output.contains("only a present member leaves"), "{code}: {output}");
    let (code, output) = run.muster(&["join", &nodes, "--data-dir", &home, "--listen", "127.0.0.1:0"]);
    assert!(code == 1 && output.contains("this member left the run for good"), "{code}: {output}");
    assert_eq!(first.wait(), 0, "{}", first.log());
    assert_eq!(second.wait(), 0, "{}", second.log());
    assert_eq!(steward.wait(), 0);
    run.check_end(&["first", "second"]);
    let left = run.events("left");
    assert!(left.len() == 1 && left[0]["member"] == id.as_str(), "{left:?}");
    let seats = seats_around_a_leave(&run, &id);
    assert_eq!(seats, (3, 2), "seats of the round of the leave, and of the next one");
}

/// Seats of the round in which a member left, and of the one after it. Nobody failed in any round.
fn seats_around_a_leave(run: &Run, id: &str) -> (usize, usize) {
    let archive = Archive::open(&run.path("run")).expect("an archive");
    let mut ledger = Ledger::new(Arc::clone(&archive.manifest));
    let mut left = None;
    let mut seats = Vec::new();
    for signed in &archive.records {
        let record = ledger.apply(signed).expect("an honest ledger");
        match &record.body {
            Body::Leave(leave) => {
                assert_eq!(format!("{:#}", leave.claimed_signer()), id);
                left = Some(ledger.next_round());
            }
            Body::Reassign(_) => panic!("a part had to be moved"),
            Body::Outcome(outcome) => {
                let view = ledger.round(outcome.round).expect("a round just ended");
                assert_eq!(view.commitments().count(), view.seats().len(), "every seat commits");
                seats.push(view.seats().len());
            }
            _ => {}
        }
    }
    let left = left.expect("a leave in the ledger").index();
    (seats[left], seats[left + 1])
}

#[test]
fn one_ctrl_c_stops_a_steward_in_a_round_that_everybody_has_left() {
    let run = Run::new(programs!(), &settings(60, 2));
    let mut steward = run.host();
    let nodes = run.invite("node", 2);
    // From round 2 on none of their commitments is taken. ROUND-1: a Freeze has at least one, so that round never ends.
    let mut both = ["first", "second"].map(|name| run.attack(name, "overclaim", 2, &nodes));
    run.wait_round(1);
    both.iter_mut().for_each(Process::kill);
    steward.interrupt();
    assert_eq!(steward.wait_at_most(Duration::from_secs(30)), Some(130), "{}", steward.log());
    assert!(steward.log().contains("start again to go on"), "{}", steward.log());
    assert_eq!(run.events("round").len(), 2, "the round was not ended for it");
}

/// Whether this process ignores hangups, and so does what it starts.
#[cfg(target_os = "linux")]
fn hangups_are_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").expect("its own status");
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).expect("what it ignores");
    u64::from_str_radix(mask.trim(), 16).expect("a mask") & 1 == 1
}

/// A terminal that closes, and what ends programs politely; Ctrl-C itself is in other tests.
#[cfg(target_os = "linux")]
#[test]
fn every_request_to_stop_finishes_the_round_and_the_same_command_goes_on() {
    let run = Run::new(programs!(), &Settings { verifiers: 1, ..settings(60, 2) });
    let mut steward = run.host();
    let nodes = run.invite("node", 2);
    let mut watcher = run.watch("watcher", &run.invite("verifier", 1));
    let mut first = run.join("first", &nodes, &[]);
    // As `nohup` starts it.
    let home = run.at("second");
    let join = ["join", &nodes, "--data-dir", &home, "--listen", "127.0.0.1:0"];
    let deaf = [&["-c", "trap '' HUP; exec \"$0\" \"$@\"", programs!().muster][..], &join].concat();
    let mut second = run.spawn("second", "sh", &deaf);
    run.wait_round(3);
    second.signal("HUP");
    // These tests may be started so, too.
    first.signal(if hangups_are_ignored() { "INT" } else { "HUP" });
    assert_eq!(first.wait(), 130, "{}", first.log());
    let log = first.log();
    assert!(log.contains("finishing the round") && log.contains("the same command goes on"), "{log}");
    let mut first = run.join("first", &nodes, &[]);
    watcher.signal("TERM");
    assert_eq!(watcher.wait(), 130, "{}", watcher.log());
    assert!(watcher.log().contains("finishing the work under way"), "{}", watcher.log());
    let mut watcher = run.watch_again("watcher");
    wait_for_rounds(&run, 3);
    steward.signal("TERM");
    assert_eq!(steward.wait(), 130, "{}", steward.log());
    assert!(steward.log().contains("start again to go on"), "{}", steward.log());
    let mut steward = run.host();
    assert_eq!(first.wait(), 0, "{}", first.log());
    assert_eq!(second.wait(), 0, "{}", second.log());
    assert_eq!((watcher.wait(), steward.wait()), (0, 0));
    run.check_end(&["first", "second", "watcher"]);
}

fn wait_for_rounds(run: &Run, more: usize) {
    let before = run.events("round").len();
    wait_for("more rounds", || run.events("round").len() >= before + more);
}

#[test]
fn ctrl_c_twice_aborts_and_nothing_is_damaged() {
    let run = Run::new(programs!(), &settings(6, 2));
    let mut steward = run.host();
    let nodes = run.invite("node", 2);
    // A member that came and does nothing: the first round cannot end.
    let mut idle = run.join("idle", &nodes, &[]);
    wait_for("the first admission", || run.events("admit").len() == 1);
    idle.suspend();
    let mut second = run.join("second", &nodes, &[]);
    let said = run.path("run/inbox/0");
    wait_for("a commitment", || fs::metadata(&said).is_ok_and(|about| about.len() > 0));
    second.interrupt();
    second.wait_for_log("finishing the round");
    second.interrupt();
    assert_eq!(second.wait(), 130, "{}", second.log());
    assert!(!second.log().contains("the same command goes on"), "{}", second.log());
    idle.resume();
    let mut second = run.join("second", &nodes, &[]);
    assert_eq!(idle.wait(), 0, "{}", idle.log());
    assert_eq!(second.wait(), 0, "{}", second.log());
    assert_eq!(steward.wait(), 0);
    run.check_end(&["idle", "second"]);
}

#[cfg(target_os = "linux")]
#[test]
fn a_nice_member_gives_way_with_every_thread() {
    let run = Run::new(programs!(), &settings(4, 2));
    let _steward = run.host();
    let verifier = run.watch_with("verifier", &run.invite("verifier", 1), &["--nice"]);
    let nodes = run.invite("node", 2);
    let nice = run.join("nice", &nodes, &["--nice", "--threads", "2"]);
    let plain = run.join("plain", &nodes, &["--threads", "2"]);
    run.wait_round(0);
    let own = priorities(std::process::id())[0];
    // Gossip gives way to everything else in any case (CHAN-22). It has one thread.
    let like = |process: u32, wanted: i32| {
        let found = priorities(process);
        let others = found.iter().filter(|priority| **priority != wanted).count();
        assert!(found.len() > 1 && others <= 1, "{wanted} {found:?}");
        assert!(found.iter().all(|priority| *priority >= wanted), "{wanted} {found:?}");
    };
    like(plain.id(), own);
    // These tests may give way themselves, by more than that.
    [nice.id(), verifier.id()].into_iter().for_each(|process| like(process, own.max(10)));
}

/// The nice value of each thread of a process.
#[cfg(target_os = "linux")]
fn priorities(process: u32) -> Vec<i32> {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).expect("a living process");
    let stats = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("stat")).ok());
    let nice = |stat: String| -> Option<i32> {
        // Field 19, counted from behind the name in parentheses, which may hold anything.
        stat.rsplit_once(')')?.1.split_whitespace().nth(16)?.parse().ok()
    };
    stats.filter_map(nice).collect()
}

#[test]
fn a_member_keeps_to_the_disk_and_the_memory_that_it_may_use() {
    let run = Run::new(programs!(), &Settings { contributions: 2, ..settings(50, 2) });
    let mut steward = run.host();
    let nodes = run.invite("node", 2);
    let mut first = run.join("first", &nodes, &[]);
    let join = |most: &str| -> Process { run.join("second", &nodes, &["--max-disk", most]) };
    let mut second = join("0.0002");
    assert_eq!(second.wait(), 3, "{}", second.log());
    let log = second.log();
    assert!(log.contains("this run takes about 0.00") && log.contains("--max-disk allows 0.0002"), "{log}");
    assert!(run.events("admit").len() < 2, "it is told before it is a member");
    assert!(!run.path("second/data").exists(), "and before it fetches anything");
    let mut second = run.join("second", &nodes, &["--max-memory", "0.01"]);
    assert_eq!(second.wait(), 3, "{}", second.log());
    let log = second.log();
    assert!(
        log.contains("GiB of memory here (") && log.contains("--max-memory allows 0.01; allow more"),
        "{log}"
    );
    assert!(run.events("admit").len() < 2 && !run.path("second/data").exists());
    // What else lies there counts.
    fs::write(run.path("second/other"), vec![1; 1_900_000]).expect("a file");
    let mut second = join("0.002");
    assert_eq!(second.wait(), 3, "{}", second.log());
    let log = second.log();
    assert!(
        log.contains("second: holds 0.0") && log.contains("the 0.002 of --max-disk; allow more"),
        "{log}"
    );
    let used = kibibytes(&run.path("second"));
    assert!(used <= 2097, "{used}");
    fs::remove_file(run.path("second/other")).expect("a file");
    let mut second = join("1");
    assert_eq!(second.wait(), 0, "{}", second.log());
    assert_eq!(first.wait(), 0, "{}", first.log());
    assert_eq!(steward.wait(), 0);
    run.check_end(&["first", "second"]);
}

/// Kibibytes that a folder takes on the disk.
fn kibibytes(folder: &Path) -> u32 {
    let counted = Command::new("du").arg("-sk").arg(folder).output().expect("du");
    let text = String::from_utf8_lossy(&counted.stdout).into_owned();
    text.split_whitespace().next().and_then(|number| number.parse().ok()).expect("a number")
}

/// Somebody that was not invited: it knows the run, its steward and an address, like every observer.
struct Stranger {
    identity: Arc<Identity>,
    peers: Peers,
    steward: Contact,
    ticket: Ticket,
}

impl Stranger {
    fn new(line: &str) -> Self {
        let ticket = Ticket { pass: None, ..Ticket::from_line(line).expect("an invitation") };
        let identity = Arc::new(Identity::from_secret(&[77; 32]));
        let addresses = ticket.addresses.iter().map(|address| address.to_string()).collect();
        let steward = Contact { member: ticket.steward, addresses };
        let peers = Peers::new(Endpoint::new(ticket.run, identity.clone()));
        Self { identity, peers, steward, ticket }
    }

    /// What the ledger shows of the invitation that a member came by.
    async fn read(&self, member: &MemberId) -> Presented {
        let request = Request::Follow(Follow { height: Height(0), board: 0, notice: 0 });
        let Ok(Response::News(news)) = self.peers.ask(&self.steward, &request).await else {
            panic!("no news")
        };
        let records = news.records.iter().map(|signed| signed.verify(self.ticket.run).expect("sealed"));
        let mut enrolled = records.filter_map(|record| match &record.body {
            Body::Admit(enrol) if enrol.claimed_signer() == *member => Some(enrol.clone()),
            _ => None,
        });
        let enrol = enrolled.next().expect("it was admitted").verify(self.ticket.run).expect("signed");
        enrol.into_inner().invitation.expect("it was invited")
    }

    /// Asks for a verifier's place.
    async fn enrol(&self, presented: Presented) -> Result<Response, PeerError> {
        let coins = CoinTree::new([7; 32], Round(0), 8, 8).expect("few coins").terms();
        let enrol = Enrol {
            invitation: Some(presented),
            addresses: List::default(),
            coins: Some(coins),
            name: Default::default(),
            engagement: Default::default(),
        };
        self.peers.ask(&self.steward, &Request::Enrol(self.identity.sign(self.ticket.run, &enrol))).await
    }
}

/// STAND-9: an invitation of three places, of which one is taken. Whoever reads the ledger gets none of the others.
#[test]
fn who_reads_an_invitation_in_the_ledger_cannot_use_it() {
    let run = Run::new(programs!(), &settings(10, 2));
    let mut steward = run.host();
    let line = run.invite("verifier", 3);
    let enroll = |name: &str| run.verifier(&["enroll", &line, "--data-dir", &run.at(name)]);
    assert_eq!(enroll("friend").0, 0);
    let friend = Home::open(&run.path("friend")).and_then(|home| home.identity()).expect("a key").id();
    let stranger = Stranger::new(&line);
    let (id, of) = (stranger.identity.id(), stranger.ticket.run);
    let runtime = tokio::runtime::Runtime::new().expect("threads");
    runtime.block_on(async {
        let seen = stranger.read(&friend).await;
        let own = InvitationSecret::new([78; 32]).present(of, seen.invitation.clone(), id);
        for presented in [seen, own] {
            let refused = stranger.enrol(presented).await.expect_err("a stranger is let in").to_string();
            assert!(refused.contains("has not signed for this newcomer"), "{refused}");
        }
    });
    // The places are still there for those invited.
    assert_eq!((enroll("second").0, enroll("third").0), (0, 0));
    let (code, output) = enroll("fourth");
    assert!(code == 1 && output.contains("used up"), "{code}: {output}");
    assert_eq!(run.good(&["members", &run.at("run")]).matches("verifier").count(), 3);
    steward.kill();
}

#[test]
fn a_run_is_hosted_without_the_organisers_key() {
    let run = Run::new(programs!(), &settings(10, 2));
    let (folder, key) = (run.at("run"), run.at("elsewhere.key"));
    fs::rename(run.path("run/organiser.key"), &key).expect("one file system");
    let mut steward = run.host();
    let invite = ["invite", &folder, "--role", "node"];
    let (code, output) = run.muster(&invite);
    assert!(code == 3 && output.contains("--organiser-key FILE"), "{code}: {output}");
    let line = run.good(&[&invite[..], &["--organiser-key", &key]].concat());
    let mut node = run.join("node", line.trim(), &[]);
    wait_for("the node", || run.events("admit").len() == 1);
    let id = run.good(&["id", "--data-dir", &run.at("node")]).trim().to_owned();
    let close = ["close-tree", &folder, &id];
    assert_eq!(run.muster(&close).0, 3);
    let closed = run.good(&[&close[..], &["--organiser-key", &key]].concat());
    assert!(closed.contains("closed by the organiser"), "{closed}");
    node.kill();
    steward.kill();
}

/// What was kept where others could read it is for its owner alone from the next start on.
#[cfg(unix)]
#[test]
fn tickets_are_secret_and_keys_that_others_can_read_are_refused() {
    use std::os::unix::fs::PermissionsExt;
    let run = Run::new(programs!(), &settings(10, 2));
    let mut steward = run.host();
    let mode = |path: &str| fs::metadata(run.path(path)).expect("a file").permissions().mode() & 0o777;
    let open = |path: &str| {
        fs::set_permissions(run.path(path), PermissionsExt::from_mode(0o644)).expect("it is ours");
    };
    let line = run.invite("verifier", 1);
    assert_eq!(run.verifier(&["enroll", &line, "--data-dir", &run.at("verifier")]).0, 0);
    let mut node = run.join("node", &run.invite("node", 1), &[]);
    wait_for("the node", || run.events("admit").len() == 2);
    assert_eq!((mode("verifier/ticket"), mode("node/ticket")), (0o600, 0o600));
    // A command that reads it will do.
    open("node/ticket");
    run.good(&["members", &run.at("node")]);
    assert_eq!(mode("node/ticket"), 0o600);
    for (path, arguments) in [
        ("run/organiser.key", ["invite", &run.at("run"), "--role", "node"]),
        ("node/identity.key", ["leave", "--data-dir", &run.at("node"), "-v"]),
    ] {
        open(path);
        let (code, output) = run.muster(&arguments);
        assert!(code == 3 && output.contains("chmod 600"), "{path}: {code}: {output}");
    }
    node.kill();
    steward.kill();
}

/// Passes connections on to another port, as a router at home does, until it is dropped.
struct Forward {
    open: Arc<Mutex<Option<Vec<TcpStream>>>>,
    at: SocketAddr,
}

impl Forward {
    fn to(port: u16) -> Self {
        let outer = TcpListener::bind("127.0.0.1:0").expect("a port");
        let at = outer.local_addr().expect("its address");
        let open = Arc::new(Mutex::new(Some(Vec::new())));
        let still = open.clone();
        std::thread::spawn(move || {
            for from in outer.incoming().filter_map(Result::ok) {
                let Ok(to) = TcpStream::connect(("127.0.0.1", port)) else { continue };
                let Some(streams) = &mut *still.lock().expect("no panic") else { return };
                let copy = |stream: &TcpStream| stream.try_clone().expect("a socket");
                streams.extend([copy(&from), copy(&to)]);
                for (mut from, mut to) in [(copy(&from), copy(&to)), (to, from)] {
                    std::thread::spawn(move || {
                        let _ = std::io::copy(&mut from, &mut to);
                        let _ = to.shutdown(Shutdown::Both);
                    });
                }
            }
        });
        Self { open, at }
    }
}

impl Drop for Forward {
    fn drop(&mut self) {
        for stream in self.open.lock().expect("no panic").take().into_iter().flatten() {
            let _ = stream.shutdown(Shutdown::Both);
        }
        // Wakes the thread, which closes the port.
        drop(TcpStream::connect(self.at));
    }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a port").port()
}

/// CHAN-24: nobody is where a node says that it is. It is a member all the same, and nobody is told to dial there.
#[test]
fn chan_24_a_node_that_cannot_be_dialled_takes_part_without_an_address() {
    let run = Run::new(programs!(), &settings(3, 2));
    let mut steward = run.host();
    let line = run.invite("node", 2);
    let mut mute = run.join("mute", &line, &["--advertise", "127.0.0.2:9"]);
    let mut other = run.join("other", &line, &[]);
    assert_eq!((mute.wait(), other.wait(), steward.wait()), (0, 0, 0), "{}", mute.log());
    assert!(mute.log().contains("this member only dials out"), "{}", mute.log());
}

/// Behind home routers: each member only dials out, and the steward stands in for those that combine parts.
#[test]
fn round_39_a_run_trains_where_nobody_can_be_dialled() {
    let settings = Settings { rounds: 6, nodes: 3, verifiers: 1, audit: (1.0, 1), ..Settings::default() };
    let run = Run::new(programs!(), &settings);
    let mut steward = run.host();
    let line = run.invite("node", 3);
    let mut watcher = run.watch("watcher", &run.invite("verifier", 1));
    let mut nodes = ["first", "second", "third"].map(|name| run.join_undialled(name, &line));
    for node in &mut nodes {
        assert_eq!(node.wait(), 0, "{}", node.log());
    }
    assert_eq!((watcher.wait(), steward.wait()), (0, 0), "{}", steward.log());
    assert!(run.events("barren").is_empty(), "{}", steward.log());
    for name in ["first", "second", "third"] {
        assert!(run.result(name)["leaves_counted"].as_u64() > Some(0), "{name}: {}", run.result(name));
    }
    assert!(run.events("verdict").len() >= 6, "{}", steward.log());
    assert!(run.events("ban").is_empty() && run.events("moved").iter().all(|event| event["how"] != "away"));
    let (code, output) = run.verifier(&["replay", &run.at("run")]);
    assert_eq!(code, 0, "{output}");
}

/// Nobody can be dialled any more where it says. No round is counted, and after some of them the rest is spared.
#[test]
fn a_run_in_which_nobody_counts_says_why_and_pauses() {
    let timers = "[timers]\ncommit = 1.0\npart = 1.0\nresult = 1.0\n";
    let run = Run::packed(programs!(), &format!("{}{timers}", settings(60, 3)), None);
    let mut steward = run.host();
    let line = run.invite("node", 3);
    let names = ["first", "second", "third"];
    let ports = names.map(|_| free_port());
    let forwards = ports.map(Forward::to);
    let mut nodes = [0, 1, 2].map(|number| {
        let (listen, at) = (format!("127.0.0.1:{}", ports[number]), forwards[number].at.to_string());
        run.join_behind(names[number], &line, &listen, &at)
    });
    wait_for("three members", || run.events("admit").len() == 3);
    let outer = forwards.each_ref().map(|forward| forward.at.to_string());
    drop(forwards);
    wait_for("a pause", || run.events("barren").iter().any(|event| event["pause"].as_u64() >= Some(1)));
    let first = run.events("barren")[0]["why"].as_str().expect("words").to_owned();
    assert!(outer.iter().any(|at| first.contains(&format!("at {at}"))), "{first}");
    let log = steward.log();
    assert!(log.contains("nobody counted in round") && log.contains("the next round is held back"), "{log}");
    // It goes on by itself, and holds the round after that back for longer.
    wait_for("a longer pause", || {
        run.events("barren").iter().any(|event| event["pause"].as_u64() >= Some(2))
    });
    // Held back, a run stops at once.
    steward.interrupt();
    assert_eq!(steward.wait(), 130, "{}", steward.log());
    nodes.iter_mut().for_each(Process::kill);
}
