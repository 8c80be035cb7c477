//! A run in which a node, a verifier and a cheat compute on a device of OpenCL, and everybody else on the processor: in equal
//! bits.
//!
//! It plays where a device is found. One that is no graphics processor will do: `sh tests/opencl.sh` installs such a one.
#![allow(clippy::print_stderr)]

use std::fs;
use std::process::Command;

use e2e::processes::Run;
use e2e::programs;
use muster_compute::{devices, missing_devices};

/// Four nodes with two leaves each; every contribution is audited. A device that must compile its kernels first has time.
const SETTINGS: &str = r#"
name = "opencl"
[model]
width = 16
layers = 1
heads = 2
key_value_heads = 1
hidden = 24
sequence = 32
[training]
rounds = 20
leaves = 8
leaf_windows = 1
[optimiser]
warmup = 3
[audit]
share = 1.0
leaves = 2
final_rounds = 2
[timers]
audit = 10.0
commit = 20.0
[retention]
contributions = 32
states = 32
[admission]
start_nodes = 4
start_verifiers = 2
"#;

#[test]
fn a_device_and_the_processor_hold_one_state_and_ban_who_cheats() {
    let Some(device) = devices().first() else {
        eprintln!("not played: {}", missing_devices());
        return;
    };
    let run = Run::packed(programs!(), SETTINGS, None);
    let mut steward = run.host_with(&["--device", "cpu"]);
    let (nodes, verifiers) = (run.invite("node", 4), run.invite("verifier", 2));
    let (on_device, on_processor) = (["--device", "gpu:0"], ["--device", "cpu"]);
    let mut honest = [
        run.join("first", &nodes, &on_processor),
        run.join("second", &nodes, &on_processor),
        run.join("device", &nodes, &on_device),
    ];
    let mut cheat = run.attack_with("cheat", ("flip", 4), &nodes, &on_device);
    let mut watches = [
        run.watch_with("watch-device", &verifiers, &on_device),
        run.watch_with("watch-processor", &verifiers, &on_processor),
    ];
    for process in honest.iter_mut().chain(&mut watches) {
        assert_eq!(process.wait(), 0, "{}", process.log());
    }
    assert_eq!(steward.wait(), 0, "{}", steward.log());
    assert_eq!(cheat.wait(), 1, "{}", cheat.log());

    let says = device.says();
    for process in [&honest[2], &watches[0], &cheat] {
        let computed = format!("leaves are computed by {says}, as --device gpu:0 says");
        assert!(process.log().contains(&computed), "{computed}: {}", process.log());
    }
    assert!(watches[0].log().contains("; then by kernels "), "{}", watches[0].log());

    let root = run.root();
    for member in ["first", "second", "device", "watch-device", "watch-processor"] {
        assert_eq!(run.result(member)["final_state_root"], root.as_str(), "{member}");
    }
    let bans = run.events("ban");
    let [ban] = &bans[..] else { panic!("the attacker, and nobody else: {bans:?}") };
    let banned = ban["member"].as_str().expect("an id");
    assert!(cheat.log().contains(&banned[..16]), "{ban}: {}", cheat.log());

    let text = |device| {
        let (code, output) =
            run.muster(&["generate", &run.at("run"), "--prompt", "fn", "--tokens", "20", "--device", device]);
        assert_eq!(code, 0, "{device}: {output}");
        output
    };
    assert_eq!(text("cpu"), text("gpu:0"));
    for device in ["cpu", "gpu:0"] {
        let (code, output) = run.verifier(&["replay", &run.at("run"), "--device", device]);
        assert_eq!(code, 0, "{device}: {output}");
        assert!(output.contains(&root[..16]), "{device}: {output}");
        assert_eq!(output.contains(&says), device != "cpu", "{output}");
    }
}

/// OpenCL's loader finds one driver, which crashes the process that loads it.
#[test]
fn a_driver_that_crashes_takes_nobody_along() {
    let home = tempfile::tempdir().expect("a temporary directory");
    let at = |name: &str| home.path().join(name);
    let code = "__attribute__((constructor)) void loaded(void) { __builtin_trap(); }\n";
    fs::write(at("driver.c"), code).expect("a file");
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-o"]).args([at("driver.so"), at("driver.c")]);
    assert!(compiler.status().expect("a C compiler, which the build needed").success());
    fs::create_dir(at("vendors")).expect("a folder");
    let name = format!("{}\n", at("driver.so").display());
    fs::write(at("vendors/driver.icd"), name).expect("a file");
    let doctor = |more: &[&str]| {
        let mut doctor = Command::new(programs!().muster);
        let output = doctor.arg("doctor").args(more).env("OCL_ICD_VENDORS", at("vendors")).output();
        let output = output.expect("a program");
        assert!(output.status.code().is_some(), "{output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let said = doctor(&[]);
    assert!(said.contains("arithmetic  good  kernels "), "{said}");
    let loaded = said.contains("their drivers cannot be used (a process that loaded them ended with signal");
    // Elsewhere no loader is there, or it is one that reads no such variable.
    assert!(loaded || devices().is_empty() || said.contains("gpu:0"), "{said}");
    let said = doctor(&["--device", "gpu:0"]);
    assert!(said.contains("arithmetic  CARE  cannot compute this run: ") || !loaded, "{said}");
}

#[test]
fn a_device_that_is_not_there_is_said_in_one_sentence() {
    let run = Run::packed(programs!(), SETTINGS, None);
    for words in [&["bench", "--device", "gpu:99"][..], &["host", &run.at("run"), "--device", "gpu:99"]] {
        let (code, output) = run.muster(words);
        assert_eq!(code, 3, "{words:?}: {output}");
        let said = output.lines().last().unwrap_or_default();
        assert!(said.contains("device") && said.contains("gpu:") != devices().is_empty(), "{output}");
    }
    let (code, output) = run.muster(&["bench", "--device", "tpu"]);
    assert!(code == 2 && output.contains("gpu:N"), "{output}");
}
