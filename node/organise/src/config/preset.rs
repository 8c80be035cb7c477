//! Sizes to begin with: the commented settings that `muster run new --preset` writes.

use std::fs;
use std::path::Path;

use clap::ValueEnum;
use muster_replica::exit::{Failure, Outcome};
use muster_store::dataset::described;
use muster_store::regular;

use super::TEMPLATE;

/// A size of run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Preset {
    /// 0.1 M parameters: a run of minutes on a laptop, to see how all of it works. Suits a text of bytes.
    Tiny,
    /// 4.8 M parameters: a run of hours on a few home computers. Suits a text of bytes, or `--train-tokenizer 4096`.
    Small,
    /// 76 M parameters: a run of weeks on many machines. Suits `--train-tokenizer 16384`, or the tokeniser of a model.
    Base,
    /// 1 B parameters with 32,000 kinds of tokens: a run of months on strong machines with 24 GiB of memory each. Suits the
    /// tokeniser of a model.
    Large,
}

/// Where the template says what it is.
const HEADING: &str = "# Every line below shows the default; delete a line to keep the default.";

/// What a preset says otherwise than the template: section, setting, value.
type Changes = &'static [(&'static str, &'static str, &'static str)];

const TINY: Changes = &[
    // One person can be both.
    ("admission", "start_nodes", "2"),
];

/// The model and the rates of the larger model in tests/bench.
const SMALL: Changes = &[
    ("model", "width", "256"),
    ("model", "layers", "6"),
    ("model", "hidden", "688"),
    ("model", "initial_scale", "0.06"),
    ("training", "rounds", "2000"),
    ("training", "leaves", "32"),
    ("training", "leaf_windows", "4"),
    ("optimiser", "rate", "0.003"),
    ("optimiser", "warmup", "100"),
    ("optimiser", "schedule", "\"cosine\""),
    // With one, nobody rechecks it.
    ("admission", "start_verifiers", "2"),
    // A round moves some megabytes each way over home connections.
    ("timers", "commit", "60.0"),
    ("timers", "part", "60.0"),
    ("timers", "result", "60.0"),
    ("timers", "audit", "60.0"),
    ("timers", "final_audit", "120.0"),
];

/// The usual shape of a small language model. It has not been trained to its end.
const BASE: Changes = &[
    ("model", "width", "768"),
    ("model", "layers", "12"),
    ("model", "heads", "12"),
    ("model", "hidden", "2048"),
    ("model", "sequence", "512"),
    ("model", "initial_scale", "0.02"),
    ("training", "rounds", "10000"),
    ("training", "leaves", "64"),
    ("training", "leaf_windows", "4"),
    ("optimiser", "rate", "0.0006"),
    ("optimiser", "minimum_rate", "0.00006"),
    ("optimiser", "warmup", "500"),
    ("optimiser", "schedule", "\"cosine\""),
    ("optimiser", "beta1", "0.9"),
    ("optimiser", "beta2", "0.95"),
    ("optimiser", "weight_decay", "0.1"),
    ("admission", "start_nodes", "8"),
    ("admission", "start_verifiers", "2"),
    // A leaf takes most of a minute on one core, and a contribution tens of megabytes.
    ("timers", "commit", "600.0"),
    ("timers", "part", "300.0"),
    ("timers", "result", "300.0"),
    ("timers", "audit", "600.0"),
    ("timers", "final_audit", "1200.0"),
    // A state costs four bytes for each parameter in memory; a round is long enough for audits to end within eight.
    ("retention", "states", "8"),
    // On disk: of fewer, a cheat's first ones would be forgotten too often before it is audited.
    ("retention", "contributions", "12"),
    ("rollback", "most_rounds", "8"),
];

