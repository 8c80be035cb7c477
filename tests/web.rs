//! What people see of real runs: steward, node and verifier show the run as web pages while it goes on, a folder shows it
//! afterwards, and a board has the whole terminal.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use e2e::processes::{Process, Run, wait_for};
use e2e::programs;
use e2e::settings::Settings;
use muster_core::ids::Digest;
use muster_store::bundles::{bundle_in, bundle_path};
use muster_store::home::Home;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};
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
    downloads(&run, &folder, evidence);
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

/// A ban is downloaded as one file and confirmed by somebody who has nothing else; a changed one is refused.
fn downloads(run: &Run, folder: &str, evidence: &str) {
    let pages = run.spawn("pages", programs!().muster, &["view", folder, "--web", "127.0.0.1:0"]);
    pages.wait_for_log("http://");
    let address =
        pages.log().split("http://").nth(1).expect("an address").split('/').next().expect("one").to_owned();
    let path = format!("/evidence/{evidence}.bundle");
    wait_for("the ban on its page", || {
        get(&address, "/bans.html").is_some_and(|page| page.contains(&format!("href=\"{}\"", &path[1..])))
    });
    let bundle = bytes(&address, &path);
    let file = run.path("downloaded.bundle");
    let check = |bytes: &[u8]| {
        fs::write(&file, bytes).expect("a file");
        let (code, output) = run.verifier(&["check", &file.to_string_lossy()]);
        assert!(!output.contains("panicked"), "{output}");
        (code, output)
    };
    let (code, output) = check(&bundle);
    let id = run.good(&["id", "--data-dir", &run.at("lazy")]);
    assert!(code == 0 && output.contains(id.trim()) && output.contains("compare both"), "{output}");
    for share in 1..24 {
        let mut changed = bundle.clone();
        let place = bundle.len() * share / 24;
        changed[place] ^= 1 << (share % 8);
        let (code, output) = check(&changed);
        assert!(code == 3 && output.contains("was changed or cut short"), "{place}: {output}");
    }
    assert_eq!(check(&bundle[..bundle.len() / 2]).0, 3);
    // Whoever changes it may also make a new checksum.
    let home = Home::open(&run.path("forger")).expect("a home");
    let contents = bundle_in(&run.path("run/evidence").join(format!("{evidence}.bundle"))).expect("a bundle");
    let contents = contents.expect("a bundle");
    let forged = bundle_path(home.path(), &Digest([0; 32]));
    for share in 0..24 {
        let (mut contents, place) = (contents.clone(), contents.len() * share / 24);
        contents[place] ^= 1 << (share % 8);
        home.save_bundle(&Digest([0; 32]), &contents).expect("a forged bundle");
        let (code, output) = check(&fs::read(&forged).expect("a bundle"));
        assert!(code == 5 || code == 1, "byte {place} of the contents: {code} {output}");
    }
}

/// Bytes of a file over HTTP, as many as are announced.
fn bytes(address: &str, path: &str) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).expect("a connection");
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").expect("a request");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("an answer");
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n").expect("a head") + 4;
    let (head, body) = answer.split_at(end);
    let head = String::from_utf8_lossy(head).to_lowercase();
    assert!(
        head.starts_with("http/1.1 200") && head.contains(&format!("content-length: {}\r\n", body.len())),
        "{head}"
    );
    body.to_vec()
}

#[test]
fn a_run_that_is_over_is_served_until_somebody_stops_the_steward() {
    let run = Run::new(programs!(), &Settings { rounds: 4, nodes: 2, verifiers: 0, ..Settings::default() });
    let folder = run.at("run");
    let words = ["host", &folder, "--listen", "127.0.0.1:0", "--web", "0"];
    let host = || run.spawn("steward", programs!().muster, &words);
    let mut steward = host();
    wait_for("the steward to listen", || run.path("run/address").exists());
    let nodes = run.invite("node", 3);
    let here = [run.join("first", &nodes, &[]), run.join("second", &nodes, &[])];
    let mut away = run.join("away", &nodes, &[]);
    wait_for("three members", || run.events("admit").len() == 3);
    away.kill();
    for mut node in here {
        assert_eq!(node.wait(), 0, "{}", node.log());
    }
    let served = |times: usize| {
        wait_for("the end", || {
            steward_log(&run).matches("records, state and pages are served until").count() == times
        });
    };
    served(1);
    let log = steward.log();
    let next =
        [format!("next: muster generate {folder} --chat"), format!("next: muster run export {folder} --out")];
    let said = ["final state", "held-out loss ", "on the same text a bigram model has "].map(str::to_owned);
    for words in said.iter().chain(&next) {
        assert!(log.contains(words), "{words}: {log}");
    }
    let address = page(&steward);
    wait_for("its pages to show the end", || {
        json(&address, "/api/run.json")
            .is_some_and(|run| run["closed"] == true && run["held_out"]["4"].is_number())
    });
    // Who was away finds the end, who comes now all records and the last state; the folder is an archive.
    let mut away = run.join("away", &nodes, &[]);
    assert_eq!(away.wait(), 0, "{}", away.log());
    let mut observer = run.observe("observer", &nodes);
    assert_eq!(observer.wait(), 0, "{}", observer.log());
    assert!(
        observer.log().contains(&format!("closed with state {}", &run.root()[..16])),
        "{}",
        observer.log()
    );
    assert_eq!(run.replay().0, 0);
    assert!(run.good(&["members", &folder]).contains("leaves counted"));
    steward.signal("TERM");
    assert_eq!(steward.wait(), 0, "{}", steward.log());
    // Started again it waits for nobody and invites nobody.
    let mut steward = host();
    served(2);
    let again = steward.log().split_off(log.len());
    assert!(again.contains("is over; it can be read at") && again.contains("held-out loss "), "{again}");
    assert!(!again.contains("muster invite"), "{again}");
    steward.interrupt();
    assert_eq!(steward.wait(), 0, "{}", steward.log());
    assert!(!steward.log().contains("finishing the round"), "{}", steward.log());
    // Unless it is to end with the run.
    assert_eq!(run.host().wait(), 0);
    chats(&folder);
    chats_on_a_page(&run, &folder);
}

