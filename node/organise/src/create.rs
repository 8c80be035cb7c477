//! `muster run new`: settings and a corpus, and perhaps somebody's checkpoint, become a run's folder.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use muster_compute::Machine;
use muster_core::error::Misuse;
use muster_core::ids::{Digest, RunId};
use muster_core::manifest::{CommittedFile, Data, Manifest, Start};
use muster_replica::exit::{Failure, Outcome};
use muster_replica::memory;
use muster_store::dataset::{Dataset, PARAMETERS, add_parameters, committed_parameters, described};
use muster_store::home::Home;
use muster_store::{regular, secrets};

use super::given::Given;
use super::{DATA, MANIFEST, SETTINGS, organiser_key};
use crate::config::{Makers, Settings, TEMPLATE};

/// What to make a run of.
#[derive(Clone, Debug)]
pub struct CreateOptions {
    /// The settings; where there is no such file, a commented one is written.
    pub config: PathBuf,
    /// The corpus.
    pub data: PathBuf,
    /// What `muster-verifier calibrate` wrote; without it, arithmetic is what the settings say.
    pub calibration: Option<CalibrationFile>,
    /// A checkpoint to begin with; without it, parameters are drawn.
    pub init: Option<PathBuf>,
    /// Where the organiser's key is kept, if not in the new folder; a new one where there is none.
    pub organiser_key: Option<PathBuf>,
    /// The new folder.
    pub out: PathBuf,
}

/// How far honest machines differ.
#[derive(Clone, Debug)]
pub struct CalibrationFile {
    /// What `muster-verifier calibrate` wrote.
    pub path: PathBuf,
    /// Whether the run may be longer than the calibration covers.
    pub beyond: bool,
}

/// A run that was created.
#[derive(Clone, Debug)]
pub struct Created {
    /// Its name: the hash of the manifest.
    pub run: RunId,
    /// Its manifest.
    pub manifest: Manifest,
    /// Whether the settings were written because there were none.
    pub wrote_config: bool,
}

/// Creates a run's folder for this machine. It appears whole: keys, settings and text come first, the manifest last.
///
/// # Errors
/// [`Failure`] naming the file and what is wrong, or the settings that take more memory than this machine has; at `out`
/// nothing is changed that was there before.
pub fn create(options: &CreateOptions) -> Outcome<Created> {
    create_within(options, memory::available())
}

/// As [`create`], for machines with `available` bytes of memory; `None` skips this check.
///
/// # Errors
/// As [`create`].
pub fn create_within(options: &CreateOptions, available: Option<u64>) -> Outcome<Created> {
    vacant(&options.out)?;
    let mut data = described(&options.data)?;
    Dataset::open(&options.data, &data)?;
    let given = options.init.as_deref().map(Given::open).transpose()?;
    let (mut text, wrote_config) = settings(&options.config, given.as_ref())?;
    let mut settings = Settings::parse(&options.config, &text)?;
    let in_file = |misuse| Failure::usage(format!("{}: {misuse}", options.config.display()));
    let mut model = None;
    if let Some(given) = &given {
        text = given.complete(&mut settings, &options.config, &text)?;
        given.check_tokeniser(&data)?;
        let checked = settings.checked_model().map_err(in_file)?;
        checked.check().map_err(in_file)?;
        // Until the values are read, which takes memory itself.
        let bytes = 4 * checked.parameters();
        data.start = Start::Given(CommittedFile { root: Digest::default(), bytes });
        model = Some(checked);
    }
    if let Some(CalibrationFile { path, .. }) = &options.calibration {
        let calibration = regular::text(path, regular::TEXT_BYTES).map_err(|error| {
            Failure::environment(format!("{}: cannot be read ({})", path.display(), error.cause()))
        })?;
        text = settings.calibrate(&text, path, &calibration)?;
    }
    if options.calibration.as_ref().is_none_or(|calibration| !calibration.beyond) {
        long_enough(&settings, options)?;
    }
    // Wrong settings are named before anything is made.
    let draft = settings.manifest(&nobody(), data.clone()).map_err(in_file)?;
    fits(&draft, available).map_err(in_file)?;
    let parameters = given.zip(model).map(|(given, model)| given.parameters(&model)).transpose()?;
    if let Some(parameters) = &parameters {
        data.start = Start::Given(committed_parameters(parameters));
    }
    let home = Home::open(&options.out)?;
    copy_corpus(&options.data, &options.out.join(DATA), parameters.as_deref(), &data)?;
    home.write_file(SETTINGS, text.as_bytes())?;
    let makers = makers(&home, options.organiser_key.as_deref())?;
    let manifest = settings.manifest(&makers, data).map_err(in_file)?;
    // Last: a folder without it is no run, whatever a crash left of it.
    home.write_file(MANIFEST, &manifest.bytes())?;
    Ok(Created { run: manifest.run(), manifest, wrote_config })
}

/// Refuses a run in which a node on one thread needs more memory than is available.
fn fits(manifest: &Manifest, available: Option<u64>) -> Result<(), Misuse> {
    memory::within(memory::contributing(manifest, &Machine::new(1, None)), available).map_err(
        |Misuse(why)| {
            Misuse(format!(
                "{why}; lower these settings, or say --elsewhere if other machines host and compute it"
            ))
        },
    )
}

