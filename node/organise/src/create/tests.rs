use muster_core::codec::decode;
use muster_core::manifest::Profile;
use muster_replica::exit::Exit;
use muster_store::dataset::RouterSize;

use super::*;
use crate::config::preset::Preset;
use crate::pack::{PackOptions, pack};

fn corpus(directory: &Path) -> PathBuf {
    let (text, out) = (directory.join("text.txt"), directory.join("corpus"));
    fs::write(&text, "All happy families are alike. ".repeat(200)).unwrap();
    let options = PackOptions { text: vec![text], out: out.clone(), ..PackOptions::default() };
    pack(&options, &mut |_, _| ()).unwrap();
    out
}

#[test]
fn a_corpus_brings_its_router_into_the_run() {
    let directory = tempfile::tempdir().unwrap();
    let (text, data) = (directory.path().join("text.txt"), directory.path().join("corpus"));
    fs::write(&text, "All happy families are alike. ".repeat(200)).unwrap();
    let router = Some(RouterSize { rows: 3, tokens: 8 });
    let options = PackOptions { text: vec![text], router, out: data.clone(), ..PackOptions::default() };
    let packed = pack(&options, &mut |_, _| ()).unwrap();
    let (config, out) = (directory.path().join("run.toml"), directory.path().join("run"));
    fs::write(&config, "[model]\nfamily = \"mixture\"\n[experts]\nrows = 3\n").unwrap();
    let run = CreateOptions { config, data, calibration: None, init: None, organiser_key: None, out };
    let created = create(&run).unwrap();
    assert_eq!(created.manifest.data, packed.data);
    let corpus = Dataset::open(&run.out.join(DATA), &packed.data).unwrap();
    assert_eq!(corpus.routing().unwrap().router().rows, 3);
}

#[test]
fn a_run_is_made_with_a_commented_file() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let options = CreateOptions {
        config: at("run.toml"),
        data: corpus(directory.path()),
        calibration: None,
        init: None,
        organiser_key: None,
        out: at("myrun"),
    };
    let created = create(&options).unwrap();
    assert!(created.wrote_config);
    assert_eq!(fs::read_to_string(at("run.toml")).unwrap(), TEMPLATE);
    let manifest: Manifest = decode(&fs::read(at("myrun/manifest.bin")).unwrap()).unwrap();
    assert_eq!(manifest.run(), created.run);
    assert_ne!(manifest.organiser, manifest.steward);
    let refused = create(&options).unwrap_err();
    assert_eq!(refused.exit, Exit::Environment);
    assert!(refused.message.contains("already holds something"), "{refused}");
    let second = create(&CreateOptions { out: at("other"), ..options }).unwrap();
    assert!(!second.wrote_config);
    assert_ne!(second.run, created.run, "the nonce makes runs differ");
}

#[test]
fn a_preset_is_written_once_and_never_over_other_settings() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let data = corpus(directory.path());
    assert_eq!(Preset::Tiny.write(&at("run.toml"), &data), Ok(true));
    assert_eq!(Preset::Tiny.write(&at("run.toml"), &data), Ok(false));
    let refused = Preset::Small.write(&at("run.toml"), &data).unwrap_err();
    assert!(refused.exit == Exit::Usage && refused.message.contains("--preset small"), "{refused}");
    let (config, out) = (at("run.toml"), at("run"));
    let options = CreateOptions { config, data, calibration: None, init: None, organiser_key: None, out };
    assert_eq!(create(&options).unwrap().manifest.admission.start_nodes, 2);
    assert!(fs::read_to_string(at("run/run.toml")).unwrap().contains("# The preset \"tiny\""));
}

