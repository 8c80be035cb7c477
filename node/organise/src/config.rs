//! `run.toml`: the settings of a run for people, and the manifest made of them.

pub mod admission;
pub mod aggregation;
pub mod arithmetic;
pub mod audit;
mod calibration;
pub mod experts;
pub mod local;
pub mod model;
mod number;
pub mod preset;
pub mod rollback;
mod section;
pub mod timers;
pub mod training;

use std::path::Path;

use muster_core::codec::Text;
use muster_core::error::Misuse;
use muster_core::ids::MemberId;
use muster_core::manifest::{self, Data, Exchange, Manifest, VERSION};
use muster_replica::exit::{Failure, Outcome};
use serde::Deserialize;

use self::admission::Admission;
use self::aggregation::Aggregation;
use self::arithmetic::Arithmetic;
use self::audit::Audit;
use self::experts::Experts;
pub(crate) use self::local::Local;
use self::model::Model;
use self::rollback::Rollback;
use self::section::section;
use self::timers::{Retention, Timers};
use self::training::{Optimiser, Training};

/// The commented file with every setting at its default. The sections of experts and of local updates are commented out: a run has
/// neither by default.
pub const TEMPLATE: &str = include_str!("config/run.toml");

/// What a manifest contains beside settings and data.
#[derive(Clone, Debug)]
pub struct Makers {
    /// The organiser, who signs invitations.
    pub organiser: MemberId,
    /// The steward, who seals records.
    pub steward: MemberId,
    /// Makes two runs of equal settings differ.
    pub nonce: [u8; 16],
}

section! {
    /// The settings of a run. The file's comments say what each is; a test keeps them equal to these defaults.
    Settings {
        /// A name for people.
        name: String = "muster".into(),
        /// What is trained.
        model: Model = Model::default(),
        /// What the tokens of a mixture choose among; only a mixture may have it.
        experts: Option<Experts> = None,
        /// How leaf gradients are computed and compared.
        arithmetic: Arithmetic = Arithmetic::default(),
        /// How much, in what pieces.
        training: Training = Training::default(),
        /// Steps of each member's own; only a run of local updates has it.
        local: Option<Local> = None,
        /// How an aggregate changes the state.
        optimiser: Optimiser = Optimiser::default(),
        /// How contributions are combined.
        aggregation: Aggregation = Aggregation::default(),
        /// How they are inspected.
        audit: Audit = Audit::default(),
        /// Who may come.
        admission: Admission = Admission::default(),
        /// The steward's patience.
        timers: Timers = Timers::default(),
        /// How long things are kept.
        retention: Retention = Retention::default(),
        /// When the state goes back after a conviction.
        rollback: Rollback = Rollback::default(),
    }
}

/// Reads a file's text; `path` is only for the errors.
fn parse<T: for<'a> Deserialize<'a>>(path: &Path, text: &str) -> Outcome<T> {
    toml::from_str(text).map_err(|error| {
        let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
        let number = before.matches('\n').count();
        let line = text.lines().nth(number).unwrap_or_default();
        let field = line.split_once('=').map_or(line, |(field, _)| field).trim();
        Failure::usage(format!("{} line {}, {field}: {}", path.display(), number + 1, error.message()))
    })
}

impl Settings {
    /// Reads a file's text; `path` is only for the errors.
    ///
    /// # Errors
    /// [`Failure`] naming file, line, field and rule.
    pub fn parse(path: &Path, text: &str) -> Outcome<Self> {
        parse(path, text)
    }

    /// The model of these settings, whose shape is not checked yet.
    ///
    /// # Errors
    /// [`Misuse`] naming a field that is no number of a manifest, or a section that another family has.
    pub fn checked_model(&self) -> Result<manifest::Model, Misuse> {
        self.model.checked(self.experts.as_ref(), self.training.rounds)
    }

    /// What members exchange.
    fn exchange(&self) -> Result<Exchange, Misuse> {
        let local = self.local.as_ref().map(Local::checked).transpose()?;
        Ok(local.map_or(Exchange::Gradients, Exchange::Local))
    }

