//! One run of the profile f32, computed by kernels with defined bits and by libtorch with different threads.

use std::collections::BTreeSet;

use e2e::processes::{Process, Run};
use e2e::programs;

/// Five nodes with three leaves each; every contribution is audited.
const SETTINGS: &str = r#"
name = "mixed"
[model]
width = 32
layers = 2
heads = 4
key_value_heads = 2
hidden = 48
sequence = 32
[training]
rounds = 50
leaves = 15
leaf_windows = 2
[optimiser]
warmup = 3
[audit]
share = 1.0
leaves = 2
coin_lead = 6
final_rounds = 2
[timers]
audit = 10.0
commit = 20.0
[retention]
contributions = 64
states = 64
[admission]
start_nodes = 5
start_verifiers = 3
"#;

/// Calibrates on the processor, and makes the run anew with what that gives.
fn calibrated() -> Run {
    let run = Run::packed(programs!(), SETTINGS, None);
    let found = run.at("f32.toml");
    let at = ["calibrate", &run.at("run"), "--profile", "f32", "--device", "cpu"];
    let much = ["--threads", "2", "--rounds", "50", "--leaves", "12", "--out", &found];
    let (code, output) = run.verifier(&[&at[..], &much].concat());
    assert_eq!(code, 0, "{output}");
    std::fs::remove_dir_all(run.path("run")).expect("a draft");
    let (config, corpus, out) = (run.at("run.toml"), run.at("corpus"), run.at("run"));
    let from = ["run", "new", "--config", &config, "--data", &corpus, "--calibration", &found];
    run.good(&[&from[..], &["--out", &out]].concat());
    run
}

#[test]
fn machines_that_round_differently_train_one_model_and_ban_who_cheats() {
    let run = calibrated();
    let mut steward = run.host_with(&["--backend", "exact"]);
    let (nodes, verifiers) = (run.invite("node", 5), run.invite("verifier", 3));
    let torch = |threads| ["--backend", "tch", "--device", "cpu", "--threads", threads];
    let mut honest = [
        run.join("exact", &nodes, &["--backend", "exact", "--threads", "2"]),
        run.join("torch-1", &nodes, &torch("1")),
        run.join("torch-2", &nodes, &torch("2")),
    ];
    let mut cheats = [run.attack("flip", "flip", 4, &nodes), run.attack("int8", "int8", 8, &nodes)];
    let mut watches = [
        run.watch_with("watch-exact", &verifiers, &["--backend", "exact"]),
        run.watch_with("watch-torch-1", &verifiers, &torch("1")),
        run.watch_with("watch-torch-2", &verifiers, &torch("2")),
    ];
    for process in honest.iter_mut().chain(&mut watches) {
        assert_eq!(process.wait(), 0, "{}", process.log());
    }
    assert_eq!(steward.wait(), 0, "{}", steward.log());
    cheats.iter_mut().for_each(|cheat| assert_eq!(cheat.wait(), 1, "{}", cheat.log()));

    let root = run.root();
    for member in ["exact", "torch-1", "torch-2", "watch-exact", "watch-torch-1", "watch-torch-2"] {
        assert_eq!(run.result(member)["final_state_root"], root.as_str(), "{member}");
    }
    let banned = run.events("ban");
    let banned: BTreeSet<&str> = banned.iter().filter_map(|ban| ban["member"].as_str()).collect();
    assert_eq!(banned.len(), 2, "{banned:?}");
    let caught = |process: &Process| banned.iter().any(|member| process.log().contains(&member[..16]));
    assert!(cheats.iter().all(caught), "{banned:?}");
    for watch in &watches {
        assert!(!watch.log().contains("all its leaves are recomputed"), "nobody is suspect: {}", watch.log());
    }
    let losses: Vec<f64> = run.events("round").iter().filter_map(|event| event["loss"].as_f64()).collect();
    assert_eq!(losses.len(), 50);
    assert!(losses[49] < losses[0] - 0.5, "{losses:?}");
}
