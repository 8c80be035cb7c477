//! What a `config.json` of `transformers` says of a model, as settings of a run.

mod entries;
mod family;
mod rotary;

use std::path::{Path, PathBuf};

use muster_replica::exit::{Failure, Outcome};
use toml::{Table, Value};

use self::entries::Entries;
use self::family::{Context, Found};
use super::known::Known;
use crate::config::experts::Experts;
use crate::config::model::Model;
use crate::config::{Settings, TEMPLATE};

/// Tokens of a window, where nobody says how many and the checkpoint knows more: attention takes memory by their square.
pub(super) const WINDOW: u32 = 512;

/// What is known of a model, by the names of the settings.
pub(super) struct ModelConfig {
    path: PathBuf,
    model: Known,
    /// Of a mixture.
    experts: Option<Known>,
    context: Option<Context>,
    /// Tokens of a window that somebody asked for.
    sequence: Option<u32>,
}

impl ModelConfig {
    /// Reads the bytes of a config, for windows of `sequence` tokens.
    ///
    /// # Errors
    /// [`Failure`] naming file and entry.
    pub(super) fn read(path: &Path, bytes: &[u8], sequence: Option<u32>) -> Outcome<Self> {
        let entries = entries::parse(bytes).map_err(|error| {
            let what = format!("is not a config ({error}); get the checkpoint again");
            Failure::environment(format!("{}: {what}", path.display()))
        })?;
        let entries = Entries { path, of: None, entries: &entries };
        let Found { fixed, experts, context } = family::found(&entries)?;
        let mut model = Known::new(path, "model");
        model.fixed = fixed;
        match context {
            Some(Context { tokens, whole: true, .. }) => {
                model.fixed.insert("sequence".into(), tokens.into());
            }
            _ => {
                let window = sequence.or_else(|| Some(context?.tokens.min(WINDOW)));
                if let Some(window) = window {
                    model.free.insert("sequence".into(), window.into());
                }
            }
        }
        let scale = entries.real("initializer_range", 0.02)?;
        if scale > 0.0 {
            model.free.insert("initial_scale".into(), scale.into());
        }
        Ok(Self { path: path.to_owned(), model, experts, context, sequence })
    }

    /// Most tokens of a window, where the config says.
    pub(super) fn context(&self) -> Option<u32> {
        self.context.map(|context| context.tokens)
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
        let said = file.get("model").and_then(|model| model.get("sequence")).and_then(Value::as_integer);
        if let (Some(said), Some(asked)) = (said, self.sequence)
            && said != i64::from(asked)
        {
            let what = format!("model.sequence is {said}, but --sequence says {asked}");
            return Err(wrong(format!("{what}; delete the line, or leave --sequence out")));
        }
        let mut text = text.to_owned();
        let model = self.model.complete::<Model>(path, &file)?;
        settings.model = model.settings;
        text.push_str(&model.said);
        if let Some(experts) = &self.experts {
            let experts = experts.complete::<Experts>(path, &file)?;
            settings.experts = Some(experts.settings);
            text.push_str(&experts.said);
        }
        let (sequence, config) = (self.sequence.unwrap_or(settings.model.sequence), self.path.display());
        let named = if self.sequence.is_some() { "--sequence" } else { "model.sequence" };
        match self.context {
            Some(Context { tokens, entry, whole }) if sequence > tokens || (whole && sequence < tokens) => {
                let what = format!("{named} is {sequence}, but {config} knows {tokens} positions ({entry})");
                let then = if self.sequence.is_some() {
                    format!("say --sequence {tokens}")
                } else {
                    "change the line, or name a new file of settings with --config".into()
                };
                Err(wrong(format!("{what}; {then}")))
            }
            _ => Ok(text),
        }
    }
}