    /// How much is computed. In a run of local updates every member has a chain of its own, so that `leaves` says nothing.
    fn training(&self, exchange: &Exchange) -> manifest::Training {
        let training = self.training.plain();
        let leaves = exchange.local().map_or(training.leaves, manifest::Local::segments);
        manifest::Training { leaves, ..training }
    }

    /// Leaves of each of so many nodes in a round; of local updates, segments.
    pub fn leaves_of_node(&self, nodes: u32) -> u32 {
        let own = self.local.as_ref().map(|local| local.steps / local.segment.max(1));
        own.unwrap_or(self.training.leaves / nodes.max(1))
    }

    /// The manifest of a run with these settings.
    ///
    /// # Errors
    /// [`Misuse`] naming field and rule.
    pub fn manifest(&self, makers: &Makers, data: Data) -> Result<Manifest, Misuse> {
        let exchange = self.exchange()?;
        let mut manifest = Manifest {
            version: VERSION,
            name: Text::new(self.name.clone()).map_err(|misuse| Misuse(format!("name: {misuse}")))?,
            organiser: makers.organiser,
            steward: makers.steward,
            nonce: makers.nonce,
            model: self.checked_model()?,
            profile: self.arithmetic.profile,
            tolerance: self.arithmetic.tolerance()?,
            data,
            training: self.training(&exchange),
            optimiser: self.optimiser.checked()?,
            aggregation: self.aggregation.checked()?,
            audit: self.audit.checked()?,
            admission: self.admission.checked()?,
            timers: self.timers.checked()?,
            retention: self.retention.checked()?,
            rollback: self.rollback.checked()?,
            exchange,
            delay: self.training.overlap.into(),
            // Reserved in the manifest; no other value is allowed yet.
            groups: 0,
        };
        manifest.check().map_err(in_settings)?;
        // Only now: a model that is refused has no size.
        self.timers.suit(&mut manifest);
        Ok(manifest)
    }
}

/// A refusal of a manifest in the words of the file: where both call a field otherwise, it names the file's key.
fn in_settings(Misuse(why): Misuse) -> Misuse {
    const KEYS: [(&str, &str); 6] = [
        ("profile", "arithmetic.profile"),
        ("tolerance.groups", "arithmetic.tolerance"),
        ("tolerance.loss", "arithmetic.loss_tolerance"),
        ("delay", "training.overlap"),
        ("model.masked_ppm", "model.masked"),
        ("admission.newcomer_ppm", "admission.newcomer_share"),
    ];
    let Some((field, rule)) = why.split_once(' ') else { return Misuse(why) };
    let key = KEYS.iter().find(|(of, _)| *of == field).map_or(field, |(_, key)| key);
    // Shares are millionths in a manifest.
    Misuse(format!("{} {rule}", key.strip_suffix("_ppm").unwrap_or(key)))
}

#[cfg(test)]
mod tests {
    use muster_core::ids::Digest;

    use super::model::FamilySetting;
    use super::*;

    fn data() -> Data {
        Data {
            root: Digest([1; 32]),
            bytes: 1 << 20,
            held_out_root: Digest([2; 32]),
            held_out_bytes: 1 << 16,
            tokeniser: manifest::Tokeniser::Bytes,
            start: manifest::Start::Drawn,
            router: None,
        }
    }

    fn makers() -> Makers {
        Makers { organiser: MemberId([1; 32]), steward: MemberId([2; 32]), nonce: [3; 16] }
    }

    fn refused(text: &str) -> String {
        let parsed = Settings::parse(Path::new("run.toml"), text);
        let manifest = parsed.and_then(|settings| Ok(settings.manifest(&makers(), data())?));
        let failure = manifest.unwrap_err();
        assert_eq!(failure.exit, muster_replica::exit::Exit::Usage);
        failure.message
    }

    /// The template with the sections that are commented out, as their comments say, and the family that has experts.
    fn with_all_sections() -> String {
        let sections = ["[experts]", "[local]"];
        let after = |line: &str| {
            line.strip_prefix("# ").is_some_and(|rest| sections.iter().any(|name| rest.starts_with(name)))
        };
        let lines = TEMPLATE.lines().scan(false, |open, line| {
            *open = (*open || after(line)) && !line.is_empty();
            Some(if *open { line.strip_prefix("# ").unwrap_or(line) } else { line })
        });
        let text: Vec<&str> = lines.collect();
        text.join("\n").replace("family = \"decoder\" ", "family = \"mixture\" ")
    }

