//! A setting and the values that a sweep gives it: `SECTION.KEY=VALUE,VALUE,…`.

use std::str::FromStr;

use muster_core::error::Misuse;
use muster_replica::exit::{Failure, Outcome};

/// A setting, and the values that it takes.
#[derive(Clone, Debug, PartialEq)]
pub struct Sweep {
    section: String,
    key: String,
    values: Vec<String>,
}

impl FromStr for Sweep {
    type Err = Misuse;

    fn from_str(text: &str) -> Result<Self, Misuse> {
        let advice = "give a setting and different values, like audit.share=0.05,0.1,0.2";
        let wrong = || Misuse(format!("{text:?}: {advice}"));
        let (setting, values) = text.split_once('=').ok_or_else(wrong)?;
        let (section, key) = setting.split_once('.').ok_or_else(wrong)?;
        let values: Vec<String> = values.split(',').map(|value| value.trim().to_owned()).collect();
        // Each value names a folder.
        let plain = |value: &String| {
            let fits = |c: char| c.is_ascii_alphanumeric() || "+-._".contains(c);
            value.starts_with(|c: char| c.is_ascii_alphanumeric()) && value.chars().all(fits)
        };
        let twice = |(place, value): (usize, &String)| values[..place].contains(value);
        let (section, key) = (section.trim().to_owned(), key.trim().to_owned());
        let named = !section.is_empty() && !key.is_empty();
        if !named || !values.iter().all(plain) || values.iter().enumerate().any(twice) {
            return Err(wrong());
        }
        Ok(Self { section, key, values })
    }
}

impl Sweep {
    /// The setting, as people call it.
    pub(super) fn setting(&self) -> String {
        format!("{}.{}", self.section, self.key)
    }

    /// Its values, in order.
    pub(super) fn values(&self) -> &[String] {
        &self.values
    }

    /// The folder of the drill at a value.
    pub(super) fn folder(&self, value: &str) -> String {
        format!("{}-{value}", self.key)
    }

    /// Settings in which this one has the value.
    ///
    /// # Errors
    /// [`Failure`] naming the settings that have something else in the place of a section.
    pub(super) fn settings(&self, name: &str, template: &str, value: &str) -> Outcome<String> {
        let wrong = |why: String| Failure::usage(format!("{name}: {why}"));
        let mut table: toml::Table =
            template.parse().map_err(|error: toml::de::Error| wrong(error.message().to_owned()))?;
        let section = table.entry(&self.section).or_insert_with(|| toml::Table::new().into());
        let section =
            section.as_table_mut().ok_or_else(|| wrong(format!("{} is no section", self.section)))?;
        section.insert(self.key.clone(), read_value(value));
        toml::to_string(&table).map_err(|error| wrong(error.to_string()))
    }
}

/// A value as a settings file has it: a word is a text, whatever else TOML knows is what it says.
fn read_value(text: &str) -> toml::Value {
    let table: Result<toml::Table, _> = format!("value = {text}").parse();
    let value = table.ok().and_then(|mut table| table.remove("value"));
    value.unwrap_or_else(|| toml::Value::String(text.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sweep(text: &str) -> Result<Sweep, Misuse> {
        text.parse()
    }

    #[test]
    fn a_setting_and_its_values_are_read() {
        let read = sweep("audit.share=0.05, 0.1,1").unwrap();
        assert_eq!((read.setting(), read.values.len()), ("audit.share".into(), 3));
        for wrong in [
            "audit.share",
            "share=1",
            ".share=1",
            "audit.=1",
            "audit.share=",
            "audit.share=1,,2",
            "audit.share=1,2,1",
            "a.b=../x",
        ] {
            let misuse = sweep(wrong).unwrap_err();
            assert!(misuse.to_string().contains("like audit.share=0.05,0.1,0.2"), "{misuse}");
        }
        assert_eq!(read_value("0.05"), toml::Value::Float(0.05));
        assert_eq!(read_value("3"), toml::Value::Integer(3));
        assert_eq!(read_value("true"), toml::Value::Boolean(true));
        assert_eq!(read_value("mean"), toml::Value::String("mean".into()));
        let settings = read.settings("run.toml", "[audit]\nshare = 0.5\nleaves = 2\n", "0.1").unwrap();
        assert_eq!(settings, "[audit]\nleaves = 2\nshare = 0.1\n");
        assert_eq!(read.settings("run.toml", "", "0.1").unwrap(), "[audit]\nshare = 0.1\n");
        assert!(read.settings("run.toml", "audit = 3", "0.1").unwrap_err().message.contains("no section"));
    }
}
