//! Volunteers whose machines are not always there, and share a line with others: they pause without letting anybody wait.

use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use e2e::processes::{Process, Run, wait_for};
use e2e::programs;
use e2e::settings::Settings;
use muster_core::ledger::{Ledger, Member, Standing};
use muster_core::limits::PULL_RECORDS;
use muster_core::messages::record::Body;
use muster_organise::invite::read_manifest;
use muster_store::home::Home;
use muster_store::journal::Journal;
use serde_json::Value;

/// What a program's folder says as JSON; none while it says nothing.
fn status(run: &Run, folder: &str) -> Option<Value> {
    let (code, output) = run.muster(&["status", &run.at(folder), "--json"]);
    (code == 0).then(|| serde_json::from_str(&output).expect("JSON"))
}

fn wait_for_status(run: &Run, folder: &str, test: impl Fn(&Value) -> bool) {
    wait_for(&format!("the status of {folder}"), || status(run, folder).is_some_and(|status| test(&status)));
}

/// The ledger of a run whose steward has ended, and the quotas of its seats: by round and member.
fn sealed(run: &Run) -> (Ledger, Vec<Vec<(String, u32)>>) {
    let folder = run.path("run");
    let manifest = read_manifest(&folder).expect("a run");
    let journal = Journal::open(&Home::open(&folder).expect("its folder")).expect("a journal");
    let (mut ledger, mut rounds) = (Ledger::new(Arc::new(manifest)), Vec::new());
    loop {
        let records = journal.records(ledger.height(), PULL_RECORDS).expect("records");
        for signed in &records {
            let record = ledger.apply(signed).expect("an honest ledger");
            if let Body::Outcome(outcome) = &record.body {
                let seats = ledger.round(outcome.round).expect("a round just ended").seats();
                rounds.push(seats.iter().map(|seat| (format!("{:#}", seat.member), seat.quota)).collect());
            }
        }
        if records.is_empty() {
            return (ledger, rounds);
        }
    }
}

fn id(run: &Run, name: &str) -> String {
    run.good(&["id", "--data-dir", &run.at(name)]).trim().to_owned()
}

fn member(ledger: &Ledger, id: &str) -> Member {
    let found = ledger.members().iter().find(|member| format!("{:#}", member.id) == id);
    found.expect("a member").clone()
}

/// The time of the day in so many seconds, where local time is universal time.
fn time(seconds: i64) -> String {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("a clock").as_secs() as i64;
    let time = (now + seconds).rem_euclid(24 * 3600);
    format!("{:02}:{:02}:{:02}", time / 3600, time / 60 % 60, time % 60)
}

/// A node whose local time is universal time.
fn join_in_utc(run: &Run, name: &str, invitation: &str, more: &[&str]) -> Process {
    let home = run.at(name);
    let join = ["join", invitation, "--data-dir", &home, "--listen", "127.0.0.1:0"];
    let words = ["-c", "TZ=UTC0; export TZ; exec \"$0\" \"$@\"", programs!().muster];
    run.spawn(name, "sh", &[&words[..], &join, more].concat())
}

/// Settings with which a member answers for its contributions for two rounds.
fn answering_briefly(settings: &Settings) -> String {
    let text = settings.to_string();
    let brief = text.replace("\nstates = 16", "\nstates = 4");
    assert_ne!(text, brief);
    brief
}

