//! Text by a model that others hold, as real processes: who is silent is left out, who lies is banned.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use e2e::processes::Run;
use e2e::programs;
use e2e::settings::Settings;

/// Texts that are asked for until a call is drawn that the liar shares with another holder: each of their calls is one with
/// a probability of a fifteenth at least.
const TEXTS: usize = 5;

/// The file that a line of the caller names.
fn named(output: &str) -> PathBuf {
    let after = output.split("muster-verifier check ").nth(1).expect("a file of evidence");
    after.split('`').next().expect("its end").into()
}

/// CALL-10, CALL-11, C19: one silent holder and one that lies, and nobody else is blamed.
#[test]
fn call_11_text_comes_within_the_grace_and_call_10_the_liar_is_banned() {
    // More rounds than there is time for: a run that is over is asked no more.
    let settings = Settings { rounds: 5000, nodes: 4, verifiers: 0, ..Settings::default() };
    let run = Run::new(programs!(), &settings);
    // The states of all rounds can be had again from these: the run is looked at before it is over.
    let mut steward = run.host_with(&["--keep-aggregates"]);
    let nodes = run.invite("node", 4);
    let _members = [run.join("first", &nodes, &[]), run.join("second", &nodes, &[])];
    let mut liar = run.attack("liar", "misanswer", 1, &nodes);
    let _silent = run.attack("silent", "no-answer", 1, &nodes);
    run.wait_round(3);
    let id = |name: &str| run.good(&["id", "--data-dir", &run.at(name)]).trim().to_owned();
    let began = Instant::now();
    let (code, output) =
        run.muster(&["generate", &run.at("first"), "--prompt", "fn", "--ask", "1", "--tokens", "1"]);
    assert!(code == 0 && output.starts_with("fn"), "{output}");
    // To reach the steward and to follow takes its time, too.
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}: {output}", began.elapsed());

    let mut said = String::new();
    for _ in 0..TEXTS {
        let (code, output) = run.muster(&["generate", &run.at("first"), "--ask", "1", "--tokens", "120"]);
        assert_eq!(code, 0, "{output}");
        said += &output;
        if said.contains("re-executes it") {
            break;
        }
    }
    assert!(
        said.contains(&format!("{} has not answered in 2 s: it is asked no more", &id("silent")[..16])),
        "{said}"
    );
    assert!(said.contains("re-executes it"), "{said}");
    assert_eq!(liar.wait(), 1, "{}", liar.log());
    let bans = run.events("ban");
    assert_eq!(bans.len(), 1, "{bans:?}");
    assert_eq!(
        (bans[0]["member"].as_str(), bans[0]["finding"].as_str()),
        (Some(&*id("liar")), Some("false answer"))
    );

    // The steward has what the ban rests on, and everything that re-executing it takes.
    let kept = fs::read_dir(run.path("run/evidence"))
        .expect("evidence")
        .map(|entry| entry.expect("an entry").path());
    let evidence: Vec<PathBuf> = kept.collect();
    assert_eq!(evidence.len(), 1, "{evidence:?}");
    assert!(named(&said).starts_with(run.path("first/evidence")), "{said}");
    steward.interrupt();
    steward.wait();
    let (code, output) = run.verifier(&["check", &evidence[0].to_string_lossy()]);
    assert_eq!(code, 0, "{output}");
    assert!(
        output.contains("guilty: ") && output.contains("false answer") && output.contains(&id("liar")),
        "{output}"
    );
}

/// A mixture with one row: false logits, those of an older state, and silence, while somebody asks.
#[test]
fn call_5_a_drill_bans_who_answers_falsely_and_nobody_else_and_the_run_replays() {
    let settings = r#"
name = "calls"
[model]
family = "mixture"
width = 16
layers = 1
heads = 2
key_value_heads = 1
hidden = 12
sequence = 32
[experts]
columns = 4
active = 2
shared_hidden = 8
[training]
leaves = 12
leaf_windows = 1
[optimiser]
warmup = 3
"#;
    let run = Run::packed(programs!(), settings, None);
    let (config, text, out) = (run.at("run.toml"), run.at("text"), run.at("drill"));
    let asked =
        ["drill", "--config", &config, "--text", &text, "--out", &out, "--nodes", "6", "--verifiers", "1"];
    let attacks = ["--rounds", "300", "--from", "4", "--attack", "misanswer", "old-answer", "no-answer"];
    let (code, output) = run.muster(&[&asked[..], &attacks].concat());
    assert!(code == 0 && output.contains("replayed to the last bit"), "{output}");
    let report = fs::read_to_string(run.path("drill/report.json")).expect("a report");
    let report: serde_json::Value = serde_json::from_str(&report).expect("JSON");
    let bans = report["bans"].as_array().expect("bans");
    assert_eq!(bans.len(), 2, "{output}");
    assert!(bans.iter().all(|ban| ban["finding"] == "false answer"), "{output}");
}
