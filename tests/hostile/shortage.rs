//! A steward that may have few files open, and connections without end.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use e2e::processes::wait_for;
use e2e::programs;
use e2e::settings::Settings;
use muster_core::sign::Identity;
use muster_net::capacity::Capacity;
use tokio::net::{TcpSocket, TcpStream};

use crate::caller::{Caller, all_end_well, run};

/// Files and connections that the steward may have open.
const DESCRIPTORS: &str = "ulimit -n 256; exec \"$0\" \"$@\"";
/// Addresses from which somebody dials, and connections from each: five times as many as the steward may have.
const SOURCES: u8 = 12;
const CONNECTIONS: usize = 110;

async fn dial_from(source: u8, to: &str) -> Option<TcpStream> {
    let socket = TcpSocket::new_v4().ok()?;
    socket.bind(SocketAddr::from(([127, 0, 0, source], 0))).ok()?;
    let dialled = tokio::time::timeout(Duration::from_secs(2), socket.connect(to.parse().ok()?));
    dialled.await.ok()?.ok()
}

/// Holds connections to every port of a steward, and says nothing on them; dials again what was closed.
async fn flood(ports: Vec<String>) {
    loop {
        let mut held = Vec::new();
        for port in &ports {
            for source in 0..SOURCES {
                for _ in 0..CONNECTIONS {
                    held.extend(dial_from(2 + source, port).await);
                }
            }
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

/// The socket of a multiaddress like `/ip4/127.0.0.1/tcp/7777`.
fn socket_of(address: &str) -> String {
    let parts: Vec<&str> = address.split('/').collect();
    format!("{}:{}", parts[2], parts[4])
}

#[test]
fn chan_13_a_steward_with_few_descriptors_says_so_and_serves_members_beside_a_flood() {
    // This process, too, needs one for each connection.
    assert!(Capacity::of_process().descriptors > 4000, "{}", Capacity::of_process());
    let run = run(Settings { rounds: 40, verifiers: 1, ..Settings::default() });
    let folder = run.at("run");
    let host = [
        programs!().muster,
        "host",
        &folder,
        "--exit-when-done",
        "--listen",
        "127.0.0.1:0",
        "--web",
        "127.0.0.1:0",
    ];
    let words = [&["-c", DESCRIPTORS][..], &host].concat();
    let steward = run.spawn("steward", "sh", &words);
    wait_for("the steward to listen", || run.path("run/address").exists());
    steward.wait_for_log("256 files and connections");
    let nodes = run.invite("node", 2);
    let first = run.join("first", &nodes, &[]);
    wait_for("its key", || run.path("first/identity.key").exists());
    let caller = Caller::new(&run, Arc::new(Identity::from_secret(&[77; 32])));
    steward.wait_for_log("as web pages: http://");
    let page = steward.log();
    let page = page.split_once("as web pages: http://").map(|(_, rest)| rest).expect("a page");
    let page = page.split_once('/').map(|(page, _)| page.to_owned()).expect("an address");
    let gossip = caller.ticket.addresses.iter().find(|address| address.starts_with('/'));
    let gossip = socket_of(gossip.expect("a steward gossips"));
    let runtime = tokio::runtime::Runtime::new().expect("threads");
    let ports = vec![caller.steward.addresses[0].clone(), gossip, page];
    runtime.spawn(flood(ports));
    // A newcomer gets in, and the run to its end, with a record, a vote and a file for each step.
    let second = run.join("second", &nodes, &[]);
    let watch = run.watch("verifier", &run.invite("verifier", 1));
    all_end_well(&mut [first, second, watch, steward]);
    run.check_end(&["first", "second", "verifier"]);
}