/// It is told to rest twice: before it ever joined, and in the midst of the run. Its contributions are all audited.
#[test]
fn outside_its_hours_a_node_pauses_without_a_failure_and_comes_back_by_itself() {
    let settings = Settings { rounds: 4000, nodes: 1, verifiers: 1, audit: (1.0, 1), ..Settings::default() };
    let run = Run::packed(programs!(), &answering_briefly(&settings), None);
    let mut steward = run.host();
    let nodes = run.invite("node", 2);
    let mut watcher = run.watch("watcher", &run.invite("verifier", 1));
    let mut first = run.join("first", &nodes, &[]);
    run.wait_round(1);
    let hours = |from, to| format!("{}-{}", time(from), time(to));
    let (late, later) = (hours(6, 30), hours(65, 3600));
    let mut sleeper = join_in_utc(&run, "sleeper", &nodes, &["--hours", &late, "--hours", &later]);
    let paused = |status: &Value| {
        let until = status["paused"]["until"].as_str().unwrap_or_default().to_owned();
        (status["phase"] == "paused" && status["paused"]["why"].to_string().contains("--hours"))
            .then_some(until)
    };
    wait_for_status(&run, "sleeper", |status| {
        paused(status).is_some_and(|until| until.ends_with(&late[..8]))
    });
    let said = run.good(&["status", &run.at("sleeper")]);
    assert!(said.contains("paused     it is not within --hours") && said.contains("goes on at"), "{said}");
    sleeper.wait_for_log("admitted as node");
    let counted = |more: u64| {
        wait_for_status(&run, "sleeper", |status| {
            status["paused"].is_null() && status["credit"]["leaves"].as_u64() > Some(more)
        });
    };
    counted(0);
    sleeper.wait_for_log("pausing: it is not within --hours");
    wait_for_status(&run, "sleeper", |status| {
        paused(status).is_some_and(|until| until.ends_with(&later[..8]))
    });
    let before = run.events("round").len();
    wait_for("rounds without it", || run.events("round").len() > before);
    // Asleep it says what it had done by then.
    let leaves = status(&run, "sleeper").expect("it runs")["credit"]["leaves"].as_u64().expect("leaves");
    counted(leaves);
    [&sleeper, &first].into_iter().for_each(Process::interrupt);
    assert_eq!((sleeper.wait(), first.wait()), (130, 130), "{}", sleeper.log());
    steward.interrupt();
    assert_eq!(steward.wait(), 130);
    watcher.kill();
    let (ledger, rounds) = sealed(&run);
    let sleeper = id(&run, "sleeper");
    let seated: Vec<bool> = rounds.iter().map(|seats| seats.iter().any(|(id, _)| *id == sleeper)).collect();
    let turns = seated.windows(2).filter(|pair| pair[0] != pair[1]).count();
    assert_eq!((turns, seated[0]), (3, false), "it came, went and came back: {seated:?}");
    let member = member(&ledger, &sleeper);
    // The interruption at the end may be one, and nothing before it.
    let failed = u8::from(member.standing != Standing::Active);
    assert_eq!(member.failures, failed, "{:?}", member.standing);
}

#[test]
fn a_node_within_its_rate_takes_its_time_to_fetch_the_text() {
    let run = Run::new(programs!(), &Settings { rounds: 3, nodes: 1, ..Settings::default() });
    let words: Vec<String> =
        (0..60_000_u32).map(|word| format!("{:x}", word.wrapping_mul(2_654_435_761))).collect();
    let text = words.join(" ");
    fs::write(run.path("text/long.txt"), &text).expect("a file");
    run.good(&["data", "pack", "--text", &run.at("text"), "--out", &run.at("long")]);
    fs::remove_dir_all(run.path("run")).expect("a folder");
    let (config, data, out) = (run.at("run.toml"), run.at("long"), run.at("run"));
    run.good(&["run", "new", "--config", &config, "--data", &data, "--out", &out]);
    let mut steward = run.host();
    let began = Instant::now();
    let mut slow = run.join("slow", &run.invite("node", 1), &["--max-rate", "1/1"]);
    slow.wait_for_log("admitted as node");
    let least = Duration::from_secs_f64(text.len() as f64 / 125_000.0 - 0.2);
    assert!(least > Duration::from_secs(3) && began.elapsed() > least, "{least:?} {:?}", began.elapsed());
    assert_eq!((slow.wait(), steward.wait()), (0, 0));
    run.check_end(&["slow"]);
}

/// A run whose rounds are shorter than slow lines take for a state, and a member that trains in it.
fn quick() -> (Run, Vec<Process>, String) {
    // More rounds are remembered than a fetch takes.
    let settings = Settings { rounds: 4000, nodes: 1, contributions: 100, ..Settings::default() };
    let run = Run::waiting(programs!(), &settings.to_string().replace("width = 16", "width = 64"), 1);
    let steward = run.host();
    let nodes = run.invite("node", 2);
    let first = run.join("first", &nodes, &[]);
    // Whoever comes later fetches a state: the first results are forgotten.
    run.wait_round(120);
    (run, vec![steward, first], nodes)
}

