//! What a `config.json` of `transformers` says of a model, as settings of a run.

use std::path::{Path, PathBuf};

use muster_core::limits;
use muster_replica::exit::{Failure, Outcome};
use serde_json::{Map, Value};
use toml::Table;

use super::known::Known;
use crate::config::experts::Experts;
use crate::config::model::Model;
use crate::config::{Settings, TEMPLATE};

/// What is known of a model, by the names of the settings.
pub(super) struct ModelConfig {
    path: PathBuf,
    model: Known,
    /// Of a mixture.
    experts: Option<Known>,
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
        let mut model = Known::new(path, "model");
        let mut experts = None;
        let kind = config.entry("model_type").and_then(Value::as_str);
        match kind {
            Some("llama") => llama(&config, &mut model.fixed)?,
            Some("qwen2_moe") => {
                mixture(&config, &mut model.fixed)?;
                experts = Some(row(&config)?);
            }
            Some("albert") => albert(&config, &mut model.fixed)?,
            other => {
                let kind = other.unwrap_or("none");
                let trained = "a run trains \"llama\", \"qwen2_moe\" or \"albert\"";
                return Err(wrong(&format!("model_type is {kind}, {trained}")));
            }
        }
        for (setting, entry) in SIZES {
            model.fixed.insert((*setting).into(), config.number(entry)?.into());
        }
        let positions = config.optional("max_position_embeddings")?;
        if let Some(positions) = positions {
            // An ALBERT has an embedding for each position: its number is fixed. A decoder's positions are computed.
            let settings = if kind == Some("albert") { &mut model.fixed } else { &mut model.free };
            settings.insert("sequence".into(), positions.min(limits::SEQUENCE).into());
        }
        let scale = config.real("initializer_range", 0.02)?;
        if scale > 0.0 {
            model.free.insert("initial_scale".into(), scale.into());
        }
        Ok(Self { path: path.to_owned(), model, experts, positions })
    }

    /// The commented file of settings, with what is known in the place of the defaults.
    pub(super) fn template(&self) -> String {
        let mut known = None;
        let mut text = String::new();
        for line in TEMPLATE.lines() {
            let opened = self.experts.as_ref().and_then(|experts| experts.opened(line, known));
            let line = opened.unwrap_or(line);
            if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.split(']').next()) {
                known = [Some(&self.model), self.experts.as_ref()]
                    .into_iter()
                    .flatten()
                    .find(|known| known.is_of(name));
            }
            text.push_str(&known.map_or_else(|| line.to_owned(), |known| known.line(line)));
            text.push('\n');
        }
        text
    }

    /// See [`super::Given::complete`].
    pub(super) fn complete(&self, settings: &mut Settings, path: &Path, text: &str) -> Outcome<String> {
        let wrong = |what: String| Failure::usage(format!("{}: {what}", path.display()));
        let file: Table = text.parse().map_err(|error: toml::de::Error| wrong(error.message().to_owned()))?;
        let mut text = text.to_owned();
        let model = self.model.complete::<Model>(path, &file)?;
        settings.model = model.settings;
        text.push_str(&model.said);
        if let Some(experts) = &self.experts {
            let experts = experts.complete::<Experts>(path, &file)?;
            settings.experts = Some(experts.settings);
            text.push_str(&experts.said);
        }
        match self.positions {
            Some(most) if settings.model.sequence > most => Err(wrong(format!(
                "model.sequence is {}, but {} knows {most} positions",
                settings.model.sequence,
                self.path.display()
            ))),
            _ => Ok(text),
        }
    }
}

/// Settings and entries that all families have.
const SIZES: &[(&str, &str)] = &[
    ("vocabulary", "vocab_size"),
    ("width", "hidden_size"),
    ("layers", "num_hidden_layers"),
    ("heads", "num_attention_heads"),
];

fn llama(config: &Config<'_>, fixed: &mut Table) -> Outcome<()> {
    config.must("attention_bias", false.into())?;
    config.must("mlp_bias", false.into())?;
    fixed.insert("family".into(), "decoder".into());
    fixed.insert("hidden".into(), config.number("intermediate_size")?.into());
    decoder(config, config.number("num_attention_heads")?, fixed)
}

fn mixture(config: &Config<'_>, fixed: &mut Table) -> Outcome<()> {
    // Its `qkv_bias` says nothing of the values, which are looked at.
    config.must("decoder_sparse_step", 1.into())?;
    config.must("mlp_only_layers", Value::Array(Vec::new()))?;
    config.must("use_sliding_window", false.into())?;
    if !config.flag("norm_topk_prob", false)? {
        return Err(config.wrong("norm_topk_prob", "is false or missing, a run's mixtures have true"));
    }
    fixed.insert("family".into(), "mixture".into());
    fixed.insert("hidden".into(), config.number("moe_intermediate_size")?.into());
    decoder(config, 16, fixed)
}

/// The experts of a mixture. What balances them is not of the model, but of its training.
fn row(config: &Config<'_>) -> Outcome<Known> {
    let mut experts = Known::new(config.path, "experts");
    for (setting, entry) in [
        ("columns", "num_experts"),
        ("active", "num_experts_per_tok"),
        ("shared_hidden", "shared_expert_intermediate_size"),
    ] {
        experts.fixed.insert(setting.into(), config.number(entry)?.into());
    }
    experts.free.insert("balance".into(), config.real("router_aux_loss_coef", 0.001)?.into());
    Ok(experts)
}

/// What decoders have, with or without experts; `shared` key and value heads where the config does not say.
fn decoder(config: &Config<'_>, shared: u32, fixed: &mut Table) -> Outcome<()> {
    config.must("hidden_act", "silu".into())?;
    let layers = config.entry("layer_types").and_then(Value::as_array);
    if layers.is_some_and(|layers| layers.iter().any(|layer| layer != "full_attention")) {
        return Err(config.wrong("layer_types", "names others than full_attention, a run has no others"));
    }
    let (width, heads) = (config.number("hidden_size")?, config.number("num_attention_heads")?);
    if let Some(head) = config.optional("head_dim")?
        && u64::from(head) * u64::from(heads) != u64::from(width)
    {
        let what = format!("is {head}, a run's heads are hidden_size / num_attention_heads wide");
        return Err(config.wrong("head_dim", &what));
    }
    let key_value_heads = config.optional("num_key_value_heads")?.unwrap_or(shared);
    fixed.insert("key_value_heads".into(), key_value_heads.into());
    fixed.insert("tied".into(), config.flag("tie_word_embeddings", false)?.into());
    fixed.insert("rope_base".into(), rotary_base(config)?.into());
    fixed.insert("norm_epsilon".into(), config.real("rms_norm_eps", 1e-6)?.into());
    Ok(())
}

/// The base of rotary positions that are not scaled.
fn rotary_base(config: &Config<'_>) -> Outcome<f64> {
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
    match rotary.get("rope_theta").and_then(Value::as_f64) {
        Some(base) => Ok(base),
        None => config.real("rope_theta", 10_000.0),
    }
}

fn albert(config: &Config<'_>, fixed: &mut Table) -> Outcome<()> {
    config.must("hidden_act", "gelu_new".into())?;
    config.must("num_hidden_groups", 1.into())?;
    config.must("inner_group_num", 1.into())?;
    config.must("position_embedding_type", "absolute".into())?;
    config.must("tie_word_embeddings", true.into())?;
    fixed.insert("family".into(), "albert".into());
    fixed.insert("hidden".into(), config.number("intermediate_size")?.into());
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
