//! Hosts on one switch: machines that reach each other and nothing else. Each is a network namespace of its own, without a
//! default route.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use e2e::processes::{Process, Run, wait_for};
use e2e::programs;
use e2e::settings::Settings;
use muster_core::ids::MemberId;
use muster_core::ledger::Ledger;
use muster_replica::archive::Archive;

/// A switch and the hosts on it. Only addresses within these namespaces are used.
struct Switch {
    hosts: usize,
}

impl Switch {
    /// Plugs them in; none where this process may not make network namespaces, which takes root and `ip`.
    fn new(hosts: usize) -> Option<Self> {
        let switch = Self { hosts };
        let made = switch.make();
        made.then_some(switch)
    }

    fn make(&self) -> bool {
        let hub = name(0);
        let mut commands = vec![
            format!("netns add {hub}"),
            format!("-n {hub} link add hub type bridge"),
            format!("-n {hub} link set hub up"),
        ];
        for host in 1..=self.hosts {
            let own = name(host);
            commands.extend([
                format!("netns add {own}"),
                format!("-n {own} link set lo up"),
                format!("-n {own} link add wire type veth peer name port{host} netns {hub}"),
                format!("-n {own} address add {}/24 dev wire", address(host)),
                format!("-n {own} link set wire up"),
                format!("-n {hub} link set port{host} master hub"),
                format!("-n {hub} link set port{host} up"),
            ]);
        }
        commands.iter().all(|command| ip(command))
    }

    /// Pulls a host's plug: nobody hears from it any more, not even that it is gone.
    fn unplug(&self, host: usize) {
        assert!(ip(&format!("-n {} link set port{host} down", name(0))), "a plug");
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        for host in 0..=self.hosts {
            let _ = ip(&format!("netns delete {}", name(host)));
        }
    }
}

/// The namespace of a host; that of the switch is 0.
fn name(host: usize) -> String {
    format!("muster-{}-{host}", std::process::id())
}

fn address(host: usize) -> String {
    format!("10.77.0.{host}")
}

fn ip(arguments: &str) -> bool {
    Command::new("ip").args(arguments.split(' ')).output().is_ok_and(|done| done.status.success())
}

/// The run's member in this directory.
fn member(run: &Run, home: &str) -> MemberId {
    let home = muster_store::home::Home::open(&run.path(home)).expect("its process has ended");
    home.identity().expect("a key").id()
}

fn replayed(folder: &Path) -> Ledger {
    let archive = Archive::open(folder).expect("an archive");
    let mut ledger = Ledger::new(Arc::clone(&archive.manifest));
    archive.records.iter().for_each(|record| drop(ledger.apply(record).expect("an honest ledger")));
    ledger
}

/// A steward and a verifier on one host, a node on each of the others. One of these was told to listen where nobody else can
/// dial it; another one is unplugged in the middle.
#[test]
#[allow(clippy::print_stderr)]
fn hosts_on_one_switch_train_without_a_default_route() {
    let Some(switch) = Switch::new(4) else {
        eprintln!("skipped: network namespaces take root and `ip`; run this test as root on Linux");
        return;
    };
    let settings = Settings { rounds: 12, nodes: 3, verifiers: 1, audit: (1.0, 1), ..Settings::default() };
    let timers = "[timers]\ncommit = 2.0\npart = 2.0\nresult = 2.0\naudit = 4.0\nfinal_audit = 4.0\n";
    let run = Run::packed(programs!(), &format!("{settings}{timers}"), None);
    let (muster, verifier) = (programs!().muster, programs!().verifier);
    let start = |host: usize, as_name: &str, program: &str, arguments: &[&str]| -> Process {
        run.spawn_in(&name(host), as_name, program, arguments)
    };
    let host = ["host", &run.at("run"), "--exit-when-done", "--listen", "0.0.0.0:0"];
    let mut steward = start(1, "steward", muster, &host);
    wait_for("the steward to listen", || run.path("run/address").exists());
    let line = run.invite("verifier", 1);
    let home = run.at("verifier");
    let mut enrolling = start(1, "enroll", verifier, &["enroll", &line, "--data-dir", &home]);
    assert_eq!(enrolling.wait(), 0, "{}", enrolling.log());
    let mut watching = start(1, "watch", verifier, &["watch", &home]);
    let line = run.invite("node", 3);
    let join = |host: usize, home: &str, more: &[&str]| {
        let directory = run.at(home);
        start(host, home, muster, &[&["join", &line, "--data-dir", &directory], more].concat())
    };
    let mut plain = join(2, "plain", &[]);
    let mut hidden = join(3, "hidden", &["--listen", "127.0.0.1:0"]);
    let mut lost = join(4, "lost", &[]);
    run.wait_round(4);
    switch.unplug(4);
    lost.kill();
    for process in [&mut plain, &mut hidden, &mut steward, &mut watching] {
        assert_eq!(process.wait(), 0, "{}", process.log());
    }
    assert!(hidden.log().contains("this member only dials out"), "{}", hidden.log());
    assert!(run.events("barren").is_empty(), "{:?}", run.events("barren"));
    run.check_end(&["plain", "hidden"]);
    for home in ["plain", "hidden"] {
        assert!(run.result(home)["leaves_counted"].as_u64() >= Some(12), "{}", run.result(home));
    }
    let ledger = replayed(&run.path("run"));
    let dialled = |home: &str| -> Vec<String> {
        let known = ledger.member(&member(&run, home)).expect("a member");
        known.addresses.iter().map(|address| address.to_string()).collect()
    };
    assert!(dialled("plain")[0].starts_with("10.77.0.2:") && dialled("lost")[0].starts_with("10.77.0.4:"));
    // It is met at the steward's relay instead.
    assert!(dialled("hidden")[0].starts_with("iroh:"), "{:?}", dialled("hidden"));
}