/// The makers in a draft of the manifest.
fn nobody() -> Makers {
    let nobody = muster_core::ids::MemberId([0; 32]);
    Makers { organiser: nobody, steward: nobody, nonce: [0; 16] }
}

/// The makers of the run: the steward by the home's key, and the organiser by its key, wherever that is kept.
fn makers(home: &Home, elsewhere: Option<&Path>) -> Outcome<Makers> {
    let organiser = secrets::kept(&organiser_key(home.path(), elsewhere))?;
    let organiser = muster_core::sign::Identity::from_secret(&organiser).id();
    Ok(Makers { organiser, steward: home.identity()?.id(), nonce: random()? })
}

/// Refuses tolerances that were measured over too few rounds. A calibration says over how many.
fn long_enough(settings: &Settings, options: &CreateOptions) -> Outcome<()> {
    let Some(CalibrationFile { path, .. }) = &options.calibration else {
        let remedy = "or take calibrated_rounds out, if you know better";
        return settings
            .measured_for_long()
            .map_err(|Misuse(why)| Failure::usage(format!("{}: {why}, {remedy}", options.config.display())));
    };
    let remedy = "--beyond-calibration, if you know better";
    if settings.arithmetic.calibrated_rounds == 0 {
        return Err(Failure::usage(format!(
            "{}: does not say over how many rounds it was measured: calibrate again, or {remedy}",
            path.display()
        )));
    }
    settings
        .measured_for_long()
        .map_err(|Misuse(why)| Failure::usage(format!("{}: {why}, or {remedy}", path.display())))
}

/// Whether a folder is new, or empty.
///
/// # Errors
/// [`Failure`] naming the folder that holds something.
pub fn vacant(out: &Path) -> Outcome<()> {
    let taken = match fs::read_dir(out) {
        Ok(mut entries) => entries.next().is_some(),
        Err(error) if error.kind() == ErrorKind::NotFound => false,
        Err(error) => {
            return Err(Failure::environment(format!("{}: cannot be used ({error})", out.display())));
        }
    };
    if taken {
        return Err(Failure::environment(format!(
            "{}: already holds something; name a new directory",
            out.display()
        )));
    }
    Ok(())
}

fn settings(path: &Path, given: Option<&Given>) -> Outcome<(String, bool)> {
    let failed = |error: std::io::Error| {
        Failure::environment(format!("{}: cannot be written ({error})", path.display()))
    };
    match regular::text_if_there(path, regular::TEXT_BYTES)? {
        Some(text) => Ok((text, false)),
        None => {
            let text = given.map_or_else(|| TEMPLATE.to_owned(), Given::template);
            fs::write(path, &text).map_err(failed)?;
            Ok((text, true))
        }
    }
}

/// Links the files of a corpus, which never change, or copies them where links are not possible. Parameters are not
/// the corpus's: those of this run, if any, are written.
fn copy_corpus(from: &Path, to: &Path, parameters: Option<&[f32]>, data: &Data) -> Outcome<()> {
    let failed = |error: std::io::Error| {
        Failure::environment(format!("{}: cannot be written ({error})", to.display()))
    };
    fs::create_dir_all(to).map_err(failed)?;
    for entry in fs::read_dir(from).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let target = to.join(entry.file_name());
        // Parameters of another run may lie beside the text.
        let wanted = entry.path().is_file() && entry.file_name() != PARAMETERS;
        if wanted && fs::hard_link(entry.path(), &target).is_err() {
            fs::copy(entry.path(), &target).map_err(failed)?;
        }
    }
    if let Some(parameters) = parameters {
        add_parameters(to, parameters)?;
    }
    // The copy is what the run commits to; a disk that fails shows here and not in a round.
    Dataset::open(to, data)?;
    Ok(())
}

/// Bytes of the system's randomness.
pub(super) fn random<const N: usize>() -> Outcome<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes)
        .map_err(|error| Failure::environment(format!("the system gives no randomness ({error})")))?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
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
        let options = PackOptions {
            text: vec![text],
            held_out: vec![],
            column: None,
            tokeniser: None,
            router: None,
            out: out.clone(),
        };
        pack(&options, &mut |_, _| ()).unwrap();
        out
    }

    #[test]
    fn a_corpus_brings_its_router_into_the_run() {
        let directory = tempfile::tempdir().unwrap();
        let (text, data) = (directory.path().join("text.txt"), directory.path().join("corpus"));
        fs::write(&text, "All happy families are alike. ".repeat(200)).unwrap();
        let router = Some(RouterSize { rows: 3, tokens: 8 });
        let options = PackOptions {
            text: vec![text],
            held_out: vec![],
            column: None,
            tokeniser: None,
            router,
            out: data.clone(),
        };
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
                        [training]\nrounds = 16000\n[retention]\nstates = 4096\n";
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
        for word in ["run.toml: this run takes at least", "by retention.states", "has ", "--elsewhere"] {
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
}