/// The shape of TinyLlama, with one matrix for both ends. It has not been trained.
const LARGE: Changes = &[
    ("model", "width", "2048"),
    ("model", "layers", "22"),
    ("model", "heads", "32"),
    ("model", "hidden", "5632"),
    ("model", "sequence", "2048"),
    ("model", "initial_scale", "0.02"),
    ("training", "rounds", "16000"),
    ("training", "leaves", "64"),
    // A window at a time, and of its activations those of one layer: the model itself takes most of the memory.
    ("training", "leaf_windows", "1"),
    ("training", "recompute", "true"),
    ("optimiser", "rate", "0.0004"),
    ("optimiser", "minimum_rate", "0.00004"),
    ("optimiser", "warmup", "1000"),
    ("optimiser", "schedule", "\"cosine\""),
    ("optimiser", "beta1", "0.9"),
    ("optimiser", "beta2", "0.95"),
    ("optimiser", "weight_decay", "0.1"),
    ("admission", "start_nodes", "8"),
    ("admission", "start_verifiers", "2"),
    // A leaf takes some minutes on one core, and a contribution two gigabytes.
    ("timers", "commit", "3600.0"),
    ("timers", "part", "1800.0"),
    ("timers", "result", "1800.0"),
    ("timers", "audit", "3600.0"),
    ("timers", "final_audit", "7200.0"),
    // A state takes 4 GB of everybody's disk.
    ("retention", "states", "8"),
    ("retention", "contributions", "12"),
    ("rollback", "most_rounds", "8"),
];

impl Preset {
    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tiny => "tiny",
            Self::Small => "small",
            Self::Base => "base",
            Self::Large => "large",
        }
    }

    fn changes(self) -> Changes {
        match self {
            Self::Tiny => TINY,
            Self::Small => SMALL,
            Self::Base => BASE,
            Self::Large => LARGE,
        }
    }

    /// The commented settings, for a text with so many kinds of tokens.
    pub fn text(self, kinds: u32) -> String {
        let (name, vocabulary) = (format!("{:?}", self.name()), kinds.to_string());
        let general = [("", "name", name.as_str()), ("model", "vocabulary", vocabulary.as_str())];
        let changes = || general.iter().chain(self.changes());
        let said: Vec<String> = self.changes().iter().map(|(of, key, _)| format!("{of}.{key}")).collect();
        let mut section = String::new();
        let mut text = String::new();
        for line in TEMPLATE.lines() {
            if let Some((named, _)) = line.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
                named.clone_into(&mut section);
            }
            let key = line.split_once(" = ").map_or("", |(key, _)| key);
            let change = changes().find(|(of, changed, _)| *of == section && *changed == key);
            let line = change.map_or_else(|| line.to_owned(), |(_, _, value)| changed(line, key, value));
            text += &line.replace(HEADING, &heading(self, &said));
            text.push('\n');
        }
        text
    }

    /// Writes the settings for the corpus in `data` where there are none yet; whether it did.
    ///
    /// # Errors
    /// [`Failure`]: there are other settings, no corpus, or the file cannot be written.
    pub fn write(self, config: &Path, data: &Path) -> Outcome<bool> {
        let failed = |error: std::io::Error| {
            Failure::environment(format!("{}: cannot be written ({error})", config.display()))
        };
        let text = self.text(described(data)?.kinds());
        match regular::text_if_there(config, regular::TEXT_BYTES)? {
            Some(there) if there == text => Ok(false),
            Some(_) => Err(Failure::usage(format!(
                "{}: has other settings than --preset {}; name a new file with --config, or leave out --preset",
                config.display(),
                self.name()
            ))),
            None => {
                fs::write(config, text).map_err(failed)?;
                Ok(true)
            }
        }
    }
}

/// A line of the template with another value, its comment where it was.
fn changed(line: &str, key: &str, value: &str) -> String {
    let comment = line.split_once('#').map_or("", |(_, comment)| comment);
    let said = format!("{key} = {value}");
    if comment.is_empty() { said } else { format!("{said:24} #{comment}") }
}

/// What stands in the place of [`HEADING`]: which lines are no defaults, for whoever deletes some.
fn heading(preset: Preset, said: &[String]) -> String {
    let mut lines = format!("# The preset {:?}. All settings but these have their defaults:", preset.name());
    let mut length = usize::MAX;
    for setting in said {
        length = length.saturating_add(2 + setting.len());
        if length > 110 {
            lines += "\n#  ";
            length = 4 + setting.len();
        }
        lines += &format!(" {setting}");
    }
    format!("{lines}\n# Delete a line to have the default.")
}

