//! One command for the smallest run: a steward that brings a node and a verifier of its own, and what its members then have to
//! show.

use e2e::processes::{Run, wait_for};
use e2e::programs;
use e2e::settings::Settings;

/// The number before these words, in the last line that has them.
fn number(text: &str, words: &str) -> Option<u64> {
    let line = text.lines().rev().find(|line| line.contains(words))?;
    line.split(words).next()?.split_whitespace().next_back()?.parse().ok()
}

#[test]
fn a_steward_brings_its_members_and_they_end_and_go_on_together() {
    let settings = Settings { rounds: 40, nodes: 1, verifiers: 1, audit: (1.0, 1), ..Settings::default() };
    let run = Run::new(programs!(), &settings);
    let with = ["--with-node", "--with-verifier"];
    let mut steward = run.host_with(&with);
    // Until they are here: whom it waits for, and how to invite the role that is missing.
    steward.wait_for_log("0 of 1 verifier");
    let log = steward.log();
    let invite = format!("; invite one: muster invite {} --role verifier", run.at("run"));
    assert!(log.contains("waiting: ") && log.contains(&invite) && !log.contains("of 1 verifiers"), "{log}");
    run.wait_round(3);
    // Until both have taken part, one may not listen yet for what asks it to stop.
    wait_for("audits", || number(&steward.log(), " audits passed").is_some_and(|passed| passed > 0));

    // What the node has done it can show, and anybody can check with the steward.
    let stated = run.good(&["credit", "--data-dir", &run.at("run-node"), "--note", "for Ann"]);
    let line = stated.lines().find(|line| line.starts_with("muster-service1:")).expect("a statement");
    let checked = run.good(&["credit", "--check", line]);
    assert!(checked.starts_with("true: member ") && checked.contains("for Ann"), "{checked}");
    let (code, output) = run.muster(&["credit", "--check", &line[..line.len() - 1]]);
    assert!(code == 2 && output.contains("damaged"), "{code} {output}");
    let before = number(&std::fs::read_to_string(run.path("run-node.log")).expect("a log"), " in all");

    steward.signal("TERM");
    assert_eq!(steward.wait(), 130, "{}", steward.log());
    for member in ["node", "verifier"] {
        assert!(
            steward.log().contains(&format!("the {member} on this machine has stopped")),
            "{}",
            steward.log()
        );
    }
    // Their directories are free again. With the run they end by themselves, and the steward goes on.
    let words = ["host", &run.at("run"), "--listen", "127.0.0.1:0", "--with-node", "--with-verifier"];
    let mut steward = run.spawn("steward", programs!().muster, &words);
    for member in ["node", "verifier"] {
        steward.wait_for_log(&format!("the {member} on this machine has ended"));
    }
    steward.wait_for_log("records and state are served until");
    steward.signal("TERM");
    assert_eq!(steward.wait(), 0, "{}", steward.log());
    run.check_end(&["run-node", "run-verifier"]);
    // Once more it brings nobody: there is nothing to join.
    let log = steward.log();
    let mut steward = run.host_with(&with);
    assert_eq!(steward.wait(), 0, "{}", steward.log());
    assert!(!steward.log()[log.len()..].contains("on this machine"), "{}", steward.log());

    // The counts are those of the records: the same for member, steward and verifier, whoever was started anew.
    let node = std::fs::read_to_string(run.path("run-node.log")).expect("a log");
    let all = number(&node, " in all").expect("a count");
    assert!(before.is_some_and(|before| 0 < before && before < all), "{before:?} {all}");
    assert!(node.contains(&format!("; {all} of your leaves counted")), "{node}");
    let members = run.good(&["members", &run.at("run")]);
    assert!(members.contains(&format!("{all} leaves counted")), "{members}");
    let verifier = std::fs::read_to_string(run.path("run-verifier.log")).expect("a log");
    let [told, own] = [steward.log(), verifier].map(|log| number(&log, " audits passed, 0 found guilty"));
    assert!(own.is_some_and(|own| own > 0), "{own:?}");
    assert_eq!(own, number(&members, " audits passed, 0 found guilty"), "{members}");
    assert_eq!(own, told, "{}", steward.log());
    // The statement of then stays true of then, by the archive as well.
    let checked = run.good(&["credit", "--check", line, "--run", &run.at("run")]);
    assert!(checked.starts_with("true: "), "{checked}");
}
