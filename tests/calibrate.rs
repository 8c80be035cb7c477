//! A draft is calibrated, and the run that follows has the tolerances found.

use e2e::processes::Run;
use e2e::programs;
use e2e::settings::Settings;

fn draft() -> Run {
    Run::packed(
        programs!(),
        &Settings::default().to_string().replace("leaf_windows = 1", "leaf_windows = 2"),
        None,
    )
}

#[cfg(not(feature = "tch"))]
#[test]
fn without_libtorch_one_sentence_says_what_to_build() {
    let run = draft();
    let (code, output) = run.verifier(&["calibrate", &run.at("run"), "--profile", "bf16"]);
    assert_eq!(code, 3, "{output}");
    assert!(output.contains("--features tch") && output.trim().lines().count() == 1, "{output}");
}

/// Calibrates on the processor alone, wherever the test runs, and gives what was said and written.
#[cfg(feature = "tch")]
fn calibrated(run: &Run, profile: &str, flags: &[&str]) -> (String, String) {
    let file = run.at(&format!("{profile}.toml"));
    let arguments = [
        "calibrate",
        &run.at("run"),
        "--profile",
        profile,
        "--device",
        "cpu",
        "--threads",
        "2",
        "--rounds",
        "8",
        "--leaves",
        "6",
        "--out",
        &file,
    ];
    let (code, output) = run.verifier(&[&arguments[..], flags].concat());
    assert_eq!(code, 0, "{output}");
    for words in [
        "calibrates over 8 of the run's 12 rounds",
        "which takes about",
        ", 0 wrong;",
        "18 leaves",
        "18 new leaves",
    ] {
        assert!(output.contains(words), "{words}: {output}");
    }
    (output, std::fs::read_to_string(file).expect("the file"))
}

#[cfg(feature = "tch")]
fn calibrate(run: &Run, profile: &str) -> String {
    calibrated(run, profile, &[]).1
}

/// The tolerances of each group, and of the loss.
#[cfg(feature = "tch")]
fn bounds(run: &Run, name: &str) -> (Vec<f32>, f32) {
    let bytes = std::fs::read(run.path(name).join("manifest.bin")).expect("a manifest");
    let manifest: muster_core::manifest::Manifest = muster_core::codec::decode(&bytes).expect("a manifest");
    let groups = manifest.tolerance.groups.iter().map(|bound| bound.value()).collect();
    (groups, manifest.tolerance.loss.value())
}

/// More than twice the rounds that were measured.
#[cfg(feature = "tch")]
fn a_longer_run_needs_to_be_insisted_on(run: &Run, profile: &str) {
    let settings = std::fs::read_to_string(run.path("run.toml")).expect("settings");
    std::fs::write(run.path("longer.toml"), settings.replace("rounds = 12", "rounds = 17")).expect("a file");
    let (from, corpus, to) = (run.at("longer.toml"), run.at("corpus"), run.at(&format!("{profile}-longer")));
    let file = run.at(&format!("{profile}.toml"));
    let words = ["run", "new", "--config", &from, "--data", &corpus, "--calibration", &file, "--out", &to];
    let (code, output) = run.muster(&words);
    assert!(code == 2 && output.contains("--beyond-calibration"), "{code} {output}");
    run.good(&[&words[..], &["--beyond-calibration"]].concat());
}

#[cfg(feature = "tch")]
#[test]
fn a_run_takes_what_was_measured() {
    let run = draft();
    let config = run.at("run.toml");
    let found = ["f32", "bf16"].map(|profile| {
        let text = calibrate(&run, profile);
        for words in [
            "cpu, 2 threads, windows apart",
            "With confidence 95 %",
            "Totals",
            "before each of the rounds 0, 4, 8",
            "calibrated_rounds = 8",
        ] {
            assert!(text.contains(words), "{words}: {text}");
        }
        let file = run.at(&format!("{profile}.toml"));
        run.good(&[
            "run",
            "new",
            "--config",
            &config,
            "--data",
            &run.at("corpus"),
            "--calibration",
            &file,
            "--out",
            &run.at(profile),
        ]);
        a_longer_run_needs_to_be_insisted_on(&run, profile);
        // The section pasted into the settings makes the same.
        let pasted = run.path("pasted.toml");
        std::fs::write(&pasted, std::fs::read_to_string(&config).expect("settings") + &text).expect("a file");
        let out = format!("{profile}-pasted");
        run.good(&[
            "run",
            "new",
            "--config",
            &pasted.to_string_lossy(),
            "--data",
            &run.at("corpus"),
            "--out",
            &run.at(&out),
        ]);
        assert_eq!(bounds(&run, profile), bounds(&run, &out));
        bounds(&run, profile)
    });
    let [(f32_groups, f32_loss), (bf16_groups, bf16_loss)] = found;
    assert!(f32_groups.iter().all(|bound| (1e-8..1e-3).contains(bound)), "{f32_groups:?}");
    assert!(bf16_groups.iter().all(|bound| (1e-3..=0.125).contains(bound)), "{bf16_groups:?}");
    assert!(f32_loss < bf16_loss);
}

#[cfg(feature = "tch")]
#[test]
fn a_calibration_repeats_itself() {
    let run = draft();
    let first = calibrate(&run, "bf16");
    assert_eq!(calibrate(&run, "bf16"), first);
}

#[cfg(feature = "tch")]
#[test]
fn among_members_tolerances_are_smaller_and_one_kind_of_device_is_warned_of() {
    let run = draft();
    let largest = |text: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix("tolerance = [")).expect("tolerances");
        line.trim_end_matches(']')
            .split(", ")
            .map(|bound| bound.parse().expect("a number"))
            .fold(0.0, f64::max)
    };
    let (said, beside) = calibrated(&run, "bf16", &[]);
    assert!(beside.contains("#   exact\n") && !said.contains("another kind of device"), "{said}{beside}");
    let (said, among) = calibrated(&run, "bf16", &["--members-only"]);
    assert!(
        !among.contains("#   exact\n") && among.contains("Only what members may use was measured"),
        "{among}"
    );
    assert!(said.contains("all machines here are on cpu: a member on another kind of device"), "{said}");
    assert!(largest(&among) < largest(&beside) / 2.0, "{among}{beside}");
    // In f32 members may use them.
    let (said, text) = calibrated(&run, "f32", &["--members-only"]);
    assert!(text.contains("#   exact\n") && !said.contains("another kind of device"), "{said}{text}");
}
