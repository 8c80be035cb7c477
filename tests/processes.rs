//! Honest runs as real processes: by hand, through crashes, on different kernels.

use e2e::oracle;
use e2e::processes::{Run, wait_for};
use e2e::programs;
use e2e::settings::Settings;

fn settings(rounds: u32, nodes: u32, verifiers: u32) -> Settings {
    Settings { rounds, nodes, verifiers, ..Settings::default() }
}

#[test]
fn by_hand_it_trains_what_one_process_trains() {
    let run = Run::new(programs!(), &settings(12, 2, 1));
    let mut steward = run.host();
    let nodes = run.invite("node", 2);
    let mut first = run.join("first", &nodes, &[]);
    let mut second = run.join("second", &nodes, &[]);
    let mut watch = run.watch("verifier", &run.invite("verifier", 1));
    assert_eq!(first.wait(), 0, "{}", first.log());
    assert_eq!(second.wait(), 0);
    assert_eq!(watch.wait(), 0);
    assert_eq!(steward.wait(), 0);
    run.check_end(&["first", "second"]);
    assert!(watch.log().contains(" passed, "), "{}", watch.log());
    assert_eq!(format!("{:#}", oracle::train(&run.path("run"))), run.root());
    let losses: Vec<f64> = run.events("round").iter().filter_map(|event| event["loss"].as_f64()).collect();
    assert_eq!(losses.len(), 12);
    assert!(losses[11] < losses[0], "{losses:?}");
}

#[test]
fn an_invitation_is_short_and_a_member_says_whom_the_run_waits_for() {
    let run = Run::new(programs!(), &settings(3, 2, 1));
    let mut steward = run.host_everywhere();
    let (nodes, verifiers) = (run.invite("node", 2), run.invite("verifier", 1));
    for line in [&nodes, &verifiers] {
        assert!(line.starts_with("muster1:") && line.len() < 300, "{} characters: {line}", line.len());
    }
    let mut first = run.join("first", &nodes, &[]);
    wait_for("the first node", || first.log().contains("waiting: 1 of 2 nodes here, 0 of 1 verifier"));
    let mut second = run.join("second", &nodes, &[]);
    let waits = "waiting: 2 of 2 nodes here, 0 of 1 verifier";
    wait_for("both nodes", || first.log().contains(waits) && second.log().contains(waits));
    let mut watch = run.watch("verifier", &verifiers);
    let ends = [first.wait(), second.wait(), watch.wait(), steward.wait()];
    assert_eq!(ends, [0; 4], "{}", steward.log());
}

#[test]
fn a_killed_node_comes_back_to_the_same_root() {
    let run = Run::new(programs!(), &settings(60, 3, 0));
    let mut steward = run.host();
    let nodes = run.invite("node", 3);
    let mut first = run.join("first", &nodes, &[]);
    let mut second = run.join("second", &nodes, &[]);
    let mut third = run.join("third", &nodes, &[]);
    run.wait_round(3);
    third.kill();
    let killed_at = run.events("round").len() as u64;
    run.wait_round(killed_at + 3);
    let mut third = run.join("third", &nodes, &[]);
    assert_eq!(third.wait(), 0, "{}", third.log());
    assert_eq!(first.wait(), 0);
    assert_eq!(second.wait(), 0);
    assert_eq!(steward.wait(), 0);
    run.check_end(&["first", "second", "third"]);
}

#[test]
fn a_killed_steward_goes_on_without_a_fork() {
    let run = Run::new(programs!(), &settings(40, 2, 0));
    let mut steward = run.host();
    let nodes = run.invite("node", 2);
    let mut first = run.join("first", &nodes, &[]);
    let mut second = run.join("second", &nodes, &[]);
    for round in [4, 11, 18] {
        run.wait_round(round);
        steward.kill();
        steward = run.host();
    }
    assert_eq!(first.wait(), 0, "{}", first.log());
    assert_eq!(second.wait(), 0);
    assert_eq!(steward.wait(), 0);
    run.check_end(&["first", "second"]);
}

/// Stopped for longer than its timers, with every connection open: what the nodes said meanwhile was heard by nobody.
#[test]
fn a_node_that_comes_back_before_the_steward_waits_for_it() {
    let run = Run::new(programs!(), &settings(12, 2, 0));
    let mut steward = run.host();
    let nodes = run.invite("node", 2);
    let mut first = run.join("first", &nodes, &[]);
    let mut second = run.join("second", &nodes, &[]);
    run.wait_round(3);
    second.kill();
    steward.kill();
    let mut second = run.join("second", &nodes, &[]);
    wait_for("a first try", || second.log().contains("the steward does not answer"));
    let mut steward = run.host();
    let ends = [first.wait(), second.wait(), steward.wait()];
    assert_eq!(ends, [0; 3], "{}", second.log());
    run.check_end(&["first", "second"]);
}