    #[test]
    fn the_template_shows_every_setting_at_its_default() {
        let settings = Settings::parse(Path::new("run.toml"), TEMPLATE).unwrap();
        assert_eq!(settings, Settings::default());
        let template = with_all_sections();
        let settings = Settings::parse(Path::new("run.toml"), &template).unwrap();
        let model = Model { family: FamilySetting::Mixture, ..Model::default() };
        let experts = Some(Experts::default());
        let local = Some(Local::default());
        assert_eq!(settings, Settings { model, experts, local, ..Settings::default() });
        let table: toml::Table = template.parse().unwrap();
        for section in table.values().filter_map(toml::Value::as_table) {
            for key in section.keys() {
                let lines = template.lines().filter(|line| line.starts_with(&format!("{key} = ")));
                assert!(lines.count() > 0, "{key}");
            }
        }
        // Every field that exists is in the template: without it, the file's text would not name it.
        let shown = format!("{settings:?}");
        let fields = shown.split([' ', '{', '}', ',']).filter_map(|word| word.strip_suffix(':'));
        for field in fields {
            let lines = template.lines();
            let named = lines.into_iter().any(|line| {
                line.starts_with(&format!("{field} =")) || line.starts_with(&format!("[{field}]"))
            });
            assert!(named, "run.toml does not show {field}");
        }
    }

    #[test]
    fn an_empty_file_is_a_run() {
        let manifest =
            Settings::parse(Path::new("run.toml"), "").unwrap().manifest(&makers(), data()).unwrap();
        assert_eq!(manifest.timers.commit, 30_000);
        assert_eq!(manifest.audit.share_ppm, 500_000);
        assert_eq!(manifest.training.leaves * manifest.training.leaf_windows * manifest.model.sequence, 4096);
    }

    #[test]
    fn manifest_14_a_mixture_has_a_section_of_its_own() {
        let made = |text: &str| {
            let settings = Settings::parse(Path::new("run.toml"), text).unwrap();
            settings.manifest(&makers(), data()).unwrap().model
        };
        let mixture = |text: &str| {
            let manifest::Family::Mixture(mixture) = made(text).family else { panic!("a mixture") };
            (mixture.columns, mixture.active, mixture.shared_hidden, mixture.balance.value())
        };
        // Without the section it has the defaults, as everywhere.
        assert_eq!(mixture("[model]\nfamily = \"mixture\"\n"), (8, 2, 172, 0.01));
        let some = "[experts]\ncolumns = 5\nbalance = 0.0\n[model]\nfamily = \"mixture\"\n";
        assert_eq!(mixture(some), (5, 2, 172, 0.0));
        for other in ["", "[model]\nfamily = \"decoder\"\n", "[model]\nfamily = \"albert\"\nmask_token = 1\n"]
        {
            made(other);
            let why = refused(&format!("{other}[experts]\n"));
            assert!(why.contains("model.family must be \"mixture\"") && why.contains("delete"), "{why}");
        }
        let wrong =
            |experts: &str| refused(&format!("[model]\nfamily = \"mixture\"\n[experts]\n{experts}\n"));
        assert!(wrong("lines = 3").contains("run.toml line 4, lines: unknown field"));
        assert!(wrong("rows = 3").contains("packed for 1 rows of experts, and the model has 3"));
        assert!(wrong("rows = 65").contains("experts.rows must be 1 to 64; it is 65"));
        assert!(wrong("branch = 1.0").contains("experts.branch must lie in [0, 1)"));
        let kept =
            |experts: &str, states| format!("{experts}\n[retention]\ncontributions = 32\nstates = {states}");
        let late = wrong(&kept("rows = 3", 32));
        assert!(
            late.contains("experts.lag must be above 31, for so many rounds may an audit take: set it to 32"),
            "{late}"
        );
        assert!(wrong(&kept("rows = 3", 33)).contains("first set retention.states to at most"));
        assert!(wrong("rows = 3\nheld = 5").contains("experts.held must be 0 or below experts.few, 5"));
        // With one row nothing waits.
        made(&format!("[model]\nfamily = \"mixture\"\n[experts]\n{}\n", kept("columns = 5", 32)));
        assert!(wrong("columns = 257").contains("experts.columns must be 1 to 256; it is 257"));
        assert!(wrong("columns = 65536").contains("run.toml line 4, columns: "));
        assert!(wrong("active = 9").contains("experts.active must be 1 to experts.columns, 8; it is 9"));
        assert!(wrong("shared_hidden = 1").contains("experts.shared_hidden must be 2 to 1048576; it is 1"));
        assert!(wrong("balance = -0.5").contains("experts.balance must not be negative; it is -0.5"));
        assert!(wrong("balance = nan").contains("experts.balance"));
        let tolerant = wrong("[arithmetic]\nprofile = \"bf16\"");
        assert!(tolerant.contains("profile must be exact for a mixture of experts"), "{tolerant}");
    }

