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
    pub init: Option<Init>,
    /// Where the organiser's key is kept, if not in the new folder; a new one where there is none.
    pub organiser_key: Option<PathBuf>,
    /// The new folder.
    pub out: PathBuf,
}

/// A checkpoint to begin with.
#[derive(Clone, Debug)]
pub struct Init {
    /// Its folder.
    pub folder: PathBuf,
    /// Tokens of a window, if the settings do not say.
    pub sequence: Option<u32>,
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
    /// Most tokens of a window that the checkpoint knows with which it begins, if there is one that says.
    pub context: Option<u32>,
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
    let open = |Init { folder, sequence }: &Init| Given::open(folder, *sequence);
    let given = options.init.as_ref().map(open).transpose()?;
    let context = given.as_ref().and_then(Given::context);
    let (mut text, wrote_config) = settings(&options.config, given.as_ref())?;
    let mut settings = Settings::parse(&options.config, &text)?;
    let in_file = |misuse| Failure::usage(format!("{}: {misuse}", options.config.display()));
    let mut model = None;
    if let Some(given) = &given {
        text = given.complete(&mut settings, &options.config, &text)?;
        given.check_tokeniser(&data, &options.data)?;
        let checked = settings.checked_model().map_err(in_file)?;
        checked.check().map_err(in_file)?;
        given.check_kinds(&data, &checked)?;
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
    fits(&draft, given.is_some(), available).map_err(in_file)?;
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
    Ok(Created { run: manifest.run(), manifest, wrote_config, context })
}

/// Refuses a run in which a node on one thread needs more memory than is available. Of a model that was given, only its windows
/// can be made smaller.
fn fits(manifest: &Manifest, given: bool, available: Option<u64>) -> Result<(), Misuse> {
    let sequence = manifest.model.sequence;
    let lower = if given {
        format!("lower these settings (--sequence N: windows of fewer tokens than {sequence})")
    } else {
        "lower these settings".into()
    };
    memory::within(memory::contributing(manifest, &Machine::new(1, None)), available).map_err(
        |Misuse(why)| {
            Misuse(format!("{why}; {lower}, or say --elsewhere if other machines host and compute it"))
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
mod tests;
