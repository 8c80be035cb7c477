//! The web pages of real runs: steward, node and verifier show the run while it goes on, and a folder shows it afterwards.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use e2e::processes::{Process, Run, wait_for};
use e2e::programs;
use e2e::settings::Settings;
use serde_json::Value;

/// The address of the pages that a program says it serves.
fn page(process: &Process) -> String {
    const WORDS: &str = "the run as web pages: http://";
    process.wait_for_log(WORDS);
    let log = process.log();
    let after = log.split(WORDS).nth(1).expect("just seen");
    after.split(['/', '\u{1b}']).next().expect("an address").to_owned()
}

/// Body of a page; none while nobody answers.
fn get(address: &str, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(20))).ok()?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    assert!(head.starts_with("HTTP/1.1 200"), "{path}: {head}");
    Some(body.to_owned())
}

fn json(address: &str, path: &str) -> Option<Value> {
    serde_json::from_str(&get(address, path)?).ok()
}

fn rows(address: &str, path: &str) -> Vec<Value> {
    json(address, path).and_then(|value| value["rows"].as_array().cloned()).unwrap_or_default()
}

#[test]
fn every_role_shows_the_run_while_it_goes_on_and_its_folder_afterwards() {
    let settings = Settings {
        rounds: 14,
        nodes: 3,
        verifiers: 1,
        audit: (1.0, 1),
        contributions: 32,
        ..Settings::default()
    };
    let run = Run::new(programs!(), &settings);
    let mut steward = run.host_with(&["--web", "0"]);
    let (nodes, verifiers) = (run.invite("node", 3), run.invite("verifier", 1));
    let mut ada = run.join("ada", &nodes, &["--web", "127.0.0.1:0", "--name", "Ada L."]);
    let mut bob = run.join("bob", &nodes, &[]);
    let mut lazy = run.attack("lazy", "lazy", 3, &nodes);
    let mut watcher = run.watch_with("watcher", &verifiers, &["--web", "0"]);
    let pages = [page(&steward), page(&ada), page(&watcher)];
    for address in &pages {
        wait_for("rounds on a page", || {
            json(address, "/api/run.json").is_some_and(|run| run["rounds"].as_u64() >= Some(3))
        });
        let names: Vec<Value> =
            rows(address, "/api/members.json").into_iter().map(|member| member["name"].clone()).collect();
        assert!(names.contains(&"Ada L.".into()), "{names:?}");
    }
    // The verdict that convicts is shown as it falls, with what was wrong; the ban follows.
    for address in &pages {
        wait_for("a reason on a page", || {
            let audits = rows(address, "/api/audits.json?count=1000");
            audits.iter().any(|audit| {
                audit["reason"].as_str().is_some_and(|reason| reason.starts_with("leaf "))
                    && audit["state"] != "passed"
            })
        });
    }
    assert_eq!(lazy.wait(), 1, "{}", lazy.log());
    let (first, started) = (ada.wait(), steward.wait());
    assert_eq!((first, bob.wait(), watcher.wait(), started), (0, 0, 0, 0), "{}", ada.log());

    // Whatever the audits came to is in the folder.
    let (site, folder) = (run.at("site"), run.at("run"));
    run.good(&["view", &folder, "--export", &site]);
    let text = |name: &str| fs::read_to_string(run.path("site").join(name)).expect("a page");
    assert!(text("board.html").contains("Ada L."));
    let bans: Value = serde_json::from_str(&text("api/bans.json")).expect("JSON");
    let evidence = bans["rows"][0]["evidence"].as_str().expect("a ban");
    assert!(text("bans.html").contains(&format!("evidence/{evidence}")));
    let (code, output) =
        run.verifier(&["check", &run.at(&format!("site/evidence/{evidence}")), "--run", &folder]);
    assert_eq!(code, 0, "{output}");
    let audits: Value = serde_json::from_str(&text("api/audits.json")).expect("JSON");
    let open =
        audits["rows"].as_array().expect("audits").iter().filter(|audit| audit["state"] == "requested");
    // What was asked of the convict before its ban may never be answered.
    let open: Vec<_> = open.filter(|audit| audit["member"] != bans["rows"][0]["member"]).collect();
    assert!(open.is_empty(), "{open:?}");
    let seconds: Value = serde_json::from_str(&text("api/rounds.json")).expect("JSON");
    assert!(seconds["rows"][0]["phases"]["freeze"].as_f64() > Some(0.0));
    let secret = fs::read(run.path("run/identity.key")).expect("a key");
    let hex: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
    let all = fs::read_dir(run.path("site")).expect("a folder").filter_map(Result::ok);
    for file in all.filter(|entry| entry.path().is_file()) {
        assert!(!fs::read_to_string(file.path()).unwrap_or_default().contains(&hex), "{:?}", file.path());
    }
}

#[test]
fn a_page_that_cannot_be_served_is_said_at_once() {
    let run = Run::new(programs!(), &Settings::default());
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address").to_string();
    let (code, output) = run.muster(&["host", &run.at("run"), "--listen", "127.0.0.1:0", "--web", &address]);
    assert!(
        code == 3 && output.contains(&format!("--web {address}: cannot be listened on")),
        "{code} {output}"
    );
    let (code, output) = run.muster(&["view", &run.at("corpus")]);
    assert!(code == 3 && output.contains("manifest.bin"), "{code} {output}");
    let (code, output) = run.muster(&["join", "muster1:x", "--name", "<b>"]);
    assert!(code == 2 && output.contains("a name has at most 32 ASCII letters"), "{code} {output}");
}