#[test]
fn state_10_a_state_stays_while_a_slow_line_carries_it() {
    let (run, _running, nodes) = quick();
    let newcomer = run.join("newcomer", &nodes, &["--max-rate", "3/3"]);
    newcomer.wait_for_log("fetching the state");
    let before = run.events("round").len();
    newcomer.wait_for_log("of the model from");
    let after = run.events("round").len();
    // So long a state stays that nobody fetches.
    assert!(after > before + 9, "{before} {after}");
    assert!(!newcomer.log().contains("unavailable"), "{}", newcomer.log());
}

#[test]
fn state_14_who_was_outpaced_by_rounds_catches_up_before_it_is_admitted() {
    let (run, running, nodes) = quick();
    let newcomer = run.join("newcomer", &nodes, &["--max-rate", "10/10"]);
    newcomer.wait_for_log("leaves counted");
    let rounds = |log: &str| -> Vec<u32> {
        let number = |line: &str| line.split_once("INFO round ")?.1.split('/').next()?.parse().ok();
        log.lines().filter_map(number).collect()
    };
    let (steward, newcomer) = (running[0].log(), newcomer.log());
    let until = steward.rfind("admitted node").expect("it was admitted");
    let (then, first) = (rounds(&steward[..until]).pop(), rounds(&newcomer).first().copied());
    assert!(then.zip(first).is_some_and(|(then, first)| first + 4 > then), "{then:?} {first:?} {newcomer}");
}

/// The day's bytes are kept, so that another process does not begin anew.
#[test]
fn a_node_whose_traffic_is_used_up_pauses_until_midnight_also_after_a_restart() {
    let settings = Settings { rounds: 4000, nodes: 1, ..Settings::default() };
    let run = Run::packed(programs!(), &answering_briefly(&settings), None);
    let steward = run.host();
    let nodes = run.invite("node", 2);
    let first = run.join("first", &nodes, &[]);
    // About 200 kB.
    let most = ["--max-traffic", "0.0002"];
    let mut frugal = join_in_utc(&run, "frugal", &nodes, &most);
    let used_up = || {
        wait_for_status(&run, "frugal", |status| {
            let paused = &status["paused"];
            let midnight = paused["until"].as_str().is_some_and(|until| until.ends_with(" 00:00:00"));
            midnight && status["phase"] == "paused" && paused["why"].to_string().contains("--max-traffic")
        });
    };
    used_up();
    let before = run.events("round").len();
    wait_for("rounds without it", || run.events("round").len() > before + 2);
    frugal.interrupt();
    assert_eq!(frugal.wait(), 130, "{}", frugal.log());
    let mut frugal = join_in_utc(&run, "frugal", &nodes, &most);
    used_up();
    frugal.kill();
    drop((first, steward));
    let (ledger, _) = sealed(&run);
    let frugal = member(&ledger, &id(&run, "frugal"));
    assert_eq!((frugal.failures, frugal.standing, frugal.standing_word()), (0, Standing::Active, "resting"));
}

/// LEDGER-24: it is never drawn for leaves, and combines parts of others.
#[test]
fn a_node_without_leaves_combines_parts_and_lets_nobody_wait() {
    let run = Run::new(programs!(), &Settings { rounds: 12, nodes: 2, ..Settings::default() });
    let mut steward = run.host();
    let nodes = run.invite("node", 3);
    let mut helper = run.join("helper", &nodes, &["--no-leaves"]);
    helper.wait_for_log("admitted as node");
    // Only it can be dialled.
    let mut others = ["ada", "bob"].map(|name| run.join_undialled(name, &nodes));
    assert_eq!(others.each_mut().map(Process::wait), [0, 0]);
    assert_eq!((helper.wait(), steward.wait()), (0, 0), "{}", helper.log());
    run.check_end(&["helper", "ada", "bob"]);
    let (ledger, rounds) = sealed(&run);
    let helper = id(&run, "helper");
    for seats in &rounds {
        assert_eq!(seats.last(), Some(&(helper.clone(), 0)), "{seats:?}");
    }
    assert_eq!(rounds.len(), 12);
    let members = ledger.members();
    assert!(members.iter().all(|member| member.failures == 0 && member.standing == Standing::Active));
    assert_eq!(member(&ledger, &helper).service.leaves, 0);
}
