//! Where a round's time goes, and what it sends: four honest nodes on loopback, 1 M and 10 M parameters.
//!
//! `cargo run --release -p e2e --bin bench-round`. Every process is this program again, as `muster`.

use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};

use muster_replica::Phase;
use serde_json::Value;

const NODES: usize = 4;

struct Case {
    name: &'static str,
    settings: &'static str,
}

const CASES: [Case; 2] = [
    Case {
        name: "1 M parameters, 3 leaves of 1,024 tokens a node",
        settings: "[model]\nwidth = 128\nlayers = 5\nheads = 4\nkey_value_heads = 4\nhidden = 344\nsequence = 256\n\
                   [training]\nrounds = 8\nleaves = 12\nleaf_windows = 4\n",
    },
    Case {
        name: "10 M parameters, 1 leaf of 1,024 tokens a node",
        settings: "[model]\nwidth = 384\nlayers = 6\nheads = 6\nkey_value_heads = 6\nhidden = 1024\nsequence = 256\n\
                   [training]\nrounds = 6\nleaves = 4\nleaf_windows = 4\n",
    },
];

const COMMON: &str = "[audit]\nshare = 0.0\nfinal_rounds = 0\n[admission]\nstart_nodes = 4\nstart_verifiers = 0\n\
                      [retention]\ncontributions = 4\nstates = 4\n[timers]\ncommit = 120.0\n";

fn main() -> ExitCode {
    if std::env::args_os().len() > 1 {
        return muster_node::cli::run(std::env::args_os()).into();
    }
    for case in &CASES {
        measure(case);
    }
    ExitCode::SUCCESS
}

fn muster(arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

#[allow(clippy::print_stdout)]
fn measure(case: &Case) {
    let home = tempfile::tempdir().expect("a temporary directory");
    let at = |name: &str| home.path().join(name).to_string_lossy().into_owned();
    let text: String = (0..400_000u64).map(|n| format!("{} ", n.wrapping_mul(0x9e37_79b9) >> 20)).collect();
    std::fs::write(at("text"), text).expect("a file");
    std::fs::write(at("run.toml"), format!("{}{COMMON}", case.settings)).expect("a file");
    let good = |arguments: &[&str]| {
        assert!(muster(arguments).status().expect("a program").success(), "{arguments:?}")
    };
    good(&["data", "pack", "--text", &at("text"), "--out", &at("corpus")]);
    good(&["run", "new", "--config", &at("run.toml"), "--data", &at("corpus"), "--out", &at("run")]);
    let mut host = muster(&["host", &at("run"), "--exit-when-done", "--listen", "127.0.0.1:0"])
        .spawn()
        .expect("a program");
    while !Path::new(&at("run/address")).exists() {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let invitation =
        muster(&["invite", &at("run"), "--role", "node", "--uses", "4"]).stdout(Stdio::piped()).output();
    let invitation = String::from_utf8(invitation.expect("a program").stdout).expect("text");
    let names: Vec<String> = (0..NODES).map(|node| at(&format!("node{node}"))).collect();
    let join = |name: &String| {
        muster(&["join", invitation.trim(), "--data-dir", name, "--listen", "127.0.0.1:0"]).spawn()
    };
    let mut nodes: Vec<Child> = names.iter().map(|name| join(name).expect("a program")).collect();
    for node in &mut nodes {
        assert!(node.wait().expect("a child").success(), "a node failed");
    }
    assert!(host.wait().expect("a child").success(), "the steward failed");
    report(case, &names, Path::new(&at("run")));
}

#[allow(clippy::print_stdout)]
fn report(case: &Case, names: &[String], run: &Path) {
    let read = |path: &Path| std::fs::read_to_string(path).expect("a result");
    let results: Vec<Value> = names
        .iter()
        .map(|name| serde_json::from_str(&read(&Path::new(name).join("result.json"))).expect("JSON"))
        .collect();
    let events: Vec<Value> =
        read(&run.join("log.jsonl")).lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let seconds: Vec<f64> = events
        .iter()
        .filter(|event| event["event"] == "round")
        .filter_map(|event| event["seconds"].as_f64())
        .collect();
    let rounds = seconds.len() as f64;
    let wall = seconds.iter().sum::<f64>() / rounds;
    let manifest: muster_core::manifest::Manifest =
        muster_core::codec::decode(&std::fs::read(run.join("manifest.bin")).expect("a manifest"))
            .expect("canonical");
    let parameters = manifest.model.parameters() as f64;
    println!("{} (d = {parameters}), {rounds} rounds of {wall:.3} s; per node and round:", case.name);
    let mut rest = wall;
    let mut security = 0.0;
    for phase in Phase::ALL {
        let spent: f64 = results.iter().filter_map(|result| result["seconds"][phase.word()].as_f64()).sum();
        let spent = spent / rounds / NODES as f64;
        rest -= spent;
        if phase != Phase::Gradient {
            security += spent;
        }
        println!("  {:12} {:9.4} s {:6.2} %", phase.word(), spent, 100.0 * spent / wall);
    }
    println!("  {:12} {rest:9.4} s {:6.2} %", "waiting", 100.0 * rest / wall);
    println!("  all but gradient and waiting: {:.2} % (goal: at most 15 %)", 100.0 * security / wall);
    let sent: f64 = results.iter().filter_map(|result| result["bytes_sent"].as_f64()).sum::<f64>()
        / rounds
        / NODES as f64;
    println!("  sent: {:.2} MB, {:.2} times 4·d bytes\n", sent / 1e6, sent / (4.0 * parameters));
}
