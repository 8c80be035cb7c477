//! What running programs say of themselves: on the socket of their folders, and to monitoring systems.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use e2e::processes::{Process, Run, wait_for};
use e2e::programs;
use e2e::settings::Settings;
use serde_json::Value;

/// What a program's folder says as JSON; none while it says nothing.
fn status(run: &Run, folder: &str) -> Option<Value> {
    let (code, output) = run.muster(&["status", &run.at(folder), "--json"]);
    (code == 0).then(|| serde_json::from_str(&output).expect("JSON"))
}

fn wait_for_status(run: &Run, folder: &str, test: impl Fn(&Value) -> bool) {
    wait_for(&format!("the status of {folder}"), || status(run, folder).is_some_and(|status| test(&status)));
}

/// Where a program says that it shows itself.
fn monitored(process: &Process) -> String {
    const WORDS: &str = "for monitoring: http://";
    process.wait_for_log(WORDS);
    let log = process.log();
    log.split(WORDS).nth(1).and_then(|after| after.split('/').next()).expect("just seen").to_owned()
}

/// Code and body of a page.
fn get(address: &str, path: &str, host: &str) -> (u32, String) {
    let mut stream = TcpStream::connect(address).expect("somebody listens");
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a socket");
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").expect("a request");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    let code = head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a code");
    (code, body.to_owned())
}

fn value(metrics: &str, name: &str) -> f64 {
    let line = metrics.lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
    line.unwrap_or_else(|| panic!("{name}: {metrics}")).parse().expect("a number")
}

/// What people read of a node.
const TOLD: [&str; 7] =
    ["phase ", "traffic ", "disk ", "leaves counted", "only dials out", "this       node ", "; combines "];

#[test]
fn each_program_says_what_it_does_and_on_whom_it_waits() {
    let settings = Settings { rounds: 400, nodes: 3, verifiers: 1, audit: (1.0, 1), ..Settings::default() };
    let run = Run::new(programs!(), &settings);
    let folder = run.at("run");
    let (code, said) = run.muster(&["status", &folder]);
    assert!(code == 3 && said.contains("no program of this folder runs"), "{code} {said}");
    let (code, said) = run.muster(&["status", &run.at("nowhere")]);
    assert!(code == 2 && said.contains("does not exist"), "{code} {said}");

    let mut steward = run.host_with(&["--metrics", "127.0.0.1:0"]);
    wait_for_status(&run, "run", |steward| {
        let waits = steward["waits"].to_string();
        steward["phase"] == "gathering" && waits.contains("3 nodes") && waits.contains("1 verifier")
    });
    let (nodes, verifiers) = (run.invite("node", 3), run.invite("verifier", 1));
    let ada = run.join("ada", &nodes, &["--metrics", "127.0.0.1:0", "--name", "Ada"]);
    let undialled = run.join_undialled("undialled", &nodes);
    let mut bob = run.join("bob", &nodes, &[]);
    let watcher = run.watch_with("watcher", &verifiers, &["--metrics", "127.0.0.1:0"]);
    run.wait_round(4);

    // Each says how it reaches whom, what went over its channels, and its own work by the ledger.
    let ways = |status: &Value| {
        let peers = status["peers"].as_array().expect("peers").iter();
        peers.map(|peer| (peer["role"].to_string(), peer["way"].to_string())).collect::<Vec<_>>()
    };
    let has = |status: &Value, role: &str, way: &str| {
        ways(status).contains(&(format!("\"{role}\""), format!("\"{way}\"")))
    };
    wait_for_status(&run, "ada", |ada| {
        let traffic = |way: &str| ada["traffic"][way].as_u64() > Some(10_000);
        let credit = ada["credit"]["leaves"].as_u64() > Some(0) && ada["credit"]["weighs"] == true;
        let ways =
            has(ada, "steward", "dialled") && has(ada, "node", "dialled") && has(ada, "node", "no_address");
        ada["role"] == "node" && traffic("sent") && traffic("received") && credit && ways
    });
    wait_for_status(&run, "watcher", |watcher| {
        watcher["credit"]["audits"].as_u64() > Some(0) && has(watcher, "steward", "dialled")
    });
    wait_for_status(&run, "run", |steward| {
        let ways = has(steward, "verifier", "dials_in") && has(steward, "node", "dials_in");
        ways && steward["disk"]["used"].as_u64() > Some(10_000) && steward["round"].as_u64() > Some(3)
    });
    let text = run.good(&["status", &run.at("ada")]);
    for words in TOLD {
        assert!(text.contains(words), "{words}: {text}");
    }

    // Monitoring systems see the same; a name that leads here from another site does not.
    for process in [&steward, &ada, &watcher] {
        let address = monitored(process);
        let (code, metrics) = get(&address, "/metrics", &address);
        assert!(code == 200 && value(&metrics, "muster_round") >= 3.0, "{metrics}");
        assert!(value(&metrics, "muster_received_bytes_total") > 1000.0, "{metrics}");
        assert_eq!(get(&address, "/health", &address).0, 200);
        assert_eq!((get(&address, "/", &address).0, get(&address, "/metrics", "evil.example").0), (404, 421));
    }

    // Somebody is waited for: by its name.
    let stopped = status(&run, "bob").expect("it runs")["member"].as_str().expect("an id").to_owned();
    bob.suspend();
    wait_for_status(&run, "run", |steward| steward["waits"].to_string().contains(&stopped));
    bob.resume();
    socket_is_bounded(&run);
    bob.kill();
    wait_for("the killed node to be gone", || run.muster(&["status", &run.at("bob")]).0 == 3);
    drop((ada, undialled, watcher));
    steward.kill();
}

/// Only its user may connect; nobody who reads nothing keeps others from asking, and words are no commands.
fn socket_is_bounded(run: &Run) {
    let socket = run.path("ada/status.sock");
    let mode = fs::metadata(&socket).expect("a socket").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let mut idle: Vec<UnixStream> = (0..64).map(|_| UnixStream::connect(&socket).expect("room")).collect();
    // It takes no words, so that as many as the system buffers are none of its concern.
    for stream in &mut idle {
        stream.set_write_timeout(Some(Duration::from_millis(50))).expect("a socket");
        let _ = stream.write_all(&[b'x'; 1 << 16]);
    }
    wait_for("an answer beside them", || status(run, "ada").is_some());
}