    #[test]
    fn committed_files_have_the_length_that_the_model_and_the_limits_say() {
        let settings = Settings::default();
        let with = |change: &dyn Fn(&mut Data)| {
            let mut data = data();
            change(&mut data);
            settings.manifest(&makers(), data)
        };
        let parameters = with(&|_| ()).unwrap().model.parameters();
        let given = |bytes| {
            let start = manifest::Start::Given(manifest::CommittedFile { root: Digest([3; 32]), bytes });
            with(&|data| data.start = start.clone())
        };
        // DATA-6: four bytes for each parameter, no more and no fewer.
        assert_eq!(given(4 * parameters).unwrap().data.all_bytes(), (1 << 20) + (1 << 16) + 4 * parameters);
        for bytes in [0, 4 * parameters - 4, 4 * parameters + 1, u64::MAX] {
            let misuse = given(bytes).unwrap_err().to_string();
            assert!(misuse.contains("data.start.bytes must be four for each parameter"), "{misuse}");
        }
        let tokeniser = |bytes| {
            let file = manifest::TokeniserFile { digest: Digest([4; 32]), bytes, tokens: 256 };
            with(&|data| data.tokeniser = manifest::Tokeniser::File(file.clone()))
        };
        // DATA-4: a tokeniser's file has 1 to 2^26 bytes.
        assert!(tokeniser(1).is_ok() && tokeniser(64 << 20).is_ok());
        assert!(tokeniser(0).is_err() && tokeniser((64 << 20) + 1).is_err());
        assert!(with(&|data| data.held_out_bytes = (1 << 40) + 1).is_err());
    }

    #[test]
    fn data_3_a_tail_that_fills_no_window_is_never_used() {
        let (settings, sequence) = (Settings::default(), u64::from(Settings::default().model.sequence));
        let windows = |bytes| settings.manifest(&makers(), Data { bytes, ..data() }).map(|run| run.windows());
        assert_eq!(windows(sequence + 1).unwrap(), 1);
        assert_eq!(windows(2 * sequence).unwrap(), 1, "a tail of all tokens but one");
        assert_eq!(windows(2 * sequence + 1).unwrap(), 2);
        let misuse = windows(sequence).unwrap_err().to_string();
        assert!(misuse.contains("model.sequence must be below the training text's tokens"), "{misuse}");
    }

    /// Values that somebody may write for a key: some are good for some keys.
    const VALUES: [&str; 22] = [
        "0",
        "1",
        "2",
        "3",
        "-1",
        "65536",
        "4294967295",
        "4294967296",
        "9223372036854775807",
        "0.0",
        "0.5",
        "1.0",
        "-0.5",
        "1e30",
        "nan",
        "inf",
        "true",
        "\"\"",
        "\"\\u202e\"",
        "[]",
        "[1]",
        "{}",
    ];

    /// The file with another value of a key.
    fn with_value(template: &toml::Table, section: &str, key: &str, value: &str) -> String {
        let mut table = template.clone();
        let own = match section {
            "" => &mut table,
            _ => table[section].as_table_mut().expect("a section"),
        };
        own.insert(key.to_owned(), toml::Value::String("@".into()));
        toml::to_string(&table).expect("a file").replacen("\"@\"", value, 1)
    }