#[cfg(unix)]
#[test]
fn the_organisers_key_lives_elsewhere() {
    use std::os::unix::fs::PermissionsExt;

    use crate::invite::{InviteOptions, invite};
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let options = CreateOptions {
        config: at("run.toml"),
        data: corpus(directory.path()),
        calibration: None,
        init: None,
        organiser_key: Some(at("organiser.key")),
        out: at("myrun"),
    };
    let made = create(&options).unwrap().manifest;
    assert!(!at("myrun/organiser.key").exists() && at("myrun/identity.key").exists());
    assert_eq!(fs::metadata(at("organiser.key")).unwrap().permissions().mode() & 0o777, 0o600);
    let again = create(&CreateOptions { out: at("second"), ..options }).unwrap().manifest;
    assert_eq!(again.organiser, made.organiser, "an organiser has one key for several runs");
    let by = |organiser_key: Option<&str>| {
        let (role, addresses) = (Some(muster_core::messages::enrol::Role::Node), vec!["host:1".into()]);
        let (folder, organiser_key) = (at("myrun"), organiser_key.map(at));
        let (founder, uses, valid_for) = (false, 1, 60);
        invite(&InviteOptions { folder, role, founder, uses, valid_for, addresses, organiser_key })
    };
    let ticket = by(Some("organiser.key")).unwrap();
    let invited = ticket.pass.unwrap().verify(made.run()).unwrap();
    assert_eq!(invited.author(), made.organiser);
    let refused = |key: Option<&str>, why: &str| {
        let failure = by(key).unwrap_err();
        assert!(failure.exit == Exit::Environment && failure.message.contains(why), "{failure}");
    };
    refused(None, "--organiser-key FILE");
    refused(Some("myrun/identity.key"), "is not the key of this run's organiser");
    fs::set_permissions(at("organiser.key"), PermissionsExt::from_mode(0o644)).unwrap();
    refused(Some("organiser.key"), "chmod 600");
}

#[cfg(target_os = "linux")]
#[test]
fn a_run_beyond_this_machine_is_made_for_others_only() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).display().to_string();
    let settings = "[model]\nwidth = 8192\nlayers = 10\nheads = 64\nkey_value_heads = 8\nhidden = 22016\n\
                    [training]\nrounds = 16000\n";
    fs::write(at("run.toml"), settings).unwrap();
    let options = CreateOptions {
        config: at("run.toml").into(),
        data: corpus(directory.path()),
        calibration: None,
        init: None,
        organiser_key: None,
        out: at("myrun").into(),
    };
    let refused = create(&options).unwrap_err();
    assert_eq!(refused.exit, Exit::Usage);
    for word in ["run.toml: this run takes about", "by model.*", "has ", "--elsewhere"] {
        assert!(refused.message.contains(word), "{word}: {refused}");
    }
    assert!(!options.out.exists());
    assert!(create_within(&options, None).is_ok(), "where nobody asks for the memory");
}

#[test]
fn a_calibration_is_taken_and_kept() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    fs::write(at("run.toml"), TEMPLATE).unwrap();
    fs::write(at("found.toml"), "# measured\n\n[arithmetic]\nprofile = \"bf16\"\ntolerance = [1e-2, 2e-2, 3e-2, 4e-2, 5e-2, 6e-2, 7e-2, 8e-2, 9e-2]\nloss_tolerance = 1e-3\ncalibrated_rounds = 75\n").unwrap();
    let options = CreateOptions {
        config: at("run.toml"),
        data: corpus(directory.path()),
        calibration: Some(CalibrationFile { path: at("found.toml"), beyond: false }),
        init: None,
        organiser_key: None,
        out: at("myrun"),
    };
    let created = create(&options).unwrap();
    assert_eq!(created.manifest.profile, Profile::Bf16);
    let bounds: Vec<f32> = created.manifest.tolerance.groups.iter().map(|bound| bound.value()).collect();
    assert_eq!(bounds, [1e-2, 2e-2, 3e-2, 4e-2, 5e-2, 6e-2, 7e-2, 8e-2, 9e-2]);
    // The folder's settings make the same run, and so does the section pasted into a file.
    let again = CreateOptions {
        calibration: None,
        config: at("myrun/run.toml"),
        out: at("again"),
        ..options.clone()
    };
    let again = create(&again).unwrap();
    assert_eq!(
        (again.manifest.tolerance, again.manifest.model),
        (created.manifest.tolerance, created.manifest.model)
    );
    assert!(fs::read_to_string(at("myrun/run.toml")).unwrap().contains("# measured"));
    assert_eq!(fs::read_to_string(at("run.toml")).unwrap(), TEMPLATE);
}

#[test]
fn a_calibration_of_another_model_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let options = CreateOptions {
        config: at("run.toml"),
        data: corpus(directory.path()),
        calibration: Some(CalibrationFile { path: at("found.toml"), beyond: false }),
        init: None,
        organiser_key: None,
        out: at("myrun"),
    };
    let refused = |text: &str, why: &str| {
        fs::write(at("found.toml"), text).unwrap();
        let failure = create(&options).unwrap_err();
        assert!(failure.message.contains("found.toml") && failure.message.contains(why), "{failure}");
        assert!(!at("myrun").exists());
    };
    let section = "[arithmetic]\nprofile = \"f32\"\nloss_tolerance = 1e-6\ncalibrated_rounds = 75\n";
    refused(&format!("{section}tolerance = [1e-6]\n"), "calibrate this one");
    refused(&format!("{section}[model]\nwidth = 8\n"), "model");
    refused("profile = 3", "profile");
    // MANIFEST-14: no tolerance fits a mixture.
    fs::write(at("run.toml"), "[model]\nfamily = \"mixture\"\n").unwrap();
    refused(section, "a mixture of experts is trained in \"exact\"");
    fs::remove_file(at("found.toml")).unwrap();
    assert!(create(&options).unwrap_err().message.contains("cannot be read"));
}

