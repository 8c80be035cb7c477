//! What a `config.json` of `transformers` says of a model, as settings of a run.

use std::path::{Path, PathBuf};

use muster_core::limits;
use serde_json::{Map, Value};
use toml::Table;

use crate::exit::{Failure, Outcome};
use crate::organise::config::model::Model;
use crate::organise::config::{Settings, TEMPLATE};

/// What is known of a model, by the names of the settings.
pub(super) struct ModelConfig {
    path: PathBuf,
    /// What settings must not contradict.
    fixed: Table,
    /// What they may say otherwise.
    free: Table,
    /// Most tokens of a window, where the config knows.
    positions: Option<u32>,
}

impl ModelConfig {
    /// Reads the bytes of a config. Where an entry is missing, `transformers`' own default holds.
    ///
    /// # Errors
    /// [`Failure`] naming file and entry.
    pub(super) fn read(path: &Path, bytes: &[u8]) -> Outcome<Self> {
        let wrong = |what: &str| Failure::environment(format!("{}: {what}", path.display()));
        let entries: Map<String, Value> =
            serde_json::from_slice(bytes).map_err(|error| wrong(&format!("is not a config ({error})")))?;
        let config = Config { path, entries: &entries };
        let family = match config.entry("model_type").and_then(Value::as_str) {
            Some("llama") => Architecture::Decoder,
            Some("albert") => Architecture::Albert,
            other => {
                let kind = other.unwrap_or("none");
                return Err(wrong(&format!("model_type is {kind}, a run trains \"llama\" or \"albert\"")));
            }
        };
        let positions = config.optional("max_position_embeddings")?;
        let mut fixed = Table::new();
        for (setting, entry) in SIZES {
            fixed.insert((*setting).into(), config.number(entry)?.into());
        }
        match family {
            Architecture::Decoder => decoder(&config, &mut fixed)?,
            Architecture::Albert => albert(&config, &mut fixed)?,
        }
        let mut free = Table::new();
        if let Some(positions) = positions {
            // An ALBERT has an embedding for each position: its number is fixed. A decoder's positions are
            // computed.
            let settings = if family == Architecture::Albert { &mut fixed } else { &mut free };
            settings.insert("sequence".into(), positions.min(limits::SEQUENCE).into());
        }
        let scale = config.real("initializer_range", 0.02)?;
        if scale > 0.0 {
            free.insert("initial_scale".into(), scale.into());
        }
        Ok(Self { path: path.to_owned(), fixed, free, positions })
    }

