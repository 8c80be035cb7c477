//! Text by a model that others hold, as real processes: who is silent is left out, who lies is banned.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use e2e::processes::{Process, Run, evidence_in};
use e2e::programs;
use e2e::settings::Settings;
use muster_core::codec::decode;
use muster_core::ids::Row;
use muster_core::manifest::Manifest;
use muster_store::dataset::{Routing, open_router};

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
    // More rounds than there is time for: a run that is over is asked no more. Rounds are short, and who is silent is waited for.
    let settings =
        Settings { rounds: 5000, nodes: 4, verifiers: 0, contributions: 64, ..Settings::default() };
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

    // The liar may have been drawn by now.
    let mut said = output;
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
    assert_banned_alone(&run, &id("liar"));

    // The steward has what the ban rests on, and everything that re-executing it takes.
    let evidence = evidence_in(&run.path("run"));
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

/// Rows of the run with several of them.
const ROWS: u16 = 3;
/// Its nodes: each row has three holders, one of them honest at least.
const NODES: usize = 9;
/// Bytes of a prompt: as many as the router reads, so that it sees nothing else of the text while the model's window
/// has not moved beyond it.
const PROMPT: usize = 64;
/// Tokens of a text, for all of which the prompt ranks the rows.
const WINDOW: usize = 32;

fn rows_of_experts() -> String {
    format!(
        "name = \"calls\"\n[model]\nfamily = \"mixture\"\nwidth = 16\nlayers = 1\nheads = 2\nkey_value_heads = 1\n\
         hidden = 12\nsequence = {WINDOW}\n[experts]\ncolumns = 4\nactive = 2\nshared_hidden = 8\nrows = {ROWS}\n\
         branch = 0\nlag = 64\n[training]\nrounds = 5000\nleaves = {}\nleaf_windows = 1\n[optimiser]\nwarmup = 3\n\
         [admission]\nstart_nodes = {NODES}\nstart_verifiers = 0\n\
         [retention]\nstates = 64\ncontributions = 64\n",
        2 * NODES
    )
}

/// The row that a volunteer was told of.
fn row_of(member: &Process) -> Row {
    member.wait_for_log("your row of experts is row ");
    let log = member.log();
    let named = log.split("your row of experts is row ").nth(1).expect("a row");
    Row(named.split(' ').next().expect("a number").parse().expect("a number"))
}

fn router(run: &Run) -> Routing {
    let manifest: Manifest =
        decode(&fs::read(run.path("run/manifest.bin")).expect("a manifest")).expect("a manifest");
    open_router(&run.path("run/data"), manifest.data.router.as_ref().expect("a router")).expect("a router")
}

/// A piece of the training text for which these rows are among the two best.
fn prompt_for(run: &Run, router: &Routing, rows: [Row; 2]) -> String {
    let text = fs::read(run.path("text/a.txt")).expect("the text");
    let fits = |piece: &&[u8]| {
        let tokens: Vec<u32> = piece.iter().map(|byte| u32::from(*byte)).collect();
        rows.iter().all(|row| router.ranked(&tokens)[..2].contains(row))
    };
    let piece = text.windows(PROMPT).find(fits).expect("a text that suits two given rows");
    String::from_utf8(piece.to_vec()).expect("words")
}