#[test]
fn a_run_longer_than_its_calibration_is_refused_unless_somebody_insists() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let section = |measured: &str| {
        let bounds = [1e-2; 9].map(|bound: f32| bound.to_string()).join(", ");
        format!(
            "[arithmetic]\nprofile = \"bf16\"\ntolerance = [{bounds}]\nloss_tolerance = 1e-3\n{measured}\n"
        )
    };
    let data = corpus(directory.path());
    let options = |beyond| CreateOptions {
        config: at("run.toml"),
        data: data.clone(),
        calibration: Some(CalibrationFile { path: at("found.toml"), beyond }),
        init: None,
        organiser_key: None,
        out: at("myrun"),
    };
    fs::write(at("run.toml"), "[training]\nrounds = 151\n").unwrap();
    for (measured, why) in [
        ("calibrated_rounds = 75", "Train 150 rounds at most, or calibrate with --rounds 76 or more"),
        ("", "over how many rounds"),
    ] {
        fs::write(at("found.toml"), section(measured)).unwrap();
        let failure = create(&options(false)).unwrap_err();
        assert_eq!(failure.exit, Exit::Usage);
        for words in ["found.toml", why, "--beyond-calibration"] {
            assert!(failure.message.contains(words), "{failure}");
        }
    }
    // As a part of the settings it says the same; without a word of the rounds its author answers for it.
    let pasted = |measured: &str| {
        fs::write(at("run.toml"), format!("{}[training]\nrounds = 151\n", section(measured))).unwrap();
        create(&CreateOptions { calibration: None, ..options(false) })
    };
    let failure = pasted("calibrated_rounds = 75").unwrap_err();
    assert!(
        failure.message.contains("run.toml") && failure.message.contains("calibrated_rounds"),
        "{failure}"
    );
    assert!(!at("myrun").exists());
    fs::write(at("found.toml"), section("calibrated_rounds = 75")).unwrap();
    assert_eq!(create(&options(true)).unwrap().manifest.training.rounds, 151);
    fs::remove_dir_all(at("myrun")).unwrap();
    pasted("calibrated_rounds = 76").unwrap();
    fs::remove_dir_all(at("myrun")).unwrap();
    pasted("").unwrap();
}

#[test]
fn wrong_settings_make_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    fs::write(at("run.toml"), "[model]\nheads = 3\n").unwrap();
    let options = CreateOptions {
        config: at("run.toml"),
        data: corpus(directory.path()),
        calibration: None,
        init: None,
        organiser_key: None,
        out: at("myrun"),
    };
    let failure = create(&options).unwrap_err();
    assert!(failure.message.contains("run.toml: model.heads must divide model.width"), "{failure}");
    assert!(!at("myrun").exists());
    let failure = create(&CreateOptions { data: at("nothing"), ..options }).unwrap_err();
    assert!(failure.message.contains("muster data pack"), "{failure}");
}

#[test]
fn a_given_model_that_memory_does_not_hold_names_its_windows() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    fs::create_dir(at("model")).unwrap();
    let config = r#"{"model_type": "llama", "vocab_size": 256, "hidden_size": 64, "num_hidden_layers": 4,
        "num_attention_heads": 4, "intermediate_size": 172, "max_position_embeddings": 8192}"#;
    fs::write(at("model/config.json"), config).unwrap();
    let options = |sequence| CreateOptions {
        config: at("run.toml"),
        data: corpus(directory.path()),
        calibration: None,
        init: Some(Init { folder: at("model"), sequence }),
        organiser_key: None,
        out: at("myrun"),
    };
    let corpus_of = options(Some(4096));
    let refused = create_within(&corpus_of, Some(1 << 29)).unwrap_err();
    for words in ["model.sequence", "--sequence N: windows of fewer tokens than 4096", "--elsewhere"] {
        assert!(refused.exit == Exit::Usage && refused.message.contains(words), "{words}: {refused}");
    }
    assert!(fs::read_to_string(at("run.toml")).unwrap().contains("sequence = 4096 "));
}