    /// The commented file of settings, with what is known in the place of the defaults.
    pub(super) fn template(&self) -> String {
        let mut section = "";
        let mut text = String::new();
        for line in TEMPLATE.lines() {
            if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.split(']').next()) {
                section = name;
            }
            let known = line.split_once(" = ").filter(|_| section == "model").and_then(|(key, rest)| {
                let value = self.fixed.get(key).or_else(|| self.free.get(key))?;
                let comment = rest.split_once('#').map_or("", |(_, comment)| comment);
                let said = format!("{key} = {value}");
                Some(if comment.is_empty() { said } else { format!("{said:24} #{comment}") })
            });
            text.push_str(known.as_deref().unwrap_or(line));
            text.push('\n');
        }
        text
    }

    /// See [`super::Given::complete`].
    pub(super) fn complete(&self, settings: &mut Settings, path: &Path, text: &str) -> Outcome<String> {
        let wrong = |what: String| Failure::usage(format!("{}: {what}", path.display()));
        let file: Table = text.parse().map_err(|error: toml::de::Error| wrong(error.message().to_owned()))?;
        let said = file.get("model").and_then(toml::Value::as_table).cloned().unwrap_or_default();
        let model = |table: Table| {
            table.try_into::<Model>().map_err(|error| {
                Failure::environment(format!("{}: {}", self.path.display(), error.message()))
            })
        };
        let theirs = model(self.fixed.clone())?;
        for (key, value) in said.iter().filter(|(key, _)| self.fixed.contains_key(*key)) {
            let mut ours = self.fixed.clone();
            let known = ours.insert(key.clone(), value.clone()).unwrap_or_else(|| value.clone());
            if model(ours)? != theirs {
                return Err(wrong(format!(
                    "model.{key} is {value}, but {} says {known}; delete the line, or begin with another model",
                    self.path.display()
                )));
            }
        }
        let mut all = self.fixed.clone();
        all.extend(self.free.clone());
        let filled: Vec<_> = all.iter().filter(|(key, _)| !said.contains_key(*key)).collect();
        let filled: String = filled.iter().map(|(key, value)| format!("# {key} = {value}\n")).collect();
        all.extend(said);
        settings.model = model(all)?;
        match self.positions {
            Some(most) if settings.model.sequence > most => Err(wrong(format!(
                "model.sequence is {}, but {} knows {most} positions",
                settings.model.sequence,
                self.path.display()
            ))),
            _ if filled.is_empty() => Ok(text.to_owned()),
            _ => Ok(format!("{text}\n# Of [model], from {}:\n{filled}", self.path.display())),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Architecture {
    Decoder,
    Albert,
}

/// Settings and entries that both families have.
const SIZES: &[(&str, &str)] = &[
    ("vocabulary", "vocab_size"),
    ("width", "hidden_size"),
    ("layers", "num_hidden_layers"),
    ("heads", "num_attention_heads"),
    ("hidden", "intermediate_size"),
];

fn decoder(config: &Config<'_>, fixed: &mut Table) -> Outcome<()> {
    config.must("hidden_act", "silu".into())?;
    config.must("attention_bias", false.into())?;
    config.must("mlp_bias", false.into())?;
    let (width, heads) = (config.number("hidden_size")?, config.number("num_attention_heads")?);
    if let Some(head) = config.optional("head_dim")?
        && u64::from(head) * u64::from(heads) != u64::from(width)
    {
        let what = format!("is {head}, a run's heads are hidden_size / num_attention_heads wide");
        return Err(config.wrong("head_dim", &what));
    }
    // Since version 5 the rotary settings are one entry.
    let rotary = Value::Object(Map::new());
    let rotary = config.entry("rope_parameters").unwrap_or(&rotary);
    for (entry, scaling) in
        [("rope_parameters", Some(rotary)), ("rope_scaling", config.entry("rope_scaling"))]
    {
        let kind = scaling.and_then(|scaling| scaling.get("rope_type").or_else(|| scaling.get("type")));
        let plain = kind.is_none_or(|kind| kind == "default") && scaling.is_none_or(Value::is_object);
        if !plain || (entry == "rope_scaling" && scaling.is_some() && kind.is_none()) {
            return Err(config.wrong(entry, "scales the rotary positions, a run does not"));
        }
    }
    let base = match rotary.get("rope_theta").and_then(Value::as_f64) {
        Some(base) => base,
        None => config.real("rope_theta", 10_000.0)?,
    };
    let key_value_heads = config.optional("num_key_value_heads")?.unwrap_or(heads);
    fixed.insert("family".into(), "decoder".into());
    fixed.insert("key_value_heads".into(), key_value_heads.into());
    fixed.insert("tied".into(), config.flag("tie_word_embeddings", false)?.into());
    fixed.insert("rope_base".into(), base.into());
    fixed.insert("norm_epsilon".into(), config.real("rms_norm_eps", 1e-6)?.into());
    Ok(())
}

fn albert(config: &Config<'_>, fixed: &mut Table) -> Outcome<()> {
    config.must("hidden_act", "gelu_new".into())?;
    config.must("num_hidden_groups", 1.into())?;
    config.must("inner_group_num", 1.into())?;
    config.must("position_embedding_type", "absolute".into())?;
    config.must("tie_word_embeddings", true.into())?;
    fixed.insert("family".into(), "albert".into());
    fixed.insert("embedding".into(), config.number("embedding_size")?.into());
    fixed.insert("norm_epsilon".into(), config.real("layer_norm_eps", 1e-12)?.into());
    Ok(())
}

/// Entries that a stranger wrote.
struct Config<'a> {
    path: &'a Path,
    entries: &'a Map<String, Value>,
}

impl<'a> Config<'a> {
    /// An entry; one that is null is none.
    fn entry(&self, name: &str) -> Option<&'a Value> {
        self.entries.get(name).filter(|value| !value.is_null())
    }

    fn wrong(&self, name: &str, what: &str) -> Failure {
        Failure::environment(format!("{}: {name} {what}", self.path.display()))
    }

    fn optional(&self, name: &str) -> Outcome<Option<u32>> {
        let Some(value) = self.entry(name) else { return Ok(None) };
        let number = value.as_u64().and_then(|value| u32::try_from(value).ok());
        number.map(Some).ok_or_else(|| self.wrong(name, &format!("is {value}, where a number is needed")))
    }

    fn number(&self, name: &str) -> Outcome<u32> {
        self.optional(name)?.ok_or_else(|| self.wrong(name, "is missing"))
    }

    fn real(&self, name: &str, default: f64) -> Outcome<f64> {
        let Some(value) = self.entry(name) else { return Ok(default) };
        value.as_f64().ok_or_else(|| self.wrong(name, &format!("is {value}, where a number is needed")))
    }

    fn flag(&self, name: &str, default: bool) -> Outcome<bool> {
        let Some(value) = self.entry(name) else { return Ok(default) };
        value.as_bool().ok_or_else(|| self.wrong(name, &format!("is {value}, where true or false is needed")))
    }

    /// Refuses an entry that is there and says something else.
    fn must(&self, name: &str, only: Value) -> Outcome<()> {
        match self.entry(name) {
            Some(value) if *value != only => {
                Err(self.wrong(name, &format!("is {value}, a run's models have {only}")))
            }
            _ => Ok(()),
        }
    }
}
