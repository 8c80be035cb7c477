//! Runs of a profile with tolerance as real processes: audits by projections, and bans that take a jury.

use std::fs;

use e2e::processes::{Process, Run};
use e2e::programs;
use serde_json::Value;

/// Five nodes with two leaves each; every contribution is audited.
const SETTINGS: &str = r#"
name = "tolerant"
[model]
width = 16
layers = 1
heads = 2
key_value_heads = 1
hidden = 24
sequence = 32
[arithmetic]
profile = "f32"
tolerance = [1e-5]
loss_tolerance = 1e-5
[training]
leaves = 10
leaf_windows = 1
[optimiser]
warmup = 3
[audit]
share = 1.0
leaves = 1
final_rounds = 2
[timers]
audit = 2.0
[retention]
contributions = 64
states = 64
"#;

/// What it delivers is doubled, the rest nobody gets: its table cannot be compared with its sum, and it is nobody's fault
/// but its own.
#[test]
fn who_conceals_its_integers_has_no_seat_and_nobody_else_suffers() {
    // A model of many blocks, so that each member has a part.
    let settings = SETTINGS
        .replace("width = 16", "width = 128")
        .replace("hidden = 24", "hidden = 512")
        .replace("leaves = 10", "rounds = 30\nleaves = 8")
        .replace("audit = 2.0", "audit = 3.0\nfinal_audit = 6.0")
        + "[admission]\nstart_nodes = 4\nstart_verifiers = 2\n";
    let run = Run::packed(programs!(), &settings, None);
    let mut steward = run.host();
    let (nodes, verifiers) = (run.invite("node", 4), run.invite("verifier", 2));
    let mut honest = ["first", "second", "third"].map(|name| run.join(name, &nodes, &[]));
    let mut cheat = run.attack("cheat", "conceal", 3, &nodes);
    let mut watches = ["one", "other"].map(|name| run.watch(name, &verifiers));
    for process in honest.iter_mut().chain(&mut watches) {
        assert_eq!(process.wait(), 0, "{}", process.log());
    }
    assert_eq!(steward.wait(), 0, "{}", steward.log());
    cheat.wait();
    assert!(run.events("ban").is_empty() && run.events("idle").is_empty(), "{}", steward.log());
    assert!(steward.log().contains("did not answer an audit"), "{}", steward.log());
    let told = |watch: &Process| watch.log().contains("are unavailable; the steward is told");
    assert!(watches.iter().any(told), "{}", watches[0].log());
    let root = run.root();
    for name in ["first", "second", "third"] {
        assert_eq!(run.result(name)["final_state_root"], root.as_str(), "{name}");
    }
}

/// One wrong leaf, int8 weights, a table that is fitted to its sum, and a contribution that is never explained: tried before
/// the two verifiers that did not accuse.
#[test]
fn a_jury_bans_who_is_wrong_and_nobody_else() {
    let run = Run::packed(programs!(), SETTINGS, None);
    let (config, text, out) = (run.at("run.toml"), run.at("text"), run.at("drill"));
    let asked =
        ["drill", "--config", &config, "--text", &text, "--out", &out, "--nodes", "7", "--verifiers", "3"];
    let times = ["--rounds", "24", "--from", "4", "--attack", "one-leaf", "int8", "refuse"];
    let (code, output) = run.muster(&[&asked[..], &times].concat());
    assert_eq!(code, 0, "{output}");
    let report: Value =
        serde_json::from_str(&fs::read_to_string(run.path("drill/report.json")).expect("a report"))
            .expect("JSON");
    // TOL-9: each of them by the word of drawn jurors beside the accuser's.
    assert_eq!(report["bans"].as_array().map(Vec::len), Some(3), "{output}");
    assert!(run.check_bundles("drill/run") >= 3, "with the integers that were committed to");
    let (code, output) = run.verifier(&["replay", &run.at("drill/run")]);
    assert_eq!(code, 2, "{output}");
    assert!(output.contains("profile is f32"), "{output}");
}