#[test]
fn round_38_nobody_fails_because_the_steward_was_stopped() {
    let timers = "[timers]\ncommit = 4.0\npart = 4.0\nresult = 4.0\n";
    let run = Run::packed(programs!(), &format!("{}{timers}", settings(60, 3, 0)), None);
    let mut steward = run.host();
    let line = run.invite("node", 3);
    let mut nodes = ["first", "second", "third"].map(|name| run.join(name, &line, &[]));
    run.wait_round(4);
    steward.suspend();
    std::thread::sleep(std::time::Duration::from_secs(8));
    steward.resume();
    for node in &mut nodes {
        assert_eq!(node.wait(), 0, "{}", node.log());
    }
    assert_eq!(steward.wait(), 0, "{}", steward.log());
    assert!(steward.log().contains("did not run for a while"), "{}", steward.log());
    assert!(run.events("kept others waiting and is away").is_empty(), "{}", steward.log());
    run.check_end(&["first", "second", "third"]);
}

#[test]
fn different_kernels_reach_the_same_root() {
    let run = Run::new(programs!(), &settings(8, 2, 0));
    let mut steward = run.host();
    let nodes = run.invite("node", 2);
    let mut fast = run.join("fast", &nodes, &[]);
    let mut plain = run.join("plain", &nodes, &["--kernel", "portable", "--threads", "2"]);
    assert_eq!(fast.wait(), 0, "{}", fast.log());
    assert_eq!(plain.wait(), 0, "{}", plain.log());
    assert_eq!(steward.wait(), 0);
    run.check_end(&["fast", "plain"]);
}

#[test]
fn a_wrong_hand_gets_a_sentence_and_nothing_is_damaged() {
    // Long enough that it goes on while the last ones are refused.
    let run = Run::new(programs!(), &settings(100, 1, 0));
    let path = |name: &str| run.path(name).to_string_lossy().into_owned();
    let refuse = |arguments: &[&str], code: i32, words: &str| {
        let (got, output) = run.muster(arguments);
        assert_eq!(got, code, "{arguments:?}: {output}");
        assert!(output.contains(words), "{arguments:?}: {output}");
        assert!(!output.contains("panicked"), "{arguments:?}: {output}");
    };
    refuse(
        &["run", "new", "--config", &path("run.toml"), "--data", &path("nothing"), "--out", &path("x")],
        3,
        "nothing",
    );
    refuse(
        &["run", "new", "--config", &path("run.toml"), "--data", &path("corpus"), "--out", &path("run")],
        3,
        "run",
    );
    refuse(&["data", "pack", "--text", &path("absent"), "--out", &path("y")], 3, "absent");
    refuse(&["host", &path("corpus")], 3, "corpus");
    std::fs::write(run.path("bad.toml"), "[model]\nheads = 3\n").expect("a file");
    refuse(
        &["run", "new", "--config", &path("bad.toml"), "--data", &path("corpus"), "--out", &path("x")],
        2,
        "heads",
    );
    std::fs::write(run.path("odd.toml"), "[model]\nhats = 3\n").expect("a file");
    refuse(
        &["run", "new", "--config", &path("odd.toml"), "--data", &path("corpus"), "--out", &path("x")],
        2,
        "hats",
    );
    refuse(&["join", "muster1:zz", "--data-dir", &path("n")], 2, "invitation");

    let mut steward = run.host();
    refuse(&["host", &path("run"), "--listen", "127.0.0.1:0"], 3, "run");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address").to_string();
    let once = run.invite("node", 1);
    refuse(&["join", &once, "--data-dir", &path("busy"), "--listen", &address], 3, &address);
    let expired = {
        let output = run.good(&["invite", &path("run"), "--role", "node", "--expires", "1s"]);
        output.trim().to_owned()
    };
    std::thread::sleep(std::time::Duration::from_millis(2100));
    refuse(&["join", &expired, "--data-dir", &path("late"), "--listen", "127.0.0.1:0"], 1, "expire");
    let mut first = run.join("first", &once, &[]);
    wait_for("the first admission", || run.events("admit").len() == 1);
    refuse(&["join", &once, "--data-dir", &path("second"), "--listen", "127.0.0.1:0"], 1, "used up");
    assert_eq!(first.wait(), 0, "{}", first.log());
    assert_eq!(steward.wait(), 0);
    run.check_end(&["first"]);
}

#[test]
fn settings_that_were_there_before_are_named() {
    let run = Run::new(programs!(), &Settings::default());
    let (config, corpus, other) = (run.at("run.toml"), run.at("corpus"), run.at("other.toml"));
    let new = |config: &str, out: &str| {
        run.good(&["run", "new", "--elsewhere", "--config", config, "--data", &corpus, "--out", &run.at(out)])
    };
    let again = new(&config, "again");
    assert!(
        again.contains(&format!("the settings are those of {config}, which was there before")),
        "{again}"
    );
    let first = new(&other, "other");
    assert!(first.contains(&format!("{other} did not exist")) && !first.contains("there before"), "{first}");
}
