//! The entries of a `config.json`, which a stranger wrote.

use std::path::Path;

use muster_replica::exit::{Failure, Outcome};
use serde_json::{Map, Value};

use crate::python::words_quoted;

/// Reads the entries. A float that is no number, as Python writes it, becomes its name: whoever needs a number there refuses
/// it by entry.
pub(super) fn parse(bytes: &[u8]) -> Result<Map<String, Value>, serde_json::Error> {
    serde_json::from_slice(&words_quoted(bytes))
}

/// The entries of one object of a file.
#[derive(Clone, Copy)]
pub(super) struct Entries<'a> {
    pub(super) path: &'a Path,
    /// The entry that they are within, if any.
    pub(super) of: Option<&'static str>,
    pub(super) entries: &'a Map<String, Value>,
}

impl<'a> Entries<'a> {
    /// An entry; one that is null is none.
    pub(super) fn entry(&self, name: &str) -> Option<&'a Value> {
        self.entries.get(name).filter(|value| !value.is_null())
    }

    /// Whether there is an entry, be it null.
    pub(super) fn says(&self, name: &str) -> bool {
        self.entries.contains_key(name)
    }

    /// The entries within one, if it is there.
    pub(super) fn within(&self, name: &'static str) -> Outcome<Option<Self>> {
        let Some(value) = self.entry(name) else { return Ok(None) };
        let entries = value.as_object();
        let entries = entries
            .ok_or_else(|| self.wrong(name, &format!("is {value}, where entries of its own are needed")))?;
        Ok(Some(Self { of: Some(name), entries, ..*self }))
    }

    pub(super) fn wrong(&self, name: &str, what: &str) -> Failure {
        let of = self.of.map_or_else(String::new, |of| format!("{of}."));
        Failure::environment(format!("{}: {of}{name} {what}", self.path.display()))
    }

    pub(super) fn text(&self, name: &str) -> Outcome<Option<&'a str>> {
        let Some(value) = self.entry(name) else { return Ok(None) };
        let text = value.as_str();
        text.map(Some).ok_or_else(|| self.wrong(name, &format!("is {value}, where a word is needed")))
    }

    pub(super) fn optional(&self, name: &str) -> Outcome<Option<u32>> {
        let Some(value) = self.entry(name) else { return Ok(None) };
        let number = value.as_u64().and_then(|value| u32::try_from(value).ok());
        number.map(Some).ok_or_else(|| self.wrong(name, &format!("is {value}, where a number is needed")))
    }

    pub(super) fn number(&self, name: &str) -> Outcome<u32> {
        self.optional(name)?.ok_or_else(|| self.wrong(name, "is missing"))
    }

    pub(super) fn real(&self, name: &str, default: f64) -> Outcome<f64> {
        let Some(value) = self.entry(name) else { return Ok(default) };
        value.as_f64().ok_or_else(|| self.wrong(name, &format!("is {value}, where a number is needed")))
    }

    pub(super) fn needed(&self, name: &str) -> Outcome<f64> {
        if self.entry(name).is_none() {
            return Err(self.wrong(name, "is missing"));
        }
        self.real(name, f64::NAN)
    }

    pub(super) fn flag(&self, name: &str, default: bool) -> Outcome<bool> {
        let Some(value) = self.entry(name) else { return Ok(default) };
        value.as_bool().ok_or_else(|| self.wrong(name, &format!("is {value}, where true or false is needed")))
    }

    /// Refuses an entry that is there and says something else.
    pub(super) fn must(&self, name: &str, only: Value) -> Outcome<()> {
        match self.entry(name) {
            Some(value) if *value != only => {
                Err(self.wrong(name, &format!("is {value}, a run's models have {only}")))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn floats_of_python_that_are_no_numbers_become_their_names() {
        let text = r#"{"a": [0.0, Infinity, -Infinity], "NaN": NaN, "b": "say \"NaN\\", "c": {"d":-Infinity}, "e": -1}"#;
        let expected = json!({
            "a": [0.0, "Infinity", "-Infinity"], "NaN": "NaN", "b": "say \"NaN\\", "c": {"d": "-Infinity"}, "e": -1
        });
        assert_eq!(Value::Object(parse(text.as_bytes()).unwrap()), expected);
        for broken in [r#"{"a": Infinit}"#, r#"{"a": InfinityNaN}"#, r#"{"a": "NaN\"#, r#"{"a": +Infinity}"#]
        {
            parse(broken.as_bytes()).unwrap_err();
        }
    }
}