/// CALL-10 to CALL-14 where each node holds one row: the two best rows are asked, of their holders only; who is silent is
/// left out, who lies is banned, and the text goes on with the rows that answer.
#[test]
fn call_13_holders_of_the_two_best_rows_are_asked_and_call_14_the_rows_that_answer_are_mixed() {
    let run = Run::routed(programs!(), &rows_of_experts(), None, ROWS);
    let mut steward = run.host_with(&["--keep-aggregates"]);
    let nodes = run.invite("node", NODES as u32);
    let honest: Vec<Process> =
        (0..NODES - 2).map(|number| run.join(&format!("node{number}"), &nodes, &[])).collect();
    let mut liar = run.attack("liar", "misanswer", 1, &nodes);
    let silent = run.attack("silent", "no-answer", 1, &nodes);
    run.wait_round(2);
    let id = |name: &str| run.good(&["id", "--data-dir", &run.at(name)]).trim().to_owned();
    let said = run.good(&["members", &run.at("run")]);
    assert_eq!(said.matches("holds row ").count(), NODES, "{said}");
    let lines = honest[0].log();
    assert!(lines.contains("of the model's") && lines.contains("nothing has to be fetched"), "{lines}");

    let router = router(&run);
    let rows = [row_of(&liar), row_of(&silent)];
    let prompt = prompt_for(&run, &router, rows);
    let ask = |folder: &str, tokens: usize| {
        let tokens = tokens.to_string();
        let began = Instant::now();
        let (code, output) = run.muster(&[
            "generate",
            &run.at(folder),
            "--prompt",
            &prompt,
            "--ask",
            "2",
            "--tokens",
            &tokens,
        ]);
        assert!(code == 0 && output.starts_with(&prompt), "{output}");
        (output, began.elapsed())
    };
    let (mut said, elapsed) = ask("run", 1);
    assert!(elapsed < Duration::from_secs(10), "{elapsed:?}: {said}");
    let tokens: Vec<u32> = prompt.bytes().map(u32::from).collect();
    let [best, second, _] = router.ranked(&tokens)[..] else { panic!("three rows") };
    let asked = format!("asking holders of the rows that suit the text best: {best}, {second}");
    assert!(said.contains(&asked), "{said}");
    for _ in 0..2 * TEXTS {
        said += &ask("run", WINDOW).0;
        if said.contains("re-executes it") {
            break;
        }
    }
    let left_out = format!("{} has not answered in 2 s: it is asked no more", &id("silent")[..16]);
    assert!(said.contains(&left_out) && said.contains("re-executes it"), "{said}");
    assert_eq!(liar.wait(), 1, "{}", liar.log());
    assert_banned_alone(&run, &id("liar"));

    // A row without an answer does not hold the text up: the other one writes it.
    let of_first: Vec<&Process> =
        honest.iter().chain([&silent]).filter(|member| row_of(member) == rows[0]).collect();
    of_first.iter().for_each(|member| member.suspend());
    let (output, elapsed) = ask("node0", 1);
    of_first.iter().for_each(|member| member.resume());
    assert!(elapsed < Duration::from_secs(10), "{elapsed:?}: {output}");

    without_the_router(&run, &prompt);
    steward.interrupt();
    steward.wait();
    assert_guilty_alone(&run, &id("liar"));
}

/// What the caller wrote down, of a liar and perhaps of whom it contradicts: the liar alone is guilty.
fn assert_guilty_alone(run: &Run, liar: &str) {
    let kept = evidence_in(&run.path("run"));
    let checked: Vec<(i32, String)> =
        kept.iter().map(|file| run.verifier(&["check", &file.to_string_lossy()])).collect();
    let guilty: Vec<&(i32, String)> =
        checked.iter().filter(|(_, output)| output.contains("false answer")).collect();
    // More than one where the liar was asked about two rows.
    assert!(!guilty.is_empty(), "{checked:?}");
    let convicts =
        |(code, output): &&(i32, String)| *code == 0 && output.contains(&format!("guilty: {liar}"));
    assert!(guilty.iter().all(convicts), "{checked:?}");
}

/// The steward has banned the liar for a false answer, and nobody else.
fn assert_banned_alone(run: &Run, liar: &str) {
    let bans = run.events("ban");
    assert_eq!(bans.len(), 1, "{bans:?}");
    assert_eq!((bans[0]["member"].as_str(), bans[0]["finding"].as_str()), (Some(liar), Some("false answer")));
}

/// A folder without the run's router: the file is named, and what to do.
fn without_the_router(run: &Run, prompt: &str) {
    let file = run.path("node0/data/router.bin");
    let mut bytes = fs::read(&file).expect("a router");
    bytes[0] ^= 1;
    fs::write(&file, bytes).expect("another router");
    for wrong in ["is damaged", "does not exist"] {
        let (code, output) = run.muster(&["generate", &run.at("node0"), "--prompt", prompt, "--ask", "2"]);
        assert_ne!(code, 0, "{output}");
        assert!(output.contains(&*file.to_string_lossy()) && output.contains(wrong), "{output}");
        assert!(output.contains("copy router.bin from data/ of the run's folder"), "{output}");
        let _ = fs::remove_file(&file);
    }
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
    let attacks = ["--rounds", "160", "--from", "4", "--attack", "misanswer", "old-answer", "no-answer"];
    let (code, output) = run.muster(&[&asked[..], &attacks].concat());
    assert!(code == 0 && output.contains("replayed to the last bit"), "{output}");
    let report = fs::read_to_string(run.path("drill/report.json")).expect("a report");
    let report: serde_json::Value = serde_json::from_str(&report).expect("JSON");
    let bans = report["bans"].as_array().expect("bans");
    assert_eq!(bans.len(), 2, "{output}");
    assert!(bans.iter().all(|ban| ban["finding"] == "false answer"), "{output}");
}