    #[test]
    fn an_error_names_the_key_that_is_wrong() {
        let all: toml::Table = with_all_sections().parse().unwrap();
        let family = |name: &str, without: &[&str]| {
            let mut table = all.clone();
            without.iter().for_each(|section| drop(table.remove(*section)));
            table["model"]["family"] = toml::Value::String(name.into());
            if name == "albert" {
                table["model"]["vocabulary"] = 257.into();
            }
            table
        };
        let files = [
            family("mixture", &["local"]),
            family("decoder", &["experts"]),
            family("decoder", &["experts", "local"]),
            family("albert", &["experts", "local"]),
        ];
        let (mut refusals, mut silent) = (0, Vec::new());
        for file in &files {
            refused_or_good(file, "", "name", &mut refusals, &mut silent);
            for (section, keys) in file.iter().filter_map(|(name, keys)| Some((name, keys.as_table()?))) {
                keys.keys().for_each(|key| refused_or_good(file, section, key, &mut refusals, &mut silent));
            }
        }
        assert!(refusals > 2000, "{refusals}");
        assert!(silent.is_empty(), "{} of {refusals}:\n{}", silent.len(), silent.join("\n"));
    }

    /// Tries all values of a key; counts refusals, and notes those that do not name the key.
    fn refused_or_good(
        file: &toml::Table,
        section: &str,
        key: &str,
        refusals: &mut u32,
        silent: &mut Vec<String>,
    ) {
        for value in VALUES {
            let text = with_value(file, section, key, value);
            let settings = Settings::parse(Path::new("run.toml"), &text);
            let Err(failure) = settings.and_then(|settings| Ok(settings.manifest(&makers(), data())?)) else {
                continue;
            };
            *refusals += 1;
            let named = |word: &str| word == key || word.split('.').any(|part| part == key);
            let mut words =
                failure.message.split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != '.');
            if !words.any(|word| named(word.trim_matches('.'))) {
                silent.push(format!("{section}.{key} = {value}: {}", failure.message));
            }
        }
    }

    #[test]
    fn errors_name_file_field_and_rule() {
        let unknown = refused("[model]\nwidht = 3\n");
        assert!(unknown.contains("run.toml line 2, widht: unknown field"), "{unknown}");
        let mistyped = refused("[training]\n\nrounds = \"many\"\n");
        assert!(mistyped.contains("run.toml line 3, rounds: invalid type"), "{mistyped}");
        assert!(refused("[model]\nheads = 3\n").contains("model.heads must divide model.width"));
        assert!(refused("[audit]\nshare = 1.5\n").contains("audit.share must lie between 0 and 1"));
        assert!(refused("[aggregation]\nassumed = 0.5\n").contains("aggregation.assumed must be below"));
        assert!(refused("[aggregation]\nrule = \"bulyan\"\n").contains("multi-krum"));
        assert!(refused("[timers]\naudit = 0\n").contains("timers.audit must lie"));
        assert!(refused("[timers]\nline = -1\n").contains("timers.line must lie"));
        assert!(refused("[optimiser]\nrate = nan\n").contains("optimiser.rate"));
        assert!(refused("name = \"a\\u0007b\"\n").contains("name: a control character"));
        assert!(refused("[model]\nvocabulary = 100\n").contains("model.vocabulary is 100, but"));
        assert!(refused("[model\n").contains("run.toml line 1"));
        let open = refused("[admission]\nmode = \"open\"\n");
        assert!(open.contains("admission.probation must be positive in open mode"), "{open}");
        assert!(refused("[admission]\nnodes = [\"ab\"]\n").contains("is not a member id"));
        let key = "ab".repeat(32);
        let unlisted = refused(&format!("[admission]\nfounders = [\"{key}\"]\n"));
        assert!(unlisted.contains("admission.mode must be"), "{unlisted}");
        let twice = format!("[admission]\nmode = \"listed\"\nfounders = [\"{key}\"]\nnodes = [\"{key}\"]\n");
        assert!(refused(&twice).contains("lists a key twice"));
        let unaudited = "[audit]\nshare = 0.0\n[admission]\nprobation = 9\nnewcomer_share = 0.0\n";
        assert!(refused(unaudited).contains("never ends when nobody is audited"));
    }
}