/// `generate --chat` goes on from each line, until there are no more.
fn chats(folder: &str) {
    let generate = ["generate", folder, "--chat", "--tokens", "4", "--temperature", "0"];
    let mut chat = Command::new(programs!().muster);
    chat.args(generate).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut chat = chat.spawn().expect("a program");
    chat.stdin.take().expect("a pipe").write_all(b"Once\n\nmore\n").expect("lines");
    let output = chat.wait_with_output().expect("its end");
    let answered = String::from_utf8(output.stdout).expect("UTF-8");
    assert!(output.status.success() && answered.lines().count() >= 3, "{answered:?}");
}

/// `generate --chat --web`: the page asks, and the answer comes as it is written; other sites may not ask.
fn chats_on_a_page(run: &Run, folder: &str) {
    let words = [
        "generate",
        folder,
        "--chat",
        "--web",
        "0",
        "--tokens",
        "20000",
        "--temperature",
        "0",
        "--prompt",
        "Once <b>",
    ];
    let chat = run.spawn("chat", programs!().muster, &words);
    chat.wait_for_log("talk to the model: http://");
    let address =
        chat.log().split("http://").nth(1).expect("an address").split('/').next().expect("one").to_owned();
    let page = get(&address, "/").expect("a page");
    for words in ["<form id=\"talk\" method=\"post\" action=\"/\">", "Once &#60;b&#62;", "chat.js"] {
        assert!(page.contains(words), "{words}: {page}");
    }
    assert!(get(&address, "/chat.js").expect("a script").contains("fetch(\"/answer\""));
    let own = format!("Origin: http://{address}\r\nSec-Fetch-Site: same-origin\r\n");
    // The first pieces are there long before the end, and a reader that goes leaves the model to the next one.
    for (path, first) in [("/answer", "{\"piece\":"), ("/", "Twice &#38; again")] {
        let mut stream = post(&address, path, &own, "text=&line=Twice+%26+again");
        let mut read = String::new();
        while !read.contains(first) || read.len() < 100 {
            let mut bytes = [0; 512];
            let count = stream.read(&mut bytes).expect("an answer");
            assert!(count > 0, "{path}: {read}");
            read += &String::from_utf8_lossy(&bytes[..count]);
        }
        assert!(read.starts_with("HTTP/1.1 200") && !read.contains("\"ended\""), "{read}");
        assert!(
            read.contains("form-action 'self'") && read.contains("referrer-policy: same-origin"),
            "{read}"
        );
    }
    others_may_not_ask(&address, &own);
    // As many wait as there are places; the next one is told so.
    let waiting: Vec<TcpStream> = (0..4).map(|_| post(&address, "/answer", &own, "line=Once")).collect();
    wait_for("a full house", || {
        let mut stream = post(&address, "/answer", &own, "line=Once");
        let mut head = [0; 12];
        stream.read_exact(&mut head).expect("an answer");
        head == *b"HTTP/1.1 503"
    });
    drop(waiting);
}

/// Nor may who comes by another name, and nobody a text without end.
fn others_may_not_ask(address: &str, own: &str) {
    let refused = |more: &str, body: &str, code: &str| {
        let mut answer = String::new();
        post(address, "/answer", more, body).read_to_string(&mut answer).expect("an answer");
        assert!(answer.starts_with(&format!("HTTP/1.1 {code}")), "{more}: {answer}");
    };
    refused("Origin: http://example.org\r\n", "line=x", "403");
    refused("Origin: null\r\n", "line=x", "403");
    refused("Sec-Fetch-Site: cross-site\r\n", "line=x", "403");
    refused(own, &format!("line={}", "x".repeat(20_000)), "413");
    let mut elsewhere = TcpStream::connect(address).expect("a connection");
    write!(
        elsewhere,
        "POST /answer HTTP/1.1\r\nHost: rebound.example\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    )
    .expect("a request");
    let mut answer = String::new();
    elsewhere.read_to_string(&mut answer).expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 421"), "{answer}");
}

/// A form that is sent, up to its answer.
fn post(address: &str, path: &str, more: &str, body: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).expect("a connection");
    stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
    let kind = "Content-Type: application/x-www-form-urlencoded\r\n";
    let length = body.len();
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: {address}\r\n{kind}{more}Content-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    // A body that is too long is not read to its end.
    let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body.as_bytes()));
    stream
}

