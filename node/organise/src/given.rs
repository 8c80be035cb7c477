//! `muster run new --init`: somebody's checkpoint becomes the parameters that a run begins with.
//!
//! A checkpoint is a folder with `config.json` and `model.safetensors` under Hugging Face's names: what `muster run
//! export` writes, and what `transformers` saves of a `LlamaForCausalLM`, an `AlbertForMaskedLM` or a
//! `Qwen2MoeForCausalLM` that a run can train. It comes from a stranger: every length is bounded before memory is taken for it, and what does not fit is
//! refused by file, tensor and rule.

mod config;
mod known;
mod weights;

use std::path::{Path, PathBuf};

use muster_core::hash::{Domain, Hasher};
use muster_core::ids::Row;
use muster_core::manifest::{Data, Model, Tokeniser};
use muster_core::{layout, limits};
use muster_replica::exit::{Failure, Outcome};
use muster_store::dataset::TOKENISER;
use muster_store::regular;

use self::config::ModelConfig;
use super::hugging_face::{CONFIG, ROWS, WEIGHTS, row_folder};
use crate::config::Settings;

/// Most bytes of a `config.json`.
const CONFIG_BYTES: u64 = 1 << 20;
/// Bytes of a `model.safetensors` beyond those of its values.
const HEADER_BYTES: u64 = 16 << 20;

/// A checkpoint of which the config was read.
pub struct Given {
    folder: PathBuf,
    known: ModelConfig,
}

impl Given {
    /// Reads a checkpoint's config.
    ///
    /// # Errors
    /// [`Failure`] naming the file that is missing, or the entry that is missing or that no model here has.
    pub fn open(folder: &Path) -> Outcome<Self> {
        let path = folder.join(CONFIG);
        if !path.exists() && folder.join(ROWS).exists() {
            let what = "has a checkpoint for each row of experts; name one of them, as in";
            let row = folder.join(row_folder(Row(0)));
            return Err(Failure::usage(format!("{}: {what} --init {}", folder.display(), row.display())));
        }
        let known = ModelConfig::read(&path, &bounded(&path, CONFIG_BYTES)?)?;
        Ok(Self { folder: folder.to_owned(), known })
    }

    /// A commented file of settings for this checkpoint.
    pub fn template(&self) -> String {
        self.known.template()
    }

    /// Fills in what settings leave out of the model; `path` and `text` are what they were read from. Gives the same
    /// text, with what was filled in said in comments at its end.
    ///
    /// # Errors
    /// [`Failure`] naming a setting that the config contradicts.
    pub fn complete(&self, settings: &mut Settings, path: &Path, text: &str) -> Outcome<String> {
        self.known.complete(settings, path, text)
    }

    /// The parameters in the canonical layout of a checked model.
    ///
    /// # Errors
    /// [`Failure`] naming the file, and the tensor that is missing, not the model's, of another shape or type, or not
    /// finite.
    pub fn parameters(&self, model: &Model) -> Outcome<Vec<f32>> {
        let path = self.folder.join(WEIGHTS);
        // A checked model has no more than limits::PARAMETERS.
        let bytes = model.parameters().saturating_mul(4);
        if !path.exists() && self.folder.join(format!("{WEIGHTS}.index.json")).exists() {
            let what = "is split into several files; save it as one (`max_shard_size` of `save_pretrained`)";
            return Err(Failure::environment(format!("{}: {what}", path.display())));
        }
        // A file may hold each value twice: what is shared is saved under both names by some.
        let file = bounded(&path, 2 * bytes + HEADER_BYTES)?;
        weights::parameters(&path, &file, model, &layout::Layout::of(model))
    }

    /// Refuses a checkpoint that brings another tokeniser than the text's: its tokens would mean something else.
    ///
    /// # Errors
    /// [`Failure`] naming the file.
    pub fn check_tokeniser(&self, data: &Data) -> Outcome<()> {
        let path = self.folder.join(TOKENISER);
        if !path.exists() {
            return Ok(());
        }
        let file = bounded(&path, limits::TOKENISER_BYTES.into())?;
        let digest = Hasher::new(Domain::TOKENISER).part(&file).finish();
        if matches!(&data.tokeniser, Tokeniser::File(named) if named.digest == digest) {
            return Ok(());
        }
        Err(Failure::usage(format!(
            "{}: is not the tokeniser of the text; pack the text with it (`muster data pack --tokenizer`), or take it \
             away if it gives the same numbers",
            path.display()
        )))
    }
}

/// A file of at most `most` bytes: its length is checked before memory is taken.
fn bounded(path: &Path, most: u64) -> Outcome<Vec<u8>> {
    regular::read(path, most).map_err(|error| {
        let what = "a checkpoint has config.json and model.safetensors";
        Failure::environment(format!("{}: cannot be read ({}); {what}", path.display(), error.cause()))
    })
}

#[cfg(test)]
mod tests;