#[cfg(test)]
mod tests {
    use muster_compute::Machine;
    use muster_core::ids::{Digest, MemberId};
    use muster_core::manifest::{Data, Manifest, Start, Tokeniser, TokeniserFile};
    use muster_replica::{disk, memory};

    use super::*;
    use crate::config::{Makers, Settings};

    fn manifest(preset: Preset, kinds: u32) -> Manifest {
        let text = preset.text(kinds);
        let settings = Settings::parse(Path::new("run.toml"), &text).unwrap();
        assert_eq!(settings.name, preset.name());
        let tokeniser = match kinds {
            256 => Tokeniser::Bytes,
            tokens => Tokeniser::File(TokeniserFile { digest: Digest::default(), bytes: 1, tokens }),
        };
        let data = Data {
            root: Digest::default(),
            bytes: 1 << 30,
            held_out_root: Digest::default(),
            held_out_bytes: 1 << 20,
            tokeniser,
            start: Start::Drawn,
            router: None,
        };
        let nobody = MemberId([0; 32]);
        // Checks every rule of a manifest.
        settings.manifest(&Makers { organiser: nobody, steward: nobody, nonce: [0; 16] }, data).unwrap()
    }

    #[test]
    fn every_preset_is_a_run_of_the_size_that_help_and_readme_say() {
        let sizes: Vec<(&str, u64, String)> = Preset::value_variants()
            .iter()
            .map(|preset| {
                let manifest = manifest(*preset, 256);
                let need = memory::contributing(&manifest, &Machine::new(1, None)).beside_text().bytes();
                (preset.name(), manifest.model.parameters(), memory::shown(need))
            })
            .collect();
        let expected = [
            ("tiny", 115_520, "82 MiB"),
            ("small", 4_812_032, "328 MiB"),
            ("base", 75_713_280, "1.9 GiB"),
            ("large", 969_500_672, "16.0 GiB"),
        ];
        assert_eq!(sizes, expected.map(|(name, size, need)| (name, size, need.to_owned())));
    }

    #[test]
    fn the_disk_that_a_node_of_the_large_preset_takes_is_what_the_readme_says() {
        let manifest = manifest(Preset::Large, 256);
        let disk = disk::contributing(&manifest);
        assert_eq!(memory::shown(disk.bytes()), "144.9 GiB", "{}", disk.because());
    }

    #[test]
    fn a_billion_parameters_fit_into_24_gibibytes_for_every_role() {
        let (manifest, machine) = (manifest(Preset::Large, 32_000), Machine::new(8, None));
        assert_eq!(manifest.model.parameters(), 1_034_512_384);
        let needs = [
            memory::contributing(&manifest, &machine),
            memory::auditing_at_most(&manifest, &machine),
            memory::hosting(&manifest, 8),
        ];
        // With a text of 1 GiB, which is in memory.
        for need in needs {
            assert!(need.bytes() < 20 << 30, "{}: {}", memory::shown(need.bytes()), need.because());
        }
    }

    #[test]
    fn every_change_is_one_and_is_listed() {
        for preset in Preset::value_variants() {
            let text = preset.text(256);
            assert!(!text.contains(HEADING));
            let own: toml::Table = text.parse().unwrap();
            let default: toml::Table = TEMPLATE.parse().unwrap();
            for (section, key, _) in preset.changes() {
                assert_ne!(own[*section][*key], default[*section][*key], "{section}.{key}");
                assert!(text.contains(&format!(" {section}.{key}")), "{section}.{key}");
            }
            // No line was lost, comments included.
            let comments = |text: &str| text.lines().filter(|line| line.contains(" = ")).count();
            assert_eq!(comments(&text), comments(TEMPLATE));
            assert!(text.lines().all(|line| line.len() <= 140), "{text}");
        }
    }

    #[test]
    fn the_vocabulary_is_that_of_the_text() {
        assert_eq!(manifest(Preset::Base, 32_000).model.vocabulary, 32_000);
    }
}
