//! What is known of a section of the settings before anybody writes one.

use std::path::{Path, PathBuf};

use muster_replica::exit::{Failure, Outcome};
use serde::de::DeserializeOwned;
use toml::{Table, Value};

/// What a config says of a section, by the names of the settings.
pub(super) struct Known {
    /// Where the config is.
    config: PathBuf,
    section: &'static str,
    /// What settings must not contradict.
    pub(super) fixed: Table,
    /// What they may say otherwise.
    pub(super) free: Table,
}

/// A section that is complete.
pub(super) struct Completed<T> {
    pub(super) settings: T,
    /// What was filled in, as comments; empty where nothing was.
    pub(super) said: String,
}

impl Known {
    /// Nothing yet.
    pub(super) fn new(config: &Path, section: &'static str) -> Self {
        Self { config: config.to_owned(), section, fixed: Table::new(), free: Table::new() }
    }

    pub(super) fn is_of(&self, section: &str) -> bool {
        self.section == section
    }

    /// A line of this section where the template has it commented out; `before` is the section of the line before.
    pub(super) fn opened<'a>(&self, line: &'a str, before: Option<&Self>) -> Option<&'a str> {
        let bare = line.strip_prefix("# ")?;
        let begins = bare.starts_with(&format!("[{}]", self.section));
        (begins || before.is_some_and(|before| before.is_of(self.section))).then_some(bare)
    }

    /// A line of the template, with what is known in the place of the default.
    pub(super) fn line(&self, line: &str) -> String {
        let known = line.split_once(" = ").and_then(|(key, rest)| {
            let value = self.fixed.get(key).or_else(|| self.free.get(key))?;
            let comment = rest.split_once('#').map_or("", |(_, comment)| comment);
            let said = format!("{key} = {value}");
            Some(if comment.is_empty() { said } else { format!("{said:24} #{comment}") })
        });
        known.unwrap_or_else(|| line.to_owned())
    }

    /// Fills in what the section of a file leaves out; `path` is only for the errors.
    ///
    /// # Errors
    /// [`Failure`] naming a setting that the config contradicts, or the config whose value is no setting's.
    pub(super) fn complete<T>(&self, path: &Path, file: &Table) -> Outcome<Completed<T>>
    where
        T: DeserializeOwned + PartialEq,
    {
        let said = file.get(self.section).and_then(Value::as_table).cloned().unwrap_or_default();
        let theirs: T = self.settings(self.fixed.clone())?;
        for (key, value) in said.iter().filter(|(key, _)| self.fixed.contains_key(*key)) {
            let mut ours = self.fixed.clone();
            let known = ours.insert(key.clone(), value.clone()).unwrap_or_else(|| value.clone());
            if self.settings::<T>(ours)? != theirs {
                return Err(Failure::usage(format!(
                    "{}: {}.{key} is {value}, but {} says {known}; delete the line, or name a new file of settings for this model \
                     with --config",
                    path.display(),
                    self.section,
                    self.config.display()
                )));
            }
        }
        let mut all = self.fixed.clone();
        all.extend(self.free.clone());
        let filled = all.iter().filter(|(key, _)| !said.contains_key(*key));
        let filled: String = filled.map(|(key, value)| format!("# {key} = {value}\n")).collect();
        all.extend(said);
        let heading = format!("\n# Of [{}], from {}:\n", self.section, self.config.display());
        let said = if filled.is_empty() { String::new() } else { heading + &filled };
        Ok(Completed { settings: self.settings(all)?, said })
    }

    fn settings<T: DeserializeOwned>(&self, table: Table) -> Outcome<T> {
        let wrong = |error: toml::de::Error| format!("{}: {}", self.config.display(), error.message());
        table.try_into().map_err(|error| Failure::environment(wrong(error)))
    }
}