fn steward_log(run: &Run) -> String {
    fs::read_to_string(run.path("steward.log")).unwrap_or_default()
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

/// A terminal for a program: what it has written there so far, and the side that a person sits at.
fn terminal(rows: u16, columns: u16) -> (File, File, Arc<Mutex<Vec<u8>>>) {
    let person = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
    grantpt(&person).and_then(|()| unlockpt(&person)).expect("a terminal of our own");
    let name = ptsname(&person, Vec::new()).expect("its name").into_string().expect("UTF-8");
    let program = File::options().read(true).write(true).open(name).expect("its other side");
    let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(&program, size).expect("a size");
    let person = File::from(person);
    let written = Arc::new(Mutex::new(Vec::new()));
    let (mut screen, shared) = (person.try_clone().expect("a handle"), written.clone());
    thread::spawn(move || {
        let mut bytes = [0; 4096];
        while let Ok(count @ 1..) = screen.read(&mut bytes) {
            shared.lock().expect("a screen").extend_from_slice(&bytes[..count]);
        }
    });
    (person, program, written)
}

/// What a terminal shows after these bytes, which move the cursor and write characters.
fn screen(bytes: &[u8]) -> String {
    const COLUMNS: usize = 300;
    let mut rows = vec![vec![' '; COLUMNS]; 100];
    let (mut row, mut column) = (0, 0);
    let text = String::from_utf8_lossy(bytes);
    let mut rest = text.chars();
    while let Some(character) = rest.next() {
        if character != '\u{1b}' {
            rows[row][column] = character;
            column = (column + 1).min(COLUMNS - 1);
            continue;
        }
        let mut sequence = String::new();
        for part in rest.by_ref() {
            sequence.push(part);
            if part.is_ascii_alphabetic() {
                break;
            }
        }
        if sequence == "[2J" || sequence == "[?1049h" {
            rows = vec![vec![' '; COLUMNS]; 100];
        }
        let place = sequence.strip_prefix('[').and_then(|sequence| sequence.strip_suffix('H'));
        if let Some((to_row, to_column)) = place.and_then(|place| place.split_once(';'))
            && let (Ok(to_row), Ok(to_column)) = (to_row.parse::<usize>(), to_column.parse::<usize>())
        {
            (row, column) = (to_row.clamp(1, 100) - 1, to_column.clamp(1, COLUMNS) - 1);
        }
    }
    rows.into_iter().map(|row| row.into_iter().collect::<String>() + "\n").collect()
}

/// A program that does not outlive the test.
struct Guarded(std::process::Child);

impl Drop for Guarded {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_board_has_the_terminal_until_a_key_gives_it_back() {
    let settings = Settings { rounds: 4000, nodes: 2, verifiers: 0, ..Settings::default() };
    let run = Run::new(programs!(), &settings);
    let (mut person, program, written) = terminal(30, 100);
    let stdio = || Stdio::from(program.try_clone().expect("a handle"));
    let host = Command::new(programs!().muster)
        .args(["host", &run.at("run"), "--listen", "127.0.0.1:0", "--board"])
        .env("TERM", "xterm-256color")
        .env("NO_COLOR", "1")
        .stdin(stdio())
        .stdout(stdio())
        .stderr(stdio())
        .spawn()
        .expect("a program");
    let mut host = Guarded(host);
    let written = || written.lock().expect("a screen").clone();
    let wrote = |words: &str| String::from_utf8_lossy(&written()).contains(words);
    let shows = |words: &str| screen(&written()).contains(words);
    wait_for("an address", || run.path("run/address").exists());
    let nodes = run.invite("node", 2);
    let _members = [run.join("ada", &nodes, &["--name", "Ada L."]), run.join("bob", &nodes, &[])];
    wait_for("a screen of its own", || wrote("\u{1b}[?1049h"));
    for words in ["hosting · ", "What happens", "Ada L. · ", "/4000 [", "q or Ctrl-C"] {
        wait_for(words, || shows(words));
    }
    assert!(!wrote("\u{1b}[38;5;") && !wrote("\u{1b}[36m"), "colour, which nobody wants");
    person.write_all(b"q").expect("a key");
    wait_for("its end", || host.0.try_wait().expect("a child").is_some());
    assert_eq!(host.0.wait().expect("a child").code(), Some(130));
    wait_for("its last words", || wrote("\u{1b}[?1049l") && wrote("stopped; start again to go on"));
    let modes = tcgetattr(&program).expect("its modes").local_modes;
    assert!(modes.contains(LocalModes::ECHO | LocalModes::ICANON), "{modes:?}");
    // Where there is none, it is said.
    let (code, output) = run.muster(&["host", &run.at("run"), "--board"]);
    assert!(code == 2 && output.contains("--board needs a terminal"), "{code} {output}");
}
